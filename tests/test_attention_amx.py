"""Handing plain 16-bit attention to torch's op, for the CPU's matrix unit (AMX); forced here, since the choice is made
once, when the bundle is loaded."""

import pytest
from restart import LOAD, python


def test_plain_calls_are_handed_over():
    ended = python("-m", "pytest", "-q", "attention_in_amx.py", PADFREE_AMX="1")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "skipped" not in ended.stdout


@pytest.mark.parametrize("value", ["2", "yes", " "])
def test_a_wrong_setting_stops_the_load(value):
    ended = python("-c", LOAD, PADFREE_AMX=value)
    assert ended.returncode == 1
    assert f"PADFREE_AMX must be 0, 1 or unset, got {value}" in ended.stderr
