"""Sinks, ALiBi, dropout, used lengths and the FlashAttention 3 names, against the oracle, forward and backward."""

import pytest
import reference
import torch
from attention_case import call, check, inputs
from cases import DTYPES, dtype_id, randn
from tolerance import assert_close, assert_same_bits

FORMS = pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
ALL_DTYPES = pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


@FORMS
@ALL_DTYPES
@CAUSAL
def test_sinks(padfree, device, causal, dtype, packed):
    case = inputs([40, 40], [70, 70], (4, 2), (32, 32), dtype, device, packed)
    check(padfree, case, s_aux=randn(4, dtype=dtype, seed=9, device=device), causal=causal)


@pytest.mark.parametrize("options", [{"window_size": (7, 0)}, {"softcap": 3.0, "causal": True}], ids=str)
@pytest.mark.parametrize("scale", [1.0, 30.0, -30.0])
def test_sinks_large_and_small(padfree, device, scale, options):
    """A sink far above every score takes all the weight; far below, none."""
    case = inputs([33], [50], (4, 4), device=device)
    check(padfree, case, s_aux=scale * torch.ones(4, device=device), **options)


def test_sinks_where_no_key_is_seen(padfree, device):
    case = inputs([9, 3], [4, 0], (2, 2), device=device, packed=True)
    sinks = randn(2, seed=5, device=device)
    got = check(padfree, case, s_aux=sinks, causal=True)
    dead = [0, 1, 2, 3, 4, 9, 10, 11]
    assert torch.count_nonzero(got["out"][dead]) == 0
    assert_same_bits(got["lse"][:, dead], sinks[:, None].expand(-1, len(dead)), "lse")


def test_sink_of_minus_infinity_is_no_sink(padfree, device):
    case = inputs([20, 5], [20, 5], device=device, packed=True)
    plain = call(padfree, **case, causal=True)
    got = call(padfree, **case, causal=True, s_aux=torch.full((2,), float("-inf"), device=device))
    for name in plain:
        assert_same_bits(got[name], plain[name], name)
    assert torch.count_nonzero(got["dsinks"]) == 0


@FORMS
@CAUSAL
@pytest.mark.parametrize("per_sequence", [False, True], ids=["heads", "sequences_heads"])
@pytest.mark.parametrize("lengths", [(33, 33), (20, 70), (70, 20)], ids=str)
def test_alibi(padfree, device, lengths, per_sequence, causal, packed):
    case = inputs([lengths[0]] * 2, [lengths[1]] * 2, (4, 2), device=device, packed=packed)
    slopes = randn(2, 4, seed=3, device=device).abs() if per_sequence else 2.0 ** -torch.arange(1.0, 5, device=device)
    check(padfree, case, alibi_slopes=slopes, causal=causal)


@ALL_DTYPES
def test_alibi_with_everything(padfree, device, dtype):
    case = inputs([20, 41], [33, 41], (4, 2), (40, 24), dtype, device, packed=True)
    options = {"causal": True, "window_size": (12, 0), "softcap": 8.0, "s_aux": randn(4, seed=2, device=device)}
    check(padfree, case, alibi_slopes=randn(2, 4, seed=3, device=device), **options)


def test_alibi_is_the_same_in_prefill_and_decode(padfree, device):
    case = inputs([16], [16], (2, 2), device=device)
    q, k, v = case["q"], case["k"], case["v"]
    slopes = torch.tensor([0.5, 0.125], device=device)
    whole = padfree.flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes)
    last = padfree.flash_attn_func(q[:, -1:], k, v, causal=True, alibi_slopes=slopes)
    wanted, allowance = reference.attention(q, k, v, causal=True, alibi_slopes=slopes)["out"]
    assert_close(whole, wanted, allowance, "prefill")
    assert_close(last, wanted[:, -1:], allowance[:, -1:], "decode")


def kept_weights(padfree, lengths, heads, dropout_p, seed, device, packed=True):
    """Which weights a seed keeps, read off the output: equal scores, and values that are unit vectors."""
    kept = []
    row = 0
    case = inputs([m for m, _ in lengths], [n for _, n in lengths], heads, (8, max(n for _, n in lengths)), packed=True)
    case = {name: tensor.to(device) for name, tensor in case.items()}
    for _, seqlen_k in lengths:
        case["v"][row : row + seqlen_k] = torch.eye(seqlen_k, case["v"].shape[-1], device=device)[:, None]
        row += seqlen_k
    torch.manual_seed(seed)
    out = call(padfree, 0 * case["q"], case["k"], case["v"], None, None, case["cu_seqlens_q"], case["cu_seqlens_k"],
               dropout_p=dropout_p)["out"]  # fmt: skip
    row = 0
    for seqlen_q, seqlen_k in lengths:
        kept.append((out[row : row + seqlen_q, :, :seqlen_k] > 0).transpose(0, 1).cpu())
        row += seqlen_q
    return kept


LENGTHS = [(37, 60), (1, 130), (64, 64)]


@ALL_DTYPES
@pytest.mark.parametrize("dropout_p", [0.1, 0.5, 0.9])
def test_dropout_against_the_mask_it_drew(padfree, device, dropout_p, dtype):
    keep = kept_weights(padfree, LENGTHS, (4, 2), dropout_p, 11, device)
    case = inputs([m for m, _ in LENGTHS], [n for _, n in LENGTHS], (4, 2), (32, 24), dtype, device, packed=True)
    torch.manual_seed(11)
    got = call(padfree, **case, causal=True, dropout_p=dropout_p)
    wanted = reference.attention(**case, causal=True, dropout_p=dropout_p, keep=keep)
    for name, (value, allowance) in wanted.items():
        assert_close(got[name], value, allowance, name)


def test_dropout_keeps_the_share_it_should(padfree, device):
    """Of n weights about n (1 - p) stay, up to six standard deviations; the seed is fixed."""
    for dropout_p in (0.1, 0.5):
        keep = torch.cat([kept.flatten() for kept in kept_weights(padfree, LENGTHS, (4, 4), dropout_p, 3, device)])
        deviation = (dropout_p * (1 - dropout_p) / keep.numel()) ** 0.5
        assert abs(keep.double().mean().item() - (1 - dropout_p)) < 6 * deviation


def test_dropout_differs_by_seed_head_sequence_and_call(padfree, device):
    one = kept_weights(padfree, [(40, 40), (40, 40)], (2, 2), 0.5, 1, device)
    other = kept_weights(padfree, [(40, 40), (40, 40)], (2, 2), 0.5, 2, device)
    assert not torch.equal(one[0], other[0])
    assert not torch.equal(one[0], one[1])
    assert not torch.equal(one[0][0], one[0][1])
    case = inputs([40], [40], device=device)
    first, second = (call(padfree, case["q"], case["k"], case["v"], dropout_p=0.5)["out"] for _ in range(2))
    assert not torch.equal(first, second)


def test_dropout_repeats_with_its_seed_on_any_number_of_threads(padfree, device):
    case = inputs([100, 30], [100, 30], (4, 2), device=device, packed=True)
    results = []
    before = torch.get_num_threads()
    for count in (1, 2, 2, 3):
        torch.set_num_threads(count)
        torch.manual_seed(5)
        results.append(call(padfree, **case, causal=True, dropout_p=0.3))
    torch.set_num_threads(before)
    for other in results[1:]:
        for name, value in results[0].items():
            assert_same_bits(other[name], value, name)


def test_dropout_leaves_the_lse_alone(padfree, device):
    case = inputs([33], [50], device=device)
    plain = call(padfree, case["q"], case["k"], case["v"])
    assert_same_bits(call(padfree, case["q"], case["k"], case["v"], dropout_p=0.4)["lse"], plain["lse"], "lse")


def test_checkpointing_repeats_the_mask(padfree, device):
    """Recomputation in the backward draws the same numbers again, since torch restores the generator's state."""
    case = inputs([40], [40], device=device)

    def attend(q):
        return padfree.flash_attn_func(q, case["k"], case["v"], dropout_p=0.5)

    gradients = []
    for checkpointed in (False, True):
        torch.manual_seed(3)
        q = case["q"].clone().requires_grad_()
        out = torch.utils.checkpoint.checkpoint(attend, q, use_reentrant=False) if checkpointed else attend(q)
        gradients += torch.autograd.grad(out, q, case["dout"])
    assert_same_bits(gradients[1], gradients[0])


@CAUSAL
def test_used_lengths(padfree, device, causal):
    """seqused: the same as packing only the used rows; the others are slack."""
    lengths, used_q, used_k = [30, 8, 5, 12], [17, 8, 0, 12], [30, 3, 5, 0]
    case = inputs(lengths, lengths, (4, 2), device=device, packed=True)
    for name in ("q", "k", "v", "dout"):
        start = 0
        for length, used in zip(lengths, used_q if name in ("q", "dout") else used_k, strict=True):
            case[name][start + used : start + length] = float("nan")
            start += length
    got = call(padfree, **case, causal=causal, seqused_q=torch.tensor(used_q, dtype=torch.int32, device=device),
               seqused_k=torch.tensor(used_k, device=device))  # fmt: skip
    rows_q = [s + i for s, u in zip((0, 30, 38, 43), used_q, strict=True) for i in range(u)]
    rows_k = [s + i for s, u in zip((0, 30, 38, 43), used_k, strict=True) for i in range(u)]
    tight = inputs(used_q, used_k, (4, 2), device=device, packed=True)
    for name, rows in (("q", rows_q), ("k", rows_k), ("v", rows_k), ("dout", rows_q)):
        tight[name] = case[name][rows]
    tight["dlse"] = case["dlse"][:, rows_q]
    wanted = check(padfree, tight, causal=causal)
    for name, rows in (("out", rows_q), ("dq", rows_q), ("dk", rows_k), ("dv", rows_k)):
        assert_same_bits(got[name][rows], wanted[name], name)
        rest = torch.ones(len(got[name]), dtype=torch.bool)
        rest[rows] = False
        assert torch.count_nonzero(got[name][rest]) == 0, name
    assert_same_bits(got["lse"][:, rows_q], wanted["lse"], "lse")
    assert int(got["lse"].isneginf().sum()) == int(wanted["lse"].isneginf().sum()) + 4 * (55 - len(rows_q))


@FORMS
def test_names_of_flash_attention_3(padfree, device, packed):
    case = inputs([20, 20], [20, 20], (4, 2), device=device, packed=packed)
    sinks = randn(4, device=device)
    qkv = {name: tensor for name, tensor in case.items() if name not in ("dout", "dlse")}
    wanted = call(padfree, **qkv, s_aux=sinks, causal=True)
    for splits in (0, 1, 7):
        got = call(padfree, **qkv, learnable_sink=sinks, num_splits=splits, causal=True)
        for name in wanted:
            assert_same_bits(got[name], wanted[name], name)


@pytest.mark.parametrize("page_size", [1, 5, 16, 256])
def test_packed_queries_against_pages(padfree, device, page_size):
    lengths_q, lengths_k = [7, 1, 12], [20, 33, 12]
    case = inputs(lengths_q, lengths_k, (4, 2), (16, 8), device=device, packed=True)
    pages = [-(-n // page_size) for n in lengths_k]
    order = torch.randperm(sum(pages), generator=torch.Generator().manual_seed(0)).tolist()
    table = torch.full((3, max(pages)), -1, dtype=torch.int32, device=device)
    paged = {
        n: torch.full((sum(pages), page_size, *case[n].shape[1:]), float("nan"), device=device) for n in ("k", "v")
    }
    start = 0
    for sequence, length in enumerate(lengths_k):
        for index in range(pages[sequence]):
            table[sequence, index] = order.pop()
        for token in range(length):
            for name, cache in paged.items():
                cache[table[sequence, token // page_size], token % page_size] = case[name][start + token]
        start += length
    qkv = {name: tensor for name, tensor in case.items() if name not in ("dout", "dlse")}
    wanted = call(padfree, **qkv, causal=True)
    for name in ("block_table", "page_table"):
        got = call(padfree, **{**qkv, **paged}, causal=True, **{name: table})
        assert_same_bits(got["out"], wanted["out"], "out")
        assert_same_bits(got["lse"], wanted["lse"], "lse")
