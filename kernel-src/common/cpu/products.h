// Matrix products of a chunk, out of gemm.h's tiles. Two layouts occur:
//
//   rows     element (i, d) at [i * ld + d]: the left operand, read by rows or, transposed, by columns
//   panels   element (i, d) at [(d / kPanel) * step + i * kPanel + d % kPanel]: the right operand, and
//            results that become one; also a left operand (Layout::kPanels, lda is the step)
//
// A result goes to either: ldc and step say which. Triangular operands are full squares of which only the
// tiles that touch the lower triangle are read or written; what a tile holds above the diagonal must be zero.
//
// Include a vec_<isa>.h, dispatch.h and gemm.h first.
#pragma once

#include <cstdint>

namespace padfree {
namespace {

inline int ceil_div(int64_t a, int64_t b) {
  return static_cast<int>((a + b - 1) / b);
}

inline int min_int(int64_t a, int64_t b) {
  return static_cast<int>(a < b ? a : b);
}

struct Panels {
  float* data;
  int step;  // floats from one panel to the next
};

struct Result {
  float* data;
  int ld;    // floats from one row to the next
  int step;  // floats from one panel of columns to the next
};

inline Result rows_result(float* data, int ld) {
  return {data, ld, kPanel};
}
inline Result panels_result(Panels p) {
  return {p.data, kPanel, p.step};
}

// Rows of the next tile when `left` remain: two even tiles at the end rather than a full and a thin one.
inline int tile_rows(int left) {
  if (left <= kGemmRows) return left;
  return left < 2 * kGemmRows ? (left + 1) / 2 : kGemmRows;
}

enum class Shape {
  kFull,      // A is rows x depth
  kLower,     // A is lower triangular: row i reads depths 0..i
  kUpper,     // A is the transpose of one: row i reads depths i..depth
  kLowerOut,  // C is square and only its lower triangle is wanted
};

struct Nothing {
  void operator()() const {}
};

// C op= A B for `panels` panels of columns; `scale` has an element per row (kScaleAdd). `between` is called
// before each tile: for memory that is to be asked for while the core computes.
template <Update kUpdate, Layout kLayout, Shape kShape = Shape::kFull, typename Between = Nothing>
inline void product(int rows, int panels, int depth, const float* a, int lda, Panels b, Result c,
                    const float* scale = nullptr, Between&& between = Between{}) {
  static_assert(kLayout != Layout::kPanels || kShape != Shape::kUpper, "a panel of A starts at its depth 0");
  const int row_step = kLayout == Layout::kRows ? lda : kLayout == Layout::kPanels ? kPanel : 1;
  const int depth_step = kLayout == Layout::kRows ? 1 : lda;
  for (int p = 0; p < panels; ++p) {
    for (int i = 0, m; i < rows; i += m) {
      m = tile_rows(rows - i);
      if (kShape == Shape::kLowerOut && i + m <= p * kPanel) continue;
      between();
      const int begin = kShape == Shape::kUpper ? i : 0;
      const int end = kShape == Shape::kLower ? i + m : depth;
      gemm_tile<kUpdate, kLayout>(m, end - begin, a + i * row_step + begin * depth_step, lda,
                                  b.data + p * b.step + begin * kPanel, c.data + p * c.step + i * c.ld, c.ld,
                                  scale == nullptr ? nullptr : scale + i);
    }
  }
}

// to(i, d) = from(i, d) for i < n, from either layout to either.
inline void copy(Result from, int n, int panels, Result to) {
  for (int p = 0; p < panels; ++p) {
    for (int i = 0; i < n; ++i) {
      const float* in = from.data + p * from.step + i * from.ld;
      float* out = to.data + p * to.step + i * to.ld;
      store(out, load(in));
      store(out + Vec::kLanes, load(in + Vec::kLanes));
    }
  }
}

// Panels of the transpose of `from` (n rows, `panels` panels of columns). Columns from n on are zero.
[[gnu::noinline]] inline void transpose(Result from, int n, int panels, Panels to) {
  constexpr int kLanes = Vec::kLanes;
  for (int r = 0; r < round_up(n, kPanel); r += kLanes) {
    float* out = to.data + r / kPanel * to.step + r % kPanel;
    for (int d = 0; d < panels * kPanel; d += kLanes) {
      const float* in = from.data + d / kPanel * from.step + d % kPanel;
      Vec block[kLanes];
      for (int i = 0; i < kLanes; ++i) block[i] = r + i < n ? load(in + (r + i) * from.ld) : zero();
      transpose_lanes(block);
      for (int i = 0; i < kLanes; ++i) store(out + (d + i) * kPanel, block[i]);
    }
  }
}

// to(i, d) = scale[i] * from(i, d) for i < n, in panels; from and to may be one.
inline void scale_rows(Panels from, const float* scale, int n, int panels, Panels to) {
  for (int p = 0; p < panels; ++p) {
    for (int i = 0; i < n; ++i) {
      const float* in = from.data + p * from.step + i * kPanel;
      float* out = to.data + p * to.step + i * kPanel;
      const Vec factor = splat(scale[i]);
      store(out, factor * load(in));
      store(out + Vec::kLanes, factor * load(in + Vec::kLanes));
    }
  }
}

}  // namespace
}  // namespace padfree
