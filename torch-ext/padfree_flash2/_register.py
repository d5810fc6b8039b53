"""Fake kernels and autograd of every op; the only file that names ``torch.library``."""

import torch

from ._ops import add_op_namespace_prefix, ops

_ISA_NAMES = ("generic", "avx2", "avx512")

# Read once, at import: a wrong PADFREE_ISA stops the load with its own message instead of a later call.
_ISA = (*_ISA_NAMES, "cuda")[ops.cpu_isa()]  # -1: the last one
_AMX = ops.cpu_amx()
_BFLOAT16_DOT = ops.cpu_bfloat16_dot()


def isa() -> str:
    """Name of the CPU instruction-set path in use: ``"generic"``, ``"avx2"`` or ``"avx512"``; ``"cuda"`` in a variant
    for CUDA, which has none.

    The environment variable ``PADFREE_ISA``, read once when the bundle is loaded, forces a path.
    """
    return _ISA


def handed_to_torch() -> tuple:
    """The dtypes in which plain CPU attention is computed by torch's op, which uses the CPU's matrix unit (AMX).

    The environment variable ``PADFREE_AMX``, read once when the bundle is loaded, forbids it (0) or does it on any CPU
    (1); unset, ``PADFREE_ISA`` forbids it too.
    """
    return (torch.bfloat16,) * (_AMX & 1) + (torch.float16,) * (_AMX >> 1)


def bfloat16_dot() -> bool:
    """Whether CPU attention computes q k^T and dO v^T of bfloat16 by the CPU's dot product for it (avx512_bf16).

    Only on path ``avx512``. The environment variable ``PADFREE_AVX512_BF16``, read once when the bundle is loaded,
    forbids it (0).
    """
    return _BFLOAT16_DOT


# ---- attention -------------------------------------------------------------------------------------------------------


@torch.library.register_fake(add_op_namespace_prefix("attention_fwd"))
def _attention_fwd_fake(q, k, v, cu_seqlens_q, *options):
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    if cu_seqlens_q is None:
        batch, seqlen_q, heads, _ = q.shape
        return out, q.new_empty((batch, heads, seqlen_q), dtype=torch.float32)
    rows, heads, _ = q.shape
    return out, q.new_empty((heads, rows), dtype=torch.float32)


@torch.library.register_fake(add_op_namespace_prefix("attention_bwd"))
def _attention_bwd_fake(
    dout, dlse, q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    softmax_scale, causal, window_left, window_right, softcap, sinks=None, alibi_slopes=None, dropout_p=0.0,
    rng_state=None, seqused_q=None, seqused_k=None, mask=None, needs_dmask=False,
):  # fmt: skip
    dsinks = q.new_empty((0,) if sinks is None else sinks.shape, dtype=torch.float32)
    dmask = mask.new_empty(mask.shape) if needs_dmask else q.new_empty((0,), dtype=torch.float32)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dsinks, dmask


def _attention_setup_context(ctx, inputs, output):
    q, k, v, cu_seqlens_q, cu_seqlens_k, *options = inputs
    ctx.max_seqlens, ctx.scores = options[:2], options[2:7]
    sinks, alibi_slopes, ctx.dropout_p, rng_state, seqused_q, seqused_k, mask, *cache = options[7:]
    if any(tensor is not None for tensor in cache):
        raise NotImplementedError("attention: block_table must be None where a gradient is wanted, got a KV cache")
    ctx.save_for_backward(
        q, k, v, *output, cu_seqlens_q, cu_seqlens_k, sinks, alibi_slopes, rng_state, seqused_q, seqused_k, mask
    )
    ctx.set_materialize_grads(False)


_MASK = 18  # its place among the inputs of attention_fwd


def _attention_backward(ctx, dout, dlse):
    q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, *saved = ctx.saved_tensors
    sinks, alibi_slopes, rng_state, seqused_q, seqused_k, mask = saved
    if dout is None:  # only the lse was used
        dout = torch.zeros_like(out)
    needs_dmask = mask is not None and ctx.needs_input_grad[_MASK]
    dq, dk, dv, dsinks, dmask = ops.attention_bwd(
        dout, dlse, q, k, v, out, softmax_lse, cu_seqlens_q, cu_seqlens_k, *ctx.max_seqlens, *ctx.scores,
        sinks, alibi_slopes, ctx.dropout_p, rng_state, seqused_q, seqused_k, mask, needs_dmask,
    )  # fmt: skip
    boundaries, scores, cache = [None] * 4, [None] * 5, [None] * 3
    dsinks, dmask = None if sinks is None else dsinks, dmask if needs_dmask else None
    return (dq, dk, dv, *boundaries, *scores, dsinks, None, None, None, None, None, dmask, *cache)


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


# ---- gated delta rule ------------------------------------------------------------------------------------------------

# kChunk and kStatePad of kernel-src/gated_delta_rule/params.h: they make the shape of the states that forward saves.
_DELTA_CHUNK, _DELTA_STATE_PAD = 64, 32


def _delta_state(q, v, beta, cu_seqlens, wanted=True):
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return beta.new_empty((sequences if wanted else 0, v.shape[2], q.shape[3], v.shape[3]))


@torch.library.register_fake(add_op_namespace_prefix("gated_delta_rule_fwd"))
def _(q, k, v, g, beta, initial_state, cu_seqlens, scale, l2norm, output_final_state, save_states):
    batch, rows, heads, width = v.shape
    if cu_seqlens is None:
        chunks = batch * ((rows + _DELTA_CHUNK - 1) // _DELTA_CHUNK)
    else:
        chunks = rows // _DELTA_CHUNK + cu_seqlens.shape[0] - 1
    width = (width + _DELTA_STATE_PAD - 1) // _DELTA_STATE_PAD * _DELTA_STATE_PAD
    states = beta.new_empty((chunks if save_states else 0, heads, q.shape[3], width))
    return v.new_empty(v.shape), _delta_state(q, v, beta, cu_seqlens, output_final_state), states


@torch.library.register_fake(add_op_namespace_prefix("gated_delta_rule_bwd"))
def _(dout, dfinal_state, q, k, v, g, beta, initial_state, cu_seqlens, states, scale, l2norm):
    dstate = _delta_state(q, v, beta, cu_seqlens, initial_state is not None)
    return (*(x.new_empty(x.shape) for x in (q, k, v, g, beta)), dstate)


@torch.library.register_fake(add_op_namespace_prefix("gated_delta_rule_recurrent"))
def _(q, k, v, g, beta, initial_state, cu_seqlens, scale, l2norm):
    return v.new_empty(v.shape), _delta_state(q, v, beta, cu_seqlens)


@torch.library.register_fake(add_op_namespace_prefix("gated_delta_rule_update"))
def _(q, k, v, g, beta, state, cu_seqlens, scale, l2norm):
    return v.new_empty(v.shape)


def _delta_setup_context(ctx, inputs, output):
    *tensors, ctx.scale, ctx.l2norm, _, ctx.states_saved = inputs
    states = output[2]
    ctx.mark_non_differentiable(states)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, states)


def _delta_backward(ctx, dout, dfinal_state, dstates):
    *inputs, states = ctx.saved_tensors
    if not ctx.states_saved:
        states = ops.gated_delta_rule_fwd(*inputs, ctx.scale, ctx.l2norm, False, True)[2]
    v, initial_state = inputs[2], inputs[5]
    dout = torch.zeros_like(v) if dout is None else dout
    if dfinal_state is not None and dfinal_state.shape[0] == 0:
        dfinal_state = None
    *gradients, dinitial_state = ops.gated_delta_rule_bwd(dout, dfinal_state, *inputs, states, ctx.scale, ctx.l2norm)
    return (*gradients, None if initial_state is None else dinitial_state, None, None, None, None, None)


torch.library.register_autograd(
    add_op_namespace_prefix("gated_delta_rule_fwd"), _delta_backward, setup_context=_delta_setup_context
)


def _delta_double_backward(ctx, *gradients):
    raise NotImplementedError(
        "gated_delta_rule: a gradient must not be differentiated again (no second derivative is built)"
    )


torch.library.register_autograd(add_op_namespace_prefix("gated_delta_rule_bwd"), _delta_double_backward)


# ---- state space -----------------------------------------------------------------------------------------------------

# kChunk and kStatePad of kernel-src/state_space/params.h: they make the shape of the states that forward saves.
_SPACE_CHUNK, _SPACE_STATE_PAD = 64, 32


def _space_states(x, dt, B, cu_seqlens, wanted=True):
    rows = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return dt.new_empty((rows if wanted else 0, *x.shape[2:], B.shape[3]))


@torch.library.register_fake(add_op_namespace_prefix("state_space_fwd"))
def _(
    x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx, cu_seqlens, dt_softplus, dt_min, dt_max,
    output_final_states, save_states,
):  # fmt: skip
    batch, rows, heads, head_dim = x.shape
    later_chunks = batch * (torch.sym_max(rows - 1, 0) // _SPACE_CHUNK) if save_states else 0
    width = (head_dim + _SPACE_STATE_PAD - 1) // _SPACE_STATE_PAD * _SPACE_STATE_PAD
    states = dt.new_empty((later_chunks * heads * B.shape[3] * width,))
    return x.new_empty(x.shape), _space_states(x, dt, B, cu_seqlens, output_final_states), states


@torch.library.register_fake(add_op_namespace_prefix("state_space_bwd"))
def _(
    dout, dfinal_states, x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx, cu_seqlens, states, dt_softplus,
    dt_min, dt_max,
):  # fmt: skip
    def like(tensor, of=dt):
        return of.new_empty((0,) if tensor is None else tensor.shape)

    dstates = _space_states(x, dt, B, cu_seqlens, initial_states is not None)
    dx, dB, dC = (tensor.new_empty(tensor.shape) for tensor in (x, B, C))
    return dx, like(dt), like(A), dB, dC, like(D), like(z, x), like(dt_bias), dstates


def _space_setup_context(ctx, inputs, output):
    *tensors, ctx.dt_softplus, ctx.dt_min, ctx.dt_max, _, ctx.states_saved = inputs
    states = output[2]
    ctx.mark_non_differentiable(states)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, states)


def _space_backward(ctx, dout, dfinal_states, dstates):
    *inputs, states = ctx.saved_tensors
    options = (ctx.dt_softplus, ctx.dt_min, ctx.dt_max)
    if not ctx.states_saved:
        states = ops.state_space_fwd(*inputs, *options, False, True)[2]
    dout = torch.zeros_like(inputs[0]) if dout is None else dout
    if dfinal_states is not None and dfinal_states.shape[0] == 0:
        dfinal_states = None
    gradients = ops.state_space_bwd(dout, dfinal_states, *inputs, states, *options)
    given = [None if x is None else gradient for x, gradient in zip(inputs, gradients)]
    return (*given, None, None, None, None, None, None, None)


torch.library.register_autograd(
    add_op_namespace_prefix("state_space_fwd"), _space_backward, setup_context=_space_setup_context
)


def _space_double_backward(ctx, *gradients):
    raise NotImplementedError(
        "state_space: a gradient must not be differentiated again (no second derivative is built)"
    )


torch.library.register_autograd(add_op_namespace_prefix("state_space_bwd"), _space_double_backward)


# ---- selective scan --------------------------------------------------------------------------------------------------

# kChunk and kLanes of kernel-src/selective_scan/params.h: they make the shape of the states that forward saves.
_SCAN_CHUNK, _SCAN_LANES = 64, 16


def _scan_groups(B, C):
    return next((matrix.shape[1] for matrix in (B, C) if matrix.dim() == 4), 1)


@torch.library.register_fake(add_op_namespace_prefix("selective_scan_fwd"))
def _(u, delta, A, B, C, D, z, delta_bias, seq_idx, initial_states, delta_softplus, states, save_states):
    batch, channels, seqlen = u.shape
    groups = _scan_groups(B, C)
    lane_groups = groups * ((channels // groups + _SCAN_LANES - 1) // _SCAN_LANES)
    chunks = (seqlen + _SCAN_CHUNK - 1) // _SCAN_CHUNK
    saved = A.new_empty((batch if save_states else 0, chunks, lane_groups, A.shape[1], _SCAN_LANES))
    return _conv_like(u), A.new_empty((max(states, 0), channels, A.shape[1])), saved


@torch.library.register_fake(add_op_namespace_prefix("selective_scan_bwd"))
def _(dout, dfinal_states, u, delta, A, B, C, D, z, delta_bias, seq_idx, initial_states, saved, delta_softplus):
    channels = u.shape[1]

    def projection(matrix):
        if matrix.dim() == 2:
            return matrix.new_empty(matrix.shape)
        batch, groups, states, seqlen = matrix.shape
        return matrix.new_empty((batch, groups, seqlen, states)).transpose(2, 3)

    rows = 0 if initial_states is None else initial_states.shape[0]
    return (
        _conv_like(u),
        _conv_like(delta),
        A.new_empty(A.shape),
        projection(B),
        projection(C),
        A.new_empty((channels,)),
        u.new_empty((0,)) if z is None else _conv_like(z),
        A.new_empty((channels,)),
        A.new_empty((rows, channels, A.shape[1])),
    )


@torch.library.register_fake(add_op_namespace_prefix("selective_state_update"))
def _(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, state_batch_indices):
    return x.new_empty(x.shape)


def _scan_setup_context(ctx, inputs, output):
    *tensors, ctx.softplus, _, ctx.states_saved = inputs
    saved = output[2]
    ctx.mark_non_differentiable(saved)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, saved)


def _scan_backward(ctx, dout, dfinal_states, dsaved):
    *inputs, saved = ctx.saved_tensors
    if not ctx.states_saved:
        saved = ops.selective_scan_fwd(*inputs, ctx.softplus, -1, True)[2]
    u, D, z, delta_bias, initial_states = inputs[0], inputs[5], inputs[6], inputs[7], inputs[9]
    dout = torch.zeros_like(u) if dout is None else dout
    if dfinal_states is not None and dfinal_states.shape[0] == 0:
        dfinal_states = None
    du, ddelta, dA, dB, dC, dD, dz, dbias, dinitial = ops.selective_scan_bwd(
        dout, dfinal_states, *inputs, saved, ctx.softplus
    )
    dD, dz, dbias = (d if x is not None else None for d, x in ((dD, D), (dz, z), (dbias, delta_bias)))
    dinitial = None if initial_states is None else dinitial
    return du, ddelta, dA, dB, dC, dD, dz, dbias, None, dinitial, None, None, None


torch.library.register_autograd(
    add_op_namespace_prefix("selective_scan_fwd"), _scan_backward, setup_context=_scan_setup_context
)


def _scan_double_backward(ctx, *gradients):
    raise NotImplementedError(
        "selective_scan: a gradient must not be differentiated again (no second derivative is built)"
    )


torch.library.register_autograd(add_op_namespace_prefix("selective_scan_bwd"), _scan_double_backward)
