"""The tables of speeds in README.md and below kernel-src: a row for each kind of work, from ``bundle bench --json``.

No figure is typed: ``bundle tables --speed FILE ...`` takes them from the files of one run, or of its parts, and a row
without a result is left out. What the words mean is in bench_report.py; which rows there are, in speed_rows.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from bundle.bench_report import Result, mean, spread, threads_in_words
from bundle.errors import CheckError
from bundle.machine_peak import Peak
from bundle.speed_rows import Rows

THREADS = (1, 2)
HEADS = ("work", "compared with", *map(threads_in_words, THREADS))


@dataclass(frozen=True)
class Run:
    """What a run of ``bundle bench`` wrote, or several."""

    results: list[Result]
    peaks: dict[int, list[Peak]]  # a peak for each run on so many threads
    policy: str = ""

    def foot(self) -> str:
        """What the machine could do meanwhile, from the least of the runs to the most."""
        return "Meanwhile the machine did " + "; ".join(
            f"{_range([peak.gflops for peak in peaks], 0)} GFLOP/s of fused multiply-adds and "
            f"{_range([peak.read_gbs for peak in peaks], 1)} GB/s of reading on {threads_in_words(threads)}"
            for threads, peaks in self.peaks.items()
        )


def read(files: Sequence[Path]) -> Run:
    """What the files hold; of what is in several, that of the last. CheckError where one holds no results."""
    found: dict[tuple[str, int], Result] = {}
    peaks: dict[int, list[Peak]] = {}
    policy = ""
    for file in files:
        try:
            written = json.loads(file.read_text(encoding="utf-8"))
            results = [Result(**fields) for fields in written["results"]]
            for threads, fields in written["peaks"].items():
                peaks.setdefault(int(threads), []).append(Peak(**fields))
            policy = written["policy"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckError(f"--speed must name files of `bench --json`, got {file} ({error})") from error
        found |= {(result.case, result.threads): result for result in results}
    return Run(list(found.values()), peaks, policy)


def table(rows: Rows, results: Sequence[Result], *, more: bool = False) -> Iterator[tuple[str, ...]]:
    """The cells of each row that has a result; ``more``: with the time of a call and its share of what is possible."""
    for work, cases in rows:
        found = [result for result in results if fnmatchcase(result.case, cases) and result.threads in THREADS]
        if found:
            baselines = dict.fromkeys(result.baseline for result in found)
            reached = (_reached([one for one in found if one.threads == number], more) for number in THREADS)
            yield (work, "; ".join(baselines), *reached)


def absent(rows: Rows, results: Sequence[Result]) -> list[str]:
    """The cases of rows that have no result on some number of threads."""
    there = {(cases, result.threads) for _, cases in rows for result in results if fnmatchcase(result.case, cases)}
    wanted = dict.fromkeys((cases, number) for _, cases in rows for number in THREADS)
    return [f"{cases} x{number}" for cases, number in wanted if (cases, number) not in there]


def _reached(results: Sequence[Result], more: bool) -> str:
    if not results:
        return ""
    ratio, low, high = spread(results)
    times = f"{_short(ratio)} [{_short(low)}, {_short(high)}]"
    if not more:
        return times
    duration = [_milliseconds(results[0].seconds)] if len(results) == 1 else []
    shares = {"peak": mean(results, lambda one: one.of_peak), "reading": mean(results, lambda one: one.of_read)}
    bound = max(shares, key=lambda name: shares[name])
    return ", ".join([times, *duration, f"{shares[bound]:.0%} of {bound}"])


def _range(numbers: Sequence[float], digits: int) -> str:
    ends = dict.fromkeys(f"{number:.{digits}f}" for number in (min(numbers), max(numbers)))
    return " to ".join(ends)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"


def _short(ratio: float) -> str:
    digits = 2 if ratio < 1.995 else 1 if ratio < 9.95 else 0
    return f"{ratio:.{digits}f}"
