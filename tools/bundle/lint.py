"""``bundle lint``: the checks that read the sources only."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from bundle import options, parts
from bundle.errors import ToolchainError
from bundle.parts import Part

CXX_PATTERNS = ("*.h", "*.cpp", "*.cuh", "*.cu")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of the verb."""
    parser.add_argument(
        "--root", type=options.directory, default=options.REPOSITORY, metavar="DIR", help="the checkout to read"
    )
    parser.add_argument(
        "--fix", action="store_true", help="rewrite what can be mended: ruff's fixes, both formats, tables"
    )


def run(args: argparse.Namespace) -> int:
    """Run every linter."""
    parts.conclude("lint", [parts.run(part) for part in linters(args.root, fix=args.fix)])
    return 0


def linters(root: Path, *, fix: bool = False) -> tuple[Part, ...]:
    """ruff and its format, clang-format over every C++ file, mypy over the driver, tables that rest on tests."""
    python = sys.executable
    cxx = cxx_files(root)
    ruff = (python, "-m", "ruff")
    return (
        Part("ruff", (*ruff, "check", *(("--fix",) if fix else ()), "."), root),
        Part("ruff format", (*ruff, "format", *(() if fix else ("--check",)), "."), root),
        Part("clang-format", (clang_format(), *(("-i",) if fix else ("--dry-run", "-Werror")), *cxx), root),
        Part("mypy", (python, "-m", "mypy"), root / "tools"),
        Part(
            "tables",
            (python, "-m", "bundle", "tables", *(("--write",) if fix else ()), "--root", str(root)),
            root / "tools",
        ),
    )


def clang_format() -> str:
    """The clang-format that pip installed beside this Python: another version formats otherwise."""
    program = Path(sys.executable).with_name("clang-format")
    if not program.is_file():
        raise ToolchainError(f"{program} not found", hint="`make lint` installs tools/requirements/dev.txt first.")
    return str(program)


def cxx_files(root: Path) -> tuple[str, ...]:
    """Every C++ and CUDA file that git tracks or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *CXX_PATTERNS],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    names = [name for name in listed.stdout.split("\0") if name and (root / name).is_file()]
    if listed.returncode != 0 or not names:
        raise ToolchainError(f"git lists no C++ file in {root}: {listed.stderr.strip()}", hint="Lint runs in a clone.")
    return tuple(names)
