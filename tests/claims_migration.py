"""The migration table: every public name of the packages people come from, and what becomes of it here.

Signatures and lists of names were read in the source distributions named below; test_claims.py compares them with this
bundle. A row of several names has one verdict for all of them.
"""

from claims import Original, Package

TESTS = (
    "test_claims.py::test_same_takes_every_call_of_the_original",
    "test_claims.py::test_differs_lacks_what_it_says",
    "test_claims.py::test_refused_is_not_there",
    "test_claims.py::test_refused_is_named_under_the_name_of_its_package",
)

_FLASH = "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
_FLASH += "deterministic=False, return_attn_probs=False"
_VARLEN = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, "
_PROBS = "the third result of `return_attn_probs` is None, not the dropout mask; the same seed drops other weights"

_FUNCTIONS = (
    *("flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func"),
    *("flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache"),
)
_PARTS = (
    *("maybe_contiguous", "round_multiple", "FlashAttnQKVPackedFunc", "FlashAttnVarlenQKVPackedFunc"),
    *("FlashAttnKVPackedFunc", "FlashAttnVarlenKVPackedFunc", "FlashAttnFunc", "FlashAttnVarlenFunc"),
    *("_flash_attn_forward", "_flash_attn_varlen_forward", "_flash_attn_backward", "_flash_attn_varlen_backward"),
)
_INDEX_TESTS = ("test_bert_padding.py::test_gradients", "test_bert_padding.py::test_index_errors")
_UNPAD_TESTS = ("test_bert_padding.py::test_there_and_back", "test_bert_padding.py::test_unused_mask_errors")
_ROTARY_TESTS = ("test_rotary.py::test_against_float64", "test_rotary.py::test_errors")
_FAR = "a position past the tables is refused, not left unturned"


def _flash(name, tensors, more=""):
    return Original(
        home="flash_attn",
        names=(name,),
        verdict="differs",
        words=_PROBS,
        signature=f"{tensors}, {_FLASH}{more}",
        tests=(
            "test_attention.py::test_returns_what_flash_attn_returns",
            "test_attention_stacked.py::test_argument_order_is_flash_attn_2",
        ),
    )


FLASH_ATTN = Package(
    name="flash_attn",
    version="2.8.3",
    source="flash_attn-2.8.3.tar.gz on PyPI",
    exports={
        "flash_attn": (
            *_FUNCTIONS,
            *("flash_attn_triton", "flash_attn_triton_amd", "flash_attn_triton_og", "cute"),
            *("flash_blocksparse_attention", "flash_blocksparse_attn_interface"),
            *("losses", "models", "modules", "utils"),
        ),
        "flash_attn.flash_attn_interface": (*_FUNCTIONS, *_PARTS),
        "flash_attn.bert_padding": (
            *("index_first_axis", "index_put_first_axis", "index_first_axis_residual"),
            *("unpad_input", "unpad_input_for_concatenated_sequences", "pad_input"),
            *("IndexFirstAxis", "IndexPutFirstAxis", "IndexFirstAxisResidual"),
        ),
        "flash_attn.layers": ("patch_embed",),
        "flash_attn.layers.rotary": (
            *("rotate_half", "apply_rotary_emb_torch", "apply_rotary_emb", "apply_rotary_emb_func"),
            *("apply_rotary_emb_qkv_", "apply_rotary_emb_kv_", "RotaryEmbedding"),
            *("ApplyRotaryEmb", "ApplyRotaryEmbQKV_", "ApplyRotaryEmbKV_"),
        ),
        "flash_attn.ops": ("activations", "fused_dense", "layer_norm", "rms_norm"),
        "flash_attn.ops.triton": ("cross_entropy", "k_activations", "layer_norm", "linear", "mlp"),
        "flash_attn.ops.triton.rotary": ("apply_rotary", "rotary_kernel"),
    },
    originals=(
        _flash("flash_attn_func", "q, k, v"),
        _flash("flash_attn_varlen_func", f"q, k, v, {_VARLEN}".rstrip(", "), ", block_table=None"),
        _flash("flash_attn_qkvpacked_func", "qkv"),
        _flash("flash_attn_kvpacked_func", "q, kv"),
        _flash("flash_attn_varlen_qkvpacked_func", "qkv, cu_seqlens, max_seqlen"),
        _flash("flash_attn_varlen_kvpacked_func", f"q, kv, {_VARLEN}".rstrip(", ")),
        Original(
            home="flash_attn",
            names=("flash_attn_with_kvcache",),
            verdict="same",
            signature=(
                "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
                "cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None, causal=False, "
                "window_size=(-1, -1), softcap=0.0, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
                "return_softmax_lse=False"
            ),
            tests=("test_attention_kvcache.py::test_append_in_place", "test_attention_kvcache.py::test_rotary"),
        ),
        Original(
            home="flash_attn.bert_padding",
            names=("unpad_input",),
            verdict="differs",
            words="masks of other numbers than 0 and 1, and an unused token before a used one, are refused",
            signature="hidden_states, attention_mask, unused_mask=None",
            tests=_UNPAD_TESTS,
        ),
        Original(
            home="flash_attn.bert_padding",
            names=("unpad_input_for_concatenated_sequences",),
            verdict="same",
            signature="hidden_states, attention_mask_in_length",
            tests=("test_bert_padding.py::test_rows_of_several_samples",),
        ),
        Original(
            home="flash_attn.bert_padding",
            names=("pad_input",),
            verdict="differs",
            words="a place named twice is refused",
            signature="hidden_states, indices, batch, seqlen",
            tests=_INDEX_TESTS,
        ),
        Original(
            home="flash_attn.bert_padding",
            names=("index_put_first_axis",),
            verdict="differs",
            words="a place named twice is refused",
            signature="values, indices, first_axis_dim",
            tests=_INDEX_TESTS,
        ),
        Original(
            home="flash_attn.bert_padding",
            names=("index_first_axis", "index_first_axis_residual"),
            verdict="differs",
            words="the gradient of a row taken twice is the sum; `index_first_axis` of the original keeps one of them",
            signature="input, indices",
            tests=_INDEX_TESTS,
        ),
        Original(
            home="flash_attn.bert_padding",
            names=("IndexFirstAxis", "IndexPutFirstAxis", "IndexFirstAxisResidual"),
            verdict="refused",
            words="call the functions",
        ),
        Original(
            home="flash_attn.layers.rotary",
            names=("apply_rotary_emb", "apply_rotary_emb_func"),
            verdict="differs",
            words=f"{_FAR}; `max_seqlen` may be left out",
            signature=(
                "x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None"
            ),
            tests=(*_ROTARY_TESTS, "test_rotary.py::test_packed"),
        ),
        Original(
            home="flash_attn.layers.rotary",
            names=("apply_rotary_emb_qkv_",),
            verdict="differs",
            words=_FAR,
            signature=("qkv, cos, sin, cos_k=None, sin_k=None, interleaved=False, seqlen_offsets=0, num_heads_q=None"),
            tests=("test_rotary.py::test_stacked", *_ROTARY_TESTS),
        ),
        Original(
            home="flash_attn.layers.rotary",
            names=("apply_rotary_emb_kv_",),
            verdict="differs",
            words=_FAR,
            signature="kv, cos, sin, interleaved=False, seqlen_offsets=0",
            tests=("test_rotary.py::test_stacked_keys_and_values", *_ROTARY_TESTS),
        ),
        Original(
            home="flash_attn.layers.rotary",
            names=("apply_rotary_emb_torch",),
            verdict="differs",
            words="computes in float32 and gives the dtype of x",
            signature="x, cos, sin, interleaved=False",
            tests=("test_rotary.py::test_reference_forms",),
        ),
        Original(
            home="flash_attn.layers.rotary",
            names=("rotate_half",),
            verdict="same",
            signature="x, interleaved=False",
            tests=("test_rotary.py::test_reference_forms",),
        ),
        Original(
            home="flash_attn.layers.rotary",
            names=("RotaryEmbedding",),
            verdict="same",
            signature="dim, base=10000.0, interleaved=False, scale_base=None, device=None",
            tests=("test_rotary.py::test_tables", "test_rotary.py::test_scaled_tables"),
        ),
        Original(
            home="flash_attn.layers.rotary",
            names=("ApplyRotaryEmb", "ApplyRotaryEmbQKV_", "ApplyRotaryEmbKV_"),
            verdict="refused",
            words="call the functions",
        ),
        Original(
            home="flash_attn.ops.triton.rotary",
            names=("apply_rotary",),
            verdict="differs",
            words=_FAR,
            signature=(
                "x, cos, sin, seqlen_offsets=0, cu_seqlens=None, max_seqlen=None, interleaved=False, inplace=False, "
                "conjugate=False"
            ),
            tests=("test_rotary.py::test_conjugate_turns_back", *_ROTARY_TESTS),
        ),
        Original(
            home="flash_attn.ops.triton.rotary",
            names=("rotary_kernel",),
            verdict="refused",
            words="Triton code; `apply_rotary` is the same in torch",
        ),
        Original(
            home="flash_attn.flash_attn_interface",
            names=_PARTS,
            verdict="refused",
            words=(
                "parts of the functions; to merge results of parts of the keys take `return_attn_probs`, whose "
                "log-sum-exp is differentiable, or `flash_attn_combine` of FlashAttention 3"
            ),
        ),
        Original(
            home="flash_attn",
            names=("flash_attn_triton", "flash_attn_triton_amd", "flash_attn_triton_og", "cute"),
            verdict="refused",
            words="the same attention for GPUs, as Triton and CuTe code, with signatures of their own",
        ),
        Original(
            home="flash_attn",
            names=("flash_blocksparse_attention", "flash_blocksparse_attn_interface"),
            verdict="refused",
            words="for version 1 only; `attention_with_mask` skips the blocks that a mask empties",
        ),
        Original(
            home="flash_attn",
            names=("losses", "models", "modules", "utils"),
            verdict="refused",
            words="layers, models and what trains them: transformers' or torch's own (`torch.nn.CrossEntropyLoss`)",
        ),
        Original(
            home="flash_attn.ops",
            names=("activations", "fused_dense", "layer_norm", "rms_norm"),
            verdict="refused",
            words="no attention: torch's own (`torch.nn.RMSNorm`), which `torch.compile` fuses",
        ),
        Original(
            home="flash_attn.ops.triton",
            names=("cross_entropy", "k_activations", "layer_norm", "linear", "mlp"),
            verdict="refused",
            words="no attention: torch's own, which `torch.compile` fuses",
        ),
        Original(
            home="flash_attn.layers",
            names=("patch_embed",),
            verdict="refused",
            words="no attention: a `torch.nn.Conv2d`",
        ),
    ),
    modules={
        "flash_attn.bert_padding": "bert_padding",
        "flash_attn.layers.rotary": "rotary",
        "flash_attn.ops.triton.rotary": "rotary",
    },
)

_NOT_TAKEN = "`qv`, descales (float8) and `attention_chunk` are refused"
_FA3_TESTS = (
    "test_flash_attention_3.py::test_every_argument_in_its_place",
    "test_flash_attention_3.py::test_refused_by_name",
)
_FA3 = "window_size=(-1, -1), attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, "
_FA3 += "sm_margin=0, return_attn_probs=False"
_DESCALES = "q_descale=None, k_descale=None, v_descale=None, "

FLASH_ATTENTION_3 = Package(
    name="flash_attn_interface",
    version="of FlashAttention 3.0",
    source=(
        "hopper/flash_attn_interface.py of Dao-AILab/flash-attention at 01afd16; before September 2025 "
        "`flash_attn_func` returned a tuple"
    ),
    exports={
        "flash_attn_interface": (
            *("flash_attn_func", "flash_attn_varlen_func", "flash_attn_qkvpacked_func", "flash_attn_with_kvcache"),
            *("flash_attn_combine", "get_scheduler_metadata"),
            *("maybe_contiguous", "round_multiple", "round_up_headdim", "setup_context"),
            *("FlashAttnQKVPackedFunc", "FlashAttnFunc", "FlashAttnVarlenFunc"),
            *("_flash_attn_forward", "_flash_attn_backward"),
        )
    },
    originals=(
        Original(
            home="flash_attn_interface",
            names=("flash_attn_func",),
            verdict="differs",
            words=_NOT_TAKEN,
            signature=f"q, k, v, softmax_scale=None, causal=False, qv=None, {_DESCALES}{_FA3}",
            tests=_FA3_TESTS,
        ),
        Original(
            home="flash_attn_interface",
            names=("flash_attn_varlen_func",),
            verdict="differs",
            words=_NOT_TAKEN,
            signature=(
                f"q, k, v, {_VARLEN}seqused_q=None, seqused_k=None, softmax_scale=None, causal=False, qv=None, "
                f"{_DESCALES}{_FA3}"
            ),
            tests=_FA3_TESTS,
        ),
        Original(
            home="flash_attn_interface",
            names=("flash_attn_qkvpacked_func",),
            verdict="differs",
            words=_NOT_TAKEN,
            signature=(
                f"qkv, softmax_scale=None, causal=False, {_DESCALES}window_size=(-1, -1), attention_chunk=0, "
                "softcap=0.0, deterministic=False, num_heads_q=None, sm_margin=0, return_attn_probs=False"
            ),
            tests=("test_flash_attention_3.py::test_heads_side_by_side", *_FA3_TESTS),
        ),
        Original(
            home="flash_attn_interface",
            names=("flash_attn_with_kvcache",),
            verdict="differs",
            words=(
                f"{_NOT_TAKEN}, so is left padding beside `cu_seqlens_q`, `cu_seqlens_k_new` and `rotary_seqlens`; the "
                "parts of its splits come back as None"
            ),
            signature=(
                "q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, "
                "cache_batch_idx=None, cache_leftpad=None, page_table=None, cu_seqlens_q=None, cu_seqlens_k_new=None, "
                f"max_seqlen_q=None, rotary_seqlens=None, {_DESCALES}softmax_scale=None, causal=False, "
                "window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True, "
                "scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0, return_softmax_lse=False"
            ),
            tests=(
                "test_flash_attention_3.py::test_every_argument_of_the_cache_in_its_place",
                "test_flash_attention_3.py::test_packed_queries",
                "test_flash_attention_3.py::test_packed_append",
                "test_flash_attention_3.py::test_packed_errors",
                *_FA3_TESTS,
            ),
        ),
        Original(
            home="flash_attn_interface",
            names=("flash_attn_combine",),
            verdict="same",
            signature="out_partial, lse_partial, out=None, out_dtype=None",
            tests=(
                "test_flash_attention_3.py::test_parts_merge",
                "test_flash_attention_3.py::test_parts_by_the_formula",
            ),
        ),
        Original(
            home="flash_attn_interface",
            names=("get_scheduler_metadata",),
            verdict="differs",
            words="an empty tensor: these kernels plan no work ahead",
            signature=(
                "batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, cache_seqlens, "
                "qkv_dtype=torch.bfloat16, headdim_v=None, cu_seqlens_q=None, cu_seqlens_k_new=None, "
                "cache_leftpad=None, page_size=None, max_seqlen_k_new=0, causal=False, window_size=(-1, -1), "
                "attention_chunk=0, has_softcap=False, num_splits=0, pack_gqa=None, sm_margin=0"
            ),
            tests=("test_flash_attention_3.py::test_every_argument_of_the_cache_in_its_place",),
        ),
        Original(
            home="flash_attn_interface",
            names=(
                *("maybe_contiguous", "round_multiple", "round_up_headdim", "setup_context"),
                *("FlashAttnQKVPackedFunc", "FlashAttnFunc", "FlashAttnVarlenFunc"),
                *("_flash_attn_forward", "_flash_attn_backward"),
            ),
            verdict="refused",
            words="parts of the functions",
        ),
    ),
    modules={"flash_attn_interface": "flash_attention_3"},
)

CAUSAL_CONV1D = Package(
    name="causal_conv1d",
    version="1.5.3.post1",
    source="causal_conv1d-1.5.3.post1.tar.gz on PyPI; the signatures of 1.7.0 are the same",
    exports={
        "causal_conv1d": ("causal_conv1d_fn", "causal_conv1d_update"),
        "causal_conv1d.causal_conv1d_interface": (
            "causal_conv1d_fn",
            "causal_conv1d_ref",
            "causal_conv1d_update",
            "causal_conv1d_update_ref",
        ),
        "causal_conv1d.causal_conv1d_varlen": ("causal_conv1d_varlen_states", "causal_conv1d_varlen_states_ref"),
    },
    originals=(
        Original(
            home="causal_conv1d",
            names=("causal_conv1d_fn",),
            verdict="same",
            signature=(
                "x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False, "
                "final_states_out=None, activation=None"
            ),
            tests=("test_causal_conv1d.py::test_argument_order_is_the_original_packages",),
        ),
        Original(
            home="causal_conv1d",
            names=("causal_conv1d_update",),
            verdict="same",
            signature=(
                "x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, conv_state_indices=None"
            ),
            tests=("test_causal_conv1d.py::test_update",),
        ),
        Original(
            home="causal_conv1d.causal_conv1d_varlen",
            names=("causal_conv1d_varlen_states",),
            verdict="same",
            signature="x, cu_seqlens, state_len",
            tests=("test_causal_conv1d.py::test_varlen_states",),
        ),
        Original(
            home="causal_conv1d.causal_conv1d_interface",
            names=("causal_conv1d_ref", "causal_conv1d_update_ref"),
            verdict="refused",
            words="reference code of that package's tests",
        ),
        Original(
            home="causal_conv1d.causal_conv1d_varlen",
            names=("causal_conv1d_varlen_states_ref",),
            verdict="refused",
            words="reference code of that package's tests",
        ),
    ),
)

_FLA_OTHERS = (
    *("chunk_abc", "chunk_comba", "chunk_delta_rule", "chunk_dplr_delta_rule", "chunk_gla", "chunk_gsa"),
    *("chunk_iplr_delta_rule", "chunk_lightning_attn", "chunk_linear_attn", "chunk_log_linear_attn"),
    *("chunk_mesa_net", "chunk_retention", "chunk_rwkv6", "chunk_rwkv7", "chunk_simple_gla", "fused_attnres"),
    *("fused_chunk_based", "fused_chunk_delta_rule", "fused_chunk_gla", "fused_chunk_linear_attn"),
    *("fused_chunk_retention", "fused_chunk_simple_gla", "fused_recurrent_comba", "fused_recurrent_delta_rule"),
    *("fused_recurrent_dplr_delta_rule", "fused_recurrent_gla", "fused_recurrent_gsa", "fused_recurrent_hgrn"),
    *("fused_recurrent_iplr_delta_rule", "fused_recurrent_lightning_attn", "fused_recurrent_linear_attn"),
    *("fused_recurrent_retention", "fused_recurrent_rwkv6", "fused_recurrent_rwkv7", "fused_recurrent_simple_gla"),
    *("parallel_attn", "parallel_based", "parallel_forgetting_attn", "parallel_nsa", "parallel_parallax"),
    *("parallel_path_attn", "parallel_retention", "parallel_simple_gla", "parallel_wall_attn"),
    *("parallel_wall_attn_decode", "parallel_stickbreaking_attn", "chunk_cyfa", "fused_recurrent_cyfa"),
    *("chunk_momentum_delta_rule", "fused_recurrent_momentum_delta_rule", "chunk_precond_gated_delta_rule"),
    *("fused_recurrent_precond_gated_delta_rule", "chunk_precond_kda", "fused_recurrent_precond_kda"),
)
_FLA_ALIASES = ("chunk_gdn", "fused_recurrent_gdn")
_FLA_OURS = ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule", "chunk_kda", "fused_recurrent_kda")
_STRAYS = (
    "q, k and v share a dtype; what steers only its kernels is taken; what asks for more is refused by name (context "
    "parallelism, CUDA graphs, intermediate states, `head_first`), and so is a keyword it would pass over"
)
_STATES = (
    "test_gated_delta_rule.py::test_value_first_states",
    "test_gated_delta_rule.py::test_activations_inside",
    "test_gated_delta_rule.py::test_what_flash_linear_attention_takes_beside",
    "test_errors.py::test_gated_delta_rule",
)

FLA = Package(
    name="fla",
    version="0.6.0",
    source="fla_core-0.6.0 wheel on PyPI, fla/ops",
    exports={"fla.ops": (*_FLA_OURS, *_FLA_ALIASES, *_FLA_OTHERS)},
    originals=(
        Original(
            home="fla.ops",
            names=("chunk_gated_delta_rule",),
            verdict="differs",
            words=_STRAYS,
            signature=(
                "q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, "
                "use_qk_l2norm_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, "
                "state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None, chunk_indices=None, cp_context=None, "
                "**kwargs"
            ),
            by_name=("cu_seqlens_cpu", "chunk_indices", "cp_context"),
            tests=_STATES,
        ),
        Original(
            home="fla.ops",
            names=("fused_recurrent_gated_delta_rule",),
            verdict="differs",
            words=f"`gk` and `gv` are refused; {_STRAYS}",
            signature=(
                "q, k, v, g=None, gk=None, gv=None, beta=None, scale=None, initial_state=None, "
                "output_final_state=False, use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, A_log=None, "
                "dt_bias=None, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, state_v_first=False, "
                "cu_seqlens=None, **kwargs"
            ),
            tests=("test_errors.py::test_fused_recurrent_gated_delta_rule", *_STATES),
        ),
        Original(
            home="fla.ops",
            names=("chunk_kda",),
            verdict="differs",
            words=_STRAYS,
            signature=(
                "q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, "
                "use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, "
                "allow_neg_eigval=False, safe_gate=False, lower_bound=None, disable_recompute=False, "
                "return_intermediate_states=False, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None, "
                "cp_context=None, use_graph=False, max_num_seqs=None, **kwargs"
            ),
            by_name=(
                *("disable_recompute", "return_intermediate_states", "state_v_first"),
                *("cu_seqlens", "cu_seqlens_cpu", "cp_context", "use_graph", "max_num_seqs"),
            ),
            tests=_STATES,
        ),
        Original(
            home="fla.ops",
            names=("fused_recurrent_kda",),
            verdict="differs",
            words=_STRAYS,
            signature=(
                "q, k, v, g, beta, A_log=None, dt_bias=None, scale=None, initial_state=None, "
                "output_final_state=False, use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, "
                "use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, lower_bound=None, state_v_first=False, "
                "cu_seqlens=None, **kwargs"
            ),
            by_name=("state_v_first", "cu_seqlens"),
            tests=_STATES,
        ),
        Original(
            home="fla.ops",
            names=_FLA_ALIASES,
            verdict="refused",
            words="second names; use `chunk_gated_delta_rule` and `fused_recurrent_gated_delta_rule`",
        ),
        Original(
            home="fla.ops",
            names=_FLA_OTHERS,
            verdict="refused",
            words="other recurrences and attentions, not in this bundle",
        ),
    ),
)

MAMBA_SSM = Package(
    name="mamba_ssm",
    version="2.3.2.post1",
    source="mamba_ssm-2.3.2.post1.tar.gz on PyPI",
    exports={
        "mamba_ssm": ("selective_scan_fn", "mamba_inner_fn", "Mamba", "Mamba2", "Mamba3", "MambaLMHeadModel"),
        "mamba_ssm.ops.selective_scan_interface": (
            "selective_scan_fn",
            "selective_scan_ref",
            "mamba_inner_fn",
            "mamba_inner_ref",
            "rms_norm_forward",
        ),
        "mamba_ssm.ops.triton.ssd_combined": (
            "mamba_chunk_scan_combined",
            "mamba_chunk_scan",
            "mamba_split_conv1d_scan_combined",
            "ssd_chunk_scan_combined_ref",
            "ssd_selective_scan",
            "selective_scan_bwd",
            "mamba_conv1d_scan_ref",
            "mamba_split_conv1d_scan_ref",
        ),
        "mamba_ssm.ops.triton.selective_state_update": ("selective_state_update", "selective_state_update_ref"),
        "mamba_ssm.ops.triton.layernorm_gated": ("rms_norm_ref", "layernorm_fn", "rmsnorm_fn", "LayerNorm", "RMSNorm"),
    },
    originals=(
        Original(
            home="mamba_ssm.ops.triton.ssd_combined",
            names=("mamba_chunk_scan_combined",),
            verdict="differs",
            words=(
                "`cu_seqlens` are boundaries by themselves, where the original only returns states there and wants "
                "`seq_idx` beside; with them `initial_states` has a row a sequence"
            ),
            signature=(
                "x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, initial_states=None, seq_idx=None, "
                "cu_seqlens=None, dt_softplus=False, dt_limit=(0.0, float('inf')), return_final_states=False, "
                "return_varlen_states=False"
            ),
            tests=("test_state_space.py::test_packed_with_empty_sequences_and_slack",),
        ),
        Original(
            home="mamba_ssm.ops.triton.ssd_combined",
            names=("mamba_split_conv1d_scan_combined",),
            verdict="differs",
            words="a gated MLP beside the scan (columns left over in `zxbcdt`) is refused",
            signature=(
                "zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, chunk_size, initial_states=None, seq_idx=None, "
                "dt_limit=(0.0, float('inf')), return_final_states=False, activation='silu', rmsnorm_weight=None, "
                "rmsnorm_eps=1e-06, outproj_weight=None, outproj_bias=None, headdim=None, ngroups=1, "
                "norm_before_gate=True"
            ),
            tests=("test_state_space_errors.py::test_mamba_split_conv1d_scan_combined",),
        ),
        Original(
            home="mamba_ssm.ops.triton.selective_state_update",
            names=("selective_state_update",),
            verdict="same",
            signature=(
                "state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None"
            ),
            tests=("test_selective_state_update.py::test_state_rows_by_index",),
        ),
        Original(
            home="mamba_ssm",
            names=("selective_scan_fn",),
            verdict="differs",
            words="complex A, B, C are refused; the last state is differentiable",
            signature=(
                "u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False"
            ),
            tests=("test_selective_scan.py::test_only_the_last_state_is_used",),
        ),
        Original(
            home="mamba_ssm",
            names=("mamba_inner_fn",),
            verdict="differs",
            words="complex A, B, C are refused; `checkpoint_lvl` changes nothing",
            signature=(
                "xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight, out_proj_bias, A, "
                "B=None, C=None, D=None, delta_bias=None, B_proj_bias=None, C_proj_bias=None, delta_softplus=True, "
                "checkpoint_lvl=1, b_rms_weight=None, c_rms_weight=None, dt_rms_weight=None, b_c_dt_rms_eps=1e-06"
            ),
            tests=("test_mamba_inner.py::test_what_its_parts_compute",),
        ),
        Original(
            home="mamba_ssm",
            names=("Mamba", "Mamba2", "Mamba3", "MambaLMHeadModel"),
            verdict="refused",
            words="modules and models: transformers' own",
        ),
        Original(
            home="mamba_ssm.ops.triton.ssd_combined",
            names=("mamba_chunk_scan", "ssd_selective_scan", "selective_scan_bwd"),
            verdict="refused",
            words="parts of `mamba_chunk_scan_combined`",
        ),
        Original(
            home="mamba_ssm.ops.triton.layernorm_gated",
            names=("layernorm_fn", "rmsnorm_fn", "LayerNorm", "RMSNorm"),
            verdict="refused",
            words="the gated norm stays the model's own, in torch",
        ),
        Original(
            home="mamba_ssm.ops.selective_scan_interface",
            names=("selective_scan_ref", "mamba_inner_ref", "rms_norm_forward"),
            verdict="refused",
            words="reference code of that package's tests",
        ),
        Original(
            home="mamba_ssm.ops.triton.ssd_combined",
            names=("ssd_chunk_scan_combined_ref", "mamba_conv1d_scan_ref", "mamba_split_conv1d_scan_ref"),
            verdict="refused",
            words="reference code of that package's tests",
        ),
        Original(
            home="mamba_ssm.ops.triton.selective_state_update",
            names=("selective_state_update_ref",),
            verdict="refused",
            words="reference code of that package's tests",
        ),
        Original(
            home="mamba_ssm.ops.triton.layernorm_gated",
            names=("rms_norm_ref",),
            verdict="refused",
            words="reference code of that package's tests",
        ),
    ),
)

PACKAGES = (FLASH_ATTN, FLASH_ATTENTION_3, CAUSAL_CONV1D, FLA, MAMBA_SSM)
