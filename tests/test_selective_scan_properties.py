"""The selective scan and the state update: random shapes, boundaries, options and layouts against the oracle.

``PADFREE_EXAMPLES`` sets how many.
"""

import pytest
import torch
import update_case
from cases import DTYPES, LAYOUTS, channel_last, randn
from scan_case import call, check, forward_only, inputs, only
from tolerance import assert_same_bits

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTH = st.one_of(st.integers(1, 12), st.sampled_from([31, 33, 63, 64, 65, 70]))
GROUPS = st.tuples(st.integers(1, 3), st.integers(1, 20))
STATES = st.one_of(st.integers(1, 9), st.sampled_from([16, 17]))
OPTIONAL = ("D", "z", "delta_bias", "initial_states", "dlast_state")


@st.composite
def calls(draw):
    (groups, each), states, seed = draw(GROUPS), draw(STATES), draw(st.integers(0, 1000))
    packed = {"lengths": draw(st.lists(LENGTH, min_size=1, max_size=3)), "padding": draw(st.integers(0, 3))}
    shape = (draw(st.integers(1, 2)), groups * each, draw(st.integers(0, 70)))
    case = inputs(
        shape, states, groups, draw(st.sampled_from(DTYPES)), **(packed if draw(st.booleans()) else {}), seed=seed
    )
    for name in draw(st.sets(st.sampled_from(["B", "C"]))):
        case[name] = randn(groups * each, states, seed=seed + 20)
    case = only(case, *draw(st.sets(st.sampled_from(OPTIONAL))))
    if draw(st.booleans()):
        return case
    steps = {n: case[n].abs() / 10 for n in ("delta", "delta_bias") if n in case}  # not negative: states do not grow
    return {**case, **steps, "delta_softplus": False}


@hypothesis.given(case=calls(), layout=st.sampled_from([*sorted(LAYOUTS), "channel_last"]))
def test_any_call_matches_the_oracle(padfree, case, layout):
    lay = LAYOUTS.get(layout, channel_last)
    check(padfree, {n: lay(x) if isinstance(x, torch.Tensor) and x.dim() == 3 else x for n, x in case.items()})


@hypothesis.given(
    lengths=st.lists(LENGTH, min_size=1, max_size=4),
    channels=st.integers(1, 40),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
def test_a_call_has_the_bits_of_its_pieces(padfree, lengths, channels, dtype, seed):
    """One call of all tokens, and one after another that hands its states on."""
    case = forward_only(inputs((1, channels, sum(lengths)), dtype=dtype, seed=seed))
    whole, state, begin = call(padfree, **case), case["initial_states"], 0
    for length in lengths:
        span = slice(begin, begin + length)
        part = {n: case[n][..., span] for n in ("u", "delta", "B", "C", "z")}
        got = call(padfree, **{**case, **part, "initial_states": state})
        assert_same_bits(got["out"], whole["out"][..., span], f"out of {length} tokens from {begin}")
        state, begin = got["last_state"], begin + length
    assert_same_bits(state, whole["last_state"], "last_state")


@hypothesis.given(
    form=st.sampled_from(["mamba1", "mamba2"]),
    batch=st.integers(0, 3),
    heads=GROUPS,
    dim=st.integers(1, 40),
    states=st.one_of(st.integers(1, 20), st.sampled_from([32, 64, 65, 128])),
    dtype=st.sampled_from(DTYPES),
    tied=st.booleans(),
    softplus=st.booleans(),
    absent=st.sets(st.sampled_from(["D", "z", "dt_bias"])),
)
def test_any_step_matches_the_oracle(padfree, form, batch, heads, dim, states, dtype, tied, softplus, absent):
    groups, each = heads
    case = update_case.inputs(form, batch, groups * each, dim, states, groups, dtype, tied=tied)
    update_case.check(padfree, {**only(case, *absent), "dt_softplus": softplus})
