"""Publishing to a running Hub: what arrives, what is refused and why; an interrupted run is finished by the next.

The variants are made by hand and the checks of their content are answered for them: those have tests of their own.
"""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from conftest import git
from hubkit import server_process
from huggingface_hub import CommitOperationAdd, HfApi, close_session, constants
from huggingface_hub.hf_api import RepoFile

from bundle import __main__ as cli
from bundle import buildfile, check, process, publication, publish
from bundle.checks import Subject
from bundle.errors import BundleError, EmptySelectionError, PublishError
from bundle.hub.app import Hub
from bundle.hub.blobs import Upload
from bundle.hub.server import RunningHub, running_hub
from bundle.publication import Publication

REPO = "padfree/tiny-kernel"
X86 = "torch-stable-abi211-cpu-x86_64-linux"
ARM = "torch-stable-abi211-cpu-aarch64-linux"
CARD = (
    "---\nlicense: apache-2.0\n---\n# {{ repo_id }} {{version}}\n\n{{ variants }}\n\n{{ functions }}\n\n{{ layers }}\n"
)


@pytest.fixture(autouse=True)
def this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An x86 machine without cross compilers, whose variants keep the rules; version 1 and 2 have one name each."""
    monkeypatch.setattr(
        "bundle.compiler.reason_against", lambda system: None if system == "x86_64-linux" else f"needs {system}"
    )
    monkeypatch.setattr(check, "check", lambda target: True)
    names = tmp_path / "api.txt"
    names.write_text("scale\nScale\n")
    monkeypatch.setattr("bundle.checks.api.list_of", lambda version: names)


@pytest.fixture
def project(checkout: Path) -> Path:
    """A committed checkout for any CPU, with a card, a benchmark and one built variant."""
    build = checkout / "build.toml"
    build.write_text(build.read_text().partition("[kernel.scale_cpu_avx2]")[0])
    (checkout / "CARD.md").write_text(CARD)
    (checkout / "benchmarks").mkdir()
    (checkout / "benchmarks" / "benchmark_scale.py").write_text("# timed\n")
    (checkout / "benchmarks" / "notes.md").write_text("not published\n")
    (checkout / ".gitignore").write_text("/build/\n")
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "-m", "card")
    build_variant(checkout)
    return checkout


def build_variant(root: Path, variant: str = X86, library: bytes = b"\x7fELF library", **changes: object) -> Path:
    """What `bundle build` leaves for ``variant``, as far as publishing looks at it."""
    directory = root / "build" / variant
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        path.unlink()
    commit = git(root, "rev-parse", "HEAD").strip()
    identity = f"_tiny_kernel_cpu_{hashlib.sha256(library).hexdigest()[:7]}"
    metadata = {
        "name": "tiny-kernel",
        "id": identity,
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cpu"},
        "provenance": {"kernel-builder": {"version": "0"}, "kernel": {"commit": commit, "dirty": False}},
    }
    (directory / "__init__.py").write_text("from ._ops import ops\n")
    (directory / f"{identity}.abi3.so").write_bytes(library)
    (directory / "metadata.json").write_text(json.dumps(metadata | changes))
    return directory


def prepared(root: Path, *only: str, **options: bool) -> Publication:
    build = buildfile.read(root)
    return publication.prepare(
        build, out=root / "build", scratch=root / ".bundle", only=only or ("*cpu*",), repo_id=REPO, **options
    )


def api_of(hub: RunningHub) -> HfApi:
    return HfApi(endpoint=hub.endpoint, token=hub.token)


def content(hub: RunningHub, revision: str) -> dict[str, str]:
    """The files of a revision, each with the hash of its content."""
    tree = api_of(hub).list_repo_tree(REPO, repo_type="kernel", revision=revision, recursive=True)
    return {entry.path: entry.blob_id for entry in tree if isinstance(entry, RepoFile)}


def history(hub: RunningHub, branch: str) -> list[str]:
    return [step.title for step in api_of(hub).list_repo_commits(REPO, repo_type="kernel", revision=branch)]


def blob_ids(wanted: Publication) -> dict[str, str]:
    def oid(path: Path) -> str:
        data = path.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    return {name: oid(path) for name, path in wanted.files.items()}


def test_what_goes_where(hub: RunningHub, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = project / "build" / X86 / "__pycache__"
    cache.mkdir()
    (cache / "x.pyc").write_bytes(b"")
    wanted = prepared(project)
    published = publish.publish(wanted, api_of(hub))
    assert "v1: 3 files of 1 variant(s), of which one each is the metadata.json" in capsys.readouterr().err
    assert content(hub, "v1") == blob_ids(wanted)
    names = {Path(path).name for path in wanted.files}
    assert names == {"__init__.py", "metadata.json", "benchmark_scale.py", next(n for n in names if n.endswith(".so"))}
    assert set(content(hub, "main")) == {"README.md"}
    card = Path(api_of(hub).hf_hub_download(REPO, "README.md", repo_type="kernel", cache_dir=project / "c")).read_text()
    assert card == CARD.replace("{{ repo_id }}", REPO).replace("{{version}}", "1").replace(
        "{{ variants }}", f"- `{X86}`"
    ).replace("{{ functions }}", "- `scale`").replace("{{ layers }}", "- `Scale`")
    heads = {ref.name: ref.target_commit for ref in api_of(hub).list_repo_refs(REPO, repo_type="kernel").branches}
    assert published.commits == heads
    assert history(hub, "v1") == [f"Publish version 1: {X86}", "initial commit"]


def test_a_second_run_changes_nothing(hub: RunningHub, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = publish.publish(prepared(project), api_of(hub))
    capsys.readouterr()
    assert publish.publish(prepared(project), api_of(hub)) == first
    assert len(history(hub, "v1")) == 2
    rows = [line.split() for line in capsys.readouterr().err.splitlines()]
    assert ["v1", "0", "0", "4", "0", "0", "bytes"] in rows


def test_a_new_build_replaces_the_old_one_whole(hub: RunningHub, project: Path) -> None:
    publish.publish(prepared(project), api_of(hub))
    put_by_someone_else(hub, f"build/{ARM}/__init__.py")
    build_variant(project, library=b"another library")
    wanted = prepared(project)
    publish.publish(wanted, api_of(hub))
    there = content(hub, "v1")
    assert there.pop(f"build/{ARM}/__init__.py"), "variants that are not uploaded stay"
    assert there == blob_ids(wanted)
    assert len(history(hub, "v1")) == 4


def put_by_someone_else(hub: RunningHub, path: str, branch: str = "v1") -> None:
    api_of(hub).upload_file(
        path_or_fileobj=b"#\n", path_in_repo=path, repo_id=REPO, repo_type="kernel", revision=branch
    )


def test_a_newer_version_gets_a_branch_of_its_own(hub: RunningHub, project: Path) -> None:
    old = publish.publish(prepared(project), api_of(hub))
    raise_version(project)
    build_variant(project, version=2)
    publish.publish(prepared(project), api_of(hub))
    heads = {ref.name: ref.target_commit for ref in api_of(hub).list_repo_refs(REPO, repo_type="kernel").branches}
    assert set(heads) == {"main", "v1", "v2"}
    assert heads["v1"] == old.commits["v1"]
    assert f"build/{X86}/metadata.json" in content(hub, "v2")


def raise_version(root: Path) -> None:
    path = root / "build.toml"
    path.write_text(path.read_text().replace("version = 1", "version = 2"))
    git(root, "commit", "--quiet", "--all", "-m", "version 2")


def test_lowering_the_version_is_refused(hub: RunningHub, project: Path) -> None:
    api = api_of(hub)
    publish.publish(prepared(project), api)
    for branch in ("v3", "v10", "vNext", "v2-wip"):
        api.create_branch(REPO, repo_type="kernel", branch=branch)
    before = content(hub, "v1")
    with pytest.raises(PublishError, match="version 1 is lower than 10, the newest on padfree/tiny-kernel"):
        publish.publish(prepared(project), api)
    with pytest.raises(PublishError, match="lower than 10"):
        publish.dry_run(prepared(project), api)
    assert content(hub, "v1") == before


# Reasons to refuse that need no Hub.


def refusal(root: Path, *only: str, **options: bool) -> BundleError:
    with pytest.raises(BundleError) as caught:
        prepared(root, *only, **options)
    assert caught.value.hint
    return caught.value


def test_a_dirty_checkout_is_refused_unless_told(project: Path) -> None:
    (project / "kernel-src/scale/scale.h").write_text("// changed\n")
    assert refusal(project).message == "the checkout has changes that are not committed"
    assert prepared(project, allow_dirty=True).variants == (X86,)


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        ({}, "outside git"),
        ({"kernel": {"commit": "c" * 40, "dirty": True}}, "from changes that were not committed"),
        (
            {"kernel": {"commit": "c" * 40, "dirty": False}},
            f"from commit {'c' * 40}, the checkout is at ",
        ),
    ],
)
def test_a_dirty_or_older_build_is_refused_unless_told(project: Path, origin: dict[str, object], message: str) -> None:
    build_variant(project, provenance={"kernel-builder": {"version": "0"}} | origin)
    error = refusal(project)
    assert (type(error), error.message.startswith(f"{X86} was built {message}")) == (PublishError, True)
    assert prepared(project, allow_dirty=True).variants == (X86,)


def test_a_planned_variant_that_is_not_built_is_refused(project: Path) -> None:
    (project / "build" / X86 / "metadata.json").unlink()
    assert f"{X86} is planned but not in {project / 'build'}" in refusal(project).message
    assert X86 in refusal(project, allow_dirty=True).message


def test_variants_of_other_machines(project: Path) -> None:
    """Not wanted, unless --everywhere; published when they are there."""
    assert [str(cell.variant) for cell in prepared(project).missing] == [ARM]
    assert f"{ARM} is planned but not" in refusal(project, everywhere=True).message
    build_variant(project, ARM)
    wanted = prepared(project, everywhere=True)
    assert (wanted.variants, wanted.missing) == ((X86, ARM), ())


def test_an_empty_selection_is_refused(project: Path) -> None:
    assert isinstance(refusal(project, "*metal*"), EmptySelectionError)
    assert isinstance(refusal(project, "*aarch64*"), EmptySelectionError)


@pytest.mark.parametrize(("name", "version"), [("tiny-kernel", 2), ("other-kernel", 1)])
def test_a_variant_of_another_build_file_is_refused(project: Path, name: str, version: int) -> None:
    build_variant(project, name=name, version=version)
    error = refusal(project, allow_dirty=True)
    assert f"{X86} was built as " in error.message
    assert "build.toml says tiny-kernel version 1" in error.message


def test_failing_checks_are_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Subject] = []

    def fails(target: Subject) -> bool:
        asked.append(target)
        return False

    monkeypatch.setattr(check, "check", fails)
    assert refusal(project).message == f"{X86} breaks a rule"
    assert [target.directory for target in asked] == [project / "build" / X86]


@pytest.mark.parametrize(
    ("card", "message"), [(None, "CARD.md is missing"), ("{{ colour }}", "CARD.md asks for {{ colour }}")]
)
def test_a_card_that_cannot_be_filled_is_refused(project: Path, card: str | None, message: str) -> None:
    path = project / "CARD.md"
    path.unlink()
    if card is not None:
        path.write_text(card)
    assert message in refusal(project, allow_dirty=True).message


# Reasons the Hub gives.


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's retries without their waiting."""
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)


def test_no_token_is_said_before_anything_is_sent(
    hub: RunningHub, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "get_token", lambda: None)
    with pytest.raises(PublishError, match="no token for") as caught:
        publish.publish(prepared(project), HfApi(endpoint=hub.endpoint))
    assert "HF_TOKEN" in str(caught.value.hint)


def test_a_refused_token(hub: RunningHub, project: Path) -> None:
    with pytest.raises(PublishError, match="refused the token") as caught:
        publish.publish(prepared(project), HfApi(endpoint=hub.endpoint, token="hf_wrong"))
    assert "HF_TOKEN" in str(caught.value.hint)
    assert not (hub.store / "repos").exists()


def test_no_hub_at_all(project: Path) -> None:
    api = HfApi(endpoint=f"http://127.0.0.1:{closed_port()}", token="hf_any")
    with pytest.raises(PublishError, match="does not answer") as caught:
        publish.publish(prepared(project), api)
    assert "same command again" in str(caught.value.hint)


def test_a_card_the_hub_will_not_have(hub: RunningHub, project: Path) -> None:
    (project / "CARD.md").write_text("---\nlicense: [open\n---\n")
    with pytest.raises(PublishError, match="does not parse") as caught:
        publish.publish(prepared(project, allow_dirty=True), api_of(hub))
    assert "CARD.md" in str(caught.value.hint)


def test_another_publication_in_between_is_noticed(
    hub: RunningHub, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish.publish(prepared(project), api_of(hub))
    build_variant(project, library=b"mine")
    difference = publish._difference

    def meanwhile(*args: object) -> object:
        monkeypatch.undo()
        put_by_someone_else(hub, f"build/{X86}/theirs.py")
        return difference(*args)  # type: ignore[arg-type]

    wanted = prepared(project)
    monkeypatch.setattr(publish, "_difference", meanwhile)
    with pytest.raises(PublishError, match="somebody else published meanwhile"):
        publish.publish(wanted, api_of(hub))
    publish.publish(wanted, api_of(hub))
    assert content(hub, "v1") == blob_ids(wanted)


def test_what_arrived_wrong_is_noticed(hub: RunningHub, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = publish._listed

    def without_library(*args: object) -> dict[str, RepoFile]:
        there = listed(*args)  # type: ignore[arg-type]
        return {path: entry for path, entry in there.items() if not path.endswith(".so")}

    monkeypatch.setattr(publish, "_listed", without_library)
    with pytest.raises(PublishError, match=r"v1 at [0-9a-f]{40} is not what was sent: build/.*\.so"):
        publish.publish(prepared(project), api_of(hub))


# Interrupted, and finished by the next run.


@pytest.fixture
def lfs_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningHub]:
    """A Hub that takes every file by LFS, one by one."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with running_hub(tmp_path / "lfs-store", inline_limit=0) as running:
        yield running


@pytest.mark.parametrize("arrived", [0, 1, 2, 3])
@pytest.mark.usefixtures("impatient")
def test_an_upload_that_broke_off_is_finished_by_the_next_run(
    lfs_hub: RunningHub, project: Path, arrived: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = prepared(project)
    kept: list[str] = []
    keep = Upload.keep
    one_by_one = threading.Lock()

    def counted(upload: Upload) -> None:
        with one_by_one:
            if len(kept) >= arrived:
                raise RuntimeError("the server's disk is gone")
            keep(upload)
            kept.append(upload.sha256)

    with monkeypatch.context() as patch:
        patch.setattr(Upload, "keep", counted)
        with pytest.raises(PublishError, match="Error while uploading"):
            publish.publish(wanted, api_of(lfs_hub))
    assert content(lfs_hub, "v1") == {}, "a reader sees nothing of a half upload"

    sent: list[str] = []

    def recorded(upload: Upload) -> None:
        keep(upload)
        sent.append(upload.sha256)

    monkeypatch.setattr(Upload, "keep", recorded)
    publish.publish(wanted, api_of(lfs_hub))
    everything = {hashlib.sha256(path.read_bytes()).hexdigest() for path in wanted.files.values()}
    everything.add(hashlib.sha256(wanted.card).hexdigest())
    assert sorted(sent) == sorted(everything - set(kept))
    assert set(content(lfs_hub, "v1")) == set(wanted.files)
    assert set(content(lfs_hub, "main")) == {"README.md"}


@pytest.mark.usefixtures("impatient")
def test_a_failure_between_the_branches_is_finished_by_the_next_run(
    hub: RunningHub, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = prepared(project)
    commit = Hub.commit

    async def only_versions(self: Hub, request: object) -> object:
        if request.path_params["branch"] == "main":  # type: ignore[attr-defined]
            raise OSError("the server's disk is gone")
        return await commit(self, request)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Hub, "commit", only_versions)
        with running_hub(hub.store.parent / "second") as broken, pytest.raises(PublishError, match="answered 500"):
            publish.publish(wanted, api_of(broken))
    with running_hub(hub.store.parent / "second") as again:
        assert content(again, "v1") == blob_ids(wanted)
        assert content(again, "main") == {}
        publish.publish(wanted, api_of(again))
        assert set(content(again, "main")) == {"README.md"}
        assert len(history(again, "v1")) == 2, "the branch that was whole got no second commit"


def test_a_server_that_dies_under_a_publication(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed when the commit's body is made; the next server on the store, and the next run, finish the work."""
    wanted = prepared(project)
    with server_process(tmp_path / "store") as (hub, process_of_hub):

        def killing(operation: CommitOperationAdd) -> bytes:
            process_of_hub.kill()
            process_of_hub.wait()
            return b""

        with monkeypatch.context() as patch:
            patch.setattr(CommitOperationAdd, "b64content", killing)
            with pytest.raises(PublishError, match="does not answer") as caught:
                publish.publish(wanted, api_of(hub))
        assert "same command again" in str(caught.value.hint)
    with running_hub(tmp_path / "store") as again:
        assert content(again, "v1") == {}
        publish.publish(wanted, api_of(again))
        assert content(again, "v1") == blob_ids(wanted)
        assert set(content(again, "main")) == {"README.md"}


# Looking first.


def test_a_dry_run_touches_nothing(hub: RunningHub, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def everything(root: Path) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}

    before = everything(hub.store)
    publish.dry_run(prepared(project), api_of(hub))
    text = capsys.readouterr().err
    assert f"would publish {REPO} on {hub.endpoint}" in text
    assert f"v1 + build/{X86}/metadata.json" in text
    assert f"not part of it: {ARM} (needs aarch64-linux)" in text
    assert everything(hub.store) == before
    publish.publish(prepared(project), api_of(hub))
    build_variant(project, library=b"another library")
    before = everything(hub.store)
    capsys.readouterr()
    publish.dry_run(prepared(project), HfApi(endpoint=hub.endpoint))
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert f"v1 ~ build/{X86}/metadata.json" in lines
    assert [line for line in lines if line.startswith("v1 - ") and line.endswith(".abi3.so")]
    assert everything(hub.store) == before


def test_a_dry_run_works_without_a_hub(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish.dry_run(prepared(project), HfApi(endpoint=f"http://127.0.0.1:{closed_port()}"))
    text = capsys.readouterr().err
    assert "does not answer" in text
    assert f"v1 + build/{X86}/metadata.json" in text


def words(project: Path, *more: str) -> tuple[str, ...]:
    return ("publish", "--root", str(project), "--only", "*cpu*", "--repo", REPO, *more)


def test_the_verb(hub: RunningHub, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "HfApi", partial(HfApi, endpoint=hub.endpoint, token=hub.token))
    assert cli.main(words(project, "--dry-run")) == 0
    assert not (hub.store / "repos").exists()
    (project / "kernel-src/scale/scale.h").write_text("// changed\n")
    assert cli.main(words(project)) == PublishError.exit_code
    assert cli.main(words(project, "--allow-dirty", "--everywhere")) == PublishError.exit_code
    assert cli.main(words(project, "--allow-dirty")) == 0
    assert set(content(hub, "main")) == {"README.md"}


def test_a_proxy_does_not_stand_in_the_way(hub: RunningHub, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.setenv("no_proxy", "example.org")
    monkeypatch.setattr(publish, "HfApi", partial(HfApi, endpoint=hub.endpoint, token=hub.token))
    close_session()
    assert cli.main(words(project)) == 0
    close_session()


def test_another_machines_hub_needs_a_word(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal to ask on, --yes must have been said; no request leaves before."""
    monkeypatch.setattr(publish, "HfApi", partial(HfApi, endpoint="https://hub.invalid", token="hf_any"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert cli.main(words(project)) == PublishError.exit_code
    assert "must be confirmed" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(process.console, "input", lambda question: "n")
    assert cli.main(words(project)) == PublishError.exit_code
    assert "not confirmed" in capsys.readouterr().err
    assert cli.main(words(project, "--yes")) == PublishError.exit_code
    assert "does not answer" in capsys.readouterr().err


def test_the_official_branch_name(project: Path) -> None:
    assert replace(prepared(project), version=7).branch == "v7"
