"""``bundle bench``: times the bundle against what a user could write instead, and against what the machine can do.

A benchmark module (``benchmarks/benchmark_<op>.py``) offers ``CASES: dict[str, Callable[[module], dict]]``. A case is
built only when it is timed; its dict holds

- ``candidate``: a callable without arguments that returns a tensor or a tuple of tensors,
- ``baselines``: ``{name: callable}``, the same result by other means; the fastest one counts,
- ``flops`` and ``bytes``: the useful operations and the least memory traffic of one call,
- ``tolerance`` (optional): the worst difference from the first baseline allowed, relative to its largest value,
- ``once`` (optional): names of baselines too slow for turns: each runs once in a report, at the first thread count,
- ``tokens`` (optional): how many tokens a call handles, for tokens a second,
- ``finish`` (optional): called when the case is done, for what it changed in this process (a wired model means that
  transformers' own functions are this bundle's, also in the cases after it).

A module may also offer ``GOALS``: the rows of the report, with floors and goals (bench_report).

All callables of a case take turns within one process, A/B/A/B; a ratio is that of the medians, its spread the middle
half of the ratios of single rounds. Allocation policy: every call allocates its results as a user's call would, torch's
allocator keeps nothing between calls, so large results pay their page faults on both sides. glibc may keep memory freed
after large cases: a baseline of many temporaries then takes up to a half less time, so rows of runs that differ in the
cases before them are not the same measurement.
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
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from bundle import compiler, options, process
from bundle.bench_report import Goal, Result, goals, line, report, table
from bundle.errors import CheckError, EmptySelectionError, UsageError

Build = Callable[[ModuleType], dict[str, Any]]
"""Makes a case's dict from the bundle's module."""

DEFAULT_TOLERANCE = 0.02
"""Loose on purpose: the tests prove accuracy, this only proves that both sides compute the same thing."""


@dataclass(frozen=True)
class Peak:
    """What the machine reached on some number of threads."""

    gflops: float
    read_gbs: float
    copy_gbs: float


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
    everything, wanted = cases(args.root)
    selected = {name: build for name, build in everything.items() if chosen(name, args.only)}
    if not selected:
        raise EmptySelectionError(
            f"--only must match a case, got {' '.join(args.only)}", hint=f"There are: {', '.join(everything)}"
        )
    kernel = load(out)
    results: list[Result] = []
    peaks: dict[int, Peak] = {}
    lone: dict[str, float] = {}
    for threads in args.threads:
        peaks[threads] = measure_peak(scratch, threads, args.clock)
        process.say(
            f"{threads} thread(s): {peaks[threads].gflops:.0f} GFLOP/s fused multiply-add, "
            f"{peaks[threads].read_gbs:.1f} GB/s read, {peaks[threads].copy_gbs:.1f} GB/s copied (read + written)"
        )
        for name, build in selected.items():
            with built(build, kernel) as case:
                results.append(time_case(name, case, threads, args, peaks[threads], lone))
            process.say(line(results[-1]))
    print(table(results))
    reached = report(wanted, results, list(everything))
    print(f"\n{reached}" if reached else "")
    process.say(
        "Each call allocates its results; times faster: medians of A/B/A/B rounds, in brackets the middle half; over "
        "several cases the geometric mean. A floor on more threads: 85 % of it, or of reading."
    )
    if args.json:
        args.json.write_text(
            json.dumps(
                {"peaks": {n: asdict(p) for n, p in peaks.items()}, "results": [asdict(r) for r in results]}, indent=1
            )
        )
    return 0


def cases(root: Path) -> tuple[dict[str, Build], list[Goal]]:
    """``{<op>/<case>: build}`` of every benchmark module, and their goals."""
    builds: dict[str, Build] = {}
    wanted: list[Goal] = []
    for path in sorted((root / "benchmarks").glob("benchmark_*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise CheckError(f"{path} must be a Python module, the import system refuses it")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        op = path.stem.removeprefix("benchmark_")
        builds |= {f"{op}/{name}": build for name, build in module.CASES.items()}
        wanted += goals(op, getattr(module, "GOALS", ()), list(builds))
    return builds, wanted


def chosen(name: str, globs: list[str]) -> bool:
    """Whether ``--only`` lets a case through."""
    return not globs or any(fnmatch.fnmatchcase(name, glob) for glob in globs)


def load(out: Path) -> ModuleType:
    """The CPU variant built in ``out``."""
    import kernels

    module: ModuleType = kernels.get_local_kernel(out, backend="cpu")
    return module


@contextmanager
def built(build: Build, kernel: ModuleType) -> Iterator[dict[str, Any]]:
    """A case, and at the end what it wants done then."""
    case = build(kernel)
    try:
        yield case
    finally:
        if "finish" in case:
            case["finish"]()


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


def time_case(
    name: str, case: dict[str, Any], threads: int, args: argparse.Namespace, peak: Peak, lone: dict[str, float]
) -> Result:
    """Warm up, compare, then take turns for about ``--seconds``.

    ``lone`` holds the seconds of baselines that run once in a report, and gets those of this case.
    """
    import torch

    torch.set_num_threads(threads)
    contenders: dict[str, Callable[[], Any]] = {"": case["candidate"], **case["baselines"]}
    clock = time.perf_counter if args.clock == "wall" else time.thread_time
    once = {label: contenders.pop(label) for label in case.get("once", ())}
    first = {label: call() for label, call in contenders.items()}
    for label, call in once.items():
        if f"{name}, {label}" not in lone:
            first[label], lone[f"{name}, {label}"] = clock_once(call, clock)
    compare(name, first, case.get("tolerance", DEFAULT_TOLERANCE))
    del first
    cost = sum(clock_once(call, clock)[1] for call in contenders.values())
    rounds = max(3, min(200, round(args.seconds / cost)))
    times: dict[str, list[float]] = {label: [] for label in contenders}
    for _ in range(rounds):
        for label, call in contenders.items():
            times[label].append(clock_once(call, clock)[1])
    times |= {label: [lone[f"{name}, {label}"]] * rounds for label in once}
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
        tokens=case.get("tokens"),
    )


def clock_once(call: Callable[[], Any], clock: Callable[[], float]) -> tuple[Any, float]:
    """The result and the seconds of one call; freeing the result is not timed."""
    start = clock()
    result = call()
    return result, clock() - start


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
