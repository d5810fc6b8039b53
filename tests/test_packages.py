"""install_as_packages(): the original packages' names lead to this bundle, or it says why they cannot."""

import os
import subprocess
import sys

import pytest

LOAD = """
import sys, torch, kernels
padfree = kernels.get_kernel("padfree/padfree-flash2", version=1, backend="cpu")
"""

CAUSAL_CONV1D = """
names = padfree.install_as_packages()
assert set(names) > {"causal_conv1d", "causal_conv1d.causal_conv1d_interface", "fla.ops.kda", "mamba_ssm"}, names
assert padfree.install_as_packages() == names
import causal_conv1d, importlib.util
from causal_conv1d.causal_conv1d_interface import causal_conv1d_fn
from causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states
assert causal_conv1d.causal_conv1d_fn is causal_conv1d_fn is padfree.causal_conv1d_fn
assert causal_conv1d_varlen_states is padfree.causal_conv1d_varlen_states
assert importlib.util.find_spec("causal_conv1d") is not None
x, weight = torch.randn(1, 8, 5), torch.randn(8, 4)
seq_idx = torch.tensor([[0, 0, 1, 1, 1]], dtype=torch.int32)
wanted = padfree.causal_conv1d_fn(x, weight, seq_idx=seq_idx, activation="silu")
assert torch.equal(causal_conv1d_fn(x, weight, None, seq_idx, activation="silu"), wanted)  # seq_idx is fourth
from transformers.models.lfm2 import modeling_lfm2
got = modeling_lfm2.causal_conv1d_fn(x, weight, None, activation="silu", seq_idx=seq_idx, use_cache=False)
assert torch.equal(got, wanted)
"""

FLA = """
padfree.install_as_packages(["fla"])
from fla.ops import chunk_gated_delta_rule
from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule
from fla.ops.gated_delta_rule.chunk import chunk_gated_delta_rule as same
from fla.ops.kda import chunk_kda, fused_recurrent_kda
assert chunk_gated_delta_rule is same is padfree.chunk_gated_delta_rule
assert chunk_kda is padfree.chunk_kda
from transformers.models.qwen3_next import modeling_qwen3_next as qwen
q, k, v = (torch.randn(1, 5, 2, 8) for _ in range(3))
gates = {"g": -torch.rand(1, 5, 2), "beta": torch.rand(1, 5, 2)}
cu_seqlens = torch.tensor([0, 2, 5], dtype=torch.int32)
wanted, _ = padfree.chunk_gated_delta_rule(q, k, v, **gates, cu_seqlens=cu_seqlens)
got, _ = qwen.torch_chunk_gated_delta_rule(q, k, v, **gates, cu_seqlens=cu_seqlens, use_cache=False)
assert torch.equal(got, wanted)
"""

ABSENT = """
padfree.install_as_packages()
import fla.ops, mamba_ssm
from mamba_ssm.ops.selective_scan_interface import mamba_inner_fn, selective_scan_fn
from mamba_ssm.ops.triton.selective_state_update import selective_state_update
from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined, mamba_split_conv1d_scan_combined
assert mamba_ssm.selective_scan_fn is selective_scan_fn is padfree.selective_scan_fn
assert mamba_inner_fn is padfree.mamba_inner_fn and selective_state_update is padfree.selective_state_update
assert mamba_chunk_scan_combined is padfree.mamba_chunk_scan_combined
assert mamba_split_conv1d_scan_combined is padfree.mamba_split_conv1d_scan_combined
for name in ("fla.modules", "fla.ops.kda.gate", "fla.layers.kda", "mamba_ssm.ops.triton.layernorm_gated"):
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        absent = ".".join(name.split(".")[:2]) if "layers" in name else name
        wanted = f"{absent} is not in padfree-flash2 ({padfree.__name__}), which serves {name.split('.')[0]}"
        assert wanted in str(error), error
    else:
        raise SystemExit(f"{name} must raise")
try:
    from fla.ops import chunk_gla
except ImportError as error:
    assert "chunk_gla" in str(error) and "'fla.ops'" in str(error) and padfree.__file__ in str(error), error
else:
    raise SystemExit("chunk_gla must raise")
"""

TAKEN_AWAY = """
padfree.install_as_packages()
import fla.ops.kda
assert padfree.install_as_packages(["fla"], active=False) == []
assert not any(name.partition(".")[0] == "fla" for name in sys.modules)
try:
    import fla
except ModuleNotFoundError as error:
    assert str(error) == "No module named 'fla'", error
else:
    raise SystemExit("must raise")
import causal_conv1d, mamba_ssm
padfree.install_as_packages(active=False)
assert not {"causal_conv1d", "mamba_ssm"} & set(sys.modules)
assert not any(type(finder).__module__.startswith(padfree.__name__) for finder in sys.meta_path)
"""

TOO_LATE = """
from transformers.models.lfm2 import modeling_lfm2
try:
    padfree.install_as_packages()
except RuntimeError as error:
    assert "must come before transformers imports transformers.models.lfm2.modeling_lfm2" in str(error), error
else:
    raise SystemExit("must raise")
assert not {"causal_conv1d", "fla", "mamba_ssm"} & set(sys.modules)
padfree.install_as_packages(["fla"])  # no modelling file asked for it
"""

TAKEN = """
import types
sys.modules["mamba_ssm"] = types.ModuleType("mamba_ssm")
sys.modules["mamba_ssm"].__file__ = "/elsewhere"
try:
    padfree.install_as_packages()
except RuntimeError as error:
    assert "mamba_ssm must not be installed, got /elsewhere" in str(error), error
else:
    raise SystemExit("must raise")
assert not {"causal_conv1d", "fla"} & set(sys.modules), "all or none"
padfree.install_as_packages(["causal_conv1d", "fla"])
try:
    padfree.install_as_packages(["flash_attn"])
except ValueError as error:
    assert "packages must be of causal_conv1d, fla, mamba_ssm, got flash_attn" in str(error), error
else:
    raise SystemExit("must raise")
"""

CODES = {
    "causal_conv1d": CAUSAL_CONV1D,
    "fla": FLA,
    "mamba_ssm, and what is absent": ABSENT,
    "taken away": TAKEN_AWAY,
    "too late": TOO_LATE,
    "taken": TAKEN,
}


@pytest.mark.parametrize("case", CODES)
def test_install_as_packages(padfree, case):
    """In a process of its own: it changes what every later import finds."""
    if "transformers" in CODES[case]:
        pytest.importorskip("transformers")
    done = subprocess.run(
        [sys.executable, "-c", LOAD + CODES[case]], env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
