"""Checks and defaults of the attention functions: from what a caller may write to what the op takes."""

from typing import Any, NamedTuple, Optional, Union

import torch

from . import _checks as checks
from ._ops import ops

OP = "attention"
CUDA = ops.cpu_isa() < 0
"""Whether this variant's kernels are the CUDA ones, which do not take everything yet."""
MAX_HEAD_DIM = 256 if CUDA else 512
_ON = " on cuda" if CUDA else ""

MaxSeqlen = Union[int, torch.Tensor]
Window = tuple[int, int]


class Scores(NamedTuple):
    """How scores are made, in the op's order."""

    softmax_scale: float
    causal: bool
    window_left: int
    window_right: int
    softcap: float


def check_qkv(
    q: Any, k: Any, v: Any, dims: int, dims_k: Optional[int] = None, names: tuple[str, str] = ("k", "v")
) -> None:
    """dtypes, devices, ranks, heads and head dims; ``names`` are what the caller calls k and v."""
    dims_k = dims if dims_k is None else dims_k
    checks.require_floating(OP, "q", q)
    checks.require_kernel(OP, "q", q, "attention_fwd")
    checks.require_dim(OP, "q", q, dims)
    for name, tensor in zip(names, (k, v)):
        checks.require_like(OP, name, tensor, "q", q)
        checks.require_dim(OP, name, tensor, dims_k)
    heads_q, heads_kv, head_dim = q.shape[-2], k.shape[-2], q.shape[-1]
    if heads_q < 1:
        raise ValueError(f"{OP}: heads_q must be at least 1, got {heads_q}")
    if heads_kv < 1 or heads_q % heads_kv != 0:
        raise ValueError(f"{OP}: heads_kv must divide heads_q ({heads_q}), got {heads_kv}")
    checks.require_size(OP, names[0], k, dims_k - 1, head_dim)
    if v.shape[:-1] != k.shape[:-1]:
        for dim in range(dims_k - 1):
            checks.require_size(OP, names[1], v, dim, k.shape[dim])
    for name, size in (("head_dim", head_dim), (f"head_dim of {names[1]}", v.shape[-1])):
        if size < 1:
            raise ValueError(f"{OP}: {name} must be 1 to {MAX_HEAD_DIM}{_ON}, got {size}")
        if size > MAX_HEAD_DIM:
            raise NotImplementedError(f"{OP}: {name} must be 1 to {MAX_HEAD_DIM}{_ON}, got {size}")
    if CUDA:
        _check_built(q, k, v)


def _check_built(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """What only the CPU kernels take, of the tensors that every call has."""
    if q.dtype == torch.float32:
        raise NotImplementedError(f"{OP}: q must be bfloat16 or float16 on cuda, got float32")
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        raise NotImplementedError(
            f"{OP}: q, k and v must not require gradients on cuda, where the backward is not built yet "
            "(use torch.no_grad())"
        )


def refuse_unbuilt(name: str, value: Any, wanted: Any = None) -> None:
    """An option that the CUDA kernels do not take yet, by its name."""
    if CUDA and value is not wanted and (wanted is None or value != wanted):
        got = type(value).__name__ if wanted is None else value
        raise NotImplementedError(f"{OP}: {name} must be {wanted} on cuda, where it is not built yet, got {got}")


def scores(q: torch.Tensor, softmax_scale: Any, causal: Any, window_size: Any, softcap: Any) -> Scores:
    """The options that shape the scores; softmax_scale is ``head_dim ** -0.5`` by default."""
    if softmax_scale is None:
        softmax_scale = q.shape[-1] ** -0.5
    checks.require_number(OP, "softmax_scale", softmax_scale)
    checks.require_number(OP, "softcap", softcap)
    if softcap < 0:
        raise ValueError(f"{OP}: softcap must be 0.0 (off) or positive, got {softcap}")
    checks.require_bool(OP, "causal", causal)
    return Scores(float(softmax_scale), causal, *window(window_size), float(softcap))


def window(window_size: Any) -> Window:
    """(left, right), -1 unbounded."""
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise TypeError(f"{OP}: window_size must be a pair (left, right), got {window_size!r}")
    for size in window_size:
        if not checks.is_int(size):
            raise TypeError(f"{OP}: window_size must be a pair of integers, got {window_size!r}")
        if size < -1:
            raise ValueError(f"{OP}: window_size must hold -1 (unbounded) or more, got {tuple(window_size)}")
    return window_size[0], window_size[1]


def one_of(name: str, value: Any, alias: str, other: Any) -> Any:
    """The one that is given of two names for the same argument."""
    if value is not None and other is not None:
        raise ValueError(f"{OP}: {alias} must be None when {name} is given, got {type(other).__name__}")
    return other if value is None else value


def modifiers(
    q: torch.Tensor, sequences: int, s_aux: Any, learnable_sink: Any, alibi_slopes: Any, dropout_p: Any
) -> tuple[Optional[torch.Tensor], Optional[torch.Tensor], float, Optional[torch.Tensor]]:
    """The op's next arguments: sinks, alibi_slopes, dropout_p and the seed of the dropout."""
    sinks = one_of("s_aux", s_aux, "learnable_sink", learnable_sink)
    check_sinks(sinks, q)
    if CUDA and sinks is not None and torch.is_grad_enabled() and sinks.requires_grad:
        raise NotImplementedError(
            f"{OP}: s_aux must not require gradients on cuda, where the backward is not built yet (use torch.no_grad())"
        )
    check_slopes(alibi_slopes, q, sequences)
    if sinks is not None:
        sinks = sinks.float().contiguous()
    if alibi_slopes is not None:
        alibi_slopes = alibi_slopes.contiguous()
    return (sinks, alibi_slopes, *dropout(dropout_p))


def check_flags(deterministic: Any, return_attn_probs: Any, num_splits: Any) -> None:
    """Arguments that never change a bit of the result."""
    checks.require_bool(OP, "deterministic", deterministic)
    checks.require_bool(OP, "return_attn_probs", return_attn_probs)
    checks.require_int(OP, "num_splits", num_splits, least=0)


def check_sinks(sinks: Optional[torch.Tensor], q: torch.Tensor) -> None:
    """(heads_q,), any of the three dtypes."""
    if sinks is None:
        return
    checks.require_floating(OP, "s_aux", sinks)
    checks.require_device(OP, "s_aux", sinks, "q", q)
    checks.require_dim(OP, "s_aux", sinks, 1)
    checks.require_size(OP, "s_aux", sinks, 0, q.shape[-2])


def check_slopes(alibi_slopes: Optional[torch.Tensor], q: torch.Tensor, sequences: int) -> None:
    """(heads_q,) or (sequences, heads_q), float32, as flash-attn takes them."""
    if alibi_slopes is None:
        return
    checks.require_tensor(OP, "alibi_slopes", alibi_slopes)
    if alibi_slopes.dtype != torch.float32:
        raise TypeError(f"{OP}: alibi_slopes must be float32, got {checks.name_of(alibi_slopes.dtype)}")
    checks.require_device(OP, "alibi_slopes", alibi_slopes, "q", q)
    wanted = [(q.shape[-2],), (sequences, q.shape[-2])]
    if tuple(alibi_slopes.shape) not in wanted:
        raise ValueError(
            f"{OP}: alibi_slopes must have shape {wanted[0]} or {wanted[1]}, got {tuple(alibi_slopes.shape)}"
        )


def dropout(dropout_p: Any) -> tuple[float, Optional[torch.Tensor]]:
    """The probability, and where it is not 0 a seed drawn from torch's CPU generator."""
    checks.require_number(OP, "dropout_p", dropout_p)
    if not 0 <= dropout_p < 1:
        raise ValueError(f"{OP}: dropout_p must be in [0, 1), got {dropout_p}")
    refuse_unbuilt("dropout_p", dropout_p, 0.0)
    if dropout_p == 0:
        return 0.0, None
    return float(dropout_p), torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, device="cpu")


def max_seqlen_of(name: str, value: Any, tensor: torch.Tensor) -> int:
    """The bound as an int. A tensor whose value must not be read (tracing, another device) becomes the widest bound."""
    if isinstance(value, torch.Tensor):
        if value.dim() != 0 or value.dtype not in (torch.int32, torch.int64):
            raise TypeError(
                f"{OP}: {name} must be an int or a 0-dim integer tensor, "
                f"got a {value.dim()}-dim {checks.name_of(value.dtype)} tensor"
            )
        value = int(value) if checks.readable(value) else tensor.shape[0]
    if not checks.is_int(value):
        raise TypeError(f"{OP}: {name} must be an int or a 0-dim integer tensor, got {type(value).__name__}")
    return value


def check_boundaries(side: str, cu_seqlens: torch.Tensor, rows: Optional[int], max_seqlen: int) -> None:
    """Values of cu_seqlens, where they can be read; ``rows`` None: nothing bounds the last one (paged keys)."""
    ends = checks.values_of(cu_seqlens)
    if ends is None:
        return
    name = f"cu_seqlens_{side}"
    if not ends or ends[0] != 0:
        raise ValueError(f"{OP}: {name} must start at 0, got {ends[0] if ends else 'nothing'}")
    longest = 0
    for start, end in zip(ends, ends[1:]):
        if end < start:
            raise ValueError(f"{OP}: {name} must not decrease, got {end} after {start}")
        longest = max(longest, end - start)
    if rows is not None and ends[-1] > rows:
        raise ValueError(f"{OP}: {name} must end at or below the number of rows of {side} ({rows}), got {ends[-1]}")
    if max_seqlen < longest:
        raise ValueError(f"{OP}: max_seqlen_{side} must be at least the longest sequence ({longest}), got {max_seqlen}")


def used_of(name: str, used: Any, q: torch.Tensor, cu_seqlens: torch.Tensor) -> Optional[torch.Tensor]:
    """seqused: int32 or int64, one number a sequence, none longer than its sequence; as the op reads it."""
    if used is None:
        return None
    refuse_unbuilt(name, used)
    checks.require_integers(OP, name, used, "q", q)
    checks.require_size(OP, name, used, 0, cu_seqlens.shape[0] - 1)
    numbers, ends = checks.values_of(used), checks.values_of(cu_seqlens)
    if numbers is not None and ends is not None:
        for number, start, end in zip(numbers, ends, ends[1:]):
            if not 0 <= number <= end - start:
                raise ValueError(f"{OP}: {name} must be 0 to the length of the sequence ({end - start}), got {number}")
    return checks.as_int32(used)


def pages_of(
    block_table: Any, q: torch.Tensor, sequences: int, cache: torch.Tensor, lengths: Optional[list]
) -> torch.Tensor:
    """int32 (sequences, n), as the op reads it: room for every length, a page of the cache wherever a token lies."""
    checks.require_tensor(OP, "block_table", block_table)
    refuse_unbuilt("block_table", block_table)
    if block_table.dtype != torch.int32:
        raise TypeError(f"{OP}: block_table must be int32, got {checks.name_of(block_table.dtype)}")
    checks.require_device(OP, "block_table", block_table, "q", q)
    checks.require_dim(OP, "block_table", block_table, 2)
    checks.require_size(OP, "block_table", block_table, 0, sequences)
    pages, page_size = cache.shape[:2]
    table = None if lengths is None else checks.values_of(block_table)
    for row, length in zip(table or (), lengths or ()):
        room = len(row) * page_size
        if length > room:
            raise ValueError(
                f"{OP}: block_table must have room for {length} tokens, got {len(row)} pages of {page_size} ({room})"
            )
        for page in row[: -(-length // page_size)] if page_size else ():
            if not 0 <= page < pages:
                raise ValueError(f"{OP}: block_table must hold pages 0 to {pages - 1} where tokens lie, got {page}")
    return block_table.contiguous()


def refuse_gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, argument: str) -> None:
    """No backward reads a cache: better said than a gradient that is missing."""
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        raise NotImplementedError(
            f"{OP}: {argument} must be None where a gradient is wanted, got a tensor (use torch.no_grad())"
        )


def mask_of(mask: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """(batch or 1, heads_q or 1, seqlen_q, seqlen_k); of full size where a gradient is wanted, which expand sums."""
    checks.require_tensor(OP, "mask", mask)
    refuse_unbuilt("mask", mask)
    if mask.dtype not in (torch.bool, torch.float32, q.dtype):
        raise TypeError(
            f"{OP}: mask must be bool, float32 or the dtype of q ({checks.name_of(q.dtype)}), "
            f"got {checks.name_of(mask.dtype)}"
        )
    checks.require_device(OP, "mask", mask, "q", q)
    checks.require_dim(OP, "mask", mask, 4)
    full = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    for dim, size in enumerate(full):
        if mask.shape[dim] not in (1, size):
            raise ValueError(f"{OP}: mask must have size {size} or 1 in dimension {dim}, got {mask.shape[dim]}")
    return mask.expand(full if mask.requires_grad else (-1, -1, *full[2:]))
