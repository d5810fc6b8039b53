"""The official builder, with a stand-in for nix: what it is asked, what is taken from it, how its absence is worded."""

from __future__ import annotations

from pathlib import Path

import pytest

from bundle import build, buildfile, variant
from bundle.builders import nix
from bundle.errors import BuildError, ToolchainError

X86 = "torch-stable-abi211-cpu-x86_64-linux"

NIX = """#!/bin/sh
echo "$@" >> {asked}
case "$*" in
  *"flake metadata"*) exit 0 ;;
  *" build "*)
    mkdir -p {store} && echo '{{}}' > {store}/metadata.json && chmod -R a-w {store}
    while [ "$1" != --out-link ]; do shift; done
    ln -sfn {result} "$2" ;;
esac
"""


@pytest.fixture
def asked(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A nix on PATH that writes down what it is asked and builds an empty variant; the path of its notes."""
    (checkout / "flake.nix").write_text("{}")
    bin_directory, notes, result = tmp_path / "bin", tmp_path / "asked", tmp_path / "store"
    bin_directory.mkdir()
    script = bin_directory / "nix"
    script.write_text(NIX.format(asked=notes, store=result / X86, result=result))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_directory}:/usr/bin:/bin")
    return notes


def test_the_variant_is_taken_from_the_store(checkout: Path, asked: Path, tmp_path: Path) -> None:
    source, name = buildfile.read(checkout), variant.parse(X86)
    target = build.build_with_nix(source, name, out=tmp_path / "out", scratch=tmp_path / "scratch")
    assert target == tmp_path / "out" / X86
    assert (target / "metadata.json").read_text() == "{}\n"
    (target / "metadata.json").write_text("writable")
    assert f"{checkout}#redistributable.{X86}" in asked.read_text()


def test_a_build_without_result(checkout: Path, asked: Path, tmp_path: Path) -> None:
    (tmp_path / "bin" / "nix").write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(BuildError, match="holds no variant"):
        nix.build(buildfile.read(checkout), variant.parse(X86), tmp_path)


def test_no_network(checkout: Path, asked: Path, tmp_path: Path) -> None:
    words = "warning: dirty tree\\nerror: unable to download github.com/huggingface/kernels\\n  more"
    (tmp_path / "bin" / "nix").write_text(f"#!/bin/sh\nprintf '{words}' >&2\nexit 1\n")
    with pytest.raises(ToolchainError, match="nix cannot read the flake: unable to download github") as caught:
        nix.require(checkout)
    assert "needs the network" in str(caught.value.hint)


def test_no_nix(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match="nix not found"):
        nix.require(checkout)


def test_no_flake(checkout: Path, asked: Path) -> None:
    (checkout / "flake.nix").unlink()
    with pytest.raises(ToolchainError, match=r"has no flake\.nix"):
        nix.require(checkout)
