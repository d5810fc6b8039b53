"""The guide on the bundle as fetched from the Hub: it trains, and the packed step equals the sample-by-sample one."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import kernels
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import (
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from bundle.guide import corpus, events, measure, models
from bundle.guide.claims import BUNDLE, PACKED, PADDED
from bundle.guide.without import ATTENTION, truth_file

SAMPLES_A_STEP = 8


def run(work: Path, samples: list[corpus.Sample], repository: str, steps: int) -> dict[str, Any]:
    """Fetch the bundle, then measure and train each model on it."""
    events.progress(f"get_kernel({repository!r}, version=1)")
    started = time.perf_counter()
    bundle = kernels.get_kernel(repository, version=1)
    fetched = time.perf_counter() - started
    loaded = {"id": bundle.__name__, "path": str(bundle.__file__), "isa": bundle.isa(), "seconds": fetched}
    return {
        "loaded": loaded,
        "models": {name: _model(name, work, samples, repository, bundle, steps) for name in models.CONFIGS},
    }


def _model(
    name: str, work: Path, samples: list[corpus.Sample], repository: str, bundle: ModuleType, steps: int
) -> dict[str, Any]:
    """Llama takes the bundle by transformers' own switch; the hybrids, which also convolve, by ``enable``."""
    events.progress(f"{name} on the bundle: packed")
    plain = models.make(name, ATTENTION)
    model = models.make(name, repository if name == "Llama" else ATTENTION)
    if name != "Llama":
        bundle.enable(model)
    truth = measure.Step(**torch.load(truth_file(work, name)))
    batch, count = corpus.packed(samples), corpus.targets(samples)
    step = measure.together(model, batch, count)
    measured = {
        "difference": asdict(measure.difference(step, truth)),
        "ops": ops_of_a_step(model, batch, count, bundle.__name__),
    }
    events.progress(f"{name}: packed on the bundle and padded without it, in turns")
    seconds = _race(name, model, plain, samples, bundle)
    return {**measured, "seconds": seconds, "losses": train(name, model, work, steps)}


def _race(
    name: str, model: PreTrainedModel, plain: PreTrainedModel, samples: list[corpus.Sample], bundle: ModuleType
) -> dict[str, list[float]]:
    """Seconds of a step on the bundle and of the same step without it, in turns.

    Models of one family share the convolution that ``enable`` replaces, so it is given back for the plain one's turn.
    """
    count = corpus.targets(samples)
    packed, padded = corpus.packed(samples), corpus.padded(samples)
    shared = name != "Llama"

    def on_the_bundle() -> None:
        if shared:
            bundle.enable(model)

    def without_it() -> None:
        if shared:
            bundle.disable(model)

    actions = [
        ("enable", on_the_bundle),
        (BUNDLE, lambda: measure.together(model, packed, count)),
        ("disable", without_it),
        (PADDED, lambda: measure.together(plain, padded, count)),
    ]
    if not shared:  # without the bundle only attention keeps packed samples apart
        actions.append((PACKED, lambda: measure.together(plain, packed, count)))
    seconds = measure.turns(actions)
    on_the_bundle()
    return {key: seconds[key] for key in (BUNDLE, PADDED, PACKED) if key in seconds}


def ops_of_a_step(model: PreTrainedModel, batch: dict[str, Any], count: int, namespace: str) -> dict[str, int]:
    """How often each op of the bundle runs in one forward and backward: the proof that it is what computes."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        measure.together(model, batch, count)
    prefix = f"{namespace}::"
    return {
        event.key.removeprefix(prefix): event.count for event in recorded.key_averages() if event.key.startswith(prefix)
    }


def train(name: str, model: PreTrainedModel, work: Path, steps: int) -> list[float]:
    """Some steps of ``transformers.Trainer`` with the collator of the padding-free guide; the loss of each."""
    arguments = TrainingArguments(
        output_dir=str(work / f"trainer-{name}"),
        max_steps=steps,
        per_device_train_batch_size=SAMPLES_A_STEP,
        learning_rate=3e-3,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=corpus.features(corpus.documents()),
        data_collator=corpus.collator(),
        callbacks=[_Progress(f"{name} on the bundle: training")],
    )
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


class _Progress(TrainerCallback):  # type: ignore[misc]  # transformers is skipped: its types cost half a minute
    """Tells the parent each step."""

    def __init__(self, what: str) -> None:
        self.what = what

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        events.progress(self.what, state.global_step, state.max_steps)
