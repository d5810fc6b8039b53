"""State-space scans of Mamba 2 (state space duality), padding-free: public functions, argument checks and defaults.

Both compute, token by token of each sequence and head, with the state S of shape (P, N)::

    dt_t = clamp(softplus(dt_t + dt_bias), *dt_limit)
    S   <- exp(A dt_t) S + dt_t x_t B_t^T
    y_t  = S C_t + D x_t                              times silu(z_t)

64 tokens at a time, differentiable in every tensor.
"""

from typing import Optional, Union

import torch
import torch.nn.functional as F

from . import _checks as checks
from ._ops import ops
from .causal_conv1d import causal_conv1d_fn

MAX_HEAD_DIM = 256
MAX_STATE_DIM = 256

Outputs = Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def mamba_chunk_scan_combined(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    chunk_size: int,
    D: Optional[torch.Tensor] = None,
    z: Optional[torch.Tensor] = None,
    dt_bias: Optional[torch.Tensor] = None,
    initial_states: Optional[torch.Tensor] = None,
    seq_idx: Optional[torch.Tensor] = None,
    cu_seqlens: Optional[torch.Tensor] = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    return_varlen_states: bool = False,
) -> Outputs:
    """The scan of Mamba 2, chunk by chunk; differentiable in every floating argument.

    ``S_t = exp(A dt_t) S_{t-1} + dt_t x_t B_t^T``, ``y_t = (S_t C_t + D x_t) * silu(z_t)``, with
    ``dt_t = clamp(softplus(dt_t + dt_bias), *dt_limit)``; head h uses B and C of group ``h // (H // G)``.

    Args:
        x: (B, L, H, P) float32, bfloat16 or float16, P up to 256. Slices of a wider projection are read where they lie.
        dt: (B, L, H), any of the three dtypes; used as float32, as are A, D, dt_bias and the states.
        A: (H), below 0 for a decay. A decay below ``exp(-1e4)`` counts as 0, which it is.
        B, C: (B, L, G, N) of x's dtype, G divides H, N up to 256.
        chunk_size: a positive number; the kernel chooses its own, and no result depends on it.
        D: (H) or (H, P), what of x goes to y directly.
        z: as x, the gate.
        dt_bias: (H).
        initial_states: (B, H, P, N): what the first sequence of each row continues. With ``cu_seqlens``
            (len(cu_seqlens) - 1, H, P, N): what each sequence continues.
        seq_idx: (B, L) int32. A run of equal values is one sequence, and starts from nothing (the first of a row from
            ``initial_states``). Positions with a negative value are padding: output 0, no gradient, no effect.
        cu_seqlens: (S + 1) int32 or int64, rising from 0: boundaries of packed sequences, B is 1. Rows past the last
            boundary get 0. Not together with ``seq_idx``, unless both say the same.
        dt_softplus: whether softplus is applied to dt.
        dt_limit: bounds of dt after that. Where it is clamped, dt takes no gradient.
        return_final_states: also return the states after the last sequence of each row.
        return_varlen_states: also return the states after each sequence of ``cu_seqlens``.

    Returns:
        y, (B, L, H, P) of x's dtype; with one of the two last arguments ``(y, states)``, with both
        ``(y, final_states, varlen_states)``: float32, (B, H, P, N) and (S, H, P, N).

    Raises:
        ValueError: a shape, a value or a combination of arguments is wrong. TypeError: a dtype, device or type is.
        NotImplementedError: P or N is over 256.

    Within one chunk of 64 tokens a NaN may reach earlier tokens of its own sequence, never those of another. Source:
    Dao and Gu, Transformers are SSMs (2024); the semantics of mamba_ssm, where ``cu_seqlens`` only says which states to
    return, ``initial_states`` has one row whatever is packed, and states per sequence are not differentiable.
    """
    op = "mamba_chunk_scan_combined"
    _check_inputs(op, x, dt, A, B, C)
    _check_options(op, chunk_size, dt_softplus, dt_limit, return_final_states, return_varlen_states)
    _check_optional(op, x, D, z, dt_bias)
    seq_idx, cu_seqlens = _boundaries(op, x, seq_idx, cu_seqlens)
    if return_varlen_states and cu_seqlens is None:
        raise ValueError(f"{op}: cu_seqlens must be given where return_varlen_states is True, got None")
    if initial_states is not None:
        rows = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        checks.require_shape(op, "initial_states", initial_states, x, "x", (rows, *x.shape[2:], B.shape[3]))
    wide = [None if t is None else t.float() for t in (dt, A, D, dt_bias, initial_states)]
    inputs = (x, wide[0], wide[1], B, C, wide[2], z, wide[3], wide[4])
    saves = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    wants_states = return_final_states or return_varlen_states
    limits = float(dt_limit[0]), float(dt_limit[1])
    out, states, _ = ops.state_space_fwd(*inputs, seq_idx, cu_seqlens, dt_softplus, *limits, wants_states, saves)
    if not return_varlen_states:
        return (out, _row_states(x, states, cu_seqlens)) if return_final_states else out
    return (out, _row_states(x, states, cu_seqlens), states) if return_final_states else (out, states)


def mamba_split_conv1d_scan_combined(
    zxbcdt: torch.Tensor,
    conv1d_weight: torch.Tensor,
    conv1d_bias: Optional[torch.Tensor],
    dt_bias: torch.Tensor,
    A: torch.Tensor,
    D: torch.Tensor,
    chunk_size: int,
    initial_states: Optional[torch.Tensor] = None,
    seq_idx: Optional[torch.Tensor] = None,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    activation: Optional[str] = "silu",
    rmsnorm_weight: Optional[torch.Tensor] = None,
    rmsnorm_eps: float = 1e-6,
    outproj_weight: Optional[torch.Tensor] = None,
    outproj_bias: Optional[torch.Tensor] = None,
    headdim: Optional[int] = None,
    ngroups: int = 1,
    norm_before_gate: bool = True,
) -> Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """A whole Mamba 2 mixer after its input projection: convolution, scan, gate, norm, output projection.

    ``z, xBC, dt = split(zxbcdt)``, ``x, B, C = split(conv(xBC))``, ``y = scan(x, softplus(dt + dt_bias), A, B, C, D)``,
    then ``y * silu(z)`` without ``rmsnorm_weight``; with it ``norm(y * silu(z))``, or ``norm(y) * silu(z)`` if
    ``norm_before_gate``; then the projection, if there is one.

    Args:
        zxbcdt: (B, L, 2 * M + 2 * H * P + 2 * G * N + H), M 0 but for a gated MLP beside the scan (refused here).
        conv1d_weight: (H * P + 2 * G * N, W), conv1d_bias the same without W or None; see ``causal_conv1d_fn``.
        dt_bias, A: (H). D: (H) or (H, P). initial_states: (B, H, P, N). See ``mamba_chunk_scan_combined``, and there
            for chunk_size, seq_idx, dt_limit and return_final_states. dt always passes softplus.
        activation: of the convolution, None, "silu" or "swish".
        rmsnorm_weight: (H * P). The mean square is taken over each of the G groups of channels.
        outproj_weight: (O, H * P); outproj_bias: (O).
        headdim: P; needed where D is (H).
        ngroups: G.

    Returns:
        (B, L, O), or (B, L, H * P) without a projection, of zxbcdt's dtype; ``(out, final_states)`` where asked for.

    Raises:
        As ``mamba_chunk_scan_combined`` and ``causal_conv1d_fn``; NotImplementedError for M over 0.

    Source: the semantics of mamba_ssm.
    """
    op = "mamba_split_conv1d_scan_combined"
    checks.require_floating(op, "zxbcdt", zxbcdt)
    checks.require_dim(op, "zxbcdt", zxbcdt, 3)
    heads, headdim = _heads_of(op, D, headdim)
    dim = heads * headdim
    channels = _channels_of(op, zxbcdt, conv1d_weight, heads, dim, ngroups)
    if rmsnorm_weight is not None:
        checks.require_shape(op, "rmsnorm_weight", rmsnorm_weight, zxbcdt, "zxbcdt", (dim,))
        checks.require_number(op, "rmsnorm_eps", rmsnorm_eps)
    _check_projection(op, zxbcdt, outproj_weight, outproj_bias, dim)
    checks.require_bool(op, "norm_before_gate", norm_before_gate)
    checks.require_bool(op, "return_final_states", return_final_states)

    z, xbc, dt = zxbcdt.split([dim, channels, heads], dim=-1)
    xbc = causal_conv1d_fn(xbc.transpose(1, 2), conv1d_weight, conv1d_bias, seq_idx, activation=activation)
    width = (channels - dim) // 2
    x, B, C = xbc.transpose(1, 2).split([dim, width, width], dim=-1)
    result = mamba_chunk_scan_combined(
        x.unflatten(-1, (heads, headdim)),
        dt,
        A,
        B.unflatten(-1, (ngroups, width // ngroups)),
        C.unflatten(-1, (ngroups, width // ngroups)),
        chunk_size,
        D=D,
        z=z.unflatten(-1, (heads, headdim)) if rmsnorm_weight is None else None,
        dt_bias=dt_bias,
        initial_states=initial_states,
        seq_idx=seq_idx,
        dt_softplus=True,
        dt_limit=dt_limit,
        return_final_states=return_final_states,
    )
    out = (result[0] if return_final_states else result).flatten(-2)
    if rmsnorm_weight is not None:
        out = _gated_norm(out, z, rmsnorm_weight, rmsnorm_eps, ngroups, norm_before_gate)
    if outproj_weight is not None:
        bias = None if outproj_bias is None else outproj_bias.to(outproj_weight.dtype)
        out = F.linear(out, outproj_weight, bias)
    return (out, result[1]) if return_final_states else out


def _row_states(x: torch.Tensor, states: torch.Tensor, cu_seqlens: Optional[torch.Tensor]) -> torch.Tensor:
    """The states after the last sequence of each row, out of those after every sequence."""
    if cu_seqlens is None:
        return states
    return states[-1:] if states.shape[0] else states.new_zeros((1, *states.shape[1:]))


def _check_inputs(
    op: str, x: torch.Tensor, dt: torch.Tensor, A: torch.Tensor, B: torch.Tensor, C: torch.Tensor
) -> None:
    checks.require_floating(op, "x", x)
    checks.require_kernel(op, "x", x, "state_space_fwd")
    checks.require_dim(op, "x", x, 4)
    for name, tensor in (("B", B), ("C", C)):
        checks.require_like(op, name, tensor, "x", x)
    checks.require_dim(op, "B", B, 4)
    if B.shape[:2] != x.shape[:2]:
        raise ValueError(f"{op}: B must have the batch and rows of x {tuple(x.shape[:2])}, got {tuple(B.shape[:2])}")
    if C.shape != B.shape:
        raise ValueError(f"{op}: C must have the shape of B {tuple(B.shape)}, got {tuple(C.shape)}")
    if x.shape[2] == 0:
        raise ValueError(f"{op}: heads of x must be at least 1, got 0")
    if B.shape[2] == 0 or x.shape[2] % B.shape[2] != 0:
        raise ValueError(f"{op}: groups of B must divide heads of x ({x.shape[2]}), got {B.shape[2]}")
    for what, size, most in (("headdim of x", x.shape[3], MAX_HEAD_DIM), ("dstate of B", B.shape[3], MAX_STATE_DIM)):
        if size == 0:
            raise ValueError(f"{op}: {what} must be at least 1, got 0")
        if size > most:
            raise NotImplementedError(f"{op}: {what} must be at most {most} on {x.device.type}, got {size}")
    checks.require_shape(op, "dt", dt, x, "x", x.shape[:3])
    checks.require_shape(op, "A", A, x, "x", x.shape[2:3])


def _check_optional(
    op: str, x: torch.Tensor, D: Optional[torch.Tensor], z: Optional[torch.Tensor], dt_bias: Optional[torch.Tensor]
) -> None:
    heads, headdim = x.shape[2:]
    if D is not None:
        checks.require_floating(op, "D", D)
        checks.require_device(op, "D", D, "x", x)
        if tuple(D.shape) not in ((heads,), (heads, headdim)):
            raise ValueError(f"{op}: D must have shape ({heads},) or ({heads}, {headdim}), got {tuple(D.shape)}")
    if z is not None:
        checks.require_like(op, "z", z, "x", x)
        if z.shape != x.shape:
            raise ValueError(f"{op}: z must have the shape of x {tuple(x.shape)}, got {tuple(z.shape)}")
    if dt_bias is not None:
        checks.require_shape(op, "dt_bias", dt_bias, x, "x", (heads,))


def _check_options(
    op: str, chunk_size: int, dt_softplus: bool, dt_limit: tuple, return_final_states: bool, return_varlen_states: bool
) -> None:
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1:
        raise ValueError(f"{op}: chunk_size must be a positive integer, got {chunk_size!r}")
    checks.require_bool(op, "dt_softplus", dt_softplus)
    checks.require_bool(op, "return_final_states", return_final_states)
    checks.require_bool(op, "return_varlen_states", return_varlen_states)
    try:
        least, most = (float(limit) for limit in dt_limit)
    except (TypeError, ValueError):
        raise TypeError(f"{op}: dt_limit must be two numbers, got {dt_limit!r}") from None
    if not least <= most:
        raise ValueError(f"{op}: dt_limit must be two rising numbers, got {dt_limit!r}")


def _boundaries(
    op: str, x: torch.Tensor, seq_idx: Optional[torch.Tensor], cu_seqlens: Optional[torch.Tensor]
) -> tuple[Optional[torch.Tensor], Optional[torch.Tensor]]:
    """Both checked, and at most one of them: what the kernel cuts sequences by."""
    if seq_idx is not None:
        checks.require_tensor(op, "seq_idx", seq_idx)
        if seq_idx.dtype != torch.int32:
            raise TypeError(f"{op}: seq_idx must be int32, got {checks.name_of(seq_idx.dtype)}")
        checks.require_device(op, "seq_idx", seq_idx, "x", x)
        if seq_idx.shape != x.shape[:2]:
            wanted = tuple(x.shape[:2])
            raise ValueError(f"{op}: seq_idx must have shape {wanted} (batch, seqlen), got {tuple(seq_idx.shape)}")
    if cu_seqlens is None:
        return None if seq_idx is None else seq_idx.contiguous(), None
    checks.require_boundaries(op, cu_seqlens, "x", x, *x.shape[:2])
    ends = checks.values_of(cu_seqlens)
    if ends is not None and seq_idx is not None and _runs(seq_idx) != [b for b in zip(ends, ends[1:]) if b[0] < b[1]]:
        raise ValueError(f"{op}: seq_idx must change where cu_seqlens says, got other boundaries")
    return None, checks.as_int32(cu_seqlens)


def _runs(seq_idx: torch.Tensor) -> list:
    """(begin, end) of each run of equal, not negative values of one row."""
    row = seq_idx[0]
    if row.numel() == 0:
        return []
    _, lengths = torch.unique_consecutive(row, return_counts=True)
    ends = [0, *lengths.cumsum(0).tolist()]
    return [(begin, end) for begin, end in zip(ends, ends[1:]) if row[begin] >= 0]


def _heads_of(op: str, D: torch.Tensor, headdim: Optional[int]) -> tuple[int, int]:
    checks.require_floating(op, "D", D)
    if D.dim() == 1:
        if isinstance(headdim, bool) or not isinstance(headdim, int) or headdim < 1:
            raise ValueError(f"{op}: headdim must be a positive integer where D has 1 dimension, got {headdim!r}")
        return D.shape[0], headdim
    checks.require_dim(op, "D", D, 2)
    if headdim is not None and (type(headdim) is not int or headdim != D.shape[1]):
        raise ValueError(f"{op}: headdim must be that of D ({D.shape[1]}), got {headdim!r}")
    return D.shape[0], D.shape[1]


def _channels_of(op: str, zxbcdt: torch.Tensor, conv1d_weight: torch.Tensor, heads: int, dim: int, ngroups: int) -> int:
    """Channels of the convolution: those of x, B and C."""
    if isinstance(ngroups, bool) or not isinstance(ngroups, int) or ngroups < 1 or heads % ngroups != 0:
        raise ValueError(f"{op}: ngroups must divide the heads of D ({heads}), got {ngroups!r}")
    checks.require_tensor(op, "conv1d_weight", conv1d_weight)
    checks.require_dim(op, "conv1d_weight", conv1d_weight, 2)
    channels = conv1d_weight.shape[0]
    if channels <= dim or (channels - dim) % (2 * ngroups) != 0:
        raise ValueError(
            f"{op}: conv1d_weight must have {dim} channels and {2 * ngroups} times dstate more, got {channels}"
        )
    wanted = dim + channels + heads
    if zxbcdt.shape[2] > wanted and (zxbcdt.shape[2] - wanted) % 2 == 0:
        raise NotImplementedError(
            f"{op}: zxbcdt must hold no gated MLP beside the scan ({wanted} channels), got {zxbcdt.shape[2]}"
        )
    checks.require_size(op, "zxbcdt", zxbcdt, 2, wanted)
    return channels


def _check_projection(
    op: str, x: torch.Tensor, weight: Optional[torch.Tensor], bias: Optional[torch.Tensor], dim: int
) -> None:
    if weight is None:
        if bias is not None:
            raise ValueError(f"{op}: outproj_bias must be None where outproj_weight is None, got a tensor")
        return
    checks.require_projection(op, "outproj_weight", weight, "zxbcdt", x, (None, dim))
    if bias is not None:
        checks.require_shape(op, "outproj_bias", bias, x, "zxbcdt", weight.shape[:1])


def _gated_norm(
    x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float, ngroups: int, norm_before_gate: bool
) -> torch.Tensor:
    """Root mean square norm over each group of channels, and the gate silu(z), in float32."""
    wide, gate = x.float(), F.silu(z.float())
    if not norm_before_gate:
        wide = wide * gate
    groups = wide.unflatten(-1, (ngroups, -1))
    wide = (groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps)).flatten(-2) * weight.float()
    return (wide * gate if norm_before_gate else wide).to(x.dtype)
