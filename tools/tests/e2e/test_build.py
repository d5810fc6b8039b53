"""Real builds of the tiny checkout: what they leave, how they fail, and that the loader takes the result."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import kernels_data
import pytest
from conftest import git, write_checkout

from bundle import __main__ as cli
from bundle import build, errors
from bundle.checks import api
from bundle.options import REPOSITORY

pytestmark = pytest.mark.e2e

X86 = "torch-stable-abi211-cpu-x86_64-linux"

LOAD = """
import pathlib, sys, torch, kernels
copies = [kernels.get_local_kernel(pathlib.Path(path), backend="cpu") for path in sys.argv[1:]]
x = torch.arange(5.0)
for copy in copies:
    torch.testing.assert_close(copy.scale(x, 3.0), 3 * x)
print(len({copy.__name__ for copy in copies}))
"""


def bundle(verb: str, root: Path, *words: str) -> int:
    return cli.main([verb, "--root", str(root), "--only", X86, *words])


def load(*directories: Path) -> int:
    """Load each copy in one fresh process, call its op; how many different modules they were."""
    command = [sys.executable, "-c", LOAD, *map(str, directories)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return int(result.stdout.splitlines()[-1])


def metadata(root: Path) -> kernels_data.Metadata:
    return kernels_data.Metadata.read_from_file(root / "build" / X86 / "metadata.json")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout that was built once; not to be changed."""
    root = write_checkout(tmp_path_factory.mktemp("first") / "check out (é)")
    assert bundle("build", root) == 0
    return root


@pytest.fixture
def built(first: Path, tmp_path: Path) -> Path:
    """A built checkout of one's own: the copy keeps file times, so its next build is incremental where paths allow."""
    return Path(shutil.copytree(first, tmp_path / "checkout"))


@pytest.fixture
def _committed_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "api_v1.txt").write_text("scale\n")
    monkeypatch.setattr(api, "DIRECTORY", tmp_path)


def test_what_a_build_leaves(first: Path) -> None:
    identity = metadata(first).id
    assert identity == f"_tiny_kernel_cpu_{git(first, 'rev-parse', 'HEAD^{tree}')[:7]}"
    assert sorted(path.name for path in (first / "build").iterdir()) == [X86]
    assert sorted(path.name for path in (first / "build" / X86).iterdir()) == [
        "__init__.py",
        "_ops.py",
        f"{identity}.abi3.so",
        "metadata.json",
    ]
    provenance = json.loads((first / "build" / X86 / "metadata.json").read_text())["provenance"]
    assert provenance["kernel"] == {"commit": git(first, "rev-parse", "HEAD").strip(), "dirty": False}
    assert git(first, "status", "--porcelain").split() == ["??", ".bundle/", "??", "build/"]


def test_the_loader_takes_it(first: Path) -> None:
    assert load(first) == 1


@pytest.mark.usefixtures("_committed_api")
def test_every_check_holds(first: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle("check", first) == 0
    lines = capsys.readouterr().err.splitlines()[1:]
    assert len(lines) == 13
    assert all(line.split()[-1] == "ok" for line in lines), lines


@pytest.mark.usefixtures("_committed_api")
def test_a_variant_from_elsewhere(first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "snapshots" / X86  # as the Hub client keeps it: links into its store
    copy.mkdir(parents=True)
    for path in (first / "build" / X86).iterdir():
        if path.is_file():
            (copy / path.name).symlink_to(path)
    assert cli.main(["check", str(copy)]) == 0
    text = capsys.readouterr().err
    assert text.count("skipped") == 3
    assert "the object files of this build are not on this machine" in text


NEWER_THAN_2_28 = """
#include <dlfcn.h>

#include <cmath>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

double use_of_newer_libraries(double x, long n, const char* text) {
  std::ostringstream out;
  out << std::exp(x) << std::exp2(x) << std::log(x) << std::log2(x) << std::pow(x, x) << std::hypot(x, x);
  out << std::stol(text) << std::stoull(text) << std::stringstream(text).str();
  std::shared_ptr<double[]> many(new double[n]);
  std::weak_ptr<double[]> again = many;
  if (n < 0) std::cerr << out.str() << dlsym(dlopen(text, RTLD_NOW), text);
  return many[0] + static_cast<double>(out.str().size()) + again.use_count();
}
"""


def test_what_the_quirks_cure(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Library calls that gcc and glibc of our days bind to versions manylinux_2_28 lacks."""
    source = built / "kernel-src" / "scale" / "cpu" / "kernel_generic.cpp"
    source.write_text(NEWER_THAN_2_28 + source.read_text())
    assert bundle("build", built) == 0
    assert bundle("check", built) == errors.CheckError.exit_code, "the tiny package has no committed API"
    lines = {line[:12].strip(): line for line in capsys.readouterr().err.splitlines()}
    assert lines["manylinux"].split()[-1] == "ok"
    assert lines["load"].split()[-1] == "ok"


def test_the_library_is_the_same_wherever_it_is_built(first: Path, built: Path) -> None:
    name = f"{metadata(first).id}.abi3.so"
    (built / "build" / X86 / name).unlink()
    assert bundle("build", built) == 0
    assert (built / "build" / X86 / name).read_bytes() == (first / "build" / X86 / name).read_bytes()


def test_two_copies_side_by_side(built: Path, tmp_path: Path) -> None:
    for uid in ("left", "right"):
        assert bundle("build", built, "--uid", uid, "--out", str(tmp_path / uid)) == 0
    assert load(tmp_path / "left", tmp_path / "right", built) == 3


def test_nothing_changed_compiles_nothing(built: Path) -> None:
    assert bundle("build", built) == 0  # at its new place
    objects = {path: path.stat().st_mtime_ns for path in (built / ".bundle").rglob("*.o")}
    started = time.monotonic()
    assert bundle("build", built) == 0
    assert time.monotonic() - started < 5
    assert objects
    assert objects == {path: path.stat().st_mtime_ns for path in (built / ".bundle").rglob("*.o")}


def test_another_compiler_starts_afresh(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bundle("build", built) == 0
    before = {path: path.stat().st_mtime_ns for path in (built / ".bundle").rglob("*.cpp.o")}
    wrapper = tmp_path / "mine"
    wrapper.write_text('#!/bin/sh\nexec g++ "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    assert bundle("build", built) == 0
    changed = {path for path in (built / ".bundle").rglob("*.cpp.o") if path.stat().st_mtime_ns != before[path]}
    assert changed == set(before)


def test_an_edit_compiles_its_file_and_the_binding_only(built: Path) -> None:
    assert bundle("build", built) == 0
    before = {path: path.stat().st_mtime_ns for path in (built / ".bundle").rglob("*.o")}
    source = built / "kernel-src" / "scale" / "cpu" / "kernel_generic.cpp"
    source.write_text(source.read_text() + "// edited\n")
    assert bundle("build", built) == 0
    changed = {path.name for path in (built / ".bundle").rglob("*.o") if path.stat().st_mtime_ns != before[path]}
    assert changed == {"kernel_generic.cpp.o", "torch_binding.cpp.o"}
    assert "_dirty_" in metadata(built).id


def test_an_unlisted_header_is_named(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (built / "kernel-src" / "scale" / "extra.h").write_text("#pragma once\n")
    source = built / "kernel-src" / "scale" / "cpu" / "kernel_generic.cpp"
    source.write_text('#include "scale/extra.h"\n' + source.read_text())
    before = metadata(built).id
    assert bundle("build", built) == errors.BuildError.exit_code
    text = capsys.readouterr().err
    assert "next: build.toml does not list kernel-src/scale/extra.h: add it to the src of the section" in text
    assert metadata(built).id == before, "a failed build must leave the variant that was there"
    assert load(built) == 1


def test_a_compile_error_is_shown(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = built / "kernel-src" / "scale" / "cpu" / "kernel_generic.cpp"
    source.write_text(source.read_text() + "int broken = ;\n")
    assert bundle("build", built) == errors.BuildError.exit_code
    text = capsys.readouterr().err
    assert "bundle build: the compiler failed with exit code 1:" in text
    assert "expected primary-expression" in text
    assert "build.log" in text


def start(root: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bundle", "build", "--root", str(root), "--only", X86]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "tools"), "CCACHE_DISABLE": "1"}
    return subprocess.Popen(
        command,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_can_be_interrupted,
    )


def _can_be_interrupted() -> None:
    """Runs in the child: a shell ignores SIGINT for what it starts in the background, and that is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def compilers(root: Path) -> list[str]:
    """Process ids of compilers at work on ``root``."""
    command = ["pgrep", "-f", f"cc1plus.*{root}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_build_leaves_the_previous_variant_and_no_compiler(built: Path, blow: signal.Signals) -> None:
    before = metadata(built).id
    binding = built / "torch-ext" / "torch_binding.cpp"
    binding.write_text(binding.read_text() + "// edited\n")
    child = start(built)
    while child.poll() is None and not compilers(built):
        time.sleep(0.01)
    child.send_signal(blow)
    _, text = child.communicate(timeout=30)
    if blow == signal.SIGINT:
        assert child.returncode == 130
        assert "bundle build: interrupted" in text
    else:
        assert child.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while compilers(built):
        assert time.monotonic() < deadline, "a compiler outlived the build that started it"
        time.sleep(0.05)
    assert metadata(built).id == before
    assert load(built) == 1
    assert bundle("build", built) == 0
    assert metadata(built).id != before
    assert load(built) == 1


def test_two_builds_at_once_wait_for_each_other(built: Path) -> None:
    binding = built / "torch-ext" / "torch_binding.cpp"
    binding.write_text(binding.read_text() + "// edited\n")
    children = [start(built), start(built)]
    texts = [child.communicate(timeout=120)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0], texts
    assert sum("waiting for another build" in text for text in texts) == 1
    assert load(built) == 1


def test_a_full_disk(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    words = ("--scratch", str(small), "--out", str(tmp_path / "out"))
    try:
        assert bundle("build", first, *words) == errors.BuildError.exit_code
        assert "MiB free on its disk, 300 MiB wanted" in capsys.readouterr().err
        monkeypatch.setattr(build, "NEEDED_BYTES", 0)
        assert bundle("build", first, *words) == errors.BuildError.exit_code
        assert f"no space left on the disk that holds {small}" in capsys.readouterr().err
    finally:
        subprocess.run(["umount", str(small)], check=True)
