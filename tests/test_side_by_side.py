"""Two builds of the bundle in one process: ops, wiring and attention of each stay its own.

A second build comes from ``python -m bundle build --uid NAME --out DIR``; ``PADFREE_SECOND_BUILD=DIR`` names it. It
holds the CPU's kernels: beside a variant with CUDA's, emulated or not, it is the other backend of one version.
"""

import os
from pathlib import Path

import pytest
import reference
import torch
from conftest import DEVICES
from tolerance import assert_close, assert_same_bits

SECOND = os.environ.get("PADFREE_SECOND_BUILD")
pytestmark = [
    pytest.mark.skipif(
        not SECOND, reason="PADFREE_SECOND_BUILD names no second build (bundle build --uid NAME --out DIR)"
    ),
    pytest.mark.usefixtures("one_thread"),
]


@pytest.fixture(scope="module")
def other(padfree):
    """The second build's module."""
    kernels = pytest.importorskip("kernels")
    return kernels.get_local_kernel(Path(SECOND), backend="cpu")


def test_ops_are_apart(padfree, other, device):
    assert other.__name__ != padfree.__name__
    assert other.causal_conv1d_fn is not padfree.causal_conv1d_fn
    inputs = torch.randn(1, 8, 9, device="cpu"), torch.randn(8, 4, device="cpu")
    theirs = other.causal_conv1d_fn(*inputs)
    mine = padfree.causal_conv1d_fn(*(tensor.to(device) for tensor in inputs))
    for result in (mine, theirs):
        assert_close(result, *reference.causal_conv1d(*inputs)["out"])
    if DEVICES == ["cpu"]:
        assert_same_bits(mine, theirs)
        assert other.verify() == padfree.verify()


def test_each_wires_a_model_of_one_family(padfree, other):
    """The functions are shared: each model's forward takes them for itself, and the last gives them back."""
    pytest.importorskip("transformers")
    from tiny_models import build, run_packed, samples
    from transformers.models.lfm2 import modeling_lfm2

    function = modeling_lfm2.causal_conv1d_fn
    before, environment, rows = vars(function).get("forward"), os.environ["LOCAL_KERNELS"], samples()
    models = {padfree: build("lfm2").train(), other: build("lfm2").train()}
    names = {}
    for bundle, model in models.items():
        bundle.enable(model)
        names[bundle] = model.config._attn_implementation
    assert len(set(names.values())) == 2
    results = []
    for _ in range(2):
        for bundle, model in models.items():
            results.append(run_packed(model, rows)[0])
            assert vars(function)["forward"].__func__ is bundle.layers.causal_conv1d_fn.forward
            assert f"padfree as {names[bundle]}" in bundle.report(model)
    assert all(torch.equal(result, results[0]) for result in results)
    padfree.disable(models[padfree])
    assert torch.equal(run_packed(models[other], rows)[0], results[0])
    other.disable(models[other])
    assert vars(function).get("forward") is before
    assert os.environ["LOCAL_KERNELS"] == environment
