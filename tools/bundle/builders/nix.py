"""Builds a variant the official way: kernel-builder's flake through nix, in its own toolchain, from the network.

The result is a finished variant with kernel-builder's own metadata.json.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from bundle import process
from bundle.buildfile import BuildFile
from bundle.errors import BuildError, ToolchainError
from bundle.variant import Variant

NIX = ("nix", "--extra-experimental-features", "nix-command flakes")


def build(source: BuildFile, name: Variant, scratch: Path) -> Path:
    """Build ``name`` from the flake of the checkout; the directory, read-only in the nix store, that holds it."""
    require(source.root)
    result, log = scratch / "nix-result", scratch / "nix.log"
    log.write_text("", encoding="utf-8")
    target = f"{source.root}#redistributable.{name}"
    command = [*NIX, "build", "--accept-flake-config", "--print-build-logs", "--out-link", str(result), target]
    process.run(command, what="nix build", log=log, cwd=source.root)
    for directory in (result / str(name), result):
        if (directory / "metadata.json").is_file():
            return directory
    raise BuildError(f"nix built {target}, but {result} holds no variant", hint=f"The whole output is in {log}.")


def require(root: Path) -> None:
    """ToolchainError with the reason when nix is missing or cannot fetch what flake.nix needs."""
    if shutil.which("nix") is None:
        raise ToolchainError(
            "nix not found", hint="Install it from https://nixos.org/download, or build without --builder."
        )
    if not (root / "flake.nix").is_file():
        raise ToolchainError(f"{root} has no flake.nix")
    asked = subprocess.run([*NIX, "flake", "metadata", str(root)], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        reason = next((line for line in asked.stderr.splitlines() if line.startswith("error:")), asked.stderr.strip())
        raise ToolchainError(
            f"nix cannot read the flake: {reason.removeprefix('error:').strip()}",
            hint="The official build needs the network; `--builder cmake` does not.",
        )
