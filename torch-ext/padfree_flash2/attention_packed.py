"""The forms of flash-attn 2.8 that take q, k and v, or k and v, stacked in one tensor, as one projection leaves them.

Nothing is copied: the stacked tensor is split into views, which the kernels read with their strides; the gradient comes
back stacked. Arguments, results and errors are those of ``flash_attn_func`` and ``flash_attn_varlen_func``.
"""

from typing import Any, Optional

import torch

from . import _checks as checks
from .attention import OP, MaxSeqlen, Window, flash_attn_func, flash_attn_varlen_func


def flash_attn_qkvpacked_func(
    qkv: torch.Tensor,
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
    """``flash_attn_func`` of qkv (batch, seqlen, 3, heads, head_dim).

    Source: flash-attn 2.8, ``flash_attn_qkvpacked_func``.
    """
    q, k, v = _unstack("qkv", qkv, 5, 3)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs, s_aux=s_aux,
    )  # fmt: skip


def flash_attn_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
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
    """``flash_attn_func`` of q (batch, seqlen_q, heads_q, head_dim) and kv (batch, seqlen_k, 2, heads_kv, head_dim).

    Source: flash-attn 2.8, ``flash_attn_kvpacked_func``.
    """
    k, v = _unstack("kv", kv, 5, 2)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
        return_attn_probs, s_aux=s_aux,
    )  # fmt: skip


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: MaxSeqlen,
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
    """``flash_attn_varlen_func`` of qkv (total, 3, heads, head_dim), one ``cu_seqlens`` and ``max_seqlen`` for all.

    Source: flash-attn 2.8, ``flash_attn_varlen_qkvpacked_func``.
    """
    q, k, v = _unstack("qkv", qkv, 4, 3)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, dropout_p, softmax_scale, causal, window_size, softcap,
        alibi_slopes, deterministic, return_attn_probs, s_aux=s_aux,
    )  # fmt: skip


def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
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
    *,
    s_aux: Optional[torch.Tensor] = None,
) -> Any:
    """``flash_attn_varlen_func`` of q (total_q, heads_q, head_dim) and kv (total_k, 2, heads_kv, head_dim).

    Source: flash-attn 2.8, ``flash_attn_varlen_kvpacked_func``.
    """
    k, v = _unstack("kv", kv, 4, 2)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal, window_size,
        softcap, alibi_slopes, deterministic, return_attn_probs, s_aux=s_aux,
    )  # fmt: skip


def unstacked(qkv: torch.Tensor, num_heads_q: Optional[int]) -> tuple[torch.Tensor, ...]:
    """Views of q, k and v: of qkv (batch, seqlen, 3, heads, head_dim), or of all heads in dimension 2."""
    checks.require_floating(OP, "qkv", qkv)
    if qkv.dim() == 5:
        return _unstack("qkv", qkv, 5, 3)
    heads_q, heads_kv = checks.heads_of(OP, qkv, num_heads_q)
    return qkv.split([heads_q, heads_kv, heads_kv], 2)


def _unstack(name: str, tensor: Any, dims: int, parts: int) -> tuple[torch.Tensor, ...]:
    """Views of the ``parts`` that dimension -3 stacks."""
    checks.require_floating(OP, name, tensor)
    checks.require_dim(OP, name, tensor, dims)
    checks.require_size(OP, name, tensor, dims - 3, parts)
    return tensor.unbind(dims - 3)
