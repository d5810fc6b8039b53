"""What a repository, a branch, a file and a hash may be called. Everything that comes from a request passes here first.

A file path of a repository never becomes a path on the server's disk (content is stored under its hash), but it does
become one on the machine of everyone who downloads it, so what could leave a folder there is refused here.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from .refusal import Refusal

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
_BRANCH_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_-])?")
_SHA1 = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")
_DRIVE = re.compile(r"[A-Za-z]:")

MAX_PATH = 1024
MAX_COMPONENT = 255


def decoded(segment: str) -> str:
    """One path segment of a URL, percent-decoded exactly once; 400 when it is not UTF-8."""
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise Refusal(400, f"the URL part {segment!r} must be percent-encoded UTF-8") from None


def name(text: object, what: str) -> str:
    """The name of an organisation or a repository."""
    if not isinstance(text, str) or not _NAME.fullmatch(text) or ".." in text or "--" in text or text.endswith(".git"):
        raise Refusal(400, f"{what} must be letters, digits, '-', '_' and '.' (at most 96), got {shown(text)}")
    return text


def branch(text: object) -> str:
    """A branch name, by the stricter half of git's rules."""
    parts = text.split("/") if isinstance(text, str) and len(text) <= 128 else []
    bad = not parts or any(not _BRANCH_PART.fullmatch(part) or ".." in part or part.endswith(".lock") for part in parts)
    if bad or parts[0] == "refs" or _SHA1.fullmatch(parts[0]):
        raise Refusal(400, f"branch must be a plain git branch name, got {shown(text)}")
    return "/".join(parts)


def file_path(text: object) -> str:
    """The path of a file inside a repository: relative, no empty, ``.``, ``..`` or ``.git`` part, nothing a disk reads
    in its own way."""
    if not isinstance(text, str) or not text or len(text) > MAX_PATH or _CONTROL.search(text) or _DRIVE.match(text):
        raise Refusal(400, f"path must be a relative path of at most {MAX_PATH} characters, got {shown(text)}")
    for part in text.split("/"):
        if part in ("", ".", "..") or part.lower() == ".git" or len(_utf8(part)) > MAX_COMPONENT:
            raise Refusal(400, f"path must not contain the part {shown(part)}, got {shown(text)}")
    return text


def folder_path(text: object) -> str:
    """The path of a folder: as a file's, with or without a slash at its end."""
    return file_path(text.removesuffix("/") if isinstance(text, str) else text)


def sha256(text: object) -> str:
    if not isinstance(text, str) or not _SHA256.fullmatch(text):
        raise Refusal(400, f"oid must be a SHA-256 in 64 lower-case hex digits, got {shown(text)}")
    return text


def is_commit(text: str) -> bool:
    """Whether ``text`` is spelled like a whole commit id."""
    return _SHA1.fullmatch(text) is not None


def size(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 53:
        raise Refusal(400, f"size must be a whole number of bytes, got {shown(value)}")
    return value


def shown(value: object) -> str:
    """A value as it may appear in an error: quoted, printable, short."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise Refusal(400, f"path must be valid Unicode, got {shown(text)}") from None
