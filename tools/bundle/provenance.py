"""Where a build comes from: the unique id in its name, and the ``provenance`` that metadata.json carries.

The id follows kernel-builder: the first seven hex digits of the git tree, plus ``_dirty`` when what is built is not
what that tree holds. kernel-builder stops there, so two different dirty builds clash in one process; here a dirty id
also carries a hash of the staged content. Without git the content hash alone names the build.
"""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bundle import process, stage
from bundle.buildfile import BuildFile
from bundle.errors import UsageError

_UID = re.compile(r"[a-z0-9][a-z0-9_]{0,39}")
_SHORT = 7


@dataclass(frozen=True)
class Provenance:
    """``commit`` is None outside git. ``dirty``: the staged files are not those of ``commit``."""

    uid: str
    commit: str | None
    dirty: bool

    def table(self) -> dict[str, Any]:
        """The ``provenance`` object of metadata.json."""
        builder = {"version": f"{_kernels_data_version()}+padfree"}
        if self.commit is None:
            return {"kernel-builder": builder}
        return {"kernel-builder": builder, "kernel": {"commit": self.commit, "dirty": self.dirty}}


def _kernels_data_version() -> str:
    """0 where the package is missing: what is built there is never published (build.py)."""
    try:
        return importlib.metadata.version("kernels-data")
    except importlib.metadata.PackageNotFoundError:
        return "0"


def of(build: BuildFile, uid: str | None = None) -> Provenance:
    """The provenance of what ``build`` would stage now; ``uid`` replaces the computed id."""
    if uid is not None and not _UID.fullmatch(uid):
        raise UsageError(f"--uid must be 1 to 40 of a-z, 0-9 and _ (it becomes part of a Python name), got {uid!r}")
    commit, tree = _git(build.root, "rev-parse", "HEAD"), _git(build.root, "rev-parse", "HEAD^{tree}")
    content = stage.content_hash(build)[:_SHORT]
    if commit is None or tree is None:
        return Provenance(uid or f"nogit_{content}", None, True)
    dirty = is_dirty(build)
    computed = f"{tree[:_SHORT]}_dirty_{content}" if dirty else tree[:_SHORT]
    return Provenance(uid or computed, commit, dirty)


def is_dirty(build: BuildFile) -> bool:
    """Whether a tracked file differs from HEAD, or a file that would be staged is not tracked."""
    if _git(build.root, "status", "--porcelain", "--untracked-files=no") != "":
        return True
    tracked = set((_git(build.root, "ls-files", "-z") or "").split("\0"))
    return any(str(path) not in tracked for path in stage.files(build))


def _git(root: Path, *words: str) -> str | None:
    return process.capture(["git", "-C", str(root), *words])
