"""Every error text a user can meet: `<op>: <argument> must <what is wanted>, got <what came>`."""

import pytest
import torch

# ---- causal_conv1d ---------------------------------------------------------------------------------------------------


def conv_arguments(**changed):
    arguments = {"x": torch.zeros(2, 5, 7), "weight": torch.zeros(5, 4)}
    return {**arguments, **changed}


CONV_ERRORS = [
    ({"x": [1.0]}, TypeError, "x must be a tensor, got list"),
    ({"x": torch.zeros(2, 5, 7).double()}, TypeError, "x must be float32, bfloat16 or float16, got float64"),
    ({"x": torch.zeros(5, 7)}, ValueError, "x must have shape (batch, channels, seqlen), got (5, 7)"),
    ({"weight": torch.zeros(5, 1)}, NotImplementedError, "weight must be 2 to 4 wide, got 1"),
    ({"weight": torch.zeros(5, 5)}, NotImplementedError, "weight must be 2 to 4 wide, got 5"),
    ({"weight": torch.zeros(4, 4)}, ValueError, "weight must have shape (5, width), got (4, 4)"),
    ({"weight": torch.zeros(5, 1, 4)}, ValueError, "weight must have shape (5, width), got (5, 1, 4)"),
    ({"weight": torch.zeros(5, 4).long()}, TypeError, "weight must be float32, bfloat16 or float16, got int64"),
    ({"weight": torch.zeros(5, 4, device="meta")}, TypeError, "weight must be on the device of x (cpu), got meta"),
    ({"bias": torch.zeros(4)}, ValueError, "bias must have shape (5,), got (4,)"),
    ({"bias": 0.0}, TypeError, "bias must be a tensor, got float"),
    ({"activation": "gelu"}, ValueError, "activation must be None, \"silu\" or \"swish\", got 'gelu'"),
    ({"activation": []}, ValueError, "activation must be None, \"silu\" or \"swish\", got []"),
    ({"seq_idx": "silu"}, TypeError, "seq_idx must be a tensor, got str"),
    ({"seq_idx": torch.zeros(2, 7).long()}, TypeError, "seq_idx must be int32, got int64"),
    ({"seq_idx": torch.zeros(7).int()}, ValueError, "seq_idx must have shape (2, 7) (batch, seqlen), got (7,)"),
    ({"seq_idx": torch.zeros(1, 7).int()}, ValueError, "seq_idx must have shape (2, 7) (batch, seqlen), got (1, 7)"),
    ({"initial_states": torch.zeros(2, 5, 4)}, ValueError,
     "initial_states must have shape (2, 5, 3), got (2, 5, 4)"),
    ({"initial_states": torch.zeros(2, 5, 3).half()}, TypeError,
     "initial_states must have the dtype of x (float32), got float16"),
    ({"seq_idx": torch.zeros(2, 7).int(), "initial_states": torch.zeros(3, 5)}, ValueError,
     "initial_states must have shape (sequences, 5, 3), got (3, 5)"),
    ({"seq_idx": torch.zeros(2, 7).int(), "return_final_states": True}, ValueError,
     "seq_idx must number each sequence differently where states are passed, got 0 twice"),
    ({"seq_idx": torch.arange(14).int().reshape(2, 7), "initial_states": torch.zeros(13, 5, 3)}, ValueError,
     "seq_idx must be below the 13 rows of initial_states, got 13"),
    ({"seq_idx": torch.arange(14).int().reshape(2, 7), "return_final_states": True,
      "final_states_out": torch.zeros(12, 5, 3)}, ValueError,
     "seq_idx must be below the 12 rows of final_states_out, got 13"),
    ({"final_states_out": torch.zeros(2, 5, 3)}, ValueError,
     "return_final_states must be True where final_states_out is given, got False"),
    ({"return_final_states": True, "final_states_out": torch.zeros(2, 5, 2)}, ValueError,
     "final_states_out must have shape (2, 5, 3), got (2, 5, 2)"),
    ({"out": torch.zeros(2, 5, 8)}, ValueError, "out must have the shape of x (2, 5, 7), got (2, 5, 8)"),
    ({"out": torch.zeros(2, 5, 7).half()}, TypeError, "out must have the dtype of x (float32), got float16"),
    ({"out": torch.zeros(2, 10, 14)[:, ::2, ::2]}, ValueError,
     "out must have stride 1 in one of its last two dimensions, got (140, 28, 2)"),
    ({"out": torch.zeros(2, 5, 7), "weight": torch.zeros(5, 4, requires_grad=True)}, ValueError,
     "out must be None where a gradient is wanted, got a tensor (use torch.no_grad())"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "kind", "text"), CONV_ERRORS, ids=[text[:40] for _, _, text in CONV_ERRORS])
def test_causal_conv1d_fn(padfree, changed, kind, text):
    with pytest.raises(kind) as error:
        padfree.causal_conv1d_fn(**conv_arguments(**changed))
    assert str(error.value) == f"causal_conv1d: {text}"


def test_causal_conv1d_op_checks_memory_itself(ops):
    """Callers of the raw op get the same words instead of a crash."""
    x, weight = torch.zeros(2, 5, 7), torch.zeros(5, 4)
    states = torch.zeros(1, 5, 3)
    for args, text in [
        ((x.double(), weight, None, None, None), "x must be float32, bfloat16 or float16"),
        ((x, torch.zeros(5, 9), None, None, None), "weight must be 2 to 4 wide, got 9"),
        ((x, weight, torch.zeros(4), None, None), "bias must have size 5 in dimension 0, got 4"),
        ((x, weight, None, torch.zeros(2, 6).int(), None), "seq_idx must have size 7 in dimension 1, got 6"),
        ((x, weight, None, torch.zeros(2, 7), None), "seq_idx must be int32"),
        ((x, weight, None, None, states), "initial_states must have size 2 in dimension 0, got 1"),
        ((x, weight, None, torch.ones(2, 7).int(), states),
         "seq_idx must be below the 1 rows of initial_states, got 1"),
        ((x, weight, None, torch.zeros(2, 7).int(), states),
         "seq_idx must number each sequence differently where states are passed, got 0 twice"),
    ]:  # fmt: skip
        with pytest.raises(RuntimeError) as error:
            ops.causal_conv1d_fwd(*args, True)
        assert f"causal_conv1d: {text}" in str(error.value)
