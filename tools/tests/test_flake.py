"""flake.nix parses, and hands kernel-builder the arguments it takes: evaluated by nix against a stand-in for it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from bundle.builders import nix
from bundle.options import REPOSITORY

FLAKE = REPOSITORY / "flake.nix"
pytestmark = pytest.mark.skipif(
    shutil.which("nix-instantiate") is None, reason="nix is not installed (Debian, Ubuntu: apt-get install nix-bin)"
)

# Names and defaults of kernel-builder's own function; Nix refuses any other name and a missing one without default.
STAND_IN = """
{
  outputs = { self }: {
    lib.genKernelFlakeOutputs =
      {
        self,
        path,
        doGetKernelCheck ? true,
        pythonCheckInputs ? (pkgs: [ ]),
        pythonNativeCheckInputs ? (pkgs: [ ]),
        torchVersions ? (versions: versions),
      }:
      {
        seen = {
          name = (builtins.fromTOML (builtins.readFile (path + "/build.toml"))).general.name;
          self = self ? outPath;
        };
      };
  };
}
"""


def evaluate(flake: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """What ``flake`` gives when kernel-builder is the stand-in."""
    ours, builder = tmp_path / "ours", tmp_path / "kernel-builder"
    ours.mkdir()
    builder.mkdir()
    (ours / "flake.nix").write_text(flake, encoding="utf-8")
    shutil.copy(REPOSITORY / "build.toml", ours)
    (builder / "flake.nix").write_text(STAND_IN, encoding="utf-8")
    command = [*nix.NIX, "eval", "--json", "--no-write-lock-file", f"path:{ours}#seen"]
    command += ["--override-input", "kernel-builder", f"path:{builder}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_it_parses() -> None:
    result = subprocess.run(["nix-instantiate", "--parse", str(FLAKE)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_it_hands_over_the_checkout(tmp_path: Path) -> None:
    result = evaluate(FLAKE.read_text(encoding="utf-8"), tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {"name": "padfree-flash2", "self": True}


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ("path = ./.;", "", "path"),
        ("path = ./.;", "path = ./.; pythonChecks = [ ];", "pythonChecks"),
        ("genKernelFlakeOutputs", "genFlakeOutputs", "genFlakeOutputs"),
    ],
)
def test_a_mistake_would_be_found(tmp_path: Path, right: str, wrong: str, complaint: str) -> None:
    text = FLAKE.read_text(encoding="utf-8")
    assert right in text
    result = evaluate(text.replace(right, wrong), tmp_path)
    assert result.returncode != 0
    assert complaint in result.stderr


def test_the_builder_is_of_the_tested_kernels_version() -> None:
    requirements = (REPOSITORY / "tools/requirements/runtime.txt").read_text(encoding="utf-8")
    version = next(line.split()[0] for line in requirements.splitlines() if line.startswith("kernels=="))
    assert f"huggingface/kernels/v{version.removeprefix('kernels==')}" in FLAKE.read_text(encoding="utf-8")
