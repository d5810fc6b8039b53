"""The state-space scan of Mamba 2 against the torch code of transformers, called as its models call it: x, B, C and dt
are slices of projections, softplus and D inside, float32 A.

``CASES`` is what ``bundle bench`` times; the class is for ``kernels benchmark``.
"""

import torch
from kernels.benchmark import Benchmark

HEADS, HEADDIM, STATE, GROUPS, CHUNK = 64, 64, 128, 1, 64
LENGTH = 2048
MODEL_CHUNK = 256  # what the models ask for; only the fallback heeds it

# Multiply-adds of one token and head: two products with the state and one half-square of a chunk; backward four and two
# more. The products of B and C, which heads share, are not counted.
FORWARD = 2 * (2 * HEADDIM * STATE + CHUNK * HEADDIM / 2)
BACKWARD = 2 * (4 * HEADDIM * STATE + 2 * CHUNK * HEADDIM / 2)


def fallback():
    """transformers' torch code, as long as nothing is wired in this process."""
    from transformers.models.bamba import modeling_bamba

    return modeling_bamba.mamba2_chunk_scan


def inputs(dtype, length):
    """The output of the convolution, dt, A, D and dt_bias; Mamba 2's initial values, one sequence."""
    torch.manual_seed(0)
    xbc = torch.randn(1, length, HEADS * HEADDIM + 2 * GROUPS * STATE).to(dtype)
    projected = torch.randn(1, length, xbc.shape[-1] + HEADS * HEADDIM + HEADS).to(dtype)
    A = -torch.linspace(1, 16, HEADS)
    dt_bias = torch.empty(HEADS).uniform_(0.001, 0.1).expm1().log()
    return xbc, projected[..., -HEADS:], A, torch.ones(HEADS), dt_bias


def arguments(xbc, dt, A, D, dt_bias):
    """The call, in the words both sides know."""
    x, B, C = xbc.split([HEADS * HEADDIM, GROUPS * STATE, GROUPS * STATE], dim=-1)
    over = xbc.shape[:2]
    return {
        "dt": dt, "A": A, "B": B.view(*over, GROUPS, STATE), "C": C.view(*over, GROUPS, STATE), "D": D,
        "chunk_size": MODEL_CHUNK, "dt_bias": dt_bias, "dt_softplus": True,
    }, x.view(*over, HEADS, HEADDIM)  # fmt: skip


def forward(function, tensors):
    keywords, x = arguments(*tensors)
    return torch.no_grad()(lambda: function(x, **keywords))


def with_gradients(function, tensors, grad):
    """Forward and backward in one call: the output and the gradients of what ``inputs`` gave."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]

    def step():
        keywords, x = arguments(*leaves)
        out = function(x, **keywords).to(grad.dtype)  # the fallback returns float32
        return (out, *torch.autograd.grad(out, leaves, grad))

    return step


def scan(dtype, backward=False, length=LENGTH):
    def build(kernel):
        tensors = inputs(dtype, length)
        if backward:
            grad = torch.randn(1, length, HEADS, HEADDIM).to(dtype)
            candidate, baseline = (
                with_gradients(f, tensors, grad) for f in (kernel.mamba_chunk_scan_combined, fallback())
            )
        else:
            candidate, baseline = (forward(f, tensors) for f in (kernel.mamba_chunk_scan_combined, fallback()))
        moved = sum(x.numel() * x.element_size() for x in (tensors[0], tensors[0]))
        return {
            "candidate": candidate,
            "baselines": {"transformers": baseline},
            "flops": length * HEADS * (FORWARD + (BACKWARD if backward else 0)),
            "bytes": moved * (2.5 if backward else 1),
            "tokens": length,
        }

    return build


CASES = {
    "ssd fwd fp32": scan(torch.float32),
    "ssd fwd bf16": scan(torch.bfloat16),
    "ssd fwd+bwd fp32": scan(torch.float32, backward=True),
    "ssd fwd+bwd bf16": scan(torch.bfloat16, backward=True),
}

GOALS = [  # what the work is held to; tools/bundle/bench_report.py says what the keys mean
    {"work": "Mamba 2 SSD, forward fp32", "cases": "ssd fwd fp32", "floor": 15, "goal": 25},
    {"work": "Mamba 2 SSD, forward + backward fp32", "cases": "ssd fwd+bwd fp32", "floor": 10, "goal": 17},
]


class StateSpace(Benchmark):
    """``kernels benchmark``: the scan, forward."""

    seed = 0

    def setup(self):
        self.keywords, self.x = arguments(*inputs(torch.float32, LENGTH))
        self.out = torch.empty_like(self.x)

    @torch.no_grad()
    def benchmark_scan(self):
        self.out = self.kernel.mamba_chunk_scan_combined(self.x, **self.keywords)

    @torch.no_grad()
    def verify_scan(self):
        return fallback()(self.x, **self.keywords)
