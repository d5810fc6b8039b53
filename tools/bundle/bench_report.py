"""The tables of ``bundle bench``: what each case reached, and what the rows of the goals reached together.

A benchmark module may offer ``GOALS``, a list of dicts, each one row of the report:

- ``work``: what the row is about,
- ``cases``: a glob over the module's case names; the row reaches the geometric mean over the ones that match,
- ``floor``, ``goal``: times faster than the fastest baseline, at one thread; either may be missing,
- ``of``: ``"peak"`` or ``"reading"`` where ``goal`` is a share of what the machine can do instead,
- ``floors``: floors at other numbers of threads, ``{2: 1.3}``. Without it one on several threads is the floor times
  `THREADED`; and it holds where `THREADED` of the read bandwidth is reached, since memory decides there.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from bundle.errors import CheckError

THREADED = 0.85

POLICY = (
    "Times faster: medians of A/B/A/B rounds, in brackets the middle half; over several cases the geometric mean. Each "
    "case on each number of threads has a process of its own, and two rounds to warm up. Every call allocates its "
    "results, by glibc's malloc in the state of a process that has freed a tensor of 31 MiB: it keeps smaller blocks, "
    "while larger ones pay for their pages in each call, on both sides. Shares of peak and of reading are those of the "
    "fastest round, as the peaks are of their fastest run."
)
"""How the figures came about; goes with them wherever they go."""


@dataclass(frozen=True)
class Result:
    """One case on one number of threads; times are medians in seconds, ``tokens`` what one call handles, if any.

    ``of_peak`` and ``of_read`` are shares of what the machine can do, of the ``fastest`` round.
    """

    case: str
    threads: int
    seconds: float
    fastest: float
    baseline: str
    baseline_seconds: float
    ratio: float
    ratio_low: float
    ratio_high: float
    of_peak: float
    of_read: float
    tokens: int | None = None


@dataclass(frozen=True)
class Goal:
    """A row of the report. ``cases`` is a glob over full names, ``<op>/<case>``; see the head of this file."""

    work: str
    cases: str
    floor: float | None = None
    goal: float | None = None
    of: Literal["times", "peak", "reading"] = "times"
    floors: dict[int, float] = field(default_factory=dict)

    def floor_at(self, threads: int) -> float | None:
        """The floor on some number of threads."""
        if threads == 1 or self.floor is None:
            return self.floor
        return self.floors.get(threads, self.floor * THREADED)


def goals(op: str, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[Goal]:
    """``GOALS`` of one module; CheckError for a row that no case of the module (``names``) can fill."""
    found = [Goal(**{**row, "cases": f"{op}/{row['cases']}"}) for row in rows]
    for goal in found:
        if not fnmatch.filter(names, goal.cases):
            raise CheckError(f"{goal.work}: cases must match a case of {op}, got {goal.cases}")
    return found


def verdict(goal: Goal, rows: Sequence[Result]) -> str:
    """``goal met``, ``floor held``, ``floor missed``; empty where the row has neither, or only a goal not met."""
    threads, ratio = rows[0].threads, mean(rows, lambda row: row.ratio)
    reading = mean(rows, lambda row: row.of_read)
    reached = {"times": ratio, "peak": mean(rows, lambda row: row.of_peak), "reading": reading}[goal.of]
    if goal.goal is not None and reached >= goal.goal:
        return "goal met"
    floor = goal.floor_at(threads)
    if floor is None:
        return ""
    held = ratio >= floor or (threads > 1 and reading >= THREADED)
    return "floor held" if held else "floor missed"


def report(wanted: Sequence[Goal], results: Sequence[Result], all_cases: Sequence[str]) -> str:
    """One line for each goal that has a result; empty when none has."""
    threads = sorted({result.threads for result in results})
    heads = ["work (times faster)", "floor", "goal", *(f"reached, {threads_in_words(n)}" for n in threads)]
    lines = [_line([*heads, "of FMA peak", "of reading"]), "|" + "---|" * (len(heads) + 2)]
    for goal in wanted:
        rows = [result for result in results if fnmatch.fnmatchcase(result.case, goal.cases)]
        if rows:
            lines.append(_line(_row(goal, rows, threads, len(fnmatch.filter(all_cases, goal.cases)))))
    return "\n".join(lines) if len(lines) > 2 else ""


def _row(goal: Goal, rows: Sequence[Result], threads: Sequence[int], cases: int) -> Iterator[str]:
    by_threads = {number: [row for row in rows if row.threads == number] for number in threads}
    measured = max(map(len, by_threads.values()))
    yield goal.work + (f" ({measured} of {cases} cases)" if measured < cases else "")
    yield _number(goal.floor)
    yield _number(goal.goal) if goal.of == "times" or goal.goal is None else f"{goal.goal:.0%} of {goal.of}"
    for number in threads:
        yield _reached(goal, by_threads[number])
    for share in (lambda row: row.of_peak, lambda row: row.of_read):
        yield " / ".join(f"{mean(some, share):.0%}" for some in by_threads.values() if some)


def _reached(goal: Goal, rows: Sequence[Result]) -> str:
    if not rows:
        return ""
    ratio, low, high = spread(rows)
    speed = [f"{row.tokens / row.seconds:.0f} tokens/s" for row in rows if row.tokens is not None]
    return " ".join([f"{ratio:.2f} [{low:.2f}, {high:.2f}]", *speed, verdict(goal, rows)]).rstrip()


def mean(rows: Sequence[Result], key: Callable[[Result], float]) -> float:
    """The geometric mean; of one number, the number."""
    return math.prod(map(key, rows)) ** (1 / len(rows))


def spread(rows: Sequence[Result]) -> tuple[float, float, float]:
    """Times faster, and the ends of the middle half of the rounds."""
    return (
        mean(rows, lambda row: row.ratio),
        mean(rows, lambda row: row.ratio_low),
        mean(rows, lambda row: row.ratio_high),
    )


def threads_in_words(number: int) -> str:
    """The head of a column."""
    return "1 thread" if number == 1 else f"{number} threads"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _line(cells: Sequence[str] | Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def line(result: Result) -> str:
    """One result while the rest still runs."""
    speed = "" if result.tokens is None else f"{result.tokens / result.seconds:.0f} tokens/s, "
    return (
        f"{result.case} x{result.threads}: {result.seconds * 1e3:.2f} ms, {speed}{result.ratio:.2f} "
        f"[{result.ratio_low:.2f}, {result.ratio_high:.2f}] times {result.baseline} "
        f"({result.baseline_seconds * 1e3:.2f} ms), {result.of_peak:.0%} of peak, {result.of_read:.0%} of reading"
    )


def table(results: Sequence[Result]) -> str:
    """All results as a Markdown table, to paste into a README or an issue."""
    heading = "| case | threads | ms | times faster | middle half | fastest baseline | of FMA peak | of reading |"
    rows = [heading, "|---|---|---|---|---|---|---|---|"]
    rows += [
        f"| {r.case} | {r.threads} | {r.seconds * 1e3:.2f} | {r.ratio:.2f} | {r.ratio_low:.2f} to {r.ratio_high:.2f} "
        f"| {r.baseline}, {r.baseline_seconds * 1e3:.2f} ms | {r.of_peak:.0%} | {r.of_read:.0%} |"
        for r in results
    ]
    return "\n".join(rows)
