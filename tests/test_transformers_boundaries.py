"""A packed batch whose boundaries a layer would not get is refused before a layer runs; everything else passes."""

import re

import pytest
import torch
from tiny_models import ALONE, build, pack, samples
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.usefixtures("one_thread")

KEYWORDS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


@pytest.fixture
def wired(padfree):
    models = []

    def make(family, **arguments):
        models.append(build(family).train())
        padfree.enable(models[-1], **arguments)
        return models[-1]

    yield make
    for model in models:
        padfree.disable(model)


def _without(batch, *names):
    return {name: value for name, value in batch.items() if name not in names}


def _two_rows():
    ids = torch.arange(12).view(2, 6)
    return {"input_ids": ids, "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]]).expand(2, 6), "use_cache": False}


def _three_planes(batch):
    return {**_without(batch, "seq_idx", *KEYWORDS), "position_ids": batch["position_ids"].expand(3, -1, -1)}


REFUSED = {
    "conv without boundaries": (
        "lfm2",
        lambda b: _without(b, "seq_idx", *KEYWORDS),
        "position_ids restart inside a row, but causal_conv1d_fn gets neither seq_idx nor cu_seq_lens_q",
    ),
    "two packed rows": (
        "llama",
        lambda b: _two_rows(),
        "position_ids restart inside a row, but attention follows position_ids only for one row, got 2",
    ),
    "a 0 in the mask": (
        "llama",
        lambda b: {**b, "attention_mask": torch.ones_like(b["input_ids"]).index_fill_(1, torch.tensor([0]), 0)},
        "cu_seq_lens_q holds 5 samples, but attention drops sample boundaries next to a 0 in attention_mask",
    ),
    "no max_length": (
        "llama",
        lambda b: _without(b, "position_ids", "max_length_q", "max_length_k"),
        "cu_seq_lens_q holds 5 samples, but attention follows cu_seq_lens_q, cu_seq_lens_k only together with max_len",
    ),
    "seq_idx alone": (
        "lfm2",
        lambda b: _without(b, "position_ids", *KEYWORDS),
        "seq_idx changes inside a row, but attention gets no boundaries. Pass cu_seq_lens_q, cu_seq_lens_k, max_length",
    ),
    "3-D positions": (
        "llama",
        _three_planes,
        "position_ids restart inside a row, but attention cannot read 3-D position_ids",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_any_layer_runs(wired, case):
    family, change, text = REFUSED[case]
    model, ran = wired(family), []
    model.get_input_embeddings().register_forward_hook(lambda *_: ran.append(1))
    with pytest.raises(ValueError, match=re.escape(text)) as error:
        model(**change(pack(samples())))
    assert type(model).__name__ in str(error.value)
    assert not ran


@pytest.mark.parametrize("family", ALONE)
def test_code_nothing_can_replace_is_refused_by_name(padfree, family):
    model = build(family).train()
    try:
        report = padfree.enable(model)
        assert report.not_wired["own code"] == f"{type(model).__name__} mixes tokens in code that no kernel can replace"
        with pytest.raises(ValueError, match="it mixes tokens in code of its own, which knows no boundaries"):
            model(**pack(samples()))
    finally:
        padfree.disable(model)


PASSED = {
    "collator": lambda b: b,
    "positions of one row": lambda b: _without(b, *KEYWORDS),
    "a mask of ones": lambda b: {**b, "attention_mask": torch.ones_like(b["input_ids"])},
    "no positions": lambda b: _without(b, "position_ids"),
    "one sample": lambda b: {"input_ids": b["input_ids"], "use_cache": False},
    "padded rows": lambda b: {
        "input_ids": torch.arange(12).view(2, 6),
        "attention_mask": torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]]),
        "position_ids": torch.tensor([[0, 1, 2, 3, 4, 5], [1, 1, 0, 1, 2, 3]]),
    },
    "positional arguments": lambda b: b,
}


@pytest.mark.parametrize("family", ["llama", "lfm2"])
@pytest.mark.parametrize("case", PASSED)
def test_passed(wired, family, case):
    batch = PASSED[case](pack(samples()))
    if case == "positional arguments":
        ids, positions = batch.pop("input_ids"), batch.pop("position_ids")
        out = wired(family)(ids, None, positions, **batch)
    else:
        out = wired(family)(**batch)
    assert out.logits.isfinite().all()


def test_positional_arguments_are_read(wired):
    batch = _without(pack(samples()), "seq_idx", *KEYWORDS)
    with pytest.raises(ValueError, match="position_ids restart"):
        wired("lfm2")(batch["input_ids"], None, batch["position_ids"], use_cache=False)


def test_a_layer_whose_keywords_are_dropped_takes_them_from_the_entrance(wired):
    model, batch = wired("lfm2"), pack(samples())
    wanted = model(**batch).logits
    for layer in model.model.layers:
        if hasattr(layer, "conv"):
            layer.conv.register_forward_pre_hook(_drop, with_kwargs=True)
    assert torch.equal(model(**batch).logits, wanted)
    assert torch.equal(model(**_without(batch, "seq_idx")).logits, wanted)


def test_attention_without_its_keywords_is_refused_at_the_layer(wired):
    model = wired("llama")
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(_drop, with_kwargs=True)
    with pytest.raises(ValueError, match="drops its boundary keywords on the way to attention"):
        model(**pack(samples()))


def _drop(module, args, kwargs):
    return args, {k: v for k, v in kwargs.items() if k not in ("seq_idx", "position_ids", *KEYWORDS)}


def test_an_error_in_a_layer_leaves_no_state_behind(wired):
    model = wired("llama")
    handle = model.model.layers[0].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(**pack(samples()))
    handle.remove()
    other = wired("lfm2")
    assert other(input_ids=torch.arange(6)[None]).logits.isfinite().all()


def test_another_attention_chosen_later_is_judged_by_its_own_rule(wired):
    model, batch = wired("llama"), pack(samples())
    model.set_attn_implementation("sdpa")
    assert model(**batch).logits.isfinite().all()
    for change in (
        {"use_cache": True},
        {"position_ids": None},
        {"attention_mask": torch.ones_like(batch["input_ids"])},
    ):
        with pytest.raises(ValueError, match="attention is not a flash kernel here"):
            model(**{**batch, **change})


def test_switched_off(wired):
    batch = _without(pack(samples()), "seq_idx", *KEYWORDS)
    assert wired("lfm2", check_boundaries=False)(**batch).logits.isfinite().all()


class _Counted(TorchDispatchMode):
    """Counts torch's operations."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_no_value_is_looked_at_where_the_keywords_settle_it(wired):
    """What that costs is in benchmarks/benchmark_boundaries.py."""
    model, batch = wired("lfm2"), pack(samples())
    (enter,), (leave,) = model._forward_pre_hooks.values(), model._forward_hooks.values()
    with _Counted() as settled:
        enter(model, (), batch)
        leave(model, (), None)
    with _Counted() as open_question, pytest.raises(ValueError, match="position_ids restart"):
        enter(model, (), _without(batch, "seq_idx", *KEYWORDS))
    leave(model, (), None)
    assert (settled.count, open_question.count > 0) == (0, True)
