"""The single-step state update of both Mambas: public function, argument checks and defaults."""

from typing import Optional

import torch

from . import _checks as checks
from ._ops import ops
from .selective_scan import selective_scan_fn

_OP = "selective_state_update"
# Looked up once: the packet resolves its overload anew at each call.
_update = ops.selective_state_update.default


def selective_state_update(
    state: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: Optional[torch.Tensor] = None,
    z: Optional[torch.Tensor] = None,
    dt_bias: Optional[torch.Tensor] = None,
    dt_softplus: bool = False,
    state_batch_indices: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """The next token of running sequences, of Mamba 1 or Mamba 2: moves ``state`` on, in place.

    ``state = exp(dt A) state + dt x B``, ``out = (C . state + D x) silu(z)``, ``dt = softplus(dt + dt_bias)``

    Args:
        state: (B, D, N), or with heads (Mamba 2) (B, H, P, N); float32, bfloat16 or float16.
        x, dt, z: (B, D) or (B, H, P), any of the three dtypes.
        A: (D, N) or (H, P, N). D, dt_bias: (D,) or (H, P). Where A, dt and dt_bias are one number a head, expanded
            (with strides of 0), its decay is computed once.
        B, C: (B, N), or with heads (B, G, N), where G divides H; any of the three dtypes.
        dt_softplus: whether dt is ``softplus(dt + dt_bias)`` or the sum itself.
        state_batch_indices: (B,) int32, which row of ``state`` (then (rows, ...)) belongs to each row of x. Each row
            may appear once. -1 stands for no sequence: output 0, and no state is touched.

    Returns:
        (B, D) or (B, H, P) of x's dtype. Where a gradient is wanted the step is computed by ``selective_scan_fn``, and
        differentiable in all but the state.

    Raises:
        ValueError: a shape or an index is wrong.
        TypeError: an argument has the wrong type, dtype or device.
        NotImplementedError: A, B or C is complex; a gradient is wanted together with ``state_batch_indices``.

    Arithmetic is float32. Source: the semantics of mamba_ssm; -1 as in vLLM.
    """
    tensors = (x, dt, A, B, C, D, z, dt_bias)
    if torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors):
        _check_update(state, *tensors, dt_softplus, state_batch_indices)
        return _differentiable_update(state, *tensors, dt_softplus, state_batch_indices)
    if not torch.compiler.is_compiling():
        try:
            return _update(state, *tensors, dt_softplus, state_batch_indices)
        except (RuntimeError, TypeError):
            pass  # it checks before it writes; what follows finds the words, or what the op takes instead
    _check_update(state, *tensors, dt_softplus, state_batch_indices)
    moved = state if state.stride(-1) == 1 or state.shape[-1] <= 1 else state.contiguous()
    indices = None if state_batch_indices is None else state_batch_indices.contiguous()
    out = _update(moved, x, dt, checks.as_float32(A), B, C, D, z, dt_bias, dt_softplus, indices)
    if moved is not state:
        state.copy_(moved)
    return out


def _check_update(state, x, dt, A, B, C, D, z, dt_bias, softplus, indices) -> None:
    op = _OP
    checks.require_floating(op, "x", x)
    if x.dim() not in (2, 3):
        raise ValueError(f"{op}: x must have shape (batch, dim) or (batch, heads, head_dim), got {tuple(x.shape)}")
    checks.require_floating(op, "state", state)
    checks.require_device(op, "state", state, "x", x)
    rows = x.shape[0] if indices is None else "rows"
    if state.dim() != x.dim() + 1 or state.shape[1:-1] != x.shape[1:] or rows not in ("rows", state.shape[0]):
        shape = ", ".join(str(size) for size in (rows, *x.shape[1:], "states"))
        raise ValueError(f"{op}: state must have shape ({shape}), got {tuple(state.shape)}")
    checks.require_distinct_elements(op, "state", state)
    states = state.shape[-1]
    if states == 0:
        raise ValueError(f"{op}: state must hold at least 1 state, got 0")
    checks.require_real(op, A=A, B=B, C=C)
    checks.require_shape(op, "dt", dt, x, "x", x.shape)
    checks.require_shape(op, "A", A, x, "x", (*x.shape[1:], states))
    groups = ()
    if x.dim() == 3:
        checks.require_dim(op, "B", B, 3)
        groups = (B.shape[1],)
        if groups[0] == 0 or x.shape[1] % groups[0] != 0:
            raise ValueError(f"{op}: groups of B must divide the heads ({x.shape[1]}), got {groups[0]}")
    for name, matrix in (("B", B), ("C", C)):
        checks.require_shape(op, name, matrix, x, "x", (x.shape[0], *groups, states))
    for name, vector in (("D", D), ("dt_bias", dt_bias)):
        if vector is not None:
            checks.require_shape(op, name, vector, x, "x", x.shape[1:])
    if z is not None:
        checks.require_shape(op, "z", z, x, "x", x.shape)
    checks.require_bool(op, "dt_softplus", softplus)
    if indices is not None:
        _check_state_indices(indices, x, state.shape[0])


def _check_state_indices(indices: torch.Tensor, x: torch.Tensor, states: int) -> None:
    name = "state_batch_indices"
    checks.require_tensor(_OP, name, indices)
    if indices.dtype != torch.int32:
        raise TypeError(f"{_OP}: {name} must be int32, got {checks.name_of(indices.dtype)}")
    checks.require_device(_OP, name, indices, "x", x)
    if indices.shape != x.shape[:1]:
        raise ValueError(f"{_OP}: {name} must have shape ({x.shape[0]},), got {tuple(indices.shape)}")
    checks.require_distinct_rows(_OP, name, indices, states)


def _differentiable_update(state, x, dt, A, B, C, D, z, dt_bias, softplus, indices) -> torch.Tensor:
    """The step as a scan over one token: all heads side by side as channels."""
    if indices is not None:
        raise NotImplementedError(f"{_OP}: state_batch_indices must be None where a gradient is wanted, got a tensor")
    heads = 1 if x.dim() == 3 else 0

    def column(t):
        return None if t is None else t.flatten(1)[..., None]

    def flat(t):
        return None if t is None else t.flatten(0, heads)

    out, moved = selective_scan_fn(
        column(x), column(dt), flat(A), B[..., None], C[..., None], flat(D), column(z), flat(dt_bias), softplus, True,
        initial_states=state.detach().flatten(1, 1 + heads).clone(),
    )  # fmt: skip
    with torch.no_grad():
        state.copy_(moved.view(state.shape))
    return out.view(x.shape)
