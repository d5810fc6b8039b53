"""Attention against a KV cache, appended to in place: decoding and chunked prefill."""

from typing import Any, Optional, Union

import torch

from . import _attention_checks as arguments
from . import _checks as checks
from ._attention_checks import OP, Window
from ._ops import ops
from .rotary import apply_rotary, rotate

CACHE = ("k_cache", "v_cache")


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: Optional[torch.Tensor] = None,
    v: Optional[torch.Tensor] = None,
    rotary_cos: Optional[torch.Tensor] = None,
    rotary_sin: Optional[torch.Tensor] = None,
    cache_seqlens: Union[int, torch.Tensor, None] = None,
    cache_batch_idx: Optional[torch.Tensor] = None,
    cache_leftpad: Optional[torch.Tensor] = None,
    block_table: Optional[torch.Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Optional[torch.Tensor] = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    s_aux: Optional[torch.Tensor] = None,
    learnable_sink: Optional[torch.Tensor] = None,
    page_table: Optional[torch.Tensor] = None,
) -> Any:
    """Append k and v to the cache, then attend to all of it; the formula is that of ``flash_attn_func``.

    Args:
        q: (batch, seqlen_q, heads_q, head_dim), float32, bfloat16 or float16, any strides.
        k_cache: (batch_cache, seqlen_cache, heads_kv, head_dim), or with a block_table (pages, page_size, heads_kv,
            head_dim) with pages of any size. Written in place where k is given, nowhere else.
        v_cache: the same with head_dim_v.
        k: (batch, seqlen_new, heads_kv, head_dim) to append at cache_seqlens; None: nothing is appended.
        v: (batch, seqlen_new, heads_kv, head_dim_v); given exactly when k is.
        rotary_cos: (positions, rotary_dim / 2), float32 or the dtype of q: rotates k at its positions in the cache and
            q at cache_seqlens and on (all queries at cache_seqlens when neither causal nor windowed). None: no turn.
        rotary_sin: the same.
        cache_seqlens: (batch,) int32 or int64, or an int for all: tokens in the cache before the append. None: all.
        cache_batch_idx: (batch,) int32 or int64: the row of the cache that each batch row uses; None: its own.
        cache_leftpad: (batch,) int32 or int64: tokens before it do not exist.
        block_table: (batch, n) int32, padded with -1: token t of row b lies in page block_table[b, t // page_size].
        softmax_scale, causal, window_size, softcap, alibi_slopes, s_aux, learnable_sink, num_splits: as in
            ``flash_attn_func``; positions are aligned at the end, so a single query is at the last token.
        rotary_interleaved: rotate pairs (2 i, 2 i + 1), else pairs (i, i + rotary_dim / 2).
        return_softmax_lse: also return the log-sum-exp.
        page_table: another name for block_table.

    Returns:
        out (batch, seqlen_q, heads_q, head_dim_v); with ``return_softmax_lse`` the tuple ``(out, softmax_lse)``,
        softmax_lse (batch, heads_q, seqlen_q) float32.

    Raises:
        TypeError, ValueError: as ``flash_attn_func``; more tokens than the cache, or the block_table, can hold.
        NotImplementedError: a gradient is wanted (a cache is for inference); a head_dim that no kernel takes.

    Source: flash-attn 2.8, ``flash_attn_with_kvcache``; s_aux and page_table as in FlashAttention 3.
    """
    if arguments.CUDA:
        raise NotImplementedError("flash_attn_with_kvcache: no kernel on cuda yet")
    block_table = arguments.one_of("block_table", block_table, "page_table", page_table)
    arguments.check_qkv(q, k_cache, v_cache, 4, names=CACHE)
    arguments.refuse_gradients(q, k_cache, v_cache, "k_cache")
    options = arguments.scores(q, softmax_scale, causal, window_size, softcap)
    modifiers = arguments.modifiers(q, q.shape[0], s_aux, learnable_sink, alibi_slopes, 0.0)
    arguments.check_flags(True, return_softmax_lse, num_splits)
    _check_appended(q, k_cache, v_cache, k, v)
    batch, appended = q.shape[0], 0 if k is None else k.shape[1]
    rows = _rows(cache_batch_idx, block_table, k_cache, q, batch)
    before = _lengths("cache_seqlens", cache_seqlens, q, batch)
    if before is None and k is not None:
        raise ValueError(f"{OP}: cache_seqlens must be given with k, got None")
    leftpad = _lengths("cache_leftpad", cache_leftpad, q, batch)
    capacity = k_cache.shape[1] if block_table is None else _width(block_table) * k_cache.shape[1]
    if before is None:
        after = torch.full((batch,), capacity, device=q.device)
    else:
        after = before.long() + appended if appended else before
    _check_room(before, after, leftpad, capacity, block_table)
    if block_table is not None:
        block_table = arguments.pages_of(block_table, q, batch, k_cache, checks.values_of(after))
    if rotary_cos is not None or rotary_sin is not None:
        q, k = _rotate_both(q, k, rotary_cos, rotary_sin, before, options, rotary_interleaved)
    if k is not None:
        sequence = torch.arange(batch, device=q.device)[:, None]
        positions = before.long()[:, None] + torch.arange(appended, device=q.device)
        _append(k_cache, v_cache, k, v, sequence, positions, rows, block_table)
    with checks.no_autograd(q, *modifiers[:2]):
        out, softmax_lse = ops.attention_fwd(
            q, k_cache, v_cache, None, None, q.shape[1], capacity, *options, *modifiers,
            None, checks.as_int32(after), None, block_table, rows, leftpad,
        )  # fmt: skip
    return (out, softmax_lse) if return_softmax_lse else out


def attend_packed(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: Optional[torch.Tensor],
    v: Optional[torch.Tensor],
    rotary: tuple[Optional[torch.Tensor], Optional[torch.Tensor], bool, Optional[torch.Tensor]],
    cache_seqlens: Union[int, torch.Tensor, None],
    cache_batch_idx: Optional[torch.Tensor],
    block_table: Optional[torch.Tensor],
    cu_seqlens_q: Optional[torch.Tensor],
    cu_seqlens_k_new: Optional[torch.Tensor],
    max_seqlen_q: Any,
    options: tuple[Any, ...],
    sinks: tuple[Any, Any],
    num_splits: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``flash_attn_with_kvcache`` of queries, or of new keys, packed by boundaries; ``(out, softmax_lse)``.

    Args:
        q: (total_q, heads_q, head_dim), or without cu_seqlens_q (batch, seqlen_q, heads_q, head_dim); k and v likewise.
        rotary: cos, sin, interleaved, and (batch,) positions to start from in place of cache_seqlens.
        options: softmax_scale, causal, window_size, softcap. sinks: s_aux, learnable_sink.

    Without a block_table a row of the cache is a page.
    """
    if arguments.CUDA:
        raise NotImplementedError("flash_attn_with_kvcache: no kernel on cuda yet")
    q, cu_seqlens_q, shape = _packed("q", q, "cu_seqlens_q", cu_seqlens_q, q)
    batch = cu_seqlens_q.shape[0] - 1
    max_seqlen_q = arguments.max_seqlen_of("max_seqlen_q", q.shape[0] if max_seqlen_q is None else max_seqlen_q, q)
    arguments.check_qkv(q, k_cache, v_cache, 3, 4, names=CACHE)
    arguments.refuse_gradients(q, k_cache, v_cache, "k_cache")
    scores = arguments.scores(q, *options)
    modifiers = arguments.modifiers(q, batch, *sinks, None, 0.0)
    arguments.check_flags(True, True, num_splits)
    arguments.check_boundaries("q", cu_seqlens_q, q.shape[0], max_seqlen_q)
    capacity = k_cache.shape[1] if block_table is None else _width(block_table) * k_cache.shape[1]
    rows = _rows(cache_batch_idx, block_table, k_cache, q, batch)
    if k is not None and cache_seqlens is None:
        raise ValueError(f"{OP}: cache_seqlens must be given with k, got None")
    before = after = _lengths("cache_seqlens", capacity if cache_seqlens is None else cache_seqlens, q, batch)
    if k is not None:
        k, ends, _ = _packed("k", k, "cu_seqlens_k_new", cu_seqlens_k_new, q)
        v = _packed("v", v, "cu_seqlens_k_new", cu_seqlens_k_new, q)[0]
        _check_new(k, ends, batch)
        after = checks.as_int32(before + ends.diff())
    _check_appended(q, k_cache, v_cache, k, v, 3)
    _check_room(before, after, None, capacity, block_table)
    if block_table is None:
        block_table = (torch.arange(batch, device=q.device) if rows is None else rows)[:, None].int()
    block_table = arguments.pages_of(block_table, q, batch, k_cache, checks.values_of(after))
    if rotary[0] is not None or rotary[1] is not None:
        _require_keys(k)
        cos, sin, interleaved, start = rotary
        start = before if start is None else _lengths("rotary_seqlens", start, q, batch)
        q = _rotate_queries(q, cos, sin, interleaved, start, cu_seqlens_q, scores)
        k = apply_rotary(k, cos, sin, start, ends, interleaved=interleaved)
    if k is not None:
        steps = torch.arange(k.shape[0], device=q.device)
        sequence = torch.searchsorted(ends[1:].long().contiguous(), steps, right=True)
        _append(k_cache, v_cache, k, v, sequence, steps + (before - ends[:-1])[sequence], None, block_table)
    ends_k = torch.nn.functional.pad(after.cumsum(0, dtype=torch.int32), (1, 0))
    with checks.no_autograd(q, *modifiers[:2]):
        out, softmax_lse = ops.attention_fwd(
            q, k_cache, v_cache, checks.as_int32(cu_seqlens_q), ends_k, max_seqlen_q, capacity, *scores, *modifiers,
            None, None, None, block_table,
        )  # fmt: skip
    if shape is None:
        return out, softmax_lse
    return out.unflatten(0, shape), softmax_lse.unflatten(1, shape).transpose(0, 1)


def _packed(
    name: str, tensor: Any, ends_name: str, ends: Optional[torch.Tensor], q: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, Optional[tuple[int, int]]]:
    """A tensor as packed rows, their boundaries, and (batch, seqlen) where it was dense."""
    checks.require_floating(OP, name, tensor)
    if ends is not None:
        checks.require_integers(OP, ends_name, ends, "q", q)
        checks.require_dim(OP, name, tensor, 3)
        return tensor, ends, None
    checks.require_dim(OP, name, tensor, 4)
    batch, seqlen = tensor.shape[:2]
    ends = torch.arange(batch + 1, dtype=torch.int32, device=tensor.device) * seqlen
    return tensor.flatten(0, 1), ends, (batch, seqlen)


def _check_new(k: torch.Tensor, ends: torch.Tensor, batch: int) -> None:
    """Boundaries of new keys cover them all."""
    checks.require_size(OP, "cu_seqlens_k_new", ends, 0, batch + 1)
    values = checks.values_of(ends)
    if values and values[-1] != k.shape[0]:
        raise ValueError(f"{OP}: cu_seqlens_k_new must end at the number of rows of k ({k.shape[0]}), got {values[-1]}")
    arguments.check_boundaries("k_new", ends, k.shape[0], k.shape[0])


def _rotate_queries(
    q: torch.Tensor,
    cos: Any,
    sin: Any,
    interleaved: bool,
    start: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    scores: arguments.Scores,
) -> torch.Tensor:
    """Packed queries, from ``start`` on, or all at it where they see all keys."""
    if not _advances(scores):
        start = start.repeat_interleave(cu_seqlens_q.diff())
        cu_seqlens_q = torch.arange(start.shape[0] + 1, device=q.device)
    return apply_rotary(q, cos, sin, start, cu_seqlens_q, interleaved=interleaved)


def _advances(scores: arguments.Scores) -> bool:
    """Whether the queries of a call are at positions one after the other, rather than all at the first one's."""
    return scores.causal or scores.window_left >= 0 or scores.window_right >= 0


def _require_keys(k: Any) -> None:
    if k is None:
        raise ValueError(f"{OP}: k must be given with rotary_cos, got None")


def _check_appended(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, k: Any, v: Any, dims: int = 4
) -> None:
    for name, tensor, other, given in (("k", k, "v", v), ("v", v, "k", k)):
        if tensor is None and given is not None:
            raise ValueError(f"{OP}: {name} must be given with {other}, got None")
    if k is None:
        return
    for name, tensor, cache in (("k", k, k_cache), ("v", v, v_cache)):
        checks.require_like(OP, name, tensor, "q", q)
        checks.require_dim(OP, name, tensor, dims)
        wanted = (*((q.shape[0], k.shape[1]) if dims == 4 else k.shape[:1]), *cache.shape[2:])
        for dim, size in enumerate(wanted):
            checks.require_size(OP, name, tensor, dim, size)
        checks.require_distinct_elements(OP, f"{name}_cache", cache)


def _lengths(name: str, value: Any, q: torch.Tensor, batch: int) -> Optional[torch.Tensor]:
    """(batch,) int32, contiguous; an int stands for all."""
    if value is None:
        return None
    if checks.is_int(value):
        value = torch.full((batch,), value, dtype=torch.int64, device=q.device)
    checks.require_integers(OP, name, value, "q", q)
    checks.require_size(OP, name, value, 0, batch)
    for number in checks.values_of(value) or ():
        if number < 0:
            raise ValueError(f"{OP}: {name} must be 0 or more, got {number}")
        if number >= 2**31:
            raise ValueError(f"{OP}: {name} must be below 2**31, got {number}")
    return checks.as_int32(value)


def _rows(
    cache_batch_idx: Any, block_table: Optional[torch.Tensor], k_cache: torch.Tensor, q: torch.Tensor, batch: int
) -> Optional[torch.Tensor]:
    """The cache row of each batch row, None where it is its own."""
    if cache_batch_idx is None:
        if block_table is None:
            checks.require_size(OP, "k_cache", k_cache, 0, batch)
        return None
    if block_table is not None:
        raise ValueError(f"{OP}: cache_batch_idx must be None with a block_table, got {type(cache_batch_idx).__name__}")
    rows = _lengths("cache_batch_idx", cache_batch_idx, q, batch)
    for row in checks.values_of(rows) or ():
        if row >= k_cache.shape[0]:
            raise ValueError(f"{OP}: cache_batch_idx must be below {k_cache.shape[0]}, the rows of k_cache, got {row}")
    return rows


def _width(block_table: Any) -> int:
    checks.require_tensor(OP, "block_table", block_table)
    checks.require_dim(OP, "block_table", block_table, 2)
    return block_table.shape[1]


def _check_room(
    before: Optional[torch.Tensor],
    after: torch.Tensor,
    leftpad: Optional[torch.Tensor],
    capacity: int,
    block_table: Any,
) -> None:
    """Every token has a slot; with a block_table ``pages_of`` says so instead, with its pages."""
    lengths = checks.values_of(after)
    if lengths is None:
        return
    for row, length in enumerate(lengths):
        if block_table is None and length > capacity:
            held = int(before[row])
            raise ValueError(
                f"{OP}: k_cache must have room for {length} tokens ({held} and {length - held} new), got {capacity}"
            )
    if leftpad is None:
        return
    for pad, length in zip(leftpad.tolist(), lengths):
        if pad > length:
            raise ValueError(f"{OP}: cache_leftpad must be at most the tokens in the cache ({length}), got {pad}")


def _append(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sequence: torch.Tensor,
    positions: torch.Tensor,
    rows: Optional[torch.Tensor],
    block_table: Optional[torch.Tensor],
) -> None:
    """Writes k and v at the positions of their sequences; no other element of the cache is touched."""
    if block_table is not None:
        pages, page_size = k_cache.shape[:2]
        # A -1 would count from the end: past the end it is refused, also where values cannot be checked (tracing).
        table = block_table.long().masked_fill(block_table < 0, pages)
        index = table[sequence, positions // page_size], positions % page_size
    else:
        index = sequence if rows is None else rows.long()[sequence], positions
    k_cache.index_put_(index, k)
    v_cache.index_put_(index, v)


def _rotate_both(
    q: torch.Tensor,
    k: Optional[torch.Tensor],
    cos: Any,
    sin: Any,
    before: torch.Tensor,
    options: arguments.Scores,
    interleaved: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q and k rotated by their positions, which count from the start of the cache, padding included."""
    _require_keys(k)
    checks.require_bool(OP, "rotary_interleaved", interleaved)
    for name, table in (("rotary_cos", cos), ("rotary_sin", sin)):
        checks.require_tensor(OP, name, table)
        if table.dtype not in (torch.float32, q.dtype):
            raise TypeError(
                f"{OP}: {name} must be float32 or the dtype of q ({checks.name_of(q.dtype)}), "
                f"got {checks.name_of(table.dtype)}"
            )
        checks.require_device(OP, name, table, "q", q)
        checks.require_dim(OP, name, table, 2)
    for dim in range(2):
        checks.require_size(OP, "rotary_sin", sin, dim, cos.shape[dim])
    if 2 * cos.shape[1] > q.shape[-1]:
        raise ValueError(f"{OP}: rotary_cos must be at most head_dim / 2 ({q.shape[-1] // 2}) wide, got {cos.shape[1]}")
    advances = _advances(options)
    longest = max(k.shape[1], q.shape[1] if advances else 1)
    for start in checks.values_of(before) or ():
        if start + longest > cos.shape[0]:
            raise ValueError(f"{OP}: rotary_cos must have {start + longest} rows or more, got {cos.shape[0]}")
    start = before.long()[:, None]
    positions_k = start + torch.arange(k.shape[1], device=k.device)
    positions_q = start + torch.arange(q.shape[1], device=q.device) * int(advances)
    return tuple(rotate(x, cos[at], sin[at], interleaved) for x, at in ((q, positions_q), (k, positions_k)))
