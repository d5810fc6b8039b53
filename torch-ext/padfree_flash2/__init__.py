"""padfree-flash2: attention, convolution and linear-attention kernels for padding-free training, on CPU and CUDA."""

from ._register import isa
from .causal_conv1d import causal_conv1d_fn

__all__ = ["causal_conv1d_fn", "isa"]
