"""Proofs that a built variant keeps the rules: each module here looks at one kind of rule and returns what it found.

A check yields the text of each violation and raises :class:`Skipped` when it cannot look (a downloaded variant has no
object files). Nothing here repairs anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import kernels_data

from bundle import buildfile, variant
from bundle.buildfile import BuildFile
from bundle.errors import CheckError, ConfigError, ToolchainError
from bundle.variant import Variant


class Skipped(Exception):
    """Raised by a check that cannot look at this variant; the text says why."""


@dataclass(frozen=True)
class Subject:
    """A variant to check, and the checkout and scratch directory it was built from where they are known. ``site``: a
    directory that holds another torch to load it with."""

    directory: Path
    variant: Variant
    metadata: kernels_data.Metadata
    build: BuildFile | None = None
    scratch: Path | None = None
    site: Path | None = None

    @property
    def id(self) -> str:
        """The module's name and op namespace."""
        return str(self.metadata.id)

    @property
    def library(self) -> Path:
        """The library that ships."""
        return self.directory / f"{self.id}.abi3.so"

    @property
    def linked(self) -> Path:
        """The library as the linker wrote it, before ``strip``; the shipped one when that is gone."""
        fresh = self.scratch / "cmake" / self.library.name if self.scratch else self.library
        return fresh if fresh.is_file() else self.library

    def objects(self) -> Path:
        """The directory of the object files this library was linked from; Skipped when they are not here."""
        if self.scratch is None or not (self.scratch / "cmake" / self.library.name).is_file():
            raise Skipped("the object files of this build are not on this machine")
        return self.scratch / "cmake" / "CMakeFiles"

    def checkout(self) -> BuildFile:
        """build.toml of the checkout it was built from; Skipped for a variant from elsewhere."""
        if self.build is None:
            raise Skipped("not checked against a checkout")
        return self.build


@dataclass(frozen=True)
class Finding:
    """The outcome of one check: its violations (none: it holds), or why it was skipped."""

    check: str
    violations: tuple[str, ...] = ()
    skipped: str | None = None


Check = Callable[[Subject], Iterator[str]]


def subject(directory: Path, *, root: Path | None = None, scratch: Path | None = None) -> Subject:
    """The variant in ``directory``. ``root`` and ``scratch`` are where it was built; without them some checks skip.

    Raises CheckError when there is no variant there at all.
    """
    path = directory / "metadata.json"
    if not path.is_file():
        raise CheckError(f"{directory} holds no metadata.json", hint="Build it first: python -m bundle build.")
    try:
        name = variant.parse(directory.name)
        metadata = kernels_data.Metadata.read_from_file(path)
    except (ConfigError, ValueError) as error:
        raise CheckError(f"{directory}: {error}") from None
    build = buildfile.read(root) if root is not None else None
    return Subject(directory, name, metadata, build, scratch / directory.name if scratch else None)


def run_all(target: Subject) -> tuple[Finding, ...]:
    """Run every check on ``target``, in the order of their cost."""
    from bundle.checks import abi, api, gpu, isa, layout, load, sources  # they import this module

    checks: dict[str, Check] = {
        "layout": layout.layout,
        "digest": layout.digest,
        "paths": layout.paths,
        "sources": sources.sources,
        "manylinux": abi.manylinux,
        "python abi": abi.python_abi,
        "linking": abi.linking,
        "stable abi": abi.stable_abi,
        "isa files": isa.files,
        "isa objects": isa.objects,
        "isa library": isa.library,
        **({"gpu archs": gpu.archs, "gpu kernels": gpu.kernels} if target.variant.backend == "cuda" else {}),
        "load": load.load,
        "api": api.api,
    }
    return tuple(_run(name, check, target) for name, check in checks.items())


def _run(name: str, check: Check, target: Subject) -> Finding:
    try:
        return Finding(name, tuple(check(target)))
    except Skipped as reason:
        return Finding(name, skipped=str(reason))
    except ToolchainError as error:
        if target.build is not None:  # where variants are built there are tools, and a skipped check might be published
            raise
        return Finding(name, skipped=error.message)
