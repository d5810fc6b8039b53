"""The GPU check without a GPU: what it builds for which, its limits, its rows, its table. The dry run is the emulated
suite's (`bundle test --suite emulated`)."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

import pytest

from bundle import process, variant
from bundle.cuda import parse_arch
from bundle.errors import CheckError, SuiteError, ToolchainError
from bundle.gpu import check, table, workloads
from bundle.gpu.machine import Machine
from bundle.gpu.table import COPY, CUDNN, FALLBACK, FLASH, MATRIX, OURS, Record
from bundle.options import REPOSITORY

LISTED = tuple(map(parse_arch, ("8.0", "8.6", "8.9", "9.0", "10.0", "12.0", "12.1+PTX")))


def arguments(*words: str) -> argparse.Namespace:
    """The command line of `bundle gpu`."""
    parser = argparse.ArgumentParser()
    check.add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("capability", "arch"),
    [((9, 0), "9.0"), ((8, 0), "8.0"), ((8, 7), "8.6"), ((10, 3), "10.0"), ((12, 1), "12.1+PTX")],
)
def test_what_is_built_runs_on_the_gpu(capability: tuple[int, int], arch: str) -> None:
    assert str(check.arch_for(capability, LISTED)) == arch


def test_a_gpu_that_build_toml_has_nothing_for_is_named() -> None:
    with pytest.raises(ToolchainError, match=r"has compute capability 7\.5, build\.toml lists 8\.0 8\.6 .* 12\.1\+PTX"):
        check.arch_for((7, 5), LISTED)


def test_the_gpu_is_asked_for_by_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "capture", lambda command: "9.0, NVIDIA H200\n9.0, NVIDIA H200")
    assert check.gpu() == ((9, 0), "NVIDIA H200")
    monkeypatch.setattr(process, "capture", lambda command: None)
    with pytest.raises(ToolchainError, match="nvidia-smi names none"):
        check.gpu()


def test_a_budget_keeps_what_is_reserved() -> None:
    now = [100.0]
    budget = check.Budget(60, lambda: now[0])
    assert (budget.left(), budget.left(20)) == (60, 40)
    now[0] = 155.0
    assert (budget.left(), budget.left(20)) == (5, 1)


def phase(code: str, tmp_path: Path, limit: float = 20, look_for: re.Pattern[str] | None = None) -> check.Phase:
    """A phase of one line of Python."""
    log = tmp_path / "log"
    return check.run_phase("p", (sys.executable, "-c", code), root=tmp_path, log=log, limit=limit, look_for=look_for)


def test_a_phase_is_judged_by_its_code_and_its_words(tmp_path: Path) -> None:
    ended = phase("print('== 3 passed in 1s =='); raise SystemExit(3)", tmp_path, look_for=check._SUMMARY)
    assert (ended.code, ended.said) == (3, "3 passed in 1s")
    assert re.fullmatch(r"FAILED \(3\), \d+ s: 3 passed in 1s", ended.word)
    assert "3 passed" in (tmp_path / "log").read_text(encoding="utf-8")


def test_a_phase_ends_at_its_limit_with_all_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).wait()"
    )
    started = time.monotonic()
    ended = phase(code, tmp_path, limit=1)
    assert time.monotonic() - started < 20  # the grandchild held the pipe open until it was ended too
    assert ended.code is None
    assert ended.word.startswith("stopped at its limit")


ROWS = (
    Record(MATRIX, MATRIX, 2e12, {OURS: 2.5e-3}),
    Record(COPY, COPY, 4e9, {OURS: 1e-3}),
    Record("attention a", MATRIX, 1e12, {OURS: 3e-3, FLASH: 3e-3, FALLBACK: 50e-3}, {CUDNN: "no memory"}),
    Record("attention b", MATRIX, 1e12, {OURS: 4e-3, FLASH: 3e-3}),
    Record("convolution a", COPY, 3.2e9, {OURS: 1e-3, FALLBACK: 8e-3}),
    Record("convolution b", COPY, 1e9, {OURS: 1e-3}),
    Record("attention c", MATRIX, 1e12, failed="result 0 differs"),
)


def test_the_table_sets_each_row_beside_torch_and_the_ceiling() -> None:
    text = table.rendered("GPU", [("tests", "done, 9 s: 4 passed")], ROWS)
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines() if line.startswith("| ")}
    assert rows["tests"].startswith("| tests | done, 9 s: 4 passed |")
    assert rows[MATRIX] == "| matrix product | 800 TFLOP/s |  |  |  |  |  |"
    assert rows["attention a"] == (
        "| attention a | 333 TFLOP/s | 333 TFLOP/s | no memory | 20 TFLOP/s | 42% | met: 1.00 of flash |"
    )
    assert "| missed: 0.75 of flash |" in rows["attention b"]
    assert rows["convolution a"] == "| convolution a | 3200 GB/s |  |  | 400 GB/s | 80% | met |"
    assert "| 25% | missed: 75% of a copy |" in rows["convolution b"]
    assert rows["attention c"].startswith("| attention c | FAILED: result 0 differs |")
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1


def test_rows_outlive_a_check_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.jsonl"
    assert table.read(path) == ()
    for row in ROWS:
        table.append(path, row)
    again = Record("attention c", MATRIX, 1e12, {OURS: 1e-3})
    table.append(path, again)
    with path.open("a", encoding="utf-8") as sink:
        sink.write('{"work": "half a li')
    assert table.read(path) == (*ROWS[:-1], again)


def test_rows_are_sorted_by_the_numbers_in_them() -> None:
    rows = [Record(name, MATRIX, 1.0) for name in ("attention 1 x 16384", "attention 8 x 2048", MATRIX)]
    assert [row.work for row in check._in_order(rows)] == [MATRIX, "attention 1 x 16384", "attention 8 x 2048"]


def test_the_workloads_are_the_ones_asked_for() -> None:
    works = list(workloads.all_workloads(workloads.Sizes()))
    names = [work.name for work in works]
    assert len(names) == len(set(names))
    for dim in (64, 128, 256):
        for shape in ("8 x 2048", "4 x 4096", "2 x 8192", "1 x 16384"):
            assert {f"attention {word}, head dim {dim}, {shape}" for word in ("causal", "full")} <= set(names)
        assert any(name.startswith(f"attention causal, head dim {dim}, pack of ") for name in names)
    lengths = workloads.documents(workloads.Sizes())
    assert sum(lengths) == 16384
    assert max(lengths) > 20 * min(lengths)
    amounts = {work.name: work.amount for work in works}
    assert amounts["attention full, head dim 128, 1 x 16384"] == 4 * 16 * 16384**2 * 128


def test_a_contender_that_is_not_here_is_left_out_and_ours_is_not() -> None:
    def absent() -> None:
        raise RuntimeError("No available kernel")

    import torch

    here = Machine(cuda=False)
    times, words = here.compared("w", {OURS: lambda: torch.ones(2), FLASH: absent}, 0.0)
    assert set(times) == {OURS}
    assert words == {FLASH: "not here (RuntimeError)"}
    with pytest.raises(RuntimeError, match="No available kernel"):
        here.compared("w", {OURS: absent, FLASH: lambda: torch.ones(2)}, 0.0)


def test_contenders_that_compute_different_things_are_found() -> None:
    import torch

    with pytest.raises(CheckError, match="w: result 0 differs from sdpa flash"):
        Machine(cuda=False).compared("w", {OURS: lambda: torch.ones(2), FLASH: lambda: torch.zeros(2)}, 0.0)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Phases that end as each test wants them to; a variant that is there."""
    folder = tmp_path / "v"
    folder.mkdir()
    (folder / "metadata.json").write_text('{"id": "_x"}', encoding="utf-8")
    what = check.Plan(variant.parse("torch-cpu"), None, "no GPU", tmp_path, tmp_path)
    monkeypatch.setattr(check.Plan, "folder", property(lambda self: folder))
    monkeypatch.setattr(check, "plan", lambda args: what)
    return tmp_path


@pytest.mark.parametrize(
    ("codes", "names"), [((0, 0, 0), ["build", "tests", "measure"]), ((0, 1, 0), ["build", "tests", "measure"]),
                         ((0, None, None), ["build", "tests", "measure"]), ((6,), ["build"])]
)  # fmt: skip
def test_the_table_comes_last_whatever_happened(
    no_gpu: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    codes: tuple[int | None, ...],
    names: list[str],
) -> None:
    left = list(codes)
    monkeypatch.setattr(check, "run_phase", lambda name, *_, **__: check.Phase(name, left.pop(0), 1.0))
    code = check.run(arguments("--emulated", "--results", str(no_gpu / "r")))
    assert code == (0 if codes == (0, 0, 0) else SuiteError.exit_code)
    last = capfd.readouterr().out.splitlines()[-len(names) :]
    assert [line.split(" | ")[0] for line in last] == [f"| {name}" for name in names]


def test_a_kernel_that_breaks_the_gpu_costs_its_own_row_alone(no_gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, commands = [0, 0, check.BROKEN, check.BROKEN, 1], []

    def phase(name: str, command: list[str], **_: object) -> check.Phase:
        commands.append(command)
        return check.Phase(name, left.pop(0), 1.0)

    monkeypatch.setattr(check, "run_phase", phase)
    assert check.run(arguments("--emulated", "--results", str(no_gpu / "r"))) == SuiteError.exit_code
    assert ["--go-on" in command for command in commands[2:]] == [False, True, True]


def test_the_command_is_one_line_of_bash() -> None:
    text = (REPOSITORY / "tools" / "gpu_check.sh").read_text(encoding="utf-8")
    assert text.splitlines()[-1].endswith('-m bundle gpu "$@"')
