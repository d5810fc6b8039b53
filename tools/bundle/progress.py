"""How far a long step is: a bar on a terminal, and where the output is kept a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bundle.process import console, say

EVERY = 15.0
"""Seconds between two lines about one step."""

Show = Callable[[str, int, int | None], None]
"""``show(what, done, of)``: ``done`` steps of ``what`` are behind us; ``of`` is None while nobody knows how many."""


@contextmanager
def shown(on: Console = console, clock: Callable[[], float] = time.monotonic) -> Iterator[Show]:
    """A `Show` for as long as the block runs; a bar is gone when it ends."""
    if not on.is_terminal:
        yield _Lines(clock)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=on, transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(what: str, done: int, of: int | None) -> None:
            bar.update(task, description=what, completed=done, total=of)

        yield show


class _Lines:
    """Says each new step at once, and how far it is at most every `EVERY` seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._what = ""
        self._started = self._said = 0.0

    def __call__(self, what: str, done: int, of: int | None) -> None:
        now = self._clock()
        if what != self._what:
            self._what, self._started, self._said = what, now, now
            say(what)
        elif now - self._said >= EVERY:
            self._said = now
            say(f"{what}: {done} of {'?' if of is None else of} after {now - self._started:.0f} s")
