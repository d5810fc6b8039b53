"""CUDA on this machine: the toolkit that compiles a cuXYZ variant, and the architectures that build.toml asks for.

A toolkit is looked for in $CUDA_HOME, behind the nvcc on PATH, and where ``bundle toolchain`` puts one. Its version
must be the variant's: a CUDA driver of the same major version runs a library that is not newer than itself, so a
variant built with a newer nvcc than its name says would fail on the machines the name promises.
"""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bundle import process
from bundle.buildfile import FILE_NAME, BuildFile, Section
from bundle.errors import ConfigError, ToolchainError, UsageError
from bundle.variant import Variant

_RELEASE = re.compile(r"release (\d+)\.(\d+), V([\d.]+)")
_TOP = re.compile(r"^#\$ TOP=(.+)$", re.MULTILINE)
_CAPABILITY = re.compile(r"(?P<major>\d+)\.(?P<minor>\d)(?P<ptx>\+PTX)?")

OBJECTS = "cuda"
"""Where a build keeps what nvcc made, below CMake's build directory."""


@dataclass(frozen=True, order=True)
class Arch:
    """One compute capability. ``ptx``: also as PTX, which a newer GPU's driver compiles when it loads the library."""

    major: int
    minor: int
    ptx: bool = False

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{'+PTX' if self.ptx else ''}"

    @property
    def sm(self) -> str:
        """Its name in cubins: sm_80."""
        return f"sm_{self.major}{self.minor}"

    @property
    def flags(self) -> tuple[str, ...]:
        """What nvcc wants to hear."""
        number = f"{self.major}{self.minor}"
        real = ("-gencode", f"arch=compute_{number},code=sm_{number}")
        return (*real, "-gencode", f"arch=compute_{number},code=compute_{number}") if self.ptx else real


def parse_arch(text: str) -> Arch:
    """``8.0`` or ``12.1+PTX``; ConfigError for anything else."""
    match = _CAPABILITY.fullmatch(text)
    if match is None:
        raise ConfigError(f"a compute capability like 8.0 or 12.1+PTX is wanted, got {text!r}")
    return Arch(int(match["major"]), int(match["minor"]), match["ptx"] is not None)


def archs(section: Section, only: Iterable[Arch] = ()) -> tuple[Arch, ...]:
    """The architectures that a section with CUDA sources is compiled for, those of ``only`` where that names some."""
    listed = tuple(parse_arch(text) for text in section.cuda_capabilities)
    if not listed:
        raise ConfigError(f"{FILE_NAME}: [kernel.{section.name}] has .cu files and no cuda-capabilities")
    wanted = set(only)
    return tuple(arch for arch in listed if not wanted or arch in wanted)


def all_archs(build: BuildFile, only: Iterable[str] = ()) -> tuple[Arch, ...]:
    """Every architecture of a CUDA variant, sorted; UsageError when ``only`` names one that build.toml does not."""
    chosen = tuple(parse_arch(text) for text in only)
    listed = {arch for section in cuda_sections(build) for arch in archs(section)}
    if unknown := [str(arch) for arch in chosen if arch not in listed]:
        there = " ".join(map(str, sorted(listed)))
        raise UsageError(f"--archs must be of build.toml's cuda-capabilities ({there}), got {' '.join(unknown)}")
    return tuple(sorted(set(chosen) or listed))


def cuda_sections(build: BuildFile) -> Iterator[Section]:
    """The sections that nvcc compiles something of."""
    return (section for section in build.sections("cuda") if any(path.suffix == ".cu" for path in section.sources))


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit: ``root`` holds bin, include and lib; ``release`` is nvcc's whole version, 13.0.88."""

    root: Path
    version: tuple[int, int]
    release: str

    @property
    def nvcc(self) -> Path:
        """The compiler."""
        return self.root / "bin" / "nvcc"

    @property
    def include(self) -> Path:
        """The headers."""
        return self.root / "include"

    @property
    def runtime(self) -> Path:
        """The shared CUDA runtime, which torch brings on a user's machine."""
        name = f"libcudart.so.{self.version[0]}"
        for folder in ("lib", "lib64", "targets/x86_64-linux/lib"):
            if (self.root / folder / name).is_file():
                return self.root / folder / name
        raise ToolchainError(f"{self.root} has no {name}", hint="Install the CUDA runtime's development files.")

    def __str__(self) -> str:
        return f"{self.nvcc} ({self.release})"


def wanted_version(name: Variant) -> tuple[int, int]:
    """The CUDA version in a variant's name: cu130 is (13, 0)."""
    digits = name.accelerator.removeprefix("cu")
    return int(digits[:-1]), int(digits[-1])


def find(name: Variant, root: Path) -> Toolkit:
    """The toolkit for ``name``; ToolchainError says which ones there are instead."""
    version, found = wanted_version(name), []
    for place in _places(name, root):
        toolkit = _toolkit(place)
        if toolkit is not None and toolkit.version == version:
            return toolkit
        if toolkit is not None:
            found.append(f"nvcc {toolkit.release}")
    got = ", ".join(dict.fromkeys(found)) or "no nvcc"
    raise ToolchainError(
        f"{name}: nvcc {version[0]}.{version[1]} wanted, found {got}",
        hint=f"`bundle toolchain {name.accelerator}` fetches it, or name a toolkit in CUDA_HOME.",
    )


def reason_against(name: Variant, root: Path) -> str | None:
    """Why this machine cannot compile the CUDA variant ``name``; None when it can."""
    try:
        find(name, root)
    except ToolchainError as error:
        return error.message.removeprefix(f"{name}: ")
    return None


def toolchain_directory(accelerator: str, root: Path) -> Path:
    """Where ``bundle toolchain`` puts the toolkit of an accelerator."""
    return root / ".bundle" / "toolchains" / accelerator


def tool(name: str, root: Path) -> Path:
    """``cuobjdump`` or its like: from PATH, a toolkit, the Python environment, or what ``bundle toolchain`` fetched."""
    if on_path := shutil.which(name):
        return Path(on_path)
    homes = (Path(home) / "bin" / name for home in _homes())
    installed = Path(sysconfig.get_path("purelib")).glob(f"nvidia/cu*/bin/{name}")
    fetched = toolchain_directory("", root).glob(f"*/nvidia/cu*/bin/{name}")
    for path in (*homes, *installed, *fetched):
        if path.is_file():
            return path
    raise ToolchainError(f"{name} not found", hint=f"pip install nvidia-cuda-{name}")


def cubin_bytes(library: Path, root: Path) -> dict[str, int]:
    """The size of a library's cubins, by architecture; PTX is not counted."""
    sizes: dict[str, int] = defaultdict(int)
    with tempfile.TemporaryDirectory() as folder:
        command = [str(tool("cuobjdump", root)), "-xelf", "all", str(library)]
        if process.capture(command, cwd=Path(folder)) is None:
            raise ToolchainError(f"{command[0]} cannot read {library}")
        for path in Path(folder).glob("*.cubin"):
            sizes[path.name.split(".")[-2]] += path.stat().st_size
    return sizes


def _homes() -> Iterator[str]:
    if home := os.environ.get("CUDA_HOME"):
        yield home
    answer = process.capture(["nvcc", "--dryrun", "-x", "cu", "/dev/null", "-c", "-o", "/dev/null"], both=True)
    if match := _TOP.search(answer or ""):
        yield os.path.normpath(match[1])


def _places(name: Variant, root: Path) -> Iterator[Path]:
    yield from map(Path, _homes())
    yield from toolchain_directory(name.accelerator, root).glob("nvidia/cu*")


def _toolkit(root: Path) -> Toolkit | None:
    banner = process.capture([str(root / "bin" / "nvcc"), "--version"])
    match = _RELEASE.search(banner or "")
    return Toolkit(root, (int(match[1]), int(match[2])), match[3]) if match else None
