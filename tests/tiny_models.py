"""Tiny random models of transformers' families, batches for them, and how far apart two runs of one may be.

Nothing is downloaded: a configuration and a seed make a model. The reference of every comparison is the same model in
float64, one sample at a time, on transformers' eager code. A run in a lower precision may be as far from it as twice
what eager code in that precision is, plus the rounding of the result: two correct implementations round differently,
and neither is known to be the better one. References are made before a model is wired, because transformers' functions
are shared by all models of a family.
"""

import functools

import pytest
import torch

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
    "lfm2": ("Lfm2Config", {**COMMON, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]}),
}


def build(family, dtype=torch.float32, attention="eager"):
    """A model with random weights, the same for every call."""
    name, arguments = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, name)(**arguments)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
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


def run_packed(model, rows, drop=()):
    """Logits ``(tokens, vocabulary)`` and gradients of one packed batch."""
    batch = {name: value for name, value in pack(rows).items() if name not in drop}
    return _run(model, [batch], sum(len(row) for row in rows))


def run_apart(model, rows):
    """The same, one call for each sample."""
    batches = [{"input_ids": row[None], "use_cache": False} for row in rows]
    return _run(model, batches, sum(len(row) for row in rows))


def _run(model, batches, tokens):
    model.zero_grad()
    weights = torch.randn(tokens, VOCABULARY, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    logits = torch.cat([model(**batch).logits[0] for batch in batches])
    (logits * weights.to(logits.dtype)).sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    return logits.detach(), gradients


@functools.cache
def references(family, dtype=torch.float32):
    """Logits and gradients of `samples()` on eager code: in float64, and in the dtype under test."""
    rows = samples()
    return tuple(run_apart(build(family, each).train(), rows) for each in (torch.float64, dtype))


def assert_as_good_as_eager(got, references):
    """Fails unless logits and gradients ``got`` are as near to float64 as twice eager code of that dtype is."""
    wanted, eager = references
    assert_near(got[0], wanted[0], eager[0], "logits")
    for name in wanted[1]:
        assert_near(got[1][name], wanted[1][name], eager[1][name], f"gradient of {name}")


def assert_near(got, wanted, eager, what):
    """Fails unless ``got`` is at most twice as far from ``wanted`` (float64) as ``eager`` is, and one rounding."""
    allowance = 2 * (eager.double() - wanted).abs().max() + torch.finfo(got.dtype).eps * wanted.abs().max()
    worst = (got.double() - wanted).abs().max()
    assert worst <= allowance, f"{what}: off by {worst:.3e}, allowed {allowance:.3e}"
