"""FlashAttention 3's order of arguments: the same bits as the bundle's own functions, and what only it has."""

import inspect
import itertools

import pytest
import reference
import torch
from attention_case import inputs
from cases import DTYPES, cu_seqlens, dtype_id, embed_in_nan, randn
from tolerance import assert_close, assert_same_bits

HEADS, HEADS_KV, DIM, DIM_V = 4, 2, 16, 8


def changed(value):
    """The name of a case, by the arguments it changes."""
    return "-".join(value) if isinstance(value, dict) else ""


def gradients(outputs, case, leaves=("q", "k", "v")):
    given = (case["dout"], case["dlse"])[: len(outputs)]
    return torch.autograd.grad(outputs, [case[name] for name in leaves], given)


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_every_argument_in_its_place(padfree, packed):
    """Positional, in FlashAttention 3's order: softmax_scale comes first, dropout and ALiBi not at all."""
    case = inputs([20, 20], [20, 20], (HEADS, HEADS_KV), (DIM, DIM_V), packed=packed)
    tensors = [case[name].requires_grad_() for name in "qkv"]
    used = torch.tensor([11, 20]), torch.tensor([9, 18])
    ends = (case["cu_seqlens_q"], case["cu_seqlens_k"], 20, 20) if packed else ()
    rest = (0.3, True, None, None, None, None, (9, 0), 0, 5.0, 3, True, True, 4, True)
    named = {"softmax_scale": 0.3, "causal": True, "window_size": (9, 0), "softcap": 5.0, "deterministic": True}
    if packed:
        got = padfree.flash_attention_3.flash_attn_varlen_func(*tensors, *ends, *used, *rest)
        named |= {"seqused_q": used[0], "seqused_k": used[1]}
        wanted = padfree.flash_attn_varlen_func(*tensors, *ends, return_attn_probs=True, **named)
    else:
        got = padfree.flash_attention_3.flash_attn_func(*tensors, *rest)
        wanted = padfree.flash_attn_func(*tensors, return_attn_probs=True, **named)
    assert len(got) == 2
    for one, other, name in zip(got, wanted[:2], ("out", "lse"), strict=True):
        assert_same_bits(one, other, name)
    for one, other, name in zip(gradients(got, case), gradients(wanted[:2], case), ("dq", "dk", "dv"), strict=True):
        assert_same_bits(one, other, name)


def test_out_alone_unless_asked(padfree):
    """The default of FlashAttention 3 since September 2025."""
    q, k, v = (randn(1, 5, 2, DIM, seed=i) for i in range(3))
    module, ends = padfree.flash_attention_3, cu_seqlens([5])
    for out in (
        module.flash_attn_func(q, k, v),
        module.flash_attn_qkvpacked_func(torch.stack([q, k, v], 2)),
        module.flash_attn_varlen_func(q[0], k[0], v[0], ends, ends, 5, 5)[None],
        module.flash_attn_with_kvcache(q, k, v),
        module.flash_attn_with_kvcache(q[0], k, v, cu_seqlens_q=ends)[None],
    ):
        assert_same_bits(out, padfree.flash_attn_func(q, k, v))


def test_what_transformers_passes_by_name(padfree):
    """Sinks, dropout and pages, which FlashAttention 3 has not: transformers drops what is not declared."""
    q, k, v = (randn(2, 20, 2, DIM, seed=i) for i in range(3))
    module, sinks = padfree.flash_attention_3, torch.tensor([0.5, -1.0])
    for name in ("s_aux", "learnable_sink"):
        given = {name: sinks, "causal": True}
        assert_same_bits(module.flash_attn_func(q, k, v, **given), padfree.flash_attn_func(q, k, v, **given))
    outs = []
    for function in (module.flash_attn_func, padfree.flash_attn_func):
        torch.manual_seed(0)
        outs.append(function(q, k, v, dropout_p=0.5))
    assert_same_bits(*outs)
    ends, table = cu_seqlens([20, 20]), torch.tensor([[1], [0]], dtype=torch.int32)
    wanted = padfree.flash_attn_varlen_func(q.flatten(0, 1), k, v, ends, ends, 20, 20, block_table=table)
    for name in ("block_table", "page_table"):
        got = module.flash_attn_varlen_func(q.flatten(0, 1), k, v, ends, ends, 20, 20, **{name: table})
        assert_same_bits(got, wanted, name)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("heads", [(3, 3), (4, 2), (6, 1)], ids=str)
def test_heads_side_by_side(padfree, heads, dtype):
    case = inputs([20, 20], [20, 20], heads, (DIM, DIM), dtype)
    wanted = padfree.flash_attn_func(*(case[n].requires_grad_() for n in "qkv"), causal=True, return_attn_probs=True)[
        :2
    ]
    qkv = torch.cat([case[name].detach() for name in "qkv"], 2).requires_grad_()
    got = padfree.flash_attention_3.flash_attn_qkvpacked_func(
        qkv, None, True, num_heads_q=heads[0], return_attn_probs=True
    )
    for one, other, name in zip(got, wanted, ("out", "lse"), strict=True):
        assert_same_bits(one, other, name)
    (gradient,) = torch.autograd.grad(got, qkv, (case["dout"], case["dlse"]))
    assert_same_bits(gradient, torch.cat(gradients(wanted, case), 2), "dqkv")


# ---- The bundle's own function, and q packed by cu_seqlens_q --------------------------------------------------------


def cache_of(lengths, capacity, page_size=None, dtype=torch.float32):
    """k_cache, v_cache full of NaN where no token lies, and the table of their pages."""
    rows = len(lengths) if page_size is None else len(lengths) * capacity // page_size
    shape = (rows, capacity if page_size is None else page_size, HEADS_KV)
    caches = [torch.full((*shape, dim), float("nan"), dtype=dtype) for dim in (DIM, DIM_V)]
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(0))
    table = order.view(len(lengths), -1).int()
    for row, length in enumerate(lengths):
        for i in range(length):
            slot = (table[row, i // shape[1]], i % shape[1])
            for cache in caches:
                cache[slot] = randn(HEADS_KV, cache.shape[-1], dtype=dtype, seed=100 * row + i)
    return caches, table


def test_every_argument_of_the_cache_in_its_place(padfree):
    (k_cache, v_cache), table = cache_of([6, 0], 24, 4)
    q = randn(2, 3, HEADS, DIM)
    k, v = (randn(2, 3, HEADS_KV, dim, seed=1) for dim in (DIM, DIM_V))
    cos, sin = randn(30, 4), randn(30, 4, seed=1)
    lengths, other = torch.tensor([6, 0], dtype=torch.int32), [k_cache.clone(), v_cache.clone()]
    metadata = padfree.flash_attention_3.get_scheduler_metadata(2, 3, 24, HEADS, HEADS_KV, DIM, lengths, q.dtype)
    assert metadata.dtype == torch.int32
    got = padfree.flash_attention_3.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, None, cos, sin, lengths, None, None, table, None, None, 3, None, None, None,
        None, 0.3, True, (9, 0), 0, 5.0, False, metadata, 7, False, 2, True,
    )  # fmt: skip
    assert got[2:] == (None, None)
    wanted = padfree.flash_attn_with_kvcache(
        q, *other, k, v, rotary_cos=cos, rotary_sin=sin, cache_seqlens=lengths, block_table=table,
        softmax_scale=0.3, causal=True, window_size=(9, 0), softcap=5.0, rotary_interleaved=False,
        return_softmax_lse=True,
    )  # fmt: skip
    for one, two, name in zip((*got[:2], k_cache, v_cache), (*wanted, *other), ("out", "lse", "k", "v"), strict=True):
        assert_same_bits(one, two, name)


def test_rows_of_the_cache_leftpad_and_sinks(padfree):
    (k_cache, v_cache), _ = cache_of([8, 8, 8], 8)
    k_cache, v_cache = k_cache.nan_to_num(1.0), v_cache.nan_to_num(1.0)
    given = {
        "cache_seqlens": 7, "cache_batch_idx": torch.tensor([2, 0]), "cache_leftpad": torch.tensor([1, 3]),
        "s_aux": randn(HEADS),
    }  # fmt: skip
    q = randn(2, 1, HEADS, DIM)
    got = padfree.flash_attention_3.flash_attn_with_kvcache(q, k_cache, v_cache, **given)
    assert_same_bits(got, padfree.flash_attn_with_kvcache(q, k_cache, v_cache, **given))


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("page_size", [None, 1, 8], ids=["dense", "page1", "page8"])
@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"window_size": (4, 0), "softcap": 3.0}], ids=["plain", "causal", "window"]
)
def test_packed_queries(padfree, options, page_size, dtype):
    """Prefill and decoding in one call; a sequence without queries, one without tokens."""
    lengths, queries = [19, 5, 24, 0, 3], [4, 1, 0, 2, 3]
    (k_cache, v_cache), table = cache_of(lengths, 24, page_size, dtype)
    q = embed_in_nan(randn(12, HEADS, DIM, dtype=dtype))
    where = {"cache_batch_idx": table[:, 0]} if page_size is None else {"page_table": table}
    out, lse, *_ = padfree.flash_attention_3.flash_attn_with_kvcache(
        q, k_cache, v_cache, cache_seqlens=torch.tensor(lengths), cu_seqlens_q=cu_seqlens(queries), max_seqlen_q=4,
        return_softmax_lse=True, **where, **options,
    )  # fmt: skip
    assert out.shape == (12, HEADS, DIM_V)
    begin = 0
    for row, (length, count) in enumerate(zip(lengths, queries, strict=True)):
        keys, values = (
            torch.stack([cache[table[row, i // cache.shape[1]], i % cache.shape[1]] for i in range(length)])
            if length
            else cache.new_zeros(0, *cache.shape[2:])
            for cache in (k_cache, v_cache)
        )
        rows = slice(begin, begin + count)
        wanted = reference.attention(q[None, rows], keys[None], values[None], **options)
        assert_close(out[None, rows], *wanted["out"], f"out of sequence {row}")
        assert_close(lse[None, :, rows], *wanted["lse"], f"lse of sequence {row}")
        begin += count
    assert_same_bits(out[begin:], torch.zeros(2, HEADS, DIM_V, dtype=dtype), "slack")


def test_packed_queries_of_whole_rows(padfree):
    """No lengths: all of the cache, row by row, as without cu_seqlens_q."""
    q, k, v = randn(3, 2, HEADS, DIM), randn(3, 8, HEADS_KV, DIM), randn(3, 8, HEADS_KV, DIM_V)
    attend = padfree.flash_attention_3.flash_attn_with_kvcache
    got = attend(q.flatten(0, 1), k, v, cu_seqlens_q=cu_seqlens([2, 2, 2]), causal=True)
    assert_same_bits(got.view(3, 2, HEADS, DIM_V), attend(q, k, v, causal=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("where", ["rows", "pages"])
@pytest.mark.parametrize("rotary", [None, "halves", "interleaved", "from"])
@pytest.mark.parametrize("causal", [False, True], ids=["plain", "causal"])
@pytest.mark.parametrize("packs", ["q", "k", "both"])
def test_packed_append(padfree, packs, causal, rotary, where, dtype):
    """The bits of a call for each sequence, in the result and in the cache: other slots stay NaN."""
    lengths, (k_cache, v_cache) = [13, 5, 0], cache_of([13, 5, 0], 24, 4 if where == "pages" else None, dtype)[0]
    table = cache_of([13, 5, 0], 24, 4 if where == "pages" else None, dtype)[1]
    queries, fresh = ([2, 2, 2] if packs == "k" else [3, 1, 4]), ([3, 3, 3] if packs == "q" else [5, 0, 4])
    q = randn(sum(queries), HEADS, DIM, dtype=dtype)
    k, v = (randn(sum(fresh), HEADS_KV, dim, dtype=dtype, seed=1) for dim in (DIM, DIM_V))
    given, start = {"causal": causal}, torch.tensor([2, 0, 7])
    if rotary:
        given |= {
            "rotary_cos": randn(40, 4),
            "rotary_sin": randn(40, 4, seed=1),
            "rotary_interleaved": rotary != "halves",
        }
    place = "page_table" if where == "pages" else "cache_batch_idx"
    wanted_caches, wanted = (k_cache.clone(), v_cache.clone()), []
    for row, (some_q, some_k, some_v) in enumerate(zip(q.split(queries), k.split(fresh), v.split(fresh), strict=True)):
        alone = dict(given)
        if rotary == "from":  # turned before the call
            cos, sin, steps = alone.pop("rotary_cos"), alone.pop("rotary_sin"), alone.pop("rotary_interleaved")
            at = cos[start[row] :], sin[start[row] :]
            some_k = padfree.rotary.apply_rotary_emb(some_k[None], *at, steps)[0]
            if causal:
                some_q = padfree.rotary.apply_rotary_emb(some_q[None], *at, steps)[0]
            else:
                some_q = padfree.rotary.apply_rotary_emb(some_q[:, None], *at, steps)[:, 0]
        here = table[row : row + 1] if where == "pages" else table[row]
        wanted += padfree.flash_attention_3.flash_attn_with_kvcache(
            some_q[None],
            *wanted_caches,
            some_k[None],
            some_v[None],
            cache_seqlens=lengths[row],
            **{place: here},
            **alone,
        )
    given |= {"rotary_seqlens": start} if rotary == "from" else {}
    if packs == "k":
        q = q.view(3, 2, HEADS, DIM)
    else:
        given["cu_seqlens_q"] = cu_seqlens(queries)
    if packs == "q":
        k, v = k.view(3, 3, HEADS_KV, DIM), v.view(3, 3, HEADS_KV, DIM_V)
    else:
        given["cu_seqlens_k_new"] = cu_seqlens(fresh)
    got = padfree.flash_attention_3.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cache_seqlens=torch.tensor(lengths, dtype=torch.int32),
        **{place: table if where == "pages" else table[:, 0]}, **given,
    )  # fmt: skip
    assert_same_bits(k_cache, wanted_caches[0], "k_cache")
    assert_same_bits(v_cache, wanted_caches[1], "v_cache")
    assert_same_bits(got.flatten(0, 1) if packs == "k" else got, torch.cat(wanted))


def test_log_sum_exp_of_dense_queries_beside_packed_keys(padfree):
    q, k = randn(2, 3, HEADS, DIM), randn(2, 4, HEADS_KV, DIM, seed=1)
    caches = [torch.zeros(2, 8, HEADS_KV, DIM) for _ in range(4)]
    attend, how = padfree.flash_attention_3.flash_attn_with_kvcache, {"cache_seqlens": 2, "return_softmax_lse": True}
    wanted = attend(q, *caches[:2], k, k, **how)
    packed = k.flatten(0, 1)
    got = attend(q, *caches[2:], packed, packed, cu_seqlens_k_new=cu_seqlens([4, 4]), **how)
    assert_same_bits(got[0], wanted[0], "out")
    assert_same_bits(got[1], wanted[1], "lse")


def test_boundaries_of_no_new_keys_say_nothing(padfree):
    """Servers pass them always, FlashAttention 3 reads them with new keys alone."""
    q, cache = randn(2, 3, HEADS, DIM), randn(2, 8, HEADS_KV, DIM)
    attend = padfree.flash_attention_3.flash_attn_with_kvcache
    assert_same_bits(attend(q, cache, cache, cu_seqlens_k_new=cu_seqlens([5, 5])), attend(q, cache, cache))


NEW = {"k": torch.zeros(3, 2, 8), "v": torch.zeros(3, 2, 8), "cache_seqlens": 1, "cu_seqlens_k_new": cu_seqlens([2, 1])}
TURNED = {"rotary_cos": torch.ones(3, 4), "rotary_sin": torch.ones(3, 4)}
CACHE_ERRORS = {
    "leftpad": (
        {"cache_leftpad": torch.zeros(1)},
        NotImplementedError,
        "attention: cache_leftpad must be None with cu_seqlens_q, got Tensor",
    ),
    "room": ({"cache_seqlens": 9}, ValueError, "attention: k_cache must have room for 9 tokens (9 and 0 new), got 8"),
    "lengths": (
        {"cache_seqlens": torch.tensor([1, 2, 3])},
        ValueError,
        "attention: cache_seqlens must have size 2 in dimension 0, got 3",
    ),
    "rows": (
        {"cache_batch_idx": torch.tensor([0, 2])},
        ValueError,
        "attention: cache_batch_idx must be below 2, the rows of k_cache, got 2",
    ),
    "bound": (
        {"max_seqlen_q": 2},
        ValueError,
        "attention: max_seqlen_q must be at least the longest sequence (3), got 2",
    ),
    "batch": (
        {"cu_seqlens_q": torch.tensor([0, 3])},
        ValueError,
        "attention: k_cache must have size 1 in dimension 0, got 2",
    ),
    "cache": ({"k_cache": torch.zeros(8, 2, 8)}, ValueError, "attention: k_cache must have 4 dimensions, got 3"),
    "queries": ({"q": torch.zeros(2, 2, 2, 8)}, ValueError, "attention: q must have 3 dimensions, got 4"),
    "names": (
        {"page_table": torch.zeros(2, 1, dtype=torch.int32), "block_table": torch.zeros(2, 1, dtype=torch.int32)},
        ValueError,
        "attention: block_table must be None when page_table is given, got Tensor",
    ),
    "gradient": (
        {"q": torch.zeros(4, 2, 8, requires_grad=True)},
        NotImplementedError,
        "attention: k_cache must be None where a gradient is wanted, got a tensor (use torch.no_grad())",
    ),
    "nowhere": ({**NEW, "cache_seqlens": None}, ValueError, "attention: cache_seqlens must be given with k, got None"),
    "new_dense": (
        {**NEW, "cu_seqlens_k_new": None},
        ValueError,
        "attention: k must have 4 dimensions, got 3",
    ),
    "new_end": (
        {**NEW, "cu_seqlens_k_new": cu_seqlens([1, 1])},
        ValueError,
        "attention: cu_seqlens_k_new must end at the number of rows of k (3), got 2",
    ),
    "new_order": (
        {**NEW, "cu_seqlens_k_new": torch.tensor([0, 4, 3])},
        ValueError,
        "attention: cu_seqlens_k_new must not decrease, got 3 after 4",
    ),
    "new_batch": (
        {**NEW, "cu_seqlens_k_new": cu_seqlens([3])},
        ValueError,
        "attention: cu_seqlens_k_new must have size 3 in dimension 0, got 2",
    ),
    "new_room": (
        {**NEW, "cache_seqlens": torch.tensor([7, 0])},
        ValueError,
        "attention: k_cache must have room for 9 tokens (7 and 2 new), got 8",
    ),
    "new_values": ({**NEW, "v": None}, TypeError, "attention: v must be a tensor, got NoneType"),
    "new_heads": (
        {**NEW, "k": torch.zeros(3, 1, 8)},
        ValueError,
        "attention: k must have size 2 in dimension 1, got 1",
    ),
    "new_pages": (
        {**NEW, "page_table": torch.tensor([[0], [5]], dtype=torch.int32)},
        ValueError,
        "attention: block_table must hold pages 0 to 1 where tokens lie, got 5",
    ),
    "turned_alone": (TURNED, ValueError, "attention: k must be given with rotary_cos, got None"),
    "turned_far": ({**NEW, **TURNED, "causal": True}, ValueError, "rotary: cos must have 4 rows or more, got 3"),
    "turned_from": (
        {**NEW, **TURNED, "rotary_seqlens": torch.tensor([1])},
        ValueError,
        "attention: rotary_seqlens must have size 2 in dimension 0, got 1",
    ),
}


@pytest.mark.parametrize(("change", "kind", "text"), CACHE_ERRORS.values(), ids=CACHE_ERRORS)
def test_packed_errors(padfree, change, kind, text):
    """Nothing has been written to the cache by then."""
    k_cache, v_cache = torch.ones(2, 8, 2, 8), torch.ones(2, 8, 2, 8)
    given = {"q": torch.zeros(4, 2, 8), "k_cache": k_cache, "v_cache": v_cache, "cu_seqlens_q": cu_seqlens([3, 1])}
    with pytest.raises(kind) as error:
        padfree.flash_attention_3.flash_attn_with_kvcache(**{**given, **change})
    assert str(error.value) == text
    assert k_cache.min() == v_cache.min() == 1


@pytest.mark.parametrize(
    ("bound", "kind", "text"),
    [
        (3, ValueError, "max_seqlen_q must be at least the queries of q (4), got 3"),
        ("4", TypeError, "max_seqlen_q must be an int, got str"),
    ],
)
def test_bound_without_packing(padfree, bound, kind, text):
    given = torch.zeros(1, 4, 2, 8), torch.zeros(1, 8, 2, 8), torch.zeros(1, 8, 2, 8)
    with pytest.raises(kind) as error:
        padfree.flash_attention_3.flash_attn_with_kvcache(*given, max_seqlen_q=bound)
    assert str(error.value) == f"attention: {text}"


# ---- Results of parts of the keys make the result of all ------------------------------------------------------------


def parts_of(padfree, q, k, v, cuts, **options):
    results = [
        padfree.flash_attn_func(q, k[:, a:b], v[:, a:b], return_attn_probs=True, **options)
        for a, b in itertools.pairwise(cuts)
    ]
    return torch.stack([out for out, *_ in results]), torch.stack([lse.transpose(1, 2) for _, lse, _ in results])


def test_parts_merge(padfree):
    """Values and gradients: a part may be empty, and one row sees no key in any part but the last."""
    q, k, v = (
        randn(2, n, heads, DIM, seed=i).requires_grad_() for i, (n, heads) in enumerate([(6, 4), (37, 2), (37, 2)])
    )
    dout, dlse = randn(2, 6, 4, DIM, seed=4), randn(2, 4, 6, seed=5)
    out, lse = padfree.flash_attention_3.flash_attn_combine(*parts_of(padfree, q, k, v, [0, 20, 20, 37]))
    got = {"out": out, "lse": lse.transpose(1, 2)}
    got |= zip(
        ("dq", "dk", "dv"), torch.autograd.grad((out, lse), (q, k, v), (dout, dlse.transpose(1, 2))), strict=True
    )
    wanted = reference.attention(q, k, v, dout=dout, dlse=dlse)
    for name, value in got.items():
        # each part is within the allowance of a whole, the weights of the merge sum to 1, and the merge itself is
        # one more step of the sum
        expected, allowance = wanted[name]
        assert_close(value, expected, 3 * allowance, name)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_parts_by_the_formula(padfree, dtype):
    """A part without keys may hold NaN; a row without any gives 0 and -inf, and takes no gradient."""
    out, lse = randn(3, 2, 5, 4, 8), randn(3, 2, 5, 4, seed=1) * 5
    lse[0, 0], lse[:, 1, 3] = -float("inf"), -float("inf")
    out[lse == -float("inf")] = float("nan")
    leaves = out.clone().requires_grad_(), lse.clone().requires_grad_()
    got, total = padfree.flash_attention_3.flash_attn_combine(*leaves, out_dtype=dtype)
    weights = lse.double().softmax(0).nan_to_num(0.0)[..., None]
    wanted = (weights * out.double().nan_to_num(0.0)).sum(0)
    assert got.dtype == dtype
    # lse - total is off by two roundings of numbers up to 20, which exp multiplies
    assert_close(got, wanted, 3 * 3 * 40 * 2**-24 + torch.finfo(dtype).eps * wanted.abs())
    assert_close(total, lse.double().logsumexp(0), torch.tensor(40 * 2**-24))
    assert_same_bits(got[1, 3], torch.zeros(4, 8, dtype=dtype), "row without keys")
    gradients = torch.autograd.grad(got.float().sum() + total[total.isfinite()].sum(), leaves)
    for gradient in gradients:
        assert gradient.isfinite().all()
        assert not gradient[:, 1, 3].any()
        assert not gradient[0, 0].any()


def test_parts_into_a_given_place(padfree):
    out, lse = randn(3, 2, 5, 4, 8), randn(3, 2, 5, 4, seed=1)
    place = embed_in_nan(torch.zeros(2, 5, 4, 8, dtype=torch.bfloat16))
    combine = padfree.flash_attention_3.flash_attn_combine
    got, total = combine(out, lse, place, torch.bfloat16)
    assert got is place
    wanted, wanted_total = combine(out, lse, out_dtype=torch.bfloat16)
    assert_same_bits(place, wanted)
    assert_same_bits(total, wanted_total)


PART_ERRORS = (
    ({"out_partial": [1.0]}, TypeError, "out_partial must be a tensor, got list"),
    ({"out_partial": torch.zeros(2, 5, 4, 8)}, ValueError, "out_partial must have 5 dimensions, got 4"),
    ({"lse_partial": None}, TypeError, "lse_partial must be a tensor, got NoneType"),
    ({"lse_partial": torch.zeros(3, 2, 5, 4).half()}, TypeError, "lse_partial must be float32, got float16"),
    (
        {"lse_partial": torch.zeros(3, 2, 4, 5)},
        ValueError,
        "lse_partial must have shape (3, 2, 5, 4), got (3, 2, 4, 5)",
    ),
    (
        {"out_dtype": torch.float64},
        TypeError,
        "out_dtype must be float32, bfloat16 or float16, got torch.float64",
    ),
    ({"out": torch.zeros(2, 5, 4, 9)}, ValueError, "out must have shape (2, 5, 4, 8), got (2, 5, 4, 9)"),
    (
        {"out": torch.zeros(2, 5, 4, 8).half()},
        TypeError,
        "out must be float32, as out_dtype says, got float16",
    ),
    (
        {"out": torch.zeros(2, 5, 4, 8), "out_partial": torch.zeros(3, 2, 5, 4, 8, requires_grad=True)},
        NotImplementedError,
        "out must be None where a gradient is wanted, got a tensor",
    ),
)


@pytest.mark.parametrize(("change", "kind", "text"), PART_ERRORS, ids=changed)
def test_errors_of_parts(padfree, change, kind, text):
    given = {"out_partial": torch.zeros(3, 2, 5, 4, 8), "lse_partial": torch.zeros(3, 2, 5, 4)}
    with pytest.raises(kind) as error:
        padfree.flash_attention_3.flash_attn_combine(**{**given, **change})
    assert str(error.value) == f"flash_attn_combine: {text}"


# ---- What no kernel takes --------------------------------------------------------------------------------------------

TENSOR = torch.ones(2)
REFUSED = {
    "qv": TENSOR,
    "q_descale": TENSOR,
    "k_descale": TENSOR,
    "v_descale": TENSOR,
    "attention_chunk": 64,
}


def calls(padfree):
    """Each function of the module that attends, and the tensors it wants."""
    module, x, ends = padfree.flash_attention_3, torch.zeros(1, 4, 2, 8), cu_seqlens([4])
    return {
        module.flash_attn_func: (x, x, x),
        module.flash_attn_qkvpacked_func: (torch.stack([x, x, x], 2),),
        module.flash_attn_varlen_func: (x[0], x[0], x[0], ends, ends, 4, 4),
        module.flash_attn_with_kvcache: (x, x.clone(), x.clone()),
    }


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(padfree, name):
    wanted = f"attention: {name} must be {'0, got 64' if name == 'attention_chunk' else 'None, got Tensor'}"
    asked = 0
    for function, given in calls(padfree).items():
        if name in inspect.signature(function).parameters:
            asked += 1
            with pytest.raises(NotImplementedError) as error:
                function(*given, **{name: REFUSED[name]})
            assert str(error.value) == wanted
    assert asked in (3, 4)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"pack_gqa": 1}, "pack_gqa must be True or False, got 1"),
        ({"sm_margin": None}, "sm_margin must be an int, got NoneType"),
        ({"scheduler_metadata": 1}, "scheduler_metadata must be a tensor, got int"),
        ({"return_softmax_lse": None}, "return_softmax_lse must be True or False, got None"),
    ],
    ids=["pack_gqa", "sm_margin", "scheduler_metadata", "return_softmax_lse"],
)
def test_schedule_errors(padfree, change, text):
    x = torch.zeros(1, 4, 2, 8)
    with pytest.raises(TypeError) as error:
        padfree.flash_attention_3.flash_attn_with_kvcache(x, x.clone(), x.clone(), **change)
    assert str(error.value) == f"attention: {text}"


def test_metadata_errors(padfree):
    with pytest.raises(TypeError) as error:
        padfree.flash_attention_3.get_scheduler_metadata(1, 1, 8, 2, 2, 8, torch.zeros(1))
    assert str(error.value) == "attention: cache_seqlens must be int32 or int64, got float32"
