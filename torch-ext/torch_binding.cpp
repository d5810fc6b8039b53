// Schemas, once for every backend; then the implementations of the backend this variant is built for. Nothing
// else.
#include "torch_binding.h"

#include <torch/csrc/stable/library.h>

#include "registration.h"

#if defined(CPU_KERNEL)
#include "common/cpu/isa.h"
#endif

namespace padfree {
int64_t cpu_isa() {
#if defined(CPU_KERNEL)
  return static_cast<int64_t>(current_isa());
#else
  return -1;
#endif
}
int64_t cpu_amx() {
#if defined(CPU_KERNEL)
  const Amx amx = current_amx();
  return (amx.bfloat16 ? 1 : 0) + (amx.float16 ? 2 : 0);
#else
  return 0;
#endif
}
bool cpu_bfloat16_dot() {
#if defined(CPU_KERNEL)
  return has_bfloat16_dot();
#else
  return false;
#endif
}
}  // namespace padfree

STABLE_TORCH_LIBRARY(TORCH_EXTENSION_NAME, ops) {
  // The instruction-set path in use, an index into ("generic", "avx2", "avx512"), or -1 in a variant without
  // CPU kernels; raises if PADFREE_ISA is wrong.
  ops.def("cpu_isa() -> int");
  // In which types plain attention is handed to torch's op: 1 for bfloat16, plus 2 for float16; raises if
  // PADFREE_AMX is wrong.
  ops.def("cpu_amx() -> int");
  // Whether attention takes the CPU's dot product of bfloat16; raises if PADFREE_AVX512_BF16 is wrong.
  ops.def("cpu_bfloat16_dot() -> bool");

  // Dense: q (B, Sq, H, D), k (B, Sk, Hk, D), v (B, Sk, Hk, Dv); packed (with both cu_seqlens): (T, H, D) and
  // so on. A window of -1 is unbounded on that side, softcap 0 is off. softmax_lse is float32, (B, H, Sq) or
  // (H, T). sinks (H) and alibi_slopes (H) or (sequences, H) are float32; rng_state, int64 (1), seeds the
  // dropout; seqused_q/k, int32 (sequences), shorten each sequence; mask (B or 1, H or 1, Sq, Sk) is bool or
  // added to the scores. A KV cache, forward only: block_table (sequences, n), int32, makes k and v pages
  // (pages, page_size, Hk, D); cache_batch_idx, int32 (B), picks the row of k and v; keys before leftpad_k,
  // int32 (B), do not exist.
  ops.def(
      "attention_fwd(Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
      "SymInt max_seqlen_q, SymInt max_seqlen_k, float softmax_scale, bool causal, SymInt window_left, "
      "SymInt window_right, float softcap, Tensor? sinks=None, Tensor? alibi_slopes=None, float "
      "dropout_p=0.0, "
      "Tensor? rng_state=None, Tensor? seqused_q=None, Tensor? seqused_k=None, Tensor? mask=None, "
      "Tensor? block_table=None, Tensor? cache_batch_idx=None, Tensor? leftpad_k=None) "
      "-> (Tensor out, Tensor softmax_lse)");
  // dlse is the gradient of softmax_lse, None for zero. dsinks is float32 and empty without sinks; dmask,
  // empty unless needed, wants a mask of full size (strides of 0 are fine).
  ops.def(
      "attention_bwd(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor "
      "softmax_lse, "
      "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k, "
      "float softmax_scale, bool causal, SymInt window_left, SymInt window_right, float softcap, "
      "Tensor? sinks=None, Tensor? alibi_slopes=None, float dropout_p=0.0, Tensor? rng_state=None, "
      "Tensor? seqused_q=None, Tensor? seqused_k=None, Tensor? mask=None, bool needs_dmask=False) "
      "-> (Tensor dq, Tensor dk, Tensor dv, Tensor dsinks, Tensor dmask)");

  // x (B, D, L), weight (D, W), bias (D,), seq_idx int32 (B, L), initial_states (N, D, W - 1).
  ops.def(
      "causal_conv1d_fwd(Tensor x, Tensor weight, Tensor? bias, Tensor? seq_idx, Tensor? initial_states, "
      "bool silu) -> Tensor");
  ops.def(
      "causal_conv1d_fwd_out(Tensor x, Tensor weight, Tensor? bias, Tensor? seq_idx, Tensor? initial_states, "
      "bool silu, Tensor(a!) out) -> ()");
  // Gradients of x, weight, bias and initial_states; the last two are computed, or empty, without the
  // argument.
  ops.def(
      "causal_conv1d_bwd(Tensor dout, Tensor x, Tensor weight, Tensor? bias, Tensor? seq_idx, "
      "Tensor? initial_states, bool silu) -> (Tensor, Tensor, Tensor, Tensor)");
  // x (B, D) or (B, D, L), conv_state (N, D, S), cache_seqlens and conv_state_indices int32 (B,).
  ops.def(
      "causal_conv1d_update(Tensor x, Tensor(a!) conv_state, Tensor weight, Tensor? bias, bool silu, "
      "Tensor? cache_seqlens, Tensor? conv_state_indices) -> Tensor");

  // q, k (B, T, Hk, Dk), v (B, T, Hv, Dv) of one dtype; all else float32: g (B, T, Hv) or, a gate per
  // channel, (B, T, Hv, Dk), beta (B, T, Hv), states (N, Hv, Dk, Dv). final_state and states are empty unless
  // asked for; states is what the backward needs, in a layout of its own.
  ops.def(
      "gated_delta_rule_fwd(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? initial_state, "
      "Tensor? cu_seqlens, float scale, bool l2norm, bool output_final_state, bool save_states) "
      "-> (Tensor out, Tensor final_state, Tensor states)");
  // dfinal_state None stands for zero; dinitial_state is empty where there is no initial_state.
  ops.def(
      "gated_delta_rule_bwd(Tensor dout, Tensor? dfinal_state, Tensor q, Tensor k, Tensor v, Tensor g, "
      "Tensor beta, Tensor? initial_state, Tensor? cu_seqlens, Tensor states, float scale, bool l2norm) "
      "-> (Tensor dq, Tensor dk, Tensor dv, Tensor dg, Tensor dbeta, Tensor dinitial_state)");
  // Token by token, for decoding; the second form leaves the final state where the initial one was.
  ops.def(
      "gated_delta_rule_recurrent(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? "
      "initial_state, "
      "Tensor? cu_seqlens, float scale, bool l2norm) -> (Tensor out, Tensor final_state)");
  ops.def(
      "gated_delta_rule_update(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor(a!) state, "
      "Tensor? cu_seqlens, float scale, bool l2norm) -> Tensor out");

  // x, z (B, T, H, P), B, C (B, T, G, N) of one dtype; all else float32: dt (B, T, H), A and dt_bias (H), D
  // (H) or (H, P), states (S, H, P, N), S the number of sequences with cu_seqlens, else B. seq_idx int32 (B,
  // T). final_states and states are empty unless asked for; states is what the backward needs, in a layout of
  // its own.
  ops.def(
      "state_space_fwd(Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, "
      "Tensor? dt_bias, Tensor? initial_states, Tensor? seq_idx, Tensor? cu_seqlens, bool dt_softplus, "
      "float dt_min, float dt_max, bool output_final_states, bool save_states) "
      "-> (Tensor out, Tensor final_states, Tensor states)");
  // dfinal_states None stands for zero; gradients of arguments that are None are empty.
  ops.def(
      "state_space_bwd(Tensor dout, Tensor? dfinal_states, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor "
      "C, "
      "Tensor? D, Tensor? z, Tensor? dt_bias, Tensor? initial_states, Tensor? seq_idx, Tensor? cu_seqlens, "
      "Tensor states, bool dt_softplus, float dt_min, float dt_max) -> (Tensor dx, Tensor ddt, Tensor dA, "
      "Tensor dB, Tensor dC, Tensor dD, Tensor dz, Tensor ddt_bias, Tensor dinitial_states)");

  // u, delta, z (B, D, L) in any of the three dtypes; all else float32: A (D, N), B and C (B, G, N, L) or
  // constant (D, N), D and delta_bias (D), states (S, D, N); seq_idx int32 (B, L). final_states has `states`
  // rows, none where that is -1; saved is what the backward needs, in a layout of its own, or empty.
  ops.def(
      "selective_scan_fwd(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, "
      "Tensor? delta_bias, Tensor? seq_idx, Tensor? initial_states, bool delta_softplus, SymInt states, "
      "bool save_states) -> (Tensor out, Tensor final_states, Tensor saved)");
  // dfinal_states None stands for zero; dz and dinitial_states are empty without the argument.
  ops.def(
      "selective_scan_bwd(Tensor dout, Tensor? dfinal_states, Tensor u, Tensor delta, Tensor A, Tensor B, "
      "Tensor C, Tensor? D, Tensor? z, Tensor? delta_bias, Tensor? seq_idx, Tensor? initial_states, "
      "Tensor saved, bool delta_softplus) -> (Tensor du, Tensor ddelta, Tensor dA, Tensor dB, Tensor dC, "
      "Tensor dD, Tensor dz, Tensor ddelta_bias, Tensor dinitial_states)");
  // One token, state in place: x, dt, z (B, D), state (B, D, N), B and C (B, N); or with heads x (B, H, P),
  // state (B, H, P, N), B and C (B, G, N). A float32, the others any; state_batch_indices int32 (B).
  ops.def(
      "selective_state_update(Tensor(a!) state, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? "
      "D, "
      "Tensor? z, Tensor? dt_bias, bool dt_softplus, Tensor? state_batch_indices) -> Tensor out");
}

STABLE_TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CompositeExplicitAutograd, ops) {
  ops.impl("cpu_isa", TORCH_BOX(&padfree::cpu_isa));
  ops.impl("cpu_amx", TORCH_BOX(&padfree::cpu_amx));
  ops.impl("cpu_bfloat16_dot", TORCH_BOX(&padfree::cpu_bfloat16_dot));
}

#if defined(CPU_KERNEL)
STABLE_TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CPU, ops) {
  ops.impl("attention_fwd", TORCH_BOX(&padfree::attention_fwd));
  ops.impl("attention_bwd", TORCH_BOX(&padfree::attention_bwd));
  ops.impl("causal_conv1d_fwd", TORCH_BOX(&padfree::causal_conv1d_fwd));
  ops.impl("causal_conv1d_fwd_out", TORCH_BOX(&padfree::causal_conv1d_fwd_out));
  ops.impl("causal_conv1d_bwd", TORCH_BOX(&padfree::causal_conv1d_bwd));
  ops.impl("causal_conv1d_update", TORCH_BOX(&padfree::causal_conv1d_update));
  ops.impl("gated_delta_rule_fwd", TORCH_BOX(&padfree::gated_delta_rule_fwd));
  ops.impl("gated_delta_rule_bwd", TORCH_BOX(&padfree::gated_delta_rule_bwd));
  ops.impl("gated_delta_rule_recurrent", TORCH_BOX(&padfree::gated_delta_rule_recurrent));
  ops.impl("gated_delta_rule_update", TORCH_BOX(&padfree::gated_delta_rule_update));
  ops.impl("state_space_fwd", TORCH_BOX(&padfree::state_space_fwd));
  ops.impl("state_space_bwd", TORCH_BOX(&padfree::state_space_bwd));
  ops.impl("selective_scan_fwd", TORCH_BOX(&padfree::selective_scan_fwd));
  ops.impl("selective_scan_bwd", TORCH_BOX(&padfree::selective_scan_bwd));
  ops.impl("selective_state_update", TORCH_BOX(&padfree::update_selective_state));
}
#endif

#if defined(CUDA_KERNEL)
#if defined(PADFREE_EMULATED)
#define PADFREE_CUDA_KEY CPU  // tools/cuda_host: the kernels compute on tensors of the CPU
#else
#define PADFREE_CUDA_KEY CUDA
#endif
STABLE_TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, PADFREE_CUDA_KEY, ops) {
  ops.impl("attention_fwd", TORCH_BOX(&padfree::attention_fwd));
  ops.impl("causal_conv1d_fwd", TORCH_BOX(&padfree::causal_conv1d_fwd));
  ops.impl("causal_conv1d_fwd_out", TORCH_BOX(&padfree::causal_conv1d_fwd_out));
  ops.impl("causal_conv1d_bwd", TORCH_BOX(&padfree::causal_conv1d_bwd));
  ops.impl("causal_conv1d_update", TORCH_BOX(&padfree::causal_conv1d_update));
}
#endif

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
