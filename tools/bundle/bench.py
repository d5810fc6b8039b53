"""``bundle bench``: times the bundle against what a user could write instead, and against what the machine can do.

A benchmark module (``benchmarks/benchmark_<op>.py``) offers ``CASES: dict[str, Callable[[module], dict]]``. A case is
built only when it is timed; its dict holds

- ``candidate``: a callable without arguments that returns a tensor or a tuple of tensors,
- ``baselines``: ``{name: callable}``, the same result by other means; the fastest one counts,
- ``flops`` and ``bytes``: the useful operations and the least memory traffic of one call,
- ``tolerance`` (optional): the worst difference from the first baseline allowed, relative to its largest value.

All callables of a case take turns within one process, A/B/A/B; a ratio is that of the medians, its spread the middle
half of the ratios of single rounds. Allocation policy: every call allocates its results as a user's call would, torch's
allocator keeps nothing between calls, so large results pay their page faults on both sides.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from bundle import compiler, options, process
from bundle.errors import CheckError, EmptySelectionError, UsageError

DEFAULT_TOLERANCE = 0.02
"""Loose on purpose: the tests prove accuracy, this only proves that both sides compute the same thing."""


@dataclass(frozen=True)
class Peak:
    """What the machine reached on some number of threads."""

    gflops: float
    read_gbs: float
    copy_gbs: float


@dataclass(frozen=True)
class Result:
    """One case on one number of threads; times are medians in seconds."""

    case: str
    threads: int
    seconds: float
    baseline: str
    baseline_seconds: float
    ratio: float
    ratio_low: float
    ratio_high: float
    of_peak: float
    of_read: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of the verb."""
    options.add_out(parser)
    parser.add_argument(
        "--root", type=options.directory, default=options.REPOSITORY, metavar="DIR", help="the checkout"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="GLOB", help="only cases whose name matches; may be repeated"
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1], metavar="N", help="numbers of threads")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: the computing thread's own time, for a machine with other work; one thread only",
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="time to spend on each case, about")
    parser.add_argument("--json", type=options.directory, metavar="FILE", help="also write the results there")


def run(args: argparse.Namespace) -> int:
    """Time the selected cases and print the table."""
    out, scratch = options.places(args)
    if args.clock == "cpu" and args.threads != [1]:
        raise UsageError(f"--clock cpu must go with one thread, got --threads {' '.join(map(str, args.threads))}")
    selected = {name: build for name, build in cases(args.root) if chosen(name, args.only)}
    if not selected:
        raise EmptySelectionError(
            f"--only must match a case, got {' '.join(args.only)}",
            hint=f"There are: {', '.join(name for name, _ in cases(args.root))}",
        )
    kernel = load(out)
    results: list[Result] = []
    peaks: dict[int, Peak] = {}
    for threads in args.threads:
        peaks[threads] = measure_peak(scratch, threads, args.clock)
        process.say(
            f"{threads} thread(s): {peaks[threads].gflops:.0f} GFLOP/s fused multiply-add, "
            f"{peaks[threads].read_gbs:.1f} GB/s read, {peaks[threads].copy_gbs:.1f} GB/s copied (read + written)"
        )
        for name, build in selected.items():
            results.append(time_case(name, build(kernel), threads, args, peaks[threads]))
            process.say(line(results[-1]))
    print(table(results))
    process.say("Each call allocates its results; ratio: medians of A/B/A/B rounds, in brackets the middle half.")
    if args.json:
        args.json.write_text(
            json.dumps(
                {"peaks": {n: asdict(p) for n, p in peaks.items()}, "results": [asdict(r) for r in results]}, indent=1
            )
        )
    return 0


def cases(root: Path) -> Iterator[tuple[str, Callable[[ModuleType], dict[str, Any]]]]:
    """``(<op>/<case>, build)`` of every benchmark module."""
    for path in sorted((root / "benchmarks").glob("benchmark_*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise CheckError(f"{path} must be a Python module, the import system refuses it")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        for name, build in module.CASES.items():
            yield f"{path.stem.removeprefix('benchmark_')}/{name}", build


def chosen(name: str, globs: list[str]) -> bool:
    """Whether ``--only`` lets a case through."""
    return not globs or any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def load(out: Path) -> ModuleType:
    """The CPU variant built in ``out``."""
    import kernels

    module: ModuleType = kernels.get_local_kernel(out, backend="cpu")
    return module


def measure_peak(scratch: Path, threads: int, clock: str) -> Peak:
    """Build the probe once, run it."""
    source = Path(__file__).with_name("machine_peak.cpp")
    program = scratch / "bench" / source.stem
    program.parent.mkdir(parents=True, exist_ok=True)
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        found = compiler.find(compiler.host_system())
        flags = ("-std=c++20", "-O3", "-march=native", "-pthread")
        command = (*found.command, *flags, str(source), "-o", str(program))
        process.run(command, what="the machine probe", log=program.with_suffix(".log"))
    text = process.capture((str(program), str(threads), clock))
    if text is None:
        raise CheckError(f"{program} must run, it failed", hint="Delete it and run again.")
    return Peak(**json.loads(text))


def time_case(name: str, case: dict[str, Any], threads: int, args: argparse.Namespace, peak: Peak) -> Result:
    """Warm up, compare, then take turns for about ``--seconds``."""
    import torch

    torch.set_num_threads(threads)
    contenders: dict[str, Callable[[], Any]] = {"": case["candidate"], **case["baselines"]}
    first = {label: call() for label, call in contenders.items()}
    compare(name, first, case.get("tolerance", DEFAULT_TOLERANCE))
    del first
    clock = time.perf_counter if args.clock == "wall" else time.thread_time
    cost = sum(once(call, clock) for call in contenders.values())
    rounds = max(3, min(200, round(args.seconds / cost)))
    times: dict[str, list[float]] = {label: [] for label in contenders}
    for _ in range(rounds):
        for label, call in contenders.items():
            times[label].append(once(call, clock))
    medians = {label: statistics.median(values) for label, values in times.items()}
    mine = medians.pop("")
    best = min(medians, key=lambda label: medians[label])
    ratios = sorted(b / a for a, b in zip(times[""], times[best], strict=True))
    return Result(
        case=name,
        threads=threads,
        seconds=mine,
        baseline=best,
        baseline_seconds=medians[best],
        ratio=medians[best] / mine,
        ratio_low=ratios[len(ratios) // 4],
        ratio_high=ratios[len(ratios) - 1 - len(ratios) // 4],
        of_peak=case["flops"] / mine * 1e-9 / peak.gflops,
        of_read=case["bytes"] / mine * 1e-9 / peak.read_gbs,
    )


def once(call: Callable[[], Any], clock: Callable[[], float]) -> float:
    """Seconds of one call; freeing its result is not timed."""
    start = clock()
    result = call()
    taken = clock() - start
    del result
    return taken


def compare(name: str, results: dict[str, Any], tolerance: float) -> None:
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


def line(result: Result) -> str:
    """One result while the rest still runs."""
    return (
        f"{result.case} x{result.threads}: {result.seconds * 1e3:.2f} ms, {result.ratio:.2f} "
        f"[{result.ratio_low:.2f}, {result.ratio_high:.2f}] times {result.baseline} "
        f"({result.baseline_seconds * 1e3:.2f} ms), {result.of_peak:.0%} of peak, {result.of_read:.0%} of reading"
    )


def table(results: list[Result]) -> str:
    """All results as a Markdown table, to paste into a README or an issue."""
    heading = "| case | threads | ms | times faster | middle half | fastest baseline | of FMA peak | of reading |"
    rows = [heading, "|---|---|---|---|---|---|---|---|"]
    rows += [
        f"| {r.case} | {r.threads} | {r.seconds * 1e3:.2f} | {r.ratio:.2f} | {r.ratio_low:.2f} to {r.ratio_high:.2f} "
        f"| {r.baseline}, {r.baseline_seconds * 1e3:.2f} ms | {r.of_peak:.0%} | {r.of_read:.0%} |"
        for r in results
    ]
    return "\n".join(rows)
