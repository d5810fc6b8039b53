"""From padded rows to packed ones and back: the functions of flash-attn's ``bert_padding``, in plain torch.

A padded batch (batch, seqlen, ...) and a mask of its tokens become the tokens alone, (total, ...), with the boundaries
that ``flash_attn_varlen_func`` takes; ``pad_input`` is the way back. Indices are those of tokens in the batch's
flattened rows, batch x seqlen. All is differentiable, on every device, and gives the same bits each time.
"""

from typing import Any, Optional

import torch

from . import _checks as checks

__all__ = [
    "index_first_axis",
    "index_first_axis_residual",
    "index_put_first_axis",
    "pad_input",
    "unpad_input",
    "unpad_input_for_concatenated_sequences",
]


def unpad_input(
    hidden_states: torch.Tensor, attention_mask: torch.Tensor, unused_mask: Optional[torch.Tensor] = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """The tokens a mask selects, row after row, and where each row's begin.

    Args:
        hidden_states: (batch, seqlen, ...), any dtype and strides.
        attention_mask: (batch, seqlen), any dtype, 1 (or True) for a token and 0 for padding, which may be anywhere.
        unused_mask: the same, 1 for a token that is kept but not used; those of a row come after its used ones, for
            ``seqused`` counts from the row's first.

    Returns:
        ``(tokens, indices, cu_seqlens, max_seqlen, seqused)``: tokens (total, ...); indices (total,) int64, of them in
        the flattened rows; cu_seqlens (batch + 1,) int32; max_seqlen an int, used or not; seqused (batch,) int32, the
        tokens of attention_mask alone.

    Raises:
        TypeError: no tensor, or tensors on two devices.
        ValueError: a mask that has another shape or holds something else than 0 and 1, a token in both masks, an unused
            token before a used one.

    Source: flash-attn 2.8, ``unpad_input``.
    """
    op = "unpad_input"
    _require_rows(op, hidden_states)
    used = kept = _selected(op, "attention_mask", attention_mask, hidden_states)
    if unused_mask is not None:
        unused = _selected(op, "unused_mask", unused_mask, hidden_states)
        _check_unused(op, used, unused)
        kept = used | unused
    lengths = kept.sum(1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    tokens = hidden_states.flatten(0, 1).index_select(0, indices)
    return tokens, indices, _boundaries(lengths), _longest(lengths), used.sum(1, dtype=torch.int32)


def unpad_input_for_concatenated_sequences(
    hidden_states: torch.Tensor, attention_mask_in_length: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """``unpad_input`` of rows that hold several samples each, one after the other, with padding behind the last.

    Args:
        hidden_states: (batch, seqlen, ...), any dtype and strides.
        attention_mask_in_length: (batch, seqlen) integers: the lengths of a row's samples, in order; 0 says nothing, so
            ``[2, 3, 0, 0, 0, 0]`` is a sample of 2 tokens, one of 3, and one place of padding.

    Returns:
        ``(tokens, indices, cu_seqlens, max_seqlen)`` as ``unpad_input``, a sequence for each sample:
        cu_seqlens (samples + 1,).

    Raises:
        TypeError: no tensor, lengths that are no integers, tensors on two devices.
        ValueError: lengths of another shape, below 0, or of more tokens than a row has.

    Source: flash-attn 2.8, ``unpad_input_for_concatenated_sequences``.
    """
    op, name = "unpad_input_for_concatenated_sequences", "attention_mask_in_length"
    _require_rows(op, hidden_states)
    _require_mask(op, name, attention_mask_in_length, hidden_states)
    lengths = attention_mask_in_length
    if lengths.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{op}: {name} must be int32 or int64, got {checks.name_of(lengths.dtype)}")
    lengths, seqlen = lengths.long(), hidden_states.shape[1]
    totals = lengths.sum(1)
    if checks.readable(lengths) and lengths.numel():
        if lengths.min() < 0:
            raise ValueError(f"{op}: {name} must hold lengths of 0 or more, got {int(lengths.min())}")
        most = max(int(lengths.max()), int(totals.max()))  # a sum of lengths past all bounds may be below 0
        if most > seqlen:
            raise ValueError(f"{op}: {name} must hold at most {seqlen} tokens a row, as hidden_states has, got {most}")
    kept = torch.arange(seqlen, device=lengths.device) < totals[:, None]
    indices = kept.flatten().nonzero().flatten()
    samples = lengths[lengths != 0].int()
    return hidden_states.flatten(0, 1).index_select(0, indices), indices, _boundaries(samples), _longest(samples)


def pad_input(hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """Packed tokens back at their places, zeros elsewhere: the inverse of ``unpad_input``.

    Args:
        hidden_states: (total, ...), any dtype.
        indices: (total,) integers, each once: ``unpad_input``'s.
        batch, seqlen: the padded batch's sizes.

    Returns:
        (batch, seqlen, ...).

    Raises:
        TypeError: as ``index_put_first_axis``; sizes that are no ints.
        ValueError: as ``index_put_first_axis``; sizes below 0, or rows from 2**31 on.

    Source: flash-attn 2.8, ``pad_input``.
    """
    for name, size in (("batch", batch), ("seqlen", seqlen)):
        checks.require_int("pad_input", name, size, least=0)
    _check_rows("pad_input", "batch * seqlen", batch * seqlen)
    return _placed("pad_input", "hidden_states", hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


def index_first_axis(input: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """``input[indices]``; the gradient of a row that is taken twice is the sum of both.

    Args:
        input: (rows, ...), any dtype and strides.
        indices: (total,) int32 or int64, 0 to rows - 1.

    Returns:
        (total, ...).

    Raises:
        TypeError: no tensor, indices that are no integers, tensors on two devices.
        ValueError: indices of another rank or out of range.

    Source: flash-attn 2.8, ``index_first_axis``.
    """
    op = "index_first_axis"
    checks.require_tensor(op, "input", input)
    if input.dim() < 1:
        raise ValueError(f"{op}: input must have 1 dimension or more, got 0")
    _check_indices(op, indices, input, "input", input.shape[0])
    return input.index_select(0, indices)


def index_put_first_axis(values: torch.Tensor, indices: torch.Tensor, first_axis_dim: int) -> torch.Tensor:
    """Zeros (first_axis_dim, ...) with ``values`` at the rows ``indices``.

    Args:
        values: (total, ...), any dtype.
        indices: (total,) int32 or int64, 0 to first_axis_dim - 1, each once.
        first_axis_dim: rows of the result.

    Returns:
        (first_axis_dim, ...).

    Raises:
        TypeError: no tensor, indices that are no integers, tensors on two devices, a first_axis_dim that is no int.
        ValueError: indices of another shape, out of range, or one of them twice; a first_axis_dim below 0 or from
            2**31 on.

    Source: flash-attn 2.8, ``index_put_first_axis``.
    """
    checks.require_int("index_put_first_axis", "first_axis_dim", first_axis_dim, least=0)
    _check_rows("index_put_first_axis", "first_axis_dim", first_axis_dim)
    return _placed("index_put_first_axis", "values", values, indices, first_axis_dim)


def index_first_axis_residual(input: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``(index_first_axis(input, indices), input)``; the gradient of input is the sum of what comes back to both.

    Raises:
        TypeError, ValueError: as ``index_first_axis``.

    Source: flash-attn 2.8, ``index_first_axis_residual``.
    """
    return index_first_axis(input, indices), input


def _check_rows(op: str, name: str, rows: int) -> None:
    if rows >= 2**31:
        raise ValueError(f"{op}: {name} must be below 2**31, got {rows}")


def _placed(op: str, name: str, values: Any, indices: Any, rows: int) -> torch.Tensor:
    checks.require_tensor(op, name, values)
    if values.dim() < 1:
        raise ValueError(f"{op}: {name} must have 1 dimension or more, got 0")
    _check_indices(op, indices, values, name, rows)
    checks.require_size(op, "indices", indices, 0, values.shape[0])
    if checks.readable(indices) and indices.numel():
        counts = torch.bincount(indices)
        if counts.max() > 1:
            raise ValueError(f"{op}: indices must name each row once, got {int(counts.argmax())} twice")
    return values.new_zeros(rows, *values.shape[1:]).index_copy_(0, indices.long(), values)


def _require_rows(op: str, hidden_states: Any) -> None:
    checks.require_tensor(op, "hidden_states", hidden_states)
    if hidden_states.dim() < 2:
        raise ValueError(f"{op}: hidden_states must have 2 dimensions or more, got {hidden_states.dim()}")


def _require_mask(op: str, name: str, mask: Any, hidden_states: torch.Tensor) -> None:
    checks.require_tensor(op, name, mask)
    checks.require_device(op, name, mask, "hidden_states", hidden_states)
    checks.require_dim(op, name, mask, 2)
    for dim in range(2):
        checks.require_size(op, name, mask, dim, hidden_states.shape[dim])


def _selected(op: str, name: str, mask: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """A mask of zeros and ones as bool."""
    _require_mask(op, name, mask, hidden_states)
    if mask.dtype == torch.bool:
        return mask
    if checks.readable(mask):
        others = mask[(mask != 0) & (mask != 1)]
        if others.numel():
            raise ValueError(f"{op}: {name} must hold 0 and 1, got {others[0].item()}")
    return mask != 0


def _check_unused(op: str, used: torch.Tensor, unused: torch.Tensor) -> None:
    if not checks.readable(used):
        return
    if (used & unused).any():
        raise ValueError(f"{op}: unused_mask must be 0 where attention_mask is 1, got 1")
    behind = unused.int().cummax(1).values.bool()  # from a row's first unused token on
    if (used & behind).any():
        row = int((used & behind).any(1).int().argmax())
        raise ValueError(
            f"{op}: unused_mask must mark tokens behind the used ones of a row, got one before in row {row}"
        )


def _check_indices(op: str, indices: Any, like: torch.Tensor, like_name: str, rows: int) -> None:
    checks.require_integers(op, "indices", indices, like_name, like)
    if checks.readable(indices) and indices.numel():
        for index in (int(indices.min()), int(indices.max())):
            if not 0 <= index < rows:
                raise ValueError(f"{op}: indices must be 0 to {rows - 1}, got {index}")


def _boundaries(lengths: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))


def _longest(lengths: torch.Tensor) -> int:
    return int(lengths.max()) if lengths.numel() else 0
