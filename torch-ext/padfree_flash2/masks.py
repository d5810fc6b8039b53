"""transformers models whose attention needs a mask of their own: prefixes, chunks, image blocks, position biases.

A flash-type kernel sees sequence lengths only; what ``or_mask_function``, ``and_mask_function``, chunked attention or a
learned position bias ask for never reaches it. Under the name registered here transformers builds the whole mask and
hands it over, and `attention_with_mask` skips the blocks it empties.
"""

from typing import Any, Optional

import torch

from .attention import attention_with_mask, flash_attn_func

OP = "register_masked_attention"


def register_masked_attention(name: str = "padfree_masked") -> str:
    """Teach transformers an attention that honours every mask: ``model.set_attn_implementation(name)``.

    Args:
        name: what to call it. It must not hold ``flash``: transformers hands masks to no kernel that does.

    Returns:
        The name.

    Raises:
        TypeError, ValueError: the name is not a string, or holds ``flash``.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if not isinstance(name, str):
        raise TypeError(f"{OP}: name must be a string, got {type(name).__name__}")
    if not name or "flash" in name:
        raise ValueError(f"{OP}: name must be without 'flash' and not empty, got {name!r}")
    AttentionInterface.register(name, masked_attention_forward)
    AttentionMaskInterface.register(name, sdpa_mask)
    return name


def masked_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Optional[torch.Tensor],
    dropout: float = 0.0,
    scaling: Optional[float] = None,
    is_causal: Optional[bool] = None,
    softcap: Optional[float] = None,
    s_aux: Optional[torch.Tensor] = None,
    position_bias: Optional[torch.Tensor] = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function of transformers' interface: query (batch, heads, seqlen, head_dim) and so on.

    ``attention_mask`` is bool or added to the scores, (batch, 1 or heads, seqlen_q, seqlen_k); None where transformers
    found the mask to be plain causal, or none at all, as ``is_causal`` of the call or of the module says.

    Raises:
        NotImplementedError: attention weights are asked for, or the call comes from continuous batching.
    """
    if kwargs.get("output_attentions"):
        raise NotImplementedError("masked attention: output_attentions must be False, got True (use eager)")
    if kwargs.get("cache") is not None:
        raise NotImplementedError(
            "masked attention: cache must be None, got a paged cache (use a flash attention name)"
        )
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    causal = bool(attention_mask is None and causal and query.shape[2] > 1)
    if causal and key.shape[2] > query.shape[2]:  # an empty static cache: its free places come after the queries
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
        position_bias = None if position_bias is None else position_bias[:, :, :, : query.shape[2]]
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    mask = _mask(attention_mask, position_bias)
    if mask is None:
        out = flash_attn_func(q, k, v, dropout, scaling, causal, softcap=softcap or 0.0, s_aux=s_aux)
    else:
        out = attention_with_mask(q, k, v, mask, dropout, scaling, causal, softcap or 0.0, s_aux=s_aux)
    return out, None


def _mask(attention_mask: Optional[torch.Tensor], position_bias: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    """Both in one; a key that a bool mask hides stays hidden whatever its bias."""
    if position_bias is None or attention_mask is None:
        return attention_mask if position_bias is None else position_bias
    if attention_mask.dtype == torch.bool:
        return position_bias.masked_fill(~attention_mask, float("-inf"))
    return position_bias + attention_mask
