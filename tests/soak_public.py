"""Random right calls of public functions that do more than hand their arguments to one raw op: each returns the
function and its arguments by name."""

import functools

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


def _delta(padfree, drawn, name, gate_dims):
    call = soak_calls._delta(drawn)
    while call["g"].dim() != gate_dims:
        call = soak_calls._delta(drawn)
    call["use_qk_l2norm_in_kernel"], call["scale"] = call.pop("l2norm"), call["scale"] or None
    return getattr(padfree, name), call | {"output_final_state": drawn.random.random() < 0.5}


def fused_recurrent_gated_delta_rule(padfree, drawn):
    return _delta(padfree, drawn, "fused_recurrent_gated_delta_rule", 3)


def chunk_kda(padfree, drawn):
    function, call = _delta(padfree, drawn, "chunk_kda", 4)
    call["v"].requires_grad_()
    return function, call


def fused_recurrent_kda(padfree, drawn):
    return _delta(padfree, drawn, "fused_recurrent_kda", 4)


def causal_conv1d_varlen_states(padfree, drawn):
    lengths = [drawn.length() for _ in range(drawn.random.randrange(1, 4))]
    x = drawn.numbers(sum(lengths) + drawn.random.randrange(3), drawn.random.choice([1, 7, 33]))
    # The number of states is out of the faults' reach: a huge one is a wish for all the memory there is.
    function = functools.partial(padfree.causal_conv1d_varlen_states, state_len=drawn.random.randrange(1, 6))
    return function, {"x": x, "cu_seqlens": cu_seqlens(lengths)}


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


def backward_too(result):
    """The gradient of whatever came out of a call that takes one."""
    for x in result if isinstance(result, tuple) else (result,):
        if isinstance(x, torch.Tensor) and x.requires_grad:
            return x.sum().backward()
    return None


CALLS = (
    flash_attn_with_kvcache, flash_attn_with_kvcache, attention_with_mask, flash_attn_qkvpacked_func,
    flash_attn_varlen_kvpacked_func, fused_recurrent_gated_delta_rule, chunk_kda, fused_recurrent_kda,
    causal_conv1d_varlen_states, mamba_chunk_scan_combined,
)  # fmt: skip
