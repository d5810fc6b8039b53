"""The documents say what the tree says: links lead somewhere, names and versions are the real ones."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bundle import __main__ as command_line
from bundle import buildfile
from bundle.options import REPOSITORY

DOCUMENTS = sorted(
    REPOSITORY / name
    for name in subprocess.run(
        ["git", "ls-files", "*.md"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.split()
)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def names(path: Path) -> str:
    """How a document is called in a test's name."""
    return path.relative_to(REPOSITORY).as_posix()


def pins() -> dict[str, str]:
    """Package to version, as runtime.txt pins them."""
    lines = (REPOSITORY / "tools/requirements/runtime.txt").read_text(encoding="utf-8").splitlines()
    rows = (line.split("#")[0].strip().partition("==") for line in lines)
    return {name: version for name, _, version in rows if version}


@pytest.mark.parametrize("path", DOCUMENTS, ids=names)
def test_links_lead_somewhere(path: Path) -> None:
    missing = [link for link in LINK.findall(path.read_text(encoding="utf-8")) if not (path.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("path", DOCUMENTS, ids=names)
def test_driver_verbs_exist(path: Path) -> None:
    called = re.findall(r"python -m\s+bundle ([a-z]+)", path.read_text(encoding="utf-8"))
    assert set(called) <= set(command_line.VERBS)


@pytest.mark.parametrize("path", DOCUMENTS, ids=names)
def test_make_targets_exist(path: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    called = re.findall(r"(?:`|^)make ([a-z]+)\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(called) <= targets


def test_paths_of_the_architecture_exist() -> None:
    text = (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", text, re.MULTILINE)
    paths = [path for row in rows for path in re.findall(r"`([^`]+)`", row) if "<" not in path]
    assert len(paths) > 15
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []


def test_versions_of_the_readme_are_the_pinned_ones() -> None:
    row = re.search(r"^\| transformers with kernels \| (\S+) with (\S+) ", README, re.MULTILINE)
    assert row is not None
    assert row.groups() == (pins()["transformers"], pins()["kernels"])
    assert f"| huggingface_hub | {pins()['huggingface-hub']} |" in README
    assert f"| torch | {pins()['torch']};" in README


def test_the_bundle_names_the_pinned_pair_as_tested() -> None:
    report = REPOSITORY / "torch-ext/padfree_flash2/report.py"
    tested = re.search(r"^TESTED = (\{.*\})$", report.read_text(encoding="utf-8"), re.MULTILINE)
    assert tested is not None
    assert ast.literal_eval(tested[1]) == {name: pins()[name] for name in ("transformers", "kernels")}


def test_the_readme_names_the_real_repository_and_version() -> None:
    build = buildfile.read(REPOSITORY)
    assert f'get_kernel("{build.repository}", version={build.version}, trust_remote_code=True)' in README


def test_python_of_the_readme_is_python_and_short() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    for block in blocks:
        ast.parse(block)
    assert len(blocks[0].strip().splitlines()) <= 12


def test_commands_of_the_readme_have_the_options_they_are_given() -> None:
    for words in re.findall(r"python -m\s+bundle ([a-z]+ [^`\n]*)", README):
        verb, *rest = shlex.split(words, comments=True)
        shown = subprocess.run(
            [sys.executable, "-m", "bundle", verb, "--help"], capture_output=True, text=True, check=True
        )
        for option in (word for word in rest if word.startswith("--")):
            assert option in shown.stdout
