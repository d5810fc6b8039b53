"""Rotary embedding against float64, in every form that flash-attn has of it."""

import pytest
import reference
import torch
from cases import DTYPES, LAYOUTS, cu_seqlens, dtype_id, embed_in_nan, randn
from tolerance import assert_close, assert_same_bits

HEADS, DIM, POSITIONS = 3, 16, 40
ALL_DTYPES = pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
STYLES = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])


def tables(width=DIM, dtype=torch.float32, positions=POSITIONS):
    angle = torch.arange(positions)[:, None] * 100.0 ** (-torch.arange(width // 2) / (width // 2))
    return angle.cos().to(dtype), angle.sin().to(dtype)


def positions_of(batch, seqlen, offsets=0):
    """(batch, seqlen)."""
    starts = torch.as_tensor(offsets).expand(batch)
    return starts[:, None] + torch.arange(seqlen)


@ALL_DTYPES
@STYLES
@pytest.mark.parametrize("width", [2, 6, DIM])
@pytest.mark.parametrize("offsets", [0, 7, torch.tensor([5, 0, 31])], ids=["start", "offset", "offsets"])
@pytest.mark.parametrize("inplace", [False, True], ids=["copy", "inplace"])
def test_against_float64(padfree, inplace, offsets, width, interleaved, dtype):
    """The result, and the gradient, which is the turn the other way; storage around x is NaN and stays."""
    cos, sin = tables(width, dtype)
    x, back = randn(3, 9, HEADS, DIM, dtype=dtype), randn(3, 9, HEADS, DIM, dtype=dtype, seed=1)
    leaf = x.clone().requires_grad_()
    given = embed_in_nan(leaf) if inplace else leaf
    storage = given._base.detach() if inplace else None
    got = padfree.rotary.apply_rotary_emb(given, cos, sin, interleaved, inplace, offsets)
    assert (got is given) == inplace
    wanted = reference.rotary(x, cos, sin, positions_of(3, 9, offsets), interleaved, back)
    assert_close(got, *wanted["out"], "out")
    assert_close(torch.autograd.grad(got, leaf, back)[0], *wanted["dx"], "dx")
    assert_same_bits(leaf, x, "the leaf")
    if inplace:
        assert storage.isnan().sum() == storage.numel() - x.numel()


@STYLES
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_changes_no_bit(padfree, layout, interleaved):
    x, (cos, sin) = randn(2, 9, HEADS, DIM), tables(6)
    wanted = padfree.rotary.apply_rotary_emb(x, cos, sin, interleaved)
    given = LAYOUTS[layout](x)
    assert_same_bits(padfree.rotary.apply_rotary_emb(given, *map(embed_in_nan, (cos, sin)), interleaved), wanted)
    assert_same_bits(padfree.rotary.apply_rotary_emb(given, cos, sin, interleaved, inplace=True), wanted, "in place")
    assert_same_bits(given.contiguous(), wanted, "x")


@STYLES
@pytest.mark.parametrize("offsets", [None, [3, 9, 0, 4, 1]], ids=["start", "offsets"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=dtype_id)
def test_packed(padfree, dtype, offsets, interleaved):
    """Each sequence has the bits of the call alone, empty ones none; rows past the last end stay, NaN and all."""
    lengths, (cos, sin) = [4, 0, 9, 1, 0], tables(6)
    x = randn(17, HEADS, DIM)
    x[15:] = float("nan")
    starts = [0] * 5 if offsets is None else offsets
    leaf = x.clone().requires_grad_()
    got = padfree.rotary.apply_rotary_emb(
        leaf, cos, sin, interleaved, seqlen_offsets=0 if offsets is None else torch.tensor(offsets, dtype=dtype),
        cu_seqlens=cu_seqlens(lengths, dtype), max_seqlen=9,
    )  # fmt: skip
    begin = 0
    for length, start in zip(lengths, starts, strict=True):
        alone = x[None, begin : begin + length]
        wanted = padfree.rotary.apply_rotary_emb(alone, cos, sin, interleaved, seqlen_offsets=start)
        assert_same_bits(got[begin : begin + length], wanted[0], f"rows {begin} on")
        begin += length
    assert_same_bits(got[begin:], x[begin:], "slack")
    back = randn(17, HEADS, DIM, seed=1)
    (gradient,) = torch.autograd.grad(got, leaf, back)
    assert_same_bits(gradient[begin:], back[begin:], "gradient of slack")
    assert gradient.isfinite().all()
    same = x.clone()
    given = {"cu_seqlens": cu_seqlens(lengths, dtype), "inplace": True, "interleaved": interleaved}
    padfree.rotary.apply_rotary(same, cos, sin, torch.tensor(starts), **given)
    assert_same_bits(same, got.detach(), "in place")


@ALL_DTYPES
def test_conjugate_turns_back(padfree, dtype):
    """It is the gradient, to the bit, so it is checked above."""
    x, (cos, sin) = randn(2, 9, HEADS, DIM, dtype=dtype).requires_grad_(), tables(6)
    back = randn(2, 9, HEADS, DIM, dtype=dtype, seed=1)
    (wanted,) = torch.autograd.grad(padfree.rotary.apply_rotary_emb(x, cos, sin), x, back)
    assert_same_bits(padfree.rotary.apply_rotary(back, cos, sin, conjugate=True), wanted)


def test_argument_order_is_flash_attns(padfree):
    x, (cos, sin), offsets = randn(15, HEADS, DIM), tables(6), torch.tensor([2, 1])
    ends, rotary = cu_seqlens([9, 6]), padfree.rotary
    wanted = rotary.apply_rotary_emb(
        x, cos=cos, sin=sin, interleaved=True, seqlen_offsets=offsets, cu_seqlens=ends, max_seqlen=9
    )
    assert_same_bits(rotary.apply_rotary_emb(x, cos, sin, True, False, offsets, ends, 9), wanted)
    assert_same_bits(rotary.apply_rotary(x, cos, sin, offsets, ends, 9, True, False, False), wanted)
    assert rotary.apply_rotary_emb_func is rotary.apply_rotary_emb


@STYLES
@pytest.mark.parametrize("offsets", [0, torch.tensor([5, 2])], ids=["start", "offsets"])
@pytest.mark.parametrize("apart", [False, True], ids=["one_table", "table_of_k"])
@pytest.mark.parametrize("heads_kv", [None, 1, 3], ids=["stacked", "grouped", "side_by_side"])
def test_stacked(padfree, heads_kv, apart, offsets, interleaved):
    """q and k turn in place, v stays; the gradient of the projection is that of turning each alone."""
    rotary, (cos, sin), (cos_k, sin_k) = padfree.rotary, tables(6), tables(DIM)
    shape = (2, 9, 3, HEADS, DIM) if heads_kv is None else (2, 9, HEADS + 2 * heads_kv, DIM)
    heads = [1, 1, 1] if heads_kv is None else [HEADS, heads_kv, heads_kv]
    leaf, back = randn(*shape).requires_grad_(), randn(*shape, seed=1)
    of_k = (cos_k, sin_k) if apart else (None, None)
    given = leaf * 1
    got = rotary.apply_rotary_emb_qkv_(
        given, cos, sin, *of_k, interleaved, offsets, None if heads_kv is None else HEADS
    )
    assert got is given
    q, k, v = leaf.split(heads, 2)
    q = rotary.apply_rotary_emb(q.flatten(2, -2), cos, sin, interleaved, seqlen_offsets=offsets).view(q.shape)
    tables_k = (cos_k, sin_k) if apart else (cos, sin)
    k = rotary.apply_rotary_emb(k.flatten(2, -2), *tables_k, interleaved, seqlen_offsets=offsets).view(k.shape)
    wanted = torch.cat([q, k, v], 2)
    assert_same_bits(got, wanted, "qkv")
    gradients = (torch.autograd.grad(out, leaf, back)[0] for out in (got, wanted))
    assert_same_bits(*gradients, "gradient")


@STYLES
def test_stacked_keys_and_values(padfree, interleaved):
    kv, (cos, sin) = randn(2, 9, 2, HEADS, DIM), tables(6)
    k, v = kv.clone().unbind(2)
    got = padfree.rotary.apply_rotary_emb_kv_(kv, cos, sin, interleaved, 3)
    assert got is kv
    wanted = padfree.rotary.apply_rotary_emb(k, cos, sin, interleaved, seqlen_offsets=3)
    assert_same_bits(kv, torch.stack([wanted, v], 2))


@STYLES
def test_reference_forms(padfree, interleaved):
    """apply_rotary_emb_torch takes a row of the tables for each token; rotate_half is a quarter turn."""
    rotary, x, (cos, sin) = padfree.rotary, randn(2, 9, HEADS, DIM), tables(6)
    wanted = rotary.apply_rotary_emb(x, cos, sin, interleaved)
    assert_same_bits(rotary.apply_rotary_emb_torch(x, cos[:9], sin[:9], interleaved), wanted)
    at = torch.tensor([4, 1])[:, None] + torch.arange(9)
    wanted = rotary.apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=torch.tensor([4, 1]))
    assert_same_bits(rotary.apply_rotary_emb_torch(x, cos[at], sin[at], interleaved), wanted)
    quarter = rotary.apply_rotary_emb(x, torch.zeros(9, DIM // 2), torch.ones(9, DIM // 2), interleaved)
    assert torch.equal(rotary.rotate_half(x, interleaved), quarter)


# ---- The module: its tables by the formula, grown as calls need them ------------------------------------------------


def angles_of(positions, dim=6, base=500.0):
    return torch.outer(torch.arange(positions).double(), base ** -(torch.arange(0, dim, 2).double() / dim))


@STYLES
def test_tables(padfree, interleaved):
    module = padfree.rotary.RotaryEmbedding(6, base=500.0, interleaved=interleaved)
    assert not module.state_dict()
    qkv = randn(2, 9, 3, HEADS, DIM)
    wanted, angles = qkv.clone(), angles_of(20)
    assert module(qkv, seqlen_offset=11) is qkv
    for name, table in (("_cos_cached", angles.cos()), ("_sin_cached", angles.sin())):
        # an angle of at most 20, and the frequency in it, are off by three roundings
        assert_close(getattr(module, name), table, torch.full_like(table, 20 * 4 * 2**-24), name)
    cos, sin = module._cos_cached, module._sin_cached
    padfree.rotary.apply_rotary_emb_qkv_(wanted, cos, sin, interleaved=interleaved, seqlen_offsets=11)
    assert_same_bits(qkv, wanted)
    module(randn(2, 4, 3, HEADS, DIM))
    assert module._cos_cached is cos, "shorter calls need no new table"


def test_tables_token_by_token(padfree):
    """Decoding with a cache's length gives the bits of the prefill; lengths as a tensor want max_seqlen."""
    whole = randn(2, 6, 3, HEADS, DIM)
    module, steps = padfree.rotary.RotaryEmbedding(DIM), whole.clone().split(1, 1)
    lengths = torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"^rotary: max_seqlen must be given with a tensor seqlen_offset, got None$"):
        module(steps[0], seqlen_offset=lengths)
    for i, step in enumerate(steps):
        module(step, seqlen_offset=lengths + i, max_seqlen=6)
    assert_same_bits(torch.cat(steps, 1), module(whole))


def test_tables_with_queries_apart(padfree):
    q, kv = randn(2, 9, HEADS, DIM), randn(2, 9, 2, 1, DIM)
    packed = torch.cat([q, *kv.unbind(2)], 2)
    module = padfree.rotary.RotaryEmbedding(6)
    wanted = module(packed, seqlen_offset=2, num_heads_q=HEADS)
    got_q, got_kv = module(q, kv, seqlen_offset=2)
    assert got_q is q
    assert got_kv is kv
    assert_same_bits(torch.cat([q, *kv.unbind(2)], 2), wanted)


def test_scaled_tables(padfree):
    """XPos: the product of a query and a key scales with their distance alone."""
    module, x = padfree.rotary.RotaryEmbedding(2, scale_base=64.0), torch.ones(1, 12, 1, 2)
    q, kv = module(x.clone(), torch.stack([x, x], 2))
    products = q[0, :, 0].double() @ kv[0, :, 0, 0].double().T
    distance = torch.arange(12).double()[:, None] - torch.arange(12)
    wanted = 2 * distance.cos() * (0.8 / 2.8) ** (distance / 64.0)
    assert_close(products, wanted, torch.full_like(wanted, 2 * 64 * 2**-24))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_tables_of_a_converted_module(padfree, training):
    """A module made bfloat16 keeps exact angles; tables made for inference serve a backward too, training or not."""
    exact = padfree.rotary.RotaryEmbedding(DIM, scale_base=512.0)
    module = padfree.rotary.RotaryEmbedding(DIM, scale_base=512.0).to(torch.bfloat16)
    x = randn(1, 33, 3, HEADS, DIM, dtype=torch.bfloat16)
    exact(x.clone())
    with torch.inference_mode():
        module(x.clone())
    assert_same_bits(module._cos_cached.clone(), exact._cos_cached.clone(), "tables")
    leaf = x.clone().requires_grad_()
    module.train(training)(leaf * 1).sum().backward()
    assert leaf.grad.isfinite().all()


# ---- All of it compiled, and wrong arguments -------------------------------------------------------------------------


def test_fullgraph(padfree):
    cos, sin = tables(6)

    def step(x, qkv, ends):
        packed = padfree.rotary.apply_rotary_emb(x, cos, sin, cu_seqlens=ends, max_seqlen=9)
        return packed, padfree.rotary.apply_rotary_emb_qkv_(qkv * 1, cos, sin, interleaved=True, seqlen_offsets=4)

    given = randn(15, HEADS, DIM).requires_grad_(), randn(2, 9, 3, HEADS, DIM).requires_grad_(), cu_seqlens([9, 5])
    back = randn(15, HEADS, DIM, seed=1), randn(2, 9, 3, HEADS, DIM, seed=1)
    wanted = step(*given)
    got = torch.compile(step, fullgraph=True, backend="aot_eager")(*given)
    for one, other in zip(got, wanted, strict=True):
        assert_same_bits(one, other)
    for one, other in zip(*(torch.autograd.grad(out, given[:2], back) for out in (got, wanted)), strict=True):
        assert_same_bits(one, other, "gradient")


def test_fullgraph_of_the_tables(padfree):
    """Step after step of training: the tables of the step before are there, too short, just right or longer."""
    exact, module = padfree.rotary.RotaryEmbedding(DIM), padfree.rotary.RotaryEmbedding(DIM)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for seqlen in (5, 9, 9, 3):
        x = randn(2, seqlen, 3, HEADS, DIM)
        assert_same_bits(compiled(x.clone()), exact(x.clone()), f"{seqlen} tokens")


X, (COS, SIN) = torch.zeros(2, 9, HEADS, DIM), tables(6, positions=10)
PACKED = {"x": X[0], "cu_seqlens": cu_seqlens([4, 5])}
ERRORS = {
    "x_type": ({"x": None}, TypeError, "x must be a tensor, got NoneType"),
    "x_dtype": ({"x": X.double()}, TypeError, "x must be float32, bfloat16 or float16, got float64"),
    "x_rank": ({"x": X[0]}, ValueError, "x must have 4 dimensions, got 3"),
    "packed_rank": ({"cu_seqlens": cu_seqlens([9])}, ValueError, "x must have 3 dimensions, got 4"),
    "cos_dtype": ({"cos": COS.double()}, TypeError, "cos must be float32, bfloat16 or float16, got float64"),
    "cos_device": ({"cos": COS.to("meta")}, TypeError, "cos must be on the device of x (cpu), got meta"),
    "cos_rank": ({"cos": COS[None]}, ValueError, "cos must have 2 dimensions, got 3"),
    "sin_rows": ({"sin": SIN[1:]}, ValueError, "sin must have size 10 in dimension 0, got 9"),
    "sin_width": ({"sin": SIN[:, 1:]}, ValueError, "sin must have size 3 in dimension 1, got 2"),
    "wide": (
        {"cos": torch.ones(10, 9), "sin": torch.ones(10, 9)},
        ValueError,
        "cos must be at most head_dim / 2 (8) wide, got 9",
    ),
    "flag": ({"interleaved": 1}, TypeError, "interleaved must be True or False, got 1"),
    "offset_type": (
        {"seqlen_offsets": 1.0},
        TypeError,
        "seqlen_offsets must be an int or a tensor, got float",
    ),
    "offset_sign": ({"seqlen_offsets": -1}, ValueError, "seqlen_offsets must be 0 or more, got -1"),
    "offset_size": (
        {"seqlen_offsets": torch.tensor([1])},
        ValueError,
        "seqlen_offsets must have size 2 in dimension 0, got 1",
    ),
    "offset_far": ({"seqlen_offsets": 2}, ValueError, "cos must have 11 rows or more, got 10"),
    "offsets_far": ({"seqlen_offsets": torch.tensor([1, 4])}, ValueError, "cos must have 13 rows or more, got 10"),
    "packed_far": ({**PACKED, "seqlen_offsets": 6}, ValueError, "cos must have 11 rows or more, got 10"),
    "bound": ({"max_seqlen": 8}, ValueError, "max_seqlen must be at least the longest sequence (9), got 8"),
    "packed_bound": (
        {**PACKED, "max_seqlen": 4},
        ValueError,
        "max_seqlen must be at least the longest sequence (5), got 4",
    ),
    "boundaries": (
        {**PACKED, "cu_seqlens": cu_seqlens([4, 6])},
        ValueError,
        "cu_seqlens must end at or below the number of rows (9), got 10",
    ),
    "shared": (
        {"x": X[:1].expand(2, 9, HEADS, DIM), "inplace": True},
        ValueError,
        "x must hold each element at a place of its own, got stride 0 in dimension 0",
    ),
}


@pytest.mark.parametrize(("change", "kind", "text"), ERRORS.values(), ids=ERRORS)
def test_errors(padfree, change, kind, text):
    with pytest.raises(kind) as error:
        padfree.rotary.apply_rotary_emb(**{"x": X, "cos": COS, "sin": SIN, **change})
    assert str(error.value) == f"rotary: {text}"


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("apply_rotary_emb_qkv_", (X[0], COS, SIN), "qkv must have 4 or 5 dimensions, got 3"),
        ("apply_rotary_emb_qkv_", (X[None], COS, SIN), "qkv must have size 3 in dimension 2, got 9"),
        ("apply_rotary_emb_qkv_", (X, COS, SIN), "num_heads_q must be given with qkv of 4 dimensions, got None"),
        (
            "apply_rotary_emb_qkv_",
            (X, COS, SIN, None, None, False, 0, 2),
            "num_heads_q must leave k and v as many heads each of 3, got 2",
        ),
        ("apply_rotary_emb_kv_", (X, COS, SIN), "kv must have 5 dimensions, got 4"),
        ("apply_rotary_emb_kv_", (X[None], COS, SIN), "kv must have size 2 in dimension 2, got 9"),
        ("apply_rotary_emb_torch", (X, COS, SIN), "cos must have size 9 in dimension 0, got 10"),
        ("rotate_half", (X[..., :5],), "x must have an even last dimension, got shape (2, 9, 3, 5)"),
        ("rotate_half", (torch.tensor(1.0),), "x must have an even last dimension, got shape ()"),
    ],
)
def test_errors_of_other_forms(padfree, name, given, text):
    with pytest.raises(ValueError) as error:
        getattr(padfree.rotary, name)(*given)
    assert str(error.value) == f"rotary: {text}"


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("apply_rotary_emb_qkv_", {"qkv": X, "num_heads_q": 1.0}, "num_heads_q must be an int, got float"),
        ("apply_rotary_emb_qkv_", {"qkv": X, "num_heads_q": True}, "num_heads_q must be an int, got bool"),
        ("apply_rotary_emb", {"x": X, "max_seqlen": "9"}, "max_seqlen must be an int, got str"),
        ("rotate_half", {"x": [1.0, 2.0]}, "x must be a tensor, got list"),
    ],
)
def test_types_of_other_forms(padfree, name, given, text):
    tables = {} if name == "rotate_half" else {"cos": COS, "sin": SIN}
    with pytest.raises(TypeError) as error:
        getattr(padfree.rotary, name)(**given, **tables)
    assert str(error.value) == f"rotary: {text}"


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"qkv": X[0, :, 0, 0]}, ValueError, "qkv must have 4 or 5 dimensions, got 1"),
        ({"qkv": X[:, :, None], "max_seqlen": -1}, ValueError, "max_seqlen must be 0 or more, got -1"),
        ({"qkv": X[:, :, None], "max_seqlen": 9.5}, TypeError, "max_seqlen must be an int, got float"),
    ],
)
def test_errors_of_the_module(padfree, given, kind, text):
    with pytest.raises(kind) as error:
        padfree.rotary.RotaryEmbedding(DIM)(**given)
    assert str(error.value) == f"rotary: {text}"


@pytest.mark.parametrize("form", ["table_of_k", "length_of_kv", "shape_of_kv"])
def test_what_is_refused_turns_nothing(padfree, form):
    """A call that fails at k has not turned q yet: it can be made again."""
    q, kv = randn(2, 9, HEADS, DIM), randn(2, 12, 2, HEADS, DIM)
    given = {
        "table_of_k": {"qkv": q, "cos": COS, "sin": SIN, "cos_k": COS[:5], "sin_k": SIN[:5], "num_heads_q": HEADS - 2},
        "length_of_kv": {"qkv": q, "kv": kv},
        "shape_of_kv": {"qkv": q, "kv": kv[:, :9, :1]},
    }
    turn = padfree.rotary.apply_rotary_emb_qkv_ if form == "table_of_k" else padfree.rotary.RotaryEmbedding(DIM)
    before = q.clone()
    with pytest.raises(ValueError, match=r"^rotary: (cos|kv) must have "):
        turn(**given[form])
    assert_same_bits(q, before)


def test_tables_refuse_an_offset_below_0(padfree):
    with pytest.raises(ValueError, match=r"^rotary: seqlen_offsets must be 0 or more, got -20$"):
        padfree.rotary.RotaryEmbedding(DIM)(randn(2, 9, 3, HEADS, DIM), seqlen_offset=-20)
