"""install_as_packages(): the original packages' names lead to this bundle, or it says why they cannot."""

import os
import subprocess
import sys

import pytest

LOAD = """
import sys, torch, kernels
padfree = kernels.get_kernel("padfree/padfree-flash2", version=1, backend="cpu")
"""

TRANSFORMERS_USES_IT = """
names = padfree.install_as_packages()
assert names == ["causal_conv1d", "causal_conv1d.causal_conv1d_interface"], names
assert padfree.install_as_packages() == names
import causal_conv1d, importlib.util
from causal_conv1d.causal_conv1d_interface import causal_conv1d_fn
assert causal_conv1d.causal_conv1d_fn is causal_conv1d_fn is padfree.causal_conv1d_fn
assert importlib.util.find_spec("causal_conv1d") is not None
x, weight = torch.randn(1, 8, 5), torch.randn(8, 4)
seq_idx = torch.tensor([[0, 0, 1, 1, 1]], dtype=torch.int32)
wanted = padfree.causal_conv1d_fn(x, weight, seq_idx=seq_idx, activation="silu")
assert torch.equal(causal_conv1d_fn(x, weight, None, seq_idx, activation="silu"), wanted)  # seq_idx is fourth
from transformers.models.lfm2 import modeling_lfm2
got = modeling_lfm2.causal_conv1d_fn(x, weight, None, activation="silu", seq_idx=seq_idx, use_cache=False)
assert torch.equal(got, wanted)
"""

TOO_LATE = """
from transformers.models.lfm2 import modeling_lfm2
try:
    padfree.install_as_packages()
except RuntimeError as error:
    assert "must come before transformers imports transformers.models.lfm2.modeling_lfm2" in str(error), error
else:
    raise SystemExit("must raise")
assert "causal_conv1d" not in sys.modules
"""

TAKEN = """
import types
sys.modules["causal_conv1d"] = types.ModuleType("causal_conv1d")
sys.modules["causal_conv1d"].__file__ = "/elsewhere"
try:
    padfree.install_as_packages()
except RuntimeError as error:
    assert "causal_conv1d must not be installed, got /elsewhere" in str(error), error
else:
    raise SystemExit("must raise")
"""


@pytest.mark.parametrize("code", [TRANSFORMERS_USES_IT, TOO_LATE, TAKEN], ids=["used", "too late", "taken"])
def test_install_as_packages(padfree, code):
    """In a process of its own: it changes what every later import finds."""
    if code is not TAKEN:
        pytest.importorskip("transformers")
    done = subprocess.run(
        [sys.executable, "-c", LOAD + code], env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
