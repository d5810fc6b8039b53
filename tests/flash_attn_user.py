"""What people write against flash_attn: test_packages.py runs it, as it stands, on this bundle under that name."""

import torch
from flash_attn import __version__ as flash_attn_version
from flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
from flash_attn.flash_attn_interface import flash_attn_varlen_qkvpacked_func
from flash_attn.layers.rotary import RotaryEmbedding, apply_rotary_emb
from flash_attn.ops.triton.rotary import apply_rotary

try:
    from flash_attn_interface import flash_attn_func as flash_attn_3_func
except ImportError:
    flash_attn_3_func = None

try:
    from flash_attn.ops.rms_norm import rms_norm
except ImportError:
    rms_norm = None

assert tuple(map(int, flash_attn_version.split(".")[:2])) >= (2, 6), "softcap wants flash-attn 2.6"


class Attention(torch.nn.Module):
    """Causal attention with rotary positions of a batch with padding, as remote code of models has it."""

    def __init__(self, width, heads, heads_kv):
        super().__init__()
        self.heads, self.heads_kv, self.head_dim = heads, heads_kv, width // heads
        self.rotary = RotaryEmbedding(self.head_dim)
        self.qkv = torch.nn.Linear(width, (heads + 2 * heads_kv) * self.head_dim)
        self.out = torch.nn.Linear(width, width)

    def split(self, qkv):
        return qkv.unflatten(-1, (-1, self.head_dim)).split([self.heads, self.heads_kv, self.heads_kv], -2)

    def tables(self, seqlen, x):
        self.rotary._update_cos_sin_cache(seqlen, device=x.device, dtype=x.dtype)
        return self.rotary._cos_cached, self.rotary._sin_cached

    def forward(self, x, attention_mask=None):
        batch, seqlen, _ = x.shape
        if attention_mask is None:
            qkv = self.qkv(x).unflatten(-1, (-1, self.head_dim))
            q, k, v = self.split(self.rotary(qkv, num_heads_q=self.heads).flatten(-2))
            return self.out(flash_attn_func(q, k, v, causal=True).flatten(-2))
        tokens, indices, cu_seqlens, max_seqlen, _ = unpad_input(x, attention_mask)
        q, k, v = self.split(self.qkv(tokens))
        cos, sin = self.tables(max_seqlen, x)
        q, k = (apply_rotary_emb(t, cos, sin, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen) for t in (q, k))
        attended = flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, causal=True)
        return pad_input(self.out(attended.flatten(-2)), indices, batch, seqlen)

    @torch.no_grad()
    def decode(self, x, cache, cache_seqlens):
        """The next tokens (batch, n, width) of sequences whose keys and values lie in ``cache``, which they join."""
        q, k, v = self.split(self.qkv(x))
        cos, sin = self.tables(cache[0].shape[1], x)
        attended = flash_attn_with_kvcache(
            q, *cache, k, v, rotary_cos=cos, rotary_sin=sin, cache_seqlens=cache_seqlens, causal=True,
            rotary_interleaved=False,
        )  # fmt: skip
        return self.out(attended.flatten(-2))


def encode(qkv, attention_mask):
    """Bidirectional attention of (batch, seqlen, 3, heads, head_dim), and the first token's result of each row."""
    batch, seqlen = attention_mask.shape
    tokens, indices, cu_seqlens, max_seqlen, _ = unpad_input(qkv, attention_mask)
    attended = flash_attn_varlen_qkvpacked_func(tokens, cu_seqlens, max_seqlen)
    return pad_input(attended, indices, batch, seqlen), index_first_axis(attended, cu_seqlens[:-1].long())


class TurnUnpadded(torch.autograd.Function):
    """Rotary embedding of packed q and k with the kernel itself, as ModernBERT's remote code does it."""

    @staticmethod
    def forward(ctx, x, cos, sin, cu_seqlens, max_seqlen):
        ctx.save_for_backward(cos, sin, cu_seqlens)
        ctx.max_seqlen = max_seqlen
        return apply_rotary(x, cos, sin, cu_seqlens=cu_seqlens, max_seqlen=max_seqlen)

    @staticmethod
    def backward(ctx, grad):
        cos, sin, cu_seqlens = ctx.saved_tensors
        turned = apply_rotary(grad, cos, sin, cu_seqlens=cu_seqlens, max_seqlen=ctx.max_seqlen, conjugate=True)
        return turned, None, None, None, None
