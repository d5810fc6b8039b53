"""padfree-flash2: attention, causal convolution, gated delta rule and state-space kernels for padding-free training."""

from . import bert_padding, flash_attention_3, layers, rotary
from ._archs import require_a_gpu
from ._register import isa
from .attention import attention_with_mask, flash_attn_func, flash_attn_varlen_func
from .attention_kvcache import flash_attn_with_kvcache
from .attention_packed import (
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from .causal_conv1d import causal_conv1d_fn, causal_conv1d_update, causal_conv1d_varlen_states
from .gated_delta_rule import (
    chunk_gated_delta_rule,
    chunk_kda,
    fused_recurrent_gated_delta_rule,
    fused_recurrent_kda,
)
from .integrity import verify
from .masks import register_masked_attention
from .packages import install_as_packages
from .repository import back_flash_attention
from .selective_scan import mamba_inner_fn, selective_scan_fn
from .selective_state_update import selective_state_update
from .state_space import mamba_chunk_scan_combined, mamba_split_conv1d_scan_combined
from .wiring import disable, enable, report

require_a_gpu()

__all__ = [
    "attention_with_mask",
    "back_flash_attention",
    "bert_padding",
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "causal_conv1d_varlen_states",
    "chunk_gated_delta_rule",
    "chunk_kda",
    "disable",
    "enable",
    "flash_attention_3",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_kda",
    "install_as_packages",
    "isa",
    "layers",
    "mamba_chunk_scan_combined",
    "mamba_inner_fn",
    "mamba_split_conv1d_scan_combined",
    "register_masked_attention",
    "report",
    "rotary",
    "selective_scan_fn",
    "selective_state_update",
    "verify",
]
