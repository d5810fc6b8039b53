"""The demo as a person runs it, with few steps."""

from __future__ import annotations

import subprocess
import sys

from bundle.options import REPOSITORY


def test_the_demo_holds_its_claims() -> None:
    command = [sys.executable, "-m", "bundle", "demo", "--root", str(REPOSITORY), "--steps", "3"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for words in ("Every claim held", "LEAK", "error (1)", "padfree.enable(model)", "3 steps of transformers.Trainer"):
        assert words in result.stderr
