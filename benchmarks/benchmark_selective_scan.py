"""The selective scan and the state update against transformers' own torch fallbacks, called as its models call them.

``CASES`` is what ``bundle bench`` times; the class is for ``kernels benchmark``.

The arguments of a scan are those that a MambaMixer passes to it, taken from one, because their layout decides what the
fallback costs. u and dt are contiguous (B, D, L): one comes out of the convolution, the other out of a product with the
weight on the left. z, B and C are channel-last views of projections. So the fallback's decays and inputs, each
(B, D, L, N) and 512 MiB at L 2048, have the time next to last, and each of its L steps picks a cache line out of every
128 KiB of both. Given channel-last views of everything torch would lay them out with the time first and walk them in a
fraction of the time, but no model gives it those.
"""

from unittest import mock

import torch
from kernels.benchmark import Benchmark

CHANNELS, STATES = 4096, 16
LENGTH, TRAINED_LENGTH = 2048, 512
HEADS, HEAD_DIM, HEAD_STATES = 64, 64, 128

# Operations of one state of one token, each a multiply-add or as dear: the exponential 9, the recurrence 3; backward
# runs them again and adds 8.
FORWARD = 2 * 12
BACKWARD = 2 * 20
STEP = 2 * 3


def fallbacks(family):
    """(scan, update) of transformers; its torch code, as long as nothing is wired in this process."""
    if family == "mamba2":
        from transformers.models.mamba2 import modeling_mamba2 as modeling

        return None, modeling.mamba2_selective_state_update
    from transformers.models.mamba import modeling_mamba as modeling

    return modeling.mamba_selective_scan, modeling.mamba_selective_state_update


def inputs(dtype, length):
    """The arguments of a scan, by name, as a MambaMixer with fresh weights passes them."""
    from transformers import MambaConfig
    from transformers.models.mamba import modeling_mamba as modeling

    torch.manual_seed(0)
    mixer = modeling.MambaMixer(MambaConfig(hidden_size=CHANNELS // 2, state_size=STATES), 0).to(dtype).eval()
    no_scan = mock.Mock(side_effect=lambda u, *_, **__: torch.empty_like(u))
    with mock.patch.object(modeling, "mamba_selective_scan", no_scan), torch.no_grad():
        mixer(torch.randn(1, length, CHANNELS // 2).to(dtype))
    names = ("hidden_states", "dt", "A", "B", "C")
    given = {**dict(zip(names, no_scan.call_args.args, strict=True)), **no_scan.call_args.kwargs}
    return {name: given[name].detach() for name in (*names, "D", "z", "delta_bias")}


def ours(kernel, tensors):
    """The public function, under its own argument names."""
    names = {"hidden_states": "u", "dt": "delta"}
    return kernel.selective_scan_fn(**{names.get(n, n): x for n, x in tensors.items()}, delta_softplus=True)


def with_gradients(function, tensors, grad):
    """Forward and backward in one call: the output and, for the output's gradient, that of every tensor."""
    leaves = {n: x.detach().requires_grad_() for n, x in tensors.items()}

    def step():
        out = function(leaves)
        return (out, *torch.autograd.grad(out, list(leaves.values()), grad))

    return step


def scan(dtype, backward=False):
    """A scan of one sequence; transformers' backward takes minutes and runs once."""

    def build(kernel):
        length = TRAINED_LENGTH if backward else LENGTH
        tensors = inputs(dtype, length)
        theirs = fallbacks("mamba")[0]

        def candidate(given):
            return ours(kernel, given)

        def baseline(given):
            return theirs(**given, delta_softplus=True).to(dtype)

        moved = 4 * tensors["dt"].numel() * tensors["dt"].element_size() * (2.5 if backward else 1)
        case = {
            "flops": length * CHANNELS * STATES * (FORWARD + (BACKWARD if backward else 0)),
            "bytes": moved,
            "once": ("transformers",) if backward else (),
        }
        if backward:
            grad = torch.randn(1, length, CHANNELS).to(dtype).transpose(1, 2)  # as the last projection hands it back
            return {
                **case,
                "candidate": with_gradients(candidate, tensors, grad),
                "baselines": {"transformers": with_gradients(baseline, tensors, grad)},
            }
        return {
            **case,
            "candidate": torch.no_grad()(lambda: candidate(tensors)),
            "baselines": {"transformers": torch.no_grad()(lambda: baseline(tensors))},
        }

    return build


def update(dtype, family, layers=1):
    """One token of decoding through so many layers, each with its own state: Mamba 2 with 64 heads, or Mamba 1, whose
    models pass a gate as well. Parameters are float32, or with the model 16 bit (A is computed in float32)."""

    def build(kernel):
        torch.manual_seed(0)
        if family == "mamba2":
            channels, states = (HEADS, HEAD_DIM), HEAD_STATES
            step, A = torch.randn(1, HEADS, 1), (-torch.rand(HEADS))[:, None, None].expand(-1, HEAD_DIM, states)
            dt, bias = (
                step.to(dtype).expand(-1, -1, HEAD_DIM),
                torch.randn(HEADS).to(dtype)[:, None].expand(-1, HEAD_DIM),
            )
            B, C = (torch.randn(1, 1, states).to(dtype) for _ in range(2))
            D, z = torch.randn(HEADS).to(dtype)[:, None].expand(-1, HEAD_DIM), None
        else:
            channels, states = (CHANNELS,), STATES
            dt, A = torch.randn(1, *channels).to(dtype), -torch.rand(*channels, states)
            bias, D = torch.randn(*channels), torch.randn(*channels).to(dtype)  # the mixer widens the bias itself
            B, C = (torch.randn(1, states).to(dtype) for _ in range(2))
            z = torch.randn(1, *channels).to(dtype)
        x = torch.randn(1, *channels).to(dtype)
        ours, theirs = kernel.layers.selective_state_update(), fallbacks(family)[1]
        mine, other = ([torch.zeros(1, *channels, states) for _ in range(layers)] for _ in range(2))

        def token(function, states):
            return [function(s, x, dt, A, B, C, D, z=z, dt_bias=bias, dt_softplus=True) for s in states]

        return {
            "candidate": torch.no_grad()(lambda: token(ours, mine)),
            "baselines": {"transformers": torch.no_grad()(lambda: token(theirs, other))},
            "flops": layers * mine[0].numel() * STEP,
            "bytes": layers * 8 * mine[0].numel(),
        }

    return build


CASES = {
    "scan fwd fp32": scan(torch.float32),
    "scan fwd bf16": scan(torch.bfloat16),
    "scan fwd+bwd fp32": scan(torch.float32, backward=True),
    "update fp32, Mamba 2": update(torch.float32, "mamba2"),
    "update bf16, Mamba 2": update(torch.bfloat16, "mamba2"),
    "update 24 layers fp32, Mamba 2": update(torch.float32, "mamba2", layers=24),
    "update fp32, Mamba 1": update(torch.float32, "mamba1"),
    "update 24 layers fp32, Mamba 1": update(torch.float32, "mamba1", layers=24),
}

GOALS = (
    {"work": "selective scan forward fp32, L 2048", "cases": "scan fwd fp32", "floor": 60, "goal": 200},
    {"work": "selective scan forward + backward, L 512", "cases": "scan fwd+bwd fp32", "floor": 1000, "goal": 4000},
    {"work": "Mamba 2 state update, by itself", "cases": "update fp32, Mamba 2", "floor": 10, "goal": 17},
    {"work": "Mamba 2 state update, 24 layers", "cases": "update 24 layers fp32, Mamba 2", "floor": 10, "goal": 17},
)


class SelectiveScan(Benchmark):
    """``kernels benchmark``: the scan, forward."""

    seed = 0

    def setup(self):
        self.tensors = inputs(torch.float32, LENGTH)
        self.out = torch.empty_like(self.tensors["dt"])

    @torch.no_grad()
    def benchmark_scan(self):
        self.out = ours(self.kernel, self.tensors)

    @torch.no_grad()
    def verify_scan(self):
        return fallbacks("mamba")[0](**self.tensors, delta_softplus=True)
