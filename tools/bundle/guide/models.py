"""The two models: a Llama (attention) and an Lfm2 (attention and causal convolution), both small and float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Lfm2Config, LlamaConfig, PreTrainedModel

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


CONFIGS: dict[str, Callable[[], Any]] = {"Llama": _llama, "Lfm2": _lfm2}


def make(name: str, attention: str) -> PreTrainedModel:
    """A new model; the same weights for the same name, whatever ``attention`` is."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(CONFIGS[name](), attn_implementation=attention)
    return model
