"""``bundle torch``: what stands in for CUDA's libraries, and fetches that fail (a real one is half a gigabyte)."""

from __future__ import annotations

import ctypes
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bundle import checks, other_torch
from bundle.errors import BuildError, CheckError, UsageError


def _library(path: Path, source: str, *words: str) -> None:
    source_file = path.with_suffix(".c")
    source_file.write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", str(source_file), "-o", str(path), *words], check=True)


def test_a_stub_answers_for_every_cuda_function_that_is_missing(tmp_path: Path) -> None:
    lib = tmp_path / "torch" / "lib"
    lib.mkdir(parents=True)
    cuda = tmp_path / "cuda"
    cuda.mkdir()
    _library(cuda / "libcublas.so.13", "int cublasAsk(void) { return 1; }", "-Wl,-soname,libcublas.so.13")
    calls = "int cublasAsk(void); int ask(void) { return cublasAsk(); }"
    rpath = "-Wl,-rpath,$ORIGIN/../../nvidia/cu13/lib"
    _library(lib / "libtorch_cuda.so", calls, f"-L{cuda}", "-l:libcublas.so.13", rpath)
    other_torch.add_stubs(tmp_path, tmp_path / "log")
    assert ctypes.CDLL(str(lib / "libtorch_cuda.so")).ask() == 100


def test_a_cpu_build_gets_no_stubs(tmp_path: Path) -> None:
    lib = tmp_path / "torch" / "lib"
    lib.mkdir(parents=True)
    _library(lib / "libtorch_cpu.so", "int ask(void) { return 1; }")
    other_torch.add_stubs(tmp_path, tmp_path / "log")
    assert not (tmp_path / "nvidia").exists()


def test_a_fetch_that_fails_leaves_no_torch_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(BuildError, match="pip failed"):
        other_torch.unpack("2.11.0", tmp_path)
    assert not (tmp_path / "torch-2.11.0").exists()


def test_a_cuda_variant_that_says_something_else_fails_the_check(tmp_path: Path) -> None:
    folder = tmp_path / "torch-stable-abi211-cu130-x86_64-linux"
    folder.mkdir()
    table = {"name": "tiny", "id": "_tiny_cuda_0", "version": 1, "license": "Apache-2.0", "python-depends": []}
    text = json.dumps({**table, "backend": {"type": "cuda", "archs": ["8.0"]}})
    (folder / "metadata.json").write_text(text, encoding="utf-8")
    target = replace(checks.subject(folder), site=tmp_path)
    assert other_torch._said(target, "print('load: so')", "load: ", tmp_path) == "load: so"
    with pytest.raises(CheckError, match="'load: ' wanted, got ValueError: no"):
        other_torch._said(target, "raise ValueError('no')", "load: ", tmp_path)


@pytest.mark.parametrize("version", ["2.11", "latest", "../2.11.0", ""])
def test_anything_but_a_version_is_refused(tmp_path: Path, version: str) -> None:
    with pytest.raises(UsageError, match=r"a torch version like .* is wanted"):
        other_torch.unpack(version, tmp_path)
