// Small single-precision matrix products on operands that fit a cache: C op= A B, where B is packed in
// panels.
//
// The microkernel keeps a kGemmRows x kPanel tile of C in registers (12 accumulators on AVX2: enough to hide
// the latency of two fused multiply-adds a cycle) and reads one panel row of B and kGemmRows scalars of A a
// step. It stays out of line: gcc 12 inlining it into a caller spills accumulators and halves the speed.
//
// Every element of C is summed in rising order of depth whatever the tile shape, so a row's bits do not
// depend on which rows it is computed with.
//
// The operands are 32-bit lanes: float32, or whatever else the Dot of a product takes them for
// (vec_avx512bf16.h: pairs of bfloat16).
//
// Include a vec_<isa>.h first. Everything is in an unnamed namespace (see the ISA rule).
#pragma once

namespace padfree {
namespace {

constexpr int kPanel = 2 * Vec::kLanes;                // columns of a packed panel of B
constexpr int kGemmRows = Vec::kLanes >= 16 ? 12 : 6;  // rows of a register tile

constexpr int round_up(int n, int multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

enum class Update {
  kOverwrite,  // C = A B
  kAdd,        // C = C + A B
  kScaleAdd,   // C = scale[row] * C + A B
  kScaled,     // C = scale[0] * A B
};

// How A lies in memory: row i, depth k at
//   kRows        a[i * ld + k]
//   kTransposed  a[k * ld + i]
//   kPanels      a[k / kPanel * ld + i * kPanel + k % kPanel]: what pack_panels writes, ld apart
enum class Layout { kRows, kTransposed, kPanels };

// What a lane of A and one of B add to a sum.
struct DotFloat32 {
  static Vec add(Vec a, Vec b, Vec sum) { return fma(a, b, sum); }
};

template <int kRows, Update kUpdate, Layout kLayout, typename Dot>
[[gnu::noinline]] void micro_kernel(int depth, const float* __restrict a, int lda, const float* __restrict b,
                                    float* __restrict c, int ldc, const float* __restrict scale) {
  Vec acc[kRows][2];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
    if constexpr (kUpdate == Update::kOverwrite || kUpdate == Update::kScaled) {
      acc[i][0] = acc[i][1] = zero();
    } else {
      acc[i][0] = load(c + i * ldc);
      acc[i][1] = load(c + i * ldc + Vec::kLanes);
    }
    if constexpr (kUpdate == Update::kScaleAdd) {
      const Vec factor = splat(scale[i]);
      acc[i][0] = acc[i][0] * factor;
      acc[i][1] = acc[i][1] * factor;
    }
  }
  const int row_step = kLayout == Layout::kRows ? lda : kLayout == Layout::kPanels ? kPanel : 1;
  const int depth_step = kLayout == Layout::kTransposed ? lda : 1;
  const int run = kLayout == Layout::kPanels ? kPanel : depth;  // depths before A jumps to its next panel
  for (int left = depth; left > 0; left -= run) {
    const int steps = left < run ? left : run;
#pragma GCC unroll 4
    for (int k = 0; k < steps; ++k) {
      const Vec b0 = load(b), b1 = load(b + Vec::kLanes);
      b += kPanel;
#pragma GCC unroll 12
      for (int i = 0; i < kRows; ++i) {
        const Vec x = splat(a[i * row_step]);
        acc[i][0] = Dot::add(x, b0, acc[i][0]);
        acc[i][1] = Dot::add(x, b1, acc[i][1]);
      }
      a += depth_step;
    }
    if constexpr (kLayout == Layout::kPanels) a += lda - kPanel;
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
    if constexpr (kUpdate == Update::kScaled) {
      const Vec factor = splat(*scale);
      acc[i][0] = acc[i][0] * factor;
      acc[i][1] = acc[i][1] * factor;
    }
    store(c + i * ldc, acc[i][0]);
    store(c + i * ldc + Vec::kLanes, acc[i][1]);
  }
}

using MicroKernel = void (*)(int, const float*, int, const float*, float*, int, const float*);

template <Update kUpdate, Layout kLayout, typename Dot, int... kRows>
MicroKernel micro_kernel_for(int rows, std::integer_sequence<int, kRows...>) {
  static constexpr MicroKernel kTable[] = {micro_kernel<kRows + 1, kUpdate, kLayout, Dot>...};
  return kTable[rows - 1];
}

// C (rows x kPanel) op= A (rows x depth) B (depth x kPanel), 1 <= rows <= kGemmRows.
template <Update kUpdate, Layout kLayout, typename Dot = DotFloat32>
inline void gemm_tile(int rows, int depth, const float* a, int lda, const float* b, float* c, int ldc,
                      const float* scale = nullptr) {
  const auto all = std::make_integer_sequence<int, kGemmRows>{};
  micro_kernel_for<kUpdate, kLayout, Dot>(rows, all)(depth, a, lda, b, c, ldc, scale);
}

// The same product with every term whose A is exactly zero left out: for B that may hold NaN or infinity in
// depths that A excludes by a zero (0 * NaN is NaN). Same order of additions, hence the same bits where
// nothing is left out. Slow; used only when packing met a value that is not finite.
template <Update kUpdate, Layout kLayout>
[[gnu::noinline]] void gemm_tile_skipping_zeros(int rows, int depth, const float* a, int lda, const float* b,
                                                float* c, int ldc, const float* scale = nullptr) {
  for (int i = 0; i < rows; ++i) {
    Vec low = zero(), high = zero();
    if constexpr (kUpdate != Update::kOverwrite) {
      low = load(c + i * ldc);
      high = load(c + i * ldc + Vec::kLanes);
    }
    if constexpr (kUpdate == Update::kScaleAdd) {
      low = low * splat(scale[i]);
      high = high * splat(scale[i]);
    }
    for (int k = 0; k < depth; ++k) {
      const float x = kLayout == Layout::kRows ? a[i * lda + k] : a[k * lda + i];
      if (x == 0.0f) continue;
      low = fma(splat(x), load(b + k * kPanel), low);
      high = fma(splat(x), load(b + k * kPanel + Vec::kLanes), high);
    }
    store(c + i * ldc, low);
    store(c + i * ldc + Vec::kLanes, high);
  }
}

}  // namespace
}  // namespace padfree
