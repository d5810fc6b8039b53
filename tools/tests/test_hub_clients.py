"""The unmodified clients against the Hub: huggingface_hub uploads and downloads, kernels loads what was uploaded."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from hubkit import LIBRARY, PATH, REPO, ask, blobs, client, put, with_library
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile, RepoFolder

from bundle.hub import app
from bundle.hub import blobs as blobs_module
from bundle.hub.server import RunningHub, running_hub

METADATA = {
    "name": "padfree-flash2",
    "id": "_padfree_flash2_cpu_0000001",
    "version": 1,
    "license": "Apache-2.0",
    "python-depends": [],
    "backend": {"type": "cpu"},
}
VARIANT = {
    "build/torch-cpu/__init__.py": b"from .answer import answer\n\n__all__ = ['answer']\n",
    "build/torch-cpu/answer.py": b"def answer():\n    return 42\n",
    "build/torch-cpu/metadata.json": json.dumps(METADATA).encode(),
}


@pytest.fixture
def lfs_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningHub]:
    """A Hub that wants everything over 1000 bytes through LFS, and a client without Xet."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with running_hub(tmp_path / "store", inline_limit=1000) as running:
        yield running


def test_folder_goes_up_and_comes_down_the_same(hub: RunningHub, tmp_path: Path) -> None:
    source = tmp_path / "source"
    for path, data in VARIANT.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes(data)
    (source / PATH).write_bytes(LIBRARY)
    (source / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Kernels\n")
    api = client(hub)
    api.create_repo(REPO, repo_type="kernel")
    api.create_branch(REPO, repo_type="kernel", branch="v1")
    commit = api.upload_folder(repo_id=REPO, repo_type="kernel", folder_path=source, revision="v1")
    for revision in ("v1", "refs/heads/v1", commit.oid):
        cache = tmp_path / revision.replace("/", "-")
        got = Path(
            snapshot_download(REPO, repo_type="kernel", revision=revision, cache_dir=cache, endpoint=hub.endpoint)
        )
        assert got.name == commit.oid
        found = {str(path.relative_to(got)): path.read_bytes() for path in got.rglob("*") if path.is_file()}
        wanted = {str(path.relative_to(source)): path.read_bytes() for path in source.rglob("*") if path.is_file()}
        assert found == wanted


def test_branches_start_where_they_are_told(hub: RunningHub) -> None:
    first = with_library(hub, branch="main")
    api = client(hub)
    second = put(hub, {"README.md": b"# later\n"}, "main")
    api.create_branch(REPO, repo_type="kernel", branch="v1", revision=first)
    api.create_branch(REPO, repo_type="kernel", branch="v2")
    refs = {ref.name: (ref.ref, ref.target_commit) for ref in api.list_repo_refs(REPO, repo_type="kernel").branches}
    assert refs == {
        "main": ("refs/heads/main", second),
        "v1": ("refs/heads/v1", first),
        "v2": ("refs/heads/v2", second),
    }


def test_repository_and_branch_are_created_once(hub: RunningHub) -> None:
    api = client(hub)
    url = api.create_repo(REPO, repo_type="kernel")
    assert (url.repo_id, url.repo_type, str(url)) == (REPO, "kernel", f"{hub.endpoint}/kernels/{REPO}")
    assert api.create_repo(REPO, repo_type="kernel", exist_ok=True) == url
    with pytest.raises(HfHubHTTPError, match="exists already") as caught:
        api.create_repo(REPO, repo_type="kernel")
    assert caught.value.response.status_code == 409
    api.create_branch(REPO, repo_type="kernel", branch="v1")
    api.create_branch(REPO, repo_type="kernel", branch="v1", exist_ok=True)
    with pytest.raises(HfHubHTTPError, match="has a branch v1 already"):
        api.create_branch(REPO, repo_type="kernel", branch="v1")


@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_only_kernel_repositories_are_created(hub: RunningHub, kind: str) -> None:
    with pytest.raises(HfHubHTTPError, match="type must be kernel"):
        client(hub).create_repo(REPO, repo_type=kind)


def test_private_repositories_are_refused(hub: RunningHub) -> None:
    with pytest.raises(HfHubHTTPError, match="visibility must be public"):
        client(hub).create_repo(REPO, repo_type="kernel", private=True)


def test_large_files_travel_through_lfs(lfs_hub: RunningHub, tmp_path: Path) -> None:
    with_library(lfs_hub)
    (info,) = client(lfs_hub).get_paths_info(REPO, [PATH], repo_type="kernel", revision="v1")
    sha256 = hashlib.sha256(LIBRARY).hexdigest()
    assert isinstance(info, RepoFile)
    assert info.lfs is not None
    assert (info.lfs.sha256, info.lfs.size, info.size) == (sha256, len(LIBRARY), len(LIBRARY))
    head = ask(lfs_hub, "HEAD", f"/kernels/{REPO}/resolve/v1/{PATH}")
    assert (head.headers["X-Linked-Etag"], head.headers["X-Linked-Size"]) == (f'"{sha256}"', str(len(LIBRARY)))
    assert head.headers["ETag"] == f'"{sha256}"'
    got = hf_hub_download(
        REPO, PATH, repo_type="kernel", revision="v1", cache_dir=tmp_path / "cache", endpoint=lfs_hub.endpoint
    )
    assert Path(got).read_bytes() == LIBRARY


def test_what_is_there_is_not_sent_again(lfs_hub: RunningHub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = with_library(lfs_hub)
    sent: list[str] = []
    monkeypatch.setattr(blobs_module.Upload, "keep", lambda upload: sent.append(upload.sha256))
    assert put(lfs_hub, {PATH: LIBRARY}) == first
    second = put(lfs_hub, {"build/torch-cpu/copy.so": LIBRARY})
    assert second != first
    assert sent == []


@pytest.mark.parametrize("limit", [0, 1 << 30], ids=["lfs", "inline"])
def test_unchanged_files_make_no_commit(tmp_path: Path, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with running_hub(tmp_path / "store", inline_limit=limit) as hub:
        first = with_library(hub)
        assert put(hub, {PATH: LIBRARY}) == first
        assert put(hub, {PATH: LIBRARY + b"!"}) != first


def test_over_the_limit_with_xet_says_what_to_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("hf_xet")
    monkeypatch.setattr("huggingface_hub.utils._http._WARNED_TOPICS", set())  # it says each thing once a process
    logging.getLogger("huggingface_hub").addHandler(caplog.handler)  # it does not propagate
    with (
        running_hub(tmp_path / "store", inline_limit=1000) as hub,
        pytest.raises(ConnectionError, match=r"404.*xet-write-token"),
    ):
        with_library(hub)
    assert blobs(hub.store) == set()
    assert "set HF_HUB_DISABLE_XET=1 to upload files over 1000 bytes" in caplog.text


def test_deletions(hub: RunningHub) -> None:
    with_library(hub)
    put(hub, VARIANT | {"benchmarks/benchmark.py": b"pass\n"})
    api = client(hub)
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        CommitOperationDelete("build/torch-cpu/", is_folder=True),
        CommitOperationAdd(PATH, b"new"),
    ]
    api.create_commit(REPO, operations, commit_message="swap", repo_type="kernel", revision="v1")
    assert sorted(api.list_repo_files(REPO, repo_type="kernel", revision="v1")) == ["benchmarks/benchmark.py", PATH]
    api.delete_file("benchmarks/benchmark.py", REPO, repo_type="kernel", revision="v1")
    assert api.list_repo_files(REPO, repo_type="kernel", revision="v1") == [PATH]
    with pytest.raises(RemoteEntryNotFoundError):
        api.delete_file("benchmarks/benchmark.py", REPO, repo_type="kernel", revision="v1")
    with pytest.raises(RemoteEntryNotFoundError):
        api.delete_folder("nowhere", REPO, repo_type="kernel", revision="v1")


def test_missing_things_are_the_clients_own_exceptions(hub: RunningHub, tmp_path: Path) -> None:
    api = client(hub)
    with pytest.raises(RepositoryNotFoundError):
        api.list_repo_refs("padfree/nothing-here", repo_type="kernel")
    with pytest.raises(RepositoryNotFoundError):
        api.model_info(REPO)
    with pytest.raises(RepositoryNotFoundError):
        hf_hub_download(REPO, "config.json", cache_dir=tmp_path, endpoint=hub.endpoint)
    commit = with_library(hub)
    for revision in ("v9", "0" * 40, "no..such", commit[:39] + "g"):
        with pytest.raises(RevisionNotFoundError):
            api.repo_info(REPO, repo_type="kernel", revision=revision)
    with pytest.raises(RevisionNotFoundError):
        put(hub, {PATH: b"x"}, branch="v9")
    with pytest.raises(RemoteEntryNotFoundError) as caught:
        hf_hub_download(REPO, "nope.txt", repo_type="kernel", revision="v1", cache_dir=tmp_path, endpoint=hub.endpoint)
    assert caught.value.response.headers["X-Repo-Commit"] == commit
    with pytest.raises(RemoteEntryNotFoundError):
        list(api.list_repo_tree(REPO, "nowhere", repo_type="kernel", revision="v1"))
    with pytest.raises(HfHubHTTPError, match="does not exist"):
        api.get_organization_overview("nobody")


def test_a_commit_on_an_old_parent_conflicts(hub: RunningHub) -> None:
    first = with_library(hub)
    second = put(hub, {"a.py": b"1"}, parent=first)
    with pytest.raises(HfHubHTTPError, match="no longer at the parent commit") as caught:
        put(hub, {"a.py": b"2"}, parent=first)
    assert caught.value.response.status_code == 412
    assert client(hub).repo_info(REPO, repo_type="kernel", revision="v1").sha == second
    assert hashlib.sha256(b"2").hexdigest() not in blobs(hub.store)


def test_tree_plain_recursive_and_in_pages(hub: RunningHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with_library(hub)
    put(hub, VARIANT | {"README.md": b"# card\n"})
    api = client(hub)

    def listed(path: str | None, recursive: bool) -> list[str]:
        tree = api.list_repo_tree(REPO, path, repo_type="kernel", revision="v1", recursive=recursive)
        return [f"{entry.path}/" if isinstance(entry, RepoFolder) else entry.path for entry in tree]

    everything = ["README.md", "build/", "build/torch-cpu/", *sorted([PATH, *VARIANT])]
    for page in (1000, 3, 1):
        monkeypatch.setattr(app, "PAGE", page)
        assert listed(None, recursive=False) == ["README.md", "build/"]
        assert listed("build", recursive=False) == ["build/torch-cpu/"]
        assert listed("build/torch-cpu", recursive=False) == sorted([PATH, *VARIANT])
        assert listed(None, recursive=True) == everything


def test_history_and_last_change(hub: RunningHub) -> None:
    first = with_library(hub)
    second = put(hub, {"README.md": b"# card\n"})
    api = client(hub)
    assert [step.commit_id for step in api.list_repo_commits(REPO, repo_type="kernel", revision="v1")][:2] == [
        second,
        first,
    ]
    rows = api.list_repo_tree(REPO, repo_type="kernel", revision="v1", recursive=True, expand=True)
    last = {entry.path: entry.last_commit.oid for entry in rows if entry.last_commit}
    assert last == {"README.md": second, "build": first, "build/torch-cpu": first, PATH: first}
    found = api.get_paths_info(REPO, ["build", "README.md", "absent"], repo_type="kernel", revision=second)
    assert [entry.path for entry in found] == ["build", "README.md"]


def test_ids_are_gits_own(hub: RunningHub, tmp_path: Path) -> None:
    """A folder next to files whose names sort around it, where git's order differs from the plain one."""
    files = {"a.b": b"1", "a/x": b"2", "a/sub/y": b"3", "a0": b"4"}
    client(hub).create_repo(REPO, repo_type="kernel")
    put(hub, files, "main")
    work = tmp_path / "git"
    for path, data in files.items():
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_bytes(data)

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=work, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet")
    git("add", "--all")
    tree = git("write-tree")
    wanted = {line.split("\t")[1]: line.split()[2] for line in git("ls-tree", "-r", "-t", tree).splitlines()}
    rows = client(hub).list_repo_tree(REPO, repo_type="kernel", recursive=True)
    assert {row.path: row.blob_id if isinstance(row, RepoFile) else row.tree_id for row in rows} == wanted


def test_a_cached_file_is_not_fetched_again(hub: RunningHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_library(hub)
    served: list[str] = []
    chunks = blobs_module.Content.chunks

    def counted(content: blobs_module.Content, start: int, stop: int) -> Iterator[bytes]:
        served.append(content.sha256)
        return chunks(content, start, stop)

    monkeypatch.setattr(blobs_module.Content, "chunks", counted)

    def fetch() -> bytes:
        where = hf_hub_download(
            REPO, PATH, repo_type="kernel", revision="v1", cache_dir=tmp_path / "cache", endpoint=hub.endpoint
        )
        return Path(where).read_bytes()

    assert fetch() == LIBRARY
    put(hub, {"README.md": b"# a new commit, the library unchanged\n"})
    assert fetch() == LIBRARY
    assert len(served) == 1
    put(hub, {PATH: b"changed"})
    assert fetch() == b"changed"
    assert len(served) == 2


def test_a_card_that_does_not_parse_is_refused_before_the_upload(hub: RunningHub) -> None:
    client(hub).create_repo(REPO, repo_type="kernel")
    with pytest.raises(ValueError, match="does not parse"):
        put(hub, {"README.md": b"---\nlicense: [unclosed\n---\n"}, "main")
    with pytest.warns(UserWarning, match="empty or missing yaml metadata"):
        put(hub, {"README.md": b"# no metadata\n"}, "main")


def test_who_am_i_and_who_is_trusted(hub: RunningHub) -> None:
    api = client(hub)
    assert api.whoami()["orgs"] == [{"name": "padfree", "type": "org"}]
    api.create_repo("stranger/kernel", repo_type="kernel")
    trusted = {
        org: vars(api.get_organization_overview(org))["trustedKernelPublisher"] for org in ("padfree", "stranger")
    }
    assert trusted == {"padfree": True, "stranger": False}


def load(hub: RunningHub, cache: Path, repo: str, options: str) -> subprocess.CompletedProcess[str]:
    """``kernels.get_kernel`` in a process of its own: the clients read HF_ENDPOINT when they are imported."""
    script = f"""
        import kernels
        module = kernels.get_kernel({repo!r}, version=1{options})
        print(module.answer(), module.__name__, module.__file__)
    """
    env = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "KERNELS_", "LOCAL_KERNELS"))}
    env |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(cache)}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_get_kernel_loads_what_was_uploaded(hub: RunningHub, tmp_path: Path) -> None:
    with_library(hub)
    put(hub, VARIANT)
    result = load(hub, tmp_path / "home", REPO, ", backend='cpu'")
    assert result.returncode == 0, result.stderr
    answer, name, file = result.stdout.split()
    assert (answer, name) == ("42", METADATA["id"])
    assert Path(file).is_relative_to(tmp_path / "home")


def test_get_kernel_refuses_what_it_should(hub: RunningHub, tmp_path: Path) -> None:
    """No variant for this machine: the text names what exists. A publisher that is not trusted: the text says so."""
    api = client(hub)
    for repo in (REPO, "stranger/padfree-flash2"):
        api.create_repo(repo, repo_type="kernel")
        api.create_branch(repo, repo_type="kernel", branch="v1")
    put(hub, {"build/torch210-cxx11-cpu-aarch64-linux/__init__.py": b""})
    missing = load(hub, tmp_path / "home", REPO, ", backend='cpu'")
    assert missing.returncode != 0
    assert "torch210-cxx11-cpu-aarch64-linux" in missing.stderr
    untrusted = load(hub, tmp_path / "home", "stranger/padfree-flash2", "")
    assert untrusted.returncode != 0
    assert "not from a trusted publisher" in untrusted.stderr
