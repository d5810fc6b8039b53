"""padfree-flash2: attention, convolution and linear-attention kernels for padding-free training, on CPU and CUDA."""

from ._register import isa
from .attention import flash_attn_func, flash_attn_varlen_func
from .attention_packed import (
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from .causal_conv1d import causal_conv1d_fn

__all__ = [
    "causal_conv1d_fn",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "isa",
]
