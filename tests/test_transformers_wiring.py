"""enable() and disable(): what they replace, what they prove, what they give back."""

import copy
import gc
import importlib
import os
import re
import subprocess
import sys

import pytest
import torch
from tiny_models import build, pack, run_packed, samples

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("one_thread")
REPO_ID = "padfree/padfree-flash2"


NAMES = ("causal_conv1d_fn", "causal_conv1d_update")


def _functions():
    """The function modules that Lfm2's convolution layers call."""
    module = importlib.import_module("transformers.models.lfm2.modeling_lfm2")
    return [getattr(module, name) for name in NAMES]


def _forwards():
    return [vars(function).get("forward") for function in _functions()]


def _replaced(padfree):
    layers = [getattr(padfree.layers, name) for name in NAMES]
    return [getattr(got, "__func__", None) is layer.forward for got, layer in zip(_forwards(), layers, strict=True)]


@pytest.fixture
def lfm2(padfree):
    model = build("lfm2")
    yield model
    padfree.disable(model)


def test_layers_have_the_shape_kernels_demands(padfree):
    """A subclass of Module without constructor or members, with transformers' parameters."""
    import inspect

    for function in _functions():
        layer = getattr(padfree.layers, type(function).kernel_layer_name)
        assert layer.__init__ is torch.nn.Module.__init__
        assert layer.can_torch_compile
        assert layer.has_backward
        wanted = inspect.signature(type(function).forward).parameters
        got = inspect.signature(layer.forward).parameters
        assert [(p.name, p.kind, p.default) for p in got.values()] == [
            (p.name, p.kind, p.default) for p in wanted.values()
        ]


def test_a_decoding_step_has_gradients(padfree):
    """The step's kernel has none of its own; state and output are those of inference."""
    weight = torch.randn(6, 4, requires_grad=True)
    x, state = torch.randn(2, 6, 1), torch.randn(2, 6, 4)
    step = padfree.layers.causal_conv1d_update().forward
    moved, kept = state.clone(), state.clone()
    out = step(x, moved, weight, None, "silu")
    with torch.no_grad():
        assert torch.equal(step(x, kept, weight, None, "silu"), out)
    assert torch.equal(moved, kept)
    out.sum().backward()
    taps = torch.cat([state, x], -1)[:, :, -4:].double()
    exact = weight.detach().double().requires_grad_()
    torch.nn.functional.silu((taps * exact).sum(-1)).sum().backward()
    assert (weight.grad - exact.grad).abs().max() <= 64 * torch.finfo(torch.float32).eps * exact.grad.abs().max()


def test_enable_replaces_and_disable_restores_to_identity(padfree, lfm2):
    before, environment = _forwards(), os.environ["LOCAL_KERNELS"]
    attention, kernels = lfm2.config._attn_implementation, (lfm2.kernel_config, lfm2.use_kernels)
    own = {name: vars(module).get("forward") for name, module in lfm2.named_modules()}
    report = padfree.enable(lfm2)
    assert set(report.wired) == {"attention", *NAMES}
    assert report.not_wired == {}
    assert _replaced(padfree) == [True, True]
    assert lfm2.config._attn_implementation == REPO_ID
    padfree.disable(lfm2)
    for got, wanted in zip(_forwards(), before, strict=True):
        assert got is wanted
    assert own == {name: vars(module).get("forward") for name, module in lfm2.named_modules()}
    assert lfm2.config._attn_implementation == attention
    assert (lfm2.kernel_config, lfm2.use_kernels) == kernels
    assert os.environ["LOCAL_KERNELS"] == environment
    assert not lfm2._forward_pre_hooks
    assert not lfm2._forward_hooks


def test_twice_is_once(padfree, lfm2):
    before = _forwards()
    first, second = padfree.enable(lfm2), padfree.enable(lfm2)
    assert first == second
    assert len(lfm2._forward_pre_hooks) == len(lfm2._forward_hooks) == 1
    padfree.disable(lfm2)
    padfree.disable(lfm2)
    assert _forwards() == before


def test_survives_train_and_eval(padfree, lfm2):
    padfree.enable(lfm2)
    for _ in range(2):
        lfm2.eval()
        assert _replaced(padfree) == [True, True]
        lfm2.train()
        assert _replaced(padfree) == [True, True]


def test_a_model_shares_the_functions_until_the_last_is_disabled(padfree, lfm2):
    before, other = _forwards(), build("lfm2")
    padfree.enable(lfm2)
    padfree.enable(other)
    padfree.disable(lfm2)
    assert _replaced(padfree) == [True, True]
    padfree.disable(other)
    assert _forwards() == before


def test_a_model_that_is_gone_counts_no_more(padfree, lfm2):
    before, other = _forwards(), build("lfm2")
    padfree.enable(lfm2)
    padfree.enable(other)
    del other
    gc.collect()
    padfree.disable(lfm2)
    assert _forwards() == before


def test_two_families_in_one_process(padfree, lfm2):
    llama, rows = build("llama"), samples()
    padfree.enable(llama)
    padfree.enable(lfm2)
    alone = run_packed(lfm2, rows)[0]
    run_packed(llama, rows)
    assert torch.equal(run_packed(lfm2, rows)[0], alone)
    padfree.disable(llama)
    assert torch.equal(run_packed(lfm2, rows)[0], alone)


def test_what_another_model_takes_back_is_taken_again(padfree, lfm2):
    """`use_kernels` of an unwired model resets the shared functions to what transformers maps on this device."""
    rows = samples()
    padfree.enable(lfm2)
    alone, other = run_packed(lfm2, rows)[0], build("lfm2")
    transformers.integrations.hub_kernels.kernelize(other)
    assert _replaced(padfree) == [False, False]
    assert torch.equal(run_packed(lfm2, rows)[0], alone)
    assert _replaced(padfree) == [True, True]


def test_a_deep_copy_can_be_wired_and_given_back(padfree, lfm2):
    """Its modules list copies of the functions, which nothing calls."""
    before = _forwards()
    padfree.enable(lfm2)
    twin, rows = copy.deepcopy(lfm2), samples()
    assert torch.equal(run_packed(twin, rows)[0], run_packed(lfm2, rows)[0])
    padfree.disable(lfm2)
    padfree.enable(twin)
    assert _replaced(padfree) == [True, True]
    padfree.disable(twin)
    assert _forwards() == before


def test_a_wrapped_model(padfree, lfm2):
    wrapper = torch.nn.Sequential(lfm2)
    padfree.enable(wrapper)
    assert _replaced(padfree) == [True, True]
    padfree.disable(wrapper)
    assert _replaced(padfree) == [False, False]


def test_keeps_the_kernels_a_model_had(padfree, lfm2):
    config = transformers.KernelConfig({"RMSNorm": {}}, inherit_mapping=False)
    lfm2.kernel_config = config
    lfm2._use_kernels = True
    padfree.enable(lfm2)
    assert set(lfm2.kernel_config.kernel_mapping) >= {"RMSNorm", "causal_conv1d_fn"}
    padfree.disable(lfm2)
    assert lfm2.kernel_config is config


def test_failure_leaves_the_model_as_it_was(padfree, lfm2, monkeypatch):
    before = _forwards()
    hub_kernels = transformers.integrations.hub_kernels
    monkeypatch.setattr(hub_kernels, "kernelize", lambda model: None)  # as an upstream fallback: silently nothing
    with pytest.raises(RuntimeError, match="must be replaced now, got torch code of transformers"):
        padfree.enable(lfm2)
    assert _forwards() == before
    assert lfm2.config._attn_implementation == "eager"
    assert not lfm2._forward_pre_hooks


def test_refuses_what_is_no_model(padfree):
    with pytest.raises(TypeError, match=re.escape("model must be or hold a transformers PreTrainedModel, got Linear")):
        padfree.enable(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="got str"):
        padfree.enable("llama")


def test_refuses_another_device(padfree):
    if padfree.report(build("llama")).splitlines()[1].find("-cpu-") < 0:
        pytest.skip("only the CPU variant is bound to the CPU")
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(build("llama").config)
    with pytest.raises(ValueError, match=r"model must be on cpu, the backend of this variant, got meta$"):
        padfree.enable(model)


def test_a_variant_for_cuda_says_what_to_load_for_a_model_on_the_cpu(padfree, lfm2, monkeypatch):
    integrity = sys.modules[f"{padfree.__name__}.integrity"]
    cuda = {**integrity.metadata(), "backend": {"type": "cuda", "archs": ["8.0"]}}
    monkeypatch.setattr(integrity, "metadata", lambda: cuda)
    text = (
        "enable: model must be on cuda, the backend of this variant, got cpu (backend='cpu' of get_kernel is for that)"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        padfree.enable(lfm2)


def test_says_when_the_versions_were_not_tested(padfree, lfm2, monkeypatch):
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "9.9.9")  # transformers renews its entry
    with pytest.warns(UserWarning, match=re.escape("tested with transformers 5.22.2 with kernels 0.17.2, got")):
        padfree.enable(lfm2)
    assert "9.9.9" in padfree.report(lfm2)


def test_attention_by_repository_id(padfree):
    """Without enable(): the id resolves through LOCAL_KERNELS, here and in set_attn_implementation."""
    rows = samples()
    named, wired = build("llama", attention=REPO_ID), build("llama")
    padfree.enable(wired)
    try:
        wanted = run_packed(wired, rows)[0]
        assert torch.equal(run_packed(named, rows)[0], wanted)
        late = build("llama")
        late.set_attn_implementation(REPO_ID)
        assert torch.equal(run_packed(late, rows)[0], wanted)
    finally:
        padfree.disable(wired)


def test_back_flash_attention(padfree):
    fallback = dict(transformers.modeling_flash_attention_utils.FLASH_ATTN_KERNEL_FALLBACK)
    environment = os.environ["LOCAL_KERNELS"]
    padfree.back_flash_attention()
    padfree.back_flash_attention()
    try:
        for name in ("flash_attention_2", "flash_attention_3"):
            model = build("llama")
            model.set_attn_implementation(name)
            assert model.config._attn_implementation == REPO_ID
            assert model(**pack(samples())).logits.isfinite().all()
    finally:
        padfree.back_flash_attention(False)
    assert fallback == transformers.modeling_flash_attention_utils.FLASH_ATTN_KERNEL_FALLBACK
    assert os.environ["LOCAL_KERNELS"] == environment


def test_save_and_load(padfree, lfm2, tmp_path):
    rows = samples()
    padfree.enable(lfm2)
    wanted = run_packed(lfm2, rows)[0]
    lfm2.save_pretrained(tmp_path)
    assert "padfree" not in (tmp_path / "config.json").read_text()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config._attn_implementation != REPO_ID
    padfree.enable(loaded)
    assert torch.equal(run_packed(loaded, rows)[0], wanted)
    padfree.disable(loaded)


def test_report_names_what_an_issue_needs(padfree, lfm2):
    assert "enable() was not called" in padfree.report(lfm2)
    assert "torch code of transformers" in padfree.report(lfm2)
    padfree.enable(lfm2)
    lfm2(**pack(samples()))
    text = padfree.report(lfm2)
    for part in (
        f"id {padfree.__name__}, version 1",
        f"CPU path {padfree.isa()}",
        f"torch {torch.__version__}",
        f"transformers {transformers.__version__}",
        "Lfm2ForCausalLM, torch.float32 on cpu",
        f"attention: padfree as {REPO_ID}",
        "2 x causal_conv1d_fn: padfree",
        "last batch: tokens (1, 35)",
        "seq_idx (1, 35)",
        "cu_seq_lens_q (6,)",
        "max_length_q 17",
    ):
        assert part in text, part
    assert repr(text) == str(text)


OFFLINE = """
import kernels, torch, transformers
padfree = kernels.get_kernel("padfree/padfree-flash2", version=1, backend="cpu")
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2))
padfree.enable(model)
model.set_attn_implementation("sdpa")
model.set_attn_implementation("padfree/padfree-flash2")
assert model(input_ids=torch.arange(5)[None]).logits.isfinite().all()
"""

RELATIVE_PATH = """
import os, pathlib, kernels, torch, transformers
folder = pathlib.Path(os.environ.pop("LOCAL_KERNELS").partition("=")[2])
os.chdir(folder.parent)
padfree = kernels.get_local_kernel(pathlib.Path(folder.name), backend="cpu")
os.chdir("/")
model = transformers.Lfm2ForCausalLM(transformers.Lfm2Config(
    vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=2, layer_types=["conv", "full_attention"]))
report = padfree.enable(model)
assert set(report.wired) == {"attention", "causal_conv1d_fn", "causal_conv1d_update"}, report
assert model(input_ids=torch.arange(5)[None]).logits.isfinite().all()
padfree.disable(model)
assert "LOCAL_KERNELS" not in os.environ
"""

PLAIN_FUNCTIONS = """
import kernels, transformers
padfree = kernels.get_kernel("padfree/padfree-flash2", version=1, backend="cpu")
model = transformers.Lfm2ForCausalLM(transformers.Lfm2Config(
    vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, layer_types=["conv"]))
try:
    padfree.enable(model)
except RuntimeError as error:
    assert "causal_conv1d_fn, causal_conv1d_update must be replaceable" in str(error), error
else:
    raise SystemExit("enable() must raise")
"""


@pytest.mark.parametrize(
    ("code", "environment"),
    [
        pytest.param(OFFLINE, {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}, id="offline"),
        pytest.param(RELATIVE_PATH, {"HF_HUB_OFFLINE": "1"}, id="relative path, then chdir"),
        pytest.param(PLAIN_FUNCTIONS, {"USE_HUB_KERNELS": "NO"}, id="USE_HUB_KERNELS off"),
    ],
)
def test_in_a_fresh_process(padfree, code, environment):
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
