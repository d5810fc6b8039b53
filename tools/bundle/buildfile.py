"""build.toml, read once: kernel-builder's own validator first, then the values as dataclasses.

``kernels._rust.Build`` refuses what kernel-builder would refuse (unknown keys, a wrong edition) but exposes few fields,
so the values come from ``tomllib``. A machine that only has a GPU to try the kernels on (``bundle gpu``) has no
`kernels`: there the file is taken as it is.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from bundle.errors import ConfigError

try:
    from kernels._rust import Build
except ModuleNotFoundError:
    Build = None

FILE_NAME = "build.toml"
SOURCE_SUFFIXES = frozenset({".c", ".cc", ".cpp", ".cxx", ".cu"})
HEADER_SUFFIXES = frozenset({".h", ".hh", ".hpp", ".hxx", ".cuh", ".inc"})


_X86_FLAG = re.compile(r"-m(?:avx|fma|f16c|bmi|sse[34]|ssse3|arch=|tune=|popcnt|lzcnt|movbe|amx).*")


def _version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


@dataclass(frozen=True)
class Section:
    """Files compiled with one set of flags: a ``[kernel.<name>]``, or the binding (``[torch]``) with backend None."""

    name: str
    backend: str | None
    src: tuple[PurePosixPath, ...]
    include: tuple[str, ...]
    cxx_flags: tuple[str, ...]
    cuda_flags: tuple[str, ...] = ()
    cuda_capabilities: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[PurePosixPath, ...]:
        """What is compiled."""
        return tuple(path for path in self.src if path.suffix in SOURCE_SUFFIXES)

    @property
    def isa_flags(self) -> tuple[str, ...]:
        """Its flags that ask for x86 instructions beyond the baseline."""
        return tuple(flag for flag in self.cxx_flags if _X86_FLAG.fullmatch(flag))

    @property
    def headers(self) -> tuple[PurePosixPath, ...]:
        """What is only included."""
        return tuple(path for path in self.src if path.suffix not in SOURCE_SUFFIXES)


@dataclass(frozen=True)
class BuildFile:
    """What build.toml asks for. ``root`` is the directory that holds it; all paths are relative to it."""

    root: Path
    name: str
    version: int
    license: str
    backends: tuple[str, ...]
    python_depends: tuple[str, ...]
    pyext: tuple[str, ...]
    stable_abi: dict[str, tuple[int, int]]
    binding: Section
    kernels: tuple[Section, ...]
    repo_id: str | None = None

    @property
    def python_name(self) -> str:
        """The Python package: dashes become underscores."""
        return self.name.replace("-", "_")

    @property
    def repository(self) -> str:
        """The Hub repository it is published to and loaded by; ConfigError when build.toml does not say."""
        if self.repo_id is None:
            raise ConfigError(f"{FILE_NAME}: [general.hub] repo-id is missing", hint='Add repo-id = "owner/name".')
        return self.repo_id

    @property
    def package(self) -> PurePosixPath:
        """Where the package that ships lives."""
        return PurePosixPath("torch-ext", self.python_name)

    def sections(self, backend: str) -> tuple[Section, ...]:
        """The binding and every kernel section of ``backend``, in the file's order."""
        return (self.binding, *(section for section in self.kernels if section.backend == backend))

    def listed(self) -> Iterator[PurePosixPath]:
        """Every file that build.toml names, each once."""
        yield from dict.fromkeys(path for section in (self.binding, *self.kernels) for path in section.src)


def read(root: Path) -> BuildFile:
    """The validated build.toml of ``root``; ConfigError says what is wrong with it."""
    path = root / FILE_NAME
    if not path.is_file():
        raise ConfigError(f"{path} does not exist", hint="Run inside a checkout, or give its root with --root DIR.")
    try:
        if Build is not None:
            Build.open(root)
    except ValueError as error:
        reason = str(error).rsplit(f"{FILE_NAME}: ", 1)[-1].strip()  # it repeats the path before its own words
        raise ConfigError(f"{FILE_NAME}: {reason}", hint="The format is kernel-builder's, edition 5.") from None
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    if "torch" not in data:
        raise ConfigError(f"{FILE_NAME}: a [torch] section is wanted; torch-noarch and tvm-ffi are not built here")
    build = _from_table(root, data)
    _check_files(build)
    return build


def _from_table(root: Path, data: dict[str, Any]) -> BuildFile:
    general, torch = data["general"], data["torch"]
    return BuildFile(
        root=root,
        name=general["name"],
        version=general["version"],
        license=general["license"],
        backends=tuple(general["backends"]),
        python_depends=tuple(general.get("python-depends", ())),
        pyext=tuple(torch.get("pyext", ("py", "pyi"))),
        stable_abi={backend: _version(text) for backend, text in _stable_abi(torch, general["backends"])},
        binding=_section("torch", None, torch),
        kernels=tuple(_section(name, table["backend"], table) for name, table in data.get("kernel", {}).items()),
        repo_id=general.get("hub", {}).get("repo-id"),
    )


def _stable_abi(torch: dict[str, Any], backends: list[str]) -> Iterator[tuple[str, str]]:
    """``stable-abi`` is one version for all backends, or a table of versions."""
    value = torch.get("stable-abi", {})
    yield from value.items() if isinstance(value, dict) else ((backend, value) for backend in backends)


def _section(name: str, backend: str | None, table: dict[str, Any]) -> Section:
    return Section(
        name=name,
        backend=backend,
        src=tuple(PurePosixPath(path) for path in table["src"]),
        include=tuple(table.get("include", ())),
        cxx_flags=tuple(table.get("cxx-flags", ())),
        cuda_flags=tuple(table.get("cuda-flags", ())),
        cuda_capabilities=tuple(table.get("cuda-capabilities", ())),
    )


def _check_files(build: BuildFile) -> None:
    """Each listed file exists inside the root, and no source is compiled twice in one variant."""
    for path in build.listed():
        if path.is_absolute() or ".." in path.parts:
            raise ConfigError(f"{FILE_NAME}: {path} must be a path below the root")
        if not (build.root / path).is_file():
            raise ConfigError(f"{FILE_NAME} lists {path}, which does not exist", hint="Add the file or unlist it.")
    for backend in build.backends:
        owner: dict[PurePosixPath, str] = {}
        for section in build.sections(backend):
            for path in section.sources:
                if path in owner:
                    raise ConfigError(f"{FILE_NAME}: {path} is compiled by [{owner[path]}] and by [{section.name}]")
                owner[path] = section.name
