"""Each text the state-space functions refuse arguments with, and the type of its exception."""

import pytest
import torch
from cases import randn


def scan_arguments(**changed):
    over = (2, 5)
    tensors = {
        "x": randn(*over, 4, 6), "dt": randn(*over, 4), "A": -torch.ones(4), "B": randn(*over, 2, 8),
        "C": randn(*over, 2, 8), "chunk_size": 64,
    }  # fmt: skip
    return {**tensors, **changed}


def packed_scan(*ends, **changed):
    rows = {n: x[:1] if isinstance(x, torch.Tensor) and x.dim() > 1 else x for n, x in scan_arguments().items()}
    return {**rows, "cu_seqlens": torch.tensor(ends, dtype=torch.int32), **changed}


ERRORS = [
    ({"x": 1}, TypeError, "x must be a tensor, got int"),
    ({"x": randn(2, 5, 4, 6).double()}, TypeError, "x must be float32, bfloat16 or float16, got float64"),
    ({"x": randn(2, 5, 24)}, ValueError, "x must have 4 dimensions, got 3"),
    ({"B": randn(2, 5, 2, 8).half()}, TypeError, "B must have the dtype of x (float32), got float16"),
    ({"C": torch.empty(2, 5, 2, 8, device="meta")}, TypeError, "C must be on the device of x (cpu), got meta"),
    ({"B": randn(2, 5, 8)}, ValueError, "B must have 4 dimensions, got 3"),
    ({"B": randn(2, 4, 2, 8)}, ValueError, "B must have the batch and rows of x (2, 5), got (2, 4)"),
    ({"C": randn(2, 5, 2, 9)}, ValueError, "C must have the shape of B (2, 5, 2, 8), got (2, 5, 2, 9)"),
    ({"x": randn(2, 5, 0, 6)}, ValueError, "heads of x must be at least 1, got 0"),
    ({"B": randn(2, 5, 3, 8), "C": randn(2, 5, 3, 8)}, ValueError, "groups of B must divide heads of x (4), got 3"),
    ({"B": randn(2, 5, 0, 8), "C": randn(2, 5, 0, 8)}, ValueError, "groups of B must divide heads of x (4), got 0"),
    ({"x": randn(2, 5, 4, 0)}, ValueError, "headdim of x must be at least 1, got 0"),
    ({"x": randn(2, 5, 4, 257)}, NotImplementedError, "headdim of x must be at most 256 on cpu, got 257"),
    ({"B": randn(2, 5, 2, 0), "C": randn(2, 5, 2, 0)}, ValueError, "dstate of B must be at least 1, got 0"),
    ({"B": randn(2, 5, 2, 257), "C": randn(2, 5, 2, 257)}, NotImplementedError,
     "dstate of B must be at most 256 on cpu, got 257"),
    ({"dt": randn(2, 5, 2)}, ValueError, "dt must have shape (2, 5, 4), got (2, 5, 2)"),
    ({"dt": torch.ones(2, 5, 4).long()}, TypeError, "dt must be float32, bfloat16 or float16, got int64"),
    ({"A": randn(4, 6)}, ValueError, "A must have shape (4,), got (4, 6)"),
    ({"chunk_size": 0}, ValueError, "chunk_size must be a positive integer, got 0"),
    ({"chunk_size": 64.0}, ValueError, "chunk_size must be a positive integer, got 64.0"),
    ({"D": randn(6)}, ValueError, "D must have shape (4,) or (4, 6), got (6,)"),
    ({"D": 1.0}, TypeError, "D must be a tensor, got float"),
    ({"z": randn(2, 5, 4, 7)}, ValueError, "z must have the shape of x (2, 5, 4, 6), got (2, 5, 4, 7)"),
    ({"z": randn(2, 5, 4, 6).half()}, TypeError, "z must have the dtype of x (float32), got float16"),
    ({"dt_bias": randn(3)}, ValueError, "dt_bias must have shape (4,), got (3,)"),
    ({"dt_softplus": 1}, TypeError, "dt_softplus must be True or False, got 1"),
    ({"dt_limit": 1.0}, TypeError, "dt_limit must be two numbers, got 1.0"),
    ({"dt_limit": (0.0, 1.0, 2.0)}, TypeError, "dt_limit must be two numbers, got (0.0, 1.0, 2.0)"),
    ({"dt_limit": (1.0, 0.0)}, ValueError, "dt_limit must be two rising numbers, got (1.0, 0.0)"),
    ({"dt_limit": (0.0, float("nan"))}, ValueError, "dt_limit must be two rising numbers, got (0.0, nan)"),
    ({"return_final_states": None}, TypeError, "return_final_states must be True or False, got None"),
    ({"return_varlen_states": 1}, TypeError, "return_varlen_states must be True or False, got 1"),
    ({"return_varlen_states": True}, ValueError,
     "cu_seqlens must be given where return_varlen_states is True, got None"),
    ({"initial_states": randn(2, 4, 8, 6)}, ValueError,
     "initial_states must have shape (2, 4, 6, 8), got (2, 4, 8, 6)"),
    ({"seq_idx": torch.zeros(2, 5).long()}, TypeError, "seq_idx must be int32, got int64"),
    ({"seq_idx": [[0] * 5] * 2}, TypeError, "seq_idx must be a tensor, got list"),
    ({"seq_idx": torch.zeros(1, 5).int()}, ValueError, "seq_idx must have shape (2, 5) (batch, seqlen), got (1, 5)"),
    ({"cu_seqlens": torch.tensor([0, 5])}, ValueError,
     "x must have size 1 in dimension 0 where cu_seqlens is given, got 2"),
    (packed_scan(0, 5, cu_seqlens=[0, 5]), TypeError, "cu_seqlens must be a tensor, got list"),
    (packed_scan(0, 5, cu_seqlens=torch.tensor([0.0, 5.0])), TypeError,
     "cu_seqlens must be int32 or int64, got float32"),
    (packed_scan(), ValueError, "cu_seqlens must start at 0, got nothing"),
    (packed_scan(1, 5), ValueError, "cu_seqlens must start at 0, got 1"),
    (packed_scan(0, 4, 3), ValueError, "cu_seqlens must not decrease, got 3 after 4"),
    (packed_scan(0, 6), ValueError, "cu_seqlens must end at or below the number of rows (5), got 6"),
    (packed_scan(0, 2, 5, initial_states=randn(1, 4, 6, 8)), ValueError,
     "initial_states must have shape (2, 4, 6, 8), got (1, 4, 6, 8)"),
    (packed_scan(0, 2, 5, seq_idx=torch.tensor([[0, 0, 0, 1, 1]]).int()), ValueError,
     "seq_idx must change where cu_seqlens says, got other boundaries"),
    (packed_scan(0, 2, seq_idx=torch.tensor([[0, 0, 1, 1, 1]]).int()), ValueError,
     "seq_idx must change where cu_seqlens says, got other boundaries"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "kind", "text"), ERRORS, ids=[f"{i}-{e[2][:30]}" for i, e in enumerate(ERRORS)])
def test_mamba_chunk_scan_combined(padfree, changed, kind, text):
    with pytest.raises(kind) as error:
        padfree.mamba_chunk_scan_combined(**scan_arguments(**changed))
    assert str(error.value) == f"mamba_chunk_scan_combined: {text}"


def split_arguments(**changed):
    tensors = {
        "zxbcdt": randn(2, 5, 24 + 24 + 32 + 4), "conv1d_weight": randn(24 + 32, 4), "conv1d_bias": randn(24 + 32),
        "dt_bias": randn(4), "A": -torch.ones(4), "D": randn(4), "chunk_size": 64, "headdim": 6, "ngroups": 2,
    }  # fmt: skip
    return {**tensors, **changed}


SPLIT_ERRORS = [
    ({"zxbcdt": randn(2, 5, 84).double()}, TypeError, "zxbcdt must be float32, bfloat16 or float16, got float64"),
    ({"zxbcdt": randn(5, 84)}, ValueError, "zxbcdt must have 3 dimensions, got 2"),
    ({"zxbcdt": randn(2, 5, 83)}, ValueError, "zxbcdt must have size 84 in dimension 2, got 83"),
    ({"zxbcdt": randn(2, 5, 94)}, NotImplementedError,
     "zxbcdt must hold no gated MLP beside the scan (84 channels), got 94"),
    ({"D": None}, TypeError, "D must be a tensor, got NoneType"),
    ({"D": randn(4, 6, 1)}, ValueError, "D must have 2 dimensions, got 3"),
    ({"D": randn(4, 6), "headdim": 7}, ValueError, "headdim must be that of D (6), got 7"),
    ({"headdim": None}, ValueError, "headdim must be a positive integer where D has 1 dimension, got None"),
    ({"ngroups": 3}, ValueError, "ngroups must divide the heads of D (4), got 3"),
    ({"conv1d_weight": 1}, TypeError, "conv1d_weight must be a tensor, got int"),
    ({"conv1d_weight": randn(56, 1, 4)}, ValueError, "conv1d_weight must have 2 dimensions, got 3"),
    ({"conv1d_weight": randn(55, 4)}, ValueError,
     "conv1d_weight must have 24 channels and 4 times dstate more, got 55"),
    ({"rmsnorm_weight": randn(23)}, ValueError, "rmsnorm_weight must have shape (24,), got (23,)"),
    ({"rmsnorm_weight": randn(24), "rmsnorm_eps": None}, TypeError, "rmsnorm_eps must be a number, got NoneType"),
    ({"outproj_bias": randn(3)}, ValueError, "outproj_bias must be None where outproj_weight is None, got a tensor"),
    ({"outproj_weight": randn(3, 23)}, ValueError, "outproj_weight must have size 24 in dimension 1, got 23"),
    ({"outproj_weight": randn(3, 24).half()}, TypeError,
     "outproj_weight must have the dtype of zxbcdt (float32), got float16"),
    ({"outproj_weight": randn(3, 24), "outproj_bias": randn(2)}, ValueError,
     "outproj_bias must have shape (3,), got (2,)"),
    ({"norm_before_gate": 0}, TypeError, "norm_before_gate must be True or False, got 0"),
    ({"return_final_states": 1}, TypeError, "return_final_states must be True or False, got 1"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "kind", "text"), SPLIT_ERRORS, ids=[e[2][:30] for e in SPLIT_ERRORS])
def test_mamba_split_conv1d_scan_combined(padfree, changed, kind, text):
    with pytest.raises(kind) as error:
        padfree.mamba_split_conv1d_scan_combined(**split_arguments(**changed))
    assert str(error.value) == f"mamba_split_conv1d_scan_combined: {text}"


OP_ERRORS = {
    "x must be float32, bfloat16 or float16": {"x": randn(2, 5, 4, 6).double()},
    "B must have the dtype of the first input": {"B": randn(2, 5, 2, 8).half()},
    "B must have size 5 in dimension 1, got 4": {"B": randn(2, 4, 2, 8)},
    "C must have size 8 in dimension 3, got 9": {"C": randn(2, 5, 2, 9)},
    "heads of x must be at least 1, got 0": {"x": randn(2, 5, 0, 6)},
    "groups of B must divide heads of x (3), got 2": {"x": randn(2, 5, 3, 6)},
    "head_dim of x must be 1 to 256, got 257": {"x": randn(2, 5, 4, 257)},
    "dstate of B must be 1 to 256, got 0": {"B": randn(2, 5, 2, 0), "C": randn(2, 5, 2, 0)},
    "dt must be float32": {"dt": randn(2, 5, 4).half()},
    "A must have size 4 in dimension 0, got 3": {"A": randn(3)},
    "D must have size 6 in dimension 1, got 5": {"D": randn(4, 5)},
    "z must have size 6 in dimension 3, got 5": {"z": randn(2, 5, 4, 5)},
    "dt_bias must be float32": {"dt_bias": randn(4).half()},
    "initial_states must have size 2 in dimension 0, got 1": {"initial_states": randn(1, 4, 6, 8)},
    "seq_idx must be int32": {"seq_idx": torch.zeros(2, 5).long()},
    "seq_idx must be contiguous": {"seq_idx": torch.zeros(5, 2).int().t()},
    "seq_idx must be None where cu_seqlens is given": packed_scan(0, 5, seq_idx=torch.zeros(1, 5).int()),
    "cu_seqlens must be int32": packed_scan(0, 5, cu_seqlens=torch.tensor([0, 5])),
    "cu_seqlens must start at 0": packed_scan(1, 5),
    "cu_seqlens must not decrease, got 3 after 4": packed_scan(0, 4, 3),
    "cu_seqlens must end at or below the number of rows (5), got 6": packed_scan(0, 6),
    "x must have size 1 in dimension 0 where cu_seqlens is given, got 2": {"cu_seqlens": torch.tensor([0, 5]).int()},
}

TENSORS = ("x", "dt", "A", "B", "C", "D", "z", "dt_bias", "initial_states", "seq_idx", "cu_seqlens")


@pytest.mark.parametrize(("text", "changed"), OP_ERRORS.items(), ids=[t[:40] for t in OP_ERRORS])
def test_op_checks_memory_itself(ops, text, changed):
    """Callers of the raw op get the same words instead of a crash."""
    values = scan_arguments(**changed)
    with pytest.raises(RuntimeError) as error:
        ops.state_space_fwd(*(values.get(n) for n in TENSORS), True, 0.0, 1.0, True, True)
    assert f"state_space: {text}" in str(error.value)


def test_backward_checks_its_own_arguments(ops):
    values = scan_arguments(x=randn(2, 65, 4, 6), dt=randn(2, 65, 4), B=randn(2, 65, 2, 8), C=randn(2, 65, 2, 8))
    given = {n: values.get(n) for n in TENSORS}
    options = {"dt_softplus": True, "dt_min": 0.0, "dt_max": 1.0}
    states = ops.state_space_fwd(**given, **options, output_final_states=False, save_states=True)[2]
    good = {**given, **options, "dout": randn(2, 65, 4, 6), "dfinal_states": None, "states": states}
    for text, changed in {
        "dout must have size 6 in dimension 3, got 7": {"dout": randn(2, 65, 4, 7)},
        "dout must have the dtype of the first input": {"dout": randn(2, 65, 4, 6).half()},
        f"states must have size {len(states)} in dimension 0, got {len(states) - 1}": {"states": states[:-1]},
        "dfinal_states must have size 6 in dimension 2, got 8": {"dfinal_states": randn(2, 4, 8, 6)},
    }.items():
        with pytest.raises(RuntimeError) as error:
            ops.state_space_bwd(**{**good, **changed})
        assert f"state_space: {text}" in str(error.value)
