"""Arguments of the gated delta rule and Kimi delta attention: checked, gates activated, in the order of the ops."""

import math
from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F

from . import _checks as checks

MAX_HEAD_DIM = 256


class Gate(NamedTuple):
    """How g becomes the logarithm of the decay."""

    activate: bool
    A_log: Optional[torch.Tensor]
    dt_bias: Optional[torch.Tensor]
    lower_bound: Optional[float] = None


class Call(NamedTuple):
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


def check_values(op: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    checks.require_floating(op, "q", q)
    checks.require_kernel(op, "q", q, "gated_delta_rule_fwd")
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


def activated(
    op: str,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    gate: Gate,
    sigmoid: bool,
    neg_eigval: bool,
    channels: tuple = (),
) -> tuple[torch.Tensor, torch.Tensor]:
    """g as a logarithm of the decay and beta as a factor, both float32; ``channels`` (K,) for a gate per channel."""
    checks.require_shape(op, "g", g, v, "q", (*v.shape[:3], *channels))
    checks.require_shape(op, "beta", beta, v, "q", v.shape[:3])
    checks.require_bool(op, "use_gate_in_kernel", gate.activate)
    checks.require_bool(op, "use_beta_sigmoid_in_kernel", sigmoid)
    checks.require_bool(op, "allow_neg_eigval", neg_eigval)
    g, beta = g.float(), beta.float()
    if gate.activate:
        g = _activated_gate(op, v, g, gate, channels)
    elif gate.lower_bound is not None:
        raise ValueError(f"{op}: lower_bound must be None where use_gate_in_kernel is False, got {gate.lower_bound}")
    elif gate.A_log is not None or gate.dt_bias is not None:
        raise ValueError(f"{op}: A_log and dt_bias must be None where use_gate_in_kernel is False, got a tensor")
    if sigmoid:
        beta = beta.sigmoid() * (2.0 if neg_eigval else 1.0)
    elif neg_eigval:
        raise ValueError(f"{op}: allow_neg_eigval must be False where use_beta_sigmoid_in_kernel is False, got True")
    return g, beta


def _activated_gate(op: str, v: torch.Tensor, g: torch.Tensor, gate: Gate, channels: tuple) -> torch.Tensor:
    heads, (_, A_log, dt_bias, lower_bound) = v.shape[2], gate
    if dt_bias is not None:
        checks.require_shape(op, "dt_bias", dt_bias, v, "q", (math.prod((heads, *channels)),))
        g = g + dt_bias.float().view(heads, *channels)
    rate = None
    if A_log is not None:
        checks.require_shape(op, "A_log", A_log, v, "q", (heads,))
        rate = A_log.float().exp().view(heads, *(1 for _ in channels))
    if lower_bound is None:
        if rate is None:
            raise ValueError(f"{op}: A_log must be a tensor where use_gate_in_kernel is True, got None")
        return -rate * F.softplus(g)
    checks.require_number(op, "lower_bound", lower_bound)
    if lower_bound >= 0:
        raise ValueError(f"{op}: lower_bound must be below 0, got {lower_bound}")
    return lower_bound * torch.sigmoid(g if rate is None else rate * g)


def check_safe_gate(op: str, safe_gate: bool, activate: bool, lower_bound: Optional[float]) -> None:
    checks.require_bool(op, "safe_gate", safe_gate)
    if safe_gate and activate and (lower_bound is None or not -5 <= lower_bound < 0):
        raise ValueError(
            f"{op}: lower_bound must be in [-5, 0) where safe_gate and use_gate_in_kernel are True, got {lower_bound}"
        )


# What flash-linear-attention takes beside: refused unless it asks for nothing.
_REFUSED = {
    "cp_context": None,
    "use_graph": False,
    "max_num_seqs": None,
    "chunk_indices": None,
    "return_intermediate_states": False,
    "head_first": False,
}
_CHUNK_SIZES = (16, 32, 64)


def check_upstream(op: str, given: dict, cu_seqlens: Optional[torch.Tensor], v_first: bool) -> bool:
    """Honour or refuse what flash-linear-attention takes beside; returns ``state_v_first``, by its old name as well."""
    for name, value in given.items():
        if name in _REFUSED:
            if value is not _REFUSED[name]:
                raise NotImplementedError(f"{op}: {name} must be {_REFUSED[name]}, got {_said(value)}")
        elif name == "cu_seqlens_cpu":
            _check_same_boundaries(op, value, cu_seqlens)
        elif name == "chunk_size":
            if value not in _CHUNK_SIZES:
                raise ValueError(f"{op}: chunk_size must be one of {_CHUNK_SIZES}, got {value}")
        elif name == "disable_recompute":
            checks.require_bool(op, name, value)
        elif name == "transpose_state_layout":
            checks.require_bool(op, name, value)
            if v_first:
                raise ValueError(f"{op}: transpose_state_layout must be left away where state_v_first is, got {value}")
            v_first = value
        else:
            raise TypeError(f"{op}: {name} must be left away, got {_said(value)}")
    return v_first


def _said(value) -> str:
    return repr(value) if isinstance(value, (bool, int, float, str)) else f"a {type(value).__name__}"


def _check_same_boundaries(op: str, copy: Optional[torch.Tensor], cu_seqlens: Optional[torch.Tensor]) -> None:
    if copy is None:
        return
    if cu_seqlens is None:
        raise ValueError(f"{op}: cu_seqlens must be given beside cu_seqlens_cpu, got None")
    checks.require_tensor(op, "cu_seqlens_cpu", copy)
    if checks.readable(cu_seqlens) and checks.readable(copy) and cu_seqlens.tolist() != copy.tolist():
        raise ValueError(f"{op}: cu_seqlens_cpu must hold what cu_seqlens does, got {copy.tolist()}")


def checked(
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
) -> Call:
    checks.require_bool(op, "use_qk_l2norm_in_kernel", l2norm)
    checks.require_bool(op, "state_v_first", v_first)
    if scale is None:
        scale = q.shape[3] ** -0.5
    checks.require_number(op, "scale", scale)
    if scale == 0:
        raise ValueError(f"{op}: scale must not be 0, got {scale}")
    sequences = q.shape[0]
    if cu_seqlens is not None:
        checks.require_boundaries(op, cu_seqlens, "q", q, q.shape[0], q.shape[1])
        cu_seqlens = checks.as_int32(cu_seqlens)
        sequences = cu_seqlens.shape[0] - 1
    if initial_state is not None:
        shape = (sequences, v.shape[2], q.shape[3], v.shape[3])
        shape = (*shape[:2], shape[3], shape[2]) if v_first else shape
        checks.require_shape(op, "initial_state", initial_state, q, "q", shape)
        initial_state = initial_state.transpose(-1, -2) if v_first else initial_state
        initial_state = initial_state.float()
    return Call(q, k, v, g, beta, initial_state, cu_seqlens, float(scale), l2norm)
