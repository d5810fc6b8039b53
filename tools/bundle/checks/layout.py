"""The files of a variant: what must be there, what must not, and that their digest is the recorded one."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import kernels_data

from bundle.checks import Skipped, Subject

PYTHON_SYNTAX = (3, 9)
"""The oldest Python the bundle loads in."""

REQUIRED = ("__init__.py", "_ops.py", "metadata.json")
_SOURCE_PATH = re.compile(rb"(?<![\w.])/(?:[\w.+-]+/)+[\w.+-]+\.(?:h|hpp|cpp|cuh?)\b")
_SHIPPED_SUFFIXES = frozenset({".py", ".pyi", ".json", ".so"})
_IMPORTABLE = frozenset({*sys.stdlib_module_names, "torch"})


def layout(target: Subject) -> Iterator[str]:
    """One library named by the id, the package's Python files and metadata.json; nothing else."""
    directory, metadata = target.directory, target.metadata
    for name in (*REQUIRED, target.library.name):
        if not (directory / name).is_file():
            yield f"{name} is missing"
    if str(metadata.backend.backend_type) != target.variant.backend:
        yield f"metadata.json says backend {metadata.backend.backend_type}, the directory {target.variant.backend}"
    prefix = f"_{metadata.name.python_name}_{target.variant.backend}_"
    if not target.id.startswith(prefix):
        yield f"id must start with {prefix}, got {target.id}"
    for path in sorted(directory.rglob("*")):
        yield from _stray(target, path)
        if path.suffix == ".py":
            yield from python_rules(path, path.relative_to(directory).as_posix())


def _stray(target: Subject, path: Path) -> Iterator[str]:
    name = path.relative_to(target.directory).as_posix()
    if path.is_symlink() and target.build is not None:  # a downloaded one is made of links into the client's cache
        yield f"{name} is a link"
    elif path.is_symlink() and not path.exists():
        yield f"{name} is a link to nothing"
    elif "__pycache__" in path.parts:
        return  # Python writes it when the variant is loaded; publishing leaves it out
    elif path.is_file() and (path.suffix not in _SHIPPED_SUFFIXES or (path.suffix == ".so" and path != target.library)):
        yield f"{name} does not belong in a variant"


def python_rules(path: Path, name: str) -> Iterator[str]:
    """Python 3.9 syntax; at import time only relative imports, torch and the standard library."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), name, feature_version=PYTHON_SYNTAX)
    except SyntaxError as error:
        yield f"{name}:{error.lineno}: not Python {PYTHON_SYNTAX[0]}.{PYTHON_SYNTAX[1]}: {error.msg}"
        return
    for line, module in imports_at_load(tree):
        if module.split(".")[0] not in _IMPORTABLE:
            yield f"{name}:{line}: imports {module} when loaded; only torch and the standard library may be"


def imports_at_load(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, module) of every absolute import that runs when the module is imported: those outside functions."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            waiting.extend(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def paths(target: Subject) -> Iterator[str]:
    """The library names no source file by a path of the machine that built it (the nix store's are everyone's)."""
    for path in sorted(set(_SOURCE_PATH.findall(target.library.read_bytes()))):
        if not path.startswith(b"/nix/store/"):
            yield f"{target.library.name} holds the path {path.decode(errors='replace')}"


def digest(target: Subject) -> Iterator[str]:
    """Every file has the hash that metadata.json records, and no file is unrecorded."""
    recorded = target.metadata.digest
    if recorded is None:
        raise Skipped("metadata.json records no digest")
    try:
        recorded.validate(kernels_data.Digest.hash_variant(kernels_data.DigestAlgorithm.SHA256, target.directory))
    except kernels_data.DigestValidationError as error:
        yield from (str(violation) for violation in error.violations)
