"""Fake kernels and autograd of every op; the only file that names ``torch.library``."""

import torch

from ._ops import add_op_namespace_prefix, ops

_ISA_NAMES = ("generic", "avx2", "avx512")

# Read once, at import: a wrong PADFREE_ISA stops the load with its own message instead of a later call.
_ISA = _ISA_NAMES[ops.cpu_isa()]


def isa() -> str:
    """Name of the CPU instruction-set path in use: ``"generic"``, ``"avx2"`` or ``"avx512"``.

    The environment variable ``PADFREE_ISA``, read once when the bundle is loaded, forces a path.
    """
    return _ISA


# ---- attention -------------------------------------------------------------------------------------------------------


@torch.library.register_fake(add_op_namespace_prefix("attention_fwd"))
def _attention_fwd_fake(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    softmax_scale, causal, window_left, window_right, softcap,
):  # fmt: skip
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    if cu_seqlens_q is None:
        batch, seqlen_q, heads, _ = q.shape
        return out, q.new_empty((batch, heads, seqlen_q), dtype=torch.float32)
    rows, heads, _ = q.shape
    return out, q.new_empty((heads, rows), dtype=torch.float32)


@torch.library.register_fake(add_op_namespace_prefix("attention_bwd"))
def _attention_bwd_fake(
    dout, dlse, q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    softmax_scale, causal, window_left, window_right, softcap,
):  # fmt: skip
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _attention_setup_context(ctx, inputs, output):
    q, k, v, cu_seqlens_q, cu_seqlens_k, *ctx.options = inputs
    out, softmax_lse = output
    ctx.save_for_backward(q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k)
    ctx.set_materialize_grads(False)


def _attention_backward(ctx, dout, dlse):
    q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k = ctx.saved_tensors
    if dout is None:  # only the lse was used
        dout = torch.zeros_like(out)
    dq, dk, dv = ops.attention_bwd(dout, dlse, q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, *ctx.options)
    return (dq, dk, dv, None, None, *(None for _ in ctx.options))


torch.library.register_autograd(
    add_op_namespace_prefix("attention_fwd"), _attention_backward, setup_context=_attention_setup_context
)


def _attention_double_backward(ctx, *gradients):
    raise NotImplementedError("attention: a gradient must not be differentiated again (no second derivative is built)")


torch.library.register_autograd(add_op_namespace_prefix("attention_bwd"), _attention_double_backward)


# ---- causal_conv1d ---------------------------------------------------------------------------------------------------


def _conv_like(x: torch.Tensor) -> torch.Tensor:
    # The layout rule of causal_conv1d/cpu/host.cpp: a transposed (B, L, D) gives one, everything else is contiguous.
    batch, channels, seqlen = x.shape
    if x.stride(1) == 1 and x.stride(2) != 1:
        return x.new_empty((batch, seqlen, channels)).transpose(1, 2)
    return x.new_empty((batch, channels, seqlen))


@torch.library.register_fake(add_op_namespace_prefix("causal_conv1d_fwd"))
def _(x, weight, bias, seq_idx, initial_states, silu):
    return _conv_like(x)


@torch.library.register_fake(add_op_namespace_prefix("causal_conv1d_fwd_out"))
def _(x, weight, bias, seq_idx, initial_states, silu, out):
    return None


@torch.library.register_fake(add_op_namespace_prefix("causal_conv1d_bwd"))
def _(dout, x, weight, bias, seq_idx, initial_states, silu):
    channels, width = weight.shape
    states = 0 if initial_states is None else initial_states.shape[0]
    return (
        _conv_like(x),
        weight.new_empty((channels, width)),
        (weight if bias is None else bias).new_empty((channels,)),
        x.new_empty((states, width - 1, channels)).transpose(1, 2),
    )


@torch.library.register_fake(add_op_namespace_prefix("causal_conv1d_update"))
def _(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices):
    return _conv_like(x) if x.dim() == 3 else x.new_empty(x.shape)


def _conv_setup_context(ctx, inputs, output):
    x, weight, bias, seq_idx, initial_states, ctx.silu = inputs
    ctx.save_for_backward(x, weight, bias, seq_idx, initial_states)


def _conv_backward(ctx, dout):
    _, _, bias, _, initial_states = saved = ctx.saved_tensors
    dx, dweight, dbias, dstates = ops.causal_conv1d_bwd(dout, *saved, ctx.silu)
    return dx, dweight, None if bias is None else dbias, None, None if initial_states is None else dstates, None


torch.library.register_autograd(
    add_op_namespace_prefix("causal_conv1d_fwd"), _conv_backward, setup_context=_conv_setup_context
)
