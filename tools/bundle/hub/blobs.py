"""File contents, stored once under their SHA-256 and hashed again each time before a byte of them is served.

An upload is hashed while it streams into ``tmp/`` and moves to ``blobs/ab/abcd…`` in one step when it is whole; what
the client claims about it is compared and never believed. Putting the right content again replaces an altered file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from . import files
from .refusal import DamagedError, Refusal

CHUNK = 1 << 20
IN_MEMORY = 32 << 20  # up to this size the very bytes that were hashed are the ones that are sent


class Upload:
    """A blob that is being received: a temporary file and the hash of what went into it so far."""

    def __init__(self, root: Path) -> None:
        self._root = root
        descriptor, self._name = files.temporary(root, 0o444)
        self._file = os.fdopen(descriptor, "wb")
        self._hash = hashlib.sha256()
        self.size = 0

    def __enter__(self) -> Upload:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        files.discard(self._root, self._name)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    def sync(self) -> None:
        """Ends the writing and brings the content to the disk. Slow, so done before any lock is taken."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def keep(self) -> None:
        """Makes the synced content a blob of the store."""
        files.place(self._root, self._name, *_place(self.sha256))


class Content:
    """A blob whose hash was right when it was opened. ``chunks`` may be called once; it closes the file at its end."""

    def __init__(self, descriptor: int, sha256: str, size: int, label: str) -> None:
        self._file = os.fdopen(descriptor, "rb")
        self.sha256, self.size, self._label = sha256, size, label
        self._data = b""
        try:
            self._verify()
        except BaseException:
            self.close()
            raise

    def _verify(self) -> None:
        found = os.fstat(self._file.fileno()).st_size
        if found != self.size:
            raise DamagedError(
                f"{self._label}: {self.size} bytes were stored, {found} are there: it was altered on disk"
            )
        if self.size <= IN_MEMORY:
            self._data = self._file.read()
            digest = hashlib.sha256(self._data)
        else:
            digest = hashlib.file_digest(self._file, "sha256")
        self._compare(digest.hexdigest())

    def _compare(self, found: str) -> None:
        if found != self.sha256:
            raise DamagedError(f"{self._label}: its content hashes to {found}: it was altered on disk")

    def chunks(self, start: int, stop: int) -> Iterator[bytes]:
        """The bytes ``start:stop``. The last chunk of a large whole file waits until the hash is right once more."""
        try:
            if self._data or not self.size:
                yield self._data[start:stop]
                return
            digest = hashlib.sha256()
            self._file.seek(start)
            for offset in range(start, stop, CHUNK):
                chunk = self._file.read(min(CHUNK, stop - offset))
                digest.update(chunk)
                if (start, stop) == (0, self.size) and offset + CHUNK >= stop:
                    self._compare(digest.hexdigest())
                yield chunk
        finally:
            self.close()

    def close(self) -> None:
        self._file.close()


class Blobs:
    """The blobs below ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def upload(self) -> Upload:
        return Upload(self._root)

    def size(self, sha256: str) -> int | None:
        """The size of a blob, None when it is not there."""
        try:
            descriptor = files.opened(self._root, *_place(sha256))
        except FileNotFoundError:
            return None
        try:
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def content(self, sha256: str, size: int, path: str) -> Content:
        """The blob, after its hash was found right; DamagedError names the file ``path`` it stands for."""
        label = f"blob {sha256} ({path})"
        try:
            descriptor = files.opened(self._root, *_place(sha256))
        except FileNotFoundError:
            raise DamagedError(f"{label}: it is gone from the store") from None
        return Content(descriptor, sha256, size, label)

    def whole(self, sha256: str, size: int) -> bool:
        """Whether the blob is there, of that size and unaltered: then a client need not send it again."""
        try:
            self.content(sha256, size, "to be uploaded").close()
        except DamagedError:
            return False
        return True


def check(upload: Upload, sha256: str, size: int) -> None:
    """Refuses an upload that is not what the client said it would be."""
    if upload.size != size:
        raise Refusal(400, f"upload of {sha256}: {size} bytes were announced, {upload.size} came; nothing was stored")
    if upload.sha256 != sha256:
        raise Refusal(400, f"upload of {sha256}: the content hashes to {upload.sha256}; nothing was stored")


def _place(sha256: str) -> tuple[str, str, str]:
    return "blobs", sha256[:2], sha256
