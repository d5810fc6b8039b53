"""FlashAttention: names, order of arguments and semantics of flash-attn 2.8, float32 included, on every device.

The formula, for one sequence and one head; query i sits at position i + seqlen_k - seqlen_q (bottom-right alignment)::

    s_ij = softcap(softmax_scale * q_i . k_j),    softcap(x) = softcap * tanh(x / softcap)    (off at 0)
    p_i  = softmax over the keys j that query i sees, lse_i = log sum_j exp(s_ij) (natural logarithm)
    out_i = sum_j p_ij v_j

A query sees key j if ``position - window_size[0] <= j <= position + window_size[1]`` (-1: unbounded on that side);
``causal`` sets the right side to 0. A query that sees no key gives out 0 and lse -inf, and takes no gradient.
"""

from typing import Any, Optional, Union

import torch

from . import _checks as checks
from ._ops import ops

OP = "attention"
MAX_HEAD_DIM = 512

MaxSeqlen = Union[int, torch.Tensor]
Window = tuple[int, int]


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[torch.Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    s_aux: Optional[torch.Tensor] = None,
) -> Any:
    """Attention of a batch of sequences of one length; the formula is at the top of this module.

    Args:
        q: (batch, seqlen_q, heads_q, head_dim), float32, bfloat16 or float16, any strides; head_dim 1 to 512.
        k: (batch, seqlen_k, heads_kv, head_dim), dtype of q; heads_kv divides heads_q, query head h reads head
            h * heads_kv // heads_q.
        v: (batch, seqlen_k, heads_kv, head_dim_v); head_dim_v 1 to 512, wider or narrower than head_dim.
        dropout_p: 0.0; dropout is not built yet.
        softmax_scale: factor of q . k, ``head_dim ** -0.5`` by default.
        causal: hide the keys after a query's position. Positions are aligned at the end (bottom-right), so with fewer
            keys than queries the first queries see none.
        window_size: (left, right) keys seen beside a query's own position, -1 for all.
        softcap: cap of the scores, 0.0 for none.
        alibi_slopes: None; ALiBi is not built yet.
        deterministic: accepted in both settings: the same call gives the same bits, with any number of threads, always.
        return_attn_probs: also return the log-sum-exp.
        s_aux: None; attention sinks are not built yet.

    Returns:
        out (batch, seqlen_q, heads_q, head_dim_v) in the dtype of q, contiguous. With ``return_attn_probs`` the tuple
        ``(out, softmax_lse, None)``: softmax_lse (batch, heads_q, seqlen_q) float32, differentiable, so that results of
        parts of the keys can be merged and trained through.

    Raises:
        TypeError: a tensor has the wrong type, dtype or device.
        ValueError: a shape or a value is wrong.
        NotImplementedError: an option or a head_dim that no kernel takes yet.

    Source: flash-attn 2.8, ``flash_attn_func``.
    """
    _check_qkv(q, k, v, dims=4)
    checks.require_size(OP, "k", k, 0, q.shape[0])
    _refuse_unbuilt(dropout_p=dropout_p, alibi_slopes=alibi_slopes, s_aux=s_aux)
    options = _options(q, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs)
    out, softmax_lse = ops.attention_fwd(q, k, v, None, None, q.shape[1], k.shape[1], *options)
    return (out, softmax_lse, None) if return_attn_probs else out


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: MaxSeqlen,
    max_seqlen_k: MaxSeqlen,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[torch.Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Optional[torch.Tensor] = None,
    *,
    s_aux: Optional[torch.Tensor] = None,
) -> Any:
    """Attention of sequences packed one after the other, each seeing only itself: padding-free training.

    Gives bit for bit what ``flash_attn_func`` gives sequence by sequence.

    Args:
        q: (total_q, heads_q, head_dim); see ``flash_attn_func`` for dtypes, strides and head dims.
        k: (total_k, heads_kv, head_dim).
        v: (total_k, heads_kv, head_dim_v).
        cu_seqlens_q: (sequences + 1,) int32 (int64 is converted), any stride: starts at 0, does not decrease, ends at
            or below total_q; sequence n is rows cu_seqlens_q[n] to cu_seqlens_q[n + 1]. Empty sequences are allowed.
            Rows past the last end give out 0, lse -inf and gradients 0.
        cu_seqlens_k: the same for k and v.
        max_seqlen_q: upper bound of the query lengths, an int or a 0-dim tensor. Too small a bound is an error.
        max_seqlen_k: the same for the keys.
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs, s_aux:
            as in ``flash_attn_func``.
        block_table: None; paged keys are not built yet.

    Returns:
        out (total_q, heads_q, head_dim_v); with ``return_attn_probs`` the tuple ``(out, softmax_lse, None)``,
        softmax_lse (heads_q, total_q) float32, differentiable.

    Raises:
        TypeError, ValueError, NotImplementedError: as ``flash_attn_func``. Where values of cu_seqlens cannot be read
        (while compiling) the kernel raises RuntimeError with the same text.

    Source: flash-attn 2.8, ``flash_attn_varlen_func``.
    """
    _check_qkv(q, k, v, dims=3)
    _refuse_unbuilt(dropout_p=dropout_p, alibi_slopes=alibi_slopes, s_aux=s_aux, block_table=block_table)
    options = _options(q, softmax_scale, causal, window_size, softcap, deterministic, return_attn_probs)
    checks.require_integers(OP, "cu_seqlens_q", cu_seqlens_q, "q", q)
    checks.require_integers(OP, "cu_seqlens_k", cu_seqlens_k, "q", q)
    if cu_seqlens_k.shape[0] != cu_seqlens_q.shape[0]:
        raise ValueError(
            f"{OP}: cu_seqlens_k must have {cu_seqlens_q.shape[0]} elements as cu_seqlens_q has, "
            f"got {cu_seqlens_k.shape[0]}"
        )
    max_seqlen_q = _max_seqlen("max_seqlen_q", max_seqlen_q, q)
    max_seqlen_k = _max_seqlen("max_seqlen_k", max_seqlen_k, k)
    _check_boundaries("q", cu_seqlens_q, q.shape[0], max_seqlen_q)
    _check_boundaries("k", cu_seqlens_k, k.shape[0], max_seqlen_k)
    out, softmax_lse = ops.attention_fwd(
        q, k, v, checks.as_int32(cu_seqlens_q), checks.as_int32(cu_seqlens_k), max_seqlen_q, max_seqlen_k, *options
    )
    return (out, softmax_lse, None) if return_attn_probs else out


def _check_qkv(q: Any, k: Any, v: Any, dims: int) -> None:
    checks.require_floating(OP, "q", q)
    checks.require_like(OP, "k", k, "q", q)
    checks.require_like(OP, "v", v, "q", q)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        checks.require_dim(OP, name, tensor, dims)
    heads_q, heads_kv, head_dim = q.shape[-2], k.shape[-2], q.shape[-1]
    if heads_q < 1:
        raise ValueError(f"{OP}: heads_q must be at least 1, got {heads_q}")
    if heads_kv < 1 or heads_q % heads_kv != 0:
        raise ValueError(f"{OP}: heads_kv must divide heads_q ({heads_q}), got {heads_kv}")
    checks.require_size(OP, "k", k, dims - 1, head_dim)
    for dim in range(dims - 1):
        checks.require_size(OP, "v", v, dim, k.shape[dim])
    for name, size in (("head_dim", head_dim), ("head_dim of v", v.shape[-1])):
        if size < 1:
            raise ValueError(f"{OP}: {name} must be 1 to {MAX_HEAD_DIM}, got {size}")
        if size > MAX_HEAD_DIM:
            raise NotImplementedError(f"{OP}: {name} must be 1 to {MAX_HEAD_DIM}, got {size}")


def _refuse_unbuilt(dropout_p: Any, **absent: Any) -> None:
    """Options that no kernel honours yet: refused by name, so that none is accepted and ignored."""
    checks.require_number(OP, "dropout_p", dropout_p)
    if not 0 <= dropout_p < 1:
        raise ValueError(f"{OP}: dropout_p must be in [0, 1), got {dropout_p}")
    if dropout_p != 0:
        raise NotImplementedError(f"{OP}: dropout_p must be 0.0 (dropout is not built yet), got {dropout_p}")
    for name, value in absent.items():
        if value is not None:
            raise NotImplementedError(f"{OP}: {name} must be None (not built yet), got {type(value).__name__}")


def _options(
    q: torch.Tensor,
    softmax_scale: Optional[float],
    causal: bool,
    window_size: Window,
    softcap: float,
    deterministic: bool,
    return_attn_probs: bool,
) -> tuple[float, bool, int, int, float]:
    """The checked options as the op takes them: softmax_scale, causal, window_left, window_right, softcap."""
    if softmax_scale is None:
        softmax_scale = q.shape[-1] ** -0.5
    checks.require_number(OP, "softmax_scale", softmax_scale)
    checks.require_number(OP, "softcap", softcap)
    if softcap < 0:
        raise ValueError(f"{OP}: softcap must be 0.0 (off) or positive, got {softcap}")
    for name, value in (("causal", causal), ("deterministic", deterministic), ("return_attn_probs", return_attn_probs)):
        checks.require_bool(OP, name, value)
    window_left, window_right = _window(window_size)
    return float(softmax_scale), causal, window_left, window_right, float(softcap)


def _window(window_size: Window) -> Window:
    if not isinstance(window_size, (tuple, list)) or len(window_size) != 2:
        raise TypeError(f"{OP}: window_size must be a pair (left, right), got {window_size!r}")
    for size in window_size:
        if isinstance(size, bool) or not isinstance(size, (int, torch.SymInt)):
            raise TypeError(f"{OP}: window_size must be a pair of integers, got {window_size!r}")
        if size < -1:
            raise ValueError(f"{OP}: window_size must hold -1 (unbounded) or more, got {tuple(window_size)}")
    return window_size[0], window_size[1]


def _max_seqlen(name: str, value: Any, tensor: torch.Tensor) -> int:
    """The bound as an int. A tensor whose value must not be read (tracing, another device) becomes the widest bound."""
    if isinstance(value, torch.Tensor):
        if value.dim() != 0 or value.dtype not in (torch.int32, torch.int64):
            raise TypeError(
                f"{OP}: {name} must be an int or a 0-dim integer tensor, "
                f"got a {value.dim()}-dim {checks.name_of(value.dtype)} tensor"
            )
        value = int(value) if checks.readable(value) else tensor.shape[0]
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"{OP}: {name} must be an int or a 0-dim integer tensor, got {type(value).__name__}")
    return value


def _check_boundaries(side: str, cu_seqlens: torch.Tensor, rows: int, max_seqlen: int) -> None:
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
    if ends[-1] > rows:
        raise ValueError(f"{OP}: {name} must end at or below the number of rows of {side} ({rows}), got {ends[-1]}")
    if max_seqlen < longest:
        raise ValueError(f"{OP}: max_seqlen_{side} must be at least the longest sequence ({longest}), got {max_seqlen}")
