"""attention_with_mask against the oracle: any 4-D mask, boolean or float, forward and backward."""

import pytest
import reference
import torch
from attention_case import inputs
from cases import DTYPES, LAYOUTS, dtype_id, randn
from tolerance import assert_close, assert_same_bits

BATCH, SEQLEN_Q, SEQLEN_K, HEADS = 2, 33, 70, 4


def causal_mask():
    return torch.ones(SEQLEN_Q, SEQLEN_K, dtype=torch.bool).tril(SEQLEN_K - SEQLEN_Q)[None, None]


def padding_mask():
    return (torch.arange(SEQLEN_K) >= torch.tensor([0, 25])[:, None])[:, None, None, :]


def random_mask(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.3


BOOLEAN = {
    "causal": causal_mask(),
    "padding": padding_mask(),
    "both": causal_mask() & padding_mask(),
    "random": random_mask(BATCH, HEADS, SEQLEN_Q, SEQLEN_K),
    "random_heads": random_mask(1, HEADS, SEQLEN_Q, SEQLEN_K),
    "chunks": (torch.arange(SEQLEN_Q)[:, None] // 8 == torch.arange(SEQLEN_K) // 8)[None, None],
    "nothing": torch.zeros(1, 1, SEQLEN_Q, SEQLEN_K, dtype=torch.bool),
    "everything": torch.ones(1, 1, 1, 1, dtype=torch.bool),
}


def run(padfree, case, mask, **options):
    leaves = {f"d{name}": case[name].detach().requires_grad_() for name in "qkv"}
    mask = mask.detach().requires_grad_() if mask.dtype != torch.bool else mask
    out, lse, _ = padfree.attention_with_mask(*leaves.values(), mask, return_attn_probs=True, **options)
    if mask.requires_grad:
        leaves["dmask"] = mask
    gradients = torch.autograd.grad((out, lse), list(leaves.values()), (case["dout"], case["dlse"]))
    return {"out": out.detach(), "lse": lse.detach(), **dict(zip(leaves, gradients, strict=True))}


def check(padfree, case, mask, **options):
    got = run(padfree, case, mask, **options)
    wanted = reference.attention(**case, mask=mask, **options)
    for name, (value, allowance) in wanted.items():
        assert_close(got[name], value, allowance, name)
    return got


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("name", BOOLEAN)
def test_boolean_mask(padfree, device, name, dtype):
    case = inputs([SEQLEN_Q] * BATCH, [SEQLEN_K] * BATCH, (HEADS, 2), (24, 16), dtype, device)
    check(padfree, case, BOOLEAN[name].to(device))


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("rows", [(2, 4, 33), (1, 4, 33), (2, 1, 33), (1, 1, 1)], ids=str)
def test_float_mask_and_its_gradient(padfree, device, rows, dtype):
    case = inputs([SEQLEN_Q] * BATCH, [SEQLEN_K] * BATCH, (HEADS, 2), (24, 16), dtype, device)
    mask = randn(*rows, SEQLEN_K, dtype=dtype, seed=8, device=device)
    check(padfree, case, mask.masked_fill(~random_mask(*rows, SEQLEN_K).to(device), float("-inf")))


def test_float32_mask_beside_16_bit_inputs(padfree, device):
    case = inputs([SEQLEN_Q] * BATCH, [SEQLEN_K] * BATCH, (HEADS, 2), (24, 16), torch.bfloat16, device)
    check(padfree, case, randn(1, HEADS, SEQLEN_Q, SEQLEN_K, device=device))


def test_mask_beside_causal_softcap_and_sinks(padfree, device):
    case = inputs([SEQLEN_Q] * BATCH, [SEQLEN_K] * BATCH, (HEADS, 2), (24, 16), device=device)
    mask, sinks = BOOLEAN["random"].to(device), randn(HEADS, device=device)
    out, lse, _ = padfree.attention_with_mask(
        case["q"], case["k"], case["v"], mask, causal=True, softcap=4.0, s_aux=sinks, return_attn_probs=True
    )
    wanted = reference.attention(case["q"], case["k"], case["v"], mask=mask, causal=True, softcap=4.0, sinks=sinks)
    assert_close(out, *wanted["out"], "out")
    assert_close(lse, *wanted["lse"], "lse")


def test_a_row_that_sees_nothing_gives_zero(padfree, device):
    case = inputs([SEQLEN_Q] * BATCH, [SEQLEN_K] * BATCH, (HEADS, 2), (24, 16), device=device)
    mask = BOOLEAN["random"].clone().to(device)
    mask[:, :, 5] = False
    got = check(padfree, case, mask)
    assert torch.count_nonzero(got["out"][:, 5]) == 0
    assert torch.count_nonzero(got["dq"][:, 5]) == 0
    assert bool(got["lse"][:, :, 5].isneginf().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=dtype_id)
def test_the_least_number_hides_as_infinity_does(padfree, device, dtype):
    """What masks made for other kernels hold: also a row of nothing else gives 0 rather than a mean."""
    case = inputs([SEQLEN_Q] * BATCH, [SEQLEN_K] * BATCH, (HEADS, 2), (24, 16), dtype, device)
    hidden = ~BOOLEAN["random"].clone().to(device)
    hidden[:, :, 5] = True
    added = torch.zeros(hidden.shape, dtype=dtype, device=device)
    got, wanted = (
        run(padfree, case, added.masked_fill(hidden, least)) for least in (torch.finfo(dtype).min, -float("inf"))
    )
    for name in wanted:
        assert_same_bits(got[name], wanted[name], name)
    assert torch.count_nonzero(got["out"][:, 5]) == 0


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32], ids=dtype_id)
@pytest.mark.parametrize("rows", [(1, 1, 1), (2, 4, 1)], ids=str)
@pytest.mark.parametrize("empty", ["batch", "queries", "keys"])
def test_empty_inputs_give_empty_and_zero_gradients(padfree, device, empty, rows, dtype):
    """A mask that is expanded to no elements has no memory, and nothing reads it."""
    batch, seqlen_q, seqlen_k = (
        0 if name == empty else size for name, size in (("batch", 2), ("queries", 9), ("keys", 70))
    )
    q, k, v = (
        torch.ones(batch, seqlen, heads, 16, device=device, requires_grad=True)
        for seqlen, heads in ((seqlen_q, HEADS), (seqlen_k, 2), (seqlen_k, 2))
    )
    mask = torch.ones(rows[0] if batch else 1, *rows[1:], seqlen_k, dtype=dtype, device=device)
    mask.requires_grad_(dtype != torch.bool)
    out = padfree.attention_with_mask(q, k, v, mask)
    assert out.shape == q.shape
    leaves = [q, k, v] + [mask] * mask.requires_grad
    for leaf, gradient in zip(leaves, torch.autograd.grad(out.sum(), leaves), strict=True):
        assert gradient.shape == leaf.shape
        assert torch.count_nonzero(gradient) == 0


@pytest.mark.parametrize("kind", ["bool", "float32", "dtype"])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("hidden", [slice(0, 25), slice(20, 41), slice(69, 70)], ids=["first", "middle", "last"])
@pytest.mark.parametrize("content", [float("nan"), float("inf")], ids=str)
def test_hidden_keys_hold_anything(padfree, device, hidden, dtype, kind, content):
    """Nothing of a key that the mask hides reaches the others, wherever in the row it is."""
    case = inputs([SEQLEN_Q] * BATCH, [SEQLEN_K] * BATCH, (HEADS, 2), (24, 16), dtype, device)
    mask = causal_mask().expand(BATCH, 1, -1, -1).clone().to(device)
    mask[1, :, :, hidden] = False
    if kind != "bool":
        added = torch.zeros(mask.shape, dtype=torch.float32 if kind == "float32" else dtype, device=device)
        mask = added.masked_fill(~mask, float("-inf"))
    clean = run(padfree, case, mask)
    for name in ("k", "v"):
        case[name][1, hidden] = content
    got = run(padfree, case, mask)
    for name in clean:
        assert_same_bits(got[name], clean[name], name)


@pytest.mark.parametrize("dtype", [torch.bool, *DTYPES], ids=dtype_id)
def test_masks_that_hide_up_to_any_column(padfree, device, dtype):
    """Hidden ends of every length are found, whatever number of columns is looked at together."""
    seqlen_k = 200
    case = inputs([seqlen_k] * BATCH, [seqlen_k] * BATCH, (2, 2), (16, 16), torch.float32, device)
    rows = torch.arange(seqlen_k, device=device)
    mask = (rows[None] <= rows[:, None]) & (rows[None] >= rows[:, None] // 3)
    mask = mask[None, None].clone()
    mask[0, 0, 150, 60:100] = False
    if dtype not in (torch.bool, torch.float32):
        case = {name: tensor.to(dtype) if name in ("q", "k", "v", "dout") else tensor for name, tensor in case.items()}
    if dtype != torch.bool:
        mask = torch.zeros(mask.shape, dtype=dtype, device=device).masked_fill(~mask, float("-inf"))
    check(padfree, case, mask)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in ("odd_offset",)])
def test_layout_of_the_mask_never_changes_the_answer(padfree, device, layout):
    case = inputs([SEQLEN_Q] * BATCH, [SEQLEN_K] * BATCH, (HEADS, 2), (24, 16), device=device)
    mask = randn(BATCH, HEADS, SEQLEN_Q, SEQLEN_K, seed=8, device=device)
    wanted = run(padfree, case, mask)
    got = run(padfree, case, LAYOUTS[layout](mask))
    for name in wanted:
        assert_same_bits(got[name], wanted[name], name)


def test_mask_equal_to_causal_gives_causal(padfree, device):
    case = inputs([SEQLEN_Q] * BATCH, [SEQLEN_K] * BATCH, (HEADS, 2), (24, 16), device=device)
    got = run(padfree, case, causal_mask().to(device))
    wanted = reference.attention(**case, causal=True)
    for name, (value, allowance) in wanted.items():
        assert_close(got[name], value, allowance, name)
