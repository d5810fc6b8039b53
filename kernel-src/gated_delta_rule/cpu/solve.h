// Triangular systems with a unit diagonal, by substitution: row by row as exact arithmetic would, so that
// equal keys with beta near 1 lose nothing to an explicit inverse.
//
// A tile of rows first takes everything from the rows solved before it (a product), then is solved within
// registers.
#pragma once

namespace padfree::gated_delta_rule {
namespace {

// Solves a tile of kRows rows: x_i += sum over j < i of a[i][j] x_j; or, transposed, j > i of a[j][i] x_j.
template <int kRows, Layout kLayout>
[[gnu::noinline]] void substitute(const float* a, int lda, float* x) {
  Vec rows[kRows][2];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
    rows[i][0] = load(x + i * kPanel);
    rows[i][1] = load(x + i * kPanel + Vec::kLanes);
  }
#pragma GCC unroll 12
  for (int step = 0; step < kRows; ++step) {
    const int j = kLayout == Layout::kRows ? step : kRows - 1 - step;
#pragma GCC unroll 12
    for (int other = step + 1; other < kRows; ++other) {
      const int i = kLayout == Layout::kRows ? other : kRows - 1 - other;
      const Vec factor = splat(kLayout == Layout::kRows ? a[i * lda + j] : a[j * lda + i]);
      rows[i][0] = fma(factor, rows[j][0], rows[i][0]);
      rows[i][1] = fma(factor, rows[j][1], rows[i][1]);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
    store(x + i * kPanel, rows[i][0]);
    store(x + i * kPanel + Vec::kLanes, rows[i][1]);
  }
}

template <Layout kLayout, int... kRows>
inline void substitute_rows(int rows, const float* a, int lda, float* x,
                            std::integer_sequence<int, kRows...>) {
  static constexpr void (*kTable[])(const float*, int, float*) = {substitute<kRows + 1, kLayout>...};
  kTable[rows - 1](a, lda, x);
}

// X := (1 - A)^-1 X, A strictly lower triangular, n x n.
inline void solve_lower(int n, int panels, const float* a, int lda, Panels x) {
  for (int p = 0; p < panels; ++p) {
    float* panel = x.data + p * x.step;
    for (int i = 0, m; i < n; i += m) {
      m = tile_rows(n - i);
      if (i > 0) {
        gemm_tile<Update::kAdd, Layout::kRows>(m, i, a + i * lda, lda, panel, panel + i * kPanel, kPanel);
      }
      substitute_rows<Layout::kRows>(m, a + i * lda + i, lda, panel + i * kPanel,
                                     std::make_integer_sequence<int, kGemmRows>{});
    }
  }
}

// X := (1 - A^T)^-1 X, the same A.
inline void solve_lower_transposed(int n, int panels, const float* a, int lda, Panels x) {
  for (int p = 0; p < panels; ++p) {
    float* panel = x.data + p * x.step;
    for (int end = n, m; end > 0; end -= m) {
      m = tile_rows(end);
      const int i = end - m;
      if (end < n) {
        gemm_tile<Update::kAdd, Layout::kTransposed>(m, n - end, a + end * lda + i, lda, panel + end * kPanel,
                                                     panel + i * kPanel, kPanel);
      }
      substitute_rows<Layout::kTransposed>(m, a + i * lda + i, lda, panel + i * kPanel,
                                           std::make_integer_sequence<int, kGemmRows>{});
    }
  }
}

}  // namespace
}  // namespace padfree::gated_delta_rule
