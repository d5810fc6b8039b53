"""Every error text, word for word: what a person reads when a call is wrong. A section an op."""

import pytest
import torch
from cases import cu_seqlens, randn

# ---- attention: flash_attn_func --------------------------------------------------------------------------------------


def qkv(heads=(4, 2), dims=(8, 8), lengths=(5, 7), dtype=torch.float32, packed=False):
    tokens_q, tokens_k = lengths
    shapes = [(tokens_q, heads[0], dims[0]), (tokens_k, heads[1], dims[0]), (tokens_k, heads[1], dims[1])]
    return {n: randn(*(s if packed else (2, *s)), dtype=dtype) for n, s in zip("qkv", shapes, strict=True)}


DENSE_ERRORS = {
    "q_type": ({"q": [1.0]}, TypeError, "q must be a tensor, got list"),
    "k_type": ({"k": None}, TypeError, "k must be a tensor, got NoneType"),
    "q_dtype": (
        {"q": randn(2, 5, 4, 8, dtype=torch.float64)},
        TypeError,
        "q must be float32, bfloat16 or float16, got float64",
    ),
    "integers": (
        {"q": torch.ones(2, 5, 4, 8, dtype=torch.int64)},
        TypeError,
        "q must be float32, bfloat16 or float16, got int64",
    ),
    "k_dtype": (
        {"k": randn(2, 7, 2, 8, dtype=torch.bfloat16)},
        TypeError,
        "k must have the dtype of q (float32), got bfloat16",
    ),
    "v_dtype": (
        {"v": randn(2, 7, 2, 8, dtype=torch.float16)},
        TypeError,
        "v must have the dtype of q (float32), got float16",
    ),
    "k_device": (
        {"k": torch.empty(2, 7, 2, 8, device="meta")},
        TypeError,
        "k must be on the device of q (cpu), got meta",
    ),
    "q_rank": ({"q": randn(5, 4, 8)}, ValueError, "q must have 4 dimensions, got 3"),
    "v_rank": ({"v": randn(2, 7, 2, 8, 1)}, ValueError, "v must have 4 dimensions, got 5"),
    "batch": ({"k": randn(3, 7, 2, 8), "v": randn(3, 7, 2, 8)}, ValueError, "k must have size 2 in dimension 0, got 3"),
    "head_dim": ({"k": randn(2, 7, 2, 9)}, ValueError, "k must have size 8 in dimension 3, got 9"),
    "v_length": ({"v": randn(2, 6, 2, 8)}, ValueError, "v must have size 7 in dimension 1, got 6"),
    "v_heads": ({"v": randn(2, 7, 4, 8)}, ValueError, "v must have size 2 in dimension 2, got 4"),
    "heads": (qkv(heads=(12, 5)), ValueError, "heads_kv must divide heads_q (12), got 5"),
    "more_heads_kv": (qkv(heads=(2, 4)), ValueError, "heads_kv must divide heads_q (2), got 4"),
    "no_heads_kv": (qkv(heads=(2, 0)), ValueError, "heads_kv must divide heads_q (2), got 0"),
    "no_heads": (qkv(heads=(0, 0)), ValueError, "heads_q must be at least 1, got 0"),
    "no_head_dim": (qkv(dims=(0, 8)), ValueError, "head_dim must be 1 to 512, got 0"),
    "head_dim_520": (qkv(dims=(520, 8)), NotImplementedError, "head_dim must be 1 to 512, got 520"),
    "head_dim_v_520": (qkv(dims=(8, 520)), NotImplementedError, "head_dim of v must be 1 to 512, got 520"),
    "dropout_range": ({"dropout_p": 1.0}, ValueError, "dropout_p must be in [0, 1), got 1.0"),
    "dropout_sign": ({"dropout_p": -0.1}, ValueError, "dropout_p must be in [0, 1), got -0.1"),
    "dropout_type": ({"dropout_p": None}, TypeError, "dropout_p must be a number, got NoneType"),
    "scale_type": ({"softmax_scale": "1"}, TypeError, "softmax_scale must be a number, got str"),
    "scale_nan": ({"softmax_scale": float("nan")}, ValueError, "softmax_scale must be finite, got nan"),
    "causal": ({"causal": 1}, TypeError, "causal must be True or False, got 1"),
    "deterministic": ({"deterministic": None}, TypeError, "deterministic must be True or False, got None"),
    "return_attn_probs": ({"return_attn_probs": 0}, TypeError, "return_attn_probs must be True or False, got 0"),
    "softcap_sign": ({"softcap": -1.0}, ValueError, "softcap must be 0.0 (off) or positive, got -1.0"),
    "softcap_inf": ({"softcap": float("inf")}, ValueError, "softcap must be finite, got inf"),
    "window_one": ({"window_size": 4}, TypeError, "window_size must be a pair (left, right), got 4"),
    "window_three": ({"window_size": (1, 2, 3)}, TypeError, "window_size must be a pair (left, right), got (1, 2, 3)"),
    "window_float": ({"window_size": (1.0, 2)}, TypeError, "window_size must be a pair of integers, got (1.0, 2)"),
    "window_sign": (
        {"window_size": (-2, 0)},
        ValueError,
        "window_size must hold -1 (unbounded) or more, got (-2, 0)",
    ),
}


@pytest.mark.parametrize(("change", "kind", "text"), DENSE_ERRORS.values(), ids=DENSE_ERRORS)
def test_attention_dense(padfree, change, kind, text):
    with pytest.raises(kind) as error:
        padfree.flash_attn_func(**{**qkv(), **change})
    assert type(error.value) is kind
    assert str(error.value) == f"attention: {text}"


MODIFIER_ERRORS = {
    "sinks_type": ({"s_aux": [1.0]}, TypeError, "s_aux must be a tensor, got list"),
    "sinks_dtype": (
        {"s_aux": torch.ones(4, dtype=torch.int64)},
        TypeError,
        "s_aux must be float32, bfloat16 or float16, got int64",
    ),
    "sinks_rank": ({"s_aux": torch.ones(1, 4)}, ValueError, "s_aux must have 1 dimension, got 2"),
    "sinks_size": ({"s_aux": torch.ones(2)}, ValueError, "s_aux must have size 4 in dimension 0, got 2"),
    "sinks_device": (
        {"learnable_sink": torch.ones(4, device="meta")},
        TypeError,
        "s_aux must be on the device of q (cpu), got meta",
    ),
    "sinks_twice": (
        {"s_aux": torch.ones(4), "learnable_sink": torch.ones(4)},
        ValueError,
        "learnable_sink must be None when s_aux is given, got Tensor",
    ),
    "slopes_type": ({"alibi_slopes": 0.5}, TypeError, "alibi_slopes must be a tensor, got float"),
    "slopes_dtype": (
        {"alibi_slopes": torch.ones(4).bfloat16()},
        TypeError,
        "alibi_slopes must be float32, got bfloat16",
    ),
    "slopes_shape": (
        {"alibi_slopes": torch.ones(3, 4)},
        ValueError,
        "alibi_slopes must have shape (4,) or (2, 4), got (3, 4)",
    ),
    "splits_type": ({"num_splits": None}, TypeError, "num_splits must be an int, got NoneType"),
    "splits_sign": ({"num_splits": -1}, ValueError, "num_splits must be 0 or more, got -1"),
}


@pytest.mark.parametrize(("change", "kind", "text"), MODIFIER_ERRORS.values(), ids=MODIFIER_ERRORS)
@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
def test_attention_modifiers(padfree, change, kind, text, packed):
    call = padfree.flash_attn_varlen_func if packed else padfree.flash_attn_func
    with pytest.raises(kind) as error:
        call(**{**(packed_arguments() if packed else qkv()), **change})
    assert type(error.value) is kind
    assert str(error.value) == f"attention: {text}"


MASK_ERRORS = {
    "type": (None, TypeError, "mask must be a tensor, got NoneType"),
    "dtype": (
        torch.ones(2, 4, 5, 7, dtype=torch.int32),
        TypeError,
        "mask must be bool, float32 or the dtype of q (float32), got int32",
    ),
    "rank": (torch.ones(5, 7, dtype=torch.bool), ValueError, "mask must have 4 dimensions, got 2"),
    "heads": (torch.ones(2, 2, 5, 7), ValueError, "mask must have size 4 or 1 in dimension 1, got 2"),
    "keys": (torch.ones(2, 4, 5, 5), ValueError, "mask must have size 7 or 1 in dimension 3, got 5"),
    "device": (torch.ones(2, 4, 5, 7, device="meta"), TypeError, "mask must be on the device of q (cpu), got meta"),
}


@pytest.mark.parametrize(("mask", "kind", "text"), MASK_ERRORS.values(), ids=MASK_ERRORS)
def test_attention_mask(padfree, mask, kind, text):
    with pytest.raises(kind) as error:
        padfree.attention_with_mask(**qkv(), mask=mask)
    assert str(error.value) == f"attention: {text}"


# ---- attention: flash_attn_varlen_func -------------------------------------------------------------------------------


def packed_arguments():
    """Sequences of 2 and 3 queries, 3 and 4 keys."""
    bounds = {"cu_seqlens_q": cu_seqlens([2, 3]), "cu_seqlens_k": cu_seqlens([3, 4])}
    return {**qkv(packed=True), **bounds, "max_seqlen_q": 3, "max_seqlen_k": 4}


def ends(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


PACKED_ERRORS = {
    "rank": (qkv(), ValueError, "q must have 3 dimensions, got 4"),
    "head_dim": ({"k": randn(7, 2, 9)}, ValueError, "k must have size 8 in dimension 2, got 9"),
    "v_rows": ({"v": randn(6, 2, 8)}, ValueError, "v must have size 7 in dimension 0, got 6"),
    "heads": (qkv(heads=(6, 4), packed=True), ValueError, "heads_kv must divide heads_q (6), got 4"),
    "ends_type": ({"cu_seqlens_q": [0, 2, 5]}, TypeError, "cu_seqlens_q must be a tensor, got list"),
    "ends_none": ({"cu_seqlens_k": None}, TypeError, "cu_seqlens_k must be a tensor, got NoneType"),
    "ends_dtype": (
        {"cu_seqlens_q": ends(0, 2, 5, dtype=torch.float32)},
        TypeError,
        "cu_seqlens_q must be int32 or int64, got float32",
    ),
    "ends_device": (
        {"cu_seqlens_k": torch.empty(3, dtype=torch.int32, device="meta")},
        TypeError,
        "cu_seqlens_k must be on the device of q (cpu), got meta",
    ),
    "ends_rank": ({"cu_seqlens_q": ends(0, 2, 5)[None]}, ValueError, "cu_seqlens_q must have 1 dimension, got 2"),
    "ends_count": (
        {"cu_seqlens_k": ends(0, 7), "max_seqlen_k": 7},
        ValueError,
        "cu_seqlens_k must have 3 elements as cu_seqlens_q has, got 2",
    ),
    "ends_empty": (
        {"cu_seqlens_q": ends(), "cu_seqlens_k": ends()},
        ValueError,
        "cu_seqlens_q must start at 0, got nothing",
    ),
    "ends_start": ({"cu_seqlens_q": ends(1, 2, 5)}, ValueError, "cu_seqlens_q must start at 0, got 1"),
    "ends_negative": ({"cu_seqlens_k": ends(-1, 3, 7)}, ValueError, "cu_seqlens_k must start at 0, got -1"),
    "ends_decrease": ({"cu_seqlens_k": ends(0, 7, 5)}, ValueError, "cu_seqlens_k must not decrease, got 5 after 7"),
    "ends_past_q": (
        {"cu_seqlens_q": ends(0, 3, 6)},
        ValueError,
        "cu_seqlens_q must end at or below the number of rows of q (5), got 6",
    ),
    "ends_past_k": (
        {"cu_seqlens_k": ends(0, 3, 8), "max_seqlen_k": 5},
        ValueError,
        "cu_seqlens_k must end at or below the number of rows of k (7), got 8",
    ),
    "max_q": ({"max_seqlen_q": 2}, ValueError, "max_seqlen_q must be at least the longest sequence (3), got 2"),
    "max_k": ({"max_seqlen_k": 0}, ValueError, "max_seqlen_k must be at least the longest sequence (4), got 0"),
    "max_tensor": (
        {"max_seqlen_q": torch.tensor(2)},
        ValueError,
        "max_seqlen_q must be at least the longest sequence (3), got 2",
    ),
    "max_none": (
        {"max_seqlen_q": None},
        TypeError,
        "max_seqlen_q must be an int or a 0-dim integer tensor, got NoneType",
    ),
    "max_float": (
        {"max_seqlen_k": 4.0},
        TypeError,
        "max_seqlen_k must be an int or a 0-dim integer tensor, got float",
    ),
    "max_bool": (
        {"max_seqlen_k": True},
        TypeError,
        "max_seqlen_k must be an int or a 0-dim integer tensor, got bool",
    ),
    "max_rank": (
        {"max_seqlen_k": torch.tensor([4])},
        TypeError,
        "max_seqlen_k must be an int or a 0-dim integer tensor, got a 1-dim int64 tensor",
    ),
    "max_dtype": (
        {"max_seqlen_k": torch.tensor(4.0)},
        TypeError,
        "max_seqlen_k must be an int or a 0-dim integer tensor, got a 0-dim float32 tensor",
    ),
}


@pytest.mark.parametrize(("change", "kind", "text"), PACKED_ERRORS.values(), ids=PACKED_ERRORS)
def test_attention_packed(padfree, change, kind, text):
    with pytest.raises(kind) as error:
        padfree.flash_attn_varlen_func(**{**packed_arguments(), **change})
    assert type(error.value) is kind
    assert str(error.value) == f"attention: {text}"


PAGES = {"k": torch.zeros(5, 4, 2, 8), "v": torch.zeros(5, 4, 2, 8)}  # for 3 and 4 keys: one page each
TABLE = torch.tensor([[0], [4]], dtype=torch.int32)
PAGED_ERRORS = {
    "pages_rank": ({"block_table": TABLE}, ValueError, "k must have 4 dimensions, got 3"),
    "names": (
        {**PAGES, "block_table": TABLE, "page_table": TABLE},
        ValueError,
        "page_table must be None when block_table is given, got Tensor",
    ),
    "type": ({**PAGES, "block_table": [[0], [4]]}, TypeError, "block_table must be a tensor, got list"),
    "dtype": ({**PAGES, "page_table": TABLE.long()}, TypeError, "block_table must be int32, got int64"),
    "rows": ({**PAGES, "block_table": TABLE[:1]}, ValueError, "block_table must have size 2 in dimension 0, got 1"),
    "page": (
        {**PAGES, "block_table": TABLE + 1},
        ValueError,
        "block_table must hold pages 0 to 4 where tokens lie, got 5",
    ),
    "room": (
        {**PAGES, "block_table": TABLE, "cu_seqlens_k": ends(0, 3, 8), "max_seqlen_k": 5},
        ValueError,
        "block_table must have room for 5 tokens, got 1 pages of 4 (4)",
    ),
    "gradient": (
        {**PAGES, "q": torch.zeros(5, 4, 8, requires_grad=True), "block_table": TABLE},
        NotImplementedError,
        "block_table must be None where a gradient is wanted, got a tensor (use torch.no_grad())",
    ),
    "used_count": ({"seqused_k": ends(1, 2, 3)}, ValueError, "seqused_k must have size 2 in dimension 0, got 3"),
    "used_dtype": (
        {"seqused_q": torch.ones(2)},
        TypeError,
        "seqused_q must be int32 or int64, got float32",
    ),
    "used_long": (
        {"seqused_q": ends(2, 4)},
        ValueError,
        "seqused_q must be 0 to the length of the sequence (3), got 4",
    ),
    "used_negative": (
        {"seqused_k": ends(-1, 4)},
        ValueError,
        "seqused_k must be 0 to the length of the sequence (3), got -1",
    ),
}


@pytest.mark.parametrize(("change", "kind", "text"), PAGED_ERRORS.values(), ids=PAGED_ERRORS)
def test_attention_parts_and_pages(padfree, change, kind, text):
    with pytest.raises(kind) as error:
        padfree.flash_attn_varlen_func(**{**packed_arguments(), **change})
    assert type(error.value) is kind
    assert str(error.value) == f"attention: {text}"


KERNEL_CHECKS = ["ends_rank", "ends_count", "ends_empty", "ends_start", "ends_negative", "ends_decrease", "ends_past_q"]


@pytest.mark.parametrize("name", [*KERNEL_CHECKS, "ends_past_k", "max_q", "max_k"])
def test_attention_kernel_checks_boundaries_itself(ops, name):
    """The op, called without the public function, keeps to its memory: the same values are a RuntimeError there."""
    change, _, text = PACKED_ERRORS[name]
    call = {**packed_arguments(), **change}
    bounds = (call["cu_seqlens_q"], call["cu_seqlens_k"], call["max_seqlen_q"], call["max_seqlen_k"])
    with pytest.raises(RuntimeError) as error:
        ops.attention_fwd(call["q"], call["k"], call["v"], *bounds, 1.0, False, -1, -1, 0.0)
    assert str(error.value).startswith(f"attention: {text}")


KERNEL_MODIFIERS = {
    "sinks": ({"sinks": torch.ones(3)}, "sinks must have size 4 in dimension 0, got 3"),
    "sinks_dtype": ({"sinks": torch.ones(4).half()}, "sinks must be float32"),
    "slopes": ({"alibi_slopes": torch.ones(3, 4)}, "alibi_slopes must have size 2 in dimension 0, got 3"),
    "dropout": ({"dropout_p": 1.0}, "dropout_p must be in [0, 1), got 1"),
    "seed": ({"dropout_p": 0.5}, "rng_state must be given with dropout_p, got None"),
    "used": ({"seqused_k": ends(8, 1)}, "seqused_k must be 0 to the length of the sequence (7), got 8"),
    "used_dtype": ({"seqused_q": ends(5, 1, dtype=torch.int64)}, "seqused_q must be int32"),
    "mask": ({"mask": torch.ones(2, 4, 1, 7)}, "mask must have size 5 in dimension 2, got 1"),
    "mask_dtype": ({"mask": torch.ones(2, 4, 5, 7).long()}, "mask must be float32, bfloat16 or float16"),
    "rows": ({"cache_batch_idx": ends(0, 2)}, "cache_batch_idx must be below 2, the rows of k_cache, got 2"),
    "leftpad": ({"leftpad_k": ends(8, 0)}, "leftpad_k must be 0 to the tokens in the cache (7), got 8"),
    "page": ({"block_table": ends(0, 2)[:, None]}, "block_table must hold pages 0 to 1 where tokens lie, got 2"),
    "pages": ({"block_table": ends(0, 1)}, "block_table must have 2 dimensions, got 1"),
}


@pytest.mark.parametrize(("change", "text"), KERNEL_MODIFIERS.values(), ids=KERNEL_MODIFIERS)
def test_attention_kernel_checks_modifiers_itself(ops, change, text):
    with pytest.raises(RuntimeError) as error:
        ops.attention_fwd(*qkv().values(), None, None, 5, 7, 1.0, False, -1, -1, 0.0, **change)
    assert str(error.value).startswith(f"attention: {text}")


@pytest.mark.parametrize(("mask", "got"), [(None, "None"), (torch.ones(2, 4, 5, 7).bool(), "bool")])
def test_attention_kernel_refuses_the_gradient_of_no_numbers(ops, mask, got):
    call = qkv()
    out, lse = ops.attention_fwd(*call.values(), None, None, 5, 7, 1.0, False, -1, -1, 0.0, mask=mask)
    plain = (None, None, 5, 7, 1.0, False, -1, -1, 0.0)
    with pytest.raises(RuntimeError) as error:
        ops.attention_bwd(out, None, *call.values(), out, lse, *plain, mask=mask, needs_dmask=True)
    wanted = "attention: mask must be a tensor of numbers where its gradient is needed, got "
    assert str(error.value).splitlines()[0] == wanted + got


# ---- causal_conv1d ---------------------------------------------------------------------------------------------------


def conv_arguments(**changed):
    arguments = {"x": torch.zeros(2, 5, 7), "weight": torch.zeros(5, 4)}
    return {**arguments, **changed}


CONV_ERRORS = [
    ({"x": [1.0]}, TypeError, "x must be a tensor, got list"),
    ({"x": torch.zeros(2, 5, 7).double()}, TypeError, "x must be float32, bfloat16 or float16, got float64"),
    ({"x": torch.zeros(5, 7)}, ValueError, "x must have shape (batch, channels, seqlen), got (5, 7)"),
    ({"weight": torch.zeros(5, 1)}, NotImplementedError, "weight must be 2 to 4 wide, got 1"),
    ({"weight": torch.zeros(5, 5)}, NotImplementedError, "weight must be 2 to 4 wide, got 5"),
    ({"weight": torch.zeros(4, 4)}, ValueError, "weight must have shape (5, width), got (4, 4)"),
    ({"weight": torch.zeros(5, 1, 4)}, ValueError, "weight must have shape (5, width), got (5, 1, 4)"),
    ({"weight": torch.zeros(5, 4).long()}, TypeError, "weight must be float32, bfloat16 or float16, got int64"),
    ({"weight": torch.zeros(5, 4, device="meta")}, TypeError,
     f"weight must be on the device of x ({torch.zeros(0).device}), got meta"),
    ({"bias": torch.zeros(4)}, ValueError, "bias must have shape (5,), got (4,)"),
    ({"bias": 0.0}, TypeError, "bias must be a tensor, got float"),
    ({"activation": "gelu"}, ValueError, "activation must be None, \"silu\" or \"swish\", got 'gelu'"),
    ({"activation": []}, ValueError, "activation must be None, \"silu\" or \"swish\", got []"),
    ({"seq_idx": "silu"}, TypeError, "seq_idx must be a tensor, got str"),
    ({"seq_idx": torch.zeros(2, 7).long()}, TypeError, "seq_idx must be int32, got int64"),
    ({"seq_idx": torch.zeros(7).int()}, ValueError, "seq_idx must have shape (2, 7) (batch, seqlen), got (7,)"),
    ({"seq_idx": torch.zeros(1, 7).int()}, ValueError, "seq_idx must have shape (2, 7) (batch, seqlen), got (1, 7)"),
    ({"initial_states": torch.zeros(2, 5, 4)}, ValueError,
     "initial_states must have shape (2, 5, 3), got (2, 5, 4)"),
    ({"initial_states": torch.zeros(2, 5, 3).half()}, TypeError,
     "initial_states must have the dtype of x (float32), got float16"),
    ({"seq_idx": torch.zeros(2, 7).int(), "initial_states": torch.zeros(3, 5)}, ValueError,
     "initial_states must have shape (sequences, 5, 3), got (3, 5)"),
    ({"final_states_out": torch.zeros(2, 5, 3)}, ValueError,
     "return_final_states must be True where final_states_out is given, got False"),
    ({"return_final_states": True, "final_states_out": torch.zeros(2, 5, 2)}, ValueError,
     "final_states_out must have shape (2, 5, 3), got (2, 5, 2)"),
    ({"return_final_states": torch.zeros(2)}, TypeError,
     "return_final_states must be True or False, got tensor([0., 0.])"),
    ({"return_final_states": True, "final_states_out": torch.zeros(1, 5, 3).expand(2, 5, 3)}, ValueError,
     "final_states_out must hold each element at a place of its own, got stride 0 in dimension 0"),
    ({"out": torch.zeros(2, 1, 7).expand(2, 5, 7)}, ValueError,
     "out must hold each element at a place of its own, got stride 0 in dimension 1"),
    ({"out": torch.zeros(2, 5, 8)}, ValueError, "out must have the shape of x (2, 5, 7), got (2, 5, 8)"),
    ({"out": torch.zeros(2, 5, 7).half()}, TypeError, "out must have the dtype of x (float32), got float16"),
    ({"out": torch.zeros(2, 10, 14)[:, ::2, ::2]}, ValueError,
     "out must have stride 1 in one of its last two dimensions, got (140, 28, 2)"),
    ({"out": torch.zeros(2, 5, 7), "weight": torch.zeros(5, 4, requires_grad=True)}, ValueError,
     "out must be None where a gradient is wanted, got a tensor (use torch.no_grad())"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "kind", "text"), CONV_ERRORS, ids=[text[:40] for _, _, text in CONV_ERRORS])
def test_causal_conv1d_fn(padfree, changed, kind, text):
    with pytest.raises(kind) as error:
        padfree.causal_conv1d_fn(**conv_arguments(**changed))
    assert str(error.value) == f"causal_conv1d: {text}"


CONV_VALUE_ERRORS = [
    ({"seq_idx": torch.zeros(2, 7).int(), "return_final_states": True},
     "seq_idx must number each sequence differently where states are passed, got 0 twice"),
    ({"seq_idx": torch.arange(14).int().reshape(2, 7), "initial_states": torch.zeros(13, 5, 3)},
     "seq_idx must be below the 13 rows of initial_states, got 13"),
    ({"seq_idx": torch.arange(14).int().reshape(2, 7), "return_final_states": True,
      "final_states_out": torch.zeros(12, 5, 3)},
     "seq_idx must be below the 12 rows of final_states_out, got 13"),
    ({"seq_idx": torch.tensor([[0], [14]]).expand(2, 7).int(), "return_final_states": True},
     "seq_idx must be below the number of positions (14) where it says how many states to return, got 14"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "text"), CONV_VALUE_ERRORS, ids=[text[:40] for _, text in CONV_VALUE_ERRORS])
def test_causal_conv1d_fn_looks_at_seq_idx(padfree, readable_values, changed, text):
    with pytest.raises(ValueError) as error:
        padfree.causal_conv1d_fn(**conv_arguments(**changed))
    assert str(error.value) == f"causal_conv1d: {text}"


def test_causal_conv1d_op_checks_memory_itself(ops):
    """Callers of the raw op get the same words instead of a crash."""
    x, weight = torch.zeros(2, 5, 7), torch.zeros(5, 4)
    states = torch.zeros(1, 5, 3)
    for args, text in [
        ((x.double(), weight, None, None, None), "x must be float32, bfloat16 or float16"),
        ((x, torch.zeros(5, 9), None, None, None), "weight must be 2 to 4 wide, got 9"),
        ((x, weight, torch.zeros(4), None, None), "bias must have size 5 in dimension 0, got 4"),
        ((x, weight, None, torch.zeros(2, 6).int(), None), "seq_idx must have size 7 in dimension 1, got 6"),
        ((x, weight, None, torch.zeros(2, 7), None), "seq_idx must be int32"),
        ((x, weight, None, None, states), "initial_states must have size 2 in dimension 0, got 1"),
    ]:
        with pytest.raises(RuntimeError) as error:
            ops.causal_conv1d_fwd(*args, True)
        assert f"causal_conv1d: {text}" in str(error.value)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1, "seq_idx must be below the 1 rows of initial_states, got 1"),
        (0, "seq_idx must number each sequence differently where states are passed, got 0 twice"),
    ],
)
def test_causal_conv1d_op_checks_numbers_itself(ops, host_values, number, text):
    x, weight, states = torch.zeros(2, 5, 7), torch.zeros(5, 4), torch.zeros(1, 5, 3)
    with pytest.raises(RuntimeError) as error:
        ops.causal_conv1d_fwd(x, weight, None, torch.full((2, 7), number, dtype=torch.int32), states, True)
    assert f"causal_conv1d: {text}" in str(error.value)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


CONV_UPDATE_ERRORS = [
    ({"x": None}, TypeError, "x must be a tensor, got NoneType"),
    ({"x": torch.zeros(2, 5, 1).double()}, TypeError, "x must be float32, bfloat16 or float16, got float64"),
    ({"x": torch.zeros(5)}, ValueError, "x must have shape (batch, channels) or (batch, channels, seqlen), got (5,)"),
    ({"weight": torch.zeros(5, 5)}, NotImplementedError, "weight must be 2 to 4 wide, got 5"),
    ({"bias": torch.zeros(4)}, ValueError, "bias must have shape (5,), got (4,)"),
    ({"activation": "gelu"}, ValueError, "activation must be None, \"silu\" or \"swish\", got 'gelu'"),
    ({"activation": []}, ValueError, "activation must be None, \"silu\" or \"swish\", got []"),
    ({"conv_state": torch.zeros(2, 5, 4).half()}, TypeError,
     "conv_state must have the dtype of x (float32), got float16"),
    ({"conv_state": torch.zeros(2, 5, 2)}, ValueError, "conv_state must hold at least 3 times, got 2"),
    ({"conv_state": torch.zeros(1, 5, 3).expand(2, 5, 3)}, ValueError,
     "conv_state must hold each element at a place of its own, got stride 0 in dimension 0"),
    ({"conv_state": torch.zeros(3, 5, 4)}, ValueError,
     "conv_state must have shape (2, 5, at least 3), got (3, 5, 4)"),
    ({"cache_seqlens": torch.zeros(2).long()}, TypeError, "cache_seqlens must be int32, got int64"),
    ({"cache_seqlens": int32(1)}, ValueError, "cache_seqlens must have shape (2,), got (1,)"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "kind", "text"), CONV_UPDATE_ERRORS, ids=[text[:40] for _, _, text in CONV_UPDATE_ERRORS]
)
def test_causal_conv1d_update(padfree, changed, kind, text):
    """Refused before anything is written."""
    refused_update(padfree, changed, kind, text)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"cache_seqlens": int32(1, -2)}, "cache_seqlens must not be negative, got -2"),
        ({"conv_state_indices": int32(0, 2)}, "conv_state_indices must be -1 or below 2, got 2"),
        ({"conv_state_indices": int32(-2, 0)}, "conv_state_indices must be -1 or below 2, got -2"),
        ({"conv_state_indices": int32(1, 1)}, "conv_state_indices must name each state once, got 1 twice"),
    ],
)
def test_causal_conv1d_update_values(padfree, host_values, changed, text):
    refused_update(padfree, changed, ValueError, text)


def refused_update(padfree, changed, kind, text):
    arguments = {"x": torch.ones(2, 5, 1), "conv_state": torch.zeros(2, 5, 4), "weight": torch.ones(5, 4), **changed}
    with pytest.raises(kind) as error:
        padfree.causal_conv1d_update(**arguments)
    assert str(error.value) == f"causal_conv1d_update: {text}"
    assert not arguments["conv_state"].any()


def test_causal_conv1d_update_takes_each_padding_row(padfree):
    x, state, weight = torch.ones(2, 5, 1), torch.zeros(1, 5, 4), torch.ones(5, 4)
    assert not padfree.causal_conv1d_update(x, state, weight, conv_state_indices=int32(-1, -1)).any()


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ((torch.zeros(4), int32(0, 4), 3), ValueError, "x must have 2 dimensions, got 1"),
        ((torch.zeros(4, 5), torch.zeros(2), 3), TypeError, "cu_seqlens must be int32 or int64, got float32"),
        ((torch.zeros(4, 5), int32(0, 4), 0), ValueError, "state_len must be a positive integer below 2**31, got 0"),
    ],
)
def test_causal_conv1d_varlen_states(padfree, arguments, kind, text):
    with pytest.raises(kind) as error:
        padfree.causal_conv1d_varlen_states(*arguments)
    assert str(error.value) == f"causal_conv1d_varlen_states: {text}"


@pytest.mark.parametrize("ends", [[1, 4], [0, 3, 2], [0, 5]], ids=str)
def test_causal_conv1d_varlen_states_looks_at_boundaries(padfree, readable_values, ends):
    with pytest.raises(ValueError) as error:
        padfree.causal_conv1d_varlen_states(torch.zeros(4, 5), int32(*ends), 3)
    assert str(error.value) == f"causal_conv1d_varlen_states: cu_seqlens must rise from 0 to at most 4, got {ends}"


# ---- gated delta rule ------------------------------------------------------------------------------------------------


def delta_arguments(**changed):
    over = (2, 5)
    tensors = {
        "q": randn(*over, 2, 8), "k": randn(*over, 2, 8), "v": randn(*over, 4, 6), "g": -randn(*over, 4).abs(),
        "beta": randn(*over, 4).sigmoid(),
    }  # fmt: skip
    return {**tensors, **changed}


def packed_delta(*ends, **changed):
    rows = {n: x[:1] for n, x in delta_arguments().items()}
    return {**rows, "cu_seqlens": torch.tensor(ends, dtype=torch.int32), **changed}


DELTA_ERRORS = [
    ({"q": 1}, TypeError, "q must be a tensor, got int"),
    ({"q": randn(2, 5, 2, 8).double()}, TypeError, "q must be float32, bfloat16 or float16, got float64"),
    ({"k": randn(2, 5, 2, 8).half()}, TypeError, "k must have the dtype of q (float32), got float16"),
    ({"v": randn(2, 5, 4, 6).half()}, TypeError, "v must have the dtype of q (float32), got float16"),
    ({"v": torch.empty(2, 5, 4, 6, device="meta")}, TypeError, "v must be on the device of q (cpu), got meta"),
    ({"q": randn(5, 2, 8)}, ValueError, "q must have 4 dimensions, got 3"),
    ({"v": randn(2, 5, 4)}, ValueError, "v must have 4 dimensions, got 3"),
    ({"k": randn(2, 5, 2, 9)}, ValueError, "k must have the shape of q (2, 5, 2, 8), got (2, 5, 2, 9)"),
    ({"v": randn(2, 6, 4, 6)}, ValueError, "v must have the batch and rows of q (2, 5), got (2, 6)"),
    ({"v": randn(2, 5, 5, 6)}, ValueError, "heads of q must divide heads of v (5), got 2"),
    ({"q": randn(2, 5, 0, 8), "k": randn(2, 5, 0, 8)}, ValueError, "heads of q must divide heads of v (4), got 0"),
    ({"q": randn(2, 5, 2, 0), "k": randn(2, 5, 2, 0)}, ValueError, "head_dim of q must be at least 1, got 0"),
    ({"v": randn(2, 5, 4, 0)}, ValueError, "head_dim of v must be at least 1, got 0"),
    ({"q": randn(2, 5, 2, 257), "k": randn(2, 5, 2, 257)}, NotImplementedError,
     "head_dim of q must be at most 256 on cpu, got 257"),
    ({"v": randn(2, 5, 4, 257)}, NotImplementedError, "head_dim of v must be at most 256 on cpu, got 257"),
    ({"g": None}, TypeError, "g must be a tensor, got NoneType"),
    ({"g": torch.ones(2, 5, 4).long()}, TypeError, "g must be float32, bfloat16 or float16, got int64"),
    ({"g": randn(2, 5, 2)}, ValueError, "g must have shape (2, 5, 4), got (2, 5, 2)"),
    ({"beta": randn(2, 5, 4, 1)}, ValueError, "beta must have shape (2, 5, 4), got (2, 5, 4, 1)"),
    ({"scale": "1"}, TypeError, "scale must be a number, got str"),
    ({"scale": 0.0}, ValueError, "scale must not be 0, got 0.0"),
    ({"scale": float("nan")}, ValueError, "scale must be finite, got nan"),
    ({"initial_state": randn(2, 4, 6, 8)}, ValueError, "initial_state must have shape (2, 4, 8, 6), got (2, 4, 6, 8)"),
    ({"initial_state": randn(2, 4, 8, 6), "state_v_first": True}, ValueError,
     "initial_state must have shape (2, 4, 6, 8), got (2, 4, 8, 6)"),
    ({"initial_state": 0}, TypeError, "initial_state must be a tensor, got int"),
    ({"use_qk_l2norm_in_kernel": 1}, TypeError, "use_qk_l2norm_in_kernel must be True or False, got 1"),
    ({"state_v_first": None}, TypeError, "state_v_first must be True or False, got None"),
    ({"output_final_state": 1}, TypeError, "output_final_state must be True or False, got 1"),
    ({"allow_neg_eigval": True}, ValueError,
     "allow_neg_eigval must be False where use_beta_sigmoid_in_kernel is False, got True"),
    ({"use_gate_in_kernel": True}, ValueError, "A_log must be a tensor where use_gate_in_kernel is True, got None"),
    ({"A_log": randn(4)}, ValueError,
     "A_log and dt_bias must be None where use_gate_in_kernel is False, got a tensor"),
    ({"use_gate_in_kernel": True, "A_log": randn(2)}, ValueError, "A_log must have shape (4,), got (2,)"),
    ({"use_gate_in_kernel": True, "A_log": randn(4), "dt_bias": randn(3)}, ValueError,
     "dt_bias must have shape (4,), got (3,)"),
    ({"cu_seqlens": torch.tensor([0, 5])}, ValueError,
     "q must have size 1 in dimension 0 where cu_seqlens is given, got 2"),
    (packed_delta(0, 5, cu_seqlens=[0, 5]), TypeError, "cu_seqlens must be a tensor, got list"),
    (packed_delta(0, 5, cu_seqlens=torch.tensor([0.0, 5.0])), TypeError,
     "cu_seqlens must be int32 or int64, got float32"),
    (packed_delta(0, 5, cu_seqlens=torch.tensor([[0, 5]])), ValueError, "cu_seqlens must have 1 dimension, got 2"),
    (packed_delta(), ValueError, "cu_seqlens must start at 0, got nothing"),
    (packed_delta(1, 5), ValueError, "cu_seqlens must start at 0, got 1"),
    (packed_delta(0, 4, 3), ValueError, "cu_seqlens must not decrease, got 3 after 4"),
    (packed_delta(0, 6), ValueError, "cu_seqlens must end at or below the number of rows (5), got 6"),
    (packed_delta(0, 2, 5, initial_state=randn(1, 4, 8, 6)), ValueError,
     "initial_state must have shape (2, 4, 8, 6), got (1, 4, 8, 6)"),
]  # fmt: skip
DELTA_ERRORS += [
    ({"use_gate_in_kernel": 1}, TypeError, "use_gate_in_kernel must be True or False, got 1"),
    ({"use_beta_sigmoid_in_kernel": 1}, TypeError, "use_beta_sigmoid_in_kernel must be True or False, got 1"),
    ({"allow_neg_eigval": 1}, TypeError, "allow_neg_eigval must be True or False, got 1"),
    ({"cp_context": object()}, NotImplementedError, "cp_context must be None, got a object"),
    ({"use_graph": True}, NotImplementedError, "use_graph must be False, got True"),
    ({"max_num_seqs": 4}, NotImplementedError, "max_num_seqs must be None, got 4"),
    ({"chunk_indices": randn(2)}, NotImplementedError, "chunk_indices must be None, got a Tensor"),
    ({"return_intermediate_states": True}, NotImplementedError,
     "return_intermediate_states must be False, got True"),
    ({"head_first": True}, NotImplementedError, "head_first must be False, got True"),
    ({"chunk_size": 48}, ValueError, "chunk_size must be one of (16, 32, 64), got 48"),
    ({"disable_recompute": 1}, TypeError, "disable_recompute must be True or False, got 1"),
    ({"transpose_state_layout": True, "state_v_first": True}, ValueError,
     "transpose_state_layout must be left away where state_v_first is, got True"),
    ({"cu_seqlens_cpu": torch.tensor([0, 5])}, ValueError,
     "cu_seqlens must be given beside cu_seqlens_cpu, got None"),
    (packed_delta(0, 5, cu_seqlens_cpu=[0, 5]), TypeError, "cu_seqlens_cpu must be a tensor, got list"),
    (packed_delta(0, 5, cu_seqlens_cpu=torch.tensor([0, 2, 5])), ValueError,
     "cu_seqlens_cpu must hold what cu_seqlens does, got [0, 2, 5]"),
    ({"anything": 3}, TypeError, "anything must be left away, got 3"),
]  # fmt: skip
DELTA_IDS = [f"{i}-{text[:30]}" for i, (_, _, text) in enumerate(DELTA_ERRORS)]


@pytest.mark.parametrize("function", ["chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"])
@pytest.mark.parametrize(("changed", "kind", "text"), DELTA_ERRORS, ids=DELTA_IDS)
def test_gated_delta_rule(padfree, function, changed, kind, text):
    if function.startswith("fused") and "g" in changed and changed["g"] is None:
        pytest.skip("means no decay here")
    with pytest.raises(kind) as error:
        getattr(padfree, function)(**delta_arguments(**changed))
    assert str(error.value) == f"{function}: {text}"


INPLACE = "initial_state must be float32, contiguous and key-first where inplace_final_state is True, got"


@pytest.mark.parametrize(
    ("changed", "kind", "text"),
    [
        ({"gk": randn(2, 5, 4, 8)}, NotImplementedError, "gk must be None, got a tensor"),
        ({"gv": randn(2, 5, 4, 6)}, NotImplementedError, "gv must be None, got a tensor"),
        ({"output_final_state": None}, TypeError, "output_final_state must be True or False, got None"),
        ({"inplace_final_state": 1}, TypeError, "inplace_final_state must be True or False, got 1"),
        ({"inplace_final_state": True}, ValueError, f"{INPLACE} None"),
        ({"inplace_final_state": True, "initial_state": randn(2, 4, 8, 6).half()}, ValueError,
         f"{INPLACE} float16, contiguous"),
        ({"inplace_final_state": True, "initial_state": randn(2, 4, 6, 8).transpose(2, 3)}, ValueError,
         f"{INPLACE} float32, strided"),
        ({"inplace_final_state": True, "initial_state": randn(2, 4, 6, 8), "state_v_first": True}, ValueError,
         f"{INPLACE} float32, value-first"),
        ({"inplace_final_state": True, "initial_state": randn(2, 4, 8, 6).requires_grad_()}, ValueError,
         "inplace_final_state must be False where a gradient is wanted, got True"),
    ],
)  # fmt: skip
def test_fused_recurrent_gated_delta_rule(padfree, changed, kind, text):
    with pytest.raises(kind) as error:
        padfree.fused_recurrent_gated_delta_rule(**delta_arguments(**changed))
    assert str(error.value) == f"fused_recurrent_gated_delta_rule: {text}"


@pytest.mark.parametrize("function", ["chunk_kda", "fused_recurrent_kda"])
@pytest.mark.parametrize(
    ("changed", "kind", "text"),
    [
        ({}, ValueError, "g must have shape (2, 5, 4, 8), got (2, 5, 4)"),
        ({"g": None}, TypeError, "g must be a tensor, got NoneType"),
        ({"g": randn(2, 5, 4, 8), "use_gate_in_kernel": True, "A_log": randn(4), "dt_bias": randn(4)}, ValueError,
         "dt_bias must have shape (32,), got (4,)"),
        ({"g": randn(2, 5, 4, 8), "beta": randn(2, 5, 2)}, ValueError, "beta must have shape (2, 5, 4), got (2, 5, 2)"),
        ({"g": randn(2, 5, 4, 8), "scale": 0}, ValueError, "scale must not be 0, got 0"),
        ({"g": randn(2, 5, 4, 8), "lower_bound": -5.0}, ValueError,
         "lower_bound must be None where use_gate_in_kernel is False, got -5.0"),
        ({"g": randn(2, 5, 4, 8), "lower_bound": 0.5, "use_gate_in_kernel": True}, ValueError,
         "lower_bound must be below 0, got 0.5"),
        ({"g": randn(2, 5, 4, 8), "lower_bound": "-5", "use_gate_in_kernel": True}, TypeError,
         "lower_bound must be a number, got str"),
    ],
)  # fmt: skip
def test_kda(padfree, function, changed, kind, text):
    with pytest.raises(kind) as error:
        getattr(padfree, function)(**delta_arguments(**changed))
    assert str(error.value) == f"{function}: {text}"


@pytest.mark.parametrize(
    ("changed", "kind", "text"),
    [
        ({"safe_gate": 1}, TypeError, "safe_gate must be True or False, got 1"),
        ({"safe_gate": True, "use_gate_in_kernel": True}, ValueError,
         "lower_bound must be in [-5, 0) where safe_gate and use_gate_in_kernel are True, got None"),
        ({"safe_gate": True, "use_gate_in_kernel": True, "lower_bound": -6.0}, ValueError,
         "lower_bound must be in [-5, 0) where safe_gate and use_gate_in_kernel are True, got -6.0"),
    ],
)  # fmt: skip
def test_safe_gate_of_kda(padfree, changed, kind, text):
    with pytest.raises(kind) as error:
        padfree.chunk_kda(**delta_arguments(g=randn(2, 5, 4, 8), **changed))
    assert str(error.value) == f"chunk_kda: {text}"


DELTA_OP_ERRORS = {
    "q must be float32, bfloat16 or float16": {"q": randn(2, 5, 2, 8).double()},
    "k must have the dtype of the first input": {"k": randn(2, 5, 2, 8).half()},
    "k must have size 8 in dimension 3, got 9": {"k": randn(2, 5, 2, 9)},
    "v must have size 5 in dimension 1, got 6": {"v": randn(2, 6, 4, 6)},
    "heads of q must divide heads of v (3), got 2": {"v": randn(2, 5, 3, 6)},
    "head_dim of v must be 1 to 256, got 257": {"v": randn(2, 5, 4, 257)},
    "g must be float32": {"g": randn(2, 5, 4).half()},
    "g must have size 8 in dimension 3, got 7": {"g": randn(2, 5, 4, 7)},
    "beta must have size 4 in dimension 2, got 3": {"beta": randn(2, 5, 3)},
    "initial_state must have size 2 in dimension 0, got 1": {"initial_state": randn(1, 4, 8, 6)},
    "cu_seqlens must be int32": {**packed_delta(0, 5), "cu_seqlens": torch.tensor([0, 5])},
    "cu_seqlens must start at 0": packed_delta(1, 5),
    "cu_seqlens must not decrease, got 3 after 4": packed_delta(0, 4, 3),
    "cu_seqlens must end at or below the number of rows (5), got 6": packed_delta(0, 6),
    "q must have size 1 in dimension 0 where cu_seqlens is given, got 2": {"cu_seqlens": torch.tensor([0, 5]).int()},
}


@pytest.mark.parametrize(("text", "changed"), DELTA_OP_ERRORS.items(), ids=[t[:40] for t in DELTA_OP_ERRORS])
def test_gated_delta_rule_op_checks_memory_itself(ops, text, changed):
    """Callers of the raw ops get the same words instead of a crash."""
    values = delta_arguments(**{"initial_state": None, "cu_seqlens": None, **changed})
    for op, flags in ((ops.gated_delta_rule_fwd, (True, True)), (ops.gated_delta_rule_recurrent, ())):
        with pytest.raises(RuntimeError) as error:
            op(*values.values(), 1.0, False, *flags)
        assert f"gated_delta_rule: {text}" in str(error.value)


def test_gated_delta_rule_update_checks_its_state(ops):
    with pytest.raises(RuntimeError) as error:
        ops.gated_delta_rule_update(
            **delta_arguments(), state=randn(2, 4, 6, 8).transpose(2, 3), cu_seqlens=None, scale=1.0, l2norm=False
        )
    assert "gated_delta_rule: state must be contiguous" in str(error.value)


def test_gated_delta_rule_backward_checks_its_own_arguments(ops):
    values = delta_arguments(initial_state=None, cu_seqlens=None)
    states = ops.gated_delta_rule_fwd(**values, scale=1.0, l2norm=False, output_final_state=False, save_states=True)[2]
    good = {**values, "dout": randn(2, 5, 4, 6), "dfinal_state": None, "states": states, "scale": 1.0, "l2norm": False}
    for text, changed in {
        "dout must have size 6 in dimension 3, got 7": {"dout": randn(2, 5, 4, 7)},
        "dout must have the dtype of the first input": {"dout": randn(2, 5, 4, 6).half()},
        "states must have size 2 in dimension 0, got 1": {"states": states[:1]},
        "dfinal_state must have size 8 in dimension 2, got 6": {"dfinal_state": randn(2, 4, 6, 8)},
    }.items():
        with pytest.raises(RuntimeError) as error:
            ops.gated_delta_rule_bwd(**{**good, **changed})
        assert f"gated_delta_rule: {text}" in str(error.value)
