"""``python -m bundle.gpu.measure``: times what is not yet in the results, row by row, until told to stop.

A process of its own: a kernel that hangs is killed with it, and the rows before stay.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from bundle import options, process
from bundle.errors import BundleError, CheckError
from bundle.gpu import machine, table
from bundle.gpu.check import BROKEN
from bundle.gpu.machine import Machine
from bundle.gpu.table import COPY, MATRIX, OURS, Record
from bundle.gpu.workloads import TINY, Sizes, Workload, all_workloads

SECONDS_EACH = 0.25
"""About what one contender of one row is timed for."""

_BREAKS = ("CUDA error", "device-side assert", "illegal memory access")
"""Words of errors that leave a GPU's context unusable: another process goes on."""


def load(folder: Path) -> ModuleType:
    """The module of the variant in ``folder``, without the `kernels` package."""
    name, path = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))["id"], folder / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None:
        raise CheckError(f"{folder} holds no package")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ceilings(here: Machine, sizes: Sizes, seconds: float) -> list[Callable[[], Record]]:
    """What the machine can do at most, as rows to be measured."""

    def row(name: str, make: Callable[[Machine, int], tuple[machine.Call, float]], size: int) -> Callable[[], Record]:
        def measured() -> Record:
            call, amount = make(here, size)
            times, words = here.compared(name, {OURS: call}, 4 * seconds)
            return Record(name, name, amount, times, words)

        return measured

    return [row(MATRIX, machine.matrix_product, sizes.matrix), row(COPY, machine.copy, sizes.copied)]


def timed(workload: Workload, kernel: ModuleType, here: Machine, seconds: float) -> Record:
    """One row; one that is wrong or cannot run is kept as failed."""
    try:
        times, words = here.compared(workload.name, workload.build(kernel, here.device), seconds)
    except (BundleError, RuntimeError, NotImplementedError) as error:
        return Record(workload.name, workload.ceiling, workload.amount, failed=str(error).splitlines()[0])
    return Record(workload.name, workload.ceiling, workload.amount, times, words)


def main() -> int:
    """Measure; the exit code says whether a row failed, and whether another process should go on (BROKEN)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", type=options.directory, required=True)
    parser.add_argument("--results", type=options.directory, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="start no row after that many")
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--go-on", action="store_true", help="leave rows that failed as they are")
    args = parser.parse_args()
    here, sizes = Machine(cuda=not args.emulated), TINY if args.emulated else Sizes()
    each = 0.0 if args.emulated else SECONDS_EACH
    kernel, deadline = load(args.variant), time.monotonic() + args.seconds
    rows: dict[str, Callable[[], Record]] = dict(zip((MATRIX, COPY), ceilings(here, sizes, each), strict=True))
    for work in all_workloads(sizes):
        rows[work.name] = functools.partial(timed, work, kernel, here, each)
    done = {record.work: record for record in table.read(args.results)}
    for name, measured in rows.items():
        if name in done and (args.go_on or done[name].failed is None):
            continue
        if time.monotonic() > deadline:
            process.say(f"measure: no time left for {name} and what follows")
            break
        done[name] = measured()
        table.append(args.results, done[name])
        process.say(f"{name}: {done[name].failed or {**done[name].seconds, **done[name].words}}")
        if any(word in (done[name].failed or "") for word in _BREAKS):
            return BROKEN
        gc.collect()
        if here.cuda:
            torch.cuda.empty_cache()
    return int(any(record.failed is not None for record in done.values()))


if __name__ == "__main__":
    sys.exit(main())
