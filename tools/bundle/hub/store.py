"""Repositories on disk: immutable commits and trees named by their hash, branches as one small file each.

    <store>/hub.json                          the format's number
    <store>/lock                              held by the one process that owns the store
    <store>/tmp/                              what is being written; emptied at start
    <store>/blobs/ab/<sha256>                 file contents (blobs.py)
    <store>/repos/<org>/<name>/trees/<sha256>     path -> [size, sha256, oid, lfs], JSON
    <store>/repos/<org>/<name>/commits/<sha1>     tree, parent, title, message, date, JSON
    <store>/repos/<org>/<name>/branches/<branch>  the id of its newest commit

A commit becomes visible by the replacement of one branch file, after everything it names is synced to the disk: a
reader, or the next start after a crash, finds the state before it or the state after it. A commit that no branch
reaches is not served.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, unquote

from bundle.errors import HubError

from . import files, names, trees
from .blobs import Blobs, Upload
from .refusal import DamagedError, Refusal, entry_not_found, repo_not_found, revision_not_found

FORMAT = {"format": 1}
MAIN = "main"


@dataclass(frozen=True)
class Commit:
    id: str
    tree: str
    parent: str | None
    title: str
    message: str
    date: str


Change = Callable[[dict[str, trees.Entry]], None]


class Store:
    """The store below ``root``, owned by this process until ``close``. Raises HubError where it cannot be."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.writing = threading.Lock()  # one commit at a time: reading a branch and replacing it is one step
        try:
            self._lock = _claim(root)
            self.swept = files.sweep(root)
        except OSError as error:
            raise HubError(
                f"store {root} cannot be opened: {error.strerror} ({error.filename or root})",
                hint="Choose a directory of your own with --store DIR.",
            ) from error
        self.blobs = Blobs(root)

    def close(self) -> None:
        """Waits for a commit under way, then lets another process have the store."""
        with self.writing:
            os.close(self._lock)

    def repo_ids(self) -> list[str]:
        owners = files.names(self.root, "repos")
        return [
            f"{org}/{name}" for org in owners for name in files.names(self.root, "repos", org) if self._has(org, name)
        ]

    def _has(self, org: str, name: str) -> bool:
        return MAIN in files.names(self.root, "repos", org, name, "branches")

    def repo(self, org: str, name: str) -> Repo:
        if not self._has(names.name(org, "organization"), names.name(name, "name")):
            raise repo_not_found(f"{org}/{name}")
        return Repo(self, org, name)

    def create(self, org: str, name: str) -> Repo:
        """A new repository with an empty first commit on ``main``; 409 when it is there."""
        repo = Repo(self, names.name(org, "organization"), names.name(name, "name"))
        with self.writing:
            if self._has(org, name):
                raise Refusal(409, f"kernel repository {org}/{name} exists already")
            repo.write({}, None, "initial commit", "", MAIN)
        return repo


def _claim(root: Path) -> int:
    """Opens or founds the store and takes its lock; the operating system lets go of it when the process dies."""
    root.mkdir(parents=True, exist_ok=True)
    present = set(files.names(root))
    if present and "hub.json" not in present:
        raise HubError(f"{root} is not a Hub store and not empty", hint="Name a new directory with --store DIR.")
    lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if "hub.json" not in present:
            files.replace(root, json.dumps(FORMAT).encode(), "hub.json")
        elif json.loads(files.content(root, "hub.json")) != FORMAT:
            raise HubError(
                f"store {root} has another format than {FORMAT}", hint="Name a new directory with --store DIR."
            )
    except BlockingIOError:
        os.close(lock)
        raise HubError(
            f"store {root} is served by another process", hint="Stop that server, or name another store."
        ) from None
    except BaseException:
        os.close(lock)
        raise
    return lock


class Repo:
    """One kernel repository."""

    def __init__(self, store: Store, org: str, name: str) -> None:
        self._store = store
        self.org, self.id = org, f"{org}/{name}"
        self._place = ("repos", org, name)

    def branches(self) -> dict[str, str]:
        """Every branch with the id of its newest commit."""
        found = files.names(self._store.root, *self._place, "branches")
        return {unquote(name): self._head(unquote(name)) for name in found}

    def _head(self, branch: str) -> str:
        parts = (*self._place, "branches", quote(branch, safe=""))
        commit = files.content(self._store.root, *parts).decode("ascii", "replace").strip()
        if not names.is_commit(commit):
            raise DamagedError(
                f"branch {branch} of {self.id} does not name a commit: {'/'.join(parts)} was altered on disk"
            )
        return commit

    def head(self, branch: str) -> Commit:
        """The newest commit of a branch."""
        try:
            return self._commit(self._head(names.branch(branch)))
        except (FileNotFoundError, Refusal):
            raise revision_not_found(self.id, names.shown(branch)) from None

    def at(self, revision: str) -> Commit:
        """The commit a revision names: a branch, ``refs/heads/<branch>``, or the id of a commit some branch reaches."""
        if not names.is_commit(revision):
            return self.head(revision.removeprefix("refs/heads/"))
        heads = self.branches().values()
        if revision in heads:
            return self._commit(revision)
        for head in heads:
            for commit in self.history(self._commit(head)):
                if commit.id == revision:
                    return commit
        raise revision_not_found(self.id, revision)

    def history(self, commit: Commit) -> Iterator[Commit]:
        """``commit`` and its ancestors, newest first."""
        yield commit
        while commit.parent is not None:
            commit = self._commit(commit.parent)
            yield commit

    def _commit(self, id_: str) -> Commit:
        try:
            data = files.content(self._store.root, *self._place, "commits", id_)
        except FileNotFoundError:
            raise DamagedError(f"commit {id_} of {self.id} is gone from the store") from None
        if trees.git_id("commit", data) != id_:
            raise DamagedError(f"commit {id_} of {self.id} was altered on disk")
        return Commit(id_, **json.loads(data))

    def tree(self, commit: Commit) -> dict[str, trees.Entry]:
        """The files of a commit."""
        try:
            data = files.content(self._store.root, *self._place, "trees", commit.tree)
        except FileNotFoundError:
            raise DamagedError(f"tree {commit.tree} of {self.id} is gone from the store") from None
        if hashlib.sha256(data).hexdigest() != commit.tree:
            raise DamagedError(f"tree {commit.tree} of {self.id} was altered on disk")
        return trees.loaded(data)

    def last_changes(self, commit: Commit) -> dict[str, Commit]:
        """For each file of ``commit``, the commit that gave it its content."""
        found: dict[str, Commit] = {}
        newest = self.tree(commit)
        for step in self.history(commit):
            before = self.tree(self._commit(step.parent)) if step.parent else {}
            for path in trees.changed_paths(self.tree(step), before):
                found.setdefault(path, step)
        return {path: found[path] for path in newest}

    def create_branch(self, branch: str, start: str) -> None:
        """A new branch at the revision ``start``; 409 when it is there."""
        names.branch(branch)
        with self._store.writing:
            if branch in self.branches():
                raise Refusal(409, f"{self.id} has a branch {branch} already")
            self._point(branch, self.at(start).id)

    def commit(
        self,
        branch: str,
        changes: Sequence[Change],
        uploads: Sequence[Upload],
        *,
        title: str,
        message: str,
        parent: str | None,
    ) -> Commit:
        """Applies ``changes`` to the newest commit of ``branch``; the result is its newest commit, whole or not at all.

        ``uploads`` are synced contents the changes refer to; they become blobs when nothing stands against the commit.
        412 when ``parent`` is given and is not the newest commit any more. Changes that change nothing make no commit.
        """
        with self._store.writing:
            head = self.head(branch)
            if parent is not None and not head.id.startswith(parent):
                raise Refusal(412, f"{branch} of {self.id} is at {head.id}, no longer at the parent commit {parent}")
            before = self.tree(head)
            after = dict(before)
            for change in changes:
                change(after)
            trees.checked(after)
            for upload in uploads:
                upload.keep()
            if after == before:
                return head
            return self.write(after, head.id, title, message, branch)

    def write(self, tree: trees.Tree, parent: str | None, title: str, message: str, branch: str) -> Commit:
        """Writes tree, then commit, then branch, each synced before the next. The caller holds the store's lock."""
        data = trees.dumped(tree)
        tree_id = hashlib.sha256(data).hexdigest()
        files.replace(self._store.root, data, *self._place, "trees", tree_id)
        date = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        body = asdict(Commit("", tree_id, parent, title, message, date))
        del body["id"]
        spelled = json.dumps(body, sort_keys=True).encode()
        commit = Commit(trees.git_id("commit", spelled), **body)
        files.replace(self._store.root, spelled, *self._place, "commits", commit.id)
        self._point(branch, commit.id)
        return commit

    def _point(self, branch: str, commit: str) -> None:
        files.replace(self._store.root, f"{commit}\n".encode(), *self._place, "branches", quote(branch, safe=""))

    # The changes a commit is made of; each is applied to the files of the newest commit.

    def put(self, path: str, entry: trees.Entry) -> Change:
        return lambda tree: tree.update({path: entry})

    def delete_file(self, path: str) -> Change:
        def change(tree: dict[str, trees.Entry]) -> None:
            if tree.pop(path, None) is None:
                raise entry_not_found(self.id, path)

        return change

    def delete_folder(self, path: str) -> Change:
        def change(tree: dict[str, trees.Entry]) -> None:
            inside = trees.below(tree, path)
            if not inside:
                raise entry_not_found(self.id, path)
            for name in inside:
                del tree[name]

        return change
