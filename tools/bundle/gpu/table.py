"""What a GPU check found, kept as lines of JSON while it runs, and the one table made of them.

A line is appended as soon as its number is known: whatever ends the check, what was measured stays, and the next check
of the same build on the same machine goes on from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

OURS, FLASH, CUDNN, FALLBACK = "ours", "sdpa flash", "sdpa cuDNN", "torch fallback"
CONTENDERS = (OURS, FLASH, CUDNN, FALLBACK)
MATRIX, COPY = "matrix product", "copy"
LEVEL = 0.97
"""Attention is level with FlashAttention from here on: two runs of one kernel differ by as much."""
CONV_SHARE = 0.75
"""What the convolution is to reach of the bandwidth of a copy."""


@dataclass(frozen=True)
class Record:
    """One row. ``seconds`` of one call by contender, or, in words, why there are none. ``amount`` is what a call does:
    operations where ``ceiling`` is the matrix product, bytes where it is the copy."""

    work: str
    ceiling: str
    amount: float
    seconds: Mapping[str, float] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    failed: str | None = None

    def rate(self, contender: str) -> float | None:
        """TFLOP/s or GB/s."""
        if contender not in self.seconds:
            return None
        return self.amount / self.seconds[contender] * (1e-12 if self.ceiling == MATRIX else 1e-9)


def append(path: Path, record: Record) -> None:
    """Keep a row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as sink:
        print(json.dumps(asdict(record)), file=sink, flush=True)


def read(path: Path) -> tuple[Record, ...]:
    """The rows kept so far, the last of each work; a line that a kill cut short is left out."""
    rows: dict[str, Record] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            record = Record(**json.loads(line))
        except (json.JSONDecodeError, TypeError):
            continue
        rows[record.work] = record
    return tuple(rows.values())


def rendered(title: str, phases: Iterable[tuple[str, str]], rows: Sequence[Record]) -> str:
    """The table: how the phases ended, the machine's ceilings, then each work beside what torch has."""
    ceilings = {row.ceiling: row.rate(OURS) for row in rows if row.work == row.ceiling}
    head = ["work", *CONTENDERS, "of the ceiling", "goal"]
    lines = [title, "", _line(head), "|" + "---|" * len(head)]
    lines += [_line([name, outcome, *[""] * 5]) for name, outcome in phases]
    lines += [_line(_row(row, ceilings.get(row.ceiling))) for row in rows]
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _row(row: Record, ceiling: float | None) -> Iterator[str]:
    yield row.work
    if row.failed is not None:
        yield from (f"FAILED: {row.failed}", *[""] * 5)
        return
    for contender in CONTENDERS:
        yield _rate(row, contender)
    rate = row.rate(OURS)
    yield "" if row.work == row.ceiling or rate is None or ceiling is None else f"{rate / ceiling:.0%}"
    yield goal(row, ceiling)


def _rate(row: Record, contender: str) -> str:
    rate = row.rate(contender)
    if rate is None:
        return row.words.get(contender, "")
    unit = "TFLOP/s" if row.ceiling == MATRIX else "GB/s"
    return f"{rate:.3g} {unit}" if rate < 100 else f"{rate:.0f} {unit}"


def goal(row: Record, ceiling: float | None) -> str:
    """Whether attention is level with FlashAttention, the convolution at its share of a copy; nothing for the rest."""
    rate, flash = row.rate(OURS), row.rate(FLASH)
    if rate is None or row.work == row.ceiling:
        return ""
    if row.ceiling == MATRIX:
        return "" if flash is None else f"{'met' if rate >= LEVEL * flash else 'missed'}: {rate / flash:.2f} of flash"
    if ceiling is None:
        return ""
    return "met" if rate >= CONV_SHARE * ceiling else f"missed: {CONV_SHARE:.0%} of a copy"
