// Declarations of the functions that torch_binding.cpp registers; each is defined in its op's host.cpp.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace padfree {

int64_t cpu_isa();
int64_t cpu_amx();
bool cpu_bfloat16_dot();

// kernel-src/attention/cpu/host.cpp
std::tuple<torch::stable::Tensor, torch::stable::Tensor> attention_fwd(
    torch::stable::Tensor q, torch::stable::Tensor k, torch::stable::Tensor v,
    std::optional<torch::stable::Tensor> cu_seqlens_q, std::optional<torch::stable::Tensor> cu_seqlens_k,
    int64_t max_seqlen_q, int64_t max_seqlen_k, double softmax_scale, bool causal, int64_t window_left,
    int64_t window_right, double softcap, std::optional<torch::stable::Tensor> sinks,
    std::optional<torch::stable::Tensor> alibi_slopes, double dropout_p,
    std::optional<torch::stable::Tensor> rng_state, std::optional<torch::stable::Tensor> seqused_q,
    std::optional<torch::stable::Tensor> seqused_k, std::optional<torch::stable::Tensor> mask,
    std::optional<torch::stable::Tensor> block_table, std::optional<torch::stable::Tensor> cache_batch_idx,
    std::optional<torch::stable::Tensor> leftpad_k);
std::tuple<torch::stable::Tensor, torch::stable::Tensor, torch::stable::Tensor, torch::stable::Tensor,
           torch::stable::Tensor>
attention_bwd(torch::stable::Tensor dout, std::optional<torch::stable::Tensor> dlse, torch::stable::Tensor q,
              torch::stable::Tensor k, torch::stable::Tensor v, torch::stable::Tensor out,
              torch::stable::Tensor softmax_lse, std::optional<torch::stable::Tensor> cu_seqlens_q,
              std::optional<torch::stable::Tensor> cu_seqlens_k, int64_t max_seqlen_q, int64_t max_seqlen_k,
              double softmax_scale, bool causal, int64_t window_left, int64_t window_right, double softcap,
              std::optional<torch::stable::Tensor> sinks, std::optional<torch::stable::Tensor> alibi_slopes,
              double dropout_p, std::optional<torch::stable::Tensor> rng_state,
              std::optional<torch::stable::Tensor> seqused_q, std::optional<torch::stable::Tensor> seqused_k,
              std::optional<torch::stable::Tensor> mask, bool needs_dmask);

// kernel-src/causal_conv1d/cpu/host.cpp
using torch::stable::Tensor;

Tensor causal_conv1d_fwd(Tensor x, Tensor weight, std::optional<Tensor> bias, std::optional<Tensor> seq_idx,
                         std::optional<Tensor> initial_states, bool silu);
void causal_conv1d_fwd_out(Tensor x, Tensor weight, std::optional<Tensor> bias, std::optional<Tensor> seq_idx,
                           std::optional<Tensor> initial_states, bool silu, Tensor out);
std::tuple<Tensor, Tensor, Tensor, Tensor> causal_conv1d_bwd(Tensor dout, Tensor x, Tensor weight,
                                                             std::optional<Tensor> bias,
                                                             std::optional<Tensor> seq_idx,
                                                             std::optional<Tensor> initial_states, bool silu);
Tensor causal_conv1d_update(Tensor x, Tensor conv_state, Tensor weight, std::optional<Tensor> bias, bool silu,
                            std::optional<Tensor> cache_seqlens, std::optional<Tensor> conv_state_indices);

// kernel-src/gated_delta_rule/cpu/host.cpp
std::tuple<Tensor, Tensor, Tensor> gated_delta_rule_fwd(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta,
                                                        std::optional<Tensor> initial_state,
                                                        std::optional<Tensor> cu_seqlens, double scale,
                                                        bool l2norm, bool output_final_state,
                                                        bool save_states);
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> gated_delta_rule_bwd(
    Tensor dout, std::optional<Tensor> dfinal_state, Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta,
    std::optional<Tensor> initial_state, std::optional<Tensor> cu_seqlens, Tensor states, double scale,
    bool l2norm);
std::tuple<Tensor, Tensor> gated_delta_rule_recurrent(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta,
                                                      std::optional<Tensor> initial_state,
                                                      std::optional<Tensor> cu_seqlens, double scale,
                                                      bool l2norm);
Tensor gated_delta_rule_update(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor state,
                               std::optional<Tensor> cu_seqlens, double scale, bool l2norm);

// kernel-src/state_space/cpu/host.cpp
std::tuple<Tensor, Tensor, Tensor> state_space_fwd(
    Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, std::optional<Tensor> D, std::optional<Tensor> z,
    std::optional<Tensor> dt_bias, std::optional<Tensor> initial_states, std::optional<Tensor> seq_idx,
    std::optional<Tensor> cu_seqlens, bool dt_softplus, double dt_min, double dt_max,
    bool output_final_states, bool save_states);
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> state_space_bwd(
    Tensor dout, std::optional<Tensor> dfinal_states, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C,
    std::optional<Tensor> D, std::optional<Tensor> z, std::optional<Tensor> dt_bias,
    std::optional<Tensor> initial_states, std::optional<Tensor> seq_idx, std::optional<Tensor> cu_seqlens,
    Tensor states, bool dt_softplus, double dt_min, double dt_max);

// kernel-src/selective_scan/cpu/host.cpp
std::tuple<Tensor, Tensor, Tensor> selective_scan_fwd(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C,
                                                      std::optional<Tensor> D, std::optional<Tensor> z,
                                                      std::optional<Tensor> delta_bias,
                                                      std::optional<Tensor> seq_idx,
                                                      std::optional<Tensor> initial_states,
                                                      bool delta_softplus, int64_t states, bool save_states);
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> selective_scan_bwd(
    Tensor dout, std::optional<Tensor> dfinal_states, Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C,
    std::optional<Tensor> D, std::optional<Tensor> z, std::optional<Tensor> delta_bias,
    std::optional<Tensor> seq_idx, std::optional<Tensor> initial_states, Tensor saved, bool delta_softplus);

// kernel-src/selective_state_update/cpu/host.cpp; the op has the name of its namespace, so the function has
// another
Tensor update_selective_state(Tensor state, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C,
                              std::optional<Tensor> D, std::optional<Tensor> z, std::optional<Tensor> dt_bias,
                              bool dt_softplus, std::optional<Tensor> state_batch_indices);

}  // namespace padfree
