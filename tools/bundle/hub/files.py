"""Files of the store: opened without following a link, written so that a crash leaves the old content or the new.

Every path here is (root, parts): the store, and plain names below it. Each step is opened relative to the one before
with ``O_NOFOLLOW``, so a symbolic link anywhere in the store is an error and never a way out of it.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .refusal import DamagedError

TEMPORARY = "tmp"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def directory(root: Path, *parts: str, create: bool = False) -> Iterator[int]:
    """A descriptor of ``root/parts``. FileNotFoundError, or DamagedError where a part is a link or no directory."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for depth, part in enumerate(parts):
            try:
                descriptor = _step(descriptor, part, create)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise DamagedError(
                        f"{'/'.join(parts[: depth + 1])} in the store is a link or no directory"
                    ) from None
                raise
        yield descriptor
    finally:
        os.close(descriptor)


def _step(parent: int, part: str, create: bool) -> int:
    """Opens ``part`` below ``parent`` and closes ``parent`` on success; on failure ``parent`` stays open."""
    try:
        child = os.open(part, _DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
        try:
            os.mkdir(part, 0o755, dir_fd=parent)
            os.fsync(parent)
        except FileExistsError:
            pass  # another upload made it between the two calls
        child = os.open(part, _DIRECTORY, dir_fd=parent)
    os.close(parent)
    return child


def opened(root: Path, *parts: str) -> int:
    """A read descriptor of the regular file ``root/parts``."""
    with directory(root, *parts[:-1]) as folder:
        try:
            descriptor = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise DamagedError(f"{'/'.join(parts)} in the store is a link or no regular file") from None
            raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DamagedError(f"{'/'.join(parts)} in the store is no regular file")
    return descriptor


def content(root: Path, *parts: str) -> bytes:
    """The whole of ``root/parts``."""
    with os.fdopen(opened(root, *parts), "rb") as file:
        return file.read()


def temporary(root: Path, mode: int = 0o644) -> tuple[int, str]:
    """A new empty file in ``root/tmp``, where a crash leaves it until the next start: its descriptor and its name."""
    name = secrets.token_hex(12)
    with directory(root, TEMPORARY, create=True) as folder:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, mode, dir_fd=folder), name


def place(root: Path, name: str, *parts: str) -> None:
    """Moves the finished, synced temporary file ``name`` to ``root/parts`` in one step and syncs the directory."""
    with directory(root, TEMPORARY) as source, directory(root, *parts[:-1], create=True) as goal:
        os.replace(name, parts[-1], src_dir_fd=source, dst_dir_fd=goal)
        os.fsync(goal)


def discard(root: Path, name: str) -> None:
    """Removes the temporary file ``name`` where it still exists."""
    with directory(root, TEMPORARY) as folder, suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def replace(root: Path, data: bytes, *parts: str, mode: int = 0o644) -> None:
    """Puts ``data`` at ``root/parts`` in one step: a reader sees the old content or the new, also after a crash."""
    descriptor, name = temporary(root, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        place(root, name, *parts)
    finally:
        discard(root, name)


def names(root: Path, *parts: str) -> list[str]:
    """The sorted names in the directory ``root/parts``; none where it does not exist."""
    try:
        with directory(root, *parts) as folder:
            return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def sweep(root: Path) -> int:
    """Removes what a crashed server left half written; returns how many files that were."""
    left = names(root, TEMPORARY)
    for name in left:
        discard(root, name)
    return len(left)
