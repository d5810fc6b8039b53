"""The features table: every public function, every parameter it takes, and the tests that show it works.

A parameter that no row names, or a name that no parameter has, fails test_claims.py.
"""

from claims import Feature, shown

ATTENTION = "test_attention.py::test_"
OPTIONS = "test_attention_options.py::test_"
PACKED = "test_attention_packed.py::test_"
KVCACHE = "test_attention_kvcache.py::test_"
MASK = "test_attention_mask.py::test_"
STACKED = "test_attention_stacked.py::test_"
FA3 = "test_flash_attention_3.py::test_"
PADDING = "test_bert_padding.py::test_"
ROTARY = "test_rotary.py::test_"
DETERMINISM = "test_attention_determinism.py::test_"
PROPERTIES = "test_attention_properties.py::test_"
COMPILE = "test_attention_compile.py::test_"
CONV = "test_causal_conv1d.py::test_"
DELTA = "test_gated_delta_rule.py::test_"
SCAN = "test_selective_scan.py::test_"
INNER = "test_mamba_inner.py::test_"
STEP = "test_selective_state_update.py::test_"
DELTA_COMPILE = "test_gated_delta_rule_compile.py::test_"
SSD = "test_state_space.py::test_"
SPLIT = "test_state_space_split.py::test_"

GATE = "use_gate_in_kernel A_log dt_bias lower_bound use_beta_sigmoid_in_kernel allow_neg_eigval"
ALL_DTYPES = "float32, bfloat16, float16"

FEATURES = (
    Feature(
        functions=(
            "flash_attn_func",
            "flash_attn_varlen_func",
            "flash_attn_qkvpacked_func",
            "flash_attn_kvpacked_func",
            "flash_attn_varlen_qkvpacked_func",
            "flash_attn_varlen_kvpacked_func",
        ),
        title="`flash_attn_func`, `flash_attn_varlen_func`, their `qkvpacked` and `kvpacked` forms",
        op="attention",
        dtypes=shown(ALL_DTYPES, f"{ATTENTION}block_edges_in_every_dtype", f"{ATTENTION}softcap"),
        forward=shown(
            "yes",
            f"{ATTENTION}every_block_edge",
            f"{STACKED}stacked_form",
            f"{PROPERTIES}any_call_matches_the_oracle",
            arguments="q k v qkv kv",
        ),
        backward=shown("yes", f"{ATTENTION}every_block_edge", f"{COMPILE}opcheck_backward"),
        options=(
            shown(
                "sequences of any length, empty ones too",
                f"{PACKED}packed_equals_per_sample_to_the_bit",
                f"{PACKED}isolation_by_poison",
                f"{PACKED}boundaries_in_every_form",
                f"{ATTENTION}empty_sequences_inside_a_pack",
                arguments="cu_seqlens cu_seqlens_q cu_seqlens_k max_seqlen max_seqlen_q max_seqlen_k",
            ),
            shown("causal (bottom-right)", f"{ATTENTION}unequal_lengths_and_dead_rows", arguments="causal"),
            shown("window", f"{ATTENTION}window", f"{ATTENTION}window_skips_whole_blocks", arguments="window_size"),
            shown("softcap", f"{ATTENTION}softcap", arguments="softcap"),
            shown("scale", f"{ATTENTION}softmax_scale", arguments="softmax_scale"),
            shown("grouped heads", f"{ATTENTION}grouped_heads"),
            shown(
                "head dims 1 to 512 and another one for v", f"{ATTENTION}head_dims", f"{ATTENTION}value_dim_of_its_own"
            ),
            shown(
                "log-sum-exp (differentiable)",
                f"{ATTENTION}gradient_of_one_output_alone",
                f"{PROPERTIES}parts_of_the_keys_merge",
                arguments="return_attn_probs",
            ),
            shown(
                "sinks (differentiable)",
                f"{OPTIONS}sinks",
                f"{OPTIONS}names_of_flash_attention_3",
                arguments="s_aux learnable_sink",
            ),
            shown("ALiBi", f"{OPTIONS}alibi", arguments="alibi_slopes"),
            shown(
                "dropout",
                f"{OPTIONS}dropout_against_the_mask_it_drew",
                f"{OPTIONS}dropout_repeats_with_its_seed_on_any_number_of_threads",
                arguments="dropout_p",
            ),
            shown("used lengths", f"{OPTIONS}used_lengths", arguments="seqused_q seqused_k"),
            shown("pages (forward)", f"{OPTIONS}packed_queries_against_pages", arguments="block_table page_table"),
            shown(
                "always deterministic",
                f"{DETERMINISM}twenty_runs_give_the_same_bits",
                f"{DETERMINISM}threads_do_not_change_a_bit",
                f"{OPTIONS}names_of_flash_attention_3",
                arguments="deterministic num_splits",
            ),
        ),
    ),
    Feature(
        functions=("flash_attn_with_kvcache",),
        op="attention",
        dtypes=shown("the same", f"{KVCACHE}decode_without_append"),
        forward=shown(
            "yes", f"{KVCACHE}decode_without_append", arguments="q k_cache v_cache return_softmax_lse num_splits"
        ),
        backward=shown("no (decoding)", "test_attention_kvcache.py::test_errors"),
        options=(
            shown("append in place", f"{KVCACHE}append_in_place", arguments="k v cache_seqlens"),
            shown(
                "pages of any size",
                f"{KVCACHE}append_in_place",
                f"{KVCACHE}pages_may_be_shared",
                arguments="block_table page_table",
            ),
            shown("cache rows", f"{KVCACHE}rows_of_the_cache_in_another_order", arguments="cache_batch_idx"),
            shown("left padding", f"{KVCACHE}leftpad", arguments="cache_leftpad"),
            shown("rotary in both styles", f"{KVCACHE}rotary", arguments="rotary_cos rotary_sin rotary_interleaved"),
            shown(
                "and the options above",
                f"{KVCACHE}options",
                arguments="softmax_scale causal window_size softcap alibi_slopes s_aux learnable_sink",
            ),
        ),
    ),
    Feature(
        functions=(
            "flash_attention_3.flash_attn_func",
            "flash_attention_3.flash_attn_varlen_func",
            "flash_attention_3.flash_attn_qkvpacked_func",
            "flash_attention_3.flash_attn_with_kvcache",
            "flash_attention_3.get_scheduler_metadata",
        ),
        title="`flash_attention_3`: the functions of `flash_attn_interface`, in FlashAttention 3's order of arguments",
        op="attention",
        dtypes=shown("the same", f"{FA3}heads_side_by_side", f"{FA3}packed_queries"),
        forward=shown(
            "yes",
            f"{FA3}every_argument_in_its_place",
            f"{FA3}every_argument_of_the_cache_in_its_place",
            arguments=(
                "q k v k_cache v_cache cu_seqlens_k max_seqlen_k seqused_q seqused_k softmax_scale causal window_size "
                "softcap deterministic return_attn_probs return_softmax_lse cache_seqlens page_table rotary_cos "
                "rotary_sin rotary_interleaved"
            ),
        ),
        backward=shown("as above", f"{FA3}every_argument_in_its_place", f"{FA3}packed_errors"),
        options=(
            shown("all heads side by side", f"{FA3}heads_side_by_side", arguments="qkv num_heads_q"),
            shown(
                "queries and new keys of a cache packed",
                f"{FA3}packed_queries",
                f"{FA3}packed_queries_of_whole_rows",
                f"{FA3}packed_append",
                f"{FA3}boundaries_of_no_new_keys_say_nothing",
                arguments="cu_seqlens_q max_seqlen_q cu_seqlens_k_new rotary_seqlens",
            ),
            shown(
                "sinks, dropout, cache rows and left padding as above",
                f"{FA3}what_transformers_passes_by_name",
                f"{FA3}rows_of_the_cache_leftpad_and_sinks",
                arguments="s_aux learnable_sink dropout_p block_table cache_batch_idx cache_leftpad",
            ),
            shown(
                "what plans its kernels' work taken, and changes no bit",
                f"{FA3}every_argument_in_its_place",
                f"{FA3}every_argument_of_the_cache_in_its_place",
                arguments=(
                    "num_splits pack_gqa sm_margin scheduler_metadata batch_size max_seqlen_k_new num_heads_kv headdim "
                    "headdim_v qkv_dtype page_size has_softcap"
                ),
            ),
            shown(
                "`qv`, float8 and chunks refused",
                f"{FA3}refused_by_name",
                arguments="qv q_descale k_descale v_descale attention_chunk",
            ),
        ),
    ),
    Feature(
        functions=("flash_attention_3.flash_attn_combine",),
        op=None,
        dtypes=shown("float32, bfloat16, float16; float32 log-sum-exp", f"{FA3}parts_by_the_formula"),
        forward=shown("yes", f"{FA3}parts_merge", arguments="out_partial lse_partial"),
        backward=shown("yes", f"{FA3}parts_merge"),
        options=(
            shown("parts without keys", f"{FA3}parts_by_the_formula"),
            shown("a place to write to", f"{FA3}parts_into_a_given_place", arguments="out out_dtype"),
        ),
    ),
    Feature(
        functions=(
            "bert_padding.unpad_input",
            "bert_padding.unpad_input_for_concatenated_sequences",
            "bert_padding.pad_input",
            "bert_padding.index_first_axis",
            "bert_padding.index_first_axis_residual",
            "bert_padding.index_put_first_axis",
        ),
        title="`bert_padding`: `unpad_input`, `pad_input` and the functions beside them",
        op=None,
        dtypes=shown("any", f"{PADDING}there_and_back", f"{PADDING}masks_of_every_dtype"),
        forward=shown(
            "yes",
            f"{PADDING}there_and_back",
            f"{PADDING}any_layout_and_int32_indices",
            arguments="hidden_states attention_mask indices batch seqlen input values first_axis_dim",
        ),
        backward=shown("yes", f"{PADDING}gradients", f"{PADDING}fullgraph"),
        options=(
            shown(
                "padding anywhere, unused tokens",
                f"{PADDING}unused_tokens_are_kept_and_not_attended_to",
                arguments="unused_mask",
            ),
            shown(
                "several samples a row",
                f"{PADDING}rows_of_several_samples",
                arguments="attention_mask_in_length",
            ),
        ),
    ),
    Feature(
        functions=(
            "rotary.apply_rotary_emb",
            "rotary.apply_rotary_emb_func",
            "rotary.apply_rotary_emb_qkv_",
            "rotary.apply_rotary_emb_kv_",
            "rotary.apply_rotary_emb_torch",
            "rotary.apply_rotary",
            "rotary.rotate_half",
            "rotary.RotaryEmbedding",
        ),
        title="`rotary`: `apply_rotary_emb`, its `qkv` and `kv` forms, `RotaryEmbedding`",
        op=None,
        dtypes=shown(f"{ALL_DTYPES}; float32 arithmetic", f"{ROTARY}against_float64"),
        forward=shown(
            "yes",
            f"{ROTARY}against_float64",
            f"{ROTARY}layout_changes_no_bit",
            f"{ROTARY}reference_forms",
            arguments="x cos sin conjugate",
        ),
        backward=shown("yes", f"{ROTARY}against_float64", f"{ROTARY}fullgraph"),
        options=(
            shown("both styles", f"{ROTARY}against_float64", arguments="interleaved"),
            shown("in place", f"{ROTARY}against_float64", f"{ROTARY}layout_changes_no_bit", arguments="inplace"),
            shown("offsets", f"{ROTARY}against_float64", arguments="seqlen_offsets"),
            shown("`cu_seqlens`", f"{ROTARY}packed", arguments="cu_seqlens max_seqlen"),
            shown("stacked", f"{ROTARY}stacked", arguments="qkv kv cos_k sin_k num_heads_q"),
            shown(
                "tables of its own, XPos",
                f"{ROTARY}tables",
                f"{ROTARY}scaled_tables",
                arguments="dim base scale_base device",
            ),
        ),
    ),
    Feature(
        functions=("attention_with_mask", "register_masked_attention"),
        title="`attention_with_mask`; `register_masked_attention` for transformers",
        op="attention",
        dtypes=shown("the same", f"{MASK}boolean_mask", f"{MASK}float_mask_and_its_gradient"),
        forward=shown(
            "yes",
            f"{PROPERTIES}any_mask_matches_the_oracle",
            "test_transformers_masks.py::test_equals_eager",
            arguments="q k v name return_attn_probs",
        ),
        backward=shown("yes", f"{MASK}boolean_mask", f"{COMPILE}fullgraph_with_a_learned_mask"),
        options=(
            shown(
                "any 4-D mask, boolean or added (differentiable)",
                f"{MASK}boolean_mask",
                f"{MASK}float_mask_and_its_gradient",
                arguments="mask",
            ),
            shown(
                "beside causal, softcap, sinks and dropout",
                f"{MASK}mask_beside_causal_softcap_and_sinks",
                arguments="causal softcap s_aux softmax_scale dropout_p",
            ),
            shown("what it empties is skipped", f"{MASK}hidden_keys_hold_anything"),
        ),
    ),
    Feature(
        functions=("causal_conv1d_fn",),
        op="causal_conv1d",
        dtypes=shown(f"{ALL_DTYPES}; float32 arithmetic", f"{CONV}matches_oracle", f"{CONV}weight_dtype_is_free"),
        forward=shown("yes", f"{CONV}matches_oracle", f"{CONV}out_argument", arguments="x out"),
        backward=shown("yes", f"{CONV}matches_oracle", f"{CONV}opcheck"),
        options=(
            shown("widths 2 to 4", f"{CONV}matches_oracle", arguments="weight"),
            shown("bias", f"{CONV}matches_oracle", arguments="bias"),
            shown("silu", f"{CONV}matches_oracle", f"{CONV}swish_is_silu", arguments="activation"),
            shown(
                "`seq_idx`",
                f"{CONV}boundaries_and_padding",
                f"{CONV}packed_equals_per_sample_bit_by_bit",
                arguments="seq_idx",
            ),
            shown(
                "initial and final states",
                f"{CONV}states",
                f"{CONV}states_packed",
                f"{CONV}final_states_out",
                arguments="initial_states return_final_states final_states_out",
            ),
            shown("any layout", f"{CONV}layout_changes_no_bit"),
        ),
    ),
    Feature(
        functions=("causal_conv1d_update",),
        op="causal_conv1d",
        dtypes=shown("the same", f"{CONV}update"),
        forward=shown("yes", f"{CONV}update", arguments="x weight bias activation"),
        backward=shown("no (inference)", "test_errors.py::test_causal_conv1d_update"),
        options=(
            shown("states in place", f"{CONV}updates_continue_a_prefill_bit_by_bit", arguments="conv_state"),
            shown("circular states", f"{CONV}update", arguments="cache_seqlens"),
            shown("`conv_state_indices`", f"{CONV}update_conv_state_indices", arguments="conv_state_indices"),
        ),
    ),
    Feature(
        functions=("causal_conv1d_varlen_states",),
        op=None,
        dtypes=shown("any", f"{CONV}varlen_states"),
        forward=shown("yes", f"{CONV}varlen_states", arguments="x cu_seqlens"),
        backward=shown("yes", f"{CONV}varlen_states"),
        options=(shown("any state length", f"{CONV}varlen_states", arguments="state_len"),),
    ),
    Feature(
        functions=("chunk_gated_delta_rule", "chunk_kda"),
        title="`chunk_gated_delta_rule`, `chunk_kda` (a gate per channel)",
        op="gated_delta_rule",
        dtypes=shown(
            f"{ALL_DTYPES}; float32 state",
            f"{DELTA}key_heads_that_serve_several_value_heads",
            f"{DELTA}gates_and_states_of_other_dtypes",
        ),
        forward=shown("yes", f"{DELTA}every_chunk_edge", arguments="q k v g beta scale"),
        backward=shown("yes", f"{DELTA}every_chunk_edge", f"{DELTA_COMPILE}opcheck_backward"),
        options=(
            shown(
                "`cu_seqlens`",
                f"{DELTA}packed_with_empty_sequences_and_slack",
                f"{DELTA}a_packed_sequence_has_the_bits_of_the_call_alone",
                arguments="cu_seqlens",
            ),
            shown(
                "initial and final states",
                f"{DELTA}optional_arguments",
                f"{DELTA}value_first_states",
                arguments="initial_state output_final_state state_v_first",
            ),
            shown("any length", f"{DELTA}every_chunk_edge"),
            shown("head dims up to 256", f"{DELTA}head_dims", f"{DELTA}wide_head_dims"),
            shown("grouped heads", f"{DELTA}key_heads_that_serve_several_value_heads"),
            shown("l2norm", f"{DELTA}optional_arguments", arguments="use_qk_l2norm_in_kernel"),
            shown(
                "gate and beta activated inside (`lower_bound` for Kimi)",
                f"{DELTA}activations_inside",
                f"{DELTA}a_gate_with_a_lower_bound",
                "test_errors.py::test_safe_gate_of_kda",
                arguments=f"{GATE} safe_gate",
            ),
            shown(
                "what flash-linear-attention takes beside, taken or refused by name",
                f"{DELTA}what_flash_linear_attention_takes_beside",
                "test_errors.py::test_gated_delta_rule",
                arguments="upstream",
            ),
        ),
    ),
    Feature(
        functions=("fused_recurrent_gated_delta_rule", "fused_recurrent_kda"),
        op="gated_delta_rule",
        dtypes=shown("the same", f"{DELTA}step_by_step"),
        forward=shown(
            "yes",
            f"{DELTA}step_by_step",
            f"{DELTA}recurrent_form_without_gate_and_beta",
            arguments="q k v g beta scale",
        ),
        backward=shown("by the chunk form", f"{DELTA}recurrent_form_is_differentiable"),
        options=(
            shown("states in place", f"{DELTA}step_in_place", arguments="inplace_final_state initial_state"),
            shown(
                "and the options above",
                f"{DELTA}step_by_step_packed_without_a_state",
                f"{DELTA}value_first_states",
                f"{DELTA}activations_inside",
                arguments=f"cu_seqlens output_final_state state_v_first use_qk_l2norm_in_kernel upstream {GATE}",
            ),
            shown(
                "`gk` and `gv` refused",
                "test_errors.py::test_fused_recurrent_gated_delta_rule",
                arguments="gk gv",
            ),
        ),
    ),
    Feature(
        functions=("selective_scan_fn",),
        op="selective_scan",
        dtypes=shown(
            f"{ALL_DTYPES}, each tensor its own; float32 state",
            f"{SCAN}dtypes",
            f"{SCAN}every_tensor_may_have_its_own_dtype",
        ),
        forward=shown("yes", f"{SCAN}every_chunk_edge", f"{SCAN}every_lane_group_edge", arguments="u delta A B C"),
        backward=shown("yes", f"{SCAN}every_chunk_edge", "test_selective_scan_compile.py::test_opcheck_backward"),
        options=(
            shown("`seq_idx`", f"{SCAN}packed_with_padding", f"{SCAN}padding_is_not_read", arguments="seq_idx"),
            shown("`cu_seqlens`", f"{SCAN}cu_seqlens_with_empty_sequences_and_slack", arguments="cu_seqlens"),
            shown(
                "initial and last states (differentiable)",
                f"{SCAN}chained_calls_have_the_bits_of_one",
                f"{SCAN}only_the_last_state_is_used",
                arguments="initial_states return_last_state",
            ),
            shown("any number of states", f"{SCAN}numbers_of_states"),
            shown("groups", f"{SCAN}groups"),
            shown("constant B and C", f"{SCAN}constant_matrices"),
            shown("softplus, skip and gate", f"{SCAN}optional_arguments", arguments="D z delta_bias delta_softplus"),
            shown("any layout", f"{SCAN}layouts"),
        ),
    ),
    Feature(
        functions=("mamba_inner_fn",),
        op="selective_scan",
        dtypes=shown("the same", f"{INNER}dtypes"),
        forward=shown(
            "yes",
            f"{INNER}what_its_parts_compute",
            arguments=(
                "xz conv1d_weight conv1d_bias x_proj_weight delta_proj_weight out_proj_weight out_proj_bias A D "
                "delta_bias delta_softplus checkpoint_lvl"
            ),
        ),
        backward=shown("yes", f"{INNER}what_its_parts_compute"),
        options=(
            shown("`seq_idx` or `cu_seqlens`", f"{INNER}packed_equals_per_sample", arguments="seq_idx cu_seqlens"),
            shown(
                "norms and biases of B, C and dt",
                f"{INNER}norms_and_biases",
                arguments="b_rms_weight c_rms_weight dt_rms_weight b_c_dt_rms_eps norm_dt_rank B_proj_bias C_proj_bias",
            ),
            shown("B and C given", f"{INNER}given_matrices", arguments="B C"),
        ),
    ),
    Feature(
        functions=("selective_state_update",),
        op="selective_state_update",
        dtypes=shown("the same, states as well", f"{STEP}dtypes", f"{STEP}every_tensor_may_have_its_own_dtype"),
        forward=shown("yes", f"{STEP}numbers_of_states", arguments="state x dt A B C"),
        backward=shown("by the scan", f"{STEP}differentiable_where_a_gradient_is_wanted"),
        options=(
            shown("both Mambas, heads and groups", f"{STEP}shapes", f"{STEP}more_than_one_task"),
            shown("states in place, by index", f"{STEP}state_rows_by_index", arguments="state_batch_indices"),
            shown("softplus, skip and gate", f"{STEP}optional_arguments", arguments="D z dt_bias dt_softplus"),
        ),
    ),
    Feature(
        functions=("mamba_chunk_scan_combined",),
        title="`mamba_chunk_scan_combined` (Mamba 2, SSD)",
        op="state_space",
        dtypes=shown(f"{ALL_DTYPES}; float32 state", f"{SSD}groups_of_heads", f"{SSD}steps_and_states_of_other_dtypes"),
        forward=shown(
            "yes", f"{SSD}every_chunk_edge", f"{SSD}chunk_size_changes_nothing", arguments="x dt A B C chunk_size"
        ),
        backward=shown("yes", f"{SSD}every_chunk_edge", "test_state_space_compile.py::test_opcheck_backward"),
        options=(
            shown(
                "`seq_idx` or `cu_seqlens`",
                f"{SSD}seq_idx",
                f"{SSD}packed_with_empty_sequences_and_slack",
                f"{SSD}a_packed_sequence_has_the_bits_of_the_call_alone",
                f"{SSD}seq_idx_and_cu_seqlens_say_the_same",
                arguments="seq_idx cu_seqlens",
            ),
            shown(
                "initial and final states, of rows or of sequences",
                f"{SSD}optional_arguments",
                f"{SSD}states_of_rows_and_of_sequences",
                arguments="initial_states return_final_states return_varlen_states",
            ),
            shown("any length", f"{SSD}every_chunk_edge"),
            shown("head and state dims up to 256", f"{SSD}widths", f"{SSD}wide"),
            shown("groups", f"{SSD}groups_of_heads"),
            shown("D, a number a head or a channel, and the gate z", f"{SSD}optional_arguments", arguments="D z"),
            shown(
                "softplus, bias and limits of dt",
                f"{SSD}limits_of_dt",
                f"{SSD}without_softplus",
                arguments="dt_bias dt_softplus dt_limit",
            ),
        ),
    ),
    Feature(
        functions=("mamba_split_conv1d_scan_combined",),
        op="state_space",
        dtypes=shown("the same", f"{SPLIT}low_precision"),
        forward=shown(
            "yes",
            f"{SPLIT}against_float64",
            arguments="zxbcdt conv1d_weight conv1d_bias dt_bias A D chunk_size headdim ngroups activation",
        ),
        backward=shown("yes, by its parts", f"{SPLIT}against_float64"),
        options=(
            shown("`seq_idx`", f"{SPLIT}packed_rows_equal_calls_alone", arguments="seq_idx"),
            shown(
                "initial and final states", f"{SPLIT}against_float64", arguments="initial_states return_final_states"
            ),
            shown("limits of dt", f"{SPLIT}against_float64", arguments="dt_limit"),
            shown(
                "norm of groups of channels, before or after the gate, and projection",
                f"{SPLIT}against_float64",
                arguments="rmsnorm_weight rmsnorm_eps norm_before_gate outproj_weight outproj_bias",
            ),
        ),
    ),
)

WAYS = (
    shown(
        "`padfree.enable(model)` | all that the bundle has for one transformers model; `disable` undoes it",
        "test_transformers_wiring.py::test_enable_replaces_and_disable_restores_to_identity",
        arguments="enable disable report",
    ),
    shown(
        '`attn_implementation="padfree/padfree-flash2"` | attention only, by transformers\' own switch',
        "test_transformers_wiring.py::test_attention_by_repository_id",
    ),
    shown(
        "`padfree.back_flash_attention()` | `flash_attention_2` and `flash_attention_3` mean this bundle, process-wide",
        "test_transformers_wiring.py::test_back_flash_attention",
        arguments="back_flash_attention",
    ),
    shown(
        "`padfree.install_as_packages()` | `flash_attn`, `flash_attn_interface`, `causal_conv1d`, `fla` and "
        "`mamba_ssm` find this bundle; call it before the file that imports them",
        "test_packages.py::test_install_as_packages",
        arguments="install_as_packages",
    ),
)
"""The table of ways in, each row ``way | what it does``; ``arguments``: the public names it is about."""

NOT_SHOWN = ()
"""Public functions that have no row yet: the table says so below."""

PLAIN = ("isa", "layers", "verify")
"""Public names without a row: they say what was loaded, or hold the classes that ``enable`` wires."""
