"""Random shapes, options and layouts against the oracle. ``PADFREE_EXAMPLES`` sets how many."""

import pytest
import reference
import torch
from attention_case import check, inputs
from cases import DTYPES, LAYOUTS, randn
from tolerance import assert_close

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

LENGTH = st.one_of(st.integers(0, 20), st.sampled_from([31, 32, 33, 64, 65, 95, 97, 130]))
HEADS = st.tuples(st.integers(1, 3), st.integers(1, 4)).map(lambda p: (p[0] * p[1], p[0]))
DIM = st.one_of(st.integers(1, 40), st.sampled_from([64, 72, 128]))
WINDOW = st.tuples(st.integers(-1, 70), st.integers(-1, 70))


@st.composite
def calls(draw):
    packed = draw(st.booleans())
    if packed:
        pairs = draw(st.lists(st.tuples(LENGTH, LENGTH), min_size=1, max_size=4))
    else:
        pairs = [draw(st.tuples(LENGTH, LENGTH))] * draw(st.integers(1, 2))
    return {
        "lengths_q": [pair[0] for pair in pairs],
        "lengths_k": [pair[1] for pair in pairs],
        "heads": draw(HEADS),
        "dims": (draw(DIM), draw(DIM)),
        "dtype": draw(st.sampled_from(DTYPES)),
        "packed": packed,
        "seed": draw(st.integers(0, 1000)),
    }


@st.composite
def options(draw):
    return {
        "causal": draw(st.booleans()),
        "window_size": draw(st.one_of(st.just((-1, -1)), WINDOW)),
        "softcap": draw(st.sampled_from([0.0, 0.0, 1.5, 30.0])),
        "softmax_scale": draw(st.sampled_from([None, 0.2, 1.0])),
    }


@st.composite
def modifiers(draw, heads, sequences):
    """Sinks and ALiBi slopes, each absent, shared or of its own for each sequence."""
    chosen = {}
    if draw(st.booleans()):
        chosen["s_aux"] = randn(heads, seed=draw(st.integers(0, 9))) * draw(st.sampled_from([1.0, 20.0]))
    slopes = draw(st.sampled_from([None, (heads,), (sequences, heads)]))
    if slopes is not None:
        chosen["alibi_slopes"] = randn(*slopes, seed=draw(st.integers(0, 9))).abs()
    return chosen


@hypothesis.given(arguments=calls(), chosen=options(), layout=st.sampled_from(sorted(LAYOUTS)), data=st.data())
def test_any_call_matches_the_oracle(padfree, device, arguments, chosen, layout, data):
    chosen.update(data.draw(modifiers(arguments["heads"][0], len(arguments["lengths_q"]))))
    case = inputs(**arguments, device=device)
    for name in ("q", "k", "v", "dout"):
        case[name] = LAYOUTS[layout](case[name])
    check(padfree, case, **chosen)


@hypothesis.given(
    seqlen_k=st.integers(1, 140),
    cut=st.floats(0, 1),
    dtype=st.sampled_from(DTYPES),
    softcap=st.sampled_from([0.0, 5.0]),
)
def test_parts_of_the_keys_merge(padfree, device, seqlen_k, cut, dtype, softcap):
    """Attention over all keys is the mean of attention over two parts, weighted by their lse; a part may be empty."""
    case = inputs([13], [seqlen_k], (4, 2), (16, 8), dtype, device)
    q, k, v = (case[name] for name in ("q", "k", "v"))
    whole = reference.attention(q, k, v, softcap=softcap)
    split = round(cut * seqlen_k)
    merged, allowance = 0.0, 0.0
    for span in (slice(0, split), slice(split, seqlen_k)):
        out, lse, _ = padfree.flash_attn_func(q, k[:, span], v[:, span], softcap=softcap, return_attn_probs=True)
        wanted = reference.attention(q, k[:, span], v[:, span], softcap=softcap)
        weight = torch.exp(lse.double() - whole["lse"][0]).transpose(1, 2).unsqueeze(-1)
        lse_error = wanted["lse"][1].transpose(1, 2).unsqueeze(-1)
        merged = merged + weight * out.double()
        allowance = allowance + weight * (wanted["out"][1] + torch.expm1(lse_error) * out.double().abs())
    assert_close(merged, whole["out"][0], allowance, "merged out")


@hypothesis.given(
    lengths=st.tuples(st.integers(1, 20), st.integers(1, 150)),
    heads=HEADS,
    dtype=st.sampled_from(DTYPES),
    chosen=options(),
    density=st.sampled_from([0.0, 0.1, 0.7, 1.0]),
    blocks=st.integers(1, 70),
    boolean=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_mask_matches_the_oracle(padfree, device, lengths, heads, dtype, chosen, density, blocks, boolean, seed):
    """Masks of random blocks of keys, so that tiles are full, empty and mixed."""
    del chosen["window_size"]
    case = inputs([lengths[0]] * 2, [lengths[1]] * 2, heads, (16, 8), dtype, device, seed=seed)
    seen = torch.rand(2, heads[0], lengths[0], -(-lengths[1] // blocks), generator=torch.Generator().manual_seed(seed))
    mask = (seen < density).repeat_interleave(blocks, -1)[..., : lengths[1]].to(device)
    if not boolean:
        mask = randn(*mask.shape, dtype=dtype, seed=seed, device=device).masked_fill(~mask, float("-inf"))
    out, lse, _ = padfree.attention_with_mask(case["q"], case["k"], case["v"], mask, return_attn_probs=True, **chosen)
    wanted = reference.attention(case["q"], case["k"], case["v"], mask=mask, **chosen)
    assert_close(out, *wanted["out"], "out")
    assert_close(lse, *wanted["lse"], "lse")
