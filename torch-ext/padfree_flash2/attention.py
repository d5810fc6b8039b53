"""FlashAttention: names, order of arguments and semantics of flash-attn 2.8, float32 included, on every device.

The formula, for one sequence and one head; query i sits at position P_i = i + seqlen_k - seqlen_q (bottom-right)::

    s_ij  = cap(softmax_scale * q_i . k_j) - slope * |P_i - j|    cap(x) = softcap * tanh(x / softcap), or x at 0.0
    lse_i = log(exp(sink) + sum_j exp(s_ij))                      natural logarithm; over the keys j that i sees
    out_i = sum_j exp(s_ij - lse_i) v_j

A query sees key j if ``P_i - window_size[0] <= j <= P_i + window_size[1]`` (-1: unbounded on that side); ``causal``
sets the right side to 0. Without a sink (exp(sink) = 0) a query that sees no key gives out 0 and lse -inf, and takes no
gradient; with one, out 0 and lse = sink. Dropout zeroes each weight exp(s_ij - lse_i) with probability dropout_p and
scales the others by 1 / (1 - dropout_p); lse is without it.
"""

from typing import Any, Optional

import torch

from . import _attention_checks as arguments
from . import _checks as checks
from ._attention_checks import OP, MaxSeqlen, Window
from ._ops import ops


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
    learnable_sink: Optional[torch.Tensor] = None,
    num_splits: int = 0,
) -> Any:
    """Attention of a batch of sequences of one length; the formula is at the top of this module.

    Args:
        q: (batch, seqlen_q, heads_q, head_dim), float32, bfloat16 or float16, any strides; head_dim 1 to 512.
        k: (batch, seqlen_k, heads_kv, head_dim), dtype of q; heads_kv divides heads_q, query head h reads head
            h * heads_kv // heads_q.
        v: (batch, seqlen_k, heads_kv, head_dim_v); head_dim_v 1 to 512, wider or narrower than head_dim.
        dropout_p: in [0, 1). The weights to keep follow from a seed drawn from torch's CPU generator, so
            ``torch.manual_seed`` repeats them, with any number of threads.
        softmax_scale: factor of q . k, ``head_dim ** -0.5`` by default.
        causal: hide the keys after a query's position. Positions are aligned at the end (bottom-right), so with fewer
            keys than queries the first queries see none.
        window_size: (left, right) keys seen beside a query's own position, -1 for all.
        softcap: cap of the scores, 0.0 for none.
        alibi_slopes: (heads_q,) or (batch, heads_q) float32; takes no gradient.
        deterministic: accepted in both settings: the same call gives the same bits, with any number of threads, always
            (but for what a CPU with AMX hands to torch: docs/numerics.md).
        return_attn_probs: also return the log-sum-exp.
        s_aux: attention sinks, (heads_q,), any of the three dtypes, differentiable.
        learnable_sink: another name for s_aux.
        num_splits: how many parts other kernels work the keys in. This one chooses by the shapes; any number gives the
            same bits.

    Returns:
        out (batch, seqlen_q, heads_q, head_dim_v) in the dtype of q, contiguous. With ``return_attn_probs`` the tuple
        ``(out, softmax_lse, None)``: softmax_lse (batch, heads_q, seqlen_q) float32, differentiable, so that results of
        parts of the keys can be merged and trained through.

    Raises:
        TypeError: a tensor has the wrong type, dtype or device.
        ValueError: a shape or a value is wrong.
        NotImplementedError: a head_dim that no kernel takes.

    Source: flash-attn 2.8, ``flash_attn_func``; s_aux and num_splits as in FlashAttention 3.
    """
    arguments.check_qkv(q, k, v, 4)
    checks.require_size(OP, "k", k, 0, q.shape[0])
    options = arguments.scores(q, softmax_scale, causal, window_size, softcap)
    modifiers = arguments.modifiers(q, q.shape[0], s_aux, learnable_sink, alibi_slopes, dropout_p)
    arguments.check_flags(deterministic, return_attn_probs, num_splits)
    out, softmax_lse = ops.attention_fwd(q, k, v, None, None, q.shape[1], k.shape[1], *options, *modifiers)
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
    learnable_sink: Optional[torch.Tensor] = None,
    page_table: Optional[torch.Tensor] = None,
    seqused_q: Optional[torch.Tensor] = None,
    seqused_k: Optional[torch.Tensor] = None,
    num_splits: int = 0,
) -> Any:
    """Attention of sequences packed one after the other, each seeing only itself: padding-free training.

    Gives bit for bit what ``flash_attn_func`` gives sequence by sequence (dropout aside).

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
        dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes (heads_q,) or (sequences, heads_q),
            deterministic, return_attn_probs, s_aux, learnable_sink, num_splits: as in ``flash_attn_func``.
        block_table: (sequences, n) int32: k and v are pages (pages, page_size, heads_kv, head_dim), and token t of
            sequence n lies in page block_table[n, t // page_size]; cu_seqlens_k then gives lengths. Inference only.
        page_table: another name for block_table.
        seqused_q: (sequences,) int32 or int64: only the first seqused_q[n] rows of sequence n exist; the others are
            treated like rows past the last end. Positions are aligned at the end of the used rows.
        seqused_k: the same for the keys.

    Returns:
        out (total_q, heads_q, head_dim_v); with ``return_attn_probs`` the tuple ``(out, softmax_lse, None)``,
        softmax_lse (heads_q, total_q) float32, differentiable.

    Raises:
        TypeError, ValueError, NotImplementedError: as ``flash_attn_func``. Where values of cu_seqlens cannot be read
        (while compiling) the kernel raises RuntimeError with the same text.

    Source: flash-attn 2.8, ``flash_attn_varlen_func``; page_table, seqused, s_aux, num_splits as in FlashAttention 3.
    """
    block_table = arguments.one_of("block_table", block_table, "page_table", page_table)
    arguments.check_qkv(q, k, v, 3, 3 if block_table is None else 4)
    checks.require_integers(OP, "cu_seqlens_q", cu_seqlens_q, "q", q)
    checks.require_integers(OP, "cu_seqlens_k", cu_seqlens_k, "q", q)
    if cu_seqlens_k.shape[0] != cu_seqlens_q.shape[0]:
        raise ValueError(
            f"{OP}: cu_seqlens_k must have {cu_seqlens_q.shape[0]} elements as cu_seqlens_q has, "
            f"got {cu_seqlens_k.shape[0]}"
        )
    sequences = cu_seqlens_q.shape[0] - 1
    options = arguments.scores(q, softmax_scale, causal, window_size, softcap)
    modifiers = arguments.modifiers(q, sequences, s_aux, learnable_sink, alibi_slopes, dropout_p)
    arguments.check_flags(deterministic, return_attn_probs, num_splits)
    max_seqlen_q = arguments.max_seqlen_of("max_seqlen_q", max_seqlen_q, q)
    max_seqlen_k = arguments.max_seqlen_of("max_seqlen_k", max_seqlen_k, k)
    arguments.check_boundaries("q", cu_seqlens_q, q.shape[0], max_seqlen_q)
    arguments.check_boundaries("k", cu_seqlens_k, k.shape[0] if block_table is None else None, max_seqlen_k)
    seqused_q = arguments.used_of("seqused_q", seqused_q, q, cu_seqlens_q)
    seqused_k = arguments.used_of("seqused_k", seqused_k, q, cu_seqlens_k)
    if block_table is not None:
        arguments.refuse_gradients(q, k, v, "block_table")
        lengths = checks.values_of(cu_seqlens_k.diff() if seqused_k is None else seqused_k)
        block_table = arguments.pages_of(block_table, q, sequences, k, lengths)
    out, softmax_lse = ops.attention_fwd(
        q, k, v, checks.as_int32(cu_seqlens_q), checks.as_int32(cu_seqlens_k), max_seqlen_q, max_seqlen_k,
        *options, *modifiers, seqused_q, seqused_k, None, block_table,
    )  # fmt: skip
    return (out, softmax_lse, None) if return_attn_probs else out


def attention_with_mask(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    softcap: float = 0.0,
    *,
    s_aux: Optional[torch.Tensor] = None,
    return_attn_probs: bool = False,
) -> Any:
    """Attention under any mask: ``flash_attn_func`` with a 4-D mask beside its own rules.

    Blocks that the mask empties are skipped; nothing of size seqlen_q x seqlen_k is made beside the mask itself.

    Args:
        q, k, v, dropout_p, softmax_scale, causal, softcap, s_aux, return_attn_probs: as in ``flash_attn_func``.
        mask: (batch or 1, heads_q or 1, seqlen_q or 1, seqlen_k or 1), any strides. bool: True where a query sees a
            key. float32 or the dtype of q: added to the score, after softcap; -inf hides, and so does what float32
            cannot hold times log2(e), below -2.36e38, as ``torch.finfo(torch.float32).min``; differentiable.

    Returns:
        As ``flash_attn_func``. A query that sees no key gives out 0, not a mean of the values.

    Raises:
        TypeError, ValueError, NotImplementedError: as ``flash_attn_func``.

    Source: ``torch.nn.functional.scaled_dot_product_attention`` with ``attn_mask``, in flash-attn's layout.
    """
    arguments.check_qkv(q, k, v, 4)
    checks.require_size(OP, "k", k, 0, q.shape[0])
    mask = arguments.mask_of(mask, q, k)
    options = arguments.scores(q, softmax_scale, causal, (-1, -1), softcap)
    modifiers = arguments.modifiers(q, q.shape[0], s_aux, None, None, dropout_p)
    checks.require_bool(OP, "return_attn_probs", return_attn_probs)
    out, softmax_lse = ops.attention_fwd(
        q, k, v, None, None, q.shape[1], k.shape[1], *options, *modifiers, None, None, mask
    )
    return (out, softmax_lse, None) if return_attn_probs else out
