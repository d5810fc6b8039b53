"""Handing plain 16-bit attention to torch's op, for the CPU's matrix unit (AMX); forced here, since the choice is made
once, when the bundle is loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run(*command, amx):
    environment = {**os.environ, "PADFREE_AMX": amx}
    return subprocess.run([sys.executable, *command], cwd=HERE, env=environment, capture_output=True, text=True)


def test_plain_calls_are_handed_over():
    ended = run("-m", "pytest", "-q", "attention_in_amx.py", amx="1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "skipped" not in ended.stdout


@pytest.mark.parametrize("value", ["2", "yes", " "])
def test_a_wrong_setting_stops_the_load(value):
    code = "import kernels; kernels.get_kernel('padfree/padfree-flash2', version=1, backend='cpu')"
    ended = run("-c", code, amx=value)
    assert ended.returncode == 1
    assert f"PADFREE_AMX must be 0, 1 or unset, got {value}" in ended.stderr
