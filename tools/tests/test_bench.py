"""What the benchmark reports from its numbers: means, floors on one and two threads, goals; every goal has cases."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bundle import bench
from bundle.bench_case import time_case
from bundle.bench_report import POLICY, Goal, Result, goals, report, table, verdict
from bundle.errors import CheckError
from bundle.machine_peak import Peak
from bundle.options import REPOSITORY

PEAK = Peak(gflops=100, read_gbs=10, copy_gbs=10)


def result(case: str = "op/a", ratio: float = 2.0, **changed: Any) -> Result:
    """A case twice as fast as its baseline, far from any limit of the machine."""
    fields = {
        "threads": 1,
        "seconds": 0.5,
        "fastest": 0.4,
        "baseline": "torch",
        "baseline_seconds": 0.5 * ratio,
        "ratio": ratio,
        "ratio_low": ratio * 0.9,
        "ratio_high": ratio * 1.1,
        "of_peak": 0.3,
        "of_read": 0.2,
    }
    return Result(case=case, **{**fields, **changed})


@pytest.mark.parametrize(
    ("goal", "got", "word"),
    [
        ({"floor": 1.5, "goal": 3}, result(), "floor held"),
        ({"floor": 1.5, "goal": 2}, result(), "goal met"),
        ({"floor": 2.1, "goal": 3}, result(), "floor missed"),
        ({"floor": 2.1}, result(threads=2), "floor held"),
        ({"floor": 2.4}, result(threads=2), "floor missed"),
        ({"floor": 2.4}, result(threads=2, of_read=0.86), "floor held"),
        ({"floor": 2.4}, result(of_read=0.86), "floor missed"),
        ({"floor": 9, "floors": {2: 1.9}}, result(threads=2), "floor held"),
        ({"floor": 1.9, "floors": {2: 2.1}}, result(threads=2), "floor missed"),
        ({"goal": 0.85, "of": "peak"}, result(of_peak=0.9), "goal met"),
        ({"goal": 0.85, "of": "peak"}, result(of_peak=0.8), ""),
        ({"floor": 1.5, "goal": 0.85, "of": "reading"}, result(of_read=0.85), "goal met"),
        ({"floor": 1.5, "goal": 0.85, "of": "reading"}, result(of_read=0.5), "floor held"),
    ],
)
def test_verdict(goal: dict[str, Any], got: Result, word: str) -> None:
    assert verdict(Goal(work="w", cases="op/a", **goal), [got]) == word


def test_a_row_over_several_cases_is_their_geometric_mean() -> None:
    rows = [result("op/a 1", 1.0), result("op/a 2", 4.0), result("op/b", 100.0), result("op/a 1", 3.0, threads=2)]
    text = report([Goal(work="both", cases="op/a *", floor=1.5, goal=9)], rows, ["op/a 1", "op/a 2", "op/b"])
    heading, _, line = text.splitlines()
    assert "| reached, 1 thread | reached, 2 threads |" in heading
    assert line.startswith("| both | 1.5 | 9 | 2.00 [1.80, 2.20] floor held | 3.00 [2.70, 3.30] floor held |")


def test_a_row_says_when_cases_are_missing_and_none_is_made_up() -> None:
    wanted = [Goal(work="both", cases="op/a *"), Goal(work="other", cases="op/b")]
    text = report(wanted, [result("op/a 1", tokens=100)], ["op/a 1", "op/a 2", "op/b"])
    assert "| both (1 of 2 cases) |" in text
    assert "200 tokens/s" in text
    assert "other" not in text
    assert report(wanted[1:], [result("op/a 1")], ["op/a 1", "op/b"]) == ""


def test_every_goal_of_the_benchmarks_has_cases() -> None:
    builds, wanted = bench.cases(REPOSITORY)
    assert len(wanted) > 20
    assert len({goal.work for goal in wanted}) == len(wanted)
    assert table([result(name) for name in builds]).count("\n") == len(builds) + 1


def test_a_goal_without_cases_is_refused() -> None:
    with pytest.raises(CheckError, match="w: cases must match a case of op, got op/b"):
        goals("op", [{"work": "w", "cases": "b"}], ["op/a"])


def arguments(seconds: float = 0.01) -> argparse.Namespace:
    return argparse.Namespace(clock="wall", seconds=seconds)


def test_a_slow_baseline_runs_once_in_a_report() -> None:
    calls: list[str] = []

    def call(name: str) -> torch.Tensor:
        calls.append(name)
        return torch.ones(1)

    case = {
        "candidate": lambda: call("ours"),
        "baselines": {"slow": lambda: call("slow")},
        "once": ("slow",),
        "flops": 1,
        "bytes": 1,
        "tokens": 7,
    }
    lone: dict[str, float] = {}
    for threads in (1, 2):
        timed, lone = time_case("op/a", case, threads, arguments(), PEAK, lone)
        assert (timed.baseline, timed.tokens, timed.threads) == ("slow", 7, threads)
        assert lone == {"slow": timed.baseline_seconds}
    assert calls.count("slow") == 1
    assert calls.count("ours") > 4


MODULE = """
import ctypes, os, signal, torch
malloc, wired = ctypes.CDLL(None), []

def case(**changed):
    return {"candidate": lambda: torch.ones(1), "baselines": {"torch": lambda: torch.ones(1)}, "flops": 1, "bytes": 1,
            **changed}

def wires(kernel):
    wired.append(kernel)
    return case(flops=len(wired))

def slow():
    print("the slow one", flush=True)
    return torch.ones(1)

def mapped(size):
    # MiB that glibc takes from the system by themselves for one tensor
    malloc.mallinfo2.restype = type("Info", (ctypes.Structure,), {"_fields_": [("a", ctypes.c_size_t * 10)]})
    before = malloc.mallinfo2().a[4]
    kept = torch.empty(size << 20, dtype=torch.uint8)
    return malloc.mallinfo2().a[4] - before >> 20

CASES = {
    "wires": wires,
    "raises": lambda kernel: {}["no such"],
    "dies": lambda kernel: os.kill(os.getpid(), signal.SIGSEGV),
    "differs": lambda kernel: case(candidate=lambda: torch.zeros(1)),
    "once": lambda kernel: case(baselines={"slow": slow}, once=("slow",)),
    "settled": lambda kernel: case(tokens=100 * mapped(30) + mapped(40)),
}
"""

RUN = """
import sys
from pathlib import Path
from bundle import __main__, bench, machine_peak
bench.load = lambda out: "the bundle"
machine_peak.measure = lambda scratch, threads, clock: machine_peak.Peak(1e9, 1e9, 1e9)
words = ("bench", "--root", sys.argv[1], "--threads", "1", "2", "--seconds", "0.01", "--json", "results.json")
sys.exit(__main__.main(words))
"""


def test_each_row_has_a_process_of_its_own_and_one_that_fails_stops_no_other(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "benchmark_op.py").write_text(MODULE, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "tools"), "COLUMNS": "300"}
    env.pop("OMP_NUM_THREADS", None)  # with it at 1, numpy starts no threads whatever we do
    command = (sys.executable, "-c", RUN, str(tmp_path))
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == CheckError.exit_code, ended.stderr
    bad = [f"op/{name} x{threads}" for threads in (1, 2) for name in ("raises", "dies", "differs")]
    assert f"bundle bench: of 12 rows 6 failed: {'; '.join(bad)}\n" in ended.stderr
    for words in ("KeyError: 'no such'", "op/dies x2 was killed by SIGSEGV", "op/differs: result 0 differs from torch"):
        assert words in ended.stderr
    written = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert written["policy"] == POLICY
    rows = {(row["case"], row["threads"]): row for row in written["results"]}
    assert rows.keys() == {(f"op/{name}", threads) for name in ("wires", "once", "settled") for threads in (1, 2)}
    assert [rows["op/wires", threads]["of_peak"] * rows["op/wires", threads]["fastest"] for threads in (1, 2)] == (
        pytest.approx([1e-18] * 2)
    )
    assert rows["op/once", 1]["baseline_seconds"] == rows["op/once", 2]["baseline_seconds"]
    assert ended.stdout.count("the slow one") == 1
    assert [rows["op/settled", threads]["tokens"] for threads in (1, 2)] == [40, 40]


def test_contenders_that_differ_are_refused() -> None:
    case = {
        "candidate": lambda: torch.ones(2),
        "baselines": {"torch": lambda: torch.zeros(2)},
        "flops": 1,
        "bytes": 1,
    }
    with pytest.raises(CheckError, match="op/a: result 0 differs from torch"):
        time_case("op/a", case, 1, arguments(), PEAK, {})
