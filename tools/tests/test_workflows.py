"""The GitHub workflows fit GitHub's schema and call verbs that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from bundle import __main__ as command_line
from bundle.options import REPOSITORY

WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*.yml"))
SCHEMA = "vendor.github-workflows"
VERB = re.compile(r"tools/bootstrap\.py (\w+)((?: [^\n)]+)?)")


def load(path: Path) -> Any:
    """The workflow as data."""
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


def check(*files: Path) -> subprocess.CompletedProcess[str]:
    """check-jsonschema with the schema it ships."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMA, *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_all_three_are_there() -> None:
    assert [path.name for path in WORKFLOWS] == ["build.yml", "ci.yml", "release.yml"]


def test_schema_holds() -> None:
    result = check(*WORKFLOWS)
    assert result.returncode == 0, result.stdout + result.stderr


def test_schema_would_find_a_mistake(tmp_path: Path) -> None:
    spoilt = tmp_path / "ci.yml"
    spoilt.write_text(WORKFLOWS[1].read_text().replace("runs-on:", "runs-at:"), encoding="utf-8")
    assert check(spoilt).returncode != 0


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_verbs_and_their_options_exist(path: Path) -> None:
    calls = VERB.findall(path.read_text(encoding="utf-8"))
    assert calls or path.name == "ci.yml", "ci.yml calls make and .ci/run"
    for verb, words in calls:
        assert verb in command_line.VERBS
        options = set(re.findall(r"--[a-z-]+", words))
        shown = subprocess.run(
            [sys.executable, "-m", "bundle", verb, "--help"], capture_output=True, text=True, check=True
        )
        assert options <= set(re.findall(r"--[a-z-]+", shown.stdout))


def test_matrix_comes_from_the_plan() -> None:
    jobs = load(REPOSITORY / ".github/workflows/build.yml")["jobs"]
    assert jobs["build"]["strategy"]["matrix"] == "${{ fromJSON(needs.plan.outputs.matrix) }}"
    assert "plan --json" in jobs["plan"]["steps"][-1]["run"]


def test_release_publishes_only_what_was_built_and_checked() -> None:
    jobs = load(REPOSITORY / ".github/workflows/release.yml")["jobs"]
    assert jobs["build"]["uses"] == "./.github/workflows/build.yml"
    assert jobs["publish"]["needs"] == "build"


def test_make_knows_every_verb_it_names() -> None:
    called = re.findall(r"\$\(BUNDLE\) (\w+)", (REPOSITORY / "Makefile").read_text(encoding="utf-8"))
    assert called
    assert set(called) <= set(command_line.VERBS)
