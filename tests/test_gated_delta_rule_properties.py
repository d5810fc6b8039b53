"""The gated delta rule and Kimi delta attention: random shapes, boundaries, options and layouts against the oracle.

``PADFREE_EXAMPLES`` sets how many.
"""

import pytest
from cases import DTYPES, LAYOUTS
from delta_case import GATES, call, check, forward_only, inputs, only
from tolerance import assert_same_bits

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTH = st.one_of(st.integers(0, 12), st.sampled_from([31, 33, 63, 64, 65, 70]))
DIM = st.one_of(st.integers(1, 20), st.sampled_from([32, 33]))
HEADS = st.tuples(st.integers(1, 2), st.integers(1, 3)).map(lambda p: (p[0], p[0] * p[1]))


@st.composite
def calls(draw):
    packed, lengths = draw(st.booleans()), draw(st.lists(LENGTH, min_size=1, max_size=3))
    return inputs(
        lengths if packed else lengths[:1] * len(lengths), draw(st.sampled_from(GATES)), draw(HEADS),
        (draw(DIM), draw(DIM)), draw(st.sampled_from(DTYPES)), packed=packed,
        state=draw(st.booleans()), slack=draw(st.integers(0, 3)) * packed,
        seed=draw(st.integers(0, 1000)),
    )  # fmt: skip


@hypothesis.given(case=calls(), layout=st.sampled_from(sorted(LAYOUTS)), recurrent=st.booleans())
def test_any_call_matches_the_oracle(padfree, case, layout, recurrent):
    case = {n: LAYOUTS[layout](x) if x.dim() > 2 else x for n, x in case.items()}
    check(padfree, forward_only(case) if recurrent else case, recurrent=recurrent)


@hypothesis.given(
    lengths=st.lists(LENGTH, min_size=1, max_size=4),
    gate=st.sampled_from(GATES),
    heads=HEADS,
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 1000),
)
def test_a_packed_sequence_has_the_bits_of_the_call_alone(padfree, lengths, gate, heads, dtype, seed):
    case = inputs(lengths, gate, heads, (9, 12), dtype, packed=True, seed=seed)
    packed, begin = call(padfree, **case), 0
    for i, length in enumerate(lengths):
        rows = only(case, "initial_state", "dfinal_state", "cu_seqlens")
        own = {n: x[:, begin : begin + length] for n, x in rows.items()}
        alone = call(padfree, **own, **{n: case[n][i : i + 1] for n in ("initial_state", "dfinal_state")})
        for name, x in alone.items():
            part = packed[name][i : i + 1] if "state" in name else packed[name][:, begin : begin + length]
            assert_same_bits(part, x, f"{name} of sequence {i}")
        begin += length
