"""``python keep_words.py FILE COMMAND...``: run COMMAND; what it writes to standard error also lies in FILE, beside the
object file it belongs to. So ptxas's resource report survives builds that compile only what changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main(notes: str, *command: str) -> int:
    """The exit code of the command."""
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    sys.stderr.write(result.stderr)
    if result.returncode == 0:
        Path(notes).write_text(result.stderr, encoding="utf-8")
    return result.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
