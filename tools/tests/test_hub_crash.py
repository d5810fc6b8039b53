"""Uploads that are cut off, servers that are killed, writers that meet: the state before, or the state after."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hubkit import (
    API,
    LIBRARY,
    PATH,
    REPO,
    Answer,
    ask,
    blobs,
    client,
    commit_body,
    file_line,
    litter,
    put,
    raw_connection,
    server_process,
    upload_url,
    with_library,
)
from huggingface_hub.errors import HfHubHTTPError

from bundle.hub import files, trees
from bundle.hub.blobs import Upload
from bundle.hub.refusal import Refusal
from bundle.hub.server import RunningHub, running_hub
from bundle.hub.store import Repo, Store

NEW = random.Random(0).randbytes(600_000)


def eventually(condition: Callable[[], object]) -> bool:
    """Whether the server gets there by itself within ten seconds."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def head(hub: RunningHub) -> object:
    return ask(hub, "GET", f"{API}/revision/v1").json["sha"]


def content(hub: RunningHub) -> bytes:
    return ask(hub, "GET", f"/kernels/{REPO}/resolve/v1/{PATH}").body


def opening(hub: RunningHub, method: str, path: str, length: int) -> bytes:
    """The head of a request whose body has ``length`` bytes."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {hub.token}"]
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


@contextmanager
def half_sent(hub: RunningHub, kind: str) -> Iterator[None]:
    """A connection on which half an upload of NEW has arrived at the server."""
    body = NEW if kind == "lfs" else commit_body(file_line(PATH, NEW))
    target = ("PUT", upload_url(hub, NEW)) if kind == "lfs" else ("POST", f"{API}/commit/v1")
    with raw_connection(hub) as connection:
        connection.sendall(opening(hub, *target, len(body)) + body[: len(body) // 2])
        yield


@pytest.mark.parametrize("kind", ["lfs", "commit"])
def test_a_dropped_connection_leaves_nothing(hub: RunningHub, kind: str) -> None:
    before = with_library(hub)
    stored = blobs(hub.store)
    with half_sent(hub, kind):
        if kind == "lfs":
            assert eventually(lambda: litter(hub.store)), "the upload is under way"
        assert blobs(hub.store) == stored
    assert eventually(lambda: not litter(hub.store))
    assert blobs(hub.store) == stored
    assert head(hub) == before
    assert content(hub) == LIBRARY
    assert put(hub, {PATH: NEW}) == head(hub)
    assert content(hub) == NEW


def test_a_client_that_stops_sending_is_let_go(hub: RunningHub, monkeypatch: pytest.MonkeyPatch) -> None:
    before = with_library(hub)
    monkeypatch.setattr("bundle.hub.transfer.IDLE_SECONDS", 0.2)
    with raw_connection(hub) as connection:
        connection.sendall(opening(hub, "POST", f"{API}/commit/v1", 1000) + b'{"key"')
        assert connection.recv(4096).split()[1] == b"408"
    assert head(hub) == before


def test_a_body_over_the_limit_is_refused_early(hub: RunningHub, monkeypatch: pytest.MonkeyPatch) -> None:
    before = with_library(hub)
    monkeypatch.setattr("bundle.hub.transfer.COMMIT_LIMIT", 100_000)
    with raw_connection(hub) as connection:
        connection.sendall(opening(hub, "POST", f"{API}/commit/v1", 1 << 40) + b" " * 200_000)
        assert connection.recv(4096).split()[1] == b"413"
    assert head(hub) == before


@pytest.mark.parametrize("kind", ["lfs", "commit"])
def test_a_server_killed_during_an_upload_starts_again_as_it_was(tmp_path: Path, kind: str) -> None:
    store = tmp_path / "store"
    with server_process(store) as (hub, process):
        before = with_library(hub)
        stored = blobs(store)
        with half_sent(hub, kind):
            if kind == "lfs":
                assert eventually(lambda: litter(store)), "the upload is under way"
            process.send_signal(signal.SIGKILL)
            process.wait()
    assert blobs(store) == stored
    with running_hub(store) as again:
        assert litter(store) == []
        assert head(again) == before
        assert content(again) == LIBRARY
        put(again, {PATH: NEW})
        assert content(again) == NEW


class Crash(BaseException):
    """Stands for the power going out."""


@pytest.mark.parametrize("kind", ["place", "replace"])
def test_a_crash_at_any_step_of_a_commit_leaves_the_old_state_or_the_new(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies at each of its renames in turn, before it or right after it."""
    outcomes = []
    for after in (False, True):
        for step in range(1, 20):
            root = tmp_path / f"{after}-{step}"
            store = Store(root)
            repo = store.create("padfree", "kernel")
            commit(store, repo, {"a": b"old a", "b": b"old b"})
            original, count = getattr(files, kind), step

            def dying(*args: object, original: Callable[..., None] = original, after: bool = after) -> None:
                nonlocal count
                count -= 1
                if count == 0 and not after:
                    raise Crash
                original(*args)
                if count == 0:
                    raise Crash

            monkeypatch.setattr(files, kind, dying)
            try:
                commit(store, repo, {"a": b"new a", "b": b"new b"})
                survived = True
            except Crash:
                survived = False
            monkeypatch.undo()
            store.close()
            again = Store(root)
            state = contents(again)
            again.close()
            assert litter(root) == []
            assert state in ({"a": b"old a", "b": b"old b"}, {"a": b"new a", "b": b"new b"})
            outcomes.append(state["a"])
            if survived:
                break
    assert set(outcomes) == {b"old a", b"new a"}
    assert len(outcomes) >= 8


def commit(store: Store, repo: Repo, data: dict[str, bytes]) -> None:
    changes, uploads = [], []
    for path, bytes_ in data.items():
        upload = Upload(store.root)
        upload.write(bytes_)
        upload.sync()
        uploads.append(upload)
        changes.append(repo.put(path, trees.regular(upload.sha256, upload.size, trees.git_id("blob", bytes_))))
    repo.commit("main", changes, uploads, title="t", message="", parent=None)


def contents(store: Store) -> dict[str, bytes]:
    repo = store.repo("padfree", "kernel")
    tree = repo.tree(repo.at("main"))
    return {
        path: b"".join(store.blobs.content(entry.sha256, entry.size, path).chunks(0, entry.size))
        for path, entry in tree.items()
    }


def test_a_commit_that_never_became_visible_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    repo = store.create("padfree", "kernel")

    def dying(self: Repo, branch: str, commit: str) -> None:
        raise Crash

    monkeypatch.setattr(Repo, "_point", dying)
    with pytest.raises(Crash):
        commit(store, repo, {"a": b"never seen"})
    monkeypatch.undo()
    written = {path.name for path in (store.root / "repos/padfree/kernel/commits").iterdir()}
    (orphan,) = written - {repo.at("main").id}
    with pytest.raises(Refusal, match="has no revision"):
        repo.at(orphan)
    store.close()


def test_writers_of_different_files_all_succeed(hub: RunningHub) -> None:
    with_library(hub)

    def write(number: int) -> None:
        put(hub, {f"build/torch-cpu/part{number}.py": b"%d\n" % number})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(16)))
    wanted = {PATH} | {f"build/torch-cpu/part{number}.py" for number in range(16)}
    assert set(client(hub).list_repo_files(REPO, repo_type="kernel", revision="v1")) == wanted
    assert len(client(hub).list_repo_commits(REPO, repo_type="kernel", revision="v1")) == 2 + 16


def test_of_writers_on_one_parent_exactly_one_succeeds(hub: RunningHub) -> None:
    parent = with_library(hub)

    def write(number: int) -> int:
        try:
            put(hub, {"a.py": b"%d\n" % number}, parent=parent)
        except HfHubHTTPError as error:
            return error.response.status_code
        return 200

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(write, range(8))) == [200] + [412] * 7


def test_uploaders_of_the_same_content_both_succeed(hub: RunningHub) -> None:
    with_library(hub)
    url = upload_url(hub, NEW)

    def upload(number: int) -> int:
        return ask(hub, "PUT", url, NEW, token=None).status

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(upload, range(12))) == [200] * 12
    assert hashlib.sha256(NEW).hexdigest() in blobs(hub.store)
    assert litter(hub.store) == []


def test_a_repository_is_created_by_exactly_one(hub: RunningHub) -> None:
    body: dict[str, object] = {"organization": "padfree", "name": "kernel", "type": "kernel"}

    def create(number: int) -> int:
        return ask(hub, "POST", "/api/repos/create", body).status

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(create, range(8))) == [200] + [409] * 7


def test_readers_during_commits_see_whole_ones(hub: RunningHub) -> None:
    """Two files that always change together are never seen at different ages within one revision."""
    with_library(hub)
    put(hub, {"a": b"0", "b": b"0"})
    done = threading.Event()

    def read() -> list[tuple[bytes, bytes]]:
        seen: list[tuple[bytes, bytes]] = []
        while not done.is_set() or not seen:
            sha = ask(hub, "GET", f"{API}/revision/v1").json["sha"]
            pair = [ask(hub, "GET", f"/kernels/{REPO}/resolve/{sha}/{name}").body for name in "ab"]
            seen.append((pair[0], pair[1]))
        return seen

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        for age in range(1, 8):
            put(hub, {"a": b"%d" % age, "b": b"%d" % age})
        done.set()
        for reader in readers:
            assert all(first == second for first, second in reader.result())


@pytest.mark.parametrize("kind", ["lfs", "commit"])
def test_a_full_disk_is_said_and_keeps_nothing(hub: RunningHub, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = with_library(hub)
    stored = blobs(hub.store)
    url = upload_url(hub, NEW)

    def full(self: Upload, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Upload, "write", full)
    answer: Answer = (
        ask(hub, "PUT", url, NEW, token=None)
        if kind == "lfs"
        else ask(hub, "POST", f"{API}/commit/v1", commit_body(file_line(PATH, NEW)))
    )
    assert (answer.status, "disk of the store is full" in str(answer.json["error"])) == (507, True)
    monkeypatch.undo()
    assert (blobs(hub.store), litter(hub.store), head(hub)) == (stored, [], before)


def test_what_a_crash_left_in_tmp_is_swept(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    (store.root / "tmp").mkdir(exist_ok=True)
    (store.root / "tmp" / "left-over").write_bytes(b"half a library")
    store.close()
    again = Store(store.root)
    assert (again.swept, litter(again.root)) == (1, [])
    again.close()


def test_the_store_keeps_its_format_in_one_small_file(tmp_path: Path) -> None:
    Store(tmp_path / "store").close()
    assert json.loads((tmp_path / "store" / "hub.json").read_bytes()) == {"format": 1}
