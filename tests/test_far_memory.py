"""Offsets past 2**31 elements: batch rows of every argument lie that far apart, and the results stay as they were.

Attention and the convolution have such a test of their own. Pages that nothing touches cost nothing.
"""

import delta_case
import pytest
import scan_case
import state_space_case
import torch
from tolerance import assert_same_bits

FAR = 2**31


def far_apart(case):
    """The case with each tensor of two batch rows laid out anew."""
    moved, storages, used = dict(case), {}, 0
    room = sum(x.numel() for x in case.values() if isinstance(x, torch.Tensor))
    for name, x in case.items():
        if isinstance(x, torch.Tensor) and x.dim() > 2 and x.shape[0] == 2:
            if x.dtype not in storages:
                storages[x.dtype] = torch.empty(FAR + room, dtype=x.dtype)
            moved[name] = storages[x.dtype].as_strided(x.shape, (FAR, *x.stride()[1:]), used).copy_(x)
            used += x[0].numel()
    return moved


CASES = {
    "delta rule": (delta_case, lambda: delta_case.inputs([9, 9], dtype=torch.bfloat16)),
    "kda": (delta_case, lambda: delta_case.inputs([9, 9], "channel", dtype=torch.bfloat16)),
    "state space": (state_space_case, lambda: state_space_case.inputs([9, 9], dtype=torch.bfloat16, gate=True)),
    "scan": (scan_case, lambda: scan_case.inputs((2, 20, 9), dtype=torch.bfloat16)),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_far_apart(padfree, name):
    module, make = CASES[name]
    case = make()
    wanted = module.call(padfree, **case)
    far = far_apart(case)
    assert sum(x.stride(0) == FAR for x in far.values() if isinstance(x, torch.Tensor)) > 5
    for result, got in module.call(padfree, **far).items():
        assert_same_bits(got, wanted[result], result)
