"""The Hub on the wire: headers, ranges, error codes, and everything a client has no business asking for."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hubkit import (
    API,
    LIBRARY,
    PATH,
    REPO,
    Answer,
    ask,
    blob_path,
    blobs,
    client,
    commit_body,
    file_line,
    litter,
    put,
    raw_connection,
    upload_url,
    with_library,
)
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from huggingface_hub.file_download import get_hf_file_metadata, hf_hub_download

from bundle.hub import blobs as blobs_module
from bundle.hub.server import RunningHub, running_hub

FILE = f"/kernels/{REPO}/resolve/v1/{PATH}"
BATCH = f"/kernels/{REPO}.git/info/lfs/objects/batch"
SIZE = len(LIBRARY)
OID = hashlib.sha1(b"blob %d\0" % SIZE + LIBRARY).hexdigest()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    """A Hub with one library on v1, for all tests that leave it as it was (which most of them assert)."""
    with running_hub(tmp_path_factory.mktemp("hub") / "store") as running:
        with_library(running)
        yield running


@pytest.fixture
def fresh(hub: RunningHub) -> RunningHub:
    """A Hub of the test's own with one library on v1."""
    with_library(hub)
    return hub


def refused(answer: Answer, status: int, text: str) -> bool:
    """Whether the answer says no in the header and in the body alike."""
    assert answer.status == status, answer.body
    assert text in answer.headers["X-Error-Message"]
    return not answer.body or text in str(answer.json["error"])


def test_head_tells_what_get_gives(served: RunningHub) -> None:
    head, get = ask(served, "HEAD", FILE, token=None), ask(served, "GET", FILE, token=None)
    assert (head.status, head.body) == (200, b"")
    assert (get.status, get.body) == (200, LIBRARY)
    for name in ("Content-Length", "ETag", "X-Repo-Commit", "Accept-Ranges"):
        assert head.headers[name] == get.headers[name]
    assert head.headers["ETag"] == f'"{OID}"'
    assert head.headers["Content-Length"] == str(SIZE)
    assert len(head.headers["X-Repo-Commit"]) == 40
    assert head.headers["X-Linked-Etag"] is None


@pytest.mark.parametrize(
    ("wanted", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=5-9", 5, 10),
        ("bytes=100-", 100, SIZE),
        ("bytes=-7", SIZE - 7, SIZE),
        ("bytes=-999999", 0, SIZE),
        ("bytes=5-999999", 5, SIZE),
        (f"bytes={SIZE - 1}-", SIZE - 1, SIZE),
    ],
)
def test_ranges(served: RunningHub, wanted: str, start: int, stop: int) -> None:
    answer = ask(served, "GET", FILE, headers={"Range": wanted})
    assert answer.body == LIBRARY[start:stop]
    assert answer.headers["Content-Length"] == str(stop - start)
    whole = (start, stop) == (0, SIZE)
    assert answer.status == (200 if whole else 206)
    assert answer.headers["Content-Range"] == (None if whole else f"bytes {start}-{stop - 1}/{SIZE}")


@pytest.mark.parametrize("wanted", ["bytes=0-1,3-4", "lines=1-2", "bytes=-", "bytes=x-", "bytes"])
def test_ranges_that_may_be_ignored(served: RunningHub, wanted: str) -> None:
    answer = ask(served, "GET", FILE, headers={"Range": wanted})
    assert (answer.status, answer.body) == (200, LIBRARY)


@pytest.mark.parametrize("wanted", [f"bytes={SIZE}-", "bytes=9-5", "bytes=-0", "bytes=999999-"])
def test_ranges_outside_the_file(served: RunningHub, wanted: str) -> None:
    answer = ask(served, "GET", FILE, headers={"Range": wanted})
    assert refused(answer, 416, f"must lie within the {SIZE} bytes")
    assert answer.headers["Content-Range"] == f"bytes */{SIZE}"


def test_entity_tags(served: RunningHub) -> None:
    same = ask(served, "GET", FILE, headers={"If-None-Match": f'"other", W/"{OID}"'})
    assert (same.status, same.body, same.headers["ETag"]) == (304, b"", f'"{OID}"')
    assert ask(served, "GET", FILE, headers={"If-None-Match": '"other"'}).body == LIBRARY
    part = {"Range": "bytes=0-3"}
    assert ask(served, "GET", FILE, headers=part | {"If-Range": f'"{OID}"'}).body == LIBRARY[:4]
    assert ask(served, "GET", FILE, headers=part | {"If-Range": '"older"'}).body == LIBRARY


def test_an_empty_file(hub: RunningHub) -> None:
    client(hub).create_repo(REPO, repo_type="kernel")
    put(hub, {"py.typed": b""}, "main")
    answer = ask(hub, "GET", f"/kernels/{REPO}/resolve/main/py.typed")
    assert (answer.status, answer.body, answer.headers["Content-Length"]) == (200, b"", "0")
    assert ask(hub, "GET", f"/kernels/{REPO}/resolve/main/py.typed", headers={"Range": "bytes=0-"}).status == 416


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"{API}/refs", "RepoNotFound"),
        ("/api/models/padfree/padfree-flash2", "RepoNotFound"),
        ("/padfree/padfree-flash2/resolve/main/config.json", "RepoNotFound"),
        ("/api/agent-harnesses", None),
        ("/api/kernels", None),
    ],
)
def test_error_codes_of_an_empty_hub(hub: RunningHub, path: str, code: str | None) -> None:
    answer = ask(hub, "GET", path)
    assert (answer.status, answer.headers["X-Error-Code"]) == (404, code)
    assert answer.headers["X-Error-Message"] == answer.json["error"]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"{API}/revision/v9", "RevisionNotFound"),
        (f"{API}/revision/{'0' * 40}", "RevisionNotFound"),
        (f"{API}/tree/v9", "RevisionNotFound"),
        (f"/kernels/{REPO}/resolve/v9/{PATH}", "RevisionNotFound"),
        (f"{API}/tree/v1/nowhere", "EntryNotFound"),
        (f"{API}/tree/v1/{PATH}", "EntryNotFound"),
        (f"/kernels/{REPO}/resolve/v1/nope", "EntryNotFound"),
        (f"/kernels/{REPO}/resolve/v1/build", "EntryNotFound"),
        ("/kernels/padfree/other/resolve/v1/nope", "RepoNotFound"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_error_codes(served: RunningHub, method: str, path: str, code: str) -> None:
    answer = ask(served, method, path)
    assert (answer.status, answer.headers["X-Error-Code"]) == (404, code)


WRITES = [
    ("GET", "/api/whoami-v2"),
    ("POST", "/api/repos/create"),
    ("POST", f"{API}/branch/v2"),
    ("POST", f"{API}/preupload/v1"),
    ("POST", f"{API}/commit/v1"),
    ("POST", BATCH),
]


@pytest.mark.parametrize(("method", "path"), WRITES)
@pytest.mark.parametrize("sent", [None, "Bearer wrong", "Bearer ", "Basic {token}", "{token}", "Bearer {token}x"])
def test_what_writes_needs_the_token(served: RunningHub, method: str, path: str, sent: str | None) -> None:
    before = {ref["name"] for ref in ask(served, "GET", f"{API}/refs").json["branches"]}  # type: ignore[attr-defined]
    headers = {} if sent is None else {"Authorization": sent.format(token=served.token)}
    answer = ask(served, method, path, commit_body(file_line("a", b"a")), headers, token=None)
    assert refused(answer, 401, "Invalid credentials")
    assert served.token not in answer.body.decode()
    assert {ref["name"] for ref in ask(served, "GET", f"{API}/refs").json["branches"]} == before  # type: ignore[attr-defined]


def test_reading_needs_no_token_and_minds_no_strange_one(served: RunningHub) -> None:
    for token in (None, "hf_of_another_hub"):
        assert ask(served, "GET", FILE, token=token).body == LIBRARY
        assert ask(served, "GET", f"{API}/refs", token=token).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "", "[::2]:9"]
)
def test_a_name_that_is_not_loopback_is_turned_away(served: RunningHub, host: str) -> None:
    answer = ask(served, "GET", FILE, headers={"Host": host})
    assert refused(answer, 421, "Host must be a loopback address")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.8.8.8:99", "[::1]", "[::1]:8000"])
def test_loopback_names_are_fine(served: RunningHub, host: str) -> None:
    assert ask(served, "GET", FILE, headers={"Host": host}).status == 200


# Names that reach out of where they belong.

OUTSIDE = [
    "../secret",
    "a/../../secret",
    "/etc/passwd",
    "a//b",
    "./a",
    "a/.",
    "..",
    "",
    "a\\..\\b",
    "C:/windows",
    "a\0b",
    "a\nb",
    ".git/config",
    "a/.GIT/hooks/post-checkout",
    "x" * 1025,
    "a/" + "x" * 256,
    "a/" + "é" * 128,
    "\ud800",
]


@pytest.mark.parametrize("path", OUTSIDE, ids=ascii)
def test_no_commit_takes_a_path_that_leaves_the_repository(served: RunningHub, path: str) -> None:
    before = ask(served, "GET", f"{API}/revision/v1").json["sha"]
    stored = blobs(served.store)
    oid = hashlib.sha256(LIBRARY).hexdigest()
    for line in (
        file_line(path, b"stray"),
        ("lfsFile", {"path": path, "oid": oid, "algo": "sha256", "size": SIZE}),
        ("deletedFile", {"path": path}),
        ("deletedFolder", {"path": path}),
    ):
        assert refused(ask(served, "POST", f"{API}/commit/v1", commit_body(line)), 400, "path must")
    preupload: dict[str, object] = {"files": [{"path": path, "size": 1, "sample": ""}]}
    assert refused(ask(served, "POST", f"{API}/preupload/v1", preupload), 400, "path must")
    assert ask(served, "GET", f"{API}/revision/v1").json["sha"] == before
    assert blobs(served.store) == stored
    assert litter(served.store) == []


@pytest.mark.parametrize(
    "path",
    [
        f"/kernels/{REPO}/resolve/v1/../../../../../../etc/passwd",
        f"/kernels/{REPO}/resolve/v1/%2e%2e/%2e%2e/token",
        f"/kernels/{REPO}/resolve/v1/..%2f..%2f..%2f..%2ftoken",
        f"/kernels/{REPO}/resolve/v1/%2Fetc%2Fpasswd",
        f"/kernels/{REPO}/resolve/v1/%252e%252e/token",
        f"/kernels/{REPO}/resolve/v1/a%00b",
        f"/kernels/{REPO}/resolve/v1/%ff%fe",
        f"/kernels/{REPO}/resolve/v1/..%5c..%5ctoken",
        f"/kernels/{REPO}/resolve/..%2f..%2ftoken/x",
        f"/kernels/{REPO}/resolve/%2e%2e/{PATH}",
        f"/kernels/{REPO}/resolve/refs%2Fheads%2F..%2F..%2Fcommits/x",
        f"/kernels/{REPO}/resolve/.tmp/x",
        "/kernels/..%2f..%2f/tmp/resolve/v1/x",
        "/kernels/../../resolve/v1/token",
        "/kernels/padfree/%2e%2e/resolve/v1/token",
        f"{API}/tree/v1/..%2F..",
        f"{API}/tree/..%2F..%2Fbranches",
        f"{API}/revision/..%2f..%2ftoken",
        "/api/kernels/%2e%2e/%2e%2e/refs",
        "/api/kernels/../../refs",
        "/api/organizations/..%2f..%2ftoken/overview",
        "/lfs/..%2f..%2ftoken",
        "//etc/passwd",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST"])
def test_no_url_leaves_the_store(served: RunningHub, method: str, path: str) -> None:
    answer = ask(served, method, path, b"" if method in ("PUT", "POST") else None)
    assert 400 <= answer.status < 500, answer.body
    assert served.token.encode() not in answer.body
    assert b"root:" not in answer.body


@pytest.mark.parametrize(
    "name", ["..", ".", "a/b", "a--b", "a..b", "-a", ".a", "a.git", "a" * 97, "é", "a\nb", 7, None, ""]
)
def test_repository_names(hub: RunningHub, name: object) -> None:
    for org, repo in (("padfree", name), (name or "..", "kernel")):
        asked = {"organization": org, "name": repo}
        answer = ask(hub, "POST", "/api/repos/create", asked | {"type": "kernel"})
        assert answer.status == 400, answer.body
    assert not (hub.store / "repos").exists()


@pytest.mark.parametrize(
    "branch",
    ["..", "a..b", ".a", "a/", "/a", "a//b", "a.lock", "refs/heads/x", "0" * 40, "a b", "a\\b", "a:b", "x" * 200],
)
def test_branch_names(served: RunningHub, branch: str) -> None:
    answer = ask(served, "POST", f"{API}/branch/{quote(branch, safe='')}", {})
    assert answer.status == 400, answer.body
    assert [ref.name for ref in client(served).list_repo_refs(REPO, repo_type="kernel").branches] == ["main", "v1"]


def test_a_branch_with_a_slash(fresh: RunningHub) -> None:
    client(fresh).create_branch(REPO, repo_type="kernel", branch="wip/attention", revision="v1")
    assert ask(fresh, "GET", f"/kernels/{REPO}/resolve/wip%2Fattention/{PATH}").body == LIBRARY


# Bodies that are not what they should be.


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json\n",
        b"[]\n",
        b'{"key": "header"}\n',
        b'{"key": "header", "value": 1}\n',
        b'{"key": "header", "value": {}}\n',
        b'{"key": "header", "value": {"summary": "s", "parentCommit": "zzz"}}\n',
        commit_body(("header", {"summary": "again"})),
        commit_body(("file", {"path": "a"})),
        commit_body(("file", {"path": "a", "content": "!!!", "encoding": "base64"})),
        commit_body(("file", {"path": "a", "content": "YQ=", "encoding": "base64"})),
        commit_body(("file", {"path": "a", "content": "a", "encoding": "rot13"})),
        commit_body(("file", {"path": "a", "content": 7, "encoding": "utf-8"})),
        commit_body(("lfsFile", {"path": "a", "oid": "0" * 64, "algo": "sha256", "size": 3})),
        commit_body(("lfsFile", {"path": "a", "oid": "0" * 63, "algo": "sha256", "size": 3})),
        commit_body(("lfsFile", {"path": "a", "oid": "../" * 21 + "x", "algo": "sha256", "size": 3})),
        commit_body(("lfsFile", {"path": "a", "oid": "0" * 64, "algo": "md5", "size": 3})),
        commit_body(("copyFile", {"path": "a"})),
        commit_body(file_line("build", b"a file where a folder is")),
        commit_body(file_line(f"{PATH}/below", b"below a file")),
        b'{"key":' + b"[" * 100_000 + b"\n",
        b'{"key": "header", "value": {"summary": "\\ud800"}}\n',
    ],
    ids=lambda body: ascii(body[-60:]),
)
def test_a_commit_that_makes_no_sense_changes_nothing(served: RunningHub, body: bytes) -> None:
    before, stored = ask(served, "GET", f"{API}/revision/v1").json["sha"], blobs(served.store)
    good = commit_body(file_line("ok", b"fine")) if body else b"\n"
    for sent in (body, good + body):
        assert ask(served, "POST", f"{API}/commit/v1", sent).status == 400
    assert ask(served, "GET", f"{API}/revision/v1").json["sha"] == before
    assert blobs(served.store) == stored
    assert litter(served.store) == []


def test_a_commit_needs_its_header(served: RunningHub) -> None:
    body = commit_body(file_line("a", b"no header")).split(b"\n", 1)[1]
    assert refused(ask(served, "POST", f"{API}/commit/v1", body), 400, "must have a header line")


def test_an_lfs_file_with_another_size_is_refused(served: RunningHub) -> None:
    line = ("lfsFile", {"path": "a", "oid": hashlib.sha256(LIBRARY).hexdigest(), "algo": "sha256", "size": SIZE + 1})
    answer = ask(served, "POST", f"{API}/commit/v1", commit_body(line))
    assert refused(answer, 400, f"has {SIZE} bytes, the commit says {SIZE + 1}")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/repos/create", b"[]"),
        (f"{API}/preupload/v1", b'{"files": 1}'),
        (f"{API}/preupload/v1", b'{"files": [1]}'),
        (f"{API}/preupload/v1", b'{"files": [{"path": "a", "size": true}]}'),
        (f"{API}/preupload/v1", b'{"files": [{"path": "a", "size": -1}]}'),
        (f"{API}/preupload/v1", b'{"files": [{"path": "a", "size": ' + b"9" * 5000 + b"}]}"),
        (
            f"/kernels/{REPO}.git/info/lfs/objects/batch",
            b'{"operation": "upload", "objects": [{"oid": "x", "size": 1}]}',
        ),
        (f"{API}/branch/v2", b'{"startingPoint": 3}'),
        ("/api/validate-yaml", b'{"content": 3}'),
        (f"{API}/paths-info/v1", b"\xff"),
    ],
)
def test_other_bodies(served: RunningHub, path: str, body: bytes) -> None:
    assert ask(served, "POST", path, body).status == 400


@pytest.mark.parametrize("query", ["limit=x", "cursor=%ff", "cursor=a"])
def test_page_queries(served: RunningHub, query: str) -> None:
    assert ask(served, "GET", f"{API}/tree/v1?{query}").status == 400


def test_a_card_whose_merge_keys_would_fill_the_memory_is_only_parsed(served: RunningHub) -> None:
    lines = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 60))]
    card: dict[str, object] = {"content": "---\n" + "\n".join(lines) + "\n---\n"}
    assert ask(served, "POST", "/api/validate-yaml", card).json == {"errors": [], "warnings": []}


# Uploads that lie.


def test_a_hash_lie_stores_nothing(served: RunningHub) -> None:
    stored = blobs(served.store)
    data = b"what was promised"
    answer = ask(served, "PUT", upload_url(served, data), b"what was deliverd", token=None)
    assert refused(answer, 400, "nothing was stored")
    assert "content hashes to" in str(answer.json["error"])
    assert blobs(served.store) == stored
    assert litter(served.store) == []


@pytest.mark.parametrize("sent", [b"", b"short", b"much longer than it should be"])
def test_a_size_lie_stores_nothing(served: RunningHub, sent: bytes) -> None:
    stored = blobs(served.store)
    url = upload_url(served, b"twelve bytes")
    assert refused(ask(served, "PUT", url, sent, token=None), 400, "Content-Length must be 12")
    chunked = b"PUT %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" % url.encode()
    with raw_connection(served) as connection:
        body = b"%x\r\n%s\r\n" % (len(sent), sent) if sent else b""
        connection.sendall(chunked + body + b"0\r\n\r\n")
        assert connection.recv(4096).split()[1] in (b"400", b"413")
    assert blobs(served.store) == stored
    assert litter(served.store) == []


def test_an_upload_url_is_good_for_one_content_and_one_hour(fresh: RunningHub, monkeypatch: pytest.MonkeyPatch) -> None:
    data, other = b"x" * 2000, b"y" * 2000
    url = upload_url(fresh, data)
    stolen = url.replace(hashlib.sha256(data).hexdigest(), hashlib.sha256(other).hexdigest())
    assert refused(ask(fresh, "PUT", stolen, other, token=None), 403, "one this server handed out")
    larger = url.replace("size=2000", "size=2001")
    assert refused(ask(fresh, "PUT", larger, data + b"!", token=None), 403, "one this server handed out")
    assert refused(ask(fresh, "PUT", url.split("&signature")[0], data), 403, "must carry")
    now = time.time()
    monkeypatch.setattr("bundle.hub.guard.time.time", lambda: now + 3601)
    assert refused(ask(fresh, "PUT", url, data, token=None), 403, "expired")
    monkeypatch.undo()
    assert ask(fresh, "PUT", url, data, token=None).status == 200
    assert hashlib.sha256(data).hexdigest() in blobs(fresh.store)


# A store that was altered.


def flipped(data: bytes) -> bytes:
    return data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]


@pytest.mark.parametrize("harm", ["flipped", "truncated", "grown", "emptied", "gone", "link", "folder", "pipe"])
def test_an_altered_library_is_a_500_that_names_it(fresh: RunningHub, harm: str) -> None:
    place = blob_path(fresh.store, LIBRARY)
    place.unlink()
    match harm:
        case "flipped":
            place.write_bytes(flipped(LIBRARY))
        case "truncated":
            place.write_bytes(LIBRARY[:-1])
        case "grown":
            place.write_bytes(LIBRARY + b"\0")
        case "emptied":
            place.touch()
        case "link":
            (fresh.store / "elsewhere").write_bytes(LIBRARY)
            place.symlink_to(fresh.store / "elsewhere")
        case "folder":
            place.mkdir()
        case "pipe":
            os.mkfifo(place)
    for method, headers in (("GET", {}), ("HEAD", {}), ("GET", {"Range": "bytes=0-3"})):
        answer = ask(fresh, method, FILE, headers=headers)
        assert refused(answer, 500, place.name)
        assert LIBRARY[:4] not in answer.body
    if harm in ("flipped", "truncated", "grown", "emptied", "gone"):
        assert PATH in answer.headers["X-Error-Message"]


def test_the_client_sees_the_altered_library_and_a_new_upload_cures_it(
    fresh: RunningHub, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = blob_path(fresh.store, LIBRARY)
    place.chmod(0o644)
    place.write_bytes(flipped(LIBRARY))
    with pytest.raises(HfHubHTTPError, match=f"500.*[\\s\\S]*{place.name} .*{PATH}.*altered on disk"):
        get_hf_file_metadata(fresh.endpoint + FILE)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)  # its retries of a 500

    def fetch() -> bytes:
        cache = tmp_path_factory.mktemp("cache")
        got = hf_hub_download(REPO, PATH, repo_type="kernel", revision="v1", cache_dir=cache, endpoint=fresh.endpoint)
        return Path(got).read_bytes()

    with pytest.raises(LocalEntryNotFoundError) as caught:
        fetch()
    assert "altered on disk" in str(caught.value.__cause__)
    put(fresh, {PATH: LIBRARY})
    assert fetch() == LIBRARY


def test_a_large_file_is_streamed_in_parts(served: RunningHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs_module, "IN_MEMORY", 100)
    monkeypatch.setattr(blobs_module, "CHUNK", 1000)
    assert ask(served, "GET", FILE).body == LIBRARY
    for start, stop in ((0, 1), (0, 1000), (999, 1001), (1, SIZE), (SIZE - 1, SIZE)):
        answer = ask(served, "GET", FILE, headers={"Range": f"bytes={start}-{stop - 1}"})
        assert answer.body == LIBRARY[start:stop]


def test_a_large_file_that_is_altered_while_it_is_sent_does_not_arrive_whole(
    fresh: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs_module, "IN_MEMORY", 100)
    monkeypatch.setattr(blobs_module, "CHUNK", 1000)
    place = blob_path(fresh.store, LIBRARY)
    chunks = blobs_module.Content.chunks

    def altered(content: blobs_module.Content, start: int, stop: int) -> Iterator[bytes]:
        place.chmod(0o644)
        place.write_bytes(flipped(LIBRARY))
        return chunks(content, start, stop)

    monkeypatch.setattr(blobs_module.Content, "chunks", altered)
    with pytest.raises(http.client.IncompleteRead):
        ask(fresh, "GET", FILE)


@pytest.mark.parametrize("kind", ["commits", "trees", "branches"])
def test_altered_history_is_a_500(fresh: RunningHub, kind: str) -> None:
    repo = fresh.store / "repos" / REPO
    for place in (repo / kind).iterdir():
        place.chmod(0o644)
        place.write_bytes(place.read_bytes().replace(b"1", b"2").replace(b"e", b"f").upper())
    answer = ask(fresh, "GET", FILE)
    assert refused(answer, 500, "altered on disk")


def test_a_folder_of_the_store_that_became_a_link_is_not_followed(fresh: RunningHub) -> None:
    shelf = blob_path(fresh.store, LIBRARY).parent
    away = fresh.store / "away"
    shelf.rename(away)
    shelf.symlink_to(away)
    assert refused(ask(fresh, "GET", FILE), 500, f"blobs/{shelf.name} in the store is a link")


def test_an_error_in_another_script_stays_a_header(served: RunningHub) -> None:
    answer = ask(served, "GET", f"/kernels/{REPO}/resolve/v1/%C3%A9%E2%82%AC")
    assert answer.status == 404
    assert answer.headers["X-Error-Message"].isascii()
    assert "é€" in json.loads(answer.body)["error"]
