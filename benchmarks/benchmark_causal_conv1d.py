"""The convolution against what transformers runs on a CPU: the torch fallback in its modelling files, called as its
models call it. They hand over a transposed (batch, seqlen, channels) projection, so x is channel-last.

``CASES`` is what ``bundle bench`` times; the class is for ``kernels benchmark``.
"""

import itertools
import math

import torch
from kernels.benchmark import Benchmark

SHAPE, WIDTH = (1, 4096, 2048), 4  # (batch, seqlen, channels), as a model has it
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def fallback():
    """transformers' own functions; importing them is slow, so only when a case is timed."""
    from transformers.models.qwen3_next import modeling_qwen3_next

    return modeling_qwen3_next


def model_inputs(dtype, shape=SHAPE):
    """x as (batch, channels, seqlen) channel-last, weight, bias, gradient."""
    torch.manual_seed(0)
    x, grad = (torch.randn(shape).to(dtype).transpose(1, 2) for _ in range(2))
    return x, torch.randn(shape[2], WIDTH).to(dtype), torch.randn(shape[2]).to(dtype), grad


def case(candidate, baselines, x, moved, operations=20):
    """``moved``: how often x's bytes are read or written; ``operations`` a value, silu counted as ten."""
    elements = x.numel()
    return {
        "candidate": candidate,
        "baselines": baselines,
        "flops": operations * elements,
        "bytes": moved * elements * x.element_size(),
    }


def forward(dtype, channel_last=True, given=False, documents=1):
    """Convolution and silu; ``given``: into a tensor that exists."""

    def build(kernel):
        x, weight, bias, _ = model_inputs(dtype)
        x = x if channel_last else x.contiguous()
        seq_idx = torch.arange(documents, dtype=torch.int32).repeat_interleave(x.shape[2] // documents)[None]
        out = torch.empty_like(x) if given else None

        def ours():
            return kernel.causal_conv1d_fn(
                x, weight, bias, seq_idx if documents > 1 else None, activation="silu", out=out
            )

        def each_document():
            parts = [theirs(part, weight, bias, "silu") for part in x.split(x.shape[2] // documents, 2)]
            return torch.cat(parts, 2) if documents > 1 else parts[0]

        theirs = fallback().causal_conv1d_fn
        return case(ours, {"transformers' fallback": each_document}, x, 2)

    return build


def copy_into(dtype):
    """Convolution and silu into a given tensor against nothing but copying x there: the ratio is the share reached."""

    def build(kernel):
        x, weight, bias, _ = model_inputs(dtype)
        out, copied = torch.empty_like(x), torch.empty_like(x)

        def ours():
            kernel.causal_conv1d_fn(x, weight, bias, activation="silu", out=out)
            return x

        return case(ours, {"copy": lambda: copied.copy_(x)}, x, 2)

    return build


def forward_backward(dtype, channel_last=True, mixed=False):
    """A training step of the layer: output, dx, dweight, dbias.

    The gradient lies as x does, or ``mixed`` the other way: what a transpose behind the layer hands back.
    """

    def build(kernel):
        x, weight, bias, grad = model_inputs(dtype)
        x = x if channel_last else x.contiguous()
        grad = grad if channel_last != mixed else grad.contiguous()
        leaves = [tensor.requires_grad_() for tensor in (x, weight, bias)]
        theirs = fallback().causal_conv1d_fn

        def step(convolve):
            out = convolve(*leaves, activation="silu")
            return (out, *torch.autograd.grad(out, leaves, grad))

        return case(
            lambda: step(kernel.causal_conv1d_fn),
            {"transformers' fallback": lambda: step(theirs)},
            x,
            5,
            operations=50,
        )

    return build


class Empty(torch.nn.Module):
    """What a module costs that does nothing."""

    def forward(self, x, *args):
        return x


def update(dtype, layers=1, empty=False):
    """One token of decoding through so many layers, each with its own weight and state.

    A single call comes right after the other side's, which leaves the caches full of its own: it is mostly the cost of
    fetching Python's and torch's dispatcher's code again. A decoding model calls once a layer. ``empty`` times a module
    that does nothing in our place: what no layer of a model, called from Python, can beat.
    """

    def build(kernel):
        x, _, _, _ = model_inputs(dtype, (1, 1, SHAPE[2]))
        filters = [(torch.randn(SHAPE[2], WIDTH).to(dtype), torch.randn(SHAPE[2]).to(dtype)) for _ in range(layers)]
        ours, theirs = ([torch.zeros(1, SHAPE[2], WIDTH, dtype=dtype) for _ in range(layers)] for _ in range(2))

        def token(function, states):
            return [function(x, state, *held, "silu") for state, held in zip(states, filters, strict=True)]

        baseline, layer = fallback().causal_conv1d_update, Empty() if empty else kernel.layers.causal_conv1d_update()
        timed = case(
            torch.no_grad()(lambda: token(layer, ours)),
            {"transformers' fallback": torch.no_grad()(lambda: token(baseline, theirs))},
            x,
            layers * (2 + 3 * WIDTH),
            operations=20 * layers,
        )
        return {**timed, "tolerance": math.inf} if empty else timed

    return build


def all_cases():
    """``(name, build)`` of every case."""
    for name, dtype in DTYPES.items():
        yield f"forward channel-last {name}", forward(dtype)
    for name, dtype in DTYPES.items():
        yield f"forward channel-last given {name}", forward(dtype, given=True)
    for (name, dtype), channel_last in itertools.product(DTYPES.items(), (True, False)):
        layout = "channel-last" if channel_last else "channel-first"
        yield f"forward+backward {layout} {name}", forward_backward(dtype, channel_last)
    for name, dtype in DTYPES.items():
        yield f"forward+backward mixed {name}", forward_backward(dtype, channel_last=False, mixed=True)
        yield f"forward channel-first {name}", forward(dtype, channel_last=False)
        yield f"forward 8 documents {name}", forward(dtype, documents=8)
        yield f"share of copying {name}", copy_into(dtype)
        yield f"update {name}", update(dtype)
        yield f"update 24 layers {name}", update(dtype, layers=24)
        yield f"update {name}, by an empty module", update(dtype, empty=True)


CASES = dict(all_cases())

GOALS = [  # what the work is held to; tools/bundle/bench_report.py says what the keys mean
    {"work": "conv + silu forward fp32", "cases": "forward channel-last fp32", "floor": 6, "goal": 15},
    {"work": "conv + silu forward bf16", "cases": "forward channel-last bf16", "floor": 18, "goal": 40},
    {
        "work": "the same fp32, given out=, as a part of copying",
        "cases": "share of copying fp32",
        "floor": 0.5,
        "goal": 0.8,
    },
    *(
        {
            "work": f"conv forward + backward {name}",
            "cases": f"forward+backward channel-last {name}",
            "floor": 6,
            "goal": 12,
        }
        for name in DTYPES
    ),
    {"work": "conv update, one token fp32, a call by itself", "cases": "update fp32", "floor": 8, "goal": 16},
    {"work": "conv update, one token fp32, 24 layers", "cases": "update 24 layers fp32", "floor": 8, "goal": 16},
    {"work": "conv update, one token bf16, a call by itself", "cases": "update bf16", "floor": 500, "goal": 1500},
    {"work": "the same by a module that does nothing", "cases": "update bf16, by an empty module"},
    {"work": "conv update, one token bf16, 24 layers", "cases": "update 24 layers bf16", "floor": 500, "goal": 1500},
]


class CausalConv1dBenchmark(Benchmark):
    """``kernels benchmark``: forward and silu, (1, 4096, 2048) channel-last, float32, width 4."""

    seed = 0

    def setup(self):
        self.x, self.weight, self.bias, _ = model_inputs(torch.float32)
        self.out = torch.empty_like(self.x)

    def benchmark_forward(self):
        self.out = self.kernel.causal_conv1d_fn(self.x, self.weight, self.bias, activation="silu")

    def verify_forward(self):
        return fallback().causal_conv1d_fn(self.x, self.weight, self.bias, "silu")
