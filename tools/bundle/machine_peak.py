"""What this machine can do, by machine_peak.cpp: what times are held against."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from bundle import compiler, process
from bundle.errors import CheckError


@dataclass(frozen=True)
class Peak:
    """What the machine reached on some number of threads."""

    gflops: float
    read_gbs: float
    copy_gbs: float

    def __str__(self) -> str:
        return (
            f"{self.gflops:.0f} GFLOP/s fused multiply-add, {self.read_gbs:.1f} GB/s read, {self.copy_gbs:.1f} GB/s "
            "copied (read + written)"
        )


def measure(scratch: Path, threads: int, clock: str) -> Peak:
    """Build the probe once, run it."""
    source = Path(__file__).with_suffix(".cpp")
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
