"""The build matrix as data (matrix.toml), and which of its cells can be built: the plan.

A cell is left out for one of two reasons: the project cannot be compiled for it (build.toml lists no such backend,
another stable ABI, or x86 flags), which is true everywhere, or this machine cannot, which another runner can. A draft
is built and checked wherever it can be, and left out of what is published.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from bundle import compiler, cuda, variant
from bundle.buildfile import BuildFile
from bundle.errors import ConfigError, EmptySelectionError
from bundle.variant import Variant

MATRIX_FILE = Path(__file__).with_name("matrix.toml")


@dataclass(frozen=True)
class Cell:
    """One line of the matrix. ``left_out`` is the reason it is not built, None when it is."""

    variant: Variant
    runner: str
    left_out: str | None = None


def read(path: Path = MATRIX_FILE) -> tuple[tuple[Variant, str, str | None], ...]:
    """Variant, runner and what makes it a draft, of every cell; ConfigError when matrix.toml is wrong."""
    try:
        cells = tomllib.loads(path.read_text(encoding="utf-8"))["cell"]
        rows = tuple((variant.parse(cell["variant"]), str(cell["runner"]), cell.get("draft")) for cell in cells)
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path.name}: [[cell]] tables with variant and runner wanted, got {error}") from None
    names = [name for name, _, _ in rows]
    doubled = {str(name) for name in names if names.count(name) > 1}
    if doubled:
        raise ConfigError(f"{path.name}: {', '.join(sorted(doubled))} is listed twice")
    return rows


def plan(
    build: BuildFile, only: Iterable[str] = (), *, here: bool = True, path: Path = MATRIX_FILE
) -> tuple[Cell, ...]:
    """Every cell that matches ``only`` (all, when empty), each with the reason it is left out or None.

    ``here=False`` asks what the project publishes, built on whatever machine; ``here=True`` what this one can build.
    """
    patterns = tuple(only)
    rows = [row for row in read(path) if not patterns or any(fnmatchcase(str(row[0]), glob) for glob in patterns)]
    if not rows:
        raise EmptySelectionError(
            f"no variant matches --only {' '.join(patterns)}",
            hint="`python -m bundle plan` lists the variants there are.",
        )
    return tuple(
        Cell(name, runner, _reason(build, name, here) or (None if here or draft is None else f"a draft: {draft}"))
        for name, runner, draft in rows
    )


def select(build: BuildFile, only: Iterable[str] = (), *, path: Path = MATRIX_FILE) -> tuple[Variant, ...]:
    """The variants that ``only`` selects and this machine can build; EmptySelectionError when there is none."""
    cells = plan(build, only, path=path)
    chosen = tuple(cell.variant for cell in cells if cell.left_out is None)
    if not chosen:
        reasons = "\n".join(f"  {cell.variant}: {cell.left_out}" for cell in cells)
        raise EmptySelectionError(f"every selected variant is left out:\n{reasons}")
    return chosen


def _reason(build: BuildFile, name: Variant, here: bool) -> str | None:
    if name.backend not in build.backends or not any(section.backend == name.backend for section in build.kernels):
        return f"no {name.backend} sources yet (build.toml: backends = {list(build.backends)})"
    abi = build.stable_abi.get(name.backend)
    if name.stable_abi and abi != name.torch:
        wanted = ".".join(map(str, abi)) if abi else "none"
        return f"build.toml asks for stable ABI {wanted} on {name.backend}"
    if name.platform != "x86_64":
        for section in build.sections(name.backend):
            if section.isa_flags:
                flags = " ".join(section.isa_flags)
                return f"[kernel.{section.name}] is built with {flags}, which only x86_64 compilers take"
    if not here or name.system is None:
        return None
    own = compiler.reason_against(name.system)
    return own or (cuda.reason_against(name, build.root) if name.backend == "cuda" else None)
