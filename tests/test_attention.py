"""flash_attn_func and flash_attn_varlen_func against the float64 oracle, forward and backward."""

import pytest
import reference
import torch
from attention_case import call, check, inputs
from cases import DTYPES, LAYOUTS, LENGTHS, cu_seqlens, dtype_id, embed_in_nan, randn
from tolerance import assert_close, assert_same_bits

FORMS = pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
ALL_DTYPES = pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


@FORMS
@ALL_DTYPES
@pytest.mark.parametrize("heads", [(8, 8), (8, 2), (8, 1), (6, 3), (12, 1)], ids=str)
def test_grouped_heads(padfree, device, heads, dtype, packed):
    lengths = [33, 5, 20] if packed else [33, 33]
    check(padfree, inputs(lengths, lengths, heads, (64, 64), dtype, device, packed), causal=True)


@CAUSAL
@FORMS
@pytest.mark.parametrize("lengths", [(5, 2), (2, 5), (1, 9), (9, 1), (130, 67), (67, 130), (1, 300), (300, 1)], ids=str)
def test_unequal_lengths_and_dead_rows(padfree, device, lengths, packed, causal):
    seqlen_q, seqlen_k = lengths
    got = check(padfree, inputs([seqlen_q] * 2, [seqlen_k] * 2, (4, 2), device=device, packed=packed), causal=causal)
    dead = max(seqlen_q - seqlen_k, 0) if causal else 0
    dead_rows = {n: got[n] if packed else got[n].flatten(0, 1) for n in ("out", "dq")}
    for name, rows in dead_rows.items():
        assert torch.count_nonzero(rows.unflatten(0, (2, seqlen_q))[:, :dead]) == 0, name
    assert int(got["lse"].isneginf().sum()) == 2 * 4 * dead


@CAUSAL
@pytest.mark.parametrize("length", LENGTHS)
def test_every_block_edge(padfree, device, length, causal):
    check(padfree, inputs([length], [length], (2, 1), device=device), causal=causal)


@pytest.mark.parametrize("length", [7, 97, 257])
@ALL_DTYPES
def test_block_edges_in_every_dtype(padfree, device, length, dtype):
    check(padfree, inputs([length, 1], [length, 3], (3, 1), (24, 40), dtype, device, packed=True), causal=True)


@FORMS
@pytest.mark.parametrize(
    ("window", "causal"),
    [
        *[((0, 0), False), ((3, 0), False), ((15, 0), False), ((16, 0), False), ((99, 0), False), ((3, 3), True)],
        *[((1, 2), False), ((-1, 1), False), ((0, -1), False), ((-1, 0), True), ((2, -1), True)],
    ],
)
def test_window(padfree, device, window, causal, packed):
    case = inputs([16, 16], [16, 16], (2, 2), device=device, packed=packed)
    check(padfree, case, window_size=window, causal=causal)


@pytest.mark.parametrize("window", [(64, 0), (5, 70), (127, 128), (0, 0)], ids=str)
@pytest.mark.parametrize("lengths", [(200, 200), (150, 290), (290, 150)], ids=str)
def test_window_skips_whole_blocks(padfree, device, window, lengths):
    check(padfree, inputs([lengths[0]], [lengths[1]], (2, 1), device=device), window_size=window)


def test_window_that_hides_nothing_is_plain_causal(padfree, device):
    case = inputs([16], [16], device=device)
    plain, windowed = call(padfree, **case, causal=True), call(padfree, **case, window_size=(15, 0))
    for name in plain:
        assert_same_bits(windowed[name], plain[name], name)


@pytest.mark.parametrize("window", [(3, 0), (0, 0), (31, -1)], ids=str)
def test_window_of_one_query_against_many_keys(padfree, device, window):
    check(padfree, inputs([1, 1], [80, 80], (4, 2), device=device), window_size=window, causal=True)


@ALL_DTYPES
@FORMS
@pytest.mark.parametrize("softcap", [0.7, 20.0, 50.0])
def test_softcap(padfree, device, softcap, packed, dtype):
    case = inputs([40, 40], [40, 40], (4, 2), (32, 32), dtype, device, packed)
    check(padfree, case, softcap=softcap, causal=True)


@pytest.mark.parametrize("softcap", [0.7, 20.0])
def test_softcap_leaks_nothing_from_hidden_keys(padfree, device, softcap):
    """Later values times 8: a key that softcap lets through the mask would show in every earlier row."""
    case = inputs([33], [33], device=device)
    case["v"][:, 17:] *= 8
    check(padfree, case, softcap=softcap, causal=True)


@ALL_DTYPES
@pytest.mark.parametrize("dim", [1, 7, 8, 40, 59, 64, 96, 111, 128, 160, 256, 512])
def test_head_dims(padfree, device, dim, dtype):
    check(padfree, inputs([19], [35], (2, 1), (dim, dim), dtype, device), causal=True)


@pytest.mark.parametrize("dims", [(64, 40), (40, 64), (192, 128), (8, 512), (512, 8), (1, 1), (17, 3)], ids=str)
def test_value_dim_of_its_own(padfree, device, dims):
    check(padfree, inputs([21, 3], [30, 9], (2, 2), dims, torch.float32, device, packed=True))


@FORMS
@ALL_DTYPES
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_never_changes_the_answer(padfree, device, layout, dtype, packed):
    case = inputs([37, 37], [37, 37], (4, 2), (24, 24), dtype, device, packed)
    plain = call(padfree, **case, causal=True)
    for name in ("q", "k", "v", "dout"):
        case[name] = LAYOUTS[layout](case[name])
    got = call(padfree, **case, causal=True)
    for name in plain:
        assert_same_bits(got[name], plain[name], name)


def test_expanded_heads_are_the_heads_they_repeat(padfree, device):
    case = inputs([20], [31], (4, 1), (16, 16), device=device)
    wide = dict(case, k=case["k"].expand(-1, -1, 4, -1), v=case["v"].expand(-1, -1, 4, -1))
    grouped = check(padfree, case, causal=True)
    expanded = check(padfree, wide, causal=True)
    assert_same_bits(expanded["out"], grouped["out"], "out")


def test_expanded_output_gradient(padfree, device):
    """``out.sum().backward()`` hands over a gradient whose strides are all 0."""
    case = inputs([20], [31], (2, 2), device=device)
    case["dout"] = torch.ones((), device=device).expand(case["dout"].shape)
    check(padfree, case)


def test_softmax_scale(padfree, device):
    case = inputs([20], [31], device=device)
    for softmax_scale in (0.0, 1.0, 0.37, -0.25):
        check(padfree, case, softmax_scale=softmax_scale)


def test_large_scores_stay_finite(padfree, device):
    """Scores of a few thousand: one key takes all the weight and nothing overflows."""
    case = inputs([33], [65], device=device)
    case["q"] *= 40
    case["k"] *= 40
    check(padfree, case, causal=True)


@pytest.mark.parametrize("wanted", ["out", "lse"])
def test_gradient_of_one_output_alone(padfree, device, wanted):
    case = inputs([9, 2], [12, 0], device=device, packed=True)
    del case["dlse" if wanted == "out" else "dout"]
    check(padfree, case, causal=True)


@CAUSAL
def test_empty_sequences_inside_a_pack(padfree, device, causal):
    case = inputs([0, 3, 0, 4, 0], [3, 0, 0, 6, 0], (2, 1), device=device, packed=True)
    got = check(padfree, case, causal=causal)
    assert torch.count_nonzero(got["dk"][:3]) == 0
    assert torch.count_nonzero(got["dv"][:3]) == 0


def test_fewer_tokens_than_sequences(padfree, device):
    check(padfree, inputs([0, 1, 0, 0, 1, 0, 0], [0, 1, 0, 1, 0, 0, 0], device=device, packed=True), causal=True)


@pytest.mark.parametrize("lengths", [([0], [0]), ([0], [5]), ([5], [0]), ([0, 0], [0, 0])], ids=str)
def test_nothing_to_do(padfree, device, lengths):
    check(padfree, inputs(*lengths, device=device, packed=True))


@pytest.mark.parametrize(
    "shape", [(0, 3, 3), (2, 0, 3), (2, 3, 0), (2**40, 0, 0)], ids=["batch", "queries", "keys", "huge batch of nothing"]
)
def test_empty_dense_inputs(padfree, device, shape):
    batch, seqlen_q, seqlen_k = shape
    q, k = randn(batch, seqlen_q, 2, 8, device=device), randn(batch, seqlen_k, 2, 8, device=device)
    got = call(padfree, q, k, k, dout=torch.ones_like(q))
    assert got["out"].shape == q.shape
    for name in ("out", "dq", "dk", "dv"):
        assert torch.count_nonzero(got[name]) == 0, name
    assert bool(got["lse"].isneginf().all())


@ALL_DTYPES
def test_slack_rows(padfree, device, dtype):
    """Rows of no sequence: out 0, lse -inf, gradients 0, whatever memory and NaN they hold."""
    case = inputs([5, 4], [6, 7], (2, 1), (16, 16), dtype, device, packed=True)
    padded = dict(case)
    for name in ("q", "k", "v", "dout"):
        padded[name] = torch.cat([case[name], torch.full_like(case[name][:3], float("nan"))])
    padded["dlse"] = torch.cat([case["dlse"], torch.full_like(case["dlse"][:, :3], float("nan"))], 1)
    got, wanted = call(padfree, **padded), check(padfree, case)
    for name, value in wanted.items():
        length = value.shape[1] if name == "lse" else value.shape[0]
        rows = got[name].transpose(0, 1) if name == "lse" else got[name]
        assert_same_bits(rows[:length], value.transpose(0, 1) if name == "lse" else value, name)
        slack = rows[length:]
        assert bool((slack.isneginf() if name == "lse" else slack == 0).all()), name


def test_inputs_are_not_written_to(padfree, device):
    case = {n: embed_in_nan(t) for n, t in inputs([40, 9], [40, 9], (4, 2), device=device, packed=True).items()}
    case["cu_seqlens_q"], case["cu_seqlens_k"] = cu_seqlens([40, 9], device=device), cu_seqlens([40, 9], device=device)
    before = {name: tensor.clone() for name, tensor in case.items()}
    call(padfree, **case, causal=True)
    for name, tensor in before.items():
        assert_same_bits(case[name], tensor, name)


def test_far_strides(padfree, device):
    """Element offsets past 2**31: rows 2**30 elements apart; only the pages of the rows themselves are ever touched."""
    case = inputs([3], [3], (2, 2), (8, 8), torch.bfloat16, device)
    storage = torch.empty(2**31 + 2**10, dtype=torch.bfloat16, device=device)
    wanted = call(padfree, **case, causal=True)
    for offset, name in enumerate(("q", "k", "v", "dout")):
        far = storage.as_strided((1, 3, 2, 8), (0, 2**30, 8, 1), 64 * offset)
        far.copy_(case[name])
        case[name] = far
    got = call(padfree, **case, causal=True)
    for name in wanted:
        assert_same_bits(got[name], wanted[name], name)


def test_returns_what_flash_attn_returns(padfree, device):
    case = inputs([4], [4], device=device)
    q, k, v = case["q"], case["k"], case["v"]
    out = padfree.flash_attn_func(q, k, v)
    assert isinstance(out, torch.Tensor)
    triple = padfree.flash_attn_func(q, k, v, 0.0, None, False, (-1, -1), 0.0, None, False, True)
    assert len(triple) == 3
    assert triple[2] is None
    assert_same_bits(triple[0], out)
    assert triple[1].shape == (1, 2, 4)
    assert_close(triple[1], *reference.attention(q, k, v)["lse"], "lse is a natural logarithm")
