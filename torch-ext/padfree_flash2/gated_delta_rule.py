"""Gated delta rule and Kimi delta attention, padding-free: public functions, argument checks and defaults.

Every function computes, token by token of each sequence and value head, with the state S of shape (Dk, Dv)::

    S   <- exp(g_t) * S                      one gate per head, or one per channel of k (KDA)
    S   <- S + k_t (beta_t (v_t - S^T k_t))^T
    o_t  = scale * S^T q_t

The ``chunk`` forms do so 64 tokens at a time and are differentiable; the ``fused_recurrent`` forms do it literally, for
decoding, and hand over to the chunk form where a gradient is wanted.
"""

from typing import Optional

import torch

from . import _checks as checks
from . import _delta_checks as arguments
from ._ops import ops

# Looked up once: the packet resolves its overload anew at each call.
_update_op = ops.gated_delta_rule_update.default
_recurrent_op = ops.gated_delta_rule_recurrent.default


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
    **upstream,
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
        upstream: what flash-linear-attention takes as well. ``cu_seqlens_cpu`` must hold what cu_seqlens does;
            ``transpose_state_layout`` is the old name of state_v_first. ``chunk_size`` (16, 32, 64) and
            ``disable_recompute`` steer its kernels, not the result. ``cp_context``, ``use_graph``, ``max_num_seqs``,
            ``chunk_indices``, ``return_intermediate_states`` and ``head_first`` are refused unless None or False.

    Returns:
        ``(o, final_state)``: (B, T, HV, V) of q's dtype, and float32 (N, HV, K, V) or None.

    Raises:
        ValueError: a shape or value is wrong. TypeError: a dtype, device or type is.
        NotImplementedError: a head dim is over 256, or an option of flash-linear-attention has no kernel here.

    Arithmetic and states are float32. Within one chunk of 64 tokens a NaN may reach earlier tokens of its own sequence,
    never those of another. Source: Yang et al., Gated Delta Networks (2024); the semantics of flash-linear-attention.
    """
    op = "chunk_gated_delta_rule"
    state_v_first = arguments.check_upstream(op, upstream, cu_seqlens, state_v_first)
    arguments.check_values(op, q, k, v)
    gate = arguments.Gate(use_gate_in_kernel, A_log, dt_bias)
    g, beta = arguments.activated(op, v, g, beta, gate, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    call = arguments.checked(
        op, q, k, v, g, beta, scale, initial_state, use_qk_l2norm_in_kernel, cu_seqlens, state_v_first
    )
    return _chunk(op, call, output_final_state, state_v_first)


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
    **upstream,
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
    state_v_first = arguments.check_upstream(op, upstream, cu_seqlens, state_v_first)
    for name, gate in (("gk", gk), ("gv", gv)):
        if gate is not None:
            raise NotImplementedError(f"{op}: {name} must be None, got a tensor")
    arguments.check_values(op, q, k, v)
    g = v.new_zeros(v.shape[:3], dtype=torch.float32) if g is None else g
    beta = v.new_ones(v.shape[:3], dtype=torch.float32) if beta is None else beta
    gate = arguments.Gate(use_gate_in_kernel, A_log, dt_bias)
    g, beta = arguments.activated(op, v, g, beta, gate, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    call = arguments.checked(
        op, q, k, v, g, beta, scale, initial_state, use_qk_l2norm_in_kernel, cu_seqlens, state_v_first
    )
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
    safe_gate: bool = False,
    lower_bound: Optional[float] = None,
    *,
    state_v_first: bool = False,
    cu_seqlens: Optional[torch.Tensor] = None,
    A_log: Optional[torch.Tensor] = None,
    dt_bias: Optional[torch.Tensor] = None,
    **upstream,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Kimi delta attention: the gated delta rule with a gate per channel of k, chunk by chunk; differentiable.

    ``S <- diag(exp(g_t)) S``, ``S <- S + k_t (beta_t (v_t - S^T k_t))^T``, ``o_t = scale * S^T q_t``

    Args:
        g: (B, T, HV, K), any of the three dtypes: the logarithms of the decays, not positive (growth is computed as
            well, but rounding errors grow faster than with a gate per head). Bounded below as there.
        use_gate_in_kernel: use ``-exp(A_log) * softplus(g + dt_bias)`` as g; A_log is (HV), dt_bias (HV * K).
        lower_bound: below 0; the activation inside is ``lower_bound * sigmoid(exp(A_log) * (g + dt_bias))`` instead,
            and A_log may be None for 0.
        safe_gate: the promise that g stays in [-5, 0), which no kernel here needs; with use_gate_in_kernel it demands a
            lower_bound in that range.
        The rest: as in ``chunk_gated_delta_rule``.

    Returns:
        ``(o, final_state)`` as ``chunk_gated_delta_rule`` does.

    Raises:
        As ``chunk_gated_delta_rule``.

    Source: Kimi Linear (2025); the semantics of flash-linear-attention.
    """
    op = "chunk_kda"
    state_v_first = arguments.check_upstream(op, upstream, cu_seqlens, state_v_first)
    arguments.check_values(op, q, k, v)
    arguments.check_safe_gate(op, safe_gate, use_gate_in_kernel, lower_bound)
    gate = arguments.Gate(use_gate_in_kernel, A_log, dt_bias, lower_bound)
    g, beta = arguments.activated(op, v, g, beta, gate, use_beta_sigmoid_in_kernel, allow_neg_eigval, q.shape[3:])
    call = arguments.checked(
        op, q, k, v, g, beta, scale, initial_state, use_qk_l2norm_in_kernel, cu_seqlens, state_v_first
    )
    return _chunk(op, call, output_final_state, state_v_first)


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
    lower_bound: Optional[float] = None,
    *,
    state_v_first: bool = False,
    cu_seqlens: Optional[torch.Tensor] = None,
    inplace_final_state: bool = False,
    **upstream,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Kimi delta attention token by token: what ``chunk_kda`` computes, for steps of few tokens.

    Where a gradient is wanted, the chunk form computes the result instead, and is differentiable.

    Args, Returns, Raises: as in ``chunk_kda``; ``inplace_final_state`` as in ``fused_recurrent_gated_delta_rule``.
    """
    op = "fused_recurrent_kda"
    state_v_first = arguments.check_upstream(op, upstream, cu_seqlens, state_v_first)
    arguments.check_values(op, q, k, v)
    gate = arguments.Gate(use_gate_in_kernel, A_log, dt_bias, lower_bound)
    g, beta = arguments.activated(op, v, g, beta, gate, use_beta_sigmoid_in_kernel, allow_neg_eigval, q.shape[3:])
    call = arguments.checked(
        op, q, k, v, g, beta, scale, initial_state, use_qk_l2norm_in_kernel, cu_seqlens, state_v_first
    )
    return _recurrent(op, call, initial_state, output_final_state, state_v_first, inplace_final_state)


def decoding_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    l2norm: bool,
    inplace: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(o, final_state)`` as the recurrent forms give them to a decoding model, without their checks: for layers.py.

    A step takes a few hundred microseconds, of which checks in Python would be a tenth. The op checks before it
    writes.

    Args:
        inplace: write the final states over ``state``, and return that.

    Raises:
        RuntimeError: the op refuses; the public function may still take the arguments, or says what is wrong.
    """
    g, beta, scale = checks.as_float32(g), checks.as_float32(beta), q.shape[-1] ** -0.5
    if inplace:
        return _update_op(q, k, v, g, beta, state, None, scale, l2norm), state
    return _recurrent_op(q, k, v, g, beta, state, None, scale, l2norm)


def _chunk(
    op: str, call: arguments.Call, output_final_state: bool, v_first: bool
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    checks.require_bool(op, "output_final_state", output_final_state)
    out, final_state, _ = ops.gated_delta_rule_fwd(*call, output_final_state, call.wants_gradient())
    return out, _state_out(final_state, v_first) if output_final_state else None


def _recurrent(
    op: str,
    call: arguments.Call,
    given_state: Optional[torch.Tensor],
    output_final_state: bool,
    v_first: bool,
    inplace: bool,
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    checks.require_bool(op, "output_final_state", output_final_state)
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
        out = _update_op(q, k, v, g, beta, state, cu_seqlens, scale, l2norm)
        return out, state if output_final_state else None
    if call.wants_gradient():
        return _chunk(op, call, output_final_state, v_first)
    out, final_state = _recurrent_op(*call)
    return out, _state_out(final_state, v_first) if output_final_state else None


def _described(state: Optional[torch.Tensor], v_first: bool) -> str:
    if state is None:
        return "None"
    layout = "value-first" if v_first else "contiguous" if state.is_contiguous() else "strided"
    return f"{checks.name_of(state.dtype)}, {layout}"


def _state_out(state: torch.Tensor, v_first: bool) -> torch.Tensor:
    return state.transpose(-1, -2).contiguous() if v_first else state
