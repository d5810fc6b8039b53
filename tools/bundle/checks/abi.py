"""Binary compatibility: manylinux_2_28, the Python and torch stable ABIs, and what the library links and exports.

kernel-abi-check reads the symbol table only, so a stripped library passes whatever it needs: the library is looked at
before ``strip``, and one without a symbol table is refused.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

from kernel_abi_check import ObjectFile

from bundle import compiler
from bundle.checks import Subject, binutils
from bundle.errors import CheckError, ToolchainError

MANYLINUX = "manylinux_2_28"
PYTHON_ABI = "3.9"
NEEDED = re.compile(
    r"lib(?:torch_cpu|torch_cuda|torch|c10|stdc\+\+|m|gcc_s|c|pthread|dl|rt|cudart)\.so(?:\.\d+)?|ld-linux-.*"
)

_SHIM_HEADERS = ("torch/csrc/inductor/aoti_torch/c/shim.h", "torch/csrc/stable/c/shim.h")
_SHIM_NAME = re.compile(r"\b((?:aoti_)?torch_\w+)\s*\(")
_TORCH_CXX = re.compile(r"(?<![\w:])(?:c10|at|torch|caffe2)::")
_STARTUP = frozenset({"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__gmon_start__", "__cxa_finalize"})


def _opened(target: Subject) -> ObjectFile:
    if not target.linked.is_file():
        raise CheckError(f"{target.linked} is missing")
    if not binutils.symbols(target.linked):
        raise CheckError(f"{target.linked.name} has no symbol table; strip -g at most, or nothing can be checked")
    return ObjectFile(target.linked)


def manylinux(target: Subject) -> Iterator[str]:
    """No symbol newer than manylinux_2_28 has."""
    for found in _opened(target).check_manylinux(MANYLINUX):
        yield f"{found.name} needs {found.dep} {found.version}, newer than {MANYLINUX}"


def python_abi(target: Subject) -> Iterator[str]:
    """Only symbols of Python's stable ABI, in its 3.9 form."""
    for found in _opened(target).check_python_abi(PYTHON_ABI):
        since = getattr(found, "version_added", None)
        what = f"came into Python's stable ABI with {since}" if since else "is not in Python's stable ABI"
        yield f"{found.name} {what}; {PYTHON_ABI} is promised"


def linking(target: Subject) -> Iterator[str]:
    """Exports PyInit_<id> alone, needs no library beyond torch and the system's, carries no RPATH."""
    exported = {symbol.name for symbol in binutils.dynamic_symbols(target.library) if not symbol.undefined}
    init = f"PyInit_{target.id}"
    if init not in exported:
        yield f"{init} is not exported, so Python cannot import the library"
    for name in sorted(exported - {init}):
        yield f"{name} is exported; a second copy of the bundle in one process would share it"
    for name in binutils.dynamic_entries(target.library, "NEEDED"):
        if not NEEDED.fullmatch(name):
            yield f"needs {name}, which is neither torch's nor the system's"
    for tag in ("RPATH", "RUNPATH"):
        for path in binutils.dynamic_entries(target.library, tag):
            yield f"has {tag} {path}"


def stable_abi(target: Subject) -> Iterator[str]:
    """From torch only C shim entry points that the variant's target version has; from nobody a symbol none provides."""
    if not target.variant.stable_abi or target.variant.torch is None:
        return
    undefined = [symbol for symbol in binutils.dynamic_symbols(target.library) if symbol.undefined]
    readable = binutils.demangle(tuple(symbol.name for symbol in undefined))
    entry_points = shim_entry_points(*target.variant.torch)
    version = ".".join(map(str, target.variant.torch))
    for symbol in undefined:
        name = readable[symbol.name]
        if _TORCH_CXX.search(name):
            yield f"{name} is torch's C++, which changes with every version; use the stable ABI"
        elif symbol.version or symbol.name in _STARTUP or symbol.name.startswith(("Py", "_Py")):
            continue
        elif symbol.name.startswith(("aoti_torch_", "torch_")):
            if symbol.name not in entry_points:
                yield f"{symbol.name} is no entry point of torch {version}'s C shim"
        else:
            yield f"{name} is undefined, and neither torch, Python nor the system provides it"


def shim_entry_points(major: int, minor: int) -> frozenset[str]:
    """The C functions that the torch headers declare for target version ``major.minor``."""
    torch = compiler.torch()
    if torch.version < (major, minor):
        raise ToolchainError(f"torch {major}.{minor} or newer headers wanted, got {torch.version}")
    command = [
        *compiler.find(compiler.host_system()).command, "-std=c++20", "-E", "-P", "-x", "c++", "-", "-DUSE_CUDA",
        f"-DTORCH_TARGET_VERSION={compiler.target_version(major, minor)}",
        *(f"-I{path}" for path in torch.includes),
    ]  # fmt: skip
    text = "".join(f"#include <{header}>\n" for header in _SHIM_HEADERS)
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise ToolchainError(f"the torch headers do not preprocess: {result.stderr.strip()[-2000:]}")
    return frozenset(_SHIM_NAME.findall(result.stdout))
