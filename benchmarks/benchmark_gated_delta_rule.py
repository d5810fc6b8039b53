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


def within_model(kernel, cache, function):
    """``function`` as the layers of a wired model run: within a forward whose entrance has seen the model's cache.

    The entrance itself (some 30 microseconds a forward, whatever the number of layers) is not part of a step.
    """
    plan = kernel.refusals.Plan("benchmark", check=False)
    entrance = kernel.boundaries.Entrance(plan, (), True)
    batch = {"past_key_values": cache, "use_cache": True}
    kernel.boundaries.enter(entrance, torch.nn.Module().eval(), (), batch)
    entry = kernel.boundaries._stack().pop()
    return lambda: kernel.boundaries._run_with(entry, function)


def decode(family, dtype, layers=1):
    """One token of decoding through so many layers, as the models run it: each takes its state out of the cache and
    puts what comes back into it."""

    def build(kernel):
        from transformers.cache_utils import Cache, LinearAttentionLayer

        ours = getattr(
            kernel.layers, "fused_recurrent_kda" if family == "kda" else "fused_recurrent_gated_delta_rule"
        )()
        theirs = fallbacks(family)[1]
        q, k, v, g, beta = repeated(*inputs(family, dtype, 1))
        start = [torch.randn(1, HEADS_V, DIM, DIM) / DIM for _ in range(layers)]

        def filled():
            cache = Cache(layers=[LinearAttentionLayer() for _ in range(layers)])
            for i, state in enumerate(start):
                cache.update_recurrent_state(state, i)
                cache.layers[i].has_previous_state[0] = True
            return cache

        def token(function, cache):
            for i in range(layers):
                out, state = function(
                    q, k, v, g=g, beta=beta, initial_state=cache.get_recurrent_state(i), output_final_state=True,
                    use_qk_l2norm_in_kernel=True, cu_seqlens=None,
                )  # fmt: skip
                cache.update_recurrent_state(state, i)
            return out, cache.get_recurrent_state(layers - 1)

        mine, other = filled(), filled()

        return {
            "candidate": no_grad(within_model(kernel, mine, lambda: token(ours, mine))),
            "baselines": {"transformers": no_grad(lambda: token(theirs, other))},
            "flops": layers * HEADS_V * STEP,
            "bytes": layers * 2 * HEADS_V * STATE_BYTES,
        }

    return build


def function_step(family, dtype, in_place):
    """One decoding step by the public function, without a cache: a new state, or the given one moved on."""

    def build(kernel):
        ours = kernel.fused_recurrent_kda if family == "kda" else kernel.fused_recurrent_gated_delta_rule
        theirs = fallbacks(family)[1]
        q, k, v, g, beta = repeated(*inputs(family, dtype, 1))
        state = torch.randn(1, HEADS_V, DIM, DIM) / DIM
        own, other = state.clone(), state.clone()
        options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}

        def candidate():
            if in_place:
                return ours(q, k, v, g=g, beta=beta, initial_state=own, **options, inplace_final_state=True)
            return ours(q, k, v, g=g, beta=beta, initial_state=state, **options)

        def baseline():
            out, moved = theirs(q, k, v, g=g, beta=beta, initial_state=other if in_place else state, **options)
            return (out, other.copy_(moved)) if in_place else (out, moved)

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
    "gdr step fp32": decode("gdr", torch.float32),
    "gdr step bf16": decode("gdr", torch.bfloat16),
    "gdr step 24 layers fp32": decode("gdr", torch.float32, layers=24),
    "gdr step fp32, public function": function_step("gdr", torch.float32, in_place=False),
    "gdr step fp32, public function in place": function_step("gdr", torch.float32, in_place=True),
    "kda fwd fp32": chunk("kda", torch.float32, length=256),
    "kda fwd+bwd fp32": chunk("kda", torch.float32, backward=True, length=256),
    "kda step fp32": decode("kda", torch.float32),
    "kda step 24 layers fp32": decode("kda", torch.float32, layers=24),
}

GOALS = [  # what the work is held to; tools/bundle/bench_report.py says what the keys mean
    {"work": "gated delta rule, chunked forward fp32", "cases": "gdr fwd fp32", "floor": 6, "goal": 8.5},
    {"work": "gated delta rule, forward + backward fp32", "cases": "gdr fwd+bwd fp32", "floor": 8, "goal": 15},
    {"work": "gated delta rule, one decode step fp32, by itself", "cases": "gdr step fp32", "floor": 5, "goal": 8},
    {
        "work": "gated delta rule, one decode step fp32, 24 layers",
        "cases": "gdr step 24 layers fp32",
        "floor": 5,
        "goal": 8,
    },
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
