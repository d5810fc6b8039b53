"""The Python blocks of the README run as they stand, one after the other, on the bundle built from this checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from bundle import buildfile, matrix, options, testing
from bundle.build import build_variant


def test_blocks_of_the_readme_run() -> None:
    build = buildfile.read(options.REPOSITORY)
    out = options.REPOSITORY / "build"
    (name,) = matrix.select(build, [testing.CPU_VARIANTS])
    build_variant(build, name, out=out, scratch=options.REPOSITORY / ".bundle")
    text = (options.REPOSITORY / "README.md").read_text(encoding="utf-8")
    program = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    environment = {**os.environ, "LOCAL_KERNELS": testing.local_kernels(build.repository, out), "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "padfree-flash2 report" in result.stdout
    assert "files as built" in result.stdout
