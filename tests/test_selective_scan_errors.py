"""Wrong calls of the selective scan, the Mamba mixer and the state update: the exception and its whole text."""

import pytest
import torch
from cases import randn
from scan_case import forward_only, inputs, numbers, only
from test_mamba_inner import inputs as inner_inputs
from test_selective_state_update import inputs as step_inputs
from tolerance import assert_same_bits

DOUBLE, WIDE = torch.float64, torch.int64


def case_of(lengths=None):
    return forward_only(inputs((2, 6, 9), states=4, lengths=lengths))


SCAN_CASES = [
    ({"u": [1]}, TypeError, "u must be a tensor, got list"),
    ({"u": torch.zeros(2, 6, 9, dtype=DOUBLE)}, TypeError, "u must be float32, bfloat16 or float16, got float64"),
    ({"u": torch.zeros(6, 9)}, ValueError, "u must have 3 dimensions, got 2"),
    ({"delta": torch.zeros(2, 6, 8)}, ValueError, "delta must have shape (2, 6, 9), got (2, 6, 8)"),
    ({"delta": torch.zeros(2, 6, 9, dtype=WIDE)}, TypeError, "delta must be float32, bfloat16 or float16, got int64"),
    ({"A": torch.zeros(6, 4, dtype=torch.complex64)}, NotImplementedError, "A must be real, got complex64"),
    ({"B": torch.zeros(2, 4, 9, dtype=torch.complex64)}, NotImplementedError, "B must be real, got complex64"),
    ({"C": torch.zeros(6, 4, dtype=torch.complex64)}, NotImplementedError, "C must be real, got complex64"),
    ({"A": torch.zeros(6)}, ValueError, "A must have 2 dimensions, got 1"),
    ({"A": torch.zeros(6, 0)}, ValueError, "A must have at least 1 state, got 0"),
    ({"A": torch.zeros(5, 4)}, ValueError, "A must have shape (6, 4), got (5, 4)"),
    ({"B": torch.zeros(6, 3)}, ValueError, "B must have shape (6, 4), got (6, 3)"),
    ({"B": torch.zeros(2, 4, 8)}, ValueError, "B must have shape (2, 4, 9), got (2, 4, 8)"),
    ({"C": torch.zeros(2, 2, 4, 8)}, ValueError, "C must have shape (2, 2, 4, 9), got (2, 2, 4, 8)"),
    ({"C": torch.zeros(2, 4, 4, 9)}, ValueError, "groups of C must divide the channels (6), got 4"),
    ({"C": torch.zeros(2, 2, 4, 9)}, ValueError, "C must have the groups of B (1), got 2"),
    ({"C": torch.zeros(1)}, ValueError, "C must have 4 dimensions, got 1"),
    ({"D": torch.zeros(5)}, ValueError, "D must have shape (6,), got (5,)"),
    ({"z": torch.zeros(2, 6, 1)}, ValueError, "z must have shape (2, 6, 9), got (2, 6, 1)"),
    ({"delta_bias": torch.zeros(6, 1)}, ValueError, "delta_bias must have shape (6,), got (6, 1)"),
    ({"delta_softplus": 1}, TypeError, "delta_softplus must be True or False, got 1"),
    ({"return_last_state": None}, TypeError, "return_last_state must be True or False, got None"),
    (
        {"initial_states": torch.zeros(3, 6, 4)},
        ValueError,
        "initial_states must have shape (2, 6, 4), got (3, 6, 4)",
    ),
    ({"seq_idx": torch.zeros(2, 9, dtype=WIDE)}, TypeError, "seq_idx must be int32, got int64"),
    (
        {"seq_idx": torch.zeros(2, 8, dtype=torch.int32)},
        ValueError,
        "seq_idx must have shape (2, 9), got (2, 8)",
    ),
    ({"cu_seqlens": torch.tensor([0, 9])}, ValueError,
     "u must have size 1 in dimension 0 where cu_seqlens is given, got 2"),
]  # fmt: skip

PACKED_CASES = [
    ({"seq_idx": numbers([9]), "cu_seqlens": torch.tensor([0, 9])}, ValueError,
     "seq_idx must be None where cu_seqlens is given, got a tensor"),
    ({"cu_seqlens": torch.zeros(0, dtype=torch.int32)}, ValueError, "cu_seqlens must start at 0, got nothing"),
    ({"cu_seqlens": torch.tensor([1, 9])}, ValueError, "cu_seqlens must start at 0, got 1"),
    ({"cu_seqlens": torch.tensor([0, 6, 4])}, ValueError, "cu_seqlens must not decrease, got 4 after 6"),
    ({"cu_seqlens": torch.tensor([0, 10])}, ValueError,
     "cu_seqlens must end at or below the number of rows (9), got 10"),
    ({"cu_seqlens": torch.tensor([0.0, 9.0])}, TypeError, "cu_seqlens must be int32 or int64, got float32"),
    ({"seq_idx": torch.tensor([[0, 0, 1, 1, 1, 0, 0, 0, 0]], dtype=torch.int32)}, ValueError,
     "seq_idx must number each sequence differently where states are passed, got 0 twice"),
    ({"seq_idx": numbers([3, 3, 3])}, ValueError, "seq_idx must be below the 2 rows of initial_states, got 2"),
    ({"seq_idx": torch.full((1, 9), 2**31 - 1, dtype=torch.int32), "initial_states": None,
      "return_last_state": True}, ValueError,
     "seq_idx must be below the number of positions (9) where it says how many states to return, got 2147483647"),
    ({"seq_idx": numbers([9]), "initial_states": torch.zeros(2, 5, 4)}, ValueError,
     "initial_states must have shape (sequences, 6, 4), got (2, 5, 4)"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "kind", "text"), SCAN_CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_selective_scan(padfree, changed, kind, text):
    with pytest.raises(kind) as error:
        padfree.selective_scan_fn(**{**case_of(), **changed})
    assert str(error.value) == f"selective_scan: {text}"


@pytest.mark.parametrize(("changed", "kind", "text"), PACKED_CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_selective_scan_packed(padfree, changed, kind, text):
    with pytest.raises(kind) as error:
        padfree.selective_scan_fn(**{**only(case_of([5, 4]), "seq_idx"), **changed})
    assert str(error.value) == f"selective_scan: {text}"


INNER_CASES = [
    ({"xz": torch.zeros(2, 41, 9)}, ValueError, "xz must have an even number of channels, got 41"),
    ({"xz": torch.zeros(41, 9)}, ValueError, "xz must have 3 dimensions, got 2"),
    ({"checkpoint_lvl": 2}, ValueError, "checkpoint_lvl must be 0 or 1, got 2"),
    ({"b_c_dt_rms_eps": "small"}, TypeError, "b_c_dt_rms_eps must be a number, got str"),
    ({"norm_dt_rank": 1}, TypeError, "norm_dt_rank must be True or False, got 1"),
    ({"conv1d_weight": None}, TypeError, "conv1d_weight must be a tensor, got NoneType"),
    ({"A": torch.zeros(20)}, ValueError, "A must have 2 dimensions, got 1"),
    ({"x_proj_weight": torch.zeros(13, 19)}, ValueError, "x_proj_weight must have size 20 in dimension 1, got 19"),
    ({"delta_proj_weight": torch.zeros(19, 3)}, ValueError,
     "delta_proj_weight must have size 20 in dimension 0, got 19"),
    ({"out_proj_weight": torch.zeros(7, 20).half()}, TypeError,
     "out_proj_weight must have the dtype of xz (float32), got float16"),
    ({"out_proj_bias": torch.zeros(6)}, ValueError, "out_proj_bias must have shape (7,), got (6,)"),
    ({"B_proj_bias": torch.zeros(4)}, ValueError, "B_proj_bias must have shape (5,), got (4,)"),
    ({"x_proj_weight": torch.zeros(12, 20)}, ValueError, "x_proj_weight must have size 13 in dimension 0, got 12"),
    ({"b_rms_weight": torch.zeros(4)}, ValueError, "b_rms_weight must have shape (5,), got (4,)"),
    ({"dt_rms_weight": torch.zeros(3)}, ValueError, "dt_rms_weight must have shape (20,), got (3,)"),
    ({"dt_rms_weight": torch.zeros(20), "norm_dt_rank": True}, ValueError,
     "dt_rms_weight must have shape (3,), got (20,)"),
    ({"B": torch.zeros(2, 5, 12), "x_proj_weight": torch.zeros(8, 20), "B_proj_bias": torch.zeros(5)}, ValueError,
     "bias and norm of B must be None where B is given, got a tensor"),
    ({"cu_seqlens": torch.tensor([0, 12])}, ValueError,
     "xz must have size 1 in dimension 0 where cu_seqlens is given, got 2"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "kind", "text"), INNER_CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_mamba_inner(padfree, changed, kind, text):
    with pytest.raises(kind) as error:
        padfree.mamba_inner_fn(**{**inner_inputs(), **changed})
    assert str(error.value) == f"mamba_inner: {text}"


def rows(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


STEP_CASES = [
    ({"x": torch.zeros(2, 6, dtype=DOUBLE)}, TypeError, "x must be float32, bfloat16 or float16, got float64"),
    ({"x": torch.zeros(6)}, ValueError, "x must have shape (batch, dim) or (batch, heads, head_dim), got (6,)"),
    ({"state": torch.zeros(3, 6, 16)}, ValueError, "state must have shape (2, 6, states), got (3, 6, 16)"),
    ({"state": torch.zeros(2, 6)}, ValueError, "state must have shape (2, 6, states), got (2, 6)"),
    ({"state": torch.zeros(2, 6, 0)}, ValueError, "state must hold at least 1 state, got 0"),
    ({"state": torch.zeros(2, 1, 16).expand(2, 6, 16)}, ValueError,
     "state must hold each element at a place of its own, got stride 0 in dimension 1"),
    ({"dt": torch.zeros(2, 1)}, ValueError, "dt must have shape (2, 6), got (2, 1)"),
    ({"A": torch.zeros(6, 15)}, ValueError, "A must have shape (6, 16), got (6, 15)"),
    ({"A": torch.zeros(6, 16, dtype=torch.complex64)}, NotImplementedError, "A must be real, got complex64"),
    ({"B": torch.zeros(2, 15)}, ValueError, "B must have shape (2, 16), got (2, 15)"),
    ({"C": torch.zeros(1, 16)}, ValueError, "C must have shape (2, 16), got (1, 16)"),
    ({"D": torch.zeros(5)}, ValueError, "D must have shape (6,), got (5,)"),
    ({"z": torch.zeros(2, 5)}, ValueError, "z must have shape (2, 6), got (2, 5)"),
    ({"dt_bias": torch.zeros(5)}, ValueError, "dt_bias must have shape (6,), got (5,)"),
    ({"dt_softplus": "yes"}, TypeError, "dt_softplus must be True or False, got 'yes'"),
    ({"state_batch_indices": torch.zeros(2, dtype=WIDE)}, TypeError, "state_batch_indices must be int32, got int64"),
    ({"state_batch_indices": rows(0)}, ValueError, "state_batch_indices must have shape (2,), got (1,)"),
    ({"state_batch_indices": rows(0, 2)}, ValueError, "state_batch_indices must be -1 or below 2, got 2"),
    ({"state_batch_indices": rows(1, 1)}, ValueError, "state_batch_indices must name each state once, got 1 twice"),
    ({"state_batch_indices": rows(0, 1), "D": torch.zeros(6, requires_grad=True)}, NotImplementedError,
     "state_batch_indices must be None where a gradient is wanted, got a tensor"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "kind", "text"), STEP_CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_state_update(padfree, changed, kind, text):
    case = {**step_inputs(), **changed}
    state = case.pop("state")
    before = state.clone()
    with pytest.raises(kind) as error:
        padfree.selective_state_update(state, **case)
    assert str(error.value) == f"selective_state_update: {text}"
    assert_same_bits(state, before, "state")


def test_state_update_groups(padfree):
    case = step_inputs("mamba2")
    case.update({n: randn(2, 3, 16, seed=9) for n in ("B", "C")})
    with pytest.raises(ValueError, match=r"^selective_state_update: groups of B must divide the heads \(4\), got 3$"):
        padfree.selective_state_update(case.pop("state"), **case)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda a: a.__setitem__(1, a[1][:, :, :-1]), "selective_scan: delta must have size 9 in dimension 2, got 8"),
        (lambda a: a.__setitem__(2, a[2].double()), "selective_scan: A must be float32"),
        (lambda a: a.__setitem__(3, a[3][:, :0]), "selective_scan: groups of B must divide the channels (6), got 0"),
        (lambda a: a.__setitem__(8, numbers([4, 5])), "selective_scan: seq_idx must have size 2 in dimension 0, got 1"),
    ],
    ids=["delta", "A", "B", "seq_idx"],
)
def test_the_op_checks_again_what_memory_safety_needs(ops, change, text):
    case = case_of()
    names = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "seq_idx", "initial_states")
    arguments = [case.get(n) for n in names]
    arguments[3], arguments[4] = case["B"][:, None], case["C"][:, None]
    change(arguments)
    with pytest.raises(RuntimeError) as error:
        ops.selective_scan_fwd(*arguments, True, -1, False)
    assert text in str(error.value)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_the_op_wants_a_state_for_each_batch_row(ops, rows):
    """Without seq_idx the number of states says nothing new, and must not say something else."""
    case = case_of()
    arguments = [case[n] for n in ("u", "delta", "A", "B", "C")]
    arguments[3], arguments[4] = case["B"][:, None], case["C"][:, None]
    text = f"states must have a row for each of the 2 batch rows without seq_idx, got {rows}"
    with pytest.raises(RuntimeError, match=text):
        ops.selective_scan_fwd(*arguments, *[None] * 5, True, rows, False)
    _, _, saved = ops.selective_scan_fwd(*arguments, *[None] * 5, True, -1, True)
    gradients = torch.zeros(2, 6, 9), torch.zeros(rows, 6, 4)
    with pytest.raises(RuntimeError, match=text):
        ops.selective_scan_bwd(*gradients, *arguments, *[None] * 5, saved, True)
