"""The JSON these clients send and expect, turned into plain values and back; 400 for everything else."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import yaml  # type: ignore[import-untyped]  # huggingface_hub brings it

from . import names, trees
from .refusal import Refusal
from .store import Commit, Repo

_PARENT = re.compile(r"[0-9a-f]{5,40}")


@dataclass(frozen=True)
class Header:
    """The first line of a commit."""

    title: str
    message: str
    parent: str | None


@dataclass(frozen=True)
class RegularFile:
    path: str
    content: bytes


@dataclass(frozen=True)
class LfsFile:
    path: str
    sha256: str
    size: int | None


@dataclass(frozen=True)
class Deletion:
    path: str
    folder: bool


Line = Header | RegularFile | LfsFile | Deletion


def parsed(data: bytes | bytearray) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"body must be JSON ({type(error).__name__})") from None
    if not isinstance(value, dict):
        raise Refusal(400, f"body must be a JSON object, got {names.shown(value)}")
    return value


def text(body: dict[str, Any], key: str, default: str | None = None, limit: int = 65536) -> str:
    """The string ``body[key]``."""
    value = body.get(key, default)
    if not isinstance(value, str) or len(value) > limit:
        raise Refusal(400, f"{key} must be a string of at most {limit} characters, got {names.shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refusal(400, f"{key} must be valid Unicode, got {names.shown(value)}") from None
    return value


def objects(body: dict[str, Any], key: str, limit: int) -> list[dict[str, Any]]:
    """The list of objects ``body[key]``."""
    value = body.get(key)
    if not isinstance(value, list) or len(value) > limit or not all(isinstance(item, dict) for item in value):
        raise Refusal(400, f"{key} must be a list of at most {limit} objects")
    return value


def commit_line(data: bytes) -> Line:
    """One line of the body of ``POST …/commit/<branch>``."""
    line = parsed(data)
    value = line.get("value")
    if not isinstance(value, dict):
        raise Refusal(400, f"value must be an object on each line of a commit, got {names.shown(value)}")
    match line.get("key"):
        case "header":
            return _header(value)
        case "file":
            return RegularFile(names.file_path(value.get("path")), _file_content(value))
        case "lfsFile":
            if value.get("algo", "sha256") != "sha256":
                raise Refusal(400, f"algo must be sha256, got {names.shown(value.get('algo'))}")
            size = None if value.get("size") is None else names.size(value["size"])
            return LfsFile(names.file_path(value.get("path")), names.sha256(value.get("oid")), size)
        case "deletedFile":
            return Deletion(names.file_path(value.get("path")), folder=False)
        case "deletedFolder":
            return Deletion(names.folder_path(value.get("path")), folder=True)
        case other:
            raise Refusal(
                400, f"key must be one of header, file, lfsFile, deletedFile, deletedFolder, got {names.shown(other)}"
            )


def _header(value: dict[str, Any]) -> Header:
    parent = value.get("parentCommit")
    if parent is not None and not (isinstance(parent, str) and _PARENT.fullmatch(parent.lower())):
        raise Refusal(400, f"parentCommit must be a commit id, got {names.shown(parent)}")
    title = text(value, "summary")
    return Header(title, text(value, "description", ""), None if parent is None else parent.lower())


def _file_content(value: dict[str, Any]) -> bytes:
    content, encoding = value.get("content"), value.get("encoding", "utf-8")
    if not isinstance(content, str) or encoding not in ("base64", "utf-8"):
        raise Refusal(400, f"content must be a string in base64 or utf-8, got encoding {names.shown(encoding)}")
    try:
        return base64.b64decode(content, validate=True) if encoding == "base64" else content.encode()
    except (binascii.Error, ValueError) as error:
        raise Refusal(400, f"content of {names.shown(value.get('path'))} must be {encoding}: {error}") from None


def form(data: bytes, content_type: str) -> dict[str, list[str]]:
    """A body as ``paths-info`` sends it: a form, or JSON with the same names."""
    if "json" in content_type:
        body = parsed(data)
        return {
            key: [str(item) for item in (value if isinstance(value, list) else [value])] for key, value in body.items()
        }
    try:
        return parse_qs(data.decode("ascii"), strict_parsing=bool(data), errors="strict", max_num_fields=2048)
    except ValueError:
        raise Refusal(400, "body must be an encoded form of at most 2048 fields") from None


def metadata_errors(content: str) -> tuple[list[str], list[str]]:
    """What is wrong with a card's YAML header: (errors, warnings)."""
    head = re.match(r"\ufeff?---[ \t]*\r?\n(.*?)\n---[ \t]*\r?(?:\n|$)", content, re.DOTALL)
    if head is None:
        return [], ["empty or missing yaml metadata in repo card"]
    try:
        node = yaml.compose(head[1], Loader=yaml.SafeLoader)  # building values would let merge keys grow without bound
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        return [f"the yaml metadata does not parse: {error}"], []
    if node is None:
        return [], ["empty or missing yaml metadata in repo card"]
    return ([] if isinstance(node, yaml.MappingNode) else ["the yaml metadata must be a mapping"]), []


def path_info(
    path: str, tree: trees.Tree, folders: dict[str, str], changes: dict[str, Commit] | None = None
) -> dict[str, object]:
    """One row of ``tree`` and ``paths-info``: a file, or a folder with its git id."""
    entry = tree.get(path)
    info: dict[str, object]
    if entry is None:
        info = {"type": "directory", "oid": folders[path], "size": 0, "path": path}
    else:
        info = {"type": "file", "oid": entry.oid, "size": entry.size, "path": path}
        if entry.lfs:
            pointer = trees.lfs_pointer(entry.sha256, entry.size)
            info["lfs"] = {"oid": entry.sha256, "size": entry.size, "pointerSize": len(pointer)}
    if changes is not None:
        inside = [path] if entry is not None else trees.below(tree, path)
        last = max((changes[name] for name in inside), key=lambda commit: commit.date)
        info["lastCommit"] = {"id": last.id, "title": last.title, "date": last.date}
    return info


def repo_info(repo: Repo, commit: Commit, paths: Iterable[str]) -> dict[str, object]:
    return {
        "id": repo.id,
        "author": repo.org,
        "sha": commit.id,
        "lastModified": commit.date,
        "private": False,
        "gated": False,
        "downloads": 0,
        "likes": 0,
        "siblings": [{"rfilename": path} for path in sorted(paths)],
    }


def commit_info(commit: Commit, author: str) -> dict[str, object]:
    return {
        "id": commit.id,
        "title": commit.title,
        "message": commit.message,
        "date": commit.date,
        "authors": [{"user": author}],
    }
