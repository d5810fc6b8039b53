"""README's table of speeds: every row has cases, and nothing but a run's results fills it."""

from __future__ import annotations

import argparse
import fnmatch
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from bundle import bench, speed, tables
from bundle.bench_report import Result
from bundle.errors import CheckError
from bundle.options import REPOSITORY

WORK, CASES = speed.ROWS[1]
SEVERAL = speed.ROWS[0][0]


def result(case: str, threads: int, ratio: float, baseline: str = "sdpa") -> Result:
    return Result(case, threads, 1.0, 0.9, baseline, ratio, ratio, 0.9 * ratio, 1.1 * ratio, 0.5, 0.25)


def file_of(path: Path, *results: Result) -> Path:
    path.write_text(json.dumps({"peaks": {}, "results": [asdict(one) for one in results]}), encoding="utf-8")
    return path


@pytest.mark.parametrize(("work", "cases"), speed.ROWS)
def test_every_row_has_a_case(work: str, cases: str) -> None:
    assert fnmatch.filter(bench.cases(REPOSITORY)[0], cases)


def test_a_row_is_the_geometric_mean_of_its_cases() -> None:
    some = [result(f"attention/forward+backward causal bf16 {n}", 1, n, f"by {n}") for n in (1, 4)]
    assert list(speed.table(some)) == [(SEVERAL, "by 1; by 4", "2.0 [1.8, 2.2]", "")]
    assert list(speed.table([result(CASES, 4, 2.0), result("other/case", 1, 2.0)])) == []
    assert list(speed.table([result(CASES, 2, 565.3)])) == [(WORK, "sdpa", "", "565 [509, 622]")]


def test_the_last_file_counts_and_what_is_missing_is_named(tmp_path: Path) -> None:
    first = file_of(tmp_path / "first.json", result(CASES, 1, 2.0), result(CASES, 2, 3.0))
    second = file_of(tmp_path / "second.json", result(CASES, 1, 4.0))
    results = speed.read([first, second])
    assert [(one.threads, one.ratio) for one in results] == [(1, 4.0), (2, 3.0)]
    absent = speed.absent(results)
    assert f"{SEVERAL} x1" in absent
    assert len(absent) == 2 * (len(speed.ROWS) - 1)


@pytest.mark.parametrize("text", [None, "", "[]", '{"results": [{"case": "x"}]}'])
def test_a_file_that_no_bench_wrote_is_refused(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "results.json"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(CheckError, match=r"--speed must name files of `bench --json`, got .*results\.json"):
        speed.read([file])


def test_writes_the_table_and_nothing_else(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("a\n<!-- table speed: x -->\nold\n<!-- end speed -->\nb\n", encoding="utf-8")
    measured = file_of(tmp_path / "results.json", result(CASES, 1, 2.0))
    assert tables.run(argparse.Namespace(root=tmp_path, write=False, speed=[measured])) == 0
    lines = readme.read_text(encoding="utf-8").splitlines()
    assert lines[:3] == ["a", "<!-- table speed: x -->", "| work | compared with | 1 thread | 2 threads |"]
    assert lines[4:] == [f"| {WORK} | sdpa | 2.0 [1.8, 2.2] |  |", "<!-- end speed -->", "b"]


def test_readme_has_the_place_and_no_row_of_another_name() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    table = text.partition("<!-- table speed")[2].partition("<!-- end speed -->")[0].splitlines()[3:]
    assert table
    assert {row.split(" | ")[0].removeprefix("| ") for row in table} <= {work for work, _ in speed.ROWS}
