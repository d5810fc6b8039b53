"""Tiny random models of transformers' families, batches for them, and how far apart two runs of one may be.

Nothing is downloaded: a configuration and a seed make a model. The reference of every comparison is the same model in
float64, one sample at a time, on transformers' eager code. A run in a lower precision may be as far from it as twice
what eager code in that precision is (`roundings`), plus the rounding of the result: two correct implementations round
differently, and neither is known to be the better one. References are made before a model is wired, because
transformers' functions are shared by all models of a family.
"""

import functools

import pytest
import torch
from tolerance import assert_near, one_unit_off

transformers = pytest.importorskip("transformers")

LENGTHS = (5, 1, 9, 3, 17)
VOCABULARY = 64
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
PLAIN = {**COMMON, "num_hidden_layers": 2}

# family: (configuration class, its arguments); every head count, window and width is small enough to be crossed
FAMILIES = {
    "llama": ("LlamaConfig", PLAIN),
    "qwen3": ("Qwen3Config", {**PLAIN, "head_dim": 8}),
    "mistral": ("MistralConfig", {**PLAIN, "sliding_window": 4}),
    "gemma2": ("Gemma2Config", {**PLAIN, "head_dim": 8, "sliding_window": 4, "attn_logit_softcapping": 2.0}),
    "gpt_oss": (  # attention sinks
        "GptOssConfig",
        {
            **PLAIN,
            "head_dim": 8,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "pad_token_id": 0,
        },
    ),
    "lfm2": ("Lfm2Config", {**COMMON, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]}),
    "lfm2_moe": (
        "Lfm2MoeConfig",
        {
            **COMMON,
            "num_hidden_layers": 2,
            "layer_types": ["conv", "full_attention"],
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 16,
            "num_dense_layers": 1,
        },
    ),
    "inkling": (
        "InklingTextConfig",
        {
            **PLAIN,
            "eos_token_id": 1,
            "head_dim": 8,
            "swa_head_dim": 8,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 2,
            "sliding_window_size": 4,
            "d_rel": 4,
            "rel_extent": 8,
            "layer_types": ["hybrid_sliding", "hybrid"],
            "mlp_layer_types": ["dense", "dense"],
            "moe_intermediate_size": 16,
        },
    ),
}

MAMBA2 = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MOE = {"num_experts": 0, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
LONE = {"vocab_size": VOCABULARY, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2}

# Families with a recurrence beside the convolution.
HYBRIDS = {
    "bamba": ("BambaConfig", {**PLAIN, **MAMBA2, "attn_layer_indices": [1]}),
    "falcon_h1": ("FalconH1Config", {**PLAIN, **MAMBA2, "mamba_d_ssm": 64, "head_dim": 8}),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        {
            **PLAIN,
            **MAMBA2,
            "layer_types": ["mamba", "attention"],
            "num_local_experts": 0,
            "shared_intermediate_size": 48,
        },
    ),
    "zamba2": (
        "Zamba2Config",
        {
            **PLAIN,
            "num_key_value_heads": 4,
            "layers_block_type": ["mamba", "hybrid"],
            "hybrid_layer_ids": [1],
            "n_mamba_heads": 4,
            "mamba_d_state": 8,
            "chunk_size": 8,
            "num_mem_blocks": 1,
            "use_shared_attention_adapter": False,
            "attention_head_dim": 16,
        },
    ),
    "nemotron_h": (
        "NemotronHConfig",
        {
            **PLAIN,
            "layers_block_type": ["mamba", "attention"],
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "ssm_state_size": 8,
            "n_groups": 1,
            "chunk_size": 8,
            "head_dim": 8,
        },
    ),
    "qwen3_next": ("Qwen3NextConfig", {**PLAIN, **DELTA, **MOE, "head_dim": 8}),
    "qwen3_5": ("Qwen3_5TextConfig", {**PLAIN, **DELTA, "head_dim": 8}),
    "qwen3_5_moe": (
        "Qwen3_5MoeTextConfig",
        {**PLAIN, **DELTA, **MOE, "num_experts": 2, "num_experts_per_tok": 1, "head_dim": 8},
    ),
    "olmo_hybrid": (
        "OlmoHybridConfig",
        {**PLAIN, **DELTA, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None},
    ),
    "kimi_linear": (
        "KimiLinearConfig",
        {
            **PLAIN,
            "pad_token_id": 0,
            "num_key_value_heads": 4,
            "layer_types": ["linear_attention", "full_attention"],
            "mlp_layer_types": ["dense", "dense"],
            "linear_head_dim": 8,
            "linear_num_heads": 4,
            "kv_lora_rank": 8,
            "q_lora_rank": None,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 8,
        },
    ),
    "bailing_hybrid": (
        "BailingHybridConfig",
        {
            **PLAIN,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "num_key_value_heads": 4,
            "layer_types": ["linear_attention", "full_attention"],
            "mlp_layer_types": ["dense", "dense"],
            "head_dim": 8,
            "kv_lora_rank": 8,
            "q_lora_rank": None,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 8,
            "num_mtp_layers": 0,
        },
    ),
    "zamba": (
        "ZambaConfig",
        {
            **PLAIN,
            "num_key_value_heads": 4,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "num_hidden_layers": 3,
            "layers_block_type": ["mamba", "hybrid", "hybrid"],
        },
    ),
    "mamba": ("MambaConfig", LONE),
    "falcon_mamba": ("FalconMambaConfig", LONE),
    "mamba2": ("Mamba2Config", {**LONE, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8}),
    "jamba": (
        "JambaConfig",
        {
            **PLAIN,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 1,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "pad_token_id": 0,
        },
    ),
}

# Families that mix tokens in code of their own, which nothing can replace.
ALONE = {
    "recurrent_gemma": (
        "RecurrentGemmaConfig",
        {**PLAIN, "num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8, "head_dim": 8},
    ),
    "rwkv": ("RwkvConfig", {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}),
    "xlstm": (
        "xLSTMConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "num_heads": 2, "num_hidden_layers": 2, "chunk_size": 8},
    ),
    "minimax": (
        "MiniMaxConfig",
        {**PLAIN, "num_local_experts": 2, "num_experts_per_tok": 1, "block_size": 8, "head_dim": 8},
    ),
    "qwen4_exp": (
        "Qwen4ExpTextConfig",
        {
            **PLAIN,
            **DELTA,
            "head_dim": 8,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 8,
            "indexer_budget": 8,
            "indexer_compress_ratio": 2,
            "hc_lowrank": 8,
            "ple_layer_ids": [1],
            "eos_token_id": 1,
            "ple_embed_dim": 16,
            "ngram_vocab_size_base": 64,
            "split_ngram_parts": 1,
        },
    ),
    "glm5_next": (  # what a causal model of it is made of
        "Glm5NextTextConfig",
        {
            **PLAIN,
            "num_key_value_heads": 4,
            "layer_types": ["linear_attention", "indexed_attention"],
            "mlp_layer_types": ["dense", "dense"],
            "linear_head_dim": 8,
            "linear_num_heads": 4,
            "kv_lora_rank": 8,
            "q_lora_rank": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "index_topk": 8,
            "index_kpool": 4,
            "index_head_dim": 8,
            "index_n_heads": 2,
            "pad_token_id": 0,
        },
    ),
    "deepseek_v4": (
        "DeepseekV4Config",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "moe_intermediate_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "head_dim": 16,
            "q_lora_rank": 8,
            "num_experts_per_tok": 1,
            "n_routed_experts": 2,
            "max_position_embeddings": 128,
            "mlp_layer_types": ["moe", "moe"],
            "layer_types": ["compressed_sparse_attention", "heavily_compressed_attention"],
            "o_groups": 2,
            "o_lora_rank": 8,
            "index_n_heads": 2,
            "index_head_dim": 16,
            "index_topk": 4,
            "sliding_window": 8,
        },
    ),
    "zaya": ("ZayaConfig", {**PLAIN, "head_dim": 8, "num_experts": 2, "moe_intermediate_size": 16}),
}


def build(family, dtype=torch.float32, attention="eager"):
    """A model with random weights, the same for every call."""
    name, arguments = {**FAMILIES, **HYBRIDS, **ALONE}[family]
    torch.manual_seed(0)
    config = getattr(transformers, name)(**arguments)
    causal = transformers.AutoModelForCausalLM
    kind = causal if type(config) in causal._model_mapping else transformers.AutoModel  # GLM-5 has no text-only head
    model = kind.from_config(config, attn_implementation=attention)
    model.config._experts_implementation_internal = "eager"  # the grouped product of experts has no float64
    return model.to(dtype)


def samples(lengths=LENGTHS, seed=1):
    """Token ids of one sample for each length."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCABULARY, (length,), generator=generator) for length in lengths]


def pack(rows):
    """What the padding-free guide's collator makes of some samples."""
    collator = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    batch = collator([{"input_ids": row.tolist()} for row in rows])
    batch.pop("labels")
    return {**batch, "use_cache": False}


def left_padded(rows):
    """Ids and mask of some samples, one a row, as a plain collator makes them."""
    width = max(len(row) for row in rows)
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, width - len(row) :] = row
        mask[index, width - len(row) :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def run_packed(model, rows, drop=()):
    """Logits ``(tokens, vocabulary)`` and gradients of one packed batch."""
    batch = {name: value for name, value in pack(rows).items() if name not in drop}
    return _run(model, [batch], sum(len(row) for row in rows))


def run_apart(model, rows):
    """The same, one call for each sample."""
    batches = [{"input_ids": row[None], "use_cache": False} for row in rows]
    return _run(model, batches, sum(len(row) for row in rows))


def from_embeddings(model, rows, poison=None):
    """Logits of a packed batch whose first sample's embeddings may be replaced, and the gradient of all embeddings."""
    batch = pack(rows)
    embeddings = model.get_input_embeddings()(batch.pop("input_ids")).detach()
    if poison is not None:
        embeddings[:, : len(rows[0])] = poison
    embeddings.requires_grad_()
    logits = model(inputs_embeds=embeddings, **batch).logits[0]
    logits[len(rows[0]) :].sum().backward()
    return logits.detach(), embeddings.grad[0]


def _run(model, batches, tokens):
    model.zero_grad()
    weights = torch.randn(tokens, VOCABULARY, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    logits = torch.cat([model(**batch).logits[0] for batch in batches])
    (logits * weights.to(logits.dtype)).sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    return logits.detach(), gradients


@functools.cache
def references(family, dtype=torch.float32):
    """Logits and gradients of `samples()` on eager code: in float64, and several times in the dtype under test."""
    exact, rows = build(family, dtype).to(torch.float64).train(), samples()
    return run_apart(exact, rows), [run_apart(model, rows) for model in roundings(family, dtype)]


def roundings(family, dtype=torch.float32):
    """The model in ``dtype``, and twice more with each weight moved by one unit in the last place at random."""
    for seed in range(3):
        model = build(family, dtype).train()
        for number, parameter in enumerate(model.parameters() if seed else ()):
            parameter.data = one_unit_off(parameter.data, 1000 * seed + number)
        yield model


def assert_as_good_as_eager(got, references):
    """Fails unless logits and gradients ``got`` are as near to float64 as twice eager code of that dtype is."""
    wanted, eager = references
    assert_near(got[0], wanted[0], [run[0] for run in eager], "logits")
    for name, gradient in wanted[1].items():
        runs = [run[1][name] for run in eager]
        assert_near(got[1][name], gradient, runs, f"gradient of {name}", 2 * _terms_of_decay(name, wanted[1]))


def _terms_of_decay(name, gradients):
    """How large the parts of a gradient are that all but cancel: for the decay of a delta rule with a gate per head,
    the largest gradient of its mixer. Tokens' parts are sums over pairs of tokens, in another order than eager code's;
    twice their rounding is allowed, as it is everywhere. 0 for every other parameter."""
    mixer, _, own = name.rpartition(".linear_attn.")
    if own not in ("A_log", "dt_bias", "in_proj_a.weight", "in_proj_ba.weight"):
        return 0
    return max(
        gradient.abs().max() for other, gradient in gradients.items() if other.startswith(f"{mixer}.linear_attn.")
    )
