"""install_as_packages(): the original packages' names lead to this bundle, or it says why they cannot."""

import os
import subprocess
import sys
from pathlib import Path

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
import causal_conv1d, flash_attn_interface, mamba_ssm
padfree.install_as_packages(active=False)
assert not {"causal_conv1d", "flash_attn", "flash_attn_interface", "mamba_ssm"} & set(sys.modules)
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
assert not {"causal_conv1d", "fla", "flash_attn", "mamba_ssm"} & set(sys.modules)
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
assert not {"causal_conv1d", "fla", "flash_attn"} & set(sys.modules), "all or none"
sys.modules["flash_attn"] = types.ModuleType("flash_attn")  # a stub, as tests and model code make: no file, no spec
try:
    padfree.install_as_packages(["flash_attn"])
except RuntimeError as error:
    assert "flash_attn must not be installed, got a module without a file" in str(error), error
else:
    raise SystemExit("must raise")
del sys.modules["flash_attn"]
padfree.install_as_packages(["causal_conv1d", "fla"])
try:
    padfree.install_as_packages(["xformers"])
except ValueError as error:
    wanted = "packages must be of causal_conv1d, fla, flash_attn, flash_attn_interface, mamba_ssm, got xformers"
    assert wanted in str(error), error
else:
    raise SystemExit("must raise")
try:
    padfree.install_as_packages("fla")
except TypeError as error:
    assert str(error) == "install_as_packages: packages must be a sequence of names, got 'fla'", error
else:
    raise SystemExit("must raise")
padfree.install_as_packages(name for name in ("flash_attn", "flash_attn"))
assert [type(finder).__name__ for finder in sys.meta_path].count("_Absent") == 3, sys.meta_path
import flash_attn
"""

FLASH_ATTN = """
names = padfree.install_as_packages(["flash_attn", "flash_attn_interface"])
assert all(name.startswith("flash_attn") for name in names), names
import flash_attn_user as user, torch.nn.functional as F
from tolerance import assert_near, assert_same_bits
assert user.rms_norm is None, "not attention: code that asks falls back"
assert user.flash_attn_3_func is padfree.flash_attention_3.flash_attn_func

def plain(module, x, mask):  # the same by sdpa, padding hidden by a mask, rotary written out
    q, k, v = (t.transpose(1, 2) for t in module.split(module.qkv(x)))
    half = module.head_dim // 2
    angle = torch.arange(x.shape[1])[:, None] / 10000.0 ** (torch.arange(half) / half)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    position = (mask.cumsum(1) - 1).clamp(min=0)
    cos, sin = cos[position][:, None], sin[position][:, None]
    q, k = (torch.cat([t[..., :half] * cos - t[..., half:] * sin, t[..., half:] * cos + t[..., :half] * sin], -1)
            for t in (q, k))
    visible = mask[:, None, None, :].bool() & torch.ones(x.shape[1], x.shape[1]).tril().bool()
    visible = visible | torch.eye(x.shape[1]).bool()  # a padded row sees itself, so that nothing is NaN
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)
    return module.out(out.transpose(1, 2).flatten(-2)) * mask[..., None]

torch.manual_seed(0)
module = user.Attention(64, 4, 2)
double = user.Attention(64, 4, 2).double()
double.load_state_dict(module.state_dict())
mask = torch.tensor([[1] * 33, [0] * 9 + [1] * 24, [1] * 17 + [0] * 16, [0] * 32 + [1]])
x, back = torch.randn(4, 33, 64), torch.randn(4, 33, 64)

def run(module, forward):
    leaves = [x.to(module.out.weight.dtype).requires_grad_(), *module.parameters()]
    out = forward(module, leaves[0], mask)
    return out.detach(), *torch.autograd.grad(out, leaves, back.to(out.dtype))

results = run(module, user.Attention.forward), run(double, plain), run(module, plain)
for got, wanted, eager in zip(*results):
    assert_near(got, wanted, eager)
assert_near(module(x[:1]), results[1][0][:1], results[2][0][:1], "without padding")

# decoding with the cache: 20 tokens at once, then one by one
cache = torch.zeros(2, 1, 40, 2, 16)
steps = [module.decode(x[:1, :20], cache, 0)]
for i in range(20, 33):
    steps.append(module.decode(x[:1, i : i + 1], cache, torch.tensor([i], dtype=torch.int32)))
assert_near(torch.cat(steps, 1), results[1][0][:1], results[2][0][:1], "decoding")

qkv = torch.randn(4, 33, 3, 2, 16)
out, first = user.encode(qkv, mask)
def encoded(qkv):
    out = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), attn_mask=mask[:, None, None, :].bool())
    return out.transpose(1, 2) * mask[..., None, None]
assert_near(out, encoded(qkv.double()), encoded(qkv), "encoder")
assert_same_bits(first, torch.stack([row[m.bool()][0] for row, m in zip(out, mask)]), "first tokens")

q = torch.randn(9, 2, 16).requires_grad_()
cos, sin = (t[:9] for t in module.tables(9, q))
ends = torch.tensor([0, 4, 9], dtype=torch.int32)
given = cos, sin, ends, 5
turned = user.TurnUnpadded.apply(q, *given), user.apply_rotary_emb(q, cos, sin, cu_seqlens=ends, max_seqlen=5)
assert_same_bits(*turned)
assert_same_bits(*(torch.autograd.grad(t.square().sum(), q)[0] for t in turned))
"""

PROBED = """
import importlib.util
padfree.install_as_packages()
import flash_attn, flash_attn_interface
assert flash_attn.__version__ == "2.8.3", flash_attn.__version__
assert flash_attn.flash_attn_func is padfree.flash_attn_func
assert flash_attn_interface.flash_attn_func is padfree.flash_attention_3.flash_attn_func
for name in ("flash_attn.cute", "flash_attn.modules", "fla.modules"):
    assert importlib.util.find_spec(name) is None, "a question is no import"
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert f"{name} is not in padfree-flash2" in str(error), error
        assert error.name == name and ", flash_attn_interface" not in str(error), error
    else:
        raise SystemExit(f"{name} must raise")
assert importlib.util.find_spec("flash_attn.bert_padding") is not None
"""

TRANSFORMERS = """
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils import is_flash_attn_2_available, is_flash_attn_3_available, is_flash_attn_4_available

def attempt(implementation):
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                         num_attention_heads=4, num_key_value_heads=2)
    try:
        model = AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    except ImportError as error:
        return str(error)
    return model(torch.arange(6)[None]).logits.detach()

def installed():
    return is_flash_attn_2_available() or is_flash_attn_3_available() or is_flash_attn_4_available()

flash = "flash_attention_2", "flash_attention_3"
before = [attempt(name) for name in flash]
assert not installed() and all("doesn't seem to be installed" in words for words in before), before
padfree.install_as_packages()
for cached in (is_flash_attn_2_available, is_flash_attn_3_available, is_flash_attn_4_available):
    cached.cache_clear()
assert not installed(), "transformers counts distributions, not modules"
assert [attempt(name) for name in flash] == before
wanted = attempt("sdpa")
for active in (True, False):
    padfree.back_flash_attention(active)
    for name, words in zip(flash, before):
        got = attempt(name)
        assert got == words if not active else torch.allclose(got, wanted, atol=1e-5), (name, got)
"""

CODES = {
    "flash_attn": FLASH_ATTN,
    "flash_attn, probed": PROBED,
    "flash_attn beside transformers": TRANSFORMERS,
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
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]
    done = subprocess.run(
        [sys.executable, "-c", LOAD + CODES[case]],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
