"""Families with a recurrence: what this bundle has is wired and right, what it lacks is named, and no batch leaks."""

import pytest
import torch
from tiny_models import HYBRIDS, assert_as_good_as_eager, build, pack, references, run_apart, run_packed, samples

pytestmark = pytest.mark.usefixtures("one_thread")

FLASH = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
RECURRENCES = {
    "chunk_gated_delta_rule",
    "chunk_kda",
    "mamba_chunk_scan_combined",
    "mamba_split_conv1d_scan_combined",
    "selective_scan_fn",
    "mamba_inner_fn",
}


# Their attention gets no position_ids, so that seq_idx alone leaves it without boundaries.
WITHOUT_POSITIONS = ("granitemoehybrid",)


@pytest.fixture(params=HYBRIDS)
def family(request):
    return request.param


@pytest.fixture
def wired(padfree, family):
    """A wired model in training mode, what enable() said, and references made before."""
    wanted, model = references(family), build(family).train()
    report = padfree.enable(model)
    yield model, report, wanted
    padfree.disable(model)


def test_one_sample_at_a_time(padfree, wired):
    model, report, wanted = wired
    assert "causal_conv1d_fn" in report.wired
    assert_as_good_as_eager(run_apart(model, samples()), wanted, normwise=True)
    for name, reason in report.not_wired.items():
        assert reason == "not in this bundle yet, torch code of transformers runs", name


# the columns of the table of silent leaks: what a batch carries
CARRIES = {
    "seq_idx and flash keywords": (),
    "flash keywords": ("seq_idx",),
    "seq_idx": FLASH,
    "positions only": ("seq_idx", *FLASH),
}


@pytest.mark.parametrize("carries", CARRIES)
def test_packed_is_right_or_refused(padfree, wired, family, carries):
    """Right where the bundle has the recurrence and the boundaries reach it; else refused with its name."""
    model, report, wanted = wired
    lacking = RECURRENCES & set(report.not_wired)
    drop = CARRIES[carries]
    refused = carries == "positions only" or (carries == "seq_idx" and family in WITHOUT_POSITIONS)
    if not lacking and not refused:
        assert_as_good_as_eager(run_packed(model, samples(), drop), wanted, normwise=True)
        return
    batch = {name: value for name, value in pack(samples()).items() if name not in drop}
    with pytest.raises(ValueError, match=r"packed samples|would mix the samples") as error:
        model(**batch)
    assert type(model).__name__ in str(error.value)
    for name in lacking:
        assert name in str(error.value)


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
