"""The tables of speeds: every row has cases, and nothing but a run's results fills them."""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bundle import bench, speed, tables
from bundle.bench_report import Result
from bundle.errors import CheckError
from bundle.machine_peak import Peak
from bundle.options import REPOSITORY
from bundle.speed_rows import CAUSAL_CONV1D, KERNELS, README, Rows

WORK, CASES = README[1]
SEVERAL = README[0][0]
PEAKS = {1: Peak(100.4, 17.14, 1), 2: Peak(199.6, 31.4, 1)}


def result(case: str, threads: int, ratio: float, baseline: str = "sdpa") -> Result:
    return Result(case, threads, 1.0, 0.9, baseline, ratio, ratio, 0.9 * ratio, 1.1 * ratio, 0.5, 0.25)


def file_of(path: Path, *results: Result) -> Path:
    peaks = {threads: asdict(peak) for threads, peak in PEAKS.items()}
    written = {"policy": "As ever.", "peaks": peaks, "results": [asdict(one) for one in results]}
    path.write_text(json.dumps(written), encoding="utf-8")
    return path


@pytest.mark.parametrize("rows", [README, *KERNELS.values()], ids=["README.md", *KERNELS])
def test_every_row_has_a_case_and_none_is_there_twice(rows: Rows) -> None:
    names = bench.cases(REPOSITORY)[0]
    assert [cases for _, cases in rows if not fnmatch.filter(names, cases)] == []
    assert len({cases for _, cases in rows}) == len(rows)


def test_a_row_is_the_geometric_mean_of_its_cases() -> None:
    some = [result(f"attention/forward+backward causal bf16 {n}", 1, n, f"by {n}") for n in (1, 4)]
    assert list(speed.table(README, some)) == [(SEVERAL, "by 1; by 4", "2.0 [1.80, 2.2]", "")]
    assert list(speed.table(README, [result(CASES, 4, 2.0), result("other/case", 1, 2.0)])) == []
    assert list(speed.table(README, [result(CASES, 2, 565.3)])) == [(WORK, "sdpa", "", "565 [509, 622]")]


def test_a_kernels_row_says_how_long_and_what_binds() -> None:
    one = replace(result("causal_conv1d/update bf16", 1, 9.94), seconds=0.0123456)
    rows = list(speed.table(CAUSAL_CONV1D, [one, replace(one, threads=2, of_read=0.9)], more=True))
    reached = "9.9 [8.9, 11], 12.3 ms"
    assert rows == [
        ("one token, a call by itself, bf16", "sdpa", f"{reached}, 50% of peak", f"{reached}, 90% of reading")
    ]
    several = [result(f"attention/forward causal fp32 {n}", 1, 2) for n in (1, 2)]
    assert list(speed.table(KERNELS["kernel-src/attention/README.md"], several, more=True)) == [
        ("causal forward, 4 shapes, fp32", "sdpa", "2.0 [1.80, 2.2], 50% of peak", "")
    ]


def test_the_last_file_counts_and_what_is_missing_is_named(tmp_path: Path) -> None:
    first = file_of(tmp_path / "first.json", result(CASES, 1, 2.0), result(CASES, 2, 3.0))
    second = file_of(tmp_path / "second.json", result(CASES, 1, 4.0))
    run = speed.read([first, second])
    assert [(one.threads, one.ratio) for one in run.results] == [(1, 4.0), (2, 3.0)]
    assert run.policy == "As ever."
    assert run.peaks == {threads: [peak, peak] for threads, peak in PEAKS.items()}
    absent = speed.absent((*README, *README), run.results)
    assert f"{README[0][1]} x1" in absent
    assert len(absent) == 2 * (len(README) - 1)


@pytest.mark.parametrize(
    "text", [None, "", "[]", '{"results": [{"case": "x"}]}', '{"peaks": {}, "results": []}'], ids=str
)
def test_a_file_that_no_bench_wrote_is_refused(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "results.json"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(CheckError, match=r"--speed must name files of `bench --json`, got .*results\.json"):
        speed.read([file])


def test_writes_the_tables_that_were_timed_and_nothing_else(tmp_path: Path) -> None:
    documents = [tmp_path / name for name in ("README.md", *KERNELS)]
    for document in documents:
        document.parent.mkdir(parents=True, exist_ok=True)
        document.write_text("a\n<!-- table speed: x -->\nold\n<!-- end speed -->\nb\n", encoding="utf-8")
    measured = file_of(tmp_path / "results.json", result(CASES, 1, 2.0))
    assert tables.run(argparse.Namespace(root=tmp_path, write=False, speed=[measured])) == 0
    texts = [document.read_text(encoding="utf-8").splitlines() for document in documents]
    heads = ["| work | compared with | 1 thread | 2 threads |", "|---|---|---|---|"]
    assert texts[0][:4] == ["a", "<!-- table speed: x -->", *heads]
    assert texts[0][4:] == [f"| {WORK} | sdpa | 2.0 [1.80, 2.2] |  |", "", "As ever.", "<!-- end speed -->", "b"]
    row = "| 8 packed documents, forward + backward, bf16 | sdpa | 2.0 [1.80, 2.2], 1000 ms, 50% of peak |  |"
    foot = (
        "Meanwhile the machine did 100 GFLOP/s of fused multiply-adds and 17.1 GB/s of reading on 1 thread; "
        "200 GFLOP/s of fused multiply-adds and 31.4 GB/s of reading on 2 threads"
    )
    assert texts[1][2:] == [*heads, row, "", foot, "<!-- end speed -->", "b"]
    assert {len(text) for text in texts[2:]} == {5}


def test_the_foot_says_how_far_the_runs_lie_apart() -> None:
    run = speed.Run([], {1: [Peak(102.2, 15.04, 1.0), Peak(100.8, 15.0, 2.0), Peak(101.0, 15.02, 3.0)]})
    assert run.foot() == (
        "Meanwhile the machine did 101 to 102 GFLOP/s of fused multiply-adds and 15.0 GB/s of reading on 1 thread"
    )


def test_every_document_has_the_place() -> None:
    for name in ("README.md", *KERNELS):
        tables.placed(name, (REPOSITORY / name).read_text(encoding="utf-8"), "speed", ())


def test_readme_has_no_row_of_another_name() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    table = text.partition("<!-- table speed")[2].partition("<!-- end speed -->")[0].splitlines()[3:]
    rows = list(itertools.takewhile(lambda line: line.startswith("| "), table))
    assert rows
    assert {row.split(" | ")[0].removeprefix("| ") for row in rows} <= {work for work, _ in README}
