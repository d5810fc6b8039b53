"""The gated delta rule and Kimi delta attention against transformers' own torch fallbacks, called as its models call
them: query and key heads repeated, L2 norm inside.

``CASES`` is what ``bundle bench`` times; the class is for ``kernels benchmark``.
"""

import torch
from kernels.benchmark import Benchmark

HEADS_K, HEADS_V, DIM, CHUNK = 16, 32, 128, 64
LENGTH = 2048

# Multiply-adds of one token and value head: three products with the state and four half-squares of a chunk; backward
# seven and ten more.
FORWARD = 2 * (3 * DIM * DIM + 4 * CHUNK * DIM / 2)
BACKWARD = 2 * (7 * DIM * DIM + 10 * CHUNK * DIM / 2)
STEP = 2 * 3 * DIM * DIM
STATE_BYTES = 4 * DIM * DIM


def fallbacks(family):
    """(chunk form, recurrent form) of transformers; its torch code, as long as nothing is wired in this process."""
    if family == "kda":
        from transformers.models.kimi_linear import modeling_kimi_linear as modeling

        return modeling.chunk_kimi_delta_attention, modeling.recurrent_kimi_delta_attention
    from transformers.models.qwen3_next import modeling_qwen3_next as modeling

    return modeling.torch_chunk_gated_delta_rule, modeling.torch_recurrent_gated_delta_rule


def inputs(family, dtype, length, heads_k=HEADS_K):
    """q, k, v, g, beta of one sequence."""
    torch.manual_seed(0)
    over = (1, length)
    q, k = (torch.randn(*over, heads_k, DIM).to(dtype) for _ in range(2))
    v = torch.randn(*over, HEADS_V, DIM).to(dtype)
    gates = (*over, HEADS_V, DIM) if family == "kda" else (*over, HEADS_V)
    return q, k, v, -0.3 * torch.rand(gates), torch.rand(*over, HEADS_V).to(dtype)


def repeated(q, k, *rest):
    """Query and key heads once for each value head, as the models hand them over."""
    return (*(x.repeat_interleave(HEADS_V // x.shape[2], 2) for x in (q, k)), *rest)


def with_gradients(function, tensors, grad):
    """Forward and backward in one call: the output and the gradients of q, k, v, g, beta."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]

    def step():
        out, _ = function(*leaves, use_qk_l2norm_in_kernel=True)
        return (out, *torch.autograd.grad(out, leaves, grad))

    return step


def chunk(family, dtype, backward=False, grouped=False, length=LENGTH):
    """The chunk form; ``grouped``: ours gets the 16 key heads, which no fallback takes."""

    def build(kernel):
        ours = kernel.chunk_kda if family == "kda" else kernel.chunk_gated_delta_rule
        theirs = fallbacks(family)[0]
        few = inputs(family, dtype, length)
        many = repeated(*few)
        mine = few if grouped else many
        flops = length * HEADS_V * (FORWARD + (BACKWARD if backward else 0))
        moved = sum(x.numel() * x.element_size() for x in (*mine, mine[2])) * (2.5 if backward else 1)
        if backward:
            grad = torch.randn(*few[2].shape).to(dtype)
            candidate, baseline = with_gradients(ours, mine, grad), with_gradients(theirs, many, grad)
        else:
            candidate = no_grad(lambda: ours(*mine, use_qk_l2norm_in_kernel=True)[0])
            baseline = no_grad(lambda: theirs(*many, use_qk_l2norm_in_kernel=True)[0])
        if backward and grouped:  # dq and dk have other shapes: compare what both return alike
            candidate, baseline = without_shared_heads(candidate), without_shared_heads(baseline)
        return {"candidate": candidate, "baselines": {"transformers": baseline}, "flops": flops, "bytes": moved}

    return build


def without_shared_heads(step):
    """out, dv, dg, dbeta of what ``step`` returns."""

    def run():
        out, _, _, *rest = step()
        return (out, *rest)

    return run


def no_grad(function):
    """``function`` without autograd."""
    return torch.no_grad()(function)


def decode(family, dtype, in_place):
    """One decoding step of one sequence."""

    def build(kernel):
        ours = kernel.fused_recurrent_kda if family == "kda" else kernel.fused_recurrent_gated_delta_rule
        theirs = fallbacks(family)[1]
        q, k, v, g, beta = repeated(*inputs(family, dtype, 1))
        state = torch.randn(1, HEADS_V, DIM, DIM) / DIM
        own = state.clone()
        options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
        extra = {"inplace_final_state": True} if in_place else {}

        def candidate():
            if in_place:
                own.copy_(state)  # so that every round starts where the baseline does; counts against us
            return ours(q, k, v, g=g, beta=beta, initial_state=own if in_place else state, **options, **extra)

        def baseline():
            return theirs(q, k, v, g=g, beta=beta, initial_state=state, **options)

        return {
            "candidate": no_grad(candidate),
            "baselines": {"transformers": no_grad(baseline)},
            "flops": HEADS_V * STEP,
            "bytes": 2 * HEADS_V * STATE_BYTES,
        }

    return build


CASES = {
    "gdr fwd fp32": chunk("gdr", torch.float32),
    "gdr fwd fp32, 16 key heads": chunk("gdr", torch.float32, grouped=True),
    "gdr fwd bf16": chunk("gdr", torch.bfloat16),
    "gdr fwd+bwd fp32": chunk("gdr", torch.float32, backward=True),
    "gdr fwd+bwd fp32, 16 key heads": chunk("gdr", torch.float32, backward=True, grouped=True),
    "gdr fwd+bwd bf16": chunk("gdr", torch.bfloat16, backward=True),
    "gdr step fp32": decode("gdr", torch.float32, in_place=False),
    "gdr step fp32, in place": decode("gdr", torch.float32, in_place=True),
    "gdr step bf16": decode("gdr", torch.bfloat16, in_place=False),
    "kda fwd fp32": chunk("kda", torch.float32, length=256),
    "kda fwd+bwd fp32": chunk("kda", torch.float32, backward=True, length=256),
    "kda step fp32": decode("kda", torch.float32, in_place=False),
}

GOALS = [  # what the work is held to; tools/bundle/bench_report.py says what the keys mean
    {"work": "gated delta rule, chunked forward fp32", "cases": "gdr fwd fp32", "floor": 6, "goal": 8.5},
    {"work": "gated delta rule, forward + backward fp32", "cases": "gdr fwd+bwd fp32", "floor": 8, "goal": 15},
    {"work": "gated delta rule, one decode step fp32", "cases": "gdr step fp32", "floor": 5, "goal": 8},
]


class GatedDeltaRule(Benchmark):
    """``kernels benchmark``: the chunk form, forward."""

    seed = 0

    def setup(self):
        self.tensors = repeated(*inputs("gdr", torch.float32, LENGTH))
        self.out = torch.empty_like(self.tensors[2])

    @torch.no_grad()
    def benchmark_chunk(self):
        self.out = self.kernel.chunk_gated_delta_rule(*self.tensors, use_qk_l2norm_in_kernel=True)[0]

    @torch.no_grad()
    def verify_chunk(self):
        return fallbacks("gdr")[0](*self.tensors, use_qk_l2norm_in_kernel=True)[0]
