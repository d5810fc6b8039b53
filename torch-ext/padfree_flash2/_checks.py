"""Argument checks that every public function shares: one wording, the right exception type, nothing computed.

``<op>: <argument> must <what is wanted>, got <what came>``. TypeError for a wrong type, dtype or device, ValueError for
a wrong shape or value, NotImplementedError for right arguments that no kernel takes.
"""

from typing import Any, Optional

import torch

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


def require_bool(op: str, name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{op}: {name} must be True or False, got {value!r}")


def require_number(op: str, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{op}: {name} must be a number, got {type(value).__name__}")
    if not -float("inf") < value < float("inf"):
        raise ValueError(f"{op}: {name} must be finite, got {value}")


def require_integers(op: str, name: str, tensor: Any, like_name: str, like: torch.Tensor) -> None:
    """A one-dimensional int32 or int64 tensor on the device of ``like``."""
    require_tensor(op, name, tensor)
    if tensor.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{op}: {name} must be int32 or int64, got {name_of(tensor.dtype)}")
    require_device(op, name, tensor, like_name, like)
    require_dim(op, name, tensor, 1)


def as_int32(tensor: torch.Tensor) -> torch.Tensor:
    """What a kernel reads boundaries as: int32 and contiguous."""
    return tensor.to(torch.int32).contiguous()


def readable(tensor: torch.Tensor) -> bool:
    """Whether looking at the values costs nothing and breaks nothing: not while tracing, not across a bus."""
    return not torch.compiler.is_compiling() and type(tensor) is torch.Tensor and tensor.device.type == "cpu"


def values_of(tensor: torch.Tensor) -> Optional[list]:
    """The values as Python integers where ``readable``, else None: the kernel's own checks then speak."""
    return tensor.tolist() if readable(tensor) else None
