"""Few queries over many keys, where kernels cut the keys instead of the queries: every option across the cuts."""

import pytest
import reference
import torch
from attention_case import call, check, inputs
from cases import DTYPES, LAYOUTS, dtype_id, randn
from tolerance import assert_close, assert_same_bits

KEYS = [2100, 1030, 300]  # three pieces of 1024 and less, two, one
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_size": (1100, 0)},
    "window_in_one_tile": {"causal": True, "window_size": (5, 0)},
    "softcap": {"causal": True, "softcap": 3.0},
    "alibi": {"causal": True, "alibi_slopes": torch.tensor([0.5, 0.125, 0.01, 0.001])},
    "sinks": {"causal": True, "s_aux": torch.tensor([0.0, 9.0, -30.0, float("-inf")])},
    "everything": {
        "window_size": (1500, 2),
        "softcap": 5.0,
        "alibi_slopes": torch.tensor([0.1, 0.01, 0.001, 0.0]),
        "s_aux": torch.tensor([0.0, 1.0, 2.0, 3.0]),
    },
}
ALL_OPTIONS = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def on(device, options):
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in options.items()}


@ALL_OPTIONS
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_forward_and_backward(padfree, device, dtype, options):
    case = inputs([1, 3, 2], KEYS, (4, 2), (24, 40), dtype, device, packed=True)
    check(padfree, case, **on(device, options))


@pytest.mark.parametrize("heads", [(1, 1), (5, 1), (8, 8), (12, 4)], ids=str)
@pytest.mark.parametrize("dims", [(64, 64), (59, 7), (128, 256)], ids=str)
def test_head_counts_and_dims(padfree, device, heads, dims):
    case = inputs([1, 2], [1500, 1024], heads, dims, device=device, packed=True)
    check(padfree, {name: tensor for name, tensor in case.items() if name not in ("dout", "dlse")}, causal=True)


@ALL_OPTIONS
def test_packed_equals_alone_and_threads_do_not_show(padfree, device, options):
    case = inputs([1, 3, 2], KEYS, (4, 2), (24, 40), device=device, packed=True)
    del case["dout"], case["dlse"]
    options, before, results = on(device, options), torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(call(padfree, **case, **options))
    torch.set_num_threads(before)
    for name, value in results[0].items():
        assert_same_bits(results[1][name], value, name)
        assert_same_bits(results[2][name], value, name)
    row = key = 0
    for seqlen_q, seqlen_k in zip((1, 3, 2), KEYS, strict=True):
        parts = case["q"][row : row + seqlen_q], *(case[name][key : key + seqlen_k] for name in ("k", "v"))
        alone = call(padfree, *(part.unsqueeze(0) for part in parts), **options)
        assert_same_bits(results[0]["out"][row : row + seqlen_q], alone["out"][0], "out")
        assert_same_bits(results[0]["lse"][:, row : row + seqlen_q], alone["lse"][0], "lse")
        row, key = row + seqlen_q, key + seqlen_k


@pytest.mark.parametrize("kind", ["bool", "float", "prefix"])
def test_masks_with_holes(padfree, device, kind):
    q, k, v = (randn(2, s, h, 16, seed=h + s, device=device) for s, h in ((2, 4), (2100, 2), (2100, 2)))
    mask = {
        "bool": randn(2, 4, 2, 2100, seed=9, device=device) > 0,
        "float": randn(1, 4, 2, 2100, seed=9, device=device),
        "prefix": (torch.arange(2100, device=device) < 1030)[None, None, None, :],
    }[kind]
    out, lse, _ = padfree.attention_with_mask(q, k, v, mask, return_attn_probs=True)
    wanted = reference.attention(q, k, v, mask=mask)
    assert_close(out, *wanted["out"], "out")
    assert_close(lse, *wanted["lse"], "lse")


def test_dropout_against_the_mask_it_drew(padfree, device):
    """Weights read off unit values, 500 keys at a time: the same seed keeps the same keys whatever the values."""
    q, k = randn(1, 2, 2, 8, device=device), randn(1, 2100, 2, 8, seed=1, device=device)
    keep = []
    for start in range(0, 2100, 500):
        stop = min(start + 500, 2100)
        values = torch.zeros(1, 2100, 2, stop - start, device=device)
        values[0, start:stop] = torch.eye(stop - start, device=device)[:, None]
        torch.manual_seed(7)
        keep.append(padfree.flash_attn_func(0 * q, k, values, 0.4)[0].transpose(0, 1) > 0)
    keep = torch.cat(keep, -1)
    assert 0.5 < keep.double().mean() < 0.7
    v = randn(1, 2100, 2, 24, seed=2, device=device)
    torch.manual_seed(7)
    out = padfree.flash_attn_func(q, k, v, 0.4)
    assert_close(out, *reference.attention(q, k, v, keep=[keep.cpu()], dropout_p=0.4)["out"])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_never_changes_the_answer(padfree, device, layout):
    q, k, v = (randn(1, s, 2, 24, seed=s, device=device) for s in (1, 1100, 1100))
    wanted = padfree.flash_attn_func(q, k, v)
    got = padfree.flash_attn_func(*(LAYOUTS[layout](tensor) for tensor in (q, k, v)))
    assert_same_bits(got, wanted)


@pytest.mark.parametrize("page_size", [None, 16, 300], ids=["dense", "page16", "page300"])
def test_cache_with_leftpad(padfree, device, page_size):
    """Two rows of a cache, one padded at the left past its first piece, through pages in a shuffled order."""
    lengths, leftpad = torch.tensor([2000, 1700], dtype=torch.int32), torch.tensor([0, 1100], dtype=torch.int32)
    q, k, v = (randn(2, s, h, 16, seed=s + h, device=device) for s, h in ((1, 4), (2100, 2), (2100, 2)))
    table, caches = None, [k.clone(), v.clone()]
    if page_size:
        order = torch.randperm(14 if page_size == 300 else 264, generator=torch.Generator().manual_seed(1))
        table = order.view(2, -1).int()
        padded = [torch.nn.functional.pad(t, (0, 0, 0, 0, 0, table.shape[1] * page_size - 2100)) for t in caches]
        caches = [torch.empty(len(order), page_size, 2, 16).index_copy_(0, order, t.view(-1, page_size, 2, 16))
                  for t in padded]  # fmt: skip
    out = padfree.flash_attn_with_kvcache(
        q, *caches, cache_seqlens=lengths, cache_leftpad=leftpad, block_table=table, causal=True
    )
    for row, (pad, length) in enumerate(zip(leftpad.tolist(), lengths.tolist(), strict=True)):
        wanted = reference.attention(q[row : row + 1], k[row : row + 1, pad:length], v[row : row + 1, pad:length])
        assert_close(out[row : row + 1], *wanted["out"], f"row {row}")
