"""A variant holds one backend's kernels, and not every op's: functions say which variant to load for the rest."""

import sys

import pytest
import torch

QKV = (torch.ones(1, 4, 2, 8),) * 3
CALLS = {
    "attention: q": ("attention_fwd", lambda padfree: padfree.flash_attn_func(*QKV)),
    "causal_conv1d: x": (
        "causal_conv1d_fwd", lambda padfree: padfree.causal_conv1d_fn(torch.ones(1, 5, 7), torch.ones(5, 4))
    ),
    "causal_conv1d_update: x": (
        "causal_conv1d_update",
        lambda padfree: padfree.causal_conv1d_update(torch.ones(1, 5), torch.ones(1, 5, 4), torch.ones(6, 4)),
    ),
    "chunk_gated_delta_rule: q": (
        "gated_delta_rule_fwd",
        lambda padfree: padfree.chunk_gated_delta_rule(*QKV, -torch.ones(1, 4, 2), torch.ones(1, 4, 2)),
    ),
    "mamba_chunk_scan_combined: x": (
        "state_space_fwd",
        lambda padfree: padfree.mamba_chunk_scan_combined(
            torch.ones(1, 4, 2, 8), torch.ones(1, 4, 2), -torch.ones(2), *(torch.ones(1, 4, 1, 8),) * 2, 64
        ),
    ),
}  # fmt: skip


@pytest.fixture
def kernels(padfree):
    """Which ops have kernels on which device, as the loaded variant sees it."""
    return sys.modules[f"{padfree.__name__}._checks"]._KERNELS


@pytest.mark.parametrize("what", CALLS)
def test_a_tensor_of_another_backend_is_refused_with_the_one_to_load(padfree, kernels, monkeypatch, what):
    function, call = CALLS[what]
    monkeypatch.setitem(kernels, "cpu", frozenset())
    monkeypatch.setitem(kernels, "cuda", frozenset({function}))
    with pytest.raises(NotImplementedError) as error:
        call(padfree)
    assert str(error.value) == (
        f"{what} must be on a cuda device, which this variant is for, got cpu (backend='cpu' of get_kernel is for that)"
    )


@pytest.mark.parametrize("what", CALLS)
def test_an_op_that_this_variant_lacks_is_refused_with_the_one_that_has_it(padfree, kernels, monkeypatch, what):
    _, call = CALLS[what]
    monkeypatch.setitem(kernels, "cpu", frozenset())
    monkeypatch.setitem(kernels, "cuda", frozenset())
    with pytest.raises(NotImplementedError) as error:
        call(padfree)
    assert str(error.value) == (
        f"{what} must be on the cpu, for which backend='cpu' of get_kernel has kernels (this variant has none of this "
        "op), got cpu"
    )


def test_the_table_of_kernels_is_the_dispatchers(ops, kernels):
    here = torch.ones(1, 5, 7), torch.ones(5, 4), None, None, None, False
    assert "causal_conv1d_fwd" in kernels["cpu"]
    assert ops.causal_conv1d_fwd(*here).shape == (1, 5, 7)
    assert not kernels["cuda"] & kernels["cpu"]
    for function in ("causal_conv1d_fwd", "causal_conv1d_bwd", "causal_conv1d_update"):
        name = f"{ops.name}::{function}"
        assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "CPU") == (function in kernels["cpu"])
