"""The soak's command line, what it hands to the calls, and where sanitized builds lie."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bundle import build, options, parts, process, soak, testing
from bundle.errors import SuiteError, ToolchainError, UsageError
from bundle.parts import Outcome, Part


def arguments(*words: str) -> argparse.Namespace:
    """The command line of `bundle soak`."""
    parser = argparse.ArgumentParser()
    soak.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Part]:
    """The parts that would run, on a machine whose widest path is avx2."""
    seen: list[Part] = []

    def record(part: Part) -> Outcome:
        seen.append(part)
        return Outcome(part.name)

    monkeypatch.setattr(parts, "run", record)
    monkeypatch.setattr(testing, "widest_path", lambda local, needed: "avx2")
    monkeypatch.setattr(testing, "preload", lambda: {"LD_PRELOAD": "libasan.so", "ASAN_OPTIONS": "detect_leaks=0"})
    return seen


def word(part: Part, name: str) -> str:
    """The value of an option in a part's command."""
    return part.command[part.command.index(name) + 1]


def test_half_an_hour_is_shared_by_the_paths(ran: list[Part]) -> None:
    assert soak.run(arguments("--no-build")) == 0
    assert [part.env["PADFREE_ISA"] for part in ran] == ["generic", "avx2"]
    assert [float(word(part, "--seconds")) for part in ran] == [900.0, 900.0]
    assert len({word(part, "--seed") for part in ran}) == 2
    assert all(part.env["LD_PRELOAD"] == "libasan.so" for part in ran)
    assert all(part.env["ASAN_OPTIONS"] == f"detect_leaks=0:{soak.LIMITS}" for part in ran)
    assert all(part.env["LOCAL_KERNELS"].endswith(".bundle/build-asan") for part in ran)


def test_a_call_is_repeated_by_its_number(ran: list[Part]) -> None:
    soak.run(arguments("--no-build", "--isa", "avx2", "--seed", "41", "--calls", "1", "--minutes", "2"))
    (part,) = ran
    assert (part.env["PADFREE_ISA"], word(part, "--seed"), word(part, "--calls")) == ("avx2", "41", "1")
    assert float(word(part, "--seconds")) == 120.0


def test_a_failed_call_is_named(
    ran: list[Part], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(part: Part) -> Outcome:
        Path(word(part, "--last")).write_text("4711")
        return Outcome(part.name, code=1)

    monkeypatch.setattr(parts, "run", fail)
    with pytest.raises(SuiteError, match="1 of 1 parts failed"):
        soak.run(arguments("--no-build", "--isa", "generic", "--scratch", str(tmp_path)))
    assert "python -m bundle soak --isa generic --seed 4711 --calls 1" in capfd.readouterr().err


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf", "soon"])
def test_minutes_must_be_a_positive_number(minutes: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        arguments("--minutes", minutes)
    assert stopped.value.code == UsageError.exit_code


def test_a_compiler_without_sanitizers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "capture", lambda command: "libasan.so")
    with pytest.raises(ToolchainError, match=r"g\+\+ with libasan.so wanted"):
        testing.preload()


def test_sanitized_builds_lie_apart(tmp_path: Path) -> None:
    places = build.local_places(arguments("--root", str(tmp_path)), sanitize=True)
    assert places == (tmp_path / ".bundle" / "build-asan", tmp_path / ".bundle" / "asan")
    assert not set(places) & set(options.places(arguments("--root", str(tmp_path))))
