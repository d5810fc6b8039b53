"""Random right arguments of every raw op, by name and in the schema's order, each tensor in a storage of exactly its
size: the element before its first and the one after its last are nobody's, which an address sanitizer sees."""

import torch
from cases import cu_seqlens


def tight(tensor, random):
    """An equal view, perhaps with the dimensions stored in another order, steps between elements, or an odd offset."""
    order = random.sample(range(tensor.dim()), tensor.dim()) if random.random() < 0.4 else range(tensor.dim())
    step = random.choice([1, 1, 1, 2])
    strides = [0] * tensor.dim()
    for dim in reversed(order):
        strides[dim] = step
        step = (tensor.shape[dim] - 1) * step + random.choice([1, 1, 3]) if tensor.shape[dim] else step
        step = max(step, 1)
    offset = random.choice([0, 0, 1, 3])
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True)) + 1
    storage = torch.zeros(offset + (reach if tensor.numel() else 0), dtype=tensor.dtype)
    view = storage.as_strided(tensor.shape, strides, offset)
    return view.copy_(tensor)


class Drawn:
    """Draws shapes and numbers for one call."""

    def __init__(self, random):
        self.random = random
        self.dtype = random.choice([torch.float32, torch.bfloat16, torch.float16])
        self.generator = torch.Generator().manual_seed(random.randrange(1 << 30))

    def length(self):
        return self.random.choice([0, 1, self.random.randrange(20), self.random.randrange(150), 64, 96, 97])

    def dim(self):
        return self.random.choice([1, self.random.randrange(1, 40), 64, 128, self.random.randrange(1, 300)])

    def maybe(self, make, chance=0.3):
        return make() if self.random.random() < chance else None

    def numbers(self, *shape, dtype=None):
        drawn = torch.randn(shape, generator=self.generator)
        if self.random.random() < 0.1:  # what a call must survive, wherever it is
            drawn[torch.rand(shape, generator=self.generator) < 0.1] = self.random.choice(
                [float("nan"), float("inf"), float("-inf"), 3e38, -6e4, 1e-45]
            )
        return tight(drawn.to(dtype or self.dtype), self.random)

    def integers(self, low, high, *shape):
        return torch.randint(low, max(high, low + 1), shape, generator=self.generator, dtype=torch.int32)


def attention(drawn):
    """(q, k, v and the options both attention ops take, those of the forward alone)."""
    random, packed = drawn.random, drawn.random.random() < 0.5
    heads_kv = random.randrange(1, 4)
    heads, dim, dim_v = heads_kv * random.randrange(1, 4), drawn.dim(), drawn.dim()
    count = random.randrange(4)
    lengths_q, lengths_k = ([drawn.length() for _ in range(count)] for _ in range(2))
    if not packed:
        lengths_q, lengths_k = [drawn.length()] * count, [drawn.length()] * count
    slack = random.choice([0, 0, 3])
    over_q = (sum(lengths_q) + slack,) if packed else (count, (lengths_q or [3])[0])
    over_k = (sum(lengths_k) + slack,) if packed else (count, (lengths_k or [3])[0])
    cached = random.random() < 0.3
    pages, page = random.randrange(1, 8), random.choice([1, 3, 16, 64])
    paged = cached and random.random() < 0.6
    if paged:
        width = -(-max(lengths_k, default=0) // page) + random.randrange(2)
        over_k, lengths_k = (pages, page), lengths_k if packed else [width * page] * count
    of_k = drawn.numbers(*over_k, heads_kv, dim), drawn.numbers(*over_k, heads_kv, dim_v)
    common = {
        "q": drawn.numbers(*over_q, heads, dim), "k": of_k[0], "v": of_k[1],
        "cu_seqlens_q": cu_seqlens(lengths_q) if packed else None,
        "cu_seqlens_k": cu_seqlens(lengths_k) if packed else None,
        "max_seqlen_q": max(lengths_q, default=0), "max_seqlen_k": max(lengths_k, default=0),
        "softmax_scale": random.choice([0.2, 1.0, -1.0, 0.0, 1e30]), "causal": random.random() < 0.5,
        "window_left": random.choice([-1, -1, 0, random.randrange(200)]),
        "window_right": random.choice([-1, -1, 0, random.randrange(200)]),
        "softcap": random.choice([0.0, 0.0, 5.0, 1e-30]),
        "sinks": drawn.maybe(lambda: torch.randn(heads)),
        "alibi_slopes": drawn.maybe(lambda: torch.randn(*random.choice([(), (count,)]), heads)),
        "dropout_p": random.choice([0.0, 0.0, 0.3, 1 - 2**-53]),
        "rng_state": torch.tensor([random.randrange(-(1 << 62), 1 << 62)]),
        "seqused_q": drawn.maybe(lambda: _used(drawn, lengths_q), 0.2),
        "seqused_k": drawn.maybe(lambda: _used(drawn, lengths_k), 0.2),
        "mask": None,
    }  # fmt: skip
    if not packed and not cached:
        shape = (random.choice([1, count]), random.choice([1, heads]), over_q[1], over_k[1])
        common["mask"] = drawn.maybe(lambda: drawn.numbers(*shape))
        if common["mask"] is not None and random.random() < 0.5:
            common["mask"] = common["mask"] > 0
    rows = not packed and cached and not paged
    leftpad = None if packed or common["seqused_k"] is not None else drawn.maybe(lambda: _used(drawn, lengths_k))
    cache = {
        "block_table": drawn.integers(0, pages, count, width) if paged else None,
        "cache_batch_idx": drawn.integers(0, count, count) if rows and count else None,
        "leftpad_k": leftpad,
    }
    return common, cache


def _used(drawn, lengths):
    return torch.tensor([drawn.random.randrange(n + 1) for n in lengths], dtype=torch.int32)


def attention_fwd(ops, drawn):
    common, cache = attention(drawn)
    return common | cache


def attention_bwd(ops, drawn):
    common, cache = attention(drawn)
    while any(x is not None for x in cache.values()):
        common, cache = attention(drawn)
    out, lse = ops.attention_fwd(*common.values(), *cache.values())
    first = {"dout": drawn.numbers(*out.shape), "dlse": drawn.maybe(lambda: torch.randn(lse.shape))}
    names = ("q", "k", "v")
    qkv = {name: common.pop(name) for name in names}
    mask = common["mask"]
    common["needs_dmask"] = (
        mask is not None and mask.is_floating_point() and mask.shape[:2] == (out.shape[0], out.shape[2])
    )
    return first | qkv | {"out": tight(out, drawn.random), "softmax_lse": lse} | common


def _conv(drawn):
    random, channels = drawn.random, drawn.random.choice([0, 1, 7, 8, 33, 70, 260])
    batch, length, width = random.randrange(1, 4), drawn.length(), random.randrange(2, 5)
    indexed, rows = random.random() < 0.5, batch
    seq_idx = torch.full((batch, length), -1, dtype=torch.int32)
    if indexed:
        rows = 0
        for row in seq_idx:
            at = 0
            while at < length:
                run = random.randrange(1, length + 1)
                if random.random() < 0.8:
                    row[at : at + run] = rows
                    rows += 1
                at += run
    wide = random.choice([torch.float32, drawn.dtype])
    return {
        "x": drawn.numbers(batch, channels, length), "weight": drawn.numbers(channels, width, dtype=wide),
        "bias": drawn.maybe(lambda: drawn.numbers(channels, dtype=wide), 0.5), "seq_idx": seq_idx if indexed else None,
        "initial_states": drawn.maybe(lambda: drawn.numbers(rows, channels, width - 1), 0.5),
        "silu": random.random() < 0.5,
    }  # fmt: skip


def causal_conv1d_fwd(ops, drawn):
    return _conv(drawn)


def causal_conv1d_fwd_out(ops, drawn):
    call = _conv(drawn)
    out = torch.empty_like(call["x"], memory_format=torch.contiguous_format)
    last = drawn.random.random() < 0.5
    return call | {"out": out.transpose(1, 2).contiguous().transpose(1, 2) if last else out}


def causal_conv1d_bwd(ops, drawn):
    call = _conv(drawn)
    return {"dout": drawn.numbers(*call["x"].shape)} | call


def causal_conv1d_update(ops, drawn):
    random, channels = drawn.random, drawn.random.choice([0, 1, 7, 8, 33, 70, 260])
    batch, width, length = random.randrange(1, 4), random.randrange(2, 5), random.randrange(1, 9)
    wide = random.choice([torch.float32, drawn.dtype])
    states, held = batch + random.randrange(3), width - 1 + random.randrange(4)
    indices = torch.tensor(random.sample(range(states), batch), dtype=torch.int32)
    indices[random.randrange(batch)] = random.choice([-1, indices[0].item() if batch == 1 else -1])
    indexed = states > batch or random.random() < 0.5
    shape = random.choice([(batch, channels), (batch, channels, length)])
    return {
        "x": drawn.numbers(*shape), "conv_state": drawn.numbers(states, channels, held),
        "weight": drawn.numbers(channels, width, dtype=wide),
        "bias": drawn.maybe(lambda: drawn.numbers(channels, dtype=wide), 0.5), "silu": random.random() < 0.5,
        "cache_seqlens": drawn.maybe(lambda: drawn.integers(0, random.choice([20, 2**31 - 1]), batch)),
        "conv_state_indices": indices if indexed else None,
    }  # fmt: skip


def _delta(drawn):
    random, packed = drawn.random, drawn.random.random() < 0.5
    count, heads_k = random.randrange(1, 4), random.randrange(1, 3)
    heads, dim, dim_v = heads_k * random.randrange(1, 4), min(drawn.dim(), 256), min(drawn.dim(), 256)
    lengths = [drawn.length() for _ in range(count)] if packed else [drawn.length()] * count
    over = (1, sum(lengths) + random.choice([0, 3])) if packed else (count, lengths[0])
    gate = (*over, heads) if random.random() < 0.5 else (*over, heads, dim)
    single = torch.float32
    return {
        "q": drawn.numbers(*over, heads_k, dim), "k": drawn.numbers(*over, heads_k, dim),
        "v": drawn.numbers(*over, heads, dim_v), "g": drawn.numbers(*gate, dtype=single),
        "beta": drawn.numbers(*over, heads, dtype=single),
        "initial_state": drawn.maybe(lambda: drawn.numbers(count, heads, dim, dim_v, dtype=single), 0.5),
        "cu_seqlens": cu_seqlens(lengths) if packed else None,
        "scale": random.choice([0.1, 1.0, 0.0, 1e30]), "l2norm": random.random() < 0.5,
    }  # fmt: skip


def gated_delta_rule_fwd(ops, drawn):
    chosen = {"output_final_state": drawn.random.random() < 0.5, "save_states": drawn.random.random() < 0.5}
    return _delta(drawn) | chosen


def gated_delta_rule_bwd(ops, drawn):
    call = _delta(drawn)
    out, final_state, states = ops.gated_delta_rule_fwd(*call.values(), True, True)
    first = {"dout": drawn.numbers(*out.shape), "dfinal_state": drawn.maybe(lambda: torch.randn(final_state.shape))}
    scale, l2norm = call.pop("scale"), call.pop("l2norm")
    return first | call | {"states": states, "scale": scale, "l2norm": l2norm}


def gated_delta_rule_recurrent(ops, drawn):
    return _delta(drawn)


def gated_delta_rule_update(ops, drawn):
    call = _delta(drawn)
    count = call["q"].shape[0] if call["cu_seqlens"] is None else len(call["cu_seqlens"]) - 1
    state = torch.randn(count, call["v"].shape[2], call["q"].shape[3], call["v"].shape[3])
    return {name: state if name == "initial_state" else x for name, x in call.items()}


def _scan(drawn):
    random, groups = drawn.random, drawn.random.choice([1, 1, 2, 3])
    channels = groups * random.choice([0, 1, 7, 16, 17, 33, 260])
    batch, length, states = random.randrange(0, 4), drawn.length(), random.choice([1, 2, 3, 16, 37])
    single, rows, wide = torch.float32, (batch, channels, length), (batch, groups, states, length)
    number = torch.arange(batch * length, dtype=torch.int32).view(batch, length) // random.choice([1, 5, 40, 70])
    number[torch.rand(number.shape, generator=drawn.generator) < random.choice([0.0, 0.1])] = -1
    packed = random.random() < 0.5
    if packed and random.random() < 0.5:  # numbers may repeat, in any order, where no state has to be theirs
        number, count = drawn.integers(-1, 3, batch, length), None
    else:
        count = max(int(number.max()) + 1, 0) + random.randrange(3) if number.numel() and packed else batch
        count = count if not packed or not _has_repeats(number) else None
    constant = [random.random() < 0.1 for _ in range(2)]

    def matrix(is_constant):
        return drawn.numbers(*((channels, states) if is_constant else wide), dtype=single)

    def other():
        return random.choice([drawn.dtype, single])

    return {
        "u": drawn.numbers(*rows), "delta": drawn.numbers(*rows, dtype=other()),
        "A": drawn.numbers(channels, states, dtype=single), "B": matrix(constant[0]), "C": matrix(constant[1]),
        "D": drawn.maybe(lambda: drawn.numbers(channels, dtype=single), 0.5),
        "z": drawn.maybe(lambda: drawn.numbers(*rows, dtype=other()), 0.5),
        "delta_bias": drawn.maybe(lambda: drawn.numbers(channels, dtype=single), 0.5),
        "seq_idx": number if packed else None,
        "initial_states": drawn.maybe(lambda: drawn.numbers(count or 0, channels, states, dtype=single), 0.5)
        if count is not None else None,
        "delta_softplus": random.random() < 0.5,
    }, count  # fmt: skip


def _has_repeats(number):
    """Whether some number, negative ones apart, belongs to more than one run of a row, or to two rows."""
    starts = torch.ones_like(number, dtype=torch.bool)
    starts[:, 1:] = number[:, 1:] != number[:, :-1]
    return bool((number[starts & (number >= 0)].unique(return_counts=True)[1] > 1).any())


def selective_scan_fwd(ops, drawn):
    call, count = _scan(drawn)
    wanted = -1 if count is None or drawn.random.random() < 0.5 else count
    return call | {"states": wanted, "save_states": drawn.random.random() < 0.5}


def selective_scan_bwd(ops, drawn):
    call, count = _scan(drawn)
    out, final_states, saved = ops.selective_scan_fwd(*call.values(), -1 if count is None else count, True)
    dfinal = None if count is None else drawn.maybe(lambda: drawn.numbers(*final_states.shape, dtype=torch.float32))
    softplus = call.pop("delta_softplus")
    first = {"dout": drawn.numbers(*out.shape), "dfinal_states": dfinal}
    return first | call | {"saved": saved, "delta_softplus": softplus}


def selective_state_update(ops, drawn):
    random, groups = drawn.random, drawn.random.randrange(1, 3)
    batch, states, single = random.randrange(0, 4), random.choice([1, 3, 8, 16, 17, 128]), torch.float32
    channels = (groups * random.randrange(1, 3), random.choice([0, 1, 7, 65]))
    channels = channels if random.random() < 0.5 else (random.choice([0, 1, 7, 65, 2000]),)
    tied = (*channels[:-1], 1) if len(channels) == 2 and random.random() < 0.5 else channels
    projection = (batch, groups, states) if len(channels) == 2 else (batch, states)
    rows = batch + random.randrange(3)
    indices = torch.tensor(random.sample(range(rows), batch), dtype=torch.int32)
    if batch and random.random() < 0.5:
        indices[random.randrange(batch)] = -1
    A = drawn.numbers(*tied, 1 if tied != channels else states, dtype=single).expand(*channels, states)
    return {
        "state": torch.randn(rows, *channels, states, generator=drawn.generator).to(drawn.dtype),
        "x": drawn.numbers(batch, *channels), "dt": drawn.numbers(batch, *tied).expand(-1, *channels), "A": A,
        "B": drawn.numbers(*projection, dtype=single), "C": drawn.numbers(*projection, dtype=single),
        "D": drawn.maybe(lambda: drawn.numbers(*channels, dtype=single), 0.5),
        "z": drawn.maybe(lambda: drawn.numbers(batch, *channels), 0.5),
        "dt_bias": drawn.maybe(lambda: drawn.numbers(*tied, dtype=single).expand(channels), 0.5),
        "dt_softplus": random.random() < 0.5,
        "state_batch_indices": indices if rows > batch or random.random() < 0.5 else None,
    }  # fmt: skip


def _state_space(drawn):
    random, form = drawn.random, drawn.random.choice(["dense", "cu_seqlens", "seq_idx"])
    count, groups = random.randrange(1, 4), random.randrange(1, 3)
    heads, dim, state = groups * random.randrange(1, 12), min(drawn.dim(), 256), min(drawn.dim(), 256)
    lengths = [drawn.length() for _ in range(count)] if form == "cu_seqlens" else [drawn.length()] * count
    over = (1, sum(lengths) + random.choice([0, 3])) if form == "cu_seqlens" else (count, lengths[0])
    single, low = torch.float32, random.choice([0.0, 0.1])
    runs = (torch.rand(over, generator=drawn.generator) < 0.05).cumsum(1) % 4 - 1
    return {
        "x": drawn.numbers(*over, heads, dim), "dt": drawn.numbers(*over, heads, dtype=single),
        "A": drawn.numbers(heads, dtype=single), "B": drawn.numbers(*over, groups, state),
        "C": drawn.numbers(*over, groups, state),
        "D": drawn.maybe(lambda: drawn.numbers(*random.choice([(heads,), (heads, dim)]), dtype=single), 0.7),
        "z": drawn.maybe(lambda: drawn.numbers(*over, heads, dim)),
        "dt_bias": drawn.maybe(lambda: drawn.numbers(heads, dtype=single), 0.5),
        "initial_states": drawn.maybe(lambda: drawn.numbers(count, heads, dim, state, dtype=single), 0.5),
        "seq_idx": runs.int() if form == "seq_idx" else None,
        "cu_seqlens": cu_seqlens(lengths) if form == "cu_seqlens" else None,
        "dt_softplus": random.random() < 0.7, "dt_min": low, "dt_max": random.choice([low, 1.0, float("inf")]),
    }  # fmt: skip


def state_space_fwd(ops, drawn):
    chosen = {"output_final_states": drawn.random.random() < 0.5, "save_states": drawn.random.random() < 0.5}
    return _state_space(drawn) | chosen


def state_space_bwd(ops, drawn):
    call = _state_space(drawn)
    out, final_states, states = ops.state_space_fwd(*call.values(), True, True)
    first = {"dout": drawn.numbers(*out.shape), "dfinal_states": drawn.maybe(lambda: torch.randn(final_states.shape))}
    options = {name: call.pop(name) for name in ("dt_softplus", "dt_min", "dt_max")}
    return first | call | {"states": states} | options


RAW = (
    attention_fwd, attention_bwd, causal_conv1d_fwd, causal_conv1d_fwd_out, causal_conv1d_bwd, causal_conv1d_update,
    gated_delta_rule_fwd, gated_delta_rule_bwd, gated_delta_rule_recurrent, gated_delta_rule_update,
    selective_scan_fwd, selective_scan_bwd, selective_state_update, state_space_fwd, state_space_bwd,
)  # fmt: skip
"""Each returns the arguments of the op of its name."""


def public(padfree, name, call):
    """The public function of a raw op and the same call in its words; None where it has none."""
    call = dict(call)
    if name == "attention_fwd" and all(
        call[n] is None for n in ("block_table", "cache_batch_idx", "leftpad_k", "mask")
    ):
        words = {n: call[n] for n in ("q", "k", "v", "softmax_scale", "causal", "softcap", "alibi_slopes", "dropout_p")}
        words |= {"window_size": (call["window_left"], call["window_right"]), "s_aux": call["sinks"]}
        if call["cu_seqlens_q"] is None:
            return padfree.flash_attn_func, words
        bounds = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "seqused_q", "seqused_k")
        return padfree.flash_attn_varlen_func, words | {n: call[n] for n in bounds}
    if name == "causal_conv1d_update":
        call["activation"] = "silu" if call.pop("silu") else None
        return padfree.causal_conv1d_update, call
    if name == "state_space_fwd":
        call["dt_limit"] = (call.pop("dt_min"), call.pop("dt_max"))
        call["return_final_states"] = call.pop("output_final_states")
        del call["save_states"]
        return padfree.mamba_chunk_scan_combined, call | {"chunk_size": 64}
    return None
