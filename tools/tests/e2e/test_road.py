"""The demo as a person runs it, with few steps."""

from __future__ import annotations

import subprocess
import sys

from bundle.options import REPOSITORY


def test_the_demo_holds_its_claims() -> None:
    command = [sys.executable, "-m", "bundle", "demo", "--root", str(REPOSITORY), "--steps", "3"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    trained = [f"{name}: 3 steps of transformers.Trainer" for name in ("Llama", "Lfm2", "Qwen3.5")]
    for words in ("Every claim held", "LEAK", "error (1)", "padfree.enable(model)", *trained):
        assert words in result.stderr
