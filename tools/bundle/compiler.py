"""Finds what a build needs here: a C++20 compiler for the variant's system, cmake, ninja, Python and torch headers.

Everything missing is a ToolchainError whose hint is the command that installs it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from bundle import process
from bundle.errors import ToolchainError

MINIMUM = {"g++": (11, 0), "clang++": (14, 0)}
"""The first versions whose C++20 is enough. Built, and passed every check, with gcc 11.3, 12.2, 13.3, 14.2, 15.3 and
clang 19.1 (13: the test project with every library call the quirks cure; the others: the kernels).
"""

_PACKAGES = "apt-get install g++ (Debian, Ubuntu) or dnf install gcc-c++ (Fedora)"


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler as it is called, with its family and version."""

    command: tuple[str, ...]
    family: str
    version: tuple[int, int]

    def __str__(self) -> str:
        return f"{shlex.join(self.command)} ({self.family} {self.version[0]}.{self.version[1]})"


def host_system() -> str:
    """The machine this runs on, in the words of variant names: x86_64-linux."""
    return f"{platform.machine()}-{platform.system().lower()}"


def reason_against(system: str) -> str | None:
    """Why this machine cannot compile for ``system``; None when it can."""
    if system == host_system() or _cross_command(system):
        return None
    return f"needs {system} or a cross compiler ({_cross_name(system)}); this is {host_system()}"


def find(system: str) -> Compiler:
    """The compiler for ``system``: $CXX, else g++, c++ or clang++; the cross compiler for another machine."""
    if system != host_system():
        command = _cross_command(system)
        if command is None:
            raise ToolchainError(f"no C++ compiler for {system} found", hint=f"Install {_cross_name(system)}.")
        return _checked((command,))
    if chosen := os.environ.get("CXX"):
        words = tuple(shlex.split(chosen))
        if shutil.which(words[0]) is None:
            raise ToolchainError(f"CXX names {words[0]}, which is not on PATH", hint="Correct or unset CXX.")
        return _checked(words)
    for name in ("g++", "c++", "clang++"):
        if shutil.which(name):
            return _checked((name,))
    raise ToolchainError(
        "no C++ compiler found (looked for $CXX, g++, c++, clang++)", hint=f"Install one: {_PACKAGES}."
    )


def _checked(command: tuple[str, ...]) -> Compiler:
    banner = process.capture([*command, "--version"])
    match = re.search(r"(\d+)\.(\d+)(?:\.\d+)?", banner or "")
    if banner is None or match is None:
        raise ToolchainError(
            f"{shlex.join(command)} --version does not answer as a compiler", hint=f"Install {_PACKAGES}."
        )
    family = "clang++" if "clang" in banner.lower() else "g++"
    version = (int(match[1]), int(match[2]))
    if version < MINIMUM[family]:
        wanted = ".".join(map(str, MINIMUM[family]))
        raise ToolchainError(
            f"{shlex.join(command)} is {family} {version[0]}.{version[1]}, {wanted} or newer wanted (C++20)",
            hint=f"Install a newer one and name it in CXX: {_PACKAGES}.",
        )
    return Compiler(command, family, version)


def _cross_name(system: str) -> str:
    return f"g++-{system.split('-')[0].replace('_', '-')}-linux-gnu"


def _cross_command(system: str) -> str | None:
    machine = system.split("-")[0]
    names = [f"{machine}-linux-gnu-g++{suffix}" for suffix in ("", "-14", "-13", "-12")]
    return next((name for name in names if shutil.which(name)), None) if system.endswith("-linux") else None


def has_header(compiler: Compiler, header: str) -> bool:
    """Whether ``#include <header>`` works with no directory named."""
    return process.capture([*compiler.command, "-E", "-x", "c++", "-include", header, os.devnull]) is not None


def tool(name: str) -> str:
    """``cmake`` or ``ninja``: the one installed beside the running Python (pip), else the one on PATH."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ToolchainError(f"{name} not found", hint=f"pip install {name}")
    return found


def python_include() -> Path:
    """The directory of Python.h of the running interpreter."""
    directory = Path(sysconfig.get_path("include"))
    if not (directory / "Python.h").is_file():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise ToolchainError(
            f"Python.h not found in {directory}",
            hint=f"Install the Python headers: apt-get install python{version}-dev (Debian, Ubuntu) "
            f"or dnf install python{version}-devel (Fedora).",
        )
    return directory


@dataclass(frozen=True)
class Torch:
    """The torch beside the running interpreter; only its headers are used."""

    release: str
    include: Path

    @property
    def version(self) -> tuple[int, int]:
        """Its major and minor version."""
        major, minor = self.release.split(".")[:2]
        return int(major), int(minor)

    @property
    def includes(self) -> tuple[Path, ...]:
        """Its include directories."""
        return (self.include, self.include / "torch" / "csrc" / "api" / "include")


def torch() -> Torch:
    """The installed torch, found without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ToolchainError("torch is not installed in this Python; its headers are needed", hint="pip install torch")
    release = importlib.metadata.version("torch")
    include = Path(spec.origin).parent / "include"
    if not (include / "torch" / "csrc" / "stable" / "library.h").is_file():
        raise ToolchainError(f"torch {release} has no stable ABI headers in {include}", hint="pip install -U torch")
    return Torch(release, include)


def target_version(major: int, minor: int) -> str:
    """The TORCH_TARGET_VERSION of a torch version, as the torch headers pack it."""
    return f"0x{(major << 56) | (minor << 48):016x}"
