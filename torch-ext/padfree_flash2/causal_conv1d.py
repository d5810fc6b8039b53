"""Causal depthwise convolution over time, padding-free: public functions, argument checks and defaults."""

from typing import Optional, Union

import torch

from ._checks import (
    name_of,
    require_bool,
    require_device,
    require_dim,
    require_distinct_elements,
    require_distinct_rows,
    require_floating,
    require_integers,
    require_kernel,
    require_like,
    require_one_run_each,
    require_tensor,
    rows_numbered_by,
    values_of,
)
from ._ops import ops

_OP = "causal_conv1d"
_MIN_WIDTH, _MAX_WIDTH = 2, 4
# Looked up once: the packet resolves its overload anew at each call.
_update = ops.causal_conv1d_update.default
_SILU_OF_ACTIVATION = {None: False, "silu": True, "swish": True}


def causal_conv1d_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor] = None,
    seq_idx: Optional[torch.Tensor] = None,
    initial_states: Optional[torch.Tensor] = None,
    return_final_states: bool = False,
    final_states_out: Optional[torch.Tensor] = None,
    activation: Optional[str] = None,
    *,
    out: Optional[torch.Tensor] = None,
) -> Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Causal depthwise convolution of each channel over time, then optionally silu; differentiable.

    ``out[b, d, l] = act(bias[d] + sum_k weight[d, k] * x[b, d, l - (W - 1) + k])``, where a tap that falls before the
    first position of its sequence reads ``initial_states``, or 0 without them.

    Args:
        x: (B, D, L) float32, bfloat16 or float16; any strides. Fast for contiguous and for channel-last (a transposed
            (B, L, D)), and rows of a wider tensor.
        weight: (D, W), W from 2 to 4; dtype any of the three, also another than x's. Arithmetic is float32.
        bias: (D,), dtype any of the three.
        seq_idx: (B, L) int32. A run of equal values is one sequence, and no tap crosses into another. Positions with a
            negative value are padding: output 0, and they take and give no gradient.
        initial_states: (N, D, W - 1), dtype of x: what lies before each sequence, oldest first. Without ``seq_idx``
            N is B; with it, the sequence numbered i begins with row i, and each number may occur in one run only.
        return_final_states: also return the last W - 1 inputs of each sequence, in the shape of ``initial_states``
            (shorter sequences keep the end of their initial state, or zeros). With ``seq_idx``, N is the number of
            rows of ``final_states_out`` or ``initial_states``, else ``seq_idx.max() + 1``, at most B L; a number
            without positions gets its initial state.
        final_states_out: where to write the final states, any strides; returned in place of a new tensor.
        activation: None, "silu" or "swish" (the same).
        out: where to write the output instead of a new tensor, (B, D, L) with the dtype of x and stride 1 in one of
            the last two dimensions; inference only.

    Returns:
        (B, D, L) of x's dtype, channel-last where x is; or ``(out, final_states)`` if ``return_final_states``.

    Raises:
        ValueError: a shape, an activation or a combination of arguments is wrong.
        TypeError: an argument has the wrong type, dtype or device.
        NotImplementedError: W is outside 2 to 4.

    Source: the semantics of Dao-AILab/causal-conv1d, which takes neither states together with ``seq_idx`` nor
    float16/float32 mixes.
    """
    silu = _check(x, weight, bias, activation)
    if seq_idx is not None:
        seq_idx = _check_seq_idx(x, seq_idx)
    if initial_states is not None:
        _check_states("initial_states", initial_states, x, weight.shape[1], None if seq_idx is not None else x.shape[0])
    require_bool(_OP, "return_final_states", return_final_states)
    if final_states_out is not None and not return_final_states:
        raise ValueError(f"{_OP}: return_final_states must be True where final_states_out is given, got False")
    if final_states_out is not None:
        rows = x.shape[0] if seq_idx is None else None
        _check_states("final_states_out", final_states_out, x, weight.shape[1], rows)
        require_distinct_elements(_OP, "final_states_out", final_states_out)
    if seq_idx is not None and (initial_states is not None or return_final_states):
        states = {"initial_states": initial_states, "final_states_out": final_states_out}
        require_one_run_each(_OP, seq_idx, states)
    if out is None:
        out = ops.causal_conv1d_fwd(x, weight, bias, seq_idx, initial_states, silu)
    else:
        _check_out(out, x, weight, bias, initial_states)
        ops.causal_conv1d_fwd_out(x, weight, bias, seq_idx, initial_states, silu, out)
    if not return_final_states:
        return out
    final_states = _final_states(x, weight.shape[1], seq_idx, initial_states, final_states_out)
    if final_states_out is None:
        return out, final_states
    return out, final_states_out.copy_(final_states)


def causal_conv1d_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor] = None,
    activation: Optional[str] = None,
    cache_seqlens: Optional[torch.Tensor] = None,
    conv_state_indices: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """The next times of running sequences: convolves behind ``conv_state`` and moves it on, in place. Inference only.

    ``out[b, d, t] = act(bias[d] + sum_k weight[d, k] * z[b, d, S + t - (W - 1) + k])`` with z = the state, then x.

    Args:
        x: (B, D) or (B, D, L) float32, bfloat16 or float16, any strides.
        conv_state: (B, D, S) of x's dtype, S at least W - 1, any strides. Afterwards it holds the last S values of z.
        weight: (D, W), W from 2 to 4; dtype any of the three.
        bias: (D,), dtype any of the three.
        activation: None, "silu" or "swish" (the same).
        cache_seqlens: (B,) int32, how many times each sequence has had. Then the state is circular: time i lies at
            ``i % S``, and x is written from ``cache_seqlens % S`` on.
        conv_state_indices: (B,) int32, which row of ``conv_state`` (then (N, D, S)) belongs to each row of x. Each row
            of the state may appear once. -1 stands for no sequence: output 0, and no state is touched.

    Returns:
        (B, D) or (B, D, L) as x.

    Raises:
        ValueError: a shape, an activation or an index is wrong.
        TypeError: an argument has the wrong type, dtype or device.
        NotImplementedError: W is outside 2 to 4.

    Source: the semantics of Dao-AILab/causal-conv1d.
    """
    try:
        silu = _SILU_OF_ACTIVATION[activation]
        return _update(x, conv_state, weight, bias, silu, cache_seqlens, conv_state_indices)
    except (RuntimeError, TypeError, KeyError, AttributeError):
        # Checked in full only when the op has refused: a step of decoding takes a few microseconds. The op checks
        # before it writes.
        _check_update(x, conv_state, weight, bias, activation, cache_seqlens, conv_state_indices)
        raise


def causal_conv1d_varlen_states(x: torch.Tensor, cu_seqlens: torch.Tensor, state_len: int) -> torch.Tensor:
    """The last ``state_len`` inputs of each packed sequence, zeros in front of shorter ones; differentiable.

    ``states[i, :, s] = x[cu_seqlens[i + 1] - state_len + s]`` where that lies in sequence i, else 0.

    Args:
        x: (T, D), any dtype.
        cu_seqlens: (N + 1,) int32 or int64, from 0 on, not decreasing, at most T.
        state_len: how many, from 1 to 2**31 - 1.

    Returns:
        (N, D, state_len) of x's dtype: a ``conv_state`` for ``causal_conv1d_update``.

    Raises:
        ValueError: a shape or ``state_len`` is wrong.
        TypeError: an argument has the wrong type, dtype or device.

    Source: the semantics of Dao-AILab/causal-conv1d.
    """
    op = "causal_conv1d_varlen_states"
    require_tensor(op, "x", x)
    require_dim(op, "x", x, 2)
    require_integers(op, "cu_seqlens", cu_seqlens, "x", x)
    if not isinstance(state_len, int) or not 1 <= state_len < 2**31:
        raise ValueError(f"{op}: state_len must be a positive integer below 2**31, got {state_len!r}")
    bounds = values_of(cu_seqlens)
    if bounds is not None and (not bounds or bounds[0] != 0 or bounds[-1] > x.shape[0] or bounds != sorted(bounds)):
        raise ValueError(f"{op}: cu_seqlens must rise from 0 to at most {x.shape[0]}, got {bounds}")
    begin, end = cu_seqlens[:-1, None].long(), cu_seqlens[1:, None].long()
    position = end - state_len + torch.arange(state_len, device=x.device)
    inside = position >= begin
    if x.shape[0] == 0:
        return x.new_zeros((begin.shape[0], x.shape[1], state_len))
    taken = x[torch.where(inside, position, 0)]
    return torch.where(inside[:, :, None], taken, torch.zeros((), dtype=x.dtype, device=x.device)).transpose(1, 2)


def _final_states(
    x: torch.Tensor,
    width: int,
    seq_idx: Optional[torch.Tensor],
    initial_states: Optional[torch.Tensor],
    final_states_out: Optional[torch.Tensor],
) -> torch.Tensor:
    """(N, D, W - 1): the last W - 1 inputs of each sequence. Plain torch operations, so autograd needs no help."""
    batch, channels, seqlen = x.shape
    if seq_idx is None:
        number = batch
    elif final_states_out is not None:
        number = final_states_out.shape[0]
    elif initial_states is not None:
        number = initial_states.shape[0]
    else:
        number = rows_numbered_by(_OP, seq_idx)
    if initial_states is None:
        initial_states = x.new_zeros((number, channels, width - 1))
    elif initial_states.shape[0] != number:
        raise ValueError(
            f"{_OP}: final_states_out must have as many rows as initial_states ({initial_states.shape[0]}), "
            f"got {number}"
        )
    if seq_idx is None:
        tail = x[:, :, max(0, seqlen - (width - 1)) :]
        return torch.cat([initial_states, tail], dim=2)[:, :, tail.shape[2] :].clone()
    return _final_states_packed(x, width, seq_idx, initial_states)


def _final_states_packed(
    x: torch.Tensor, width: int, seq_idx: torch.Tensor, initial_states: torch.Tensor
) -> torch.Tensor:
    number, seqlen = initial_states.shape[0], x.shape[2]
    # Padding counts into a row of its own, which is then dropped.
    index = torch.where(seq_idx < 0, number, seq_idx).reshape(-1).long()
    position = torch.arange(index.shape[0], device=x.device)
    length = torch.zeros(number + 1, dtype=torch.long, device=x.device).scatter_add(0, index, torch.ones_like(index))
    last = torch.zeros_like(length).scatter_reduce(0, index, position, "amax")
    length, last = length[:number, None], last[:number, None]

    slot = torch.arange(width - 1, device=x.device)
    source = last - (width - 2) + slot
    from_x = slot >= width - 1 - length
    source = torch.where(from_x, source, 0)
    kept = torch.where(from_x, 0, slot + length)[:, None, :].expand(-1, x.shape[1], -1)
    if index.shape[0] == 0:
        return initial_states.clone()
    taken = x[source // seqlen, :, source % seqlen].transpose(1, 2)
    return torch.where(from_x[:, None, :], taken, initial_states.gather(2, kept))


def _check(x: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor], activation: Optional[str]) -> bool:
    """Checks what every function takes; returns whether the activation is silu."""
    require_floating(_OP, "x", x)
    require_kernel(_OP, "x", x, "causal_conv1d_fwd")
    if x.dim() != 3:
        raise ValueError(f"{_OP}: x must have shape (batch, channels, seqlen), got {tuple(x.shape)}")
    _check_weight(_OP, weight, bias, x)
    return _check_activation(_OP, activation)


def _check_weight(op: str, weight: torch.Tensor, bias: Optional[torch.Tensor], x: torch.Tensor) -> None:
    require_floating(op, "weight", weight)
    require_device(op, "weight", weight, "x", x)
    channels = x.shape[1]
    if weight.dim() != 2 or weight.shape[0] != channels:
        raise ValueError(f"{op}: weight must have shape ({channels}, width), got {tuple(weight.shape)}")
    if not _MIN_WIDTH <= weight.shape[1] <= _MAX_WIDTH:
        raise NotImplementedError(f"{op}: weight must be {_MIN_WIDTH} to {_MAX_WIDTH} wide, got {weight.shape[1]}")
    if bias is not None:
        require_floating(op, "bias", bias)
        require_device(op, "bias", bias, "x", x)
        if bias.dim() != 1 or bias.shape[0] != channels:
            raise ValueError(f"{op}: bias must have shape ({channels},), got {tuple(bias.shape)}")


def _check_activation(op: str, activation: Optional[str]) -> bool:
    try:
        return _SILU_OF_ACTIVATION[activation]
    except (KeyError, TypeError):
        raise ValueError(f'{op}: activation must be None, "silu" or "swish", got {activation!r}') from None


def _check_seq_idx(x: torch.Tensor, seq_idx: torch.Tensor) -> torch.Tensor:
    _check_int32(_OP, "seq_idx", seq_idx, x)
    wanted = (x.shape[0], x.shape[2])
    if seq_idx.shape != wanted:
        raise ValueError(f"{_OP}: seq_idx must have shape {wanted} (batch, seqlen), got {tuple(seq_idx.shape)}")
    return seq_idx.contiguous()


def _check_int32(op: str, name: str, tensor: torch.Tensor, x: torch.Tensor) -> None:
    require_tensor(op, name, tensor)
    if tensor.dtype != torch.int32:
        raise TypeError(f"{op}: {name} must be int32, got {name_of(tensor.dtype)}")
    require_device(op, name, tensor, "x", x)


def _check_states(name: str, states: torch.Tensor, x: torch.Tensor, width: int, number: Optional[int]) -> None:
    require_like(_OP, name, states, "x", x)
    wanted = ("sequences" if number is None else number, x.shape[1], width - 1)
    if states.dim() != 3 or tuple(states.shape[1:]) != wanted[1:] or number not in (None, states.shape[0]):
        shape = ", ".join(str(size) for size in wanted)
        raise ValueError(f"{_OP}: {name} must have shape ({shape}), got {tuple(states.shape)}")


def _check_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    activation: Optional[str],
    cache_seqlens: Optional[torch.Tensor],
    conv_state_indices: Optional[torch.Tensor],
) -> None:
    op = f"{_OP}_update"
    require_floating(op, "x", x)
    require_kernel(op, "x", x, "causal_conv1d_update")
    if x.dim() not in (2, 3):
        raise ValueError(
            f"{op}: x must have shape (batch, channels) or (batch, channels, seqlen), got {tuple(x.shape)}"
        )
    _check_weight(op, weight, bias, x)
    _check_activation(op, activation)
    require_like(op, "conv_state", conv_state, "x", x)
    rows = "states" if conv_state_indices is not None else x.shape[0]
    fewest = weight.shape[1] - 1
    if conv_state.dim() != 3 or conv_state.shape[1] != x.shape[1] or rows not in ("states", conv_state.shape[0]):
        raise ValueError(
            f"{op}: conv_state must have shape ({rows}, {x.shape[1]}, at least {fewest}), got {tuple(conv_state.shape)}"
        )
    if conv_state.shape[2] < fewest:
        raise ValueError(f"{op}: conv_state must hold at least {fewest} times, got {conv_state.shape[2]}")
    require_distinct_elements(op, "conv_state", conv_state)
    for name, tensor in (("cache_seqlens", cache_seqlens), ("conv_state_indices", conv_state_indices)):
        if tensor is None:
            continue
        _check_int32(op, name, tensor, x)
        if tensor.shape != x.shape[:1]:
            raise ValueError(f"{op}: {name} must have shape ({x.shape[0]},), got {tuple(tensor.shape)}")
    lengths = values_of(cache_seqlens) if cache_seqlens is not None else None
    if lengths and min(lengths) < 0:
        raise ValueError(f"{op}: cache_seqlens must not be negative, got {min(lengths)}")
    if conv_state_indices is not None:
        require_distinct_rows(op, "conv_state_indices", conv_state_indices, conv_state.shape[0])


def _check_out(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: Optional[torch.Tensor],
    initial_states: Optional[torch.Tensor],
) -> None:
    require_like(_OP, "out", out, "x", x)
    if out.shape != x.shape:
        raise ValueError(f"{_OP}: out must have the shape of x {tuple(x.shape)}, got {tuple(out.shape)}")
    require_distinct_elements(_OP, "out", out)
    if 1 not in out.stride()[1:]:
        raise ValueError(f"{_OP}: out must have stride 1 in one of its last two dimensions, got {out.stride()}")
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias, initial_states)):
        raise ValueError(f"{_OP}: out must be None where a gradient is wanted, got a tensor (use torch.no_grad())")
