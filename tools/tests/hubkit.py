"""What the tests of the embedded Hub share: one repository, raw requests, and a look at what the store holds."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import CommitOperationAdd, HfApi

from bundle.hub.server import RunningHub

REPO = "padfree/padfree-flash2"
API = f"/api/kernels/{REPO}"
LIBRARY = b"\x7fELF" + bytes(range(256)) * 40
PATH = "build/torch-cpu/_lib.abi3.so"


class Answer:
    """A response, read to its end."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self) -> dict[str, object]:
        value: dict[str, object] = json.loads(self.body)
        return value


def ask(
    hub: RunningHub,
    method: str,
    path: str,
    body: bytes | Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
    token: str | None = "",
) -> Answer:
    """One request, its path sent as it is. ``token=None`` sends none, '' the hub's own."""
    where = urlsplit(hub.endpoint)
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=20)
    sent = dict(headers or {})
    if token is not None:
        sent.setdefault("Authorization", f"Bearer {token or hub.token}")
    try:
        connection.request(method, path, json.dumps(body) if isinstance(body, Mapping) else body, sent)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def client(hub: RunningHub) -> HfApi:
    return HfApi(endpoint=hub.endpoint, token=hub.token)


def with_library(hub: RunningHub, data: bytes = LIBRARY, branch: str = "v1") -> str:
    """Creates the repository with one library on ``branch``; returns the commit's id."""
    api = client(hub)
    api.create_repo(REPO, repo_type="kernel", exist_ok=True)
    if branch != "main":
        api.create_branch(REPO, repo_type="kernel", branch=branch, exist_ok=True)
    return put(hub, {PATH: data}, branch)


def put(hub: RunningHub, files: Mapping[str, bytes], branch: str = "v1", parent: str | None = None) -> str:
    """Commits ``files`` with the real client; returns the commit's id."""
    operations = [CommitOperationAdd(path, data) for path, data in files.items()]
    info = client(hub).create_commit(
        REPO, operations, commit_message="files", repo_type="kernel", revision=branch, parent_commit=parent
    )
    return info.oid


def commit_body(*lines: tuple[str, Mapping[str, object]]) -> bytes:
    """The body of a commit from its lines after the header."""
    rows: list[dict[str, object]] = [{"key": "header", "value": {"summary": "by hand"}}]
    rows += [{"key": key, "value": value} for key, value in lines]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def file_line(path: str, data: bytes) -> tuple[str, Mapping[str, object]]:
    return "file", {"path": path, "content": base64.b64encode(data).decode(), "encoding": "base64"}


def upload_url(hub: RunningHub, data: bytes, size: int | None = None) -> str:
    """The URL the LFS batch hands out for ``data`` (path and query)."""
    oid = hashlib.sha256(data).hexdigest()
    wanted = {"operation": "upload", "objects": [{"oid": oid, "size": len(data) if size is None else size}]}
    answer = ask(hub, "POST", f"/kernels/{REPO}.git/info/lfs/objects/batch", wanted)
    objects = answer.json["objects"]
    assert isinstance(objects, list), answer.body
    href: str = objects[0]["actions"]["upload"]["href"]
    return href.removeprefix(hub.endpoint)


def blobs(store: Path) -> set[str]:
    """The hashes the store holds."""
    return {path.name for path in (store / "blobs").glob("*/*")}


def litter(store: Path) -> list[str]:
    """What lies in the store's directory of unfinished files."""
    return sorted(path.name for path in (store / "tmp").iterdir())


def blob_path(store: Path, data: bytes) -> Path:
    sha256 = hashlib.sha256(data).hexdigest()
    return store / "blobs" / sha256[:2] / sha256


def raw_connection(hub: RunningHub) -> socket.socket:
    where = urlsplit(hub.endpoint)
    return socket.create_connection((str(where.hostname), where.port), timeout=20)


SERVE = """
import sys
from pathlib import Path
from bundle.hub.server import serve
serve(Path(sys.argv[1]), token=sys.argv[2], announce=lambda hub: print(hub.endpoint, flush=True))
"""


@contextmanager
def server_process(store: Path) -> Iterator[tuple[RunningHub, subprocess.Popen[str]]]:
    """A Hub in a process of its own, to be killed."""
    token = "t" * 20
    command = [sys.executable, "-c", SERVE, str(store), token]
    tools = Path(__file__).parents[1]
    with subprocess.Popen(command, cwd=tools, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield RunningHub(process.stdout.readline().strip(), token, store), process
        finally:
            process.kill()
