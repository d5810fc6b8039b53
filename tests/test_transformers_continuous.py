"""Continuous batching: `generate_batch` gives the tokens of `generate`; its paged decode call finds what it needs."""

import pytest
import torch
import transformers
from cases import randn
from tiny_models import build, samples
from tolerance import assert_same_bits

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}


@pytest.mark.parametrize("family", ["qwen3", "mistral", "gemma2", "gpt_oss"])
def test_generate_batch_equals_generate(padfree, family):
    """On pages of 16, which the requests cross; windows and softcap come with the families."""
    rows = samples((4, 7, 20))
    model = build(family).eval()
    wanted = []
    for row in rows:  # the mask is given, or transformers takes token 0 for padding
        tokens = model.generate(row[None], attention_mask=torch.ones(1, len(row)), **SETTINGS, eos_token_id=None)
        wanted.append(tokens[0, len(row) :].tolist())
    padfree.enable(model)
    try:
        config = transformers.GenerationConfig(**SETTINGS, eos_token_id=-1)
        pages = transformers.ContinuousBatchingConfig(page_size=16, num_blocks=32, max_batch_tokens=64)
        results = model.generate_batch([row.tolist() for row in rows], config, pages, warmup=False)
        assert [result.error for result in results.values()] == [None] * len(rows)
        assert [result.generated_tokens for result in results.values()] == wanted
    finally:
        padfree.disable(model)


def test_the_paged_decode_call_of_transformers(padfree):
    """What transformers passes when a block table is there: reshaped rows, lengths before the append, its keywords."""
    from transformers.modeling_flash_attention_utils import _flash_attention_forward

    model = build("llama")
    padfree.enable(model)
    try:
        k_cache, v_cache = randn(6, 16, 2, 8, seed=1), randn(6, 16, 2, 8, seed=2)
        before = k_cache.clone(), v_cache.clone()
        q, k, v = randn(1, 3, 4, 8, seed=3), randn(1, 3, 2, 8, seed=4), randn(1, 3, 2, 8, seed=5)
        table = torch.tensor([[5, 0, -1], [2, -1, -1], [3, 1, 4]], dtype=torch.int32)
        ends = torch.tensor([0, 21, 30, 70], dtype=torch.int32)  # lengths with the new token: 21, 9, 40
        out = _flash_attention_forward(
            q, k, v, None, query_length=3, is_causal=True, softmax_scale=0.3, cu_seq_lens_q=torch.arange(4).int(),
            cu_seq_lens_k=ends, max_length_q=1, max_length_k=40, block_table=table, k_cache=k_cache, v_cache=v_cache,
            attn_implementation=model.config._attn_implementation,
        )  # fmt: skip
    finally:
        padfree.disable(model)
    wanted = padfree.flash_attn_with_kvcache(
        q.view(3, 1, 4, 8), *before, k.view(3, 1, 2, 8), v.view(3, 1, 2, 8), block_table=table, softmax_scale=0.3,
        cache_seqlens=torch.tensor([20, 8, 39], dtype=torch.int32), causal=True,
    )  # fmt: skip
    assert_same_bits(out.view(3, 1, 4, 8), wanted)
    assert_same_bits(k_cache, before[0])
    assert_same_bits(k_cache[table[2, 2], 7], k[0, 2])
    assert_same_bits(v_cache, before[1])
