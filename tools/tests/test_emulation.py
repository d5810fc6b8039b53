"""``build --emulate-avx512``: which flags it changes, where it puts its build, what it wants installed."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from bundle import build, buildfile, compiler, options, testing
from bundle.builders import cmake
from bundle.buildfile import BuildFile
from bundle.checks import isa as isa_check
from bundle.compiler import Compiler
from bundle.errors import ToolchainError, UsageError
from bundle.variant import parse

NAME = parse("torch-stable-abi211-cpu-x86_64-linux")


@pytest.fixture(scope="module")
def real() -> BuildFile:
    """build.toml of this checkout."""
    return buildfile.read(options.REPOSITORY)


def sections(real: BuildFile, tmp_path: Path, emulate_avx512: bool) -> dict[str, str]:
    """What CMakeLists.txt says for each section."""
    job = cmake.Job(real, NAME, "_id", tmp_path, emulate_avx512=emulate_avx512)
    return {section.name: cmake._section(job, section, define=False) for section in real.sections("cpu")}


def test_only_the_avx512_files_are_compiled_otherwise(real: BuildFile, tmp_path: Path) -> None:
    plain, emulated = (sections(real, tmp_path, value) for value in (False, True))
    changed = {name for name in plain if plain[name] != emulated[name]}
    assert changed == {"common_cpu", *(name for name in plain if "_avx512" in name)}
    assert "PADFREE_EMULATE_AVX512" in emulated["common_cpu"]
    for name in changed - {"common_cpu"}:
        assert "-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl" in plain[name]
        assert not re.search("-mavx512|-O3", emulated[name])
        assert {*cmake.EMULATED_FLAGS, "-mfma", "-mf16c"} <= set(re.split(r'[;"]', emulated[name]))


def test_every_op_has_every_path(real: BuildFile) -> None:
    names = {section.name for section in real.kernels}
    ops = {name.removesuffix("_cpu") for name in names if name.endswith("_cpu")} - {"common"}
    assert {"attention", "causal_conv1d"} < ops
    assert {f"{op}_cpu_{isa}" for op in ops for isa in testing.ISA_PATHS[1:]} - names == set()
    assert {f"attention_cpu_{isa}" for isa in isa_check.ISAS} < names


def arguments(*words: str) -> argparse.Namespace:
    """The command line of `bundle build`."""
    parser = argparse.ArgumentParser()
    build.add_arguments(parser)
    return parser.parse_args(words)


def test_builds_for_tests_lie_apart(tmp_path: Path) -> None:
    args = arguments("--scratch", str(tmp_path))
    kinds = [
        build.local_places(args, sanitize=a, emulate_avx512=b) for a, b in ((True, False), (False, True), (True, True))
    ]
    assert [out.name for out, _ in kinds] == ["build-asan", "build-emulated", "build-asan-emulated"]
    assert len({scratch for _, scratch in kinds}) == 3


def test_the_official_build_has_no_such_thing() -> None:
    with pytest.raises(UsageError, match="--emulate-avx512 must come with --builder cmake, got nix"):
        build.run(arguments("--emulate-avx512", "--builder", "nix"))


def test_what_is_not_installed_is_named(real: BuildFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "has_header", lambda found, header: False)
    with pytest.raises(ToolchainError, match=r"<simde/x86/avx512\.h> wanted for --emulate-avx512") as error:
        cmake.build(cmake.Job(real, NAME, "_id", tmp_path, emulate_avx512=True))
    assert error.value.hint == "apt-get install libsimde-dev (Debian, Ubuntu)."


@pytest.mark.parametrize(("header", "there"), [("cstdint", True), ("no/such/header.h", False)])
def test_whether_a_header_is_there_is_asked_of_the_compiler(header: str, there: bool) -> None:
    assert compiler.has_header(Compiler(("g++",), "g++", (12, 2)), header) is there
