"""Argument checks that every public function shares: one wording, the right exception type, nothing computed.

``<op>: <argument> must <what is wanted>, got <what came>``. TypeError for a wrong type, dtype or device, ValueError for
a wrong shape or value, NotImplementedError for right arguments that no kernel takes.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Optional

import torch

from ._ops import ops

FLOATING = (torch.float32, torch.bfloat16, torch.float16)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def require_tensor(op: str, name: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{op}: {name} must be a tensor, got {type(value).__name__}")


def require_floating(op: str, name: str, tensor: Any) -> None:
    require_tensor(op, name, tensor)
    if tensor.dtype not in FLOATING:
        raise TypeError(f"{op}: {name} must be float32, bfloat16 or float16, got {name_of(tensor.dtype)}")


def _functions_with_kernels(key: str) -> frozenset:
    """Names of this variant's ops that the dispatcher has a kernel of for the key: CPU or CUDA."""
    prefix = f"{ops.name}::"
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith(prefix)]
    return frozenset(name[len(prefix) :] for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


# A variant holds the kernels of one backend, and not every op's. Looked up once, when the bundle is loaded.
_KERNELS = {"cpu": _functions_with_kernels("CPU"), "cuda": _functions_with_kernels("CUDA")}


def require_kernel(op: str, name: str, tensor: torch.Tensor, function: str) -> None:
    """That this variant has a kernel of ``function`` for the device of ``tensor``; else says what to load."""
    device = tensor.device.type
    if device not in _KERNELS or function in _KERNELS[device]:
        return
    there = next((other for other in _KERNELS if function in _KERNELS[other]), None)
    if there is None:
        wanted = "cpu" if device == "cuda" else device
        raise NotImplementedError(
            f"{op}: {name} must be on the {wanted}, for which backend={wanted!r} of get_kernel has kernels "
            f"(this variant has none of this op), got {tensor.device}"
        )
    raise NotImplementedError(
        f"{op}: {name} must be on a {there} device, which this variant is for, got {tensor.device} "
        f"(backend={device!r} of get_kernel is for that)"
    )


def require_dim(op: str, name: str, tensor: torch.Tensor, dim: int) -> None:
    if tensor.dim() != dim:
        raise ValueError(f"{op}: {name} must have {dim} dimension{'s' * (dim != 1)}, got {tensor.dim()}")


def require_size(op: str, name: str, tensor: torch.Tensor, dim: int, size: int) -> None:
    if tensor.shape[dim] != size:
        raise ValueError(f"{op}: {name} must have size {size} in dimension {dim}, got {tensor.shape[dim]}")


def require_like(op: str, name: str, tensor: Any, like_name: str, like: torch.Tensor) -> None:
    """A tensor with the dtype and on the device of ``like``."""
    require_tensor(op, name, tensor)
    if tensor.dtype != like.dtype:
        raise TypeError(
            f"{op}: {name} must have the dtype of {like_name} ({name_of(like.dtype)}), got {name_of(tensor.dtype)}"
        )
    require_device(op, name, tensor, like_name, like)


def require_device(op: str, name: str, tensor: torch.Tensor, like_name: str, like: torch.Tensor) -> None:
    if tensor.device != like.device:
        raise TypeError(f"{op}: {name} must be on the device of {like_name} ({like.device}), got {tensor.device}")


def require_shape(op: str, name: str, tensor: Any, like: torch.Tensor, like_name: str, shape: Sequence[int]) -> None:
    """A floating tensor of this shape on the device of ``like``."""
    require_floating(op, name, tensor)
    require_device(op, name, tensor, like_name, like)
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{op}: {name} must have shape {tuple(shape)}, got {tuple(tensor.shape)}")


def require_projection(
    op: str, name: str, weight: Any, like_name: str, like: torch.Tensor, shape: tuple[Optional[int], Optional[int]]
) -> None:
    """What ``F.linear`` can multiply ``like`` with: a matrix, None for any size, of its dtype unless autocast is on."""
    require_floating(op, name, weight)
    require_device(op, name, weight, like_name, like)
    if weight.dtype != like.dtype and not _autocasts(like.device.type):
        require_like(op, name, weight, like_name, like)
    require_dim(op, name, weight, 2)
    for dim, size in enumerate(shape):
        if size is not None:
            require_size(op, name, weight, dim, size)


def _autocasts(device: str) -> bool:
    return device in _KERNELS and torch.is_autocast_enabled(device)


def require_real(op: str, **matrices: Any) -> None:
    for name, matrix in matrices.items():
        require_tensor(op, name, matrix)
        if matrix.is_complex():
            raise NotImplementedError(f"{op}: {name} must be real, got {name_of(matrix.dtype)}")


def require_distinct_elements(op: str, name: str, tensor: torch.Tensor) -> None:
    """Something to write to: no element of it is another one too, as ``expand`` makes them."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if stride == 0 and size > 1:
            raise ValueError(
                f"{op}: {name} must hold each element at a place of its own, got stride 0 in dimension {dim}"
            )


def heads_of(op: str, qkv: torch.Tensor, num_heads_q: Any) -> tuple[int, int]:
    """heads_q and heads_kv of qkv (batch, seqlen, heads_q + 2 heads_kv, head_dim)."""
    if qkv.dim() != 4:
        raise ValueError(f"{op}: qkv must have 4 or 5 dimensions, got {qkv.dim()}")
    heads = qkv.shape[2]
    if num_heads_q is None:
        raise ValueError(f"{op}: num_heads_q must be given with qkv of 4 dimensions, got None")
    require_int(op, "num_heads_q", num_heads_q)
    if not 0 < num_heads_q <= heads or (heads - num_heads_q) % 2:
        raise ValueError(f"{op}: num_heads_q must leave k and v as many heads each of {heads}, got {num_heads_q}")
    return num_heads_q, (heads - num_heads_q) // 2


def require_bool(op: str, name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{op}: {name} must be True or False, got {value!r}")


def require_number(op: str, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{op}: {name} must be a number, got {type(value).__name__}")
    if not -float("inf") < value < float("inf"):
        raise ValueError(f"{op}: {name} must be finite, got {value}")


def is_int(value: Any) -> bool:
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def require_int(op: str, name: str, value: Any, least: Optional[int] = None) -> None:
    if not is_int(value):
        raise TypeError(f"{op}: {name} must be an int, got {type(value).__name__}")
    if least is not None and value < least:
        raise ValueError(f"{op}: {name} must be {least} or more, got {value}")


def require_integers(op: str, name: str, tensor: Any, like_name: str, like: torch.Tensor) -> None:
    """A one-dimensional int32 or int64 tensor on the device of ``like``."""
    require_tensor(op, name, tensor)
    if tensor.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{op}: {name} must be int32 or int64, got {name_of(tensor.dtype)}")
    require_device(op, name, tensor, like_name, like)
    require_dim(op, name, tensor, 1)


def require_boundaries(op: str, cu_seqlens: Any, like_name: str, like: torch.Tensor, batch: int, rows: int) -> None:
    """``cu_seqlens`` of packed sequences: rising from 0 to at most ``rows`` of the one batch row of ``like``."""
    require_integers(op, "cu_seqlens", cu_seqlens, like_name, like)
    if batch != 1:
        raise ValueError(f"{op}: {like_name} must have size 1 in dimension 0 where cu_seqlens is given, got {batch}")
    if cu_seqlens.shape[0] == 0:
        raise ValueError(f"{op}: cu_seqlens must start at 0, got nothing")
    ends = values_of(cu_seqlens)
    if ends is None:
        return
    if ends[0] != 0:
        raise ValueError(f"{op}: cu_seqlens must start at 0, got {ends[0]}")
    for before, after in zip(ends, ends[1:]):
        if after < before:
            raise ValueError(f"{op}: cu_seqlens must not decrease, got {after} after {before}")
    if ends[-1] > rows:
        raise ValueError(f"{op}: cu_seqlens must end at or below the number of rows ({rows}), got {ends[-1]}")


def require_one_run_each(op: str, seq_idx: torch.Tensor, states: dict[str, Optional[torch.Tensor]]) -> None:
    """Where states are passed, a sequence's number names its row: it must be one run, and have a row in each."""
    if not readable(seq_idx):
        return  # the op checks what memory safety needs
    starts = torch.ones_like(seq_idx, dtype=torch.bool)
    starts[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
    numbers, runs = seq_idx[starts & (seq_idx >= 0)].unique(return_counts=True)
    if bool((runs > 1).any()):
        repeated = int(numbers[runs > 1][0])
        raise ValueError(
            f"{op}: seq_idx must number each sequence differently where states are passed, got {repeated} twice"
        )
    last = int(numbers[-1]) if numbers.numel() else -1
    for name, rows in states.items():
        if rows is not None and last >= rows.shape[0]:
            raise ValueError(f"{op}: seq_idx must be below the {rows.shape[0]} rows of {name}, got {last}")


def rows_numbered_by(op: str, seq_idx: torch.Tensor) -> int:
    """How many rows of states the numbers of ``seq_idx`` ask for: the largest and one more."""
    count = max(int(seq_idx.max()) + 1, 0) if seq_idx.numel() else 0
    if readable(seq_idx) and count > seq_idx.numel():  # names rather than numbers; the states could fill the memory
        raise ValueError(
            f"{op}: seq_idx must be below the number of positions ({seq_idx.numel()}) where it says how many states to "
            f"return, got {count - 1}"
        )
    return count


def require_distinct_rows(op: str, name: str, indices: torch.Tensor, rows: int) -> None:
    """Row numbers below ``rows``, each once; -1 for none."""
    seen = set()
    for index in values_of(indices) or ():
        if not -1 <= index < rows:
            raise ValueError(f"{op}: {name} must be -1 or below {rows}, got {index}")
        if index in seen:
            raise ValueError(f"{op}: {name} must name each state once, got {index} twice")
        if index >= 0:
            seen.add(index)


def as_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype == torch.float32 else tensor.float()


def as_int32(tensor: torch.Tensor) -> torch.Tensor:
    """What a kernel reads boundaries as: int32 and contiguous."""
    if tensor.dtype == torch.int32 and tensor.is_contiguous():  # decoding asks at each step
        return tensor
    return tensor.to(torch.int32).contiguous()


def readable(tensor: torch.Tensor) -> bool:
    """Whether looking at the values costs nothing and breaks nothing: not while tracing, not across a bus."""
    return not torch.compiler.is_compiling() and type(tensor) is torch.Tensor and tensor.device.type == "cpu"


def values_of(tensor: torch.Tensor) -> Optional[list]:
    """The values as Python integers where ``readable``, else None: the kernel's own checks then speak."""
    return tensor.tolist() if readable(tensor) else None


def no_autograd(*tensors: Optional[torch.Tensor]) -> Any:
    """A context for a call that no gradient goes through: the op's own autograd, which is Python, is left out.

    What it spends is a tenth of a decoding step, whose keys have just pushed all that code out of the caches.
    """
    traced = not all(tensor is None or readable(tensor) for tensor in tensors)
    wanted = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    return nullcontext() if traced or wanted else torch._C._AutoDispatchBelowAutograd()
