"""Random right calls of public functions that do more than hand their arguments to one raw op, with all of their
options: each returns the function and its arguments by name."""

import soak_calls
import torch
from cases import cu_seqlens


def flash_attn_with_kvcache(padfree, drawn):
    random = drawn.random
    batch, heads_kv, new = random.randrange(1, 4), random.randrange(1, 3), random.choice([1, 1, 2, 7])
    heads, dim, dim_v = heads_kv * random.randrange(1, 4), drawn.dim(), drawn.dim()
    page, paged = random.choice([1, 3, 16, 64]), random.random() < 0.5
    before = [random.randrange(60) for _ in range(batch)]
    width = -(-(max(before) + new) // page) + random.randrange(2)
    rows = batch + random.randrange(3)
    over = (batch * width + random.randrange(3), page) if paged else (rows, max(before) + new + random.randrange(5))
    turned = 2 * random.randrange(1, dim // 2 + 1) if dim > 1 else 0
    angles = torch.randn(max(before) + new + 3, turned // 2) if turned and random.random() < 0.4 else None
    pages = torch.tensor(random.sample(range(over[0]), batch * width), dtype=torch.int32) if paged else None
    return padfree.flash_attn_with_kvcache, {
        "q": drawn.numbers(batch, random.choice([1, 1, new, 5]) if angles is None else new, heads, dim),
        "k_cache": drawn.numbers(*over, heads_kv, dim), "v_cache": drawn.numbers(*over, heads_kv, dim_v),
        "k": drawn.numbers(batch, new, heads_kv, dim), "v": drawn.numbers(batch, new, heads_kv, dim_v),
        "rotary_cos": None if angles is None else angles.cos(), "rotary_sin": None if angles is None else angles.sin(),
        "cache_seqlens": torch.tensor(before, dtype=torch.int32),
        "cache_batch_idx": None if paged else torch.tensor(random.sample(range(rows), batch), dtype=torch.int32),
        "cache_leftpad": drawn.maybe(lambda: torch.tensor([random.randrange(n + 1) for n in before]).int()),
        "block_table": pages.view(batch, width) if paged else None,
        "softmax_scale": random.choice([None, 0.3]), "causal": random.random() < 0.5,
        "window_size": random.choice([(-1, -1), (random.randrange(70), random.randrange(70))]),
        "softcap": random.choice([0.0, 5.0]), "rotary_interleaved": random.random() < 0.5,
        "alibi_slopes": drawn.maybe(lambda: torch.randn(heads)), "return_softmax_lse": random.random() < 0.5,
        "s_aux": drawn.maybe(lambda: torch.randn(heads)),
    }  # fmt: skip


def attention_with_mask(padfree, drawn):
    random, batch, heads_kv = drawn.random, drawn.random.randrange(3), drawn.random.randrange(1, 3)
    heads, dim = heads_kv * random.randrange(1, 4), drawn.dim()
    seqlen_q, seqlen_k = drawn.length(), drawn.length()
    full = (batch, heads, seqlen_q, seqlen_k)
    mask = drawn.numbers(
        *(random.choice([1, size]) for size in full), dtype=random.choice([torch.float32, drawn.dtype])
    )
    return padfree.attention_with_mask, {
        "q": drawn.numbers(batch, seqlen_q, heads, dim).requires_grad_(),
        "k": drawn.numbers(batch, seqlen_k, heads_kv, dim), "v": drawn.numbers(batch, seqlen_k, heads_kv, dim),
        "mask": mask > 0 if random.random() < 0.5 else mask, "dropout_p": random.choice([0.0, 0.2]),
        "causal": random.random() < 0.3, "softcap": random.choice([0.0, 3.0]),
    }  # fmt: skip


def _packed(padfree, drawn, name, **tensors):
    return getattr(padfree, name), {
        **tensors, "dropout_p": drawn.random.choice([0.0, 0.2]), "causal": drawn.random.random() < 0.5,
        "window_size": drawn.random.choice([(-1, -1), (7, 3)]), "deterministic": drawn.random.random() < 0.5,
    }  # fmt: skip


def flash_attn_qkvpacked_func(padfree, drawn):
    shape = (drawn.random.randrange(3), drawn.length(), 3, drawn.random.randrange(1, 4), drawn.dim())
    return _packed(padfree, drawn, "flash_attn_qkvpacked_func", qkv=drawn.numbers(*shape))


def flash_attn_varlen_kvpacked_func(padfree, drawn):
    heads_kv, dim, count = drawn.random.randrange(1, 3), drawn.dim(), drawn.random.randrange(1, 4)
    lengths_q, lengths_k = ([drawn.length() for _ in range(count)] for _ in range(2))
    return _packed(
        padfree, drawn, "flash_attn_varlen_kvpacked_func",
        q=drawn.numbers(sum(lengths_q), 2 * heads_kv, dim), kv=drawn.numbers(sum(lengths_k), 2, heads_kv, dim),
        cu_seqlens_q=cu_seqlens(lengths_q), cu_seqlens_k=cu_seqlens(lengths_k),
        max_seqlen_q=max(lengths_q), max_seqlen_k=max(lengths_k),
    )  # fmt: skip


def flash_attn_varlen_func_of_3(padfree, drawn):
    random, heads_kv, dim = drawn.random, drawn.random.randrange(1, 3), drawn.dim()
    heads, count = heads_kv * random.randrange(1, 4), random.randrange(1, 4)
    lengths_q, lengths_k = ([drawn.length() for _ in range(count)] for _ in range(2))
    return padfree.flash_attention_3.flash_attn_varlen_func, {
        "q": drawn.numbers(sum(lengths_q), heads, dim).requires_grad_(random.random() < 0.5),
        "k": drawn.numbers(sum(lengths_k), heads_kv, dim), "v": drawn.numbers(sum(lengths_k), heads_kv, drawn.dim()),
        "cu_seqlens_q": cu_seqlens(lengths_q), "cu_seqlens_k": cu_seqlens(lengths_k),
        "max_seqlen_q": max(lengths_q), "max_seqlen_k": max(lengths_k),
        "seqused_k": drawn.maybe(lambda: torch.tensor([random.randrange(n + 1) for n in lengths_k]).int()),
        "softmax_scale": random.choice([None, 0.3]), "causal": random.random() < 0.5,
        "window_size": random.choice([(-1, -1), (7, 3)]), "softcap": random.choice([0.0, 5.0]),
        "num_splits": random.randrange(3), "pack_gqa": random.choice([None, True]), "sm_margin": random.randrange(3),
        "return_attn_probs": random.random() < 0.5, "s_aux": drawn.maybe(lambda: torch.randn(heads)),
    }  # fmt: skip


def flash_attn_with_kvcache_of_3(padfree, drawn):
    """The form that the bundle's own function has not: packed queries, and packed new keys."""
    random, heads_kv, dim, dim_v = drawn.random, drawn.random.randrange(1, 3), drawn.dim(), drawn.dim()
    heads, batch = heads_kv * random.randrange(1, 4), random.randrange(1, 4)
    queries, new, before = ([random.randrange(n) for _ in range(batch)] for n in (9, 9, 40))
    rows, width = batch + random.randrange(3), max(map(sum, zip(before, new, strict=True))) + 1 + random.randrange(5)
    extends = random.random() < 0.7
    return padfree.flash_attention_3.flash_attn_with_kvcache, {
        "q": drawn.numbers(sum(queries), heads, dim),
        "k_cache": drawn.numbers(rows, width, heads_kv, dim), "v_cache": drawn.numbers(rows, width, heads_kv, dim_v),
        "k": drawn.numbers(sum(new), heads_kv, dim) if extends else None,
        "v": drawn.numbers(sum(new), heads_kv, dim_v) if extends else None,
        "cache_seqlens": torch.tensor(before, dtype=torch.int32),
        "cache_batch_idx": torch.tensor(random.sample(range(rows), batch), dtype=torch.int32),
        "cu_seqlens_q": cu_seqlens(queries), "cu_seqlens_k_new": cu_seqlens(new) if extends else None,
        "max_seqlen_q": random.choice([None, max(queries)]), "causal": random.random() < 0.5,
        "window_size": random.choice([(-1, -1), (7, 3)]), "softcap": random.choice([0.0, 5.0]),
        "return_softmax_lse": random.random() < 0.5,
    }  # fmt: skip


def flash_attn_combine(padfree, drawn):
    parts = (drawn.random.randrange(1, 4), drawn.random.randrange(3), drawn.length(), drawn.random.randrange(1, 4))
    lse = drawn.numbers(*parts, dtype=torch.float32)
    return padfree.flash_attention_3.flash_attn_combine, {
        "out_partial": drawn.numbers(*parts, drawn.dim()).requires_grad_(drawn.random.random() < 0.5),
        "lse_partial": lse.masked_fill(lse > 1, -float("inf")), "out_dtype": drawn.random.choice([None, drawn.dtype]),
    }  # fmt: skip


def apply_rotary_emb(padfree, drawn):
    random, dim = drawn.random, 2 * drawn.dim()
    heads, count = (random.randrange(1, 4) for _ in range(2))
    lengths, packed, inplace = [drawn.length() for _ in range(count)], random.random() < 0.5, random.random() < 0.3
    rows = sum(lengths) + random.randrange(3) if packed else drawn.length()
    angles = drawn.numbers(rows + 5, random.randrange(1, dim // 2 + 1), dtype=torch.float32)
    x = drawn.numbers(*((rows,) if packed else (count, rows)), heads, dim)
    return padfree.rotary.apply_rotary_emb, {
        "x": x.requires_grad_(not inplace and random.random() < 0.5),
        "cos": angles.cos().to(drawn.dtype), "sin": angles.sin().to(drawn.dtype), "interleaved": random.random() < 0.5,
        "inplace": inplace, "cu_seqlens": cu_seqlens(lengths) if packed else None,
        "seqlen_offsets": random.choice([0, 3, torch.tensor([random.randrange(5) for _ in range(count)])]),
        "max_seqlen": random.choice([None, rows + 1]),
    }  # fmt: skip


def apply_rotary_emb_qkv_(padfree, drawn):
    random, heads, dim, length = drawn.random, drawn.random.randrange(1, 4), 2 * drawn.dim(), drawn.length()
    angles, heads_kv = drawn.numbers(length + 5, dim // 2, dtype=torch.float32), random.choice([None, 1, 2])
    shape = (3, heads) if heads_kv is None else (heads + 2 * heads_kv,)
    return padfree.rotary.apply_rotary_emb_qkv_, {
        "qkv": drawn.numbers(random.randrange(3), length, *shape, dim),
        "cos": angles.cos().to(drawn.dtype), "sin": angles.sin().to(drawn.dtype), "interleaved": random.random() < 0.5,
        "seqlen_offsets": random.randrange(5), "num_heads_q": None if heads_kv is None else heads,
    }  # fmt: skip


def unpad_input(padfree, drawn):
    random, shape = drawn.random, (drawn.random.randrange(3), drawn.length())
    mask = torch.rand(shape, generator=drawn.generator) < 0.6
    return padfree.bert_padding.unpad_input, {
        "hidden_states": drawn.numbers(*shape, *random.choice([(), (5,), (2, 3)])).requires_grad_(),
        "attention_mask": mask.to(random.choice([torch.bool, torch.int64, torch.float32])),
    }  # fmt: skip


def pad_input(padfree, drawn):
    batch, seqlen = drawn.random.randrange(1, 4), drawn.length()
    indices = torch.randperm(batch * seqlen, generator=drawn.generator)[: drawn.random.randrange(batch * seqlen + 1)]
    return padfree.bert_padding.pad_input, {
        "hidden_states": drawn.numbers(len(indices), drawn.random.randrange(1, 9)).requires_grad_(),
        "indices": indices.to(drawn.random.choice([torch.int32, torch.int64])), "batch": batch, "seqlen": seqlen,
    }  # fmt: skip


def _delta(padfree, drawn, name, gate_dims):
    call = soak_calls._delta(drawn)
    while call["g"].dim() != gate_dims:
        call = soak_calls._delta(drawn)
    call["use_qk_l2norm_in_kernel"], call["scale"] = call.pop("l2norm"), call["scale"] or None
    heads, dim = call["v"].shape[2], call["q"].shape[3]
    call |= _activations(drawn, heads, heads * (dim if gate_dims == 4 else 1), "kda" in name)
    call["state_v_first"] = drawn.random.random() < 0.3
    if call["state_v_first"] and call["initial_state"] is not None:
        call["initial_state"] = call["initial_state"].transpose(-1, -2)
    return getattr(padfree, name), call | {"output_final_state": drawn.random.random() < 0.5}


def _activations(drawn, heads, biases, bounded):
    """Gate and beta activated inside, or as they come."""
    random, single, chosen = drawn.random, torch.float32, {"use_gate_in_kernel": drawn.random.random() < 0.4}
    if chosen["use_gate_in_kernel"]:
        chosen |= {"A_log": drawn.numbers(heads, dtype=single), "dt_bias": drawn.maybe(lambda: drawn.numbers(biases))}
        if bounded:
            chosen["lower_bound"] = random.choice([None, -4.0])
    chosen["use_beta_sigmoid_in_kernel"] = random.random() < 0.4
    chosen["allow_neg_eigval"] = chosen["use_beta_sigmoid_in_kernel"] and random.random() < 0.5
    return chosen


def chunk_gated_delta_rule(padfree, drawn):
    function, call = _delta(padfree, drawn, "chunk_gated_delta_rule", 3)
    call["beta"].requires_grad_(drawn.random.random() < 0.5)
    return function, call


def fused_recurrent_gated_delta_rule(padfree, drawn):
    function, call = _delta(padfree, drawn, "fused_recurrent_gated_delta_rule", 3)
    state = call["initial_state"]
    whole = state is not None and state.is_contiguous() and not call["state_v_first"]
    return function, call | {"inplace_final_state": whole and drawn.random.random() < 0.5}


def chunk_kda(padfree, drawn):
    function, call = _delta(padfree, drawn, "chunk_kda", 4)
    call["v"].requires_grad_()
    return function, call


def fused_recurrent_kda(padfree, drawn):
    return _delta(padfree, drawn, "fused_recurrent_kda", 4)


def causal_conv1d_varlen_states(padfree, drawn):
    lengths = [drawn.length() for _ in range(drawn.random.randrange(1, 4))]
    x = drawn.numbers(sum(lengths) + drawn.random.randrange(3), drawn.random.choice([1, 7, 33]))
    return padfree.causal_conv1d_varlen_states, {
        "x": x, "cu_seqlens": cu_seqlens(lengths), "state_len": drawn.random.randrange(1, 6)
    }  # fmt: skip


def causal_conv1d_fn(padfree, drawn):
    call = soak_calls.causal_conv1d_fwd(None, drawn)
    call["activation"] = "silu" if call.pop("silu") else drawn.random.choice([None, "swish"])
    wanted = drawn.random.random() < 0.7
    states, (batch, channels, _) = call["initial_states"], call["x"].shape
    if wanted and drawn.random.random() < 0.4:
        rows = batch if states is None else states.shape[0]
        if call["seq_idx"] is not None and states is None:
            rows = int(call["seq_idx"].max()) + 1 + drawn.random.randrange(3) if call["seq_idx"].numel() else 2
        call["final_states_out"] = drawn.numbers(max(rows, 0), channels, call["weight"].shape[1] - 1)
    elif drawn.random.random() < 0.3:
        call["out"] = torch.empty(call["x"].shape, dtype=drawn.dtype)
    if "out" not in call:
        call["x"].requires_grad_(drawn.random.random() < 0.5)
    return padfree.causal_conv1d_fn, call | {"return_final_states": wanted}


def mamba_chunk_scan_combined(padfree, drawn):
    call = soak_calls._state_space(drawn)
    limits = (call.pop("dt_min"), call.pop("dt_max"))
    call["x"].requires_grad_(drawn.random.random() < 0.5)
    packed = call["cu_seqlens"] is not None
    return padfree.mamba_chunk_scan_combined, call | {
        "chunk_size": drawn.random.choice([1, 64, 256]), "dt_limit": limits,
        "return_final_states": not packed and drawn.random.random() < 0.5,
        "return_varlen_states": packed and drawn.random.random() < 0.5,
    }  # fmt: skip


def mamba_split_conv1d_scan_combined(padfree, drawn):
    random, groups = drawn.random, drawn.random.randrange(1, 3)
    heads, dim, states, width = groups * random.randrange(1, 4), random.randrange(1, 20), random.randrange(1, 40), 4
    batch, length = random.randrange(1, 3), drawn.length()
    inner, single = heads * dim, torch.float32
    channels = inner + 2 * groups * states
    runs = (torch.rand(batch, length, generator=drawn.generator) < 0.1).cumsum(1) % 4 - 1
    project = random.random() < 0.5
    return padfree.mamba_split_conv1d_scan_combined, {
        "zxbcdt": drawn.numbers(batch, length, inner + channels + heads).requires_grad_(random.random() < 0.5),
        "conv1d_weight": drawn.numbers(channels, width), "conv1d_bias": drawn.maybe(lambda: drawn.numbers(channels)),
        "dt_bias": drawn.numbers(heads, dtype=single), "A": drawn.numbers(heads, dtype=single),
        "D": drawn.numbers(*random.choice([(heads,), (heads, dim)]), dtype=single), "chunk_size": 64,
        "initial_states": drawn.maybe(lambda: drawn.numbers(batch, heads, dim, states, dtype=single)),
        "seq_idx": drawn.maybe(runs.int, 0.5), "dt_limit": (0.0, random.choice([0.5, float("inf")])),
        "return_final_states": random.random() < 0.5, "activation": random.choice([None, "silu"]),
        "rmsnorm_weight": drawn.maybe(lambda: drawn.numbers(inner), 0.5), "headdim": dim, "ngroups": groups,
        "outproj_weight": drawn.numbers(7, inner) if project else None,
        "outproj_bias": drawn.numbers(7) if project and random.random() < 0.5 else None,
        "norm_before_gate": random.random() < 0.5,
    }  # fmt: skip


def selective_scan_fn(padfree, drawn):
    call, count = soak_calls._scan(drawn)
    call["return_last_state"] = count is not None and drawn.random.random() < 0.6
    if drawn.random.random() < 0.3:
        lengths = [drawn.length() for _ in range(drawn.random.randrange(4))]
        while call["u"].shape[0] != 1:
            call, _ = soak_calls._scan(drawn)
        seqlen, shape = call["u"].shape[2], (len(lengths), *call["A"].shape)
        ends = cu_seqlens(lengths).clamp_max(seqlen)
        states = drawn.maybe(lambda: drawn.numbers(*shape, dtype=torch.float32), 0.5)
        call |= {"seq_idx": None, "cu_seqlens": ends, "initial_states": states, "return_last_state": True}
    call["u"].requires_grad_(drawn.random.random() < 0.5)
    return padfree.selective_scan_fn, call


def mamba_inner_fn(padfree, drawn):
    random, channels, states = drawn.random, drawn.random.choice([1, 7, 33]), drawn.random.choice([1, 3, 16])
    batch, length, rank, single = random.randrange(0, 3), drawn.length(), random.randrange(1, 5), torch.float32
    runs = (torch.rand(batch, length, generator=drawn.generator) < 0.1).cumsum(1) % 4 - 1
    norms = {name: drawn.maybe(lambda: drawn.numbers(states)) for name in ("b_rms_weight", "c_rms_weight")}
    ranked = random.random() < 0.5
    return padfree.mamba_inner_fn, {
        "xz": drawn.numbers(batch, 2 * channels, length).requires_grad_(random.random() < 0.5),
        "conv1d_weight": drawn.numbers(*random.choice([(channels, 1, 4), (channels, 3)])),
        "conv1d_bias": drawn.maybe(lambda: drawn.numbers(channels)),
        "x_proj_weight": drawn.numbers(rank + 2 * states, channels),
        "delta_proj_weight": drawn.numbers(channels, rank), "out_proj_weight": drawn.numbers(5, channels),
        "out_proj_bias": drawn.maybe(lambda: drawn.numbers(5)), "A": drawn.numbers(channels, states, dtype=single),
        "D": drawn.maybe(lambda: drawn.numbers(channels, dtype=single)),
        "delta_bias": drawn.maybe(lambda: drawn.numbers(channels, dtype=single)),
        "B_proj_bias": drawn.maybe(lambda: drawn.numbers(states)),
        "C_proj_bias": drawn.maybe(lambda: drawn.numbers(states)), "seq_idx": drawn.maybe(runs.int, 0.5),
        **norms, "norm_dt_rank": ranked,
        "dt_rms_weight": drawn.maybe(lambda: drawn.numbers(rank if ranked else channels)),
    }  # fmt: skip


def selective_state_update(padfree, drawn):
    call = soak_calls.selective_state_update(None, drawn)
    if call["state_batch_indices"] is None:
        call["x"].requires_grad_(drawn.random.random() < 0.3)
    return padfree.selective_state_update, call


def backward_too(result):
    """The gradient of whatever came out of a call that takes one."""
    for x in result if isinstance(result, tuple) else (result,):
        if isinstance(x, torch.Tensor) and x.requires_grad:
            return (x.abs() if x.is_complex() else x).sum().backward()
    return None


CALLS = (
    flash_attn_with_kvcache, flash_attn_with_kvcache, attention_with_mask, flash_attn_qkvpacked_func,
    flash_attn_varlen_kvpacked_func, chunk_gated_delta_rule, fused_recurrent_gated_delta_rule, chunk_kda,
    fused_recurrent_kda, causal_conv1d_fn, causal_conv1d_varlen_states, mamba_chunk_scan_combined,
    mamba_split_conv1d_scan_combined, selective_scan_fn, mamba_inner_fn, selective_state_update,
    flash_attn_varlen_func_of_3, flash_attn_with_kvcache_of_3, flash_attn_combine, apply_rotary_emb,
    apply_rotary_emb_qkv_, unpad_input, pad_input,
)  # fmt: skip
