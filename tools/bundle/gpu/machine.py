"""Where a GPU check computes: the device, how time is taken there, and what it can do at most."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bundle.bench_case import compare

Call = Callable[[], Any]

BATCH_SECONDS = 0.004
"""So long the calls between two clock readings take at least: what it costs to ask for one, and to start a GPU that
waits, is shared among them."""
MOST_CALLS = 100
MOST_ROUNDS = 20
FEWEST_ROUNDS = 3
TOLERANCE = 0.03
"""Of the largest value. The tests prove accuracy; this only proves that all contenders compute the same thing."""


@dataclass(frozen=True)
class Machine:
    """``cuda``: a GPU and its own clock; else the CPU and the host's, for the emulator."""

    cuda: bool

    @property
    def device(self) -> torch.device:
        """Where tensors lie."""
        return torch.device("cuda" if self.cuda else "cpu")

    def __str__(self) -> str:
        return torch.cuda.get_device_name() if self.cuda else "CUDA emulated on the CPU: no number here says anything"

    def seconds(self, call: Call, calls: int) -> float:
        """What one of so many calls in a row takes."""
        if not self.cuda:
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            return (time.perf_counter() - begin) / calls
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        first.record()
        for _ in range(calls):
            call()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) * 1e-3 / calls

    def tried(self, contenders: Mapping[str, Call]) -> tuple[dict[str, Any], dict[str, str]]:
        """The results of those that work here, and why the others do not; the first one, ours, may raise instead."""
        results, words = {}, {}
        for name, call in contenders.items():
            try:
                results[name] = call()
                if self.cuda:
                    torch.cuda.synchronize()
            except (RuntimeError, NotImplementedError, ImportError, TypeError) as error:
                if not results:
                    raise
                full = isinstance(error, torch.OutOfMemoryError)
                words[name] = "no memory" if full else f"not here ({type(error).__name__})"
            if self.cuda:
                torch.cuda.empty_cache()
        return results, words

    def compared(
        self, work: str, contenders: Mapping[str, Call], seconds: float
    ) -> tuple[dict[str, float], dict[str, str]]:
        """Median seconds a call of each contender that works here, taken in turns for about ``seconds`` each, and words
        for the others. CheckError when two compute different things. The first contender is ours."""
        results, words = self.tried(contenders)
        if len(results) > 1:
            ours, *others = results.items()
            compare(work, {"": ours[1], **dict(others)}, tolerance=TOLERANCE)
        calls, rounds = {}, {}
        for name in tuple(results):
            del results[name]
            cost = max(self.seconds(contenders[name], 1), 1e-6)
            calls[name] = max(1, min(MOST_CALLS, math.ceil(BATCH_SECONDS / cost)))
            rounds[name] = max(FEWEST_ROUNDS, min(MOST_ROUNDS, int(seconds / (calls[name] * cost))))
        taken: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(max(rounds.values())):
            for name, many in calls.items():
                if turn < rounds[name]:
                    taken[name].append(self.seconds(contenders[name], many))
        return {name: statistics.median(each) for name, each in taken.items()}, words


def matrix_product(machine: Machine, size: int) -> tuple[Call, float]:
    """A bfloat16 product of random square matrices, and its operations."""
    a, b = (torch.randn(size, size, device=machine.device, dtype=torch.bfloat16) for _ in range(2))
    return lambda: a @ b, 2.0 * size**3


def copy(machine: Machine, values: int) -> tuple[Call, float]:
    """One tensor into another, and the bytes read and written."""
    source, target = (torch.ones(values, device=machine.device) for _ in range(2))
    return lambda: target.copy_(source), 2.0 * values * source.element_size()
