"""Selective scan (Mamba 1), padding-free: public functions, argument checks and defaults.

Every channel d has a state h of N numbers. Token by token of each sequence::

    dt_t = softplus(delta_t + delta_bias)                      without softplus: delta_t + delta_bias
    h_t  = exp(dt_t A) * h_{t-1} + dt_t u_t B_t
    y_t  = (C_t . h_t + D u_t) * silu(z_t)                     without z: no factor
"""

from typing import NamedTuple, Optional, Union

import torch
import torch.nn.functional as F

from . import _checks as checks
from ._ops import ops
from .causal_conv1d import causal_conv1d_fn

_SCAN, _INNER = "selective_scan", "mamba_inner"

Result = Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]


def selective_scan_fn(
    u: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: Optional[torch.Tensor] = None,
    z: Optional[torch.Tensor] = None,
    delta_bias: Optional[torch.Tensor] = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    *,
    seq_idx: Optional[torch.Tensor] = None,
    cu_seqlens: Optional[torch.Tensor] = None,
    initial_states: Optional[torch.Tensor] = None,
) -> Result:
    """Selective scan of each channel over time; differentiable in every tensor, the last states included.

    ``h_t = exp(dt_t A) h_{t-1} + dt_t u_t B_t``, ``out_t = (C_t . h_t + D u_t) silu(z_t)``,
    ``dt = softplus(delta + delta_bias)``; h starts at 0, or at ``initial_states``, where a sequence begins.

    Args:
        u: (B, D, L) float32, bfloat16 or float16; any strides. Fast for contiguous and for channel-last (a transposed
            (B, L, D)), and rows of a wider tensor.
        delta: (B, D, L), any of the three dtypes.
        A: (D, N), real.
        B, C: (B, N, L); (B, G, N, L), where G divides D and channel d uses group d // (D // G); or (D, N), the same
            for all tokens.
        D: (D,). z: (B, D, L). delta_bias: (D,).
        delta_softplus: whether dt is ``softplus(delta + delta_bias)`` or the sum itself.
        return_last_state: also return the states after the last token of each sequence.
        seq_idx: (B, L) int32. A run of equal values is one sequence, whose state never enters another. Positions with a
            negative value are padding: output 0, and they take and give no gradient.
        cu_seqlens: (S + 1,) int32 or int64, rising from 0: the same boundaries where B is 1; sequences may be empty,
            and positions past the last boundary are padding. Not together with ``seq_idx``.
        initial_states: (S, D, N). S is B without boundaries. With ``seq_idx`` the sequence numbered i begins with row
            i, and each number may occur in one run only.

    Returns:
        (B, D, L) of u's dtype, channel-last where u is; or ``(out, last_state)``, last_state (S, D, N) float32. With
        ``seq_idx``, S is the number of rows of ``initial_states``, else ``seq_idx.max() + 1``, at most B L. A sequence
        without tokens keeps its initial state, or 0.

    Raises:
        ValueError: a shape, a value or a combination of arguments is wrong.
        TypeError: an argument has the wrong type, dtype or device.
        NotImplementedError: A, B or C is complex.

    Arithmetic and states are float32. Source: Gu and Dao, Mamba (2023); the semantics of mamba_ssm, which takes neither
    boundaries nor initial states.
    """
    call = _checked_scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    checks.require_bool(_SCAN, "return_last_state", return_last_state)
    seq_idx, count = _sequences(_SCAN, u, seq_idx, cu_seqlens)
    if initial_states is not None:
        initial_states = _checked_states(initial_states, u, A, count)
        count = initial_states.shape[0]
    if seq_idx is not None and cu_seqlens is None and (return_last_state or initial_states is not None):
        checks.require_one_run_each(_SCAN, seq_idx, {"initial_states": initial_states})
        if count is None:
            count = checks.rows_numbered_by(_SCAN, seq_idx)
    tensors = (*call[:8], seq_idx, initial_states)
    wants_gradient = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    out, last_state, _ = ops.selective_scan_fwd(
        *tensors, delta_softplus, count if return_last_state else -1, wants_gradient
    )
    return (out, last_state) if return_last_state else out


def mamba_inner_fn(
    xz: torch.Tensor,
    conv1d_weight: torch.Tensor,
    conv1d_bias: Optional[torch.Tensor],
    x_proj_weight: torch.Tensor,
    delta_proj_weight: torch.Tensor,
    out_proj_weight: torch.Tensor,
    out_proj_bias: Optional[torch.Tensor],
    A: torch.Tensor,
    B: Optional[torch.Tensor] = None,
    C: Optional[torch.Tensor] = None,
    D: Optional[torch.Tensor] = None,
    delta_bias: Optional[torch.Tensor] = None,
    B_proj_bias: Optional[torch.Tensor] = None,
    C_proj_bias: Optional[torch.Tensor] = None,
    delta_softplus: bool = True,
    checkpoint_lvl: int = 1,
    b_rms_weight: Optional[torch.Tensor] = None,
    c_rms_weight: Optional[torch.Tensor] = None,
    dt_rms_weight: Optional[torch.Tensor] = None,
    b_c_dt_rms_eps: float = 1e-6,
    *,
    seq_idx: Optional[torch.Tensor] = None,
    cu_seqlens: Optional[torch.Tensor] = None,
    norm_dt_rank: bool = False,
) -> torch.Tensor:
    """What a Mamba 1 mixer does between its first projection and its result; differentiable in every tensor.

    ``x, z = xz``, ``x = silu(conv(x))``, ``dt, B, C = x_proj(x)``, ``out_proj(selective_scan(x, delta_proj(dt), A, B,
    C, D, z, delta_bias))``

    Args:
        xz: (B, 2 D, L): input and gate.
        conv1d_weight: (D, 1, W) or (D, W), W from 2 to 4. conv1d_bias: (D,) or None.
        x_proj_weight: (R + 2 N, D); without N for each of B and C that is given.
        delta_proj_weight: (D, R). out_proj_weight: (M, D). out_proj_bias: (M,) or None.
        A, D, delta_bias, delta_softplus: as in ``selective_scan_fn``.
        B, C: None to take them from the input, or as in ``selective_scan_fn``.
        B_proj_bias, C_proj_bias: (N,), added to B and C of the input.
        checkpoint_lvl: 0 or 1, accepted for mamba_ssm's sake: convolution and dt are kept for the backward, which costs
            memory and no time.
        b_rms_weight, c_rms_weight, dt_rms_weight: (N,), (N,), (D,): root mean square norms of B and C of the input, and
            of delta, with ``b_c_dt_rms_eps``.
        seq_idx, cu_seqlens: boundaries of packed sequences, as in ``selective_scan_fn``; for convolution and scan.
        norm_dt_rank: ``dt_rms_weight`` is (R,) and norms dt before ``delta_proj``, as transformers' torch code does.

    Returns:
        (B, L, M).

    Raises:
        As ``selective_scan_fn`` and ``causal_conv1d_fn``; ValueError for a projection of another width, TypeError for
        one of another dtype (but under autocast).
    """
    checks.require_floating(_INNER, "xz", xz)
    checks.require_dim(_INNER, "xz", xz, 3)
    if xz.shape[1] % 2 != 0:
        raise ValueError(f"{_INNER}: xz must have an even number of channels, got {xz.shape[1]}")
    if checkpoint_lvl not in (0, 1):
        raise ValueError(f"{_INNER}: checkpoint_lvl must be 0 or 1, got {checkpoint_lvl!r}")
    checks.require_number(_INNER, "b_c_dt_rms_eps", b_c_dt_rms_eps)
    checks.require_bool(_INNER, "norm_dt_rank", norm_dt_rank)
    _check_weights(xz, conv1d_weight, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A)
    seq_idx, _ = _sequences(_INNER, xz, seq_idx, cu_seqlens)
    x, z = xz.chunk(2, dim=1)
    weight = conv1d_weight.squeeze(1) if conv1d_weight.dim() == 3 else conv1d_weight
    x = causal_conv1d_fn(x, weight, conv1d_bias, seq_idx, activation="silu")

    rank, states = delta_proj_weight.shape[1], A.shape[1]
    width = rank if norm_dt_rank else delta_proj_weight.shape[0]
    for name, norm, size in (
        ("b_rms_weight", b_rms_weight, states),
        ("c_rms_weight", c_rms_weight, states),
        ("dt_rms_weight", dt_rms_weight, width),
    ):
        if norm is not None:
            checks.require_shape(_INNER, name, norm, xz, "xz", (size,))
    widths = [rank, *(states for given in (B, C) if given is None)]
    if x_proj_weight.shape[0] != sum(widths):
        raise ValueError(
            f"{_INNER}: x_proj_weight must have size {sum(widths)} in dimension 0, got {x_proj_weight.shape[0]}"
        )
    dt, *projected = F.linear(x.transpose(1, 2), x_proj_weight).split(widths, dim=-1)
    delta = F.linear(_rms_norm(dt, dt_rms_weight if norm_dt_rank else None, b_c_dt_rms_eps), delta_proj_weight)
    delta = _rms_norm(delta, None if norm_dt_rank else dt_rms_weight, b_c_dt_rms_eps).transpose(1, 2)
    matrices = []
    for name, given, bias, norm in (("B", B, B_proj_bias, b_rms_weight), ("C", C, C_proj_bias, c_rms_weight)):
        if given is None:
            row = projected.pop(0)
            if bias is not None:
                checks.require_shape(_INNER, f"{name}_proj_bias", bias, xz, "xz", (states,))
                row = row + bias.to(row.dtype)
            given = _rms_norm(row, norm, b_c_dt_rms_eps).transpose(1, 2)
        elif bias is not None or norm is not None:
            raise ValueError(f"{_INNER}: bias and norm of {name} must be None where {name} is given, got a tensor")
        matrices.append(given)
    y = selective_scan_fn(x, delta, A, *matrices, D, z, delta_bias, delta_softplus, seq_idx=seq_idx)
    bias = out_proj_bias if out_proj_bias is None else out_proj_bias.to(out_proj_weight.dtype)
    return F.linear(y.transpose(1, 2), out_proj_weight, bias)


def _check_weights(xz, conv1d_weight, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A) -> None:
    """What projects and convolves in ``mamba_inner_fn``; the convolution and the scan check the rest of theirs."""
    channels = xz.shape[1] // 2
    checks.require_tensor(_INNER, "conv1d_weight", conv1d_weight)
    checks.require_real(_INNER, A=A)
    checks.require_dim(_INNER, "A", A, 2)
    for name, weight, shape in (
        ("x_proj_weight", x_proj_weight, (None, channels)),
        ("delta_proj_weight", delta_proj_weight, (channels, None)),
        ("out_proj_weight", out_proj_weight, (None, channels)),
    ):
        checks.require_projection(_INNER, name, weight, "xz", xz, shape)
    if out_proj_bias is not None:
        checks.require_shape(_INNER, "out_proj_bias", out_proj_bias, xz, "xz", out_proj_weight.shape[:1])


class _Scan(NamedTuple):
    """The tensors of the ops, checked, the small ones float32, in their order."""

    u: torch.Tensor
    delta: torch.Tensor
    A: torch.Tensor
    B: torch.Tensor
    C: torch.Tensor
    D: Optional[torch.Tensor]
    z: Optional[torch.Tensor]
    delta_bias: Optional[torch.Tensor]


def _checked_scan(u, delta, A, B, C, D, z, delta_bias, softplus) -> _Scan:
    checks.require_floating(_SCAN, "u", u)
    checks.require_dim(_SCAN, "u", u, 3)
    checks.require_bool(_SCAN, "delta_softplus", softplus)
    batch, channels, seqlen = u.shape
    checks.require_real(_SCAN, A=A, B=B, C=C)
    checks.require_shape(_SCAN, "delta", delta, u, "u", u.shape)
    checks.require_dim(_SCAN, "A", A, 2)
    states = A.shape[1]
    if states == 0:
        raise ValueError(f"{_SCAN}: A must have at least 1 state, got 0")
    checks.require_shape(_SCAN, "A", A, u, "u", (channels, states))
    grouped = {}
    for name, matrix in (("B", B), ("C", C)):
        checks.require_floating(_SCAN, name, matrix)
        if matrix.dim() == 2:
            checks.require_shape(_SCAN, name, matrix, u, "u", (channels, states))
        elif matrix.dim() == 3:
            checks.require_shape(_SCAN, name, matrix, u, "u", (batch, states, seqlen))
            matrix = matrix.unsqueeze(1)
        else:
            checks.require_dim(_SCAN, name, matrix, 4)
            groups = matrix.shape[1]
            if groups == 0 or channels % groups != 0:
                raise ValueError(f"{_SCAN}: groups of {name} must divide the channels ({channels}), got {groups}")
            checks.require_shape(_SCAN, name, matrix, u, "u", (batch, groups, states, seqlen))
        grouped[name] = checks.as_float32(matrix)
    if all(m.dim() == 4 for m in grouped.values()) and grouped["B"].shape[1] != grouped["C"].shape[1]:
        raise ValueError(f"{_SCAN}: C must have the groups of B ({grouped['B'].shape[1]}), got {grouped['C'].shape[1]}")
    if D is not None:
        checks.require_shape(_SCAN, "D", D, u, "u", (channels,))
    if z is not None:
        checks.require_shape(_SCAN, "z", z, u, "u", u.shape)
    if delta_bias is not None:
        checks.require_shape(_SCAN, "delta_bias", delta_bias, u, "u", (channels,))
    D, delta_bias = (t if t is None else checks.as_float32(t) for t in (D, delta_bias))
    return _Scan(u, delta, checks.as_float32(A), grouped["B"], grouped["C"], D, z, delta_bias)


def _sequences(
    op: str, u: torch.Tensor, seq_idx: Optional[torch.Tensor], cu_seqlens: Optional[torch.Tensor]
) -> tuple[Optional[torch.Tensor], Optional[int]]:
    """Boundaries as seq_idx (B, L), None without any; and the number of sequences, None if only values tell it."""
    name = "xz" if op == _INNER else "u"
    batch, _, seqlen = u.shape
    if cu_seqlens is not None:
        if seq_idx is not None:
            raise ValueError(f"{op}: seq_idx must be None where cu_seqlens is given, got a tensor")
        checks.require_boundaries(op, cu_seqlens, name, u, batch, seqlen)
        if cu_seqlens.shape[0] == 1:
            return torch.full((1, seqlen), -1, dtype=torch.int32, device=u.device), 0
        tokens = torch.arange(seqlen, device=u.device, dtype=cu_seqlens.dtype)
        number = torch.bucketize(tokens, cu_seqlens[1:].contiguous(), right=True, out_int32=True)
        number = torch.where(tokens < cu_seqlens[-1], number, -1)
        return number.to(torch.int32).view(1, seqlen), cu_seqlens.shape[0] - 1
    if seq_idx is None:
        return None, batch
    checks.require_tensor(op, "seq_idx", seq_idx)
    if seq_idx.dtype != torch.int32:
        raise TypeError(f"{op}: seq_idx must be int32, got {checks.name_of(seq_idx.dtype)}")
    checks.require_device(op, "seq_idx", seq_idx, name, u)
    if seq_idx.shape != (batch, seqlen):
        raise ValueError(f"{op}: seq_idx must have shape {(batch, seqlen)}, got {tuple(seq_idx.shape)}")
    return seq_idx.contiguous(), None


def _checked_states(states: torch.Tensor, u: torch.Tensor, A: torch.Tensor, count: Optional[int]) -> torch.Tensor:
    checks.require_floating(_SCAN, "initial_states", states)
    checks.require_device(_SCAN, "initial_states", states, "u", u)
    wanted = ("sequences" if count is None else count, u.shape[1], A.shape[1])
    if states.dim() != 3 or tuple(states.shape[1:]) != wanted[1:] or count not in (None, states.shape[0]):
        shape = ", ".join(str(size) for size in wanted)
        raise ValueError(f"{_SCAN}: initial_states must have shape ({shape}), got {tuple(states.shape)}")
    return checks.as_float32(states)


def _rms_norm(x: torch.Tensor, weight: Optional[torch.Tensor], eps: float) -> torch.Tensor:
    """``weight * x / sqrt(mean(x^2) + eps)`` over the last dimension, in float32; x itself without a weight."""
    if weight is None:
        return x
    wide = x.float()
    normalized = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (weight.float() * normalized).to(x.dtype)
