"""What is timed on a GPU: attention's forward and the convolution, each beside what torch has for it.

Attention: sixteen thousand tokens and 2048 channels, whatever the length and the head dim, so that rows compare. Packs
are ragged: documents of 16 to 8192 tokens, most of them short. The baselines are the FlashAttention and cuDNN backends
of ``scaled_dot_product_attention``, and what torch does without either. The convolution's is a grouped ``conv1d``, as
in the modelling files of transformers. Sizes of ``Sizes()`` are several times what an L2 cache holds.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from bundle.gpu.machine import Call
from bundle.gpu.table import COPY, CUDNN, FALLBACK, FLASH, MATRIX, OURS

Tensor = torch.Tensor


@dataclass(frozen=True)
class Sizes:
    """How large the work is."""

    tokens: int = 16384
    channels: int = 2048
    head_dims: tuple[int, ...] = (128, 64, 256)
    seqlens: tuple[int, ...] = (8192, 2048, 16384, 4096)
    document: tuple[int, int] = (16, 8192)
    conv: tuple[int, int, int] = (1, 65536, 2048)
    update: tuple[int, int] = (1024, 8192)
    matrix: int = 8192
    copied: int = 1 << 29


TINY = Sizes(64, 32, (16, 8), (32, 64), (3, 40), (1, 48, 16), (3, 8), 32, 1 << 10)
"""For the emulator, which takes a second for what a GPU does in a millionth."""


@dataclass(frozen=True)
class Workload:
    """``build`` makes inputs on a device and the contenders over them, ours first; ``amount`` is what one call does."""

    name: str
    ceiling: str
    amount: float
    build: Callable[[ModuleType, torch.device], dict[str, Call]]


def all_workloads(sizes: Sizes) -> Iterator[Workload]:
    """In the order of what a reader asks first: a check that is stopped loses the end of it."""
    first, *others = sizes.seqlens
    for dim, causal in itertools.product(sizes.head_dims, (True, False)):
        yield attention(sizes, first, dim, causal)
    for dim in sizes.head_dims:
        yield pack(sizes, dim)
    yield from convolutions(sizes)
    for seqlen, dim, causal in itertools.product(others, sizes.head_dims, (True, False)):
        yield attention(sizes, seqlen, dim, causal)


# ---- attention -------------------------------------------------------------------------------------------------------


def attention(sizes: Sizes, seqlen: int, dim: int, causal: bool) -> Workload:
    """A batch of equal sequences, bfloat16."""
    batch, heads = max(1, sizes.tokens // seqlen), sizes.channels // dim
    shape = (batch, seqlen, heads, dim)

    def build(kernel: ModuleType, device: torch.device) -> dict[str, Call]:
        q, k, v = _random(shape, device)

        def sdpa(backend: SDPBackend) -> Call:
            return lambda: _sdpa(q, k, v, backend, is_causal=causal)

        return {
            OURS: lambda: kernel.flash_attn_func(q, k, v, causal=causal),
            FLASH: sdpa(SDPBackend.FLASH_ATTENTION),
            CUDNN: sdpa(SDPBackend.CUDNN_ATTENTION),
            FALLBACK: sdpa(SDPBackend.MATH),
        }

    operations = 4.0 * batch * heads * seqlen * seqlen * dim / (2 if causal else 1)
    words = "causal" if causal else "full"
    return Workload(f"attention {words}, head dim {dim}, {batch} x {seqlen}", MATRIX, operations, build)


def pack(sizes: Sizes, dim: int) -> Workload:
    """Causal attention within each document of a ragged pack. The baselines: torch's own attention for packs, which is
    FlashAttention; cuDNN document by document; one call under a block-diagonal mask."""
    lengths = documents(sizes)
    heads = sizes.channels // dim

    def build(kernel: ModuleType, device: torch.device) -> dict[str, Call]:
        q, k, v = _random((1, sum(lengths), heads, dim), device)
        ends = list(itertools.accumulate(lengths, initial=0))
        cu_seqlens = torch.tensor(ends, dtype=torch.int32, device=device)
        spans = [slice(begin, end) for begin, end in itertools.pairwise(ends)]
        number = torch.repeat_interleave(torch.tensor(lengths, device=device))
        rows = torch.arange(len(number), device=device)
        mask = (number[:, None] == number[None]) & (rows[None] <= rows[:, None])
        packed, longest = (q[0], k[0], v[0], cu_seqlens, cu_seqlens), max(lengths)

        def flash() -> Tensor:
            from torch.nn.attention.varlen import varlen_attn

            out = varlen_attn(*packed, longest, longest, window_size=(-1, 0))
            return out if isinstance(out, Tensor) else out[0]

        def document_by_document() -> Tensor:
            cudnn = SDPBackend.CUDNN_ATTENTION
            return torch.cat([_sdpa(q[:, s], k[:, s], v[:, s], cudnn, is_causal=True) for s in spans], 1)[0]

        return {
            OURS: lambda: kernel.flash_attn_varlen_func(*packed, longest, longest, causal=True),
            FLASH: flash,
            CUDNN: document_by_document,
            FALLBACK: lambda: _sdpa(q, k, v, None, attn_mask=mask)[0],
        }

    operations = sum(2.0 * heads * length * length * dim for length in lengths)
    return Workload(f"attention causal, head dim {dim}, pack of {len(lengths)} documents", MATRIX, operations, build)


def documents(sizes: Sizes) -> list[int]:
    """Lengths of a pack, their logarithms spread evenly: the same on every machine."""
    drawn, left = random.Random(7), sizes.tokens
    shortest, longest = map(math.log, sizes.document)
    lengths = []
    while left > 0:
        lengths.append(min(left, round(math.exp(drawn.uniform(shortest, longest)))))
        left -= lengths[-1]
    return lengths


def _random(shape: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(3))
    return q, k, v


def _sdpa(q: Tensor, k: Tensor, v: Tensor, backend: SDPBackend | None, **options: Any) -> Tensor:
    """On tensors laid out as ours, (batch, seqlen, heads, head_dim)."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    if backend is None:
        return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)


# ---- causal_conv1d ---------------------------------------------------------------------------------------------------


def convolutions(sizes: Sizes) -> Iterator[Workload]:
    """Forward in both layouts and over a pack, forward and backward, one step of decoding."""
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        yield _convolution(sizes, f"convolution, {name}, channel-last", dtype)
    yield _convolution(sizes, "convolution, bf16, channel-first", torch.bfloat16, channel_last=False)
    yield _convolution(sizes, "convolution, bf16, pack of 64 documents", torch.bfloat16, parts=64)
    yield _training(sizes)
    yield _decoding(sizes)


def fallback(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Causal convolution and silu with torch's own ops; x (B, D, L)."""
    out = F.conv1d(x, weight[:, None], bias, padding=weight.shape[1] - 1, groups=x.shape[1])
    return F.silu(out[..., : x.shape[2]])


def _filtered(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    batch, seqlen, channels = sizes.conv
    x = torch.randn(batch, seqlen, channels, device=device, dtype=dtype).transpose(1, 2)
    weight, bias = (torch.randn(*shape, device=device, dtype=dtype) for shape in ((channels, 4), (channels,)))
    return x, weight, bias


def _convolution(sizes: Sizes, name: str, dtype: torch.dtype, *, channel_last: bool = True, parts: int = 1) -> Workload:
    def build(kernel: ModuleType, device: torch.device) -> dict[str, Call]:
        x, weight, bias = _filtered(sizes, dtype, device)
        x = x if channel_last else x.contiguous()
        length = -(-x.shape[2] // parts)
        seq_idx = (torch.arange(x.shape[2], device=device) // length).to(torch.int32).expand(x.shape[0], -1)

        def each_part() -> Tensor:
            return torch.cat([fallback(part, weight, bias) for part in torch.split(x, length, 2)], 2)

        return {
            OURS: lambda: kernel.causal_conv1d_fn(
                x, weight, bias, seq_idx if parts > 1 else None, activation="silu"
            ),
            FALLBACK: each_part if parts > 1 else lambda: fallback(x, weight, bias),
        }  # fmt: skip

    return Workload(name, COPY, 2.0 * math.prod(sizes.conv) * dtype.itemsize, build)


def _training(sizes: Sizes) -> Workload:
    """Output and gradients of x, weight and bias: x twice, dout once read; out and dx written."""

    def build(kernel: ModuleType, device: torch.device) -> dict[str, Call]:
        leaves = [tensor.detach().requires_grad_() for tensor in _filtered(sizes, torch.bfloat16, device)]
        grad = torch.randn_like(leaves[0])

        def step(convolve: Callable[..., Tensor]) -> tuple[Tensor, ...]:
            out = convolve(*leaves)
            return (out.detach(), *torch.autograd.grad(out, leaves, grad))

        ours = functools.partial(kernel.causal_conv1d_fn, activation="silu")
        return {OURS: lambda: step(ours), FALLBACK: lambda: step(fallback)}

    return Workload("convolution, bf16, forward + backward", COPY, 5.0 * math.prod(sizes.conv) * 2, build)


def _decoding(sizes: Sizes) -> Workload:
    """One token through the states of many sequences."""
    batch, channels = sizes.update

    def build(kernel: ModuleType, device: torch.device) -> dict[str, Call]:
        torch.manual_seed(0)
        shapes = (batch, channels), (channels, 4), (channels,)
        x, weight, bias = (torch.randn(shape, device=device, dtype=torch.bfloat16) for shape in shapes)
        mine, theirs = (x.new_zeros(batch, channels, 4) for _ in range(2))

        def shifted() -> Tensor:
            theirs.copy_(torch.cat([theirs[..., 1:], x[..., None]], -1))
            return F.silu((theirs * weight).sum(-1) + bias)

        return {OURS: lambda: kernel.causal_conv1d_update(x, mine, weight, bias, "silu"), FALLBACK: shifted}

    return Workload("convolution, bf16, decoding", COPY, 10.0 * batch * channels * 2, build)
