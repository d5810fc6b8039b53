"""What the Hub answers when it does not do what was asked: a status, the clients' error code, a sentence."""

from __future__ import annotations

from bundle.errors import HubError


class Refusal(Exception):
    """A request that is answered with an error. ``code`` is the ``X-Error-Code`` clients turn into an exception."""

    def __init__(self, status: int, message: str, *, code: str | None = None, **extra: object) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.extra = extra


class DamagedError(HubError):
    """A file of the store is not what it was when it was written: the answer is a 500 that names it."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message, hint="Publish the file again: an upload with the right content replaces the damaged one."
        )


def repo_not_found(repo_id: str) -> Refusal:
    return Refusal(404, f"kernel repository {repo_id} does not exist on this Hub", code="RepoNotFound")


def revision_not_found(repo_id: str, revision: str) -> Refusal:
    return Refusal(404, f"{repo_id} has no revision {revision}", code="RevisionNotFound")


def entry_not_found(repo_id: str, path: str) -> Refusal:
    return Refusal(404, f"{repo_id} has no file or folder {path} at this revision", code="EntryNotFound")
