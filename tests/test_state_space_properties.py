"""The state-space scan: random shapes, boundaries, options and layouts against the oracle. ``PADFREE_EXAMPLES`` sets
how many."""

import pytest
import torch
from cases import DTYPES, LAYOUTS
from state_space_case import TOKENS, call, check, inputs
from tolerance import assert_same_bits

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTH = st.one_of(st.integers(0, 12), st.sampled_from([31, 64, 65]))
DIM = st.one_of(st.integers(1, 20), st.sampled_from([32, 33]))
HEADS = st.tuples(st.integers(1, 2), st.integers(1, 9)).map(lambda p: (p[0] * p[1], p[0]))
LIMITS = st.sampled_from([(0.0, float("inf")), (0.0, float("inf")), (0.1, 0.7), (0.4, 0.4)])


def random_seq_idx(rows, length, chance, seed):
    """int32 (B, L): runs that end with this chance at each token; numbers come again, negative ones are padding."""
    ends = torch.rand(rows, length, generator=torch.Generator().manual_seed(seed)) < chance
    return (ends.cumsum(1) % 5 - 1).to(torch.int32)


@st.composite
def calls(draw):
    form = draw(st.sampled_from(["dense", "cu_seqlens", "seq_idx"]))
    lengths = draw(st.lists(LENGTH, min_size=1, max_size=2))
    lengths = lengths if form == "cu_seqlens" else lengths[:1] * len(lengths)
    packed, seed = form == "cu_seqlens", draw(st.integers(0, 1000))
    case = inputs(
        lengths, draw(HEADS), (draw(DIM), draw(DIM)), draw(st.sampled_from(DTYPES)), packed=packed,
        state=draw(st.booleans()), gate=draw(st.booleans()), bias=draw(st.booleans()),
        skip=draw(st.sampled_from([None, "head", "channel"])), slack=draw(st.integers(0, 3)) * packed, seed=seed,
    )  # fmt: skip
    if form == "seq_idx":
        case["seq_idx"] = random_seq_idx(*case["x"].shape[:2], draw(st.sampled_from([0.02, 0.2, 0.9])), seed)
    if not draw(st.booleans()):  # a step is above 0 all the same
        case |= {"dt_softplus": False, "dt": case["dt"].exp()}
        case.pop("dt_bias", None)
    return {**case, "dt_limit": draw(LIMITS)}


@hypothesis.given(case=calls(), layout=st.sampled_from(sorted(LAYOUTS)))
def test_any_call_matches_the_oracle(padfree, case, layout):
    check(
        padfree, {n: LAYOUTS[layout](x) if isinstance(x, torch.Tensor) and x.dim() > 2 else x for n, x in case.items()}
    )


@hypothesis.given(
    lengths=st.lists(LENGTH, min_size=1, max_size=4),
    heads=HEADS,
    dtype=st.sampled_from(DTYPES),
    gate=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_packed_sequence_has_the_bits_of_the_call_alone(padfree, lengths, heads, dtype, gate, seed):
    case = inputs(lengths, heads, (9, 12), dtype, packed=True, gate=gate, seed=seed)
    packed, begin = call(padfree, **case), 0
    for i, length in enumerate(lengths):
        own = {n: x[:, begin : begin + length] if n in TOKENS else x for n, x in case.items() if n != "cu_seqlens"}
        own |= {n: case[n][i : i + 1] for n in ("initial_states", "dfinal_states")}
        alone = call(padfree, **own)
        for name in ("final_states", "dinitial_states"):
            assert_same_bits(packed[name][i : i + 1], alone[name], f"{name} of sequence {i}")
        for name in ("out", "dx", "ddt", "dB", "dC", *(["dz"] if gate else [])):
            assert_same_bits(packed[name][:, begin : begin + length], alone[name], f"{name} of sequence {i}")
        begin += length
