"""Copies exactly what the official (Nix) build would see, so that a file it would miss is missing here too.

That is: build.toml, the files it lists (headers too), and ``*.py``/``*.pyi`` below ``torch-ext/`` and ``tests/``. A
file is rewritten only when its bytes differ, so that an unchanged source stays older than its object file.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from bundle import buildfile
from bundle.buildfile import BuildFile

NATIVE_TREES = ("kernel-src", "torch-ext")
PYTHON_TREES = ("torch-ext", "tests")


def files(build: BuildFile) -> tuple[PurePosixPath, ...]:
    """What is staged, sorted."""
    found = {PurePosixPath(buildfile.FILE_NAME), *build.listed(), *_python_files(build)}
    return tuple(sorted(found - generated(build)))


def generated(build: BuildFile) -> frozenset[PurePosixPath]:
    """What kernel-builder writes below torch-ext/ itself: never taken from the checkout."""
    return frozenset({PurePosixPath("torch-ext/registration.h"), build.package / "_ops.py"})


def _python_files(build: BuildFile) -> Iterator[PurePosixPath]:
    suffixes = {f".{ending}" for ending in (*build.pyext, "py", "pyi")}
    for tree in PYTHON_TREES:
        for path in (build.root / tree).rglob("*"):
            if path.suffix in suffixes and path.is_file() and "__pycache__" not in path.parts:
                yield PurePosixPath(path.relative_to(build.root).as_posix())


def unlisted_header(build: BuildFile, output: str) -> PurePosixPath | None:
    """The file of the checkout that a compiler missed because build.toml does not list it; None for other errors."""
    match = re.search(r"fatal error: '?([^\s':]+)'?(?:: No such file| file not found)", output)
    if match is None:
        return None
    wanted = PurePosixPath(match[1])
    for tree in NATIVE_TREES:
        for path in sorted((build.root / tree).rglob(wanted.name)):
            name = PurePosixPath(path.relative_to(build.root).as_posix())
            if name.parts[-len(wanted.parts) :] == wanted.parts and name not in set(build.listed()):
                return name
    return None


def content_hash(build: BuildFile) -> str:
    """SHA-256 over the names and bytes of all staged files: equal exactly when two builds see the same input."""
    digest = hashlib.sha256()
    for path in files(build):
        digest.update(f"{path}\0".encode())
        digest.update(hashlib.sha256((build.root / path).read_bytes()).digest())
    return digest.hexdigest()


def write(build: BuildFile, target: Path) -> None:
    """Make ``target`` hold the staged files and nothing else, touching only what differs."""
    wanted = files(build)
    target.mkdir(parents=True, exist_ok=True)
    keep = {target / path for path in (*wanted, *generated(build))}
    for present in [*target.rglob("*")]:
        if not present.is_dir() and present not in keep:
            present.unlink()
    for path in wanted:
        write_if_changed(target / path, (build.root / path).read_bytes())


def write_if_changed(path: Path, data: bytes) -> None:
    """Write ``data`` unless ``path`` already holds it. Goes through a neighbour, so a kill never leaves half a file."""
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(data)
    partial.replace(path)


def replace_tree(new: Path, target: Path) -> None:
    """Put the directory ``new`` in the place of ``target``; whoever looks finds the old one or the new one, whole."""
    if not target.exists():
        new.rename(target)
        return
    if not _exchange(new, target):  # an old kernel or a file system without it: two renames, a blink without a target
        old = target.with_name(f".{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
        new.rename(target)
        new = old
    shutil.rmtree(new)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two directory entries in one step (Linux renameat2); False where that is not to be had."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    at_cwd, exchange = -100, 2
    return renameat2 is not None and renameat2(at_cwd, bytes(one), at_cwd, bytes(other), exchange) == 0
