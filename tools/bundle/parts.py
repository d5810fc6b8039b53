"""Runs the parts of a long job one after another, each a program with its output shown as it comes, and times them.

A part that fails does not hide the next one: all run, the table at the end says which failed and what each one cost.
"""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from bundle.errors import SuiteError
from bundle.process import console, say


@dataclass(frozen=True)
class Part:
    """One program to run. ``env`` is laid over this process's environment."""

    name: str
    command: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How a part ended. ``skipped`` is the reason it did not run, None when it did.

    ``cpu_seconds`` is what all its processes computed: on a busy machine it tells more than ``seconds``.
    """

    name: str
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    code: int = 0
    skipped: str | None = None

    @property
    def word(self) -> str:
        """The table's word for it."""
        if self.skipped is not None:
            return f"skipped: {self.skipped}"
        return "passed" if self.code == 0 else f"FAILED (exit code {self.code})"


def run(part: Part) -> Outcome:
    """Run one part; its output goes straight to the terminal."""
    setting = "".join(f"{key}={shlex.quote(value)} " for key, value in part.env.items())
    say(f"\n== {part.name}\n+ {setting}{shlex.join(part.command)}", style="bold")
    started, computed = time.monotonic(), _children_seconds()
    result = subprocess.run(part.command, cwd=part.cwd, env={**os.environ, **part.env}, check=False)
    return Outcome(part.name, time.monotonic() - started, _children_seconds() - computed, result.returncode)


def _children_seconds() -> float:
    """CPU time of all ended children of this process."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def conclude(what: str, outcomes: Iterable[Outcome]) -> None:
    """Print what each part cost; SuiteError that names the failed ones."""
    rows = tuple(outcomes)
    table = Table(title=f"{what}: what each part cost", title_justify="left")
    table.add_column("part")
    table.add_column("seconds", justify="right")
    table.add_column("cpu", justify="right")
    table.add_column("result")
    for row in rows:
        style = "yellow" if row.skipped is not None else "green" if row.code == 0 else "bold red"
        cost = ("-", "-") if row.skipped is not None else (f"{row.seconds:.1f}", f"{row.cpu_seconds:.1f}")
        table.add_row(row.name, *cost, row.word, style=style)
    total = (sum(row.seconds for row in rows), sum(row.cpu_seconds for row in rows))
    table.add_row("all", *(f"{value:.1f}" for value in total), "", style="bold")
    console.print()
    console.print(table)
    failed = [row.name for row in rows if row.code != 0]
    if failed:
        raise SuiteError(
            f"{len(failed)} of {len(rows)} parts failed: {', '.join(failed)}",
            hint="Its output is above, and the command that repeats it alone.",
        )
