"""The guide on transformers alone: the truth, and what a packed batch does when nobody knows its boundaries."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from bundle.guide import corpus, events, measure, models

ATTENTION = "sdpa"


def run(work: Path, samples: list[corpus.Sample]) -> dict[str, Any]:
    """Measure each model; the truth goes to ``work``, for the process with the bundle."""
    return {name: _model(name, work, samples) for name in models.CONFIGS}


def truth_file(work: Path, name: str) -> Path:
    """Where the sample-by-sample loss and gradients of a model lie."""
    return work / f"truth-{name}.pt"


def _model(name: str, work: Path, samples: list[corpus.Sample]) -> dict[str, Any]:
    events.progress(f"{name} without the bundle: sample by sample")
    model = models.make(name, ATTENTION)
    truth = measure.one_by_one(model, samples)
    torch.save({"loss": truth.loss, "gradients": truth.gradients}, truth_file(work, name))
    events.progress(f"{name} without the bundle: packed")
    return {
        "boundaries": _attempt(model, corpus.packed(samples), truth, samples),
        "position_ids": _attempt(model, corpus.packed(samples, boundaries=False), truth, samples),
    }


def _attempt(
    model: PreTrainedModel, batch: dict[str, Any], truth: measure.Step, samples: list[corpus.Sample]
) -> dict[str, Any]:
    try:
        step = measure.together(model, batch, corpus.targets(samples))
    except (ValueError, RuntimeError, NotImplementedError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"difference": asdict(measure.difference(step, truth))}
