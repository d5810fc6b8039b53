"""padfree-flash2: attention, convolution and linear-attention kernels for padding-free training, on CPU and CUDA."""

from ._register import isa

__all__ = ["isa"]
