"""Bodies in and out: bounded reading, LFS uploads, commits, downloads with ranges and entity tags."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import IO
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from . import blobs, names, trees, wire
from .blobs import Content, Upload
from .refusal import Refusal
from .store import Change, Commit, Repo, Store

JSON_LIMIT = 8 << 20
COMMIT_LIMIT = 2 << 30
IDLE_SECONDS = 60.0
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


async def body_chunks(request: Request, limit: int) -> AsyncIterator[bytes]:
    """The body as it arrives; 413 past ``limit`` bytes, 408 when the client stops sending."""
    received = 0
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                chunk = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Refusal(408, f"body must keep coming, nothing came for {IDLE_SECONDS:.0f} s") from None
        received += len(chunk)
        if received > limit:
            raise Refusal(413, f"body must be at most {limit} bytes; upload large files through LFS")
        if chunk:
            yield chunk


async def body(request: Request, limit: int = JSON_LIMIT) -> bytes:
    """The whole body of a request that is small by nature."""
    return b"".join([chunk async for chunk in body_chunks(request, limit)])


async def receive_blob(request: Request, store: Store, sha256: str, size: int) -> None:
    """Stores the body as the blob ``sha256``, or nothing at all when it is not exactly that."""
    announced = request.headers.get("content-length", str(size))
    if announced != str(size):
        raise Refusal(
            400, f"Content-Length must be {size}, the size the batch was asked for, got {names.shown(announced)}"
        )
    with await run_in_threadpool(store.blobs.upload) as upload:
        async for chunk in body_chunks(request, size):
            await run_in_threadpool(upload.write, chunk)
        blobs.check(upload, sha256, size)
        await run_in_threadpool(upload.sync)
        await run_in_threadpool(upload.keep)


async def receive_commit(request: Request, store: Store, repo: Repo, branch: str, inline_limit: int) -> Commit:
    """Reads a commit to its end, then applies it: a connection that breaks leaves nothing behind."""
    with tempfile.TemporaryFile(dir=store.root / "tmp") as spool:
        async for chunk in body_chunks(request, COMMIT_LIMIT):
            await run_in_threadpool(spool.write, chunk)
        spool.seek(0)
        return await run_in_threadpool(_apply_commit, spool, store, repo, branch, inline_limit)


def _apply_commit(spool: IO[bytes], store: Store, repo: Repo, branch: str, inline_limit: int) -> Commit:
    header: wire.Header | None = None
    changes: list[Change] = []
    uploads: list[Upload] = []
    with ExitStack() as stack:
        for line in _lines(spool, inline_limit * 4 // 3 + 65536):
            match wire.commit_line(line):
                case wire.Header() as header_line:
                    if header is not None:
                        raise Refusal(400, "a commit must have one header line, got two")
                    header = header_line
                case wire.RegularFile(path, content):
                    upload = stack.enter_context(store.blobs.upload())
                    upload.write(content)
                    upload.sync()
                    uploads.append(upload)
                    oid = trees.git_id("blob", content)
                    changes.append(repo.put(path, trees.regular(upload.sha256, upload.size, oid)))
                case wire.LfsFile(path, sha256, size):
                    changes.append(repo.put(path, trees.large(sha256, _uploaded_size(store, path, sha256, size))))
                case wire.Deletion(path, folder):
                    changes.append(repo.delete_folder(path) if folder else repo.delete_file(path))
        if header is None:
            raise Refusal(400, "a commit must have a header line, got none")
        return repo.commit(branch, changes, uploads, title=header.title, message=header.message, parent=header.parent)


def _lines(spool: IO[bytes], limit: int) -> Iterator[bytes]:
    while line := spool.readline(limit + 1):
        if len(line) > limit:
            raise Refusal(413, f"a line of a commit must be at most {limit} bytes; upload large files through LFS")
        if line.strip():
            yield line


def _uploaded_size(store: Store, path: str, sha256: str, size: int | None) -> int:
    found = store.blobs.size(sha256)
    if found is None:
        raise Refusal(400, f"{path} names the blob {sha256}, which was not uploaded")
    if size is not None and size != found:
        raise Refusal(400, f"{path}: the blob {sha256} has {found} bytes, the commit says {size}")
    return found


async def send_file(request: Request, store: Store, entry: trees.Entry, path: str, commit: Commit) -> Response:
    """A file of a commit, hashed before its first byte leaves: 200, 206, 304 or 416."""
    content = await run_in_threadpool(store.blobs.content, entry.sha256, entry.size, path)
    try:
        headers = _file_headers(entry, path, commit)
        etag = headers["ETag"]
        if etag in [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]:
            content.close()
            return Response(status_code=304, headers=headers)
        wanted = request.headers.get("range") if request.headers.get("if-range", etag) == etag else None
        start, stop = _range(wanted, entry.size)
    except BaseException:
        content.close()
        raise
    status = 200 if wanted is None or (start, stop) == (0, entry.size) else 206
    return _file_response(request.method, content, headers, status, start, stop)


def _file_response(
    method: str, content: Content, headers: dict[str, str], status: int, start: int, stop: int
) -> Response:
    headers["Content-Length"] = str(stop - start)
    if status == 206:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{content.size}"
    if method == "HEAD":
        content.close()
        return Response(status_code=status, headers=headers)
    return StreamingResponse(content.chunks(start, stop), status_code=status, headers=headers)


def _file_headers(entry: trees.Entry, path: str, commit: Commit) -> dict[str, str]:
    headers = {
        "ETag": f'"{entry.etag}"',
        "X-Repo-Commit": commit.id,
        "Accept-Ranges": "bytes",
        "Cache-Control": "no-cache",
        "Content-Type": "application/octet-stream",
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(path.rpartition('/')[2])}",
        "X-Content-Type-Options": "nosniff",
    }
    if entry.lfs:
        headers |= {"X-Linked-Etag": f'"{entry.sha256}"', "X-Linked-Size": str(entry.size)}
    return headers


def _range(header: str | None, size: int) -> tuple[int, int]:
    """The bytes ``start:stop`` a Range header asks for; all without one, or for the forms a server may ignore."""
    match = _RANGE.fullmatch(header.replace(" ", "")) if header else None
    if match is None or match[0] == "bytes=-":
        return 0, size
    first, last = match[1], match[2]
    start = int(first) if first else max(size - int(last), 0)
    stop = min(int(last) + 1, size) if first and last else size
    if start >= size or (first and last and int(last) < int(first)):
        raise Refusal(416, f"range {header!a} must lie within the {size} bytes", size=size)
    return start, stop
