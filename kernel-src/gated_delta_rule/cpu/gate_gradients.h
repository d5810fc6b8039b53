// What backward.h hands to a gate, and the gate turns into gradients of q, k, g and beta.
#pragma once

#include "gated_delta_rule/cpu/gate.h"

namespace padfree::gated_delta_rule {
namespace {

// All without the factors in, out and beta.
struct GateGradients {
  float *q_in, *k_in, *k_out;    // rows of ld: dO S^T, Y S^T, D dS^T; zero where there is no state
  float *a, *p;                  // (kChunk, kChunk), lower triangle: Y D^T, dO D^T
  float* beta;                   // n: Y . X so far
  float* decay;                  // head_dim: rowwise dS . S
  float *from_state, *to_state;  // kChunk, scratch
  float* crossing;               // kChunk, scratch
};

inline GateGradients gate_gradients_space(const Params& p, Arena& arena) {
  const int ld = round_up(p.head_dim, kPanel);
  GateGradients g;
  for (float** rows : {&g.q_in, &g.k_in, &g.k_out}) *rows = arena.take(kChunk * ld);
  for (float** square : {&g.a, &g.p}) *square = arena.take(kChunk * kChunk);
  for (float** line : {&g.beta, &g.from_state, &g.to_state, &g.crossing}) *line = arena.take(kChunk);
  g.decay = arena.take(ld);
  return g;
}

}  // namespace
}  // namespace padfree::gated_delta_rule
