"""The routes. A handler reads names from the URL, asks the store, and shapes the answer; refusals become status codes.

Clients percent-quote a revision into one URL segment (``refs%2Fheads%2Fv1``), so routes are matched on the undecoded
path and each part is decoded once, by the handler.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from . import answers, names, transfer, trees, wire
from .guard import Guard, check_host
from .refusal import Refusal, entry_not_found
from .store import MAIN, Commit, Repo, Store

INLINE_LIMIT = 64 << 20  # files up to this size travel inside the commit, which works with and without hf_xet
PAGE = 1000
BATCH = 2000
USER = "local"

Handler = Callable[[Request], Awaitable[Response]]


class Hub:
    """The handlers over one store."""

    def __init__(self, store: Store, guard: Guard, trusted_orgs: tuple[str, ...], inline_limit: int) -> None:
        self._store, self._guard = store, guard
        self._trusted_orgs, self._inline_limit = trusted_orgs, inline_limit

    def routes(self) -> list[Route]:
        repo, lfs = "/api/kernels/{org}/{name}", "/kernels/{org}/{name}.git/info/lfs/objects/batch"
        table: list[tuple[str, str, Handler]] = [
            ("GET", "/", self.index),
            ("GET", "/api/whoami-v2", self.whoami),
            ("GET", "/api/organizations/{org}/overview", self.organization),
            ("POST", "/api/validate-yaml", self.validate_yaml),
            ("POST", "/api/repos/create", self.create_repo),
            ("GET", repo, self.info),
            ("GET", f"{repo}/refs", self.refs),
            ("GET", f"{repo}/revision/{{rev}}", self.info),
            ("GET", f"{repo}/tree/{{rev}}", self.tree),
            ("GET", f"{repo}/tree/{{rev}}/{{path:path}}", self.tree),
            ("GET", f"{repo}/commits/{{rev}}", self.commits),
            ("POST", f"{repo}/paths-info/{{rev}}", self.paths_info),
            ("POST", f"{repo}/branch/{{branch}}", self.create_branch),
            ("POST", f"{repo}/preupload/{{rev}}", self.preupload),
            ("POST", f"{repo}/commit/{{branch}}", self.commit),
            ("GET", f"{repo}/xet-write-token/{{rev}}", self.no_xet),
            ("GET", f"{repo}/xet-read-token/{{rev}}", self.no_xet),
            ("POST", lfs, self.lfs_batch),
            ("PUT", "/lfs/{oid}", self.lfs_upload),
            ("GET", "/kernels/{org}/{name}/resolve/{rev}/{path:path}", self.resolve),
        ]
        return [Route(path, handler, methods=[method]) for method, path, handler in table]

    # What a request names.

    def _repo(self, request: Request) -> Repo:
        return self._store.repo(names.decoded(request.path_params["org"]), names.decoded(request.path_params["name"]))

    def _at(self, request: Request) -> tuple[Repo, Commit]:
        repo = self._repo(request)
        return repo, repo.at(names.decoded(request.path_params.get("rev", MAIN)))

    async def _json(self, request: Request) -> dict[str, object]:
        return wire.parsed(await transfer.body(request))

    # Who and what is here.

    async def index(self, request: Request) -> Response:
        """For a person with a browser."""
        rows = [f"/kernels/{repo_id}" for repo_id in await run_in_threadpool(self._store.repo_ids)]
        return PlainTextResponse("\n".join(["An embedded Hub of kernel repositories.", *rows, ""]))

    async def whoami(self, request: Request) -> Response:
        self._guard.check_token(request.headers)
        orgs = [{"name": org, "type": "org"} for org in self._trusted_orgs]
        access = {"displayName": USER, "role": "write"}
        return JSONResponse({"type": "user", "name": USER, "orgs": orgs, "auth": {"accessToken": access}})

    async def organization(self, request: Request) -> Response:
        org = names.name(names.decoded(request.path_params["org"]), "organization")
        owners = {repo_id.split("/")[0] for repo_id in await run_in_threadpool(self._store.repo_ids)}
        if org not in self._trusted_orgs and org not in owners:
            raise Refusal(404, f"organization {org} does not exist on this Hub")
        trusted = org in self._trusted_orgs
        return JSONResponse({"name": org, "fullname": org, "avatarUrl": "", "trustedKernelPublisher": trusted})

    async def validate_yaml(self, request: Request) -> Response:
        content = wire.text(await self._json(request), "content", limit=1 << 18)
        errors, warnings = await run_in_threadpool(wire.metadata_errors, content)
        answer = {
            "errors": [{"message": text} for text in errors],
            "warnings": [{"message": text} for text in warnings],
        }
        return JSONResponse(answer, status_code=400 if errors else 200)

    # Reading.

    async def info(self, request: Request) -> Response:
        def answer() -> Response:
            repo, commit = self._at(request)
            return JSONResponse(wire.repo_info(repo, commit, repo.tree(commit)))

        return await run_in_threadpool(answer)

    async def refs(self, request: Request) -> Response:
        branches = (await run_in_threadpool(self._repo(request).branches)).items()
        rows = [{"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit} for name, commit in branches]
        return JSONResponse({"branches": rows, "converts": [], "tags": [], "pullRequests": []})

    async def tree(self, request: Request) -> Response:
        def answer() -> Response:
            repo, commit = self._at(request)
            raw = names.decoded(request.path_params.get("path", ""))
            folder = names.folder_path(raw) if raw else ""
            files = repo.tree(commit)
            if folder and not trees.below(files, folder):
                raise entry_not_found(repo.id, folder)
            paths = trees.listing(files, folder, _flag(request, "recursive"))
            page, link = _page(request, paths)
            changes = repo.last_changes(commit) if _flag(request, "expand") else None
            folders = trees.folder_ids(files)
            return JSONResponse([wire.path_info(path, files, folders, changes) for path in page], headers=link)

        return await run_in_threadpool(answer)

    async def commits(self, request: Request) -> Response:
        def answer() -> Response:
            repo, commit = self._at(request)
            return JSONResponse([wire.commit_info(step, USER) for step in repo.history(commit)])

        return await run_in_threadpool(answer)

    async def paths_info(self, request: Request) -> Response:
        fields = wire.form(await transfer.body(request), request.headers.get("content-type", ""))
        asked = [path.removesuffix("/") for path in fields.get("paths", [])]
        if len(asked) > PAGE:
            raise Refusal(413, f"paths must be at most {PAGE}, got {len(asked)}")

        def answer() -> Response:
            repo, commit = self._at(request)
            files = repo.tree(commit)
            folders = trees.folder_ids(files)
            expand = fields.get("expand", ["false"])[0].lower() in ("true", "1")
            changes = repo.last_changes(commit) if expand else None
            found = [path for path in asked if path in files or (path and path in folders)]
            return JSONResponse([wire.path_info(path, files, folders, changes) for path in found])

        return await run_in_threadpool(answer)

    async def resolve(self, request: Request) -> Response:
        repo, commit = await run_in_threadpool(self._at, request)
        path = names.file_path(names.decoded(request.path_params["path"]))
        entry = (await run_in_threadpool(repo.tree, commit)).get(path)
        if entry is None:
            refusal = entry_not_found(repo.id, path)
            refusal.extra["commit"] = commit.id
            raise refusal
        return await transfer.send_file(request, self._store, entry, path, commit)

    # Writing.

    async def create_repo(self, request: Request) -> Response:
        self._guard.check_token(request.headers)
        asked = await self._json(request)
        if asked.get("type", "model") != "kernel":
            raise Refusal(400, f"type must be kernel on this Hub, got {names.shown(asked.get('type'))}")
        if asked.get("visibility", "public") != "public" or asked.get("private") not in (None, False):
            raise Refusal(400, "visibility must be public on this Hub: everyone on this machine can read it")
        org = names.name(USER if asked.get("organization") is None else asked["organization"], "organization")
        name = names.name(asked.get("name"), "name")
        url = f"{request.base_url}kernels/{org}/{name}"
        try:
            await run_in_threadpool(self._store.create, org, name)
        except Refusal as refusal:
            refusal.extra["url"] = url
            raise
        return JSONResponse({"url": url, "name": f"{org}/{name}"})

    async def create_branch(self, request: Request) -> Response:
        self._guard.check_token(request.headers)
        raw = await transfer.body(request)
        start = wire.text(wire.parsed(raw) if raw else {}, "startingPoint", MAIN)
        branch = names.decoded(request.path_params["branch"])
        await run_in_threadpool(self._repo(request).create_branch, branch, start)
        return JSONResponse({"success": True}, status_code=201)

    async def preupload(self, request: Request) -> Response:
        self._guard.check_token(request.headers)
        asked = wire.objects(await self._json(request), "files", BATCH)

        def answer() -> Response:
            repo, commit = self._at(request)
            present = repo.tree(commit)
            modes = [self._upload_mode(present, file) for file in asked]
            large = any(mode["uploadMode"] == "lfs" for mode in modes)
            headers = {"X-HF-Warning": f"no-xet; {self._no_xet_text()}"} if large else {}
            return JSONResponse({"files": modes, "commitOid": commit.id}, headers=headers)

        return await run_in_threadpool(answer)

    def _upload_mode(self, present: trees.Tree, file: dict[str, object]) -> dict[str, object]:
        """How to send a file. ``oid`` tells the client what is there, so that it can skip what has not changed."""
        path, size = names.file_path(file.get("path")), names.size(file.get("size"))
        mode = "regular" if size <= self._inline_limit else "lfs"
        answer: dict[str, object] = {"path": path, "uploadMode": mode, "shouldIgnore": False}
        entry = present.get(path)
        if entry is not None and entry.lfs == (mode == "lfs") and self._store.blobs.whole(entry.sha256, entry.size):
            answer["oid"] = entry.etag
        return answer

    async def lfs_batch(self, request: Request) -> Response:
        self._guard.check_token(request.headers)
        asked = await self._json(request)
        self._repo(request)
        if asked.get("operation") != "upload" or asked.get("hash_algo", "sha256") != "sha256":
            raise Refusal(422, "operation must be upload with hash_algo sha256; download through /resolve/")
        objects = [
            (names.sha256(o.get("oid")), names.size(o.get("size"))) for o in wire.objects(asked, "objects", BATCH)
        ]

        def answer() -> Response:
            rows = [self._lfs_object(sha256, size, str(request.base_url)) for sha256, size in objects]
            return JSONResponse({"transfer": "basic", "objects": rows, "hash_algo": "sha256"})

        return await run_in_threadpool(answer)

    def _lfs_object(self, sha256: str, size: int, base: str) -> dict[str, object]:
        row: dict[str, object] = {"oid": sha256, "size": size}
        if not self._store.blobs.whole(sha256, size):
            row["actions"] = {"upload": {"href": f"{base}lfs/{sha256}?{self._guard.sign(sha256, size)}"}}
        return row

    async def lfs_upload(self, request: Request) -> Response:
        sha256 = names.sha256(request.path_params["oid"])
        size = self._guard.check_signature(sha256, request.query_params)
        await transfer.receive_blob(request, self._store, sha256, size)
        return Response(headers={"ETag": f'"{sha256}"'})

    async def commit(self, request: Request) -> Response:
        self._guard.check_token(request.headers)
        if "create_pr" in request.query_params or "hot_reload" in request.query_params:
            raise Refusal(400, "create_pr and hot_reload are not offered by this Hub: commit to a branch")
        repo = self._repo(request)
        branch = names.branch(names.decoded(request.path_params["branch"]).removeprefix("refs/heads/"))
        await run_in_threadpool(repo.head, branch)
        commit = await transfer.receive_commit(request, self._store, repo, branch, self._inline_limit)
        url = f"{request.base_url}kernels/{repo.id}/commit/{commit.id}"
        return JSONResponse({"success": True, "commitOid": commit.id, "commitUrl": url, "hookOutput": ""})

    async def no_xet(self, request: Request) -> Response:
        raise Refusal(404, self._no_xet_text())

    def _no_xet_text(self) -> str:
        return (
            f"this Hub has no Xet storage: where hf_xet is installed, set HF_HUB_DISABLE_XET=1 to upload files over "
            f"{self._inline_limit} bytes"
        )


def _flag(request: Request, key: str) -> bool:
    return request.query_params.get(key, "").lower() in ("true", "1")


def _page(request: Request, paths: list[str]) -> tuple[list[str], dict[str, str]]:
    """One page of a listing and, where more follows, the Link header to the next."""
    try:
        limit = int(request.query_params.get("limit", PAGE))
        last = base64.urlsafe_b64decode(request.query_params.get("cursor", "")).decode()
    except ValueError:
        raise Refusal(400, "limit must be a number and cursor one this server gave") from None
    rest = [path for path in paths if path > last]
    page = rest[: min(max(limit, 1), PAGE)]
    if len(page) == len(rest):
        return page, {}
    query = dict(request.query_params) | {"cursor": base64.urlsafe_b64encode(page[-1].encode()).decode()}
    base = str(request.base_url).rstrip("/")
    return page, {"Link": f'<{base}{request.scope["path"]}?{urlencode(query)}>; rel="next"'}


class _Front:
    """Checks the Host header and hands the undecoded path to the router."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                check_host(dict(scope["headers"]).get(b"host", b"").decode("latin-1"))
            except Refusal as refusal:
                await answers.error(refusal.status, refusal.message)(scope, receive, send)
                return
            scope = {**scope, "path": scope["raw_path"].decode("ascii", "replace")}
        await self._app(scope, receive, send)


def create_app(
    store: Store, token: str, trusted_orgs: tuple[str, ...] = ("padfree",), inline_limit: int = INLINE_LIMIT
) -> ASGIApp:
    """The Hub over ``store`` as an ASGI application; what writes needs ``token``."""
    hub = Hub(store, Guard(token), trusted_orgs, inline_limit)
    app = Starlette(routes=hub.routes(), exception_handlers=dict.fromkeys(answers.HANDLED, answers.explain))
    app.router.redirect_slashes = False
    return _Front(app)
