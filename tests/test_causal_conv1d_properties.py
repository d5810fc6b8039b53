"""The causal convolution: random shapes, boundaries, states and layouts. ``PADFREE_EXAMPLES`` sets how many."""

import cases
import pytest
import torch
from conv_case import LAYOUTS, check, inputs, run
from tolerance import assert_same_bits

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTH = st.one_of(st.integers(0, 12), st.sampled_from([63, 64, 65, 130]))
CHANNELS = st.one_of(st.integers(1, 40), st.sampled_from([64, 65, 520]))
DTYPE = st.sampled_from(cases.DTYPES)


def numbers(lengths, batch, seed):
    """seq_idx (B, L) with runs of these lengths in each row, all numbered differently, in no order; some padding."""
    count, generator = batch * len(lengths), torch.Generator().manual_seed(seed)
    drawn = torch.randperm(count, generator=generator).to(torch.int32)
    drawn[torch.rand(count, generator=generator) < 0.2] = -1
    return drawn.view(batch, -1).repeat_interleave(torch.tensor(lengths), 1), count


@hypothesis.given(
    lengths=st.lists(LENGTH, min_size=1, max_size=5).filter(any),
    batch=st.integers(1, 3),
    channels=CHANNELS,
    width=st.integers(2, 4),
    dtypes=st.tuples(DTYPE, DTYPE),
    layout=st.sampled_from(sorted(LAYOUTS)),
    options=st.fixed_dictionaries({name: st.booleans() for name in ("bias", "states", "packed", "silu")}),
    seed=st.integers(0, 1000),
)
def test_any_call_matches_the_oracle(padfree, lengths, batch, channels, width, dtypes, layout, options, seed):
    seq_idx, rows = numbers(lengths, batch, seed) if options["packed"] else (None, batch)
    states = rows if options["states"] else 0
    case = inputs(
        batch, channels, sum(lengths), width, dtype=dtypes[0], weight_dtype=dtypes[1], bias=options["bias"],
        states=states, layout=LAYOUTS[layout],
    )  # fmt: skip
    dfinal = cases.randn(rows, channels, width - 1, dtype=dtypes[0], seed=seed) if states else None
    check(padfree, *case, seq_idx=seq_idx, activation="silu" if options["silu"] else None, dfinal=dfinal)


@hypothesis.given(
    lengths=st.lists(LENGTH, min_size=1, max_size=5).filter(any),
    channels=CHANNELS,
    width=st.integers(2, 4),
    dtype=DTYPE,
    layout=st.sampled_from(sorted(LAYOUTS)),
)
def test_a_call_has_the_bits_of_its_pieces(padfree, lengths, channels, width, dtype, layout):
    """One call of all times, and one after another that hands its states on."""
    x, weight, bias, states, _ = inputs(2, channels, sum(lengths), width, dtype=dtype, states=2, layout=LAYOUTS[layout])
    empty = torch.zeros_like(states)
    whole = run(padfree, x, weight, bias, None, states, dfinal=empty)
    begin = 0
    for length in lengths:
        got = run(padfree, x[:, :, begin : begin + length], weight, bias, None, states, dfinal=empty)
        assert_same_bits(got["out"], whole["out"][:, :, begin : begin + length], f"out of {length} from {begin}")
        states, begin = got["final_states"].detach(), begin + length
    assert_same_bits(states, whole["final_states"], "final_states")
