"""Packed sequences see only themselves: to the bit, whatever their neighbours hold and however boundaries are given."""

import pytest
import torch
from attention_case import call, check, inputs
from cases import DTYPES, cu_seqlens, dtype_id, embed_in_nan
from tolerance import assert_same_bits

LENGTHS_Q = [70, 1, 33, 0, 129, 16]
LENGTHS_K = [70, 5, 33, 4, 40, 16]
OPTIONS = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window_size": (17, 9)},
    "softcap": {"causal": True, "softcap": 20.0},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_packed_equals_per_sample_to_the_bit(padfree, device, dtype, options):
    case = inputs(LENGTHS_Q, LENGTHS_K, (4, 2), (32, 32), dtype, device, packed=True)
    packed = call(padfree, **case, **options)
    row = key = 0
    for seqlen_q, seqlen_k in zip(LENGTHS_Q, LENGTHS_K, strict=True):
        rows, keys = slice(row, row + seqlen_q), slice(key, key + seqlen_k)
        alone = call(
            padfree,
            *(case[name][span].unsqueeze(0) for name, span in (("q", rows), ("k", keys), ("v", keys))),
            dout=case["dout"][rows].unsqueeze(0),
            dlse=case["dlse"][:, rows].unsqueeze(0),
            **options,
        )
        for name, span in (("out", rows), ("dq", rows), ("dk", keys), ("dv", keys)):
            assert_same_bits(packed[name][span], alone[name][0], f"{name} of rows {row} to {row + seqlen_q}")
        assert_same_bits(packed["lse"][:, rows], alone["lse"][0], "lse")
        row, key = rows.stop, keys.stop


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e4])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("poisoned", [0, 1, 2])
def test_isolation_by_poison(padfree, device, dtype, poison, poisoned):
    lengths = [37, 50, 18]
    case = inputs(lengths, lengths, (4, 2), (32, 32), dtype, device, packed=True)
    clean = call(padfree, **case, causal=True)
    start = sum(lengths[:poisoned])
    span = slice(start, start + lengths[poisoned])
    for name in ("q", "k", "v", "dout"):
        case[name][span] = poison
    case["dlse"][:, span] = poison
    got = call(padfree, **case, causal=True)
    others = [index for index in range(sum(lengths)) if index not in range(span.start, span.stop)]
    for name, value in clean.items():
        dim = 1 if name == "lse" else 0
        index = torch.tensor(others, device=device)
        assert_same_bits(got[name].index_select(dim, index), value.index_select(dim, index), name)


def test_one_batch_row_does_not_reach_another(padfree, device):
    case = inputs([20, 20], [20, 20], device=device)
    clean = call(padfree, **case)
    for name in ("q", "k", "v", "dout"):
        case[name][0] = float("nan")
    got = call(padfree, **case)
    for name, value in clean.items():
        assert_same_bits(got[name][1], value[1], name)


def test_later_keys_do_not_reach_earlier_queries(padfree, device):
    """Causal: the largest numbers in the second half leave the first half's outputs as they were, also in one block."""
    case = inputs([40], [40], device=device)
    clean = call(padfree, case["q"], case["k"], case["v"], causal=True)
    for name in ("k", "v"):
        case[name][:, 21:] = torch.finfo(torch.float32).max
    got = call(padfree, case["q"], case["k"], case["v"], causal=True)
    assert_same_bits(got["out"][:, :21], clean["out"][:, :21], "out")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=dtype_id)
@pytest.mark.parametrize("layout", ["contiguous", "embedded", "strided"])
def test_boundaries_in_every_form(padfree, device, dtype, layout):
    lengths_q, lengths_k = [9, 0, 4], [5, 3, 8]
    case = inputs(lengths_q, lengths_k, device=device, packed=True)
    wanted = check(padfree, case, causal=True)
    for name, lengths in (("cu_seqlens_q", lengths_q), ("cu_seqlens_k", lengths_k)):
        ends = cu_seqlens(lengths, dtype, device)
        if layout == "embedded":
            ends = embed_in_nan(ends)
        elif layout == "strided":
            ends = ends.repeat_interleave(3)[::3]
        case[name] = ends
    got = call(padfree, **case, causal=True)
    for name in wanted:
        assert_same_bits(got[name], wanted[name], name)


@pytest.mark.parametrize("form", ["tensor_int32", "tensor_int64", "upper_bound", "sequence_total"])
def test_max_seqlen_in_every_form(padfree, device, form):
    case = inputs([9, 0, 4], [5, 3, 8], device=device, packed=True)
    wanted = check(padfree, case, causal=True)
    longest = {
        "tensor_int32": (torch.tensor(9, dtype=torch.int32, device=device), torch.tensor(8, dtype=torch.int32)),
        "tensor_int64": (torch.tensor(9, device=device), case["cu_seqlens_k"].diff().max()),
        "upper_bound": (1000, 4096),
        "sequence_total": (13, 16),
    }[form]
    got = call(padfree, **case, causal=True, max_seqlen=longest)
    for name in wanted:
        assert_same_bits(got[name], wanted[name], name)
