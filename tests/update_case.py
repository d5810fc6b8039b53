"""One step of the state update, of Mamba 1 or Mamba 2; and its comparison with the oracle."""

import reference
import torch
from cases import randn
from tolerance import assert_close


def inputs(form="mamba1", batch=2, heads=4, dim=6, states=16, groups=2, dtype=torch.float32, device="cpu", tied=True):
    """A dict of every tensor of a call; ``tied``: A, dt and dt_bias of Mamba 2 are one number a head, expanded."""
    channels = (dim,) if form == "mamba1" else (heads, dim)
    steps = (*channels[:-1], 1) if tied and form == "mamba2" else channels
    projection = (batch, states) if form == "mamba1" else (batch, groups, states)
    case = {
        "state": randn(batch, *channels, states, dtype=dtype, seed=0),
        "x": randn(batch, *channels, dtype=dtype, seed=1),
        "dt": randn(batch, *steps, dtype=dtype, seed=2).expand(-1, *channels),
        "A": -randn(*steps, 1 if steps != channels else states, seed=3).abs().expand(*channels, states),
        "B": randn(*projection, dtype=dtype, seed=4),
        "C": randn(*projection, dtype=dtype, seed=5),
        "D": randn(*channels, seed=6),
        "z": randn(batch, *channels, dtype=dtype, seed=7),
        "dt_bias": randn(*steps, seed=8).expand(channels),
    }
    return {**{name: x.to(device) for name, x in case.items()}, "dt_softplus": True}


def call(padfree, **case):
    """``out`` and the state after the call; the caller's state stays."""
    state = case.pop("state").clone()
    out = padfree.selective_state_update(state, **case)
    return {"out": out, "state": state}


def check(padfree, case):
    got = call(padfree, **case)
    for name, (value, allowance) in reference.selective_state_update(**case).items():
        assert_close(got[name], value, allowance, name)
    return got
