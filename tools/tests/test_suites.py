"""Parts are run in order, timed, and none hides another; lint and test are made of the right ones."""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path

import pytest

from bundle import compiler, lint, options, parts, process, testing
from bundle.errors import SuiteError, ToolchainError, UsageError
from bundle.parts import Outcome, Part

CPU = "torch-stable-abi211-cpu-x86_64-linux"


def python(name: str, code: str, tmp_path: Path, **env: str) -> Part:
    """A part that runs a line of Python."""
    return Part(name, (sys.executable, "-c", code), tmp_path, env)


def arguments(*words: str) -> argparse.Namespace:
    """The command line of `bundle test`."""
    parser = argparse.ArgumentParser()
    testing.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Part]:
    """The parts that were to be run, in order: none is, and all pass."""
    recorded: list[Part] = []

    def record(part: Part) -> Outcome:
        recorded.append(part)
        return Outcome(part.name)

    monkeypatch.setattr(parts, "run", record)
    return recorded


def test_a_part_runs_in_its_place_with_its_environment(tmp_path: Path) -> None:
    code = "import os, pathlib; pathlib.Path('seen').write_text(os.environ['WORD'])"
    outcome = parts.run(python("one", code, tmp_path, WORD="two words"))
    assert (tmp_path / "seen").read_text() == "two words"
    assert (outcome.code, outcome.skipped) == (0, None)
    assert outcome.seconds > 0
    assert outcome.cpu_seconds > 0


def test_all_parts_are_judged_and_the_failed_ones_named(capfd: pytest.CaptureFixture[str]) -> None:
    outcomes = [Outcome("a", 1.0), Outcome("b", 2.0, code=3), Outcome("c", skipped="no such CPU"), Outcome("d", code=1)]
    with pytest.raises(SuiteError, match="2 of 4 parts failed: b, d"):
        parts.conclude("test", outcomes)
    shown = capfd.readouterr().err
    for words in ("FAILED (exit code 3)", "skipped: no such CPU", "passed"):
        assert words in shown


def test_success_raises_nothing() -> None:
    parts.conclude("test", [Outcome("a", 1.0), Outcome("b", skipped="absent")])


def test_lint_reads_every_c_file_and_no_python() -> None:
    files = lint.cxx_files(options.REPOSITORY)
    assert "torch-ext/torch_binding.cpp" in files
    assert all(file.endswith((".h", ".cpp", ".cuh", ".cu")) for file in files)


def test_lint_outside_a_clone_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="git lists no C"):
        lint.cxx_files(tmp_path)


def test_lint_changes_nothing_unless_told() -> None:
    checks = {part.name: part.command for part in lint.linters(options.REPOSITORY)}
    assert "--check" in checks["ruff format"]
    assert {"--dry-run", "-Werror"} <= set(checks["clang-format"])
    fixes = {part.name: part.command for part in lint.linters(options.REPOSITORY, fix=True)}
    assert "--fix" in fixes["ruff"]
    assert "-i" in fixes["clang-format"]


def test_only_the_asked_suites_run(monkeypatch: pytest.MonkeyPatch, ran: list[Part]) -> None:
    testing.run(arguments("--suite", "driver", "--suite", "e2e", "--", "-k", "name"))
    assert [part.name for part in ran] == ["driver tests", "end to end"]
    assert all(part.command[-2:] == ("-k", "name") for part in ran)


def test_each_path_up_to_the_widest_is_tested_and_the_rest_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ran: list[Part]
) -> None:
    monkeypatch.setattr(testing, "widest_path", lambda local: "generic")
    args = arguments("--no-build", "--out", str(tmp_path), "--examples", "7")
    outcomes = list(testing.bundle_suite(args))
    assert [part.env["PADFREE_ISA"] for part in ran] == ["generic"]
    assert {part.env["LOCAL_KERNELS"] for part in ran} == {f"padfree/padfree-flash2={tmp_path}"}
    assert {part.env["PADFREE_EXAMPLES"] for part in ran} == {"7"}
    reason = "the widest path of this build on this machine is generic"
    assert [outcome.skipped for outcome in outcomes] == [None, reason, reason]


def test_avx512_is_emulated_when_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ran: list[Part]) -> None:
    monkeypatch.setattr(compiler, "has_header", lambda found, header: True)
    testing.run(arguments("--suite", "avx512", "--scratch", str(tmp_path)))
    built, tested = ran
    assert tested.env["PADFREE_ISA"] == "avx512"
    assert "--emulate-avx512" in built.command
    assert tested.env["LOCAL_KERNELS"] == f"padfree/padfree-flash2={tmp_path / 'build-emulated'}"
    assert all((options.REPOSITORY / path).is_file() for path in testing.EMULATED_TESTS)
    monkeypatch.setattr(compiler, "has_header", lambda found, header: False)
    (skipped,) = testing.emulated_suite(arguments("--no-build"))
    assert skipped.skipped == "<simde/x86/avx512.h> is not installed (libsimde-dev)"


def test_two_builds_lie_side_by_side(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ran: list[Part]) -> None:
    monkeypatch.setattr(testing, "widest_path", lambda local: "generic")
    list(testing.bundle_suite(arguments("--out", str(tmp_path / "out"), "--scratch", str(tmp_path))))
    assert [part.name for part in ran] == ["build", "check", "second build", "bundle tests, generic"]
    assert {"--uid", str(tmp_path / "second")} <= set(ran[2].command)
    assert ran[3].env["PADFREE_SECOND_BUILD"] == str(tmp_path / "second")


def test_a_failed_build_stops_the_bundle_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "run", lambda part: Outcome(part.name, code=6))
    assert [outcome.name for outcome in testing.bundle_suite(arguments())] == ["build"]


def test_cuda_kernels_are_built_for_the_emulator_and_tested_on_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ran: list[Part]
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    (tmp_path / "build" / CPU).mkdir(parents=True)
    list(testing.cuda_emulation_suite(arguments("--scratch", str(tmp_path), "--out", str(tmp_path / "build"))))
    assert [part.name for part in ran] == [
        "emulator tests", "build, CUDA emulated", "bundle tests, CUDA emulated", "GPU check, dry run",
    ]  # fmt: skip
    assert "--emulate-cuda" in ran[1].command
    assert ran[2].env == {
        "LOCAL_KERNELS": f"padfree/padfree-flash2={tmp_path / 'build-emulated-cuda'}",
        "PADFREE_TEST_DEVICE": "emulated",
        "PADFREE_SECOND_BUILD": str(tmp_path / "build"),
    }
    assert ran[3].command[:3] == ("bash", "tools/gpu_check.sh", "--emulated")
    assert {path.stem for path in Path(ran[3].env["PYTHONPATH"]).iterdir()} == set(testing.HIDDEN)


def test_the_ops_run_under_the_address_sanitizer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ran: list[Part]
) -> None:
    monkeypatch.setattr(testing, "preload", lambda: {"LD_PRELOAD": "libasan.so"})
    testing.run(arguments("--suite", "asan", "--scratch", str(tmp_path)))
    built, tested = ran
    assert {"--emulate-cuda", "--sanitize"} <= set(built.command)
    assert tested.env == {
        "LOCAL_KERNELS": f"padfree/padfree-flash2={tmp_path / 'build-asan-emulated-cuda'}",
        "PADFREE_TEST_DEVICE": "emulated",
        "LD_PRELOAD": "libasan.so",
    }


def test_the_emulator_is_for_one_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    outcomes = list(testing.cuda_emulation_suite(arguments()))
    outcomes += testing.sanitized_suite(arguments())
    assert [outcome.skipped for outcome in outcomes] == ["tools/cuda_host switches stacks in x86-64 assembly"] * 2


def test_without_the_sanitizers_library_the_suite_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(process, "capture", lambda command: "libasan.so")
    (outcome,) = testing.sanitized_suite(arguments())
    assert outcome.skipped == "g++ with libasan.so wanted"


def test_a_path_that_local_kernels_cannot_hold_is_refused() -> None:
    with pytest.raises(UsageError, match="without a colon"):
        testing.local_kernels("a/b", Path("/some:where"))
