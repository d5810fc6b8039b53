"""This interpreter once more, for settings that are read once, when the bundle is loaded."""

import os
import subprocess
import sys
from pathlib import Path

LOAD = "import kernels; kernels.get_kernel('padfree/padfree-flash2', version=1, backend='cpu')"


def python(*command, **settings):
    """``python *command`` in the directory of the tests, with ``settings`` in its environment; what became of it."""
    environment = {**os.environ, **settings}
    return subprocess.run(
        [sys.executable, *command], cwd=Path(__file__).parent, env=environment, capture_output=True, text=True
    )
