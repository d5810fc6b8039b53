"""``bundle toolchain cuXYZ``: fetch the CUDA toolkit of an accelerator from the package registry, into .bundle/.

The packages are pinned by version and by hash (tools/requirements/<accelerator>.txt). They hold the compiler, the
runtime and headers: enough to build, on a machine without a GPU and without installing anything system-wide. CUDA 12
has no compiler front end there, so its variants come from the official (Nix) build.
"""

from __future__ import annotations

import argparse
import shutil
import sys

from bundle import cuda, options, process
from bundle.errors import ToolchainError, UsageError

REQUIREMENTS = options.REPOSITORY / "tools" / "requirements"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of the verb."""
    parser.add_argument(
        "--root", type=options.directory, default=options.REPOSITORY, metavar="DIR", help="the checkout it is for"
    )
    parser.add_argument("accelerator", help=f"one of {', '.join(known())}")


def known() -> tuple[str, ...]:
    """The accelerators whose toolkit the registry has."""
    return tuple(sorted(path.stem for path in REQUIREMENTS.glob("cu*.txt")))


def run(args: argparse.Namespace) -> int:
    """Install it once; whole, or not there."""
    if args.accelerator not in known():
        raise UsageError(
            f"a toolchain of the registry ({', '.join(known())}) is wanted, got {args.accelerator}",
            hint="Variants of other CUDA versions come from `build --builder nix`.",
        )
    target = cuda.toolchain_directory(args.accelerator, args.root)
    if target.is_dir():
        process.say(f"{args.accelerator}: already in {target}")
        return 0
    target.parent.mkdir(parents=True, exist_ok=True)
    partial, log = target.with_name(f".{target.name}.partial"), target.with_suffix(".log")
    shutil.rmtree(partial, ignore_errors=True)
    log.write_text("", encoding="utf-8")
    pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--no-input", "--require-hashes", "--target")
    process.run((*pip, str(partial), "-r", str(REQUIREMENTS / f"{args.accelerator}.txt")), what="pip", log=log)
    if not any(partial.glob("nvidia/cu*/bin/nvcc")):
        raise ToolchainError(f"{partial} holds no nvcc", hint=f"pip's output is in {log}.")
    partial.rename(target)
    process.say(f"{args.accelerator}: in {target}", style="green")
    return 0
