"""README's table of speeds: a row for each family of work, from what ``bundle bench --json`` wrote.

No figure is typed: ``bundle tables --speed FILE ...`` takes them from the files of one run, or of its parts, and a row
without a result is left out. What the words mean is in bench_report.py.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from bundle.bench_report import Result, spread
from bundle.errors import CheckError

ROWS = (
    ("attention, causal, forward + backward, bf16, 4 shapes", "attention/forward+backward causal bf16 *"),
    ("attention, 8 packed documents, forward + backward, bf16", "attention/forward+backward packed bf16"),
    ("attention, decode, 16384 keys in pages, bf16", "attention/decode bf16 heads 32 of 8, pages of 256"),
    ("causal convolution, forward + backward, bf16", "causal_conv1d/forward+backward channel-last bf16"),
    ("causal convolution, decode, 24 layers, fp32", "causal_conv1d/update 24 layers fp32"),
    ("gated delta rule, forward, fp32", "gated_delta_rule/gdr fwd fp32"),
    ("gated delta rule, forward + backward, fp32", "gated_delta_rule/gdr fwd+bwd fp32"),
    ("gated delta rule, decode, 24 layers, fp32", "gated_delta_rule/gdr step 24 layers fp32"),
    ("Mamba 1 scan, forward, fp32", "selective_scan/scan fwd fp32"),
    ("Mamba 1 scan, forward + backward, fp32", "selective_scan/scan fwd+bwd fp32"),
    ("Mamba 2 SSD, forward + backward, fp32", "state_space/ssd fwd+bwd fp32"),
    ("Mamba 2, decode, 24 layers, fp32", "selective_scan/update 24 layers fp32, Mamba 2"),
    ("training step, Qwen3-Next-shaped, texts of uneven lengths", "training/Qwen3-Next, uneven"),
    ("training step, Bamba-shaped, texts of uneven lengths", "training/Bamba, uneven"),
)
"""What a row is called, and the glob of its cases; over several cases it has the geometric mean."""

THREADS = (1, 2)


def read(files: Sequence[Path]) -> list[Result]:
    """The results of the files; of a case that is in several, those of the last. CheckError where one holds none."""
    found: dict[tuple[str, int], Result] = {}
    for file in files:
        try:
            results = [Result(**fields) for fields in json.loads(file.read_text(encoding="utf-8"))["results"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckError(f"--speed must name files of `bench --json`, got {file} ({error})") from error
        found |= {(result.case, result.threads): result for result in results}
    return list(found.values())


def table(results: Sequence[Result]) -> Iterator[tuple[str, ...]]:
    """The cells of each row that has a result."""
    for work, cases in ROWS:
        rows = [result for result in results if fnmatch.fnmatchcase(result.case, cases) and result.threads in THREADS]
        if rows:
            baselines = dict.fromkeys(row.baseline for row in rows)
            reached = (_reached([row for row in rows if row.threads == number]) for number in THREADS)
            yield (work, "; ".join(baselines), *reached)


def absent(results: Sequence[Result]) -> list[str]:
    """The rows that have no result on some number of threads."""
    there = {
        (work, result.threads) for work, cases in ROWS for result in results if fnmatch.fnmatchcase(result.case, cases)
    }
    return [f"{work} x{number}" for work, _ in ROWS for number in THREADS if (work, number) not in there]


def _reached(rows: Sequence[Result]) -> str:
    if not rows:
        return ""
    ratio, low, high = spread(rows)
    return f"{_short(ratio)} [{_short(low)}, {_short(high)}]"


def _short(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"
