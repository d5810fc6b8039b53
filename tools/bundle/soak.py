"""``bundle soak``: random right and wrong calls at a build that ends at the first bad access (tests/soak.py).

Half an hour by default, shared by the instruction-set paths the machine has. Each call has a number of its own, and a
failure is printed with the command that repeats it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from bundle import build, buildfile, matrix, options, parts, process, testing
from bundle.parts import Outcome, Part

LIMITS = "max_allocation_size_mb=2048:hard_rss_limit_mb=8192"
"""Of the sanitizer. A larger allocation is refused, and torch raises; more in all ends the process with a report,
before the system kills it without one."""
SEEDS_APART = 10**9
"""Between the first numbers of two paths, so that no call is made twice."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of the verb."""
    options.add_common(parser)
    options.add_out(parser)
    parser.add_argument("--minutes", type=_positive, default=30.0, metavar="M", help="in all (default: 30)")
    parser.add_argument("--seed", type=int, help="number of the first call (default: from the clock)")
    parser.add_argument("--calls", type=int, metavar="N", help="stop after so many calls on each path")
    parser.add_argument("--isa", action="append", choices=testing.ISA_PATHS, help="only this path; may be repeated")
    parser.add_argument("--emulate-avx512", action="store_true", help="on the path avx512 too, as `build` emulates it")
    parser.add_argument("--no-build", action="store_true", help="use the sanitized build that lies there")


def run(args: argparse.Namespace) -> int:
    """Build, then call on each path; prints what each part cost."""
    args.only = args.only or [testing.CPU_VARIANTS]
    out, scratch = build.local_places(args, sanitize=True, emulate_avx512=args.emulate_avx512)
    configuration = buildfile.read(args.root)
    if not args.no_build:
        for name in matrix.select(configuration, args.only):
            build.build_variant(
                configuration, name, out=out, scratch=scratch, sanitize=True, emulate_avx512=args.emulate_avx512
            )
    local = testing.local_kernels(configuration.repository, out)
    seed = int(time.time()) if args.seed is None else args.seed
    paths = args.isa or _paths(testing.widest_path(local, testing.preload()))
    outcomes: list[Outcome] = []
    scratch.mkdir(parents=True, exist_ok=True)
    for number, isa in enumerate(paths):
        first = seed + number * SEEDS_APART
        last = scratch / f"last-call-{isa}"
        last.unlink(missing_ok=True)
        outcome = parts.run(part(args, isa, local, seed=first, seconds=60 * args.minutes / len(paths), last=last))
        if outcome.code != 0 and last.is_file():
            process.say(
                f"repeat it: python -m bundle soak{' --emulate-avx512' * args.emulate_avx512} --isa {isa} "
                f"--seed {last.read_text()} --calls 1",
                style="red",
            )
        outcomes.append(outcome)
    parts.conclude("soak", outcomes)
    return 0


def part(args: argparse.Namespace, isa: str, local: str, *, seed: int, seconds: float, last: Path) -> Part:
    """The calls on one path, under the sanitizers."""
    command = [sys.executable, "tests/soak.py", "--seed", str(seed), "--seconds", str(seconds), "--last", str(last)]
    if args.calls is not None:
        command += ["--calls", str(args.calls)]
    environment = {"LOCAL_KERNELS": local, "PADFREE_ISA": isa, **testing.preload()}
    environment["ASAN_OPTIONS"] += f":{LIMITS}"
    environment["PADFREE_SAMPLES"] = "40"  # tests/perturbation.py
    return Part(f"soak, {isa}", tuple(command), args.root, environment)


def _paths(widest: str) -> tuple[str, ...]:
    return testing.ISA_PATHS[: testing.ISA_PATHS.index(widest) + 1]


def _positive(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes < float("inf"):
        raise argparse.ArgumentTypeError(f"a number of minutes above 0 is wanted, got {text}")
    return minutes
