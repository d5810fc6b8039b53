"""Which build this is, where it was loaded from, and whether its files are still the ones that were built."""

import base64
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import NamedTuple, Optional

_PACKAGE = __name__.rpartition(".")[0]

# What a digest cannot or need not cover; the same list as the one of `kernels-data`.
_NOT_HASHED = ("metadata.json", "metadata.json.sigstore")


class Origin(NamedTuple):
    """Where the loaded variant came from: its folder, and repository and revision if `kernels` fetched it."""

    path: Path
    repo_id: Optional[str]
    revision: Optional[str]


def origin() -> Origin:
    """The folder under which `kernels` knows this package.

    It is asked rather than taken from ``__file__``: loading a variant by another path than the one it is known by would
    run the package, and register its ops, a second time. One loaded by a relative path is made known by its absolute
    one, since the relative path leads elsewhere after a ``chdir``.
    """
    known = getattr(sys.modules.get("kernels.importer"), "_loaded_kernels", {})
    found = [(path, loaded) for path, loaded in known.items() if loaded.module is sys.modules[_PACKAGE]]
    if not found:
        return Origin(Path(__file__).parent, None, None)
    path, loaded = found[0]
    if not path.is_absolute():
        path = Path(__file__).parent
        known[path] = loaded
    info = loaded.repo_info
    return Origin(path, getattr(info, "repo_id", None), getattr(info, "revision", None))


def metadata() -> dict:
    """The variant's ``metadata.json``."""
    return json.loads((Path(__file__).parent / "metadata.json").read_text(encoding="utf-8"))


def digest(folder: Path, algorithm: str) -> dict:
    """Base64 hash of every file below ``folder`` by its relative path, as ``kernels_data.Digest.hash_variant``.

    Compiled Python files and the two metadata files are left out, linked folders are not followed.
    """
    files = {}
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            path = Path(root, name)
            key = path.relative_to(folder).as_posix()
            if key not in _NOT_HASHED and not key.endswith(".pyc"):
                files[key] = base64.b64encode(_hash(path, algorithm)).decode("ascii")
    return files


def _hash(path: Path, algorithm: str) -> bytes:
    state = hashlib.new(algorithm)
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            state.update(block)
    return state.digest()


def verify() -> str:
    """Check every file of the loaded variant against the digest in its ``metadata.json``.

    The digest is not a signature: it tells a truncated or altered file, not a publisher.

    Returns:
        One line: how many files are the ones that were built.

    Raises:
        RuntimeError: a file is missing, altered or unknown (the text names each), or the variant carries no digest.
    """
    folder = Path(__file__).parent
    expected = metadata().get("digest")
    if expected is None:
        raise RuntimeError(f"verify: {folder / 'metadata.json'} must carry a digest, got none")
    actual = digest(folder, expected["algorithm"])
    wanted = expected["files"]
    faults = [f"missing: {name}" for name in sorted(wanted.keys() - actual.keys())]
    faults += [f"unknown: {name}" for name in sorted(actual.keys() - wanted.keys())]
    faults += [f"altered: {name}" for name in sorted(wanted.keys() & actual.keys()) if wanted[name] != actual[name]]
    if faults:
        raise RuntimeError(f"verify: {folder.name} must be as it was built, got " + "; ".join(faults))
    return f"{folder.name}: {len(wanted)} files as built ({expected['algorithm']})"
