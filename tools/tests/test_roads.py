"""The one-way import roads of the architecture, in C++ and in Python; and the syntax that ships."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bundle.checks.layout import python_rules
from bundle.options import REPOSITORY

KERNELS = REPOSITORY / "kernel-src"
PACKAGE = REPOSITORY / "torch-ext" / "padfree_flash2"
DRIVER = REPOSITORY / "tools" / "bundle"

_INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]', re.MULTILINE)

TORCH_HEADERS_ALLOWED = {"host.cpp", "checks.h", "torch_op.h", "parallel.cpp", "stream.cpp", "stream.h"}


def native_files() -> list[Path]:
    return sorted(path for path in KERNELS.rglob("*") if path.suffix in {".h", ".cpp", ".cu", ".cuh"})


def includes(text: str) -> Iterator[str]:
    for _, name in _INCLUDE.findall(text):
        yield name


def op_of(name: str) -> str:
    """The op directory of a kernel-src path; common is nobody's."""
    return name.split("/", 1)[0]


def native_faults(name: str, text: str, ops: set[str]) -> Iterator[str]:
    """What a kernel-src file includes against the roads. ``name`` is its path below kernel-src."""
    own = op_of(name)
    for header in includes(text):
        if header.startswith(("torch/", "ATen/", "c10/")) and Path(name).name not in TORCH_HEADERS_ALLOWED:
            allowed = "host.cpp, checks.h, torch_op.h, parallel.cpp and the stream lookup"
            yield f"{name} includes {header}: only {allowed} may"
        other = op_of(header)
        if other in ops and other != own:
            yield f"{name} includes {header}: ops never include each other, share through common/"
        if Path(name).name == "params.h" and other == own and "/cpu/" not in name and "/cuda/" not in name:
            yield f"{name} includes {header}: params.h stands below everything of its op"
        if header == "registration.h" or (header == "torch_binding.h" and Path(name).name != "host.cpp"):
            # host.cpp defines what torch_binding.h declares: the compiler compares the two there
            yield f"{name} includes {header}: the binding is above"


NEWER_THAN_THE_TARGET = ("STABLE_TORCH_ERROR_CODE_CHECK",)
"""Names that headers of the target, torch 2.11, have not: a machine with that torch compiles the sources too."""


def test_native_sources_compile_with_the_headers_of_the_oldest_torch() -> None:
    binding = (REPOSITORY / "torch-ext").glob("*.[hc]*")
    for path in (*native_files(), *binding):
        text = path.read_text(encoding="utf-8")
        assert not [name for name in NEWER_THAN_THE_TARGET if name in text], path


# What a .cuh file may include: nvcc, NVRTC and the emulator compile it, so there is no host code in it.
CUH_HEADERS = {"cstdint", "type_traits", "cuda_fp16.h", "cuda_bf16.h", "cuda_host/device.h"}
_CODE = re.compile(r"//[^\n]*")


def cuda_faults(name: str, text: str) -> Iterator[str]:
    """What is against the rules of CUDA sources: one home of instructions, kernels without host code."""
    code = _CODE.sub("", text)
    if re.search(r"\basm\b", code) and not name.startswith("common/cuda/"):
        yield f"{name} has inline assembly: common/cuda/ is its one home"
    if "<<<" in code:
        yield f"{name} launches by itself: common/cuda/launch.h does"
    for header in includes(text) if name.endswith(".cuh") else ():
        own = header.endswith((".cuh", "params.h", "types.h", "dispatch.h", "geometry.h", "kernels.h"))
        if not own and header not in CUH_HEADERS:
            yield f"{name} includes {header}, which NVRTC has not"


def test_cuda_roads() -> None:
    faults = [
        fault
        for path in native_files()
        for fault in cuda_faults(path.relative_to(KERNELS).as_posix(), path.read_text(encoding="utf-8"))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("attention/cuda/forward.cuh", 'asm volatile("nop;");', "common/cuda/ is its one home"),
        ("attention/cuda/forward_64.cu", "kernel<<<1, 32>>>();", "launches by itself"),
        ("attention/cuda/forward.cuh", "#include <string>", "which NVRTC has not"),
        ("attention/cuda/forward.cuh", "#include <torch/csrc/stable/tensor.h>", "which NVRTC has not"),
    ],
)
def test_cuda_faults_are_found(name: str, text: str, fault: str) -> None:
    assert [fault in line for line in cuda_faults(name, text)] == [True]


def op_names() -> set[str]:
    return {path.name for path in KERNELS.iterdir() if path.is_dir() and path.name != "common"}


def test_native_roads() -> None:
    ops = op_names()
    faults = [
        fault
        for path in native_files()
        for fault in native_faults(path.relative_to(KERNELS).as_posix(), path.read_text(encoding="utf-8"), ops)
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("attention/cpu/kernel_avx2.cpp", "#include <torch/csrc/stable/tensor.h>", "only host.cpp"),
        ("attention/cpu/host.cpp", '#include "causal_conv1d/params.h"', "share through common/"),
        ("common/types.h", '#include "attention/params.h"', "share through common/"),
        ("attention/params.h", '#include "attention/cpu/kernel.h"', "stands below"),
        ("attention/cpu/host.cpp", '#include "registration.h"', "the binding is above"),
        ("attention/cpu/plan.cpp", '#include "torch_binding.h"', "the binding is above"),
    ],
)
def test_native_faults_are_found(name: str, text: str, fault: str) -> None:
    found = list(native_faults(name, text, {"attention", "causal_conv1d"}))
    assert [fault in line for line in found] == [True]


def test_native_includes_that_keep_the_roads() -> None:
    names = ("<torch/csrc/stable/tensor.h>", '"common/types.h"', '"attention/params.h"', '"torch_binding.h"')
    text = "".join(f"#include {name}\n" for name in names)
    assert not list(native_faults("attention/cpu/host.cpp", text, {"attention"}))


# What each module may import from the package: _ops <- _register, <op> <- layers <- the parts of wiring <- __init__.
PACKAGE_LEVELS = {
    "_ops": 0,
    "_register": 1,
    "layers": 3,
    "functions": 4,
    "packages": 5,
    "repository": 4,
    "report": 5,
    "wiring": 6,
    "__init__": 7,
}
_OP_LEVEL = 2


def package_imports(tree: ast.Module) -> Iterator[str]:
    """Modules of the own package that are imported, wherever in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            if node.module:
                yield node.module.split(".")[0]
            else:
                yield from (alias.name for alias in node.names)


def package_faults(name: str, text: str, modules: set[str]) -> Iterator[str]:
    tree = ast.parse(text)
    level = PACKAGE_LEVELS.get(name, _OP_LEVEL)
    for other in package_imports(tree):
        if other in modules and PACKAGE_LEVELS.get(other, _OP_LEVEL) > level:
            yield f"{name} imports {other}, which stands above it"
    if name != "_register" and re.search(r"\btorch\.library\b|from torch import library", text):
        yield f"{name} names torch.library; only _register may"


def package_files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.name != "_ops.py")


def test_package_roads() -> None:
    modules = {path.stem for path in package_files()} | {"_ops"}
    faults = [
        fault
        for path in package_files()
        for fault in package_faults(path.stem, path.read_text(encoding="utf-8"), modules)
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("_register", "from .attention import flash_attn_func", "_register imports attention"),
        ("attention", "from . import layers", "attention imports layers"),
        ("attention", "def f():\n    from .wiring import enable", "attention imports wiring"),
        ("attention", "import torch\ntorch.library.custom_op", "names torch.library"),
    ],
)
def test_package_faults_are_found(name: str, text: str, fault: str) -> None:
    modules = {"attention", "layers", "wiring", "_register", "_ops"}
    assert [fault in line for line in package_faults(name, text, modules)] == [True]


@pytest.mark.parametrize("path", package_files(), ids=lambda path: path.name)
def test_the_package_is_old_python_and_imports_only_torch(path: Path) -> None:
    assert not list(python_rules(path, path.name))


# errors, process <- variant <- compiler, buildfile <- cuda, matrix, stage <- provenance, ptxas, builders, checks <- the
# verbs.
DRIVER_LEVELS = {
    "errors": 0,
    "process": 1,
    "options": 1,
    "progress": 2,
    "variant": 2,
    "compiler": 3,
    "buildfile": 3,
    "cuda": 4,
    "matrix": 4,
    "stage": 4,
    "provenance": 5,
    "ptxas": 5,
    "builders": 6,
    "checks": 6,
    "__main__": 9,
}
_VERB_LEVEL = 8


def driver_imports(tree: ast.Module) -> Iterator[str]:
    """First names below ``bundle`` that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "bundle":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bundle."):
            yield (node.module or "").split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("bundle."))


def driver_faults(name: str, text: str) -> Iterator[str]:
    """``name`` is the path below bundle/ without .py, as in checks/abi."""
    own = name.split("/", 1)[0]
    for other in driver_imports(ast.parse(text)):
        if own == "hub" and other not in ("hub", "errors", "process", "options"):
            yield f"{name} imports {other}: the Hub shares nothing with its clients"
        elif own != other and DRIVER_LEVELS.get(other, _VERB_LEVEL) > DRIVER_LEVELS.get(own, _VERB_LEVEL):
            yield f"{name} imports {other}, which stands above it"
        elif {own, other} == {"builders", "checks"}:
            yield f"{name} imports {other}: what builds is not what checks"


def test_driver_roads() -> None:
    faults = [
        fault
        for path in sorted(DRIVER.rglob("*.py"))
        for fault in driver_faults(
            path.relative_to(DRIVER).with_suffix("").as_posix(), path.read_text(encoding="utf-8")
        )
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("hub/store", "from bundle.publish import upload", "shares nothing"),
        ("variant", "from bundle import matrix", "stands above"),
        ("checks/abi", "from bundle.builders import cmake", "what builds is not what checks"),
        ("stage", "import bundle.build", "stands above"),
    ],
)
def test_driver_faults_are_found(name: str, text: str, fault: str) -> None:
    assert [fault in line for line in driver_faults(name, text)] == [True]
