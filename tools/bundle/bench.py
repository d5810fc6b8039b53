"""``bundle bench``: times the bundle against what a user could write instead, and against what the machine can do.

A benchmark module (``benchmarks/benchmark_<op>.py``) offers ``CASES: dict[str, Callable[[module], dict]]``. A case is
built only when it is timed; bench_case says what its dict holds. A module may also offer ``GOALS``: the rows of the
report, with floors and goals (bench_report).

Each case on each number of threads runs in a process of its own, so that its row owes nothing to the cases before it:
a wired model leaves traces, and large cases leave memory to glibc. The processes are forks of this one, which has
imported torch, transformers and the bundle and computed nothing: as good as new ones (OpenMP's threads start in the
fork) without the 6 s that importing takes.

Allocation policy: every call allocates its results as a user's call would. A new process does not settle what that
costs: whether glibc keeps a temporary of some MiB, or gives it back to the system and takes new pages for the next,
hangs on where importing left holes, and so on the seed of Python's hashes. One and the same baseline took 3.5 ms and no
page fault, or 12 ms and 3000. So each begins as any process with a model soon is (`settle_malloc`).
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from bundle import forked, machine_peak, options, process
from bundle.bench_case import time_case
from bundle.bench_report import POLICY, THREADED, Goal, Result, goals, line, report, table
from bundle.errors import BundleError, CheckError, EmptySelectionError, UsageError
from bundle.machine_peak import Peak

Build = Callable[[ModuleType], dict[str, Any]]
"""Makes a case's dict from the bundle's module."""


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
    """Time the selected cases and print the table; CheckError at the end when a case failed."""
    out, scratch = options.places(args)
    if args.clock == "cpu" and args.threads != [1]:
        raise UsageError(f"--clock cpu must go with one thread, got --threads {' '.join(map(str, args.threads))}")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's, which nothing here uses: it starts threads when imported
    everything, wanted = cases(args.root)
    selected = {name: build for name, build in everything.items() if chosen(name, args.only)}
    if not selected:
        raise EmptySelectionError(
            f"--only must match a case, got {' '.join(args.only)}", hint=f"There are: {', '.join(everything)}"
        )
    peaks = {threads: machine_peak.measure(scratch, threads, args.clock) for threads in args.threads}
    for threads, peak in peaks.items():
        process.say(f"{threads} thread(s): {peak}")
    results, failed = time_all(selected, load(out), peaks, args)
    print(table(results))
    reached = report(wanted, results, list(everything))
    print(f"\n{reached}" if reached else "")
    process.say(f"{POLICY} A floor on more threads: {THREADED:.0%} of it, or of reading.")
    if args.json:
        written = {
            "policy": POLICY,
            "peaks": {threads: asdict(peak) for threads, peak in peaks.items()},
            "results": [asdict(result) for result in results],
        }
        args.json.write_text(json.dumps(written, indent=1))
    if failed:
        raise CheckError(f"of {len(results) + len(failed)} rows {len(failed)} failed: {'; '.join(failed)}")
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
    return not globs or any(fnmatchcase(name, glob) for glob in globs)


def load(out: Path) -> ModuleType:
    """The CPU variant built in ``out``; also imports what takes longest of what the cases import."""
    import kernels
    import transformers.modeling_utils

    transformers.logging.set_verbosity_error()  # that the baselines are slow: each fork would say it anew
    module: ModuleType = kernels.get_local_kernel(out, backend="cpu")
    return module


def time_all(
    selected: Mapping[str, Build], kernel: ModuleType, peaks: Mapping[int, Peak], args: argparse.Namespace
) -> tuple[list[Result], list[str]]:
    """Each case on each number of threads, in a fork of its own: the results, and the rows that failed."""
    settle_malloc()
    forked.check_alone()
    gc.freeze()  # a collection in a fork would copy the pages of all that it looks at
    results: list[Result] = []
    failed: list[str] = []
    lone: dict[str, dict[str, float]] = {name: {} for name in selected}
    for threads, peak in peaks.items():
        for name, build in selected.items():
            row = f"{name} x{threads}"
            try:
                work = partial(time_built, name, build, kernel, threads, args, peak, lone[name])
                result, lone[name] = forked.call(work, row)
            except BundleError as error:
                failed.append(row)
                process.say(f"{row} failed: {error.message}", style="red")
            else:
                results.append(result)
                process.say(line(result))
    return results, failed


def settle_malloc() -> None:
    """Free a large block: glibc then keeps blocks of its size and less, where it gave 128 KiB back to the system.

    32 MiB is where it stops to learn; what is larger costs new pages each time, in any process.
    """
    import torch

    torch.empty(31 << 20, dtype=torch.uint8)


def time_built(name: str, build: Build, kernel: ModuleType, *rest: Any) -> tuple[Result, dict[str, float]]:
    """`time_case` of a case that is built first."""
    return time_case(name, build(kernel), *rest)
