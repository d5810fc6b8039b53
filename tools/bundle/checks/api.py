"""Guards the versioned API: a name in ``__all__`` that appears or goes needs a new major version.

A user who asks for version 1 may get any variant of branch v1: an older one without a name that a newer one has would
break him on one machine and not on another. So the names of each version are written down, in ``api_v<version>.txt``;
those of a module in ``__all__`` that has an ``__all__`` of its own among them, as ``module.name``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bundle.checks import Subject
from bundle.checks.load import report
from bundle.errors import CheckError

DIRECTORY = Path(__file__).resolve().parents[1]


def api(target: Subject) -> Iterator[str]:
    """``__all__`` of the loaded package is exactly the committed list of its version."""
    version = target.metadata.version
    if version is None:
        yield "metadata.json has no version"
        return
    path = list_of(version)
    if not path.is_file():
        yield f"{path.name} is missing: write the names of __all__ of version {version} into it, one a line"
        return
    try:
        present = set(report(target).all)
    except CheckError:
        return  # the load check says why
    committed = set(names(path))
    for name in sorted(present - committed):
        yield f"{name} is new in __all__: bump version in build.toml (to {version + 1}), or add it to {path.name} " + (
            "if every variant of this version is published again"
        )
    for name in sorted(committed - present):
        yield f"{name} is gone from __all__: bump version in build.toml (to {version + 1}) or put it back"


def list_of(version: int) -> Path:
    """The committed list of a version."""
    return DIRECTORY / f"api_v{version}.txt"


def names(path: Path) -> tuple[str, ...]:
    """The names in a list; # starts a comment."""
    lines = (line.split("#", 1)[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return tuple(line for line in lines if line)
