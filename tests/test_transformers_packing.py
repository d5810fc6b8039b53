"""A packed batch through a wired model equals its samples one at a time: logits, gradients, isolation."""

import pytest
import torch
from tiny_models import (
    FAMILIES,
    assert_as_good_as_eager,
    build,
    from_embeddings,
    pack,
    references,
    run_apart,
    run_packed,
    samples,
)
from tolerance import assert_near, assert_same_bits

pytestmark = pytest.mark.usefixtures("one_thread")

DTYPES = [torch.float32, torch.bfloat16]
KEYWORDS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


@pytest.fixture
def wired(padfree):
    """Builds wired models in training mode, and gives them back afterwards."""
    models = []

    def make(family, dtype=torch.float32):
        models.append(build(family, dtype).train())
        padfree.enable(models[-1])
        return models[-1]

    yield make
    for model in models:
        padfree.disable(model)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_equals_eager_samples(wired, family, dtype):
    wanted = references(family, dtype)
    assert_as_good_as_eager(run_packed(wired(family, dtype), samples()), wanted)


@pytest.mark.parametrize("family", ["llama", "lfm2"])
def test_samples_apart_equal_eager(wired, family):
    wanted = references(family)
    assert_as_good_as_eager(run_apart(wired(family), samples()), wanted)


@pytest.mark.parametrize("drop", [KEYWORDS, ("seq_idx",), ("position_ids",)], ids=str)
def test_any_sufficient_set_of_keywords_gives_the_same(wired, drop):
    wanted = references("lfm2")
    assert_as_good_as_eager(run_packed(wired("lfm2"), samples(), drop), wanted)


@pytest.mark.parametrize("family", ["lfm2", "qwen3_next"])
def test_gradient_checkpointing(wired, family):
    rows, model = samples(), wired(family)
    plain = run_packed(model, rows)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    logits, gradients = run_packed(model, rows)
    assert_same_bits(logits, plain[0], "logits")
    for name, gradient in gradients.items():
        assert_same_bits(gradient, plain[1][name], name)


@pytest.mark.parametrize("poison", [float("nan"), 1e4])
@pytest.mark.parametrize("family", ["llama", "lfm2"])
def test_a_poisoned_sample_leaves_the_others_bits_alone(wired, family, poison):
    model, rows = wired(family), samples((7, 12, 6))
    clean, clean_gradient = from_embeddings(model, rows)
    got, gradient = from_embeddings(model, rows, poison)
    assert not torch.equal(got[:7], clean[:7]), "the poison must reach its own sample"
    assert_same_bits(got[7:], clean[7:], "logits of the other samples")
    assert_same_bits(gradient[7:], clean_gradient[7:], "gradient of the other samples")


def test_autocast_over_float32_weights(wired):
    """What Trainer's ``bf16=True`` does."""
    rows = samples()
    wanted, plain = references("lfm2")[0][0], build("lfm2")
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        eager = torch.cat([plain(input_ids=row[None], use_cache=False).logits[0] for row in rows])
        got = wired("lfm2")(**pack(rows)).logits[0]
    assert got.dtype == eager.dtype == torch.bfloat16
    assert_near(got, wanted, eager, "logits")
