"""What a commit holds: a flat map from paths to file entries, and the ids git would give to its files and folders."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .refusal import Refusal


@dataclass(frozen=True)
class Entry:
    """A file of a commit. ``oid`` is git's blob id: of the content, or of the pointer when it came through LFS."""

    size: int
    sha256: str
    oid: str
    lfs: bool

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.oid


Tree = Mapping[str, Entry]


def git_id(kind: str, data: bytes) -> str:
    """The id git gives to an object: SHA-1 of ``<kind> <length>\\0<data>``."""
    return hashlib.sha1(b"%s %d\0" % (kind.encode(), len(data)) + data, usedforsecurity=False).hexdigest()


def lfs_pointer(sha256: str, size: int) -> bytes:
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def regular(sha256: str, size: int, oid: str) -> Entry:
    return Entry(size, sha256, oid, lfs=False)


def large(sha256: str, size: int) -> Entry:
    return Entry(size, sha256, git_id("blob", lfs_pointer(sha256, size)), lfs=True)


def dumped(tree: Tree) -> bytes:
    """The one spelling of a tree on disk."""
    rows = {path: [entry.size, entry.sha256, entry.oid, entry.lfs] for path, entry in tree.items()}
    return json.dumps(rows, sort_keys=True, separators=(",", ":")).encode()


def loaded(data: bytes) -> dict[str, Entry]:
    return {path: Entry(*row) for path, row in json.loads(data).items()}


def folder_ids(tree: Tree) -> dict[str, str]:
    """Git's tree id of every folder of ``tree`` ('' is the root)."""
    children: dict[str, dict[bytes, bytes]] = {"": {}}
    for path, entry in tree.items():
        parent, _, leaf = path.rpartition("/")
        for folder in _parents(path):
            children.setdefault(folder, {})
        children[parent][leaf.encode()] = b"100644 %s\0" % leaf.encode() + bytes.fromhex(entry.oid)
    ids: dict[str, str] = {}
    for folder in sorted(children, key=lambda name: (name.count("/"), name != ""), reverse=True):
        rows = children[folder]
        ids[folder] = git_id("tree", b"".join(rows[key] for key in sorted(rows)))
        if folder:
            parent, _, leaf = folder.rpartition("/")
            # git sorts a folder as if its name ended in a slash
            children[parent][leaf.encode() + b"/"] = b"40000 %s\0" % leaf.encode() + bytes.fromhex(ids[folder])
    return ids


def below(tree: Tree, folder: str) -> dict[str, Entry]:
    """The files at any depth below ``folder`` ('' is the root)."""
    prefix = f"{folder}/" if folder else ""
    return {path: entry for path, entry in tree.items() if path.startswith(prefix)}


def listing(tree: Tree, folder: str, recursive: bool) -> list[str]:
    """The paths of the files and folders in ``folder``, sorted: its own children, or all its descendants."""
    start = len(folder) + 1 if folder else 0
    found: set[str] = set()
    for path in below(tree, folder):
        found.update(parent for parent in _parents(path) if len(parent) > start)
        found.add(path)
    return sorted(path for path in found if recursive or "/" not in path[start:])


def checked(tree: dict[str, Entry]) -> dict[str, Entry]:
    """``tree``, or 400 when a path is both a file and a folder."""
    for path in tree:
        for parent in _parents(path):
            if parent in tree:
                raise Refusal(400, f"path {path} must not lie below the file {parent}")
    return tree


def changed_paths(new: Tree, old: Tree) -> Iterator[str]:
    """The paths whose content the step from ``old`` to ``new`` set."""
    return (path for path, entry in new.items() if old.get(path) != entry)


def _parents(path: str) -> Iterable[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
