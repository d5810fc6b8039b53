"""Loss, gradients and time of one training step, and how far two of them are apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from bundle.guide.corpus import Sample, targets

ROUNDS = 5


@dataclass(frozen=True)
class Step:
    """Loss of a step and the gradient of every parameter."""

    loss: float
    gradients: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Difference:
    """``loss``: absolute. ``gradient``: the worst entry over all parameters, relative to that parameter's largest."""

    loss: float
    gradient: float


def one_by_one(model: PreTrainedModel, samples: list[Sample]) -> Step:
    """The truth: each sample alone, losses and gradients added up."""
    model.zero_grad()
    total = 0.0
    for sample in samples:
        row = torch.tensor([sample])
        loss = model(input_ids=row, labels=row, num_items_in_batch=targets(samples)).loss
        loss.backward()
        total += loss.item()
    return Step(total, _gradients(model))


def together(model: PreTrainedModel, batch: dict[str, Any], count: int) -> Step:
    """The same step on one batch that holds ``count`` targets."""
    model.zero_grad()
    loss = model(**batch, num_items_in_batch=count).loss
    loss.backward()
    return Step(loss.item(), _gradients(model))


def difference(step: Step, truth: Step) -> Difference:
    """How far ``step`` is from ``truth``; a NaN anywhere is a difference of infinity."""
    worst = 0.0
    for name, wanted in truth.gradients.items():
        apart = ((step.gradients[name] - wanted).abs().max() / wanted.abs().max()).item()
        worst = max(worst, apart if apart == apart else float("inf"))
    loss = abs(step.loss - truth.loss)
    return Difference(loss if loss == loss else float("inf"), worst)


def turns(actions: Sequence[tuple[str, Callable[[], object]]], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Seconds of each action in each round. They take turns, so that other work on the machine disturbs all alike.

    A first round is not counted.
    """
    taken: dict[str, list[float]] = {name: [] for name, _ in actions}
    for _ in range(rounds + 1):
        for name, action in actions:
            started = time.perf_counter()
            action()
            taken[name].append(time.perf_counter() - started)
    return {name: seconds[1:] for name, seconds in taken.items()}


def _gradients(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
