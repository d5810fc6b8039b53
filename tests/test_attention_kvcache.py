"""flash_attn_with_kvcache against the oracle: append, pages, padding, rotary; and slots that must stay as they were."""

import pytest
import reference
import torch
from cases import DTYPES, dtype_id, randn
from tolerance import assert_close, assert_same_bits

HEADS, HEADS_KV, DIM, DIM_V = 4, 2, 16, 8
ALL_DTYPES = pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)


class Cache:
    """A cache whose unused slots hold NaN, dense or paged, and the tokens it should show for each batch row."""

    def __init__(self, lengths, capacity, dtype=torch.float32, page_size=None, rows=None, leftpad=None, seed=0):
        self.lengths, self.page_size = lengths, page_size
        self.rows = list(range(len(lengths))) if rows is None else rows
        self.leftpad = [0] * len(lengths) if leftpad is None else leftpad
        self.tokens = [
            [randn(n, HEADS_KV, dim, dtype=dtype, seed=seed + 10 * b + i) for b, n in enumerate(lengths)]
            for i, dim in enumerate((DIM, DIM_V))
        ]
        self.table = None
        outer, inner = max(self.rows) + 1 + bool(rows), capacity
        if page_size is not None:
            width = -(-capacity // page_size)
            outer, inner = 1 + width * len(lengths), page_size
            order = torch.randperm(outer - 1, generator=torch.Generator().manual_seed(seed)) + 1
            self.table = order.view(len(lengths), width).int()
        nan = float("nan")
        self.k, self.v = (torch.full((outer, inner, HEADS_KV, dim), nan, dtype=dtype) for dim in (DIM, DIM_V))
        for batch, length in enumerate(lengths):
            for position in range(self.leftpad[batch], length):
                self.k[self.slot(batch, position)] = self.tokens[0][batch][position]
                self.v[self.slot(batch, position)] = self.tokens[1][batch][position]

    def slot(self, batch, position):
        if self.table is None:
            return self.rows[batch], position
        return int(self.table[batch, position // self.page_size]), position % self.page_size

    def arguments(self):
        given = {"cache_seqlens": torch.tensor(self.lengths, dtype=torch.int32)}
        if self.table is not None:
            given["block_table"] = self.table
        elif self.rows != list(range(len(self.rows))):
            given["cache_batch_idx"] = torch.tensor(self.rows, dtype=torch.int32)
        if any(self.leftpad):
            given["cache_leftpad"] = torch.tensor(self.leftpad, dtype=torch.int32)
        return given


def check(padfree, cache, seqlen_q=1, appended=0, rotate=None, **options):
    """Runs one call, compares it row by row with the oracle, and the cache slot by slot with what it should hold."""
    batch, dtype = len(cache.lengths), cache.k.dtype
    q = randn(batch, seqlen_q, HEADS, DIM, dtype=dtype, seed=50)
    new = [randn(batch, appended, HEADS_KV, dim, dtype=dtype, seed=51 + i) for i, dim in enumerate((DIM, DIM_V))]
    before = cache.k.clone(), cache.v.clone()
    given = cache.arguments()
    if appended:
        given["k"], given["v"] = new
    out, lse = padfree.flash_attn_with_kvcache(
        q, cache.k, cache.v, return_softmax_lse=True, **given, **options, **(rotate.arguments() if rotate else {})
    )
    for row, length in enumerate(cache.lengths):
        query, key = q[row], new[0][row]
        if rotate:
            advances = options.get("causal") or options.get("window_size", (-1, -1)) != (-1, -1)
            query = rotate.turn(query, [length + i * bool(advances) for i in range(seqlen_q)])
            key = rotate.turn(key, range(length, length + appended))
        keys = torch.cat([cache.tokens[0][row], key])[cache.leftpad[row] :]
        values = torch.cat([cache.tokens[1][row], new[1][row]])[cache.leftpad[row] :]
        chosen = {name: value for name, value in options.items() if name != "num_splits"}
        chosen["sinks"] = chosen.pop("s_aux", None)
        wanted = reference.attention(query[None], keys[None], values[None], **chosen)
        assert_close(out[row : row + 1], *wanted["out"], f"out of row {row}")
        assert_close(lse[row : row + 1], *wanted["lse"], f"lse of row {row}")
        for i in range(appended):
            slot = cache.slot(row, length + i)
            before[0][slot], before[1][slot] = key[i], new[1][row, i]
    assert_same_bits(cache.k, before[0], "k_cache")
    assert_same_bits(cache.v, before[1], "v_cache")
    return out


class Rotary:
    """Rotary tables of a float64 formula, as the kernel gets them, and the rotation written out pair by pair."""

    def __init__(self, positions, width, interleaved, dtype):
        angle = torch.arange(positions)[:, None] * 100.0 ** (-torch.arange(width // 2) / (width // 2))
        self.cos, self.sin, self.interleaved, self.width = (
            angle.cos().to(dtype),
            angle.sin().to(dtype),
            interleaved,
            width,
        )

    def arguments(self):
        return {"rotary_cos": self.cos, "rotary_sin": self.sin, "rotary_interleaved": self.interleaved}

    def turn(self, x, positions):
        """x (seqlen, heads, head_dim), rounded once to its dtype as it is stored in the cache."""
        turned = x.float().clone()
        for token, position in enumerate(positions):
            for i in range(self.width // 2):
                a, b = (2 * i, 2 * i + 1) if self.interleaved else (i, i + self.width // 2)
                cos, sin = self.cos[position, i].float(), self.sin[position, i].float()
                first, second = x[token, :, a].float(), x[token, :, b].float()
                turned[token, :, a] = first * cos - second * sin
                turned[token, :, b] = first * sin + second * cos
        return turned.to(x.dtype)


@ALL_DTYPES
@pytest.mark.parametrize("page_size", [None, 1, 5, 16, 256], ids=lambda size: f"page{size}" if size else "dense")
def test_decode_without_append(padfree, page_size, dtype):
    check(padfree, Cache([37, 1, 64], 70, dtype, page_size), causal=True)


@ALL_DTYPES
@pytest.mark.parametrize("page_size", [None, 1, 5, 16, 256], ids=lambda size: f"page{size}" if size else "dense")
@pytest.mark.parametrize("appended", [1, 3, 20])
def test_append_in_place(padfree, appended, page_size, dtype):
    """Twenty tokens cross page edges of every size; the untouched slots stay NaN to the bit."""
    check(padfree, Cache([14, 0, 47], 70, dtype, page_size), appended, appended, causal=True)


@pytest.mark.parametrize("page_size", [None, 16], ids=["dense", "paged"])
@pytest.mark.parametrize(
    "options",
    [
        {"window_size": (5, 0)},
        {"causal": True, "softcap": 3.0},
        {"causal": True, "softmax_scale": 0.7, "num_splits": 3},
        {"causal": True, "alibi_slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625])},
        {"causal": True, "s_aux": torch.tensor([0.0, 1.0, -2.0, 5.0])},
        {},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_options(padfree, options, page_size):
    check(padfree, Cache([37, 0, 64], 70, page_size=page_size), 3, 3, **options)


def test_fewer_queries_than_new_tokens_and_more(padfree):
    check(padfree, Cache([10, 3], 40), 2, 5, causal=True)
    check(padfree, Cache([10, 3], 40), 8, 5, causal=True)


@ALL_DTYPES
def test_rows_of_the_cache_in_another_order(padfree, dtype):
    check(padfree, Cache([20, 31, 5], 40, dtype, rows=[4, 0, 2]), 2, 2, causal=True)


@pytest.mark.parametrize("page_size", [None, 8], ids=["dense", "paged"])
@pytest.mark.parametrize("appended", [0, 2])
def test_leftpad(padfree, appended, page_size):
    check(padfree, Cache([20, 31, 5], 40, leftpad=[3, 30, 0], page_size=page_size), 2, appended, causal=True)


@ALL_DTYPES
@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "halves"])
@pytest.mark.parametrize("width", [DIM, DIM // 2])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_rotary(padfree, causal, width, interleaved, dtype):
    rotary = Rotary(80, width, interleaved, dtype)
    check(padfree, Cache([37, 0, 60], 70, dtype), 3, 3, rotary, causal=causal)


def test_rotary_counts_the_padding_and_may_stay_float32(padfree):
    rotary = Rotary(80, DIM, False, torch.float32)
    check(padfree, Cache([20, 31], 40, torch.bfloat16, 8, leftpad=[3, 7]), 2, 2, rotary, window_size=(9, 0))


def test_token_by_token_equals_all_at_once(padfree):
    heads = {"q": 4, "k": 2, "v": 2}
    tokens = {name: randn(2, 30, heads[name], DIM, seed=seed) for seed, name in enumerate(heads)}
    whole = reference.attention(*tokens.values(), causal=True)["out"]
    k_cache, v_cache = torch.full((2, 2, 33, 2, DIM), float("nan"))
    for position in range(30):
        step = {name: tensor[:, position : position + 1] for name, tensor in tokens.items()}
        out = padfree.flash_attn_with_kvcache(
            step["q"], k_cache, v_cache, step["k"], step["v"], cache_seqlens=position, causal=True
        )
        assert_close(out, *(part[:, position : position + 1] for part in whole), f"token {position}")


def test_whole_cache_without_lengths(padfree):
    q, k, v = randn(2, 3, 4, DIM), randn(2, 20, 2, DIM, seed=1), randn(2, 20, 2, DIM, seed=2)
    wanted = padfree.flash_attn_func(q, k, v, causal=True)
    assert_same_bits(padfree.flash_attn_with_kvcache(q, k, v, causal=True), wanted)


def test_pages_may_be_shared(padfree):
    """A common prefix lies in one page that two sequences name."""
    cache = Cache([16, 16], 24, page_size=8)
    cache.table[1, 0] = cache.table[0, 0]
    for tokens in cache.tokens:
        tokens[1][:8] = tokens[0][:8]
    check(padfree, cache, 2, 2, causal=True)


def test_views_of_a_bigger_cache(padfree):
    """The cache of one layer, cut from a buffer of all layers, is written through its strides."""
    buffer = torch.full((2, 40, 3, 2, HEADS_KV, DIM), float("nan"))
    k_cache, v_cache = buffer[:, :, 1, 0], buffer[:, :, 1, 1]
    new = randn(2, 7, HEADS_KV, DIM), randn(2, 7, HEADS_KV, DIM, seed=1)
    q = randn(2, 7, HEADS, DIM, seed=2)
    out = padfree.flash_attn_with_kvcache(q, k_cache, v_cache, *new, cache_seqlens=0, causal=True)
    assert_same_bits(out, padfree.flash_attn_func(q, *new, causal=True))
    assert_same_bits(buffer[:, :7, 1, 0], new[0])
    assert_same_bits(buffer[:, :7, 1, 1], new[1])
    assert int((~buffer.isnan()).sum()) == sum(tensor.numel() for tensor in new)


def test_threads_do_not_change_a_bit(padfree):
    """One query against many keys: whatever the kernel splits, the bits are those of one thread."""
    q, k, v = randn(1, 1, 8, 64), randn(1, 3000, 2, 64, seed=1), randn(1, 3000, 2, 64, seed=2)
    before = torch.get_num_threads()
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(padfree.flash_attn_with_kvcache(q, k, v, causal=True))
    torch.set_num_threads(before)
    for other in results[1:]:
        assert_same_bits(other, results[0])
    assert_close(results[0], *reference.attention(q, k, v, causal=True)["out"])


# ---- errors ----------------------------------------------------------------------------------------------------------


def arguments(**change):
    given = {
        "q": torch.zeros(2, 1, 4, 8),
        "k_cache": torch.zeros(2, 12, 2, 8),
        "v_cache": torch.zeros(2, 12, 2, 8),
        "k": torch.zeros(2, 3, 2, 8),
        "v": torch.zeros(2, 3, 2, 8),
        "cache_seqlens": torch.tensor([4, 9], dtype=torch.int32),
    }
    return {**given, **change}


def paged(*table, **change):
    pages = {"k_cache": torch.zeros(5, 4, 2, 8), "v_cache": torch.zeros(5, 4, 2, 8)}
    return arguments(**pages, block_table=torch.tensor(table, dtype=torch.int32), **change)


TABLE = torch.zeros(16, 4)
ERRORS = {
    "no_room": (
        arguments(cache_seqlens=10),
        ValueError,
        "k_cache must have room for 13 tokens (10 and 3 new), got 12",
    ),
    "no_pages": (
        paged([0, 1, 2], [3, 4, -1], cache_seqlens=10),
        ValueError,
        "block_table must have room for 13 tokens, got 3 pages of 4 (12)",
    ),
    "page_missing": (
        paged([0, 1, 2], [3, 4, -1], cache_seqlens=6),
        ValueError,
        "block_table must hold pages 0 to 4 where tokens lie, got -1",
    ),
    "page_outside": (
        paged([0, 1, 5], [3, 4, 2], cache_seqlens=6),
        ValueError,
        "block_table must hold pages 0 to 4 where tokens lie, got 5",
    ),
    "table_dtype": (
        arguments(block_table=torch.zeros(2, 3, dtype=torch.int64)),
        TypeError,
        "block_table must be int32, got int64",
    ),
    "table_rank": (
        arguments(block_table=torch.zeros(3, dtype=torch.int32)),
        ValueError,
        "block_table must have 2 dimensions, got 1",
    ),
    "table_rows": (paged([0, 1, 2]), ValueError, "block_table must have size 2 in dimension 0, got 1"),
    "table_twice": (
        paged([0, 1], [2, 3], page_table=torch.zeros(2, 2, dtype=torch.int32)),
        ValueError,
        "page_table must be None when block_table is given, got Tensor",
    ),
    "index_with_table": (
        paged([0, 1], [2, 3], cache_batch_idx=torch.zeros(2, dtype=torch.int32)),
        ValueError,
        "cache_batch_idx must be None with a block_table, got Tensor",
    ),
    "index_outside": (
        arguments(cache_batch_idx=torch.tensor([0, 2])),
        ValueError,
        "cache_batch_idx must be below 2, the rows of k_cache, got 2",
    ),
    "index_negative": (
        arguments(cache_batch_idx=torch.tensor([0, -1])),
        ValueError,
        "cache_batch_idx must be 0 or more, got -1",
    ),
    "batch": (
        arguments(k_cache=torch.zeros(3, 12, 2, 8), v_cache=torch.zeros(3, 12, 2, 8)),
        ValueError,
        "k_cache must have size 2 in dimension 0, got 3",
    ),
    "k_alone": (arguments(v=None), ValueError, "v must be given with k, got None"),
    "v_alone": (arguments(k=None), ValueError, "k must be given with v, got None"),
    "k_heads": (arguments(k=torch.zeros(2, 3, 4, 8)), ValueError, "k must have size 2 in dimension 2, got 4"),
    "v_length": (arguments(v=torch.zeros(2, 4, 2, 8)), ValueError, "v must have size 3 in dimension 1, got 4"),
    "k_dtype": (
        arguments(k=torch.zeros(2, 3, 2, 8).half()),
        TypeError,
        "k must have the dtype of q (float32), got float16",
    ),
    "cache_dtype": (
        arguments(v_cache=torch.zeros(2, 12, 2, 8).half()),
        TypeError,
        "v_cache must have the dtype of q (float32), got float16",
    ),
    "no_lengths": (arguments(cache_seqlens=None), ValueError, "cache_seqlens must be given with k, got None"),
    "lengths_dtype": (
        arguments(cache_seqlens=torch.tensor([4.0, 9.0])),
        TypeError,
        "cache_seqlens must be int32 or int64, got float32",
    ),
    "lengths_type": (arguments(cache_seqlens=[4, 9]), TypeError, "cache_seqlens must be a tensor, got list"),
    "lengths_count": (
        arguments(cache_seqlens=torch.tensor([4])),
        ValueError,
        "cache_seqlens must have size 2 in dimension 0, got 1",
    ),
    "lengths_past_int32": (
        arguments(cache_seqlens=torch.tensor([4, 2**31 - 1])),
        ValueError,
        "k_cache must have room for 2147483650 tokens (2147483647 and 3 new), got 12",
    ),
    "lengths_int64": (arguments(cache_seqlens=2**32), ValueError, "cache_seqlens must be below 2**31, got 4294967296"),
    "expanded_cache": (
        arguments(k_cache=torch.zeros(1, 12, 2, 8).expand(2, 12, 2, 8)),
        ValueError,
        "k_cache must hold each element at a place of its own, got stride 0 in dimension 0",
    ),
    "lengths_negative": (arguments(cache_seqlens=-1), ValueError, "cache_seqlens must be 0 or more, got -1"),
    "leftpad": (
        arguments(cache_leftpad=torch.tensor([8, 0])),
        ValueError,
        "cache_leftpad must be at most the tokens in the cache (7), got 8",
    ),
    "rotary_without_k": (
        arguments(k=None, v=None, rotary_cos=TABLE, rotary_sin=TABLE),
        ValueError,
        "k must be given with rotary_cos, got None",
    ),
    "rotary_half": (arguments(rotary_cos=TABLE), TypeError, "rotary_sin must be a tensor, got NoneType"),
    "rotary_dtype": (
        arguments(rotary_cos=TABLE.half(), rotary_sin=TABLE),
        TypeError,
        "rotary_cos must be float32 or the dtype of q (float32), got float16",
    ),
    "rotary_shape": (
        arguments(rotary_cos=TABLE, rotary_sin=TABLE[:, :2]),
        ValueError,
        "rotary_sin must have size 4 in dimension 1, got 2",
    ),
    "rotary_wide": (
        arguments(rotary_cos=torch.zeros(16, 5), rotary_sin=torch.zeros(16, 5)),
        ValueError,
        "rotary_cos must be at most head_dim / 2 (4) wide, got 5",
    ),
    "rotary_short": (
        arguments(rotary_cos=TABLE[:11], rotary_sin=TABLE[:11]),
        ValueError,
        "rotary_cos must have 12 rows or more, got 11",
    ),
    "splits": (arguments(num_splits=-1), ValueError, "num_splits must be 0 or more, got -1"),
    "gradient": (
        arguments(q=torch.zeros(2, 1, 4, 8, requires_grad=True)),
        NotImplementedError,
        "k_cache must be None where a gradient is wanted, got a tensor (use torch.no_grad())",
    ),
}


@pytest.mark.parametrize(("call", "kind", "text"), ERRORS.values(), ids=ERRORS)
def test_errors(padfree, call, kind, text):
    before = [call[name].clone() for name in ("k_cache", "v_cache")]
    with pytest.raises(kind) as error:
        padfree.flash_attn_with_kvcache(**call)
    assert type(error.value) is kind
    assert str(error.value) == f"attention: {text}"
    for name, cache in zip(("k_cache", "v_cache"), before, strict=True):
        assert_same_bits(call[name], cache, f"{name} is as it was")


def test_gradient_of_sinks(padfree):
    q, k, v, grad = (randn(1, n, 2, DIM, seed=n + i) for i, n in enumerate((3, 9, 9, 3)))
    gradients = []
    for attend in (padfree.flash_attn_func, padfree.flash_attn_with_kvcache):
        sinks = torch.tensor([0.5, -1.0], requires_grad=True)
        out = attend(q, k, v, s_aux=sinks * 2)  # not a leaf: what reaches the op has a history
        gradients.append(torch.autograd.grad(out, sinks, grad)[0])
    assert_same_bits(gradients[1], gradients[0], "the gradient of s_aux")
