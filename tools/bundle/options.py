"""Command-line options that several verbs share, so that each means the same everywhere."""

from __future__ import annotations

import argparse
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
"""The checkout that this driver belongs to."""


def directory(text: str) -> Path:
    """An absolute path, so that it means the same to every program that is started."""
    return Path(text).expanduser().resolve()


def add_common(parser: argparse.ArgumentParser) -> None:
    """``--root`` and ``--only``."""
    parser.add_argument(
        "--root", type=directory, default=REPOSITORY, metavar="DIR", help="the checkout (default: this one)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="GLOB",
        help="only variants whose name matches, as in '*cpu*'; may be repeated",
    )


def add_out(parser: argparse.ArgumentParser) -> None:
    """``--out`` and ``--scratch``; resolve them with :func:`places`."""
    parser.add_argument("--out", type=directory, metavar="DIR", help="where variants lie (default: ROOT/build)")
    parser.add_argument("--scratch", type=directory, metavar="DIR", help="work directory (default: ROOT/.bundle)")


def places(args: argparse.Namespace) -> tuple[Path, Path]:
    """The directories of ``--out`` and ``--scratch``."""
    return args.out or args.root / "build", args.scratch or args.root / ".bundle"
