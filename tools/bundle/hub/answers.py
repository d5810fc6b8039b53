"""Error answers: the sentence in the body and in ``X-Error-Message`` (a HEAD has no body), the code clients go by."""

from __future__ import annotations

import errno

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from .refusal import DamagedError, Refusal

_OTHER_TYPES = ("/api/models/", "/api/datasets/", "/api/spaces/")


def error(status: int, message: str, code: str | None = None, **body: object) -> Response:
    """An answer from which both a person and the clients' exceptions get the sentence."""
    text = " ".join(message.split())
    headers = {"X-Error-Message": text.encode("ascii", "backslashreplace").decode()[:1000]}
    if code:
        headers["X-Error-Code"] = code
    return JSONResponse({"error": text, **body}, status_code=status, headers=headers)


async def explain(request: Request, cause: Exception) -> Response:
    """The answer to a failure the Hub foresees; any other is raised on: a bare 500, and a trace in the log."""
    match cause:
        case Refusal():
            return _refused(cause)
        case DamagedError():
            return error(500, f"{cause.message}. {cause.hint}")
        case HTTPException():
            return _unrouted(request, cause)
        case ClientDisconnect():
            return Response(status_code=400)  # nobody is there to read it
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return error(507, "the disk of the store is full: nothing of this upload was kept")
        case _:
            raise cause


HANDLED = (Refusal, DamagedError, HTTPException, ClientDisconnect, OSError)


def _refused(refusal: Refusal) -> Response:
    answer = error(refusal.status, refusal.message, refusal.code, **refusal.extra)
    if "commit" in refusal.extra:
        answer.headers["X-Repo-Commit"] = str(refusal.extra["commit"])
    if refusal.status == 416:
        answer.headers["Content-Range"] = f"bytes */{refusal.extra['size']}"
    return answer


def _unrouted(request: Request, cause: HTTPException) -> Response:
    """No such route. A client that looks for another kind of repository learns that there is none, as it expects to."""
    path = request.scope["path"]
    elsewhere = path.startswith(_OTHER_TYPES) or "/resolve/" in path
    code = "RepoNotFound" if cause.status_code == 404 and elsewhere else None
    sentence = f"{request.method} {path}: {cause.detail} (docs/hub.md lists what this Hub serves)"
    return error(cause.status_code, sentence, code)
