"""``bundle gpu`` (tools/gpu_check.sh): what a few minutes on a GPU can prove, ended by one table.

Three phases, each a process with a limit of its own, all within ``--minutes``: build the CUDA variant for the
architecture of this machine's GPU alone; run the op tests on it against float64; time it beside torch's own kernels and
the machine's ceilings. A phase that fails or outlasts its limit does not hide the next one's findings; the exit code
tells. The network is never asked, and the `kernels` package is not needed: the variant's folder is imported directly.

``--emulated`` goes the same road on a machine without a GPU: kernels compiled for tools/cuda_host, a few of the tests,
tiny sizes, the host's clock.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bundle import build, buildfile, cuda, matrix, options, process, testing
from bundle.cuda import Arch
from bundle.errors import SuiteError, ToolchainError
from bundle.gpu import table
from bundle.gpu.table import Record
from bundle.variant import Variant

TESTS_LIMIT, MEASURE_RESERVE, TABLE_RESERVE = 150.0, 100.0, 10.0
"""Seconds: the tests get so many; the build may take what leaves the measuring so many; the table the last ones."""

DRY_TESTS = "test_scales or test_swish or test_extreme or test_update_of_nothing or test_export"
"""Of both ops, seconds in all: the emulated suite runs the rest."""

PLUGINS = {"xdist": ("-n", "6"), "pytest_timeout": ("--timeout", "60", "--timeout-method", "thread")}
"""pytest's plugins that are used where they are installed: a kernel that hangs then costs a worker, and is named."""

BROKEN, GO_ON = 3, 30.0
"""What `measure` ends with when a kernel has broken the GPU's context; with so many seconds left another goes on."""
_SUMMARY = re.compile(r"\d+ (?:passed|failed|errors?|skipped)\b.*")
_GPU = re.compile(r"(?P<capability>\d+\.\d), (?P<name>.+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of the verb."""
    parser.add_argument(
        "--root", type=options.directory, default=options.REPOSITORY, metavar="DIR", help="the checkout (default: this)"
    )
    parser.add_argument(
        "--scratch", type=options.directory, metavar="DIR", help="work directory (default: ROOT/.bundle)"
    )
    parser.add_argument(
        "--results", type=options.directory, metavar="DIR", help="where rows and logs go (default: SCRATCH/gpu)"
    )
    parser.add_argument("--minutes", type=float, default=7.7, metavar="M", help="for all of it (default: 7.7)")
    parser.add_argument("--again", action="store_true", help="measure what an earlier check of this build has measured")
    parser.add_argument("--emulated", action="store_true", help="a dry run without a GPU: tiny, and no number counts")


@dataclass(frozen=True)
class Phase:
    """How a phase ended, and the last line it said that matched what was looked for."""

    name: str
    code: int | None
    seconds: float
    said: str = ""

    @property
    def word(self) -> str:
        """For the table; a ``code`` of None is a limit that was reached."""
        how = "stopped at its limit" if self.code is None else "done" if self.code == 0 else f"FAILED ({self.code})"
        return f"{how}, {self.seconds:.0f} s" + (f": {self.said}" if self.said else "")


class Budget:
    """The seconds that are left of a check."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._end = clock, clock() + seconds

    def left(self, reserve: float = 0.0) -> float:
        """Until ``reserve`` seconds before the end, never below 1."""
        return max(1.0, self._end - self._clock() - reserve)


def run_phase(
    name: str, command: Sequence[str], *, root: Path, log: Path, limit: float, look_for: re.Pattern[str] | None = None,
    **environment: str,
) -> Phase:  # fmt: skip
    """Run one phase in a process group of its own, which ends at the limit; its output is shown and kept in ``log``."""
    process.say(f"\n== {name}, {limit:.0f} s at most\n+ {' '.join(command)}", style="bold")
    started, said, stopped = time.monotonic(), "", threading.Event()
    with log.open("w", encoding="utf-8") as sink:
        child = process.start(command, cwd=root, env={**os.environ, **environment})

        def stop() -> None:
            stopped.set()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

        timer = threading.Timer(limit, stop)
        timer.start()
        for line in child.stdout or ():
            sink.write(line)
            process.say(line.rstrip("\n"))
            if look_for is not None and (match := look_for.search(line)):
                said = match[0].strip("= \n")
        code = child.wait()
        timer.cancel()
    return Phase(name, None if stopped.is_set() else code, time.monotonic() - started, said)


def gpu() -> tuple[tuple[int, int], str]:
    """Compute capability and name of the first GPU; ToolchainError where there is none."""
    answer = process.capture(["nvidia-smi", "--query-gpu=compute_cap,name", "--format=csv,noheader"])
    match = _GPU.search(answer or "")
    if match is None:
        raise ToolchainError(
            "no GPU: nvidia-smi names none", hint="`tools/gpu_check.sh --emulated` goes the same road without one."
        )
    major, minor = match["capability"].split(".")
    return (int(major), int(minor)), match["name"]


def arch_for(capability: tuple[int, int], listed: Sequence[Arch]) -> Arch:
    """The listed architecture whose code a GPU runs: its own, or the nearest older one of its generation."""
    fitting = [arch for arch in listed if arch.major == capability[0] and arch.minor <= capability[1]]
    if not fitting:
        there = " ".join(map(str, listed))
        raise ToolchainError(
            f"the GPU has compute capability {capability[0]}.{capability[1]}, build.toml lists {there}"
        )
    return max(fitting)


@dataclass(frozen=True)
class Plan:
    """What is built and where, and how the phases are told."""

    variant: Variant
    arch: Arch | None
    gpu: str
    out: Path
    scratch: Path

    @property
    def folder(self) -> Path:
        """The variant."""
        return self.out / str(self.variant)


def plan(args: argparse.Namespace) -> Plan:
    """Decide what this machine is checked with."""
    configuration, scratch = buildfile.read(args.root), args.scratch or args.root / ".bundle"
    if args.emulated:
        args.out, args.scratch = None, scratch
        out, _ = build.local_places(args, emulate_cuda=True)
        (name,) = matrix.select(configuration, [testing.HOST_VARIANT])
        return Plan(name, None, "CUDA emulated on the CPU: no number here says anything", out, scratch)
    capability, words = gpu()
    name = matrix.select(configuration, ["*-cu*"])[0]
    return Plan(name, arch_for(capability, cuda.all_archs(configuration)), words, scratch / "build-gpu", scratch)


def run(args: argparse.Namespace) -> int:
    """All phases, then the table, last whatever happened; the exit code is that of tests when a phase did not pass."""
    budget, what = Budget(60 * args.minutes), plan(args)
    results = args.results or what.scratch / "gpu"
    results.mkdir(parents=True, exist_ok=True)
    phases, title = [_build(args, what, results, budget)], f"{what.gpu}: {what.variant}"
    rows: tuple[Record, ...] = ()
    if phases[0].code == 0:
        kept = results / f"rows-{_identity(what.folder)}.jsonl"
        if args.again:
            kept.unlink(missing_ok=True)
        phases += [_tests(args, what, results, budget), _measure(args, what, kept, budget)]
        title, rows = f"{title}, {_identity(what.folder)}", table.read(kept)
    text = table.rendered(title, [(phase.name, phase.word) for phase in phases], _in_order(rows))
    (results / "table.md").write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}", flush=True)
    return 0 if all(phase.code == 0 for phase in phases) else SuiteError.exit_code


def _build(args: argparse.Namespace, what: Plan, results: Path, budget: Budget) -> Phase:
    words = ["build", "--root", str(args.root), "--only", str(what.variant), "--out", str(what.out)]
    words += ["--scratch", str(what.scratch if what.arch is None else what.scratch / "gpu-build")]
    words += ["--emulate-cuda"] if what.arch is None else ["--archs", str(what.arch)]
    limit = budget.left(TESTS_LIMIT + MEASURE_RESERVE + TABLE_RESERVE)
    return run_phase(
        "build", (sys.executable, "-m", "bundle", *words), root=args.root, log=results / "build.log", limit=limit
    )


def _tests(args: argparse.Namespace, what: Plan, results: Path, budget: Budget) -> Phase:
    command = [sys.executable, "-m", "pytest", "tests", "-m", "kernels_ci", "-q", "-p", "no:cacheprovider"]
    if args.emulated:
        command += ["-k", DRY_TESTS]
    else:
        command += [word for plugin, words in PLUGINS.items() if importlib.util.find_spec(plugin) for word in words]
    environment = {"PADFREE_VARIANT": str(what.folder), "PADFREE_TEST_DEVICE": "emulated" if args.emulated else "cuda"}
    limit = min(TESTS_LIMIT, budget.left(MEASURE_RESERVE + TABLE_RESERVE))
    log = results / "tests.log"
    return run_phase("tests", command, root=args.root, log=log, limit=limit, look_for=_SUMMARY, **environment)


def _measure(args: argparse.Namespace, what: Plan, rows: Path, budget: Budget) -> Phase:
    limit = budget.left(TABLE_RESERVE)
    words = ["--variant", str(what.folder), "--results", str(rows), "--seconds", str(0.8 * limit)]
    command = [sys.executable, "-m", "bundle.gpu.measure", *words, *(["--emulated"] if args.emulated else [])]
    log = rows.with_name("measure.log")
    phase = run_phase("measure", command, root=args.root, log=log, limit=limit)
    while phase.code == BROKEN and (left := budget.left(TABLE_RESERVE)) > GO_ON:
        again = [*command, "--go-on", "--seconds", str(0.8 * left)]
        phase = run_phase("measure", again, root=args.root, log=log, limit=left)
    return phase


def _identity(folder: Path) -> str:
    """The id of the variant in ``folder``, which names its results."""
    return str(json.loads((folder / "metadata.json").read_text(encoding="utf-8"))["id"])


def _in_order(rows: Sequence[Record]) -> list[Record]:
    """Ceilings first, then the works by name, numbers in them by size."""
    numbers = re.compile(r"(\d+)")

    def key(text: str) -> list[tuple[int, int | str]]:
        return [(0, int(part)) if part.isdigit() else (1, part) for part in numbers.split(text)]

    return sorted(rows, key=lambda row: (row.work != row.ceiling, key(row.work)))
