"""FlashAttention 3: the functions of its module ``flash_attn_interface``, with its order of arguments and its defaults.

The arithmetic is that of the bundle's own functions of the same names, which keep flash-attn 2.8's order; an argument
given by name means the same in both. What steers only the schedule of FlashAttention 3's kernels changes no bit here:
``num_splits``, ``pack_gqa``, ``sm_margin``, ``scheduler_metadata``. What no kernel takes is refused by name: ``qv``,
the descales (float8), ``attention_chunk``, and left padding of a cache whose queries or new keys are packed.

Keyword-only arguments are this bundle's: transformers passes an option on only where it is declared, and drops it
without a word where it is not.
"""

from typing import Any, Optional, Union

import torch

from . import _attention_checks as arguments
from . import _checks as checks
from . import attention, attention_kvcache, attention_packed
from ._attention_checks import OP, MaxSeqlen, Window

__all__ = [
    "flash_attn_combine",
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "get_scheduler_metadata",
]


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    qv: Optional[torch.Tensor] = None,
    q_descale: Optional[torch.Tensor] = None,
    k_descale: Optional[torch.Tensor] = None,
    v_descale: Optional[torch.Tensor] = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    *,
    dropout_p: float = 0.0,
    s_aux: Optional[torch.Tensor] = None,
    learnable_sink: Optional[torch.Tensor] = None,
) -> Any:
    """Attention of a batch of sequences of one length.

    Args:
        q, k, v, softmax_scale, causal, window_size, softcap, deterministic, dropout_p, s_aux, learnable_sink: as in
            ``padfree.flash_attn_func``.
        qv, q_descale, k_descale, v_descale: None.
        attention_chunk: 0.
        num_splits, pack_gqa, sm_margin: any; they change nothing.
        return_attn_probs: also return the log-sum-exp.

    Returns:
        out (batch, seqlen_q, heads_q, head_dim_v); with ``return_attn_probs`` the tuple ``(out, softmax_lse)``,
        softmax_lse (batch, heads_q, seqlen_q) float32, differentiable.

    Raises:
        TypeError, ValueError: as ``padfree.flash_attn_func``.
        NotImplementedError: that too; an argument that no kernel takes.

    Source: FlashAttention 3, ``flash_attn_func``.
    """
    _refuse(qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, attention_chunk=attention_chunk)
    _check_schedule(pack_gqa, sm_margin)
    result = attention.flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, None, deterministic, return_attn_probs,
        s_aux=s_aux, learnable_sink=learnable_sink, num_splits=num_splits,
    )  # fmt: skip
    return result[:2] if return_attn_probs else result


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: MaxSeqlen,
    max_seqlen_k: MaxSeqlen,
    seqused_q: Optional[torch.Tensor] = None,
    seqused_k: Optional[torch.Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    qv: Optional[torch.Tensor] = None,
    q_descale: Optional[torch.Tensor] = None,
    k_descale: Optional[torch.Tensor] = None,
    v_descale: Optional[torch.Tensor] = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: Optional[bool] = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    *,
    dropout_p: float = 0.0,
    s_aux: Optional[torch.Tensor] = None,
    learnable_sink: Optional[torch.Tensor] = None,
    block_table: Optional[torch.Tensor] = None,
    page_table: Optional[torch.Tensor] = None,
) -> Any:
    """Attention of sequences packed one after the other, each seeing only itself.

    Args:
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_q, seqused_k, block_table,
            page_table: as in ``padfree.flash_attn_varlen_func``.
        The others: as in ``flash_attn_func``.

    Returns:
        out (total_q, heads_q, head_dim_v); with ``return_attn_probs`` the tuple ``(out, softmax_lse)``, softmax_lse
        (heads_q, total_q) float32, differentiable.

    Raises:
        TypeError, ValueError, NotImplementedError: as ``flash_attn_func``.

    Source: FlashAttention 3, ``flash_attn_varlen_func``.
    """
    _refuse(qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, attention_chunk=attention_chunk)
    _check_schedule(pack_gqa, sm_margin)
    result = attention.flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size,
        softcap, None, deterministic, return_attn_probs, block_table, page_table=page_table, s_aux=s_aux,
        learnable_sink=learnable_sink, seqused_q=seqused_q, seqused_k=seqused_k, num_splits=num_splits,
    )  # fmt: skip
    return result[:2] if return_attn_probs else result


def flash_attn_qkvpacked_func(
    qkv: torch.Tensor,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    q_descale: Optional[torch.Tensor] = None,
    k_descale: Optional[torch.Tensor] = None,
    v_descale: Optional[torch.Tensor] = None,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    num_heads_q: Optional[int] = None,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    *,
    dropout_p: float = 0.0,
    s_aux: Optional[torch.Tensor] = None,
) -> Any:
    """``flash_attn_func`` of q, k and v stacked in one tensor.

    Args:
        qkv: (batch, seqlen, 3, heads, head_dim), or (batch, seqlen, heads_q + 2 heads_kv, head_dim) with num_heads_q.
        num_heads_q: the heads of q where all heads lie side by side.
        The others: as in ``flash_attn_func``.

    Returns, Raises: as ``flash_attn_func``.

    Source: FlashAttention 3, ``flash_attn_qkvpacked_func``.
    """
    q, k, v = attention_packed.unstacked(qkv, num_heads_q)
    return flash_attn_func(
        q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size, attention_chunk, softcap,
        deterministic=deterministic, sm_margin=sm_margin, return_attn_probs=return_attn_probs, dropout_p=dropout_p,
        s_aux=s_aux,
    )  # fmt: skip


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: Optional[torch.Tensor] = None,
    v: Optional[torch.Tensor] = None,
    qv: Optional[torch.Tensor] = None,
    rotary_cos: Optional[torch.Tensor] = None,
    rotary_sin: Optional[torch.Tensor] = None,
    cache_seqlens: Union[int, torch.Tensor, None] = None,
    cache_batch_idx: Optional[torch.Tensor] = None,
    cache_leftpad: Optional[torch.Tensor] = None,
    page_table: Optional[torch.Tensor] = None,
    cu_seqlens_q: Optional[torch.Tensor] = None,
    cu_seqlens_k_new: Optional[torch.Tensor] = None,
    max_seqlen_q: Optional[int] = None,
    rotary_seqlens: Optional[torch.Tensor] = None,
    q_descale: Optional[torch.Tensor] = None,
    k_descale: Optional[torch.Tensor] = None,
    v_descale: Optional[torch.Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Optional[torch.Tensor] = None,
    num_splits: int = 0,
    pack_gqa: Optional[bool] = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    *,
    s_aux: Optional[torch.Tensor] = None,
    learnable_sink: Optional[torch.Tensor] = None,
    block_table: Optional[torch.Tensor] = None,
) -> Any:
    """Append k and v to the cache, then attend to all of it.

    Args:
        q: (batch, seqlen_q, heads_q, head_dim), or with cu_seqlens_q (total_q, heads_q, head_dim).
        k, v: (batch, seqlen_new, heads_kv, head_dim) and head_dim_v, or with cu_seqlens_k_new (total_new, ...).
        k_cache, v_cache, rotary_cos, rotary_sin, rotary_interleaved, cache_seqlens, cache_batch_idx,
            cache_leftpad, page_table, block_table, softmax_scale, causal, window_size, softcap, s_aux, learnable_sink:
            as in ``padfree.flash_attn_with_kvcache``.
        cu_seqlens_q: (batch + 1,) int32 or int64: where each sequence's queries begin in q. Rows past the last end give
            out 0 and lse -inf.
        cu_seqlens_k_new: the same for the rows of k and v, all of them; without k it says nothing.
        rotary_seqlens: (batch,) int32 or int64: the positions that rotary starts from, cache_seqlens by default.
        max_seqlen_q: upper bound of the queries of a sequence; not needed.
        scheduler_metadata: None or what ``get_scheduler_metadata`` returned; it changes nothing, nor do num_splits,
            pack_gqa and sm_margin.
        qv, q_descale, k_descale, v_descale: None; cache_leftpad too where one of the last three is given.
        attention_chunk: 0.

    Returns:
        out like q, with head_dim_v; with ``return_softmax_lse`` the tuple ``(out, softmax_lse, None, None)``:
        softmax_lse (batch, heads_q, seqlen_q) or (heads_q, total_q) float32, and no parts of splits.

    Raises:
        TypeError, ValueError: as ``padfree.flash_attn_with_kvcache``.
        NotImplementedError: that too; an argument that no kernel takes.

    Source: FlashAttention 3, ``flash_attn_with_kvcache``.
    """
    _refuse(qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale, attention_chunk=attention_chunk)
    _check_schedule(pack_gqa, sm_margin, scheduler_metadata)
    checks.require_bool(OP, "return_softmax_lse", return_softmax_lse)
    table = arguments.one_of("page_table", page_table, "block_table", block_table)
    packs = {"cu_seqlens_q": cu_seqlens_q, "rotary_seqlens": rotary_seqlens}
    if k is not None:
        packs["cu_seqlens_k_new"] = cu_seqlens_k_new
    given = [name for name, value in packs.items() if value is not None]
    if given:
        _refuse(f" with {given[0]}", cache_leftpad=cache_leftpad)
        out, softmax_lse = attention_kvcache.attend_packed(
            q, k_cache, v_cache, k, v, (rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens), cache_seqlens,
            cache_batch_idx, table, cu_seqlens_q, cu_seqlens_k_new, max_seqlen_q,
            (softmax_scale, causal, window_size, softcap), (s_aux, learnable_sink), num_splits,
        )  # fmt: skip
    else:
        if max_seqlen_q is not None:
            checks.require_int(OP, "max_seqlen_q", max_seqlen_q)
            if isinstance(q, torch.Tensor) and q.dim() > 1 and max_seqlen_q < q.shape[1]:
                raise ValueError(
                    f"{OP}: max_seqlen_q must be at least the queries of q ({q.shape[1]}), got {max_seqlen_q}"
                )
        out, softmax_lse = attention_kvcache.flash_attn_with_kvcache(
            q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad, table,
            softmax_scale, causal, window_size, softcap, rotary_interleaved, None, num_splits, True, s_aux=s_aux,
            learnable_sink=learnable_sink,
        )  # fmt: skip
    return (out, softmax_lse, None, None) if return_softmax_lse else out


def flash_attn_combine(
    out_partial: torch.Tensor,
    lse_partial: torch.Tensor,
    out: Optional[torch.Tensor] = None,
    out_dtype: Optional[torch.dtype] = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One result of the results of parts of the keys, s = 1, 2, ...::

        lse = log(sum_s exp(lse_s))        out = sum_s exp(lse_s - lse) * out_s

    Args:
        out_partial: (parts, batch, seqlen, heads, head_dim), float32, bfloat16 or float16. A part with lse -inf, which
            saw no key, may hold anything.
        lse_partial: (parts, batch, seqlen, heads) float32: a ``softmax_lse`` has heads before seqlen, so transpose it.
        out: (batch, seqlen, heads, head_dim) to write to; takes no gradient.
        out_dtype: of out, float32 by default.

    Returns:
        ``(out, softmax_lse)``, softmax_lse (batch, seqlen, heads) float32; both differentiable where no out is given.

    Raises:
        TypeError: a tensor has the wrong type, dtype or device.
        ValueError: a shape is wrong.
        NotImplementedError: out given where a gradient is wanted.

    Source: FlashAttention 3, ``flash_attn_combine``.
    """
    op, dtype = "flash_attn_combine", torch.float32 if out_dtype is None else out_dtype
    checks.require_floating(op, "out_partial", out_partial)
    checks.require_dim(op, "out_partial", out_partial, 5)
    checks.require_tensor(op, "lse_partial", lse_partial)
    if lse_partial.dtype != torch.float32:
        raise TypeError(f"{op}: lse_partial must be float32, got {checks.name_of(lse_partial.dtype)}")
    checks.require_shape(op, "lse_partial", lse_partial, out_partial, "out_partial", out_partial.shape[:4])
    if dtype not in checks.FLOATING:
        raise TypeError(f"{op}: out_dtype must be float32, bfloat16 or float16, got {dtype}")
    dead = (lse_partial == -float("inf")).all(0)
    total = lse_partial.masked_fill(dead, 0.0).logsumexp(0)  # finite everywhere, and so are the gradients
    weights = (lse_partial - total).exp()[..., None]
    merged = (torch.where(weights > 0, out_partial.float(), 0.0) * weights).sum(0).to(dtype)
    softmax_lse = total.masked_fill(dead, -float("inf"))
    if out is None:
        return merged, softmax_lse
    checks.require_shape(op, "out", out, out_partial, "out_partial", merged.shape)
    if out.dtype != dtype:
        raise TypeError(
            f"{op}: out must be {checks.name_of(dtype)}, as out_dtype says, got {checks.name_of(out.dtype)}"
        )
    if merged.requires_grad or out.requires_grad:
        raise NotImplementedError(f"{op}: out must be None where a gradient is wanted, got a tensor")
    return out.copy_(merged), softmax_lse


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    cache_seqlens: torch.Tensor,
    qkv_dtype: torch.dtype = torch.bfloat16,
    headdim_v: Optional[int] = None,
    cu_seqlens_q: Optional[torch.Tensor] = None,
    cu_seqlens_k_new: Optional[torch.Tensor] = None,
    cache_leftpad: Optional[torch.Tensor] = None,
    page_size: Optional[int] = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size: Window = (-1, -1),
    attention_chunk: int = 0,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: Optional[bool] = None,
    sm_margin: int = 0,
) -> torch.Tensor:
    """What ``scheduler_metadata`` of ``flash_attn_with_kvcache`` takes: an empty int32 tensor beside cache_seqlens.

    These kernels divide the work at each call, by its own shapes and lengths; there is nothing to compute ahead.

    Raises:
        TypeError: cache_seqlens is no integer tensor.

    Source: FlashAttention 3, ``get_scheduler_metadata``.
    """
    checks.require_integers(OP, "cache_seqlens", cache_seqlens, "cache_seqlens", cache_seqlens)
    return torch.empty(0, dtype=torch.int32, device=cache_seqlens.device)


def _refuse(condition: str = "", attention_chunk: Any = 0, **tensors: Any) -> None:
    """What FlashAttention 3 has kernels for and this bundle has not, by name."""
    for name, value in tensors.items():
        if value is not None:
            raise NotImplementedError(f"{OP}: {name} must be None{condition}, got {type(value).__name__}")
    if attention_chunk != 0:
        raise NotImplementedError(f"{OP}: attention_chunk must be 0, got {attention_chunk}")


def _check_schedule(pack_gqa: Any, sm_margin: Any, scheduler_metadata: Any = None) -> None:
    """Arguments that never change a bit of the result."""
    if pack_gqa is not None:
        checks.require_bool(OP, "pack_gqa", pack_gqa)
    checks.require_int(OP, "sm_margin", sm_margin)
    if scheduler_metadata is not None:
        checks.require_tensor(OP, "scheduler_metadata", scheduler_metadata)
