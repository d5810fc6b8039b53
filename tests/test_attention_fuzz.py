"""Random calls of the raw attention ops, right and wrong: a result of the right shape, or an error of ours; no crash.

``make soak`` makes more of them for longer (soak.py), on a build with sanitizers, which shows what goes unnoticed here.
"""

import pytest
import torch
from cases import DTYPES, randn

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

SIZE = st.integers(0, 5) | st.sampled_from([1, 8, 17, 65])
NEARLY_ZERO = st.sampled_from([0] * 31 + [1])


def integers(draw, count, top):
    low = -draw(NEARLY_ZERO)
    values = draw(st.lists(st.integers(low, max(top, low)), min_size=count, max_size=count))
    return torch.tensor(values, dtype=torch.int64 if draw(NEARLY_ZERO) else torch.int32)


def ends(draw, rows, count):
    """Boundaries of ``count`` sequences, right nearly always."""
    cuts = sorted(draw(st.lists(st.integers(0, rows), min_size=count, max_size=count)))
    values = draw(st.lists(st.integers(-2, rows + 2), max_size=4)) if draw(NEARLY_ZERO) else [0, *cuts]
    return torch.tensor(values, dtype=torch.int32)


@st.composite
def plain_calls(draw):
    """Arguments of attention_fwd without options; each size may be off by a little."""
    packed, paged = draw(st.booleans()), draw(st.integers(0, 4)) == 0
    dtype, seed = draw(st.sampled_from(DTYPES)), draw(st.integers(0, 99))
    batch, rows, keys, heads_kv = (
        draw(st.integers(0, 3)),
        draw(SIZE),
        draw(SIZE),
        draw(st.sampled_from([1, 2] * 9 + [0])),
    )
    heads, dim, dim_v = heads_kv * draw(st.integers(1, 3)), draw(st.integers(1, 20)), draw(st.integers(1, 20))
    q = [rows, heads, dim] if packed else [batch, rows, heads, dim]
    k = [keys, heads_kv, dim] if packed and not paged else [batch + draw(NEARLY_ZERO), keys, heads_kv, dim]
    call = {
        "q": randn(*q, dtype=dtype, seed=seed),
        "k": randn(*k[:-1], dim + draw(NEARLY_ZERO), dtype=draw(st.sampled_from([dtype] * 40 + DTYPES)), seed=seed + 1),
        "v": randn(*k[:-1], dim_v, dtype=dtype, seed=seed + 2),
        "cu_seqlens_q": ends(draw, rows, batch) if packed else None,
        "cu_seqlens_k": ends(draw, keys, batch) if packed else None,
        "max_seqlen_q": rows - draw(NEARLY_ZERO),
        "max_seqlen_k": keys,
        "softmax_scale": draw(st.sampled_from([0.3, 0.0, -1.0])),
        "causal": draw(st.booleans()),
        "window_left": draw(st.integers(-1, 9)) - draw(NEARLY_ZERO),
        "window_right": draw(st.sampled_from([-1, -1, 3, 2**62])),
        "softcap": draw(st.sampled_from([0.0, 2.0])) - draw(NEARLY_ZERO),
    }
    if paged:
        count = max(len(call["cu_seqlens_q"]) - 1, 0) if packed else batch
        width = draw(st.integers(0, 3))
        call["block_table"] = integers(draw, count * width, batch - 1).view(count, width)
    return call


@st.composite
def calls(draw):
    """A plain call and up to four options, right or off by a little."""
    call = draw(plain_calls())
    packed, heads, rows = call["cu_seqlens_q"] is not None, call["q"].shape[-2], call["q"].shape[-3]
    count, keys = max(len(call["cu_seqlens_q"]) - 1, 0) if packed else len(call["q"]), call["k"].shape[-3]
    slopes = [[heads], [count, heads], [heads + 1]]
    options = {
        "sinks": lambda: randn(heads + draw(NEARLY_ZERO)),
        "alibi_slopes": lambda: randn(*draw(st.sampled_from(slopes))),
        "dropout_p": lambda: draw(st.sampled_from([0.5, 0.99, 1.0])),
        "seqused_q": lambda: integers(draw, count, rows),
        "seqused_k": lambda: integers(draw, count + draw(NEARLY_ZERO), keys),
        "mask": lambda: randn(count, heads, rows, keys + draw(NEARLY_ZERO)) > 0,
        "cache_batch_idx": lambda: integers(draw, count, count - 1),
        "leftpad_k": lambda: integers(draw, count, keys),
    }
    for name in draw(st.sets(st.sampled_from(sorted(options)), max_size=4)):
        call[name] = options[name]()
    return {**call, "rng_state": torch.arange(1 + draw(NEARLY_ZERO))}


@hypothesis.given(call=calls(), strided=st.booleans(), backward=st.booleans())
def test_raw_ops_answer_or_refuse(ops, call, strided, backward):
    for name in ("q", "k", "v") if strided else ():
        call[name] = call[name].repeat_interleave(2, -1)[..., ::2]
    try:
        out, lse = ops.attention_fwd(**call)
        assert out.shape == (*call["q"].shape[:-1], call["v"].shape[-1])
        if backward and not {"block_table", "cache_batch_idx", "leftpad_k"} & set(call):
            gradients = ops.attention_bwd(out, lse, out=out, softmax_lse=lse, **call)
            assert [g.shape for g in gradients[:3]] == [call[name].shape for name in ("q", "k", "v")]
    except RuntimeError as error:
        if not str(error).startswith("attention: "):
            raise
