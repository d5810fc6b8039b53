"""Families with a recurrence, whole: training, inference, padded rows, poison, generation, saving and loading.

That a packed batch is right or refused, by what it carries, is in test_transformers_leaks.py.
"""

import pytest
import torch
import transformers
from tiny_models import (
    HYBRIDS,
    assert_as_good_as_eager,
    build,
    from_embeddings,
    left_padded,
    references,
    run_apart,
    run_packed,
    samples,
)
from tolerance import assert_near, assert_same_bits

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=HYBRIDS)
def family(request):
    return request.param


@pytest.fixture
def wired(padfree, family):
    """A wired model in training mode, and references made before."""
    wanted, model = references(family), build(family).train()
    report = padfree.enable(model)
    assert report.not_wired == {}
    assert "causal_conv1d_fn" in report.wired
    yield model, wanted
    padfree.disable(model)


def test_one_sample_at_a_time(wired):
    model, wanted = wired
    assert_as_good_as_eager(run_apart(model, samples()), wanted)


def test_in_inference(wired):
    """Without the fused forms that models ask for in training."""
    model, wanted = wired
    logits, gradients = run_packed(model.eval(), samples())
    assert_as_good_as_eager((logits, gradients), wanted)


@pytest.mark.parametrize("poison", [float("nan"), 1e4])
def test_a_poisoned_sample_leaves_the_others_bits_alone(wired, poison):
    model, rows = wired[0], samples((7, 12, 6))
    clean, clean_gradient = from_embeddings(model, rows)
    got, gradient = from_embeddings(model, rows, poison)
    assert not torch.equal(got[:7], clean[:7]), "the poison must reach its own sample"
    assert_same_bits(got[7:], clean[7:], "logits of the other samples")
    assert_same_bits(gradient[7:], clean_gradient[7:], "gradient of the other samples")


def test_generates_as_eager(padfree, family):
    settings = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    ids = torch.arange(1, 9)[None]
    mask = torch.ones_like(ids)
    model = build(family).eval()
    wanted = model.generate(ids, attention_mask=mask, **settings)
    padfree.enable(model)
    try:
        assert torch.equal(model.generate(ids, attention_mask=mask, **settings), wanted)
    finally:
        padfree.disable(model)


def test_padded_rows_in_training(padfree, family):
    """Left padding with an attention_mask, as a plain collator makes it: what eager code of the rows gives.

    Biases that start at 0 would hide a convolution whose output over the padding is not masked.
    """
    rows = samples((9, 4, 12))
    reference = _with_biases(build(family, torch.float64).train())
    wanted = [reference(input_ids=row[None], use_cache=False).logits[0] for row in rows]
    model = _with_biases(build(family).train())
    eager = [model(input_ids=row[None], use_cache=False).logits[0] for row in rows]
    padfree.enable(model)
    try:
        logits = model(**left_padded(rows), use_cache=False).logits
    finally:
        padfree.disable(model)
    for row, got, exact, other in zip(rows, logits, wanted, eager, strict=True):
        assert_near(got[-len(row) :], exact, other, f"row of {len(row)}", exact.abs().max())


def _with_biases(model):
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if name.endswith("conv1d.bias"):
            parameter.data += 0.5 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
    return model


def test_saved_and_loaded(padfree, wired, tmp_path):
    model, _ = wired
    want = run_packed(model, samples())[0]
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).train()
    padfree.enable(loaded)
    assert_same_bits(run_packed(loaded, samples())[0], want, "logits")
    padfree.disable(loaded)
