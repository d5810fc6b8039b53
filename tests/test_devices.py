"""A variant holds one backend's kernels, and not every op's: functions say which variant to load for the rest."""

import functools
import sys

import pytest
import torch
from conftest import DEVICES

ones = functools.partial(torch.ones, device="cpu")
QKV = (ones(1, 4, 2, 8),) * 3
CALLS = {
    "attention: q": ("attention_fwd", lambda padfree: padfree.flash_attn_func(*QKV)),
    "causal_conv1d: x": (
        "causal_conv1d_fwd", lambda padfree: padfree.causal_conv1d_fn(ones(1, 5, 7), ones(5, 4))
    ),
    "causal_conv1d_update: x": (
        "causal_conv1d_update",
        lambda padfree: padfree.causal_conv1d_update(ones(1, 5), ones(1, 5, 4), ones(6, 4)),
    ),
    "chunk_gated_delta_rule: q": (
        "gated_delta_rule_fwd",
        lambda padfree: padfree.chunk_gated_delta_rule(*QKV, -ones(1, 4, 2), ones(1, 4, 2)),
    ),
    "mamba_chunk_scan_combined: x": (
        "state_space_fwd",
        lambda padfree: padfree.mamba_chunk_scan_combined(
            ones(1, 4, 2, 8), ones(1, 4, 2), -ones(2), *(ones(1, 4, 1, 8),) * 2, 64
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


def test_the_table_of_kernels_is_the_dispatchers(ops, kernels, device):
    here = torch.ones(1, 5, 7, device=device), torch.ones(5, 4, device=device), None, None, None, False
    assert "causal_conv1d_fwd" in kernels[device.type]
    assert ops.causal_conv1d_fwd(*here).shape == (1, 5, 7)
    assert not kernels["cuda"] & kernels["cpu"]
    for function in ("causal_conv1d_fwd", "causal_conv1d_bwd", "causal_conv1d_update"):
        name = f"{ops.name}::{function}"
        for key in ("cpu", "cuda"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(name, key.upper()) == (function in kernels[key])


ARCHS = ["12.1+PTX", "8.0", "8.6", "9.0"]


@pytest.fixture
def on_gpus(padfree, monkeypatch):
    """Loads, as the package's import does, a variant compiled for ARCHS where there are GPUs of some capabilities."""
    archs, integrity = (sys.modules[f"{padfree.__name__}.{name}"] for name in ("_archs", "integrity"))
    monkeypatch.setattr(integrity, "metadata", lambda: {"backend": {"type": "cuda", "archs": ARCHS}})

    def load(*capabilities):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(capabilities))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capabilities[index])
        archs.require_a_gpu()

    return load


@pytest.mark.parametrize(
    "capabilities", [(), ((8, 0),), ((8, 9),), ((9, 0),), ((12, 1),), ((13, 0),), ((7, 5), (9, 0))], ids=str
)
def test_loads_where_a_gpu_runs_its_code(on_gpus, capabilities):
    on_gpus(*capabilities)


@pytest.mark.parametrize("capabilities", [((7, 5),), ((10, 0),), ((12, 0), (7, 0))], ids=str)
def test_gpus_that_it_has_no_code_for_are_refused_with_both_lists(on_gpus, capabilities):
    with pytest.raises(RuntimeError) as error:
        on_gpus(*capabilities)
    assert str(error.value) == (
        "load: a GPU must be of a compute capability this variant is compiled for (12.1+PTX, 8.0, 8.6, 9.0), got "
        + ", ".join(f"{major}.{minor}" for major, minor in capabilities)
    )


@pytest.mark.skipif(DEVICES != ["cuda"], reason="needs a GPU")
@pytest.mark.parametrize("moved", ["x", "weight"])
def test_an_op_on_cuda_takes_no_tensor_of_the_cpu(padfree, ops, device, moved):
    """The public function refuses it by name, and so does the raw op: the dispatcher goes by its other tensors."""
    tensors = {"x": torch.ones(1, 5, 7, device=device), "weight": torch.ones(5, 4, device=device)}
    tensors[moved] = tensors[moved].cpu()
    with pytest.raises((NotImplementedError, TypeError), match=f"causal_conv1d: {moved} must be on "):
        padfree.causal_conv1d_fn(**tensors)
    with pytest.raises(RuntimeError, match=rf"causal_conv1d: {moved} must be on a cuda device"):
        ops.causal_conv1d_fwd(*tensors.values(), None, None, None, False)
