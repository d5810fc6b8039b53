"""Every allowance is narrow: an op that kept its operands to fewer bits than documented would fail in each result.

A float32 has 24 significant bits. What `perturbation` allows is a few standard deviations of errors that really occur,
so operands of 16 bits show everywhere. Worst-case bounds (attention, convolution) grow with the length of a sum, where
real errors do not; there 12 bits show, one more than TF32 keeps.
"""

import attention_case
import conv_case
import delta_case
import pytest
import reference
import scan_case
import state_space_case
import torch
import update_case
from tolerance import assert_close


def kept_to(bits, x):
    """A float32 tensor rounded to so many significant bits."""
    if not isinstance(x, torch.Tensor) or x.dtype != torch.float32:
        return x
    mantissa, exponent = torch.frexp(x.double())
    return torch.ldexp((mantissa * 2**bits).round(), exponent - bits).float()


def convolution():
    x, weight, bias, states, dout = conv_case.inputs(2, 24, 70, 4, states=2)
    wanted = reference.causal_conv1d(x, weight, bias, None, states, "silu", dout)
    wanted.pop("final_states")  # copies of inputs

    def call(padfree, **case):
        return conv_case.run(padfree, **case)

    return call, {"x": x, "weight": weight, "bias": bias, "states": states, "dout": dout}, wanted


def attention():
    case = attention_case.inputs([20], [20], (4, 2))
    return attention_case.call, case, reference.attention(**case)


def delta(gate, length):
    def make():
        case = delta_case.inputs([length], gate)
        return delta_case.call, case, delta_case.oracle(case)

    return make


def state_space():
    case = state_space_case.inputs([70], (4, 2), gate=True)
    return state_space_case.call, case, state_space_case.oracle(case)


def scan():
    case = scan_case.inputs((2, 24, 70))
    return scan_case.call, case, scan_case.oracle(case)


def step(form):
    def make():
        case = update_case.inputs(form)
        return update_case.call, case, reference.selective_state_update(**case)

    return make


CASES = {
    "attention": (attention, 12),
    "convolution": (convolution, 12),
    "delta rule": (delta("head", 70), 16),
    "kda": (delta("channel", 70), 16),
    "kda, many chunks": (delta("channel", 257), 16),
    "state space": (state_space, 16),
    "scan": (scan, 16),
    "step of Mamba 1": (step("mamba1"), 16),
    "step of Mamba 2": (step("mamba2"), 16),
}


@pytest.mark.parametrize("name", CASES)
def test_fewer_bits_fail_in_each_result(padfree, name):
    make, bits = CASES[name]
    call, case, wanted = make()
    exact, rough = (call(padfree, **{n: kept_to(b, x) for n, x in case.items()}) for b in (24, bits))
    for result, (value, allowance) in wanted.items():
        assert_close(exact[result], value, allowance, result)
        with pytest.raises(AssertionError, match="elements wrong"):
            assert_close(rough[result], value, allowance, result)
