"""The demo's claims fail when they must, its batches hold what they say, and its parts talk to each other."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import torch

from bundle import demo
from bundle.errors import DemoError, UsageError
from bundle.guide import claims, corpus, measure, models

LOSSES = [5.6, 4.0, 3.1]


def measured() -> dict[str, Any]:
    """Numbers under which every claim holds."""
    ours = {
        name: {
            "difference": {"loss": 1e-6, "gradient": 1e-6},
            "ops": dict.fromkeys(claims.OPS[name], 2),
            "seconds": {claims.BUNDLE: [1.0, 9.0, 1.0], claims.PADDED: [2.0, 1.5, 2.0]},
            "losses": LOSSES,
        }
        for name in models.CONFIGS
    }
    return {"targets": 1000, "models": ours}


def test_claims_that_hold_pass() -> None:
    claims.judge(measured())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"difference": {"loss": 1e-3, "gradient": 0.0}}, "packed loss differs"),
        ({"difference": {"loss": 0.0, "gradient": 1e-3}}, "packed gradient differs"),
        ({"difference": {"loss": float("nan"), "gradient": 0.0}}, "packed loss differs"),
        ({"ops": {}}, "none of it"),
        ({"ops": {"attention_fwd": 1}}, "a step did not run"),
        ({"losses": [1.0, 1.0]}, "the loss must fall"),
        ({"losses": [1.0, float("nan")]}, "the loss must fall"),
        ({"losses": [1.0, float("nan"), 0.5]}, "the loss must fall"),
    ],
)
@pytest.mark.parametrize("name", list(models.CONFIGS))
def test_claim_that_does_not_hold_is_named(name: str, change: dict[str, Any], text: str) -> None:
    with_bundle = measured()
    with_bundle["models"][name].update(change)
    with pytest.raises(DemoError, match=f"{name}: .*{text}"):
        claims.judge(with_bundle)


def test_speed_is_that_of_the_best_rounds() -> None:
    seconds = measured()["models"]["Llama"]["seconds"]
    assert claims.faster(seconds, claims.BUNDLE) == 1.5
    assert claims.faster(seconds, claims.PADDED) == 1.0


def test_the_text_is_ascii_uneven_and_long_enough() -> None:
    lengths = sorted(map(len, corpus.documents()))
    assert sum(lengths) > 40_000
    assert lengths[-1] > 10 * lengths[len(lengths) // 2], "packing is only worth it for uneven lengths"
    assert max(map(max, corpus.documents())) < 128
    assert corpus.drawn(5) == corpus.drawn(5)


def test_packed_and_padded_batches_hold_the_same_tokens() -> None:
    samples = corpus.drawn(4)
    packed, padded = corpus.packed(samples), corpus.padded(samples)
    flat = [token for sample in samples for token in sample]
    assert packed["input_ids"].tolist() == [flat]
    assert padded["input_ids"][padded["attention_mask"].bool()].tolist() == flat
    assert packed["cu_seq_lens_q"].tolist() == [sum(map(len, samples[:count])) for count in range(5)]
    assert (packed["labels"][:, 1:] != corpus.IGNORED).sum().item() == corpus.targets(samples)
    assert (padded["labels"][:, 1:] != corpus.IGNORED).sum().item() == corpus.targets(samples)
    assert "seq_idx" not in corpus.packed(samples, boundaries=False)


@pytest.mark.parametrize("name", list(models.CONFIGS))
def test_padded_step_equals_one_by_one(name: str) -> None:
    samples = [sample[:40] for sample in corpus.drawn(3)]
    model = models.make(name, "sdpa")
    truth = measure.one_by_one(model, samples)
    padded = measure.together(model, corpus.padded(samples), corpus.targets(samples))
    apart = measure.difference(padded, truth)
    assert max(apart.loss, apart.gradient) <= claims.allowance(corpus.targets(samples))


def test_difference_sees_one_wrong_entry_and_a_nan() -> None:
    truth = measure.Step(1.0, {"w": torch.tensor([1.0, -4.0])})
    assert measure.difference(measure.Step(1.5, {"w": torch.tensor([1.0, -3.0])}), truth) == measure.Difference(
        0.5, 0.25
    )
    nan = measure.difference(measure.Step(float("nan"), {"w": torch.tensor([1.0, float("nan")])}), truth)
    assert nan == measure.Difference(float("inf"), float("inf"))


def test_actions_take_turns_and_the_first_round_is_not_counted() -> None:
    called: list[str] = []
    actions = [("a", lambda: called.append("a")), ("b", lambda: called.append("b"))]
    assert {name: len(seconds) for name, seconds in measure.turns(actions, rounds=2).items()} == {"a": 2, "b": 2}
    assert called == ["a", "b"] * 3


def test_a_line_that_is_no_event_is_passed_over() -> None:
    assert demo._event("Some library says hello\n") == {}
    assert demo._event("3\n") == {}
    assert demo._event('{"what": "x", "done": 1, "of": 2}')["done"] == 1


def test_too_few_steps_are_refused() -> None:
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    with pytest.raises(UsageError, match="--steps must be at least 2"):
        demo.run(parser.parse_args(["--steps", "1"]))
