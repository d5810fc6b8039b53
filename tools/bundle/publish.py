"""``bundle publish``: upload checked variants to a Hub, one commit a branch, so that a reader sees all or nothing.

It does what the official uploader does, through ``huggingface_hub`` and therefore against any Hub that ``HF_ENDPOINT``
and ``HF_TOKEN`` name. A second run after a failure sends what is still missing and ends in the same state.
"""

from __future__ import annotations

import argparse
import hashlib
import ipaddress
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.hf_api import RepoFile
from rich.filesize import decimal
from rich.table import Table

from bundle import buildfile, options, process, publication
from bundle.errors import PublishError
from bundle.publication import MAIN, Publication

KIND = "kernel"
_VERSION = re.compile(r"v(\d+)")
_AGAIN = "Run the same command again: what has arrived is not sent twice."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of the verb."""
    options.add_common(parser)
    options.add_out(parser)
    parser.add_argument("--repo", metavar="OWNER/NAME", help="the repository (default: repo-id in build.toml)")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done and do nothing")
    parser.add_argument("--allow-dirty", action="store_true", help="publish what no commit describes")
    parser.add_argument(
        "--everywhere", action="store_true", help="refuse unless variants that only other machines build are there too"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask before publishing to a Hub on another machine")


def run(args: argparse.Namespace) -> int:
    """Refuse, or say what would be done, or do it."""
    out, scratch = options.places(args)
    prepared = publication.prepare(
        buildfile.read(args.root),
        out=out,
        scratch=scratch,
        only=args.only,
        repo_id=args.repo,
        allow_dirty=args.allow_dirty,
        everywhere=args.everywhere,
    )
    api = HfApi()
    _reach_past_proxies(api.endpoint)
    if args.dry_run:
        dry_run(prepared, api)
    else:
        if not args.yes:
            _ask(prepared, api)
        publish(prepared, api)
    return 0


@dataclass(frozen=True)
class Changes:
    """What a publication does to one branch. ``bytes`` is the size of what is new or changed."""

    new: tuple[str, ...]
    changed: tuple[str, ...]
    same: tuple[str, ...]
    stale: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class Published:
    """The commits a publication ended in, by branch."""

    repo_id: str
    commits: dict[str, str]


Files = Mapping[str, Path | bytes]


def dry_run(wanted: Publication, api: HfApi) -> None:
    """Print what ``publish`` would do. Reads the Hub where it can be reached, changes nothing."""
    try:
        heads = _heads(wanted, api)
        _refuse_lower_version(wanted, heads)
        changes = {branch: _changes(wanted, api, branch, files, heads) for branch, files in _branches(wanted)}
    except _UnreachableError as error:
        process.say(f"{error.message}: everything is shown as new", style="yellow")
        changes = {branch: _difference({}, files, ()) for branch, files in _branches(wanted)}
    process.console.print(_table(wanted, api, changes, "would publish"))
    for branch, change in changes.items():
        for mark, paths in (("+", change.new), ("~", change.changed), ("-", change.stale)):
            for path in paths:
                process.say(f"  {branch} {mark} {path}")
    _say_missing(wanted)


def publish(wanted: Publication, api: HfApi) -> Published:
    """Upload ``wanted``: the version's branch first, then the card, which so never promises what is not there."""
    if not (api.token or get_token()):
        raise PublishError(
            f"no token for {api.endpoint}", hint="Set HF_TOKEN; `bundle serve` prints the line for its Hub."
        )
    heads = _heads(wanted, api)
    _refuse_lower_version(wanted, heads)
    _create(wanted, api, heads)
    heads = _heads(wanted, api)
    changes: dict[str, Changes] = {}
    commits: dict[str, str] = {}
    for branch, files in _branches(wanted):
        changes[branch] = _changes(wanted, api, branch, files, heads)
        with process.console.status(f"uploading {decimal(changes[branch].bytes)} to {branch}"):
            commits[branch] = _commit(wanted, api, branch, files, changes[branch], heads[branch])
        _verify(wanted, api, branch, files, commits[branch])
    process.console.print(_table(wanted, api, changes, "published"))
    process.say(_counted(wanted))
    _say_missing(wanted)
    for place, style in ((f"version={wanted.version}", "green"), (f'revision="{commits[wanted.branch]}"', "dim")):
        process.say(f'kernels.get_kernel("{wanted.repo_id}", {place}, trust_remote_code=True)', style=style)
    return Published(wanted.repo_id, commits)


def _branches(wanted: Publication) -> list[tuple[str, Files]]:
    return [(wanted.branch, wanted.files), (MAIN, {"README.md": wanted.card})]


def _heads(wanted: Publication, api: HfApi) -> dict[str, str]:
    """The newest commit of each branch; none where there is no repository yet."""
    with _explained(api):
        try:
            refs = api.list_repo_refs(wanted.repo_id, repo_type=KIND)
        except RepositoryNotFoundError:
            return {}
        return {branch.name: branch.target_commit for branch in refs.branches}


def _refuse_lower_version(wanted: Publication, heads: Mapping[str, str]) -> None:
    highest = max((int(match[1]) for name in heads if (match := _VERSION.fullmatch(name))), default=0)
    if wanted.version < highest:
        raise PublishError(
            f"version {wanted.version} is lower than {highest}, the newest on {wanted.repo_id}",
            hint="Raise version in build.toml; users of the older one keep its branch.",
        )


def _create(wanted: Publication, api: HfApi, heads: Mapping[str, str]) -> None:
    with _explained(api):
        if not heads:
            api.create_repo(wanted.repo_id, repo_type=KIND, exist_ok=True)
        if wanted.branch not in heads:
            api.create_branch(wanted.repo_id, repo_type=KIND, branch=wanted.branch, exist_ok=True)


def _listed(wanted: Publication, api: HfApi, revision: str) -> dict[str, RepoFile]:
    tree = api.list_repo_tree(wanted.repo_id, repo_type=KIND, revision=revision, recursive=True)
    return {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}


def _changes(wanted: Publication, api: HfApi, branch: str, files: Files, heads: Mapping[str, str]) -> Changes:
    with _explained(api):
        there = _listed(wanted, api, heads[branch]) if branch in heads else {}
    return _difference(there, files, wanted.variants if branch != MAIN else ())


def _difference(there: Mapping[str, RepoFile], files: Files, variants: Sequence[str]) -> Changes:
    """What has to happen to ``there``. Stale is what an older build left in a variant that is uploaded."""
    new = tuple(path for path in files if path not in there)
    same = tuple(path for path in files if path in there and _is_same(there[path], _content(files[path])))
    changed = tuple(path for path in files if path in there and path not in same)
    own = tuple(f"build/{variant}/" for variant in variants)
    stale = tuple(sorted(path for path in there if path.startswith(own) and path not in files)) if own else ()
    return Changes(new, changed, same, stale, sum(len(_content(files[path])) for path in (*new, *changed)))


def _counted(wanted: Publication) -> str:
    """What the files of the version's branch are: ``verify`` counts one less a variant, the one that lists the rest."""
    benchmarks = sum(path.startswith("benchmarks/") for path in wanted.files)
    of_variants, variants = len(wanted.files) - benchmarks, len(wanted.variants)
    return (
        f"{wanted.branch}: {of_variants} files of {variants} variant(s), of which one each is the metadata.json that "
        f"lists the others; {benchmarks} benchmarks"
    )


def _content(source: Path | bytes) -> bytes:
    return source if isinstance(source, bytes) else source.read_bytes()


def _is_same(there: RepoFile, data: bytes) -> bool:
    if there.lfs is not None:
        return there.lfs.sha256 == hashlib.sha256(data).hexdigest()
    return there.blob_id == hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _commit(wanted: Publication, api: HfApi, branch: str, files: Files, changes: Changes, parent: str) -> str:
    """One commit that makes the branch what it should be, on the state that was compared; its id.

    Unchanged files are named too: the client leaves out those that the Hub confirms to have, whole.
    """
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        *(CommitOperationDelete(path, is_folder=False) for path in changes.stale),
        *(CommitOperationAdd(path, source) for path, source in files.items()),
    ]
    what = "card" if branch == MAIN else f"version {wanted.version}: {', '.join(wanted.variants)}"
    with _explained(api):
        return api.create_commit(
            wanted.repo_id,
            operations,
            commit_message=f"Publish {what}",
            repo_type=KIND,
            revision=branch,
            parent_commit=parent,
        ).oid


def _verify(wanted: Publication, api: HfApi, branch: str, files: Files, commit: str) -> None:
    """The Hub lists, at the commit, exactly what was sent."""
    with _explained(api):
        there = _listed(wanted, api, commit)
    left = _difference(there, files, wanted.variants if branch != MAIN else ())
    if wrong := (*left.new, *left.changed, *left.stale):
        raise PublishError(f"{branch} at {commit} is not what was sent: {', '.join(wrong)}", hint=_AGAIN)


class _UnreachableError(PublishError):
    """No Hub answered."""


@contextmanager
def _explained(api: HfApi) -> Iterator[None]:
    """Turns what the client raises into the error that says what to do."""
    try:
        yield
    except HfHubHTTPError as error:
        raise _answered(api, error) from error
    except (httpx2.TransportError, OSError) as error:
        hint = "Set HF_HUB_DISABLE_XET=1." if "xet-write-token" in str(error) else _AGAIN
        raise _UnreachableError(f"{api.endpoint} does not answer ({error})", hint=hint) from error
    except RuntimeError as error:  # the client's wrapping of a failed upload of one file
        raise PublishError(f"{error} {error.__cause__ or ''}".strip(), hint=_AGAIN) from error
    except ValueError as error:  # a name or a card that the client or the Hub will not have
        raise PublishError(str(error), hint=f"Correct {publication.CARD} or --repo.") from error


def _answered(api: HfApi, error: HfHubHTTPError) -> PublishError:
    status = error.response.status_code
    said = error.server_message or str(error)
    if status in (401, 403):
        return PublishError(
            f"{api.endpoint} refused the token: {said}", hint="Set HF_TOKEN to one that may write there."
        )
    if status == 412:
        return PublishError(f"somebody else published meanwhile: {said}", hint="Look at what is there, then run again.")
    return PublishError(f"{api.endpoint} answered {status}: {said}", hint=_AGAIN)


def _ask(wanted: Publication, api: HfApi) -> None:
    """A person's word before anything leaves this machine."""
    if _is_this_machine(api.endpoint):
        return
    goal = f"{wanted.repo_id} {wanted.branch} on {api.endpoint}"
    if not sys.stdin.isatty():
        raise PublishError(f"publishing {goal} must be confirmed", hint="Say --yes, or --dry-run to see what it does.")
    if process.console.input(f"publish {goal}? [y/N] ").strip().lower() not in ("y", "yes"):
        raise PublishError("not confirmed; nothing was done", hint="--dry-run shows what it would do.")


def _is_this_machine(endpoint: str) -> bool:
    host = urlsplit(endpoint).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _reach_past_proxies(endpoint: str) -> None:
    """A proxy in the environment cannot reach a Hub on this machine, so it is not asked for it."""
    host = urlsplit(endpoint).hostname
    for name in ("NO_PROXY", "no_proxy"):
        past = [one for one in os.environ.get(name, "").split(",") if one]
        if _is_this_machine(endpoint) and host not in past:
            os.environ[name] = ",".join([*past, str(host)])


def _table(wanted: Publication, api: HfApi, changes: Mapping[str, Changes], title: str) -> Table:
    table = Table(title=f"{title} {wanted.repo_id} on {api.endpoint}", title_justify="left", box=None, pad_edge=False)
    table.add_column("branch")
    for name in ("new", "changed", "unchanged", "deleted", "to send"):
        table.add_column(name, justify="right")
    for branch, change in changes.items():
        counts = (len(paths) for paths in (change.new, change.changed, change.same, change.stale))
        table.add_row(branch, *map(str, counts), decimal(change.bytes))
    return table


def _say_missing(wanted: Publication) -> None:
    for cell in wanted.missing:
        process.say(f"not part of it: {cell.variant} ({cell.left_out})", style="yellow")
