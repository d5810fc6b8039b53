"""Gated delta rule and Kimi delta attention, padding-free: public functions, argument checks and defaults.

Every function computes, token by token of each sequence and value head, with the state S of shape (Dk, Dv)::

    S   <- exp(g_t) * S                      one gate per head, or one per channel of k (KDA)
    S   <- S + k_t (beta_t (v_t - S^T k_t))^T
    o_t  = scale * S^T q_t

The ``chunk`` forms do so 64 tokens at a time and are differentiable; the ``fused_recurrent`` forms do it literally, for
decoding, and hand over to the chunk form where a gradient is wanted.
"""

import math
from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F

from . import _checks as checks
from ._ops import ops

MAX_HEAD_DIM = 256


def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: Optional[float] = None,
    initial_state: Optional[torch.Tensor] = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Optional[torch.Tensor] = None,
    *,
    use_gate_in_kernel: bool = False,
    A_log: Optional[torch.Tensor] = None,
    dt_bias: Optional[torch.Tensor] = None,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Gated delta rule with one gate per head, chunk by chunk; differentiable in every tensor.

    ``S_t = exp(g_t) S_{t-1} + k_t (beta_t (v_t - exp(g_t) S_{t-1}^T k_t))^T``, ``o_t = scale * S_t^T q_t``

    Args:
        q, k: (B, T, H, K) float32, bfloat16 or float16, K up to 256.
        v: (B, T, HV, V) of the same dtype, V up to 256; H divides HV, and value head i uses key head i // (HV // H).
        g: (B, T, HV), any of the three dtypes: the logarithm of the decay. Below -1e4 it counts as -1e4, where the
            decay is 0 all the same; so -inf forgets the state.
        beta: (B, T, HV), any of the three dtypes.
        scale: what q is multiplied by, not 0; default ``K ** -0.5``.
        initial_state: (N, HV, K, V), N the number of sequences: B, or ``len(cu_seqlens) - 1``.
        output_final_state: also return the states after the last tokens.
        use_qk_l2norm_in_kernel: divide q and k by ``sqrt(|.|^2 + 1e-6)`` first.
        use_beta_sigmoid_in_kernel: use ``sigmoid(beta)``, twice that with ``allow_neg_eigval``.
        state_v_first: states are (N, HV, V, K).
        cu_seqlens: (N + 1) int32 or int64, rising from 0: boundaries of packed sequences, B is 1. Rows past the last
            boundary get 0.
        use_gate_in_kernel: use ``-exp(A_log) * softplus(g + dt_bias)`` as g; A_log and dt_bias are (HV).

    Returns:
        ``(o, final_state)``: (B, T, HV, V) of q's dtype, and float32 (N, HV, K, V) or None.

    Raises:
        ValueError: a shape or value is wrong. TypeError: a dtype, device or type is.
        NotImplementedError: a head dim is over 256.

    Arithmetic and states are float32. Within one chunk of 64 tokens a NaN may reach earlier tokens of its own sequence,
    never those of another. Source: Yang et al., Gated Delta Networks (2024); the semantics of flash-linear-attention.
    """
    op = "chunk_gated_delta_rule"
    _check_values(op, q, k, v)
    gate = use_gate_in_kernel, A_log, dt_bias
    g, beta = _activated(op, v, g, beta, gate, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    call = _checked(op, q, k, v, g, beta, scale, initial_state, use_qk_l2norm_in_kernel, cu_seqlens, state_v_first)
    return _chunk(call, output_final_state, state_v_first)


def fused_recurrent_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: Optional[torch.Tensor] = None,
    gk: Optional[torch.Tensor] = None,
    gv: Optional[torch.Tensor] = None,
    beta: Optional[torch.Tensor] = None,
    scale: Optional[float] = None,
    initial_state: Optional[torch.Tensor] = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Optional[torch.Tensor] = None,
    dt_bias: Optional[torch.Tensor] = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Optional[torch.Tensor] = None,
    *,
    inplace_final_state: bool = False,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Gated delta rule token by token: what ``chunk_gated_delta_rule`` computes, for steps of few tokens.

    Where a gradient is wanted, the chunk form computes the result instead, and is differentiable.

    Args:
        g: None for no decay.
        gk, gv: None; decays per channel are not built for this function.
        beta: None for 1.
        inplace_final_state: write the final states over ``initial_state`` (float32, contiguous), and return that;
            inference only.
        The rest: as in ``chunk_gated_delta_rule``.

    Returns:
        ``(o, final_state)`` as ``chunk_gated_delta_rule`` does.

    Raises:
        As ``chunk_gated_delta_rule``; NotImplementedError for gk and gv.

    Source: the semantics of flash-linear-attention; ``inplace_final_state`` is vLLM's name.
    """
    op = "fused_recurrent_gated_delta_rule"
    for name, gate in (("gk", gk), ("gv", gv)):
        if gate is not None:
            raise NotImplementedError(f"{op}: {name} must be None, got a tensor")
    _check_values(op, q, k, v)
    g = v.new_zeros(v.shape[:3], dtype=torch.float32) if g is None else g
    beta = v.new_ones(v.shape[:3], dtype=torch.float32) if beta is None else beta
    gate = use_gate_in_kernel, A_log, dt_bias
    g, beta = _activated(op, v, g, beta, gate, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    call = _checked(op, q, k, v, g, beta, scale, initial_state, use_qk_l2norm_in_kernel, cu_seqlens, state_v_first)
    return _recurrent(op, call, initial_state, output_final_state, state_v_first, inplace_final_state)


def chunk_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: Optional[float] = None,
    initial_state: Optional[torch.Tensor] = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    *,
    state_v_first: bool = False,
    cu_seqlens: Optional[torch.Tensor] = None,
    A_log: Optional[torch.Tensor] = None,
    dt_bias: Optional[torch.Tensor] = None,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Kimi delta attention: the gated delta rule with a gate per channel of k, chunk by chunk; differentiable.

    ``S <- diag(exp(g_t)) S``, ``S <- S + k_t (beta_t (v_t - S^T k_t))^T``, ``o_t = scale * S^T q_t``

    Args:
        g: (B, T, HV, K), any of the three dtypes: the logarithms of the decays, not positive (growth is computed as
            well, but rounding errors grow faster than with a gate per head). Bounded below as there.
        use_gate_in_kernel: use ``-exp(A_log) * softplus(g + dt_bias)`` as g; A_log is (HV), dt_bias (HV * K).
        The rest: as in ``chunk_gated_delta_rule``.

    Returns:
        ``(o, final_state)`` as ``chunk_gated_delta_rule`` does.

    Raises:
        As ``chunk_gated_delta_rule``.

    Source: Kimi Linear (2025); the semantics of flash-linear-attention.
    """
    op = "chunk_kda"
    _check_values(op, q, k, v)
    gate = use_gate_in_kernel, A_log, dt_bias
    g, beta = _activated(op, v, g, beta, gate, use_beta_sigmoid_in_kernel, allow_neg_eigval, q.shape[3:])
    call = _checked(op, q, k, v, g, beta, scale, initial_state, use_qk_l2norm_in_kernel, cu_seqlens, state_v_first)
    return _chunk(call, output_final_state, state_v_first)


def fused_recurrent_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    A_log: Optional[torch.Tensor] = None,
    dt_bias: Optional[torch.Tensor] = None,
    scale: Optional[float] = None,
    initial_state: Optional[torch.Tensor] = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    *,
    state_v_first: bool = False,
    cu_seqlens: Optional[torch.Tensor] = None,
    inplace_final_state: bool = False,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Kimi delta attention token by token: what ``chunk_kda`` computes, for steps of few tokens.

    Where a gradient is wanted, the chunk form computes the result instead, and is differentiable.

    Args, Returns, Raises: as in ``chunk_kda``; ``inplace_final_state`` as in ``fused_recurrent_gated_delta_rule``.
    """
    op = "fused_recurrent_kda"
    _check_values(op, q, k, v)
    gate = use_gate_in_kernel, A_log, dt_bias
    g, beta = _activated(op, v, g, beta, gate, use_beta_sigmoid_in_kernel, allow_neg_eigval, q.shape[3:])
    call = _checked(op, q, k, v, g, beta, scale, initial_state, use_qk_l2norm_in_kernel, cu_seqlens, state_v_first)
    return _recurrent(op, call, initial_state, output_final_state, state_v_first, inplace_final_state)


class _Call(NamedTuple):
    """The arguments of the ops, checked, defaults filled in, in their order."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    initial_state: Optional[torch.Tensor]
    cu_seqlens: Optional[torch.Tensor]
    scale: float
    l2norm: bool

    def wants_gradient(self) -> bool:
        return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in self[:6])


def _chunk(call: _Call, output_final_state: bool, v_first: bool) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    out, final_state, _ = ops.gated_delta_rule_fwd(*call, output_final_state, call.wants_gradient())
    return out, _state_out(final_state, v_first) if output_final_state else None


def _recurrent(
    op: str,
    call: _Call,
    given_state: Optional[torch.Tensor],
    output_final_state: bool,
    v_first: bool,
    inplace: bool,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    checks.require_bool(op, "inplace_final_state", inplace)
    if inplace:
        if call.initial_state is None or call.initial_state is not given_state or not given_state.is_contiguous():
            raise ValueError(
                f"{op}: initial_state must be float32, contiguous and key-first where inplace_final_state is True, "
                f"got {_described(given_state, v_first)}"
            )
        if call.wants_gradient():
            raise ValueError(f"{op}: inplace_final_state must be False where a gradient is wanted, got True")
        q, k, v, g, beta, state, cu_seqlens, scale, l2norm = call
        out = ops.gated_delta_rule_update(q, k, v, g, beta, state, cu_seqlens, scale, l2norm)
        return out, state if output_final_state else None
    if call.wants_gradient():
        return _chunk(call, output_final_state, v_first)
    out, final_state = ops.gated_delta_rule_recurrent(*call)
    return out, _state_out(final_state, v_first) if output_final_state else None


def _described(state: Optional[torch.Tensor], v_first: bool) -> str:
    if state is None:
        return "None"
    layout = "value-first" if v_first else "contiguous" if state.is_contiguous() else "strided"
    return f"{checks.name_of(state.dtype)}, {layout}"


def _state_out(state: torch.Tensor, v_first: bool) -> torch.Tensor:
    return state.transpose(-1, -2).contiguous() if v_first else state


def _check_values(op: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    checks.require_floating(op, "q", q)
    checks.require_like(op, "k", k, "q", q)
    checks.require_like(op, "v", v, "q", q)
    for name, tensor in (("q", q), ("v", v)):
        checks.require_dim(op, name, tensor, 4)
    if k.shape != q.shape:
        raise ValueError(f"{op}: k must have the shape of q {tuple(q.shape)}, got {tuple(k.shape)}")
    if v.shape[:2] != q.shape[:2]:
        raise ValueError(f"{op}: v must have the batch and rows of q {tuple(q.shape[:2])}, got {tuple(v.shape[:2])}")
    if q.shape[2] == 0 or v.shape[2] % q.shape[2] != 0:
        raise ValueError(f"{op}: heads of q must divide heads of v ({v.shape[2]}), got {q.shape[2]}")
    for name, tensor in (("q", q), ("v", v)):
        if tensor.shape[3] == 0:
            raise ValueError(f"{op}: head_dim of {name} must be at least 1, got 0")
        if tensor.shape[3] > MAX_HEAD_DIM:
            raise NotImplementedError(
                f"{op}: head_dim of {name} must be at most {MAX_HEAD_DIM} on {q.device.type}, got {tensor.shape[3]}"
            )


def _check_shape(op: str, name: str, tensor: torch.Tensor, like: torch.Tensor, shape: tuple) -> None:
    checks.require_floating(op, name, tensor)
    checks.require_device(op, name, tensor, "q", like)
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{op}: {name} must have shape {tuple(shape)}, got {tuple(tensor.shape)}")


def _activated(
    op: str,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    gate: tuple[bool, Optional[torch.Tensor], Optional[torch.Tensor]],
    sigmoid: bool,
    neg_eigval: bool,
    channels: tuple = (),
) -> tuple[torch.Tensor, torch.Tensor]:
    """g as a logarithm of the decay and beta as a factor, both float32; ``channels`` (K,) for a gate per channel."""
    heads = v.shape[2]
    use_gate, A_log, dt_bias = gate
    _check_shape(op, "g", g, v, (*v.shape[:3], *channels))
    _check_shape(op, "beta", beta, v, v.shape[:3])
    g, beta = g.float(), beta.float()
    if use_gate:
        if A_log is None:
            raise ValueError(f"{op}: A_log must be a tensor where use_gate_in_kernel is True, got None")
        _check_shape(op, "A_log", A_log, v, (heads,))
        if dt_bias is not None:
            _check_shape(op, "dt_bias", dt_bias, v, (math.prod((heads, *channels)),))
            g = g + dt_bias.float().view(heads, *channels)
        g = -A_log.float().exp().view(heads, *(1 for _ in channels)) * F.softplus(g)
    elif A_log is not None or dt_bias is not None:
        raise ValueError(f"{op}: A_log and dt_bias must be None where use_gate_in_kernel is False, got a tensor")
    if sigmoid:
        beta = beta.sigmoid() * (2.0 if neg_eigval else 1.0)
    elif neg_eigval:
        raise ValueError(f"{op}: allow_neg_eigval must be False where use_beta_sigmoid_in_kernel is False, got True")
    return g, beta


def _checked(
    op: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: Optional[float],
    initial_state: Optional[torch.Tensor],
    l2norm: bool,
    cu_seqlens: Optional[torch.Tensor],
    v_first: bool,
) -> _Call:
    checks.require_bool(op, "use_qk_l2norm_in_kernel", l2norm)
    checks.require_bool(op, "state_v_first", v_first)
    if scale is None:
        scale = q.shape[3] ** -0.5
    checks.require_number(op, "scale", scale)
    if scale == 0:
        raise ValueError(f"{op}: scale must not be 0, got {scale}")
    sequences = q.shape[0]
    if cu_seqlens is not None:
        cu_seqlens = _check_boundaries(op, cu_seqlens, q)
        sequences = cu_seqlens.shape[0] - 1
    if initial_state is not None:
        shape = (sequences, v.shape[2], q.shape[3], v.shape[3])
        shape = (*shape[:2], shape[3], shape[2]) if v_first else shape
        _check_shape(op, "initial_state", initial_state, q, shape)
        initial_state = initial_state.transpose(-1, -2) if v_first else initial_state
        initial_state = initial_state.float()
    return _Call(q, k, v, g, beta, initial_state, cu_seqlens, float(scale), l2norm)


def _check_boundaries(op: str, cu_seqlens: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    checks.require_integers(op, "cu_seqlens", cu_seqlens, "q", q)
    if q.shape[0] != 1:
        raise ValueError(f"{op}: q must have size 1 in dimension 0 where cu_seqlens is given, got {q.shape[0]}")
    if cu_seqlens.shape[0] == 0:
        raise ValueError(f"{op}: cu_seqlens must start at 0, got nothing")
    ends = checks.values_of(cu_seqlens)
    if ends is not None:
        if ends[0] != 0:
            raise ValueError(f"{op}: cu_seqlens must start at 0, got {ends[0]}")
        for before, after in zip(ends, ends[1:]):
            if after < before:
                raise ValueError(f"{op}: cu_seqlens must not decrease, got {after} after {before}")
        if ends[-1] > q.shape[1]:
            raise ValueError(f"{op}: cu_seqlens must end at or below the number of rows ({q.shape[1]}), got {ends[-1]}")
    return checks.as_int32(cu_seqlens)
