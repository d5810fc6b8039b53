"""The command line: verbs, exit codes, and the two lines a failure prints."""

from __future__ import annotations

import argparse
import errno
import importlib
import importlib.util
import json
import os
import shutil
import sys
import sysconfig
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bundle import __main__ as cli
from bundle import compiler, process
from bundle import errors as kinds
from bundle.builders import cmake
from bundle.errors import BuildError, BundleError, ToolchainError

X86 = "torch-stable-abi211-cpu-x86_64-linux"


def run(*words: str) -> int:
    return cli.main(words)


def test_every_kind_of_failure_has_its_own_code() -> None:
    classes = [kind for kind in vars(kinds).values() if isinstance(kind, type) and issubclass(kind, BundleError)]
    codes = [kind.exit_code for kind in classes]
    assert len(set(codes)) == len(codes)
    assert not set(codes) & {0, 130}


@pytest.mark.parametrize("verb", ["plan", "build", "check"])
def test_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(verb, "--help")
    assert stopped.value.code == 0
    assert "--only GLOB" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["fly"], ["plan", "--fast"]])
def test_wrong_words_are_a_usage_error(words: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(*words)
    assert stopped.value.code == kinds.UsageError.exit_code


def test_a_failure_prints_cause_and_next_step(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("plan", "--root", str(tmp_path)) == kinds.ConfigError.exit_code
    text = capsys.readouterr().err
    assert text.startswith(f"bundle plan: {tmp_path}/build.toml does not exist\nnext: ")


def test_square_brackets_in_a_message_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    cli.explain("build", BuildError("[kernel.x] has [bold]no[/bold] sources", hint="See [torch]."))
    assert capsys.readouterr().err == ("bundle build: [kernel.x] has [bold]no[/bold] sources\nnext: See [torch].\n")


def test_an_empty_selection_fails(checkout: Path) -> None:
    assert run("build", "--root", str(checkout), "--only", "*rocm*") == kinds.EmptySelectionError.exit_code


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(args: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    real = importlib.import_module
    verb = SimpleNamespace(add_arguments=lambda parser: None, run=interrupted)
    monkeypatch.setattr(importlib, "import_module", lambda name: verb if name == "bundle.plan" else real(name))
    assert run("plan") == 130


def test_plan_prints_each_cell_and_why(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "--root", str(checkout)) == 0
    text = capsys.readouterr().err
    assert X86 in text
    assert "left out" in text
    assert "no cuda" in text


def test_plan_json_is_alone_on_standard_output(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "--root", str(checkout), "--json", "--only", "*x86_64*") == 0
    matrix = json.loads(capsys.readouterr().out)
    assert [cell["variant"] for cell in matrix["include"]] == [X86]


def test_check_of_nothing_built(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", "--root", str(checkout)) == kinds.CheckError.exit_code
    assert "holds no metadata.json" in capsys.readouterr().err


# --- process: output, failure, locks, disk -----------------------------------------------------------------------


def test_a_command_is_printed_then_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    log = tmp_path / "log"
    process.run([sys.executable, "-c", "print('a b')"], what="it", log=log, on_line=lines.append)
    assert capsys.readouterr().err.startswith(f"+ {sys.executable} -c ")
    assert lines == ["a b\n"]
    assert log.read_text().splitlines()[1:] == ["a b"]


def test_a_failure_shows_the_end_of_its_output(tmp_path: Path) -> None:
    code = "import sys\nfor i in range(200): print('line', i)\nsys.exit(3)"
    with pytest.raises(BuildError) as caught:
        process.run([sys.executable, "-c", code], what="the compiler", log=tmp_path / "log")
    assert caught.value.message.startswith("the compiler failed with exit code 3:\nline 160\n")
    assert caught.value.message.endswith("line 199")
    assert str(tmp_path / "log") in str(caught.value.hint)


def test_a_killed_command_names_the_signal(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(BuildError, match="the compiler was killed by SIGKILL"):
        process.run([sys.executable, "-c", code], what="the compiler", log=tmp_path / "log")


def test_a_full_disk_in_a_compilers_output_is_named(tmp_path: Path) -> None:
    code = "import sys; print('as: a.o: No space left on device'); sys.exit(1)"
    with pytest.raises(BuildError, match="no space left on the disk that holds") as caught:
        process.run([sys.executable, "-c", code], what="the compiler", log=tmp_path / "log")
    assert "--scratch" in str(caught.value.hint)


def test_a_lock_waits_for_its_holder_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock, done = tmp_path / "lock", tmp_path / "done"
    child = os.fork()
    if child == 0:
        with process.exclusive(lock, "another build"):
            (tmp_path / "held").touch()
            time.sleep(0.3)
            done.touch()
        os._exit(0)
    while not (tmp_path / "held").exists():
        time.sleep(0.005)
    with process.exclusive(lock, "another build"):
        assert done.exists()
        assert lock.read_text().strip() == str(os.getpid())
    os.waitpid(child, 0)
    assert f"waiting for another build in process {child}" in capsys.readouterr().err


def test_too_little_space_stops_before_the_compiler(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = SimpleNamespace(total=1 << 40, used=0, free=7 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda directory: usage)
    assert run("build", "--root", str(checkout), "--only", X86) == kinds.BuildError.exit_code
    assert "7 MiB free on its disk, 300 MiB wanted" in capsys.readouterr().err
    assert not (checkout / "build" / X86).exists()


def test_a_disk_that_fills_up_while_building_is_named(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(cmake, "build", full)
    assert run("build", "--root", str(checkout), "--only", X86) == kinds.BuildError.exit_code
    assert "no space left on the disk" in capsys.readouterr().err


# --- compiler: what is missing is named, with the way to get it ----------------------------------------------------


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but /bin/sh's own builtins."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.delenv("CXX", raising=False)
    return directory


def test_no_compiler(empty_path: Path) -> None:
    with pytest.raises(ToolchainError, match="no C\\+\\+ compiler found") as caught:
        compiler.find(compiler.host_system())
    assert "apt-get install g++" in str(caught.value.hint)


def test_no_compiler_on_the_command_line(checkout: Path, empty_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("build", "--root", str(checkout), "--only", X86) == kinds.ToolchainError.exit_code
    assert "no C++ compiler found" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "banner", "message"),
    [
        ("g++", "g++ (Debian 9.4.0-1) 9.4.0", r"g\+\+ is g\+\+ 9\.4, 11\.0 or newer wanted"),
        ("clang++", "Debian clang version 11.0.1-2", r"clang\+\+ is clang\+\+ 11\.0, 14\.0 or newer wanted"),
        ("c++", "a poem", "does not answer as a compiler"),
    ],
)
def test_an_old_compiler(empty_path: Path, name: str, banner: str, message: str) -> None:
    script(empty_path / name, f"echo '{banner}'")
    with pytest.raises(ToolchainError, match=message):
        compiler.find(compiler.host_system())


def test_cxx_is_taken_first_and_must_exist(empty_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(empty_path / "g++", "echo 'g++ 12.2.0'")
    script(empty_path / "mine", "echo 'g++ (Mine) 13.1.0'")
    assert str(compiler.find(compiler.host_system())) == "g++ (g++ 12.2)"
    monkeypatch.setenv("CXX", "mine -pipe")
    assert compiler.find(compiler.host_system()).command == ("mine", "-pipe")
    monkeypatch.setenv("CXX", "theirs")
    with pytest.raises(ToolchainError, match="CXX names theirs, which is not on PATH"):
        compiler.find(compiler.host_system())


def test_no_cross_compiler(empty_path: Path) -> None:
    with pytest.raises(ToolchainError, match="no C\\+\\+ compiler for riscv64-linux found") as caught:
        compiler.find("riscv64-linux")
    assert caught.value.hint == "Install g++-riscv64-linux-gnu."


def test_no_cmake(empty_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(empty_path / "python"))
    with pytest.raises(ToolchainError, match="cmake not found") as caught:
        compiler.tool("cmake")
    assert caught.value.hint == "pip install cmake"


def test_no_python_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(ToolchainError, match=r"Python\.h not found in") as caught:
        compiler.python_include()
    assert f"apt-get install python3.{sys.version_info.minor}-dev" in str(caught.value.hint)


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match="torch is not installed in this Python"):
        compiler.torch()


def test_target_version_is_packed_as_torch_does() -> None:
    assert compiler.target_version(2, 11) == "0x020b000000000000"
