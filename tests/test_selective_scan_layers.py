"""The `layers` classes for both Mambas against the torch code of transformers, called as its models do."""

import inspect
import sys

import pytest
import reference
import torch
from cases import randn
from test_mamba_inner import RANK
from test_mamba_inner import inputs as inner_inputs
from tolerance import assert_close, assert_same_bits

mamba = pytest.importorskip("transformers.models.mamba.modeling_mamba")
mamba2 = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")

LAYERS = {
    "selective_scan_fn": (mamba, "mamba_selective_scan"),
    "mamba_inner_fn": (mamba, "mamba_inner_fn"),
    "selective_state_update": (mamba2, "mamba2_selective_state_update"),
}


def tokens(*shape, seed):
    """Channel-last, as the mixers' transposed projections are."""
    batch, channels, length = shape
    return randn(batch, length, channels, seed=seed).transpose(1, 2)


@pytest.mark.parametrize("name", LAYERS)
def test_signature_is_that_of_transformers(padfree, name):
    modeling, function = LAYERS[name]
    ours = inspect.signature(getattr(padfree.layers, name).forward).parameters
    theirs = inspect.signature(type(getattr(modeling, function)).forward).parameters
    assert [(p.name, p.kind) for p in ours.values()] == [(p.name, p.kind) for p in theirs.values()]


@pytest.mark.parametrize("last_state", [False, True])
def test_selective_scan(padfree, last_state):
    u, dt, z = (tokens(2, 24, 33, seed=s) for s in range(3))
    B, C = (tokens(2, 16, 33, seed=s) for s in (3, 4))
    A, D, bias = -randn(24, 16, seed=5).abs(), randn(24, seed=6), randn(24, seed=7) - 2
    options = {"D": D, "z": z, "delta_bias": bias, "delta_softplus": True, "return_last_state": last_state}
    ways = {"use_mambapy": False, "use_associative_scan": True}
    got = padfree.layers.selective_scan_fn().forward(u, dt, A, B, C, **options, **ways)
    theirs = mamba.mamba_selective_scan(u, dt, A, B, C, **options)
    named = {n: x for n, x in options.items() if n != "return_last_state"}
    oracle = reference.selective_scan(u, dt, A, B, C, **named)
    wanted = [oracle["out"], oracle["last_state"]]
    for result in (got, theirs):
        for x, bound in zip(result, wanted, strict=True) if last_state else [(result, wanted[0])]:
            assert_close(x, *bound, "layer")


@pytest.mark.parametrize("form", ["mamba1", "mamba2"])
def test_state_update(padfree, form):
    channels = (24,) if form == "mamba1" else (4, 6)
    step = (24,) if form == "mamba1" else (4, 1)
    x, state = randn(2, *channels, seed=0), randn(2, *channels, 16, seed=1)
    dt = randn(2, *step, seed=2).expand(-1, *channels)
    A = -randn(*step, 16 if form == "mamba1" else 1, seed=3).abs().expand(*channels, 16)
    B, C = (randn(2, *((16,) if form == "mamba1" else (2, 16)), seed=s) for s in (4, 5))
    D, bias = randn(*step, seed=6).expand(channels), randn(*step, seed=7).expand(channels)
    z = randn(2, *channels, seed=8) if form == "mamba1" else None
    theirs = mamba.mamba_selective_state_update if form == "mamba1" else mamba2.mamba2_selective_state_update
    states = [state.clone(), state.clone()]
    options = {"z": z, "dt_bias": bias, "dt_softplus": True, "use_cache": True}
    got = padfree.layers.selective_state_update().forward(states[0], x, dt, A, B, C, D, **options)
    wanted = theirs(states[1], x, dt, A, B, C, D, **options)
    oracle = reference.selective_state_update(state, x, dt, A, B, C, D, z, bias, dt_softplus=True)
    for out, moved in ((got, states[0]), (wanted, states[1])):
        assert_close(out, *oracle["out"], "out")
        assert_close(moved, *oracle["state"], "state")


@pytest.fixture
def known_to_have_no_mask(padfree, monkeypatch):
    """As inside of a wired model whose batch has no attention_mask."""
    monkeypatch.setattr(sys.modules[f"{padfree.__name__}.boundaries"], "without_mask", lambda: True)


def test_inner_is_not_fused_where_a_mask_could_be(padfree):
    """Outside of a wired model nothing says whether there is padding, which the fused form would not see."""
    assert padfree.layers.mamba_inner_fn().forward(**inner_inputs()) is None


@pytest.mark.usefixtures("known_to_have_no_mask")
def test_inner_norms_dt_where_the_models_do(padfree):
    """Falcon Mamba hands over ones of mamba_ssm's size; its own code norms dt before delta_proj."""
    case = inner_inputs()
    dummy = padfree.layers.mamba_inner_fn().forward(**case, dt_rms_weight=torch.ones(20))
    wanted = padfree.mamba_inner_fn(**case, dt_rms_weight=torch.ones(RANK), norm_dt_rank=True)
    assert_same_bits(dummy, wanted, "out")


@pytest.mark.usefixtures("known_to_have_no_mask")
def test_inner_takes_its_boundaries_from_keywords(padfree):
    case = inner_inputs(batch=1)
    index = torch.tensor([[0] * 5 + [1] * 7], dtype=torch.int32)
    wanted = padfree.mamba_inner_fn(**case, seq_idx=index)
    ends = torch.tensor([0, 5, 12], dtype=torch.int32)
    for keywords in ({"seq_idx": index}, {"cu_seq_lens_q": ends, "use_cache": False}):
        assert_same_bits(padfree.layers.mamba_inner_fn().forward(**case, **keywords), wanted, "out")
