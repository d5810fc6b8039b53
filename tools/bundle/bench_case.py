"""One case of ``bundle bench``: what it consists of, and how its sides take turns.

A case is a dict that holds

- ``candidate``: a callable without arguments that returns a tensor or a tuple of tensors,
- ``baselines``: ``{name: callable}``, the same result by other means; the fastest one counts,
- ``flops`` and ``bytes``: the useful operations and the least memory traffic of one call,
- ``tolerance`` (optional): the worst difference from the first baseline allowed, relative to its largest value,
- ``once`` (optional): names of baselines too slow for turns: each runs once in a report, at the first thread count,
- ``tokens`` (optional): how many tokens a call handles, for tokens a second.

All its callables take turns within one process, A/B/A/B; a ratio is that of the medians, its spread the middle half of
the ratios of single rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from bundle.bench_report import Result
from bundle.errors import CheckError
from bundle.machine_peak import Peak

DEFAULT_TOLERANCE = 0.02
"""Loose on purpose: the tests prove accuracy, this only proves that both sides compute the same thing."""

Call = Callable[[], Any]


def time_case(
    name: str, case: dict[str, Any], threads: int, args: argparse.Namespace, peak: Peak, known: Mapping[str, float]
) -> tuple[Result, dict[str, float]]:
    """Warm up, compare, then take turns for about ``--seconds``.

    ``known``: the seconds of this case's baselines that have had their one run in this report; returned with those of
    the others that run once.
    """
    import torch

    torch.set_num_threads(threads)
    contenders: dict[str, Call] = {"": case["candidate"], **case["baselines"]}
    clock = time.perf_counter if args.clock == "wall" else time.thread_time
    alone = {label: contenders.pop(label) for label in case.get("once", ())}
    first = {label: call() for label, call in contenders.items()}
    lone = dict(known)
    for label in alone.keys() - lone.keys():
        first[label], lone[label] = clock_once(alone[label], clock)
    compare(name, first, case.get("tolerance", DEFAULT_TOLERANCE))
    del first
    times = take_turns(contenders, clock, args.seconds)
    rounds = len(times[""])
    times |= {label: [lone[label]] * rounds for label in alone}
    medians = {label: statistics.median(values) for label, values in times.items()}
    mine = medians.pop("")
    best = min(medians, key=lambda label: medians[label])
    least = min(times[""])  # beside peaks that are of their fastest run, too: a machine may change its speed
    ratios = sorted(b / a for a, b in zip(times[""], times[best], strict=True))
    result = Result(
        case=name,
        threads=threads,
        seconds=mine,
        fastest=least,
        baseline=best,
        baseline_seconds=medians[best],
        ratio=medians[best] / mine,
        ratio_low=ratios[rounds // 4],
        ratio_high=ratios[rounds - 1 - rounds // 4],
        of_peak=case["flops"] / least * 1e-9 / peak.gflops,
        of_read=case["bytes"] / least * 1e-9 / peak.read_gbs,
        tokens=case.get("tokens"),
    )
    return result, lone


def take_turns(contenders: Mapping[str, Call], clock: Callable[[], float], seconds: float) -> dict[str, list[float]]:
    """The seconds of each call: one round to see what it costs, then as many as fit, 3 to 200."""
    cost = sum(clock_once(call, clock)[1] for call in contenders.values())
    rounds = max(3, min(200, round(seconds / cost)))
    times: dict[str, list[float]] = {label: [] for label in contenders}
    for _ in range(rounds):
        for label, call in contenders.items():
            times[label].append(clock_once(call, clock)[1])
    return times


def clock_once(call: Call, clock: Callable[[], float]) -> tuple[Any, float]:
    """The result and the seconds of one call; freeing the result is not timed."""
    start = clock()
    result = call()
    return result, clock() - start


def compare(name: str, results: Mapping[str, Any], tolerance: float) -> None:
    """All contenders compute the same: otherwise a ratio says nothing."""
    mine = as_tuple(results[""])
    for label, result in results.items():
        for index, (got, wanted) in enumerate(zip(mine, as_tuple(result), strict=True)):
            if got.shape != wanted.shape:
                raise CheckError(f"{name}: result {index} has shape {tuple(got.shape)}, {label} {tuple(wanted.shape)}")
            got, wanted = got.detach().float(), wanted.detach().float()
            worst = (got - wanted).abs().max().item() / max(wanted.abs().max().item(), 1e-30)
            if not worst <= tolerance:
                raise CheckError(f"{name}: result {index} differs from {label} by {worst:.2g}, allowed {tolerance:g}")


def as_tuple(result: Any) -> tuple[Any, ...]:
    """The tensors of a result."""
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)
