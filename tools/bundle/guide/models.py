"""The models, small and float32: a Llama (attention), an Lfm2 (convolution too), a Qwen3.5 (and gated delta rule)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Lfm2Config, LlamaConfig, PreTrainedModel, Qwen3_5TextConfig

from bundle.guide.corpus import VOCABULARY

_SHARED: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 192,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
    "initializer_range": 0.05,
    "use_cache": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def _llama() -> LlamaConfig:
    return LlamaConfig(**_SHARED)


def _lfm2() -> Lfm2Config:
    layers = ["conv", "full_attention"]
    return Lfm2Config(**_SHARED, layer_types=layers, conv_L_cache=3, block_auto_adjust_ff_dim=False)


def _qwen3_5() -> Qwen3_5TextConfig:
    return Qwen3_5TextConfig(
        **_SHARED,
        layer_types=["linear_attention", "full_attention"],
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=48,
        linear_value_head_dim=48,
    )


CONFIGS: dict[str, Callable[[], Any]] = {"Llama": _llama, "Lfm2": _lfm2, "Qwen3.5": _qwen3_5}


def make(name: str, attention: str) -> PreTrainedModel:
    """A new model; the same weights for the same name, whatever ``attention`` is."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation=attention)
    return model
