"""The recurrences under torch.export, with lengths and numbers of sequences that change afterwards."""

import delta_case
import pytest
import scan_case
import state_space_case
import torch
import update_case
from cases import cu_seqlens
from tolerance import assert_same_bits


class Call(torch.nn.Module):
    """A function of a dict of tensors as a module."""

    def __init__(self, function, **options):
        super().__init__()
        self.function, self.options = function, options

    def forward(self, tensors):
        return self.function(**tensors, **self.options)


def delta(gate):
    def make(padfree, lengths):
        case = delta_case.forward_only(delta_case.inputs(lengths, gate, packed=True, state=False))
        return Call(delta_case.function_of(padfree, case["g"])), case, {"cu_seqlens": 0}

    return make


def state_space(padfree, lengths):
    case = state_space_case.inputs(lengths, packed=True, state=False)
    case = {n: x for n, x in state_space_case.forward_only(case).items() if n != "dt_softplus"}
    call = Call(padfree.mamba_chunk_scan_combined, chunk_size=64, dt_softplus=True)
    return call, case, {"cu_seqlens": 0, "A": None, "D": None, "dt_bias": None}


def selective_scan(padfree, lengths):
    case = scan_case.inputs((1, 20, 0), lengths=lengths)
    case = scan_case.only(scan_case.forward_only(case), "delta_softplus", "seq_idx", "initial_states")
    case["cu_seqlens"] = cu_seqlens(lengths)
    over_time = dict.fromkeys(("u", "delta", "B", "C", "z"), 2)
    call = Call(padfree.selective_scan_fn, delta_softplus=True)
    return call, case, {**over_time, "cu_seqlens": 0, "A": None, "D": None, "delta_bias": None}


CALLS = {"delta rule": delta("head"), "kda": delta("channel"), "state space": state_space, "scan": selective_scan}


@pytest.mark.parametrize("name", CALLS)
def test_export_with_dynamic_lengths(padfree, name):
    torch._dynamo.reset()
    call, case, dims = CALLS[name](padfree, [9, 4, 2])
    auto = torch.export.Dim.AUTO
    shapes = {n: {} if dims.get(n, 1) is None else {dims.get(n, 1): auto} for n in case}
    program = torch.export.export(call, (case,), dynamic_shapes=(shapes,))
    for lengths in ([9, 4, 2], [30, 1], [70, 0, 1, 5]):
        _, other, _ = CALLS[name](padfree, lengths)
        got, wanted = program.module()(other), call(other)
        got, wanted = (x[0] if isinstance(x, tuple) else x for x in (got, wanted))
        assert_same_bits(got, wanted, f"out for {lengths}")


def test_export_of_a_step(padfree):
    """The state is changed in place by the exported program too."""
    case = update_case.inputs("mamba1")
    case.pop("dt_softplus")
    call = Call(padfree.selective_state_update, dt_softplus=True)
    program = torch.export.export(call, (case,))
    states = [case["state"].clone() for _ in range(2)]
    got, wanted = program.module()({**case, "state": states[0]}), call({**case, "state": states[1]})
    assert_same_bits(got, wanted, "out")
    assert_same_bits(states[0], states[1], "state")
