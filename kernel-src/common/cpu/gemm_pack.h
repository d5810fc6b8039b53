// Packing for gemm.h: rows of a tensor, in any storage type, become float32 operands. Conversion costs
// nothing extra here, so 16-bit inputs run at the speed of float32 ones.
//
// Rows arrive as an array of pointers: strided heads, packed sequences and cache pages look alike from here
// on. Include a vec_<isa>.h, dispatch.h and gemm.h first.
#pragma once

namespace padfree {
namespace {

template <typename T>
inline Vec load_upto(const T* p, int n) {
  return n >= Vec::kLanes ? load(p) : load_partial(p, n);
}

template <typename T>
inline void store_upto(T* p, Vec a, int n) {
  if (n >= Vec::kLanes) return store(p, a);
  store_partial(p, a, n);
}

// Asks for a row that is read later: strided rows are too short for the hardware to run ahead.
inline void prefetch_row(const void* row, int bytes) {
  for (int b = 0; b < bytes; b += 64) __builtin_prefetch(static_cast<const char*>(row) + b);
}

constexpr int kRowsAhead = 8;  // how far ahead of its use a row is asked for

// out[i * ld + d] = rows[i][d] * scale for d < dim.
template <typename T>
[[gnu::noinline]] void convert_rows_of(const void* const* rows, int n, int dim, float scale, float* out,
                                       int ld) {
  const Vec factor = splat(scale);
  for (int i = 0; i < n; ++i) {
    const T* row = static_cast<const T*>(rows[i]);
    if (i + kRowsAhead < n) prefetch_row(rows[i + kRowsAhead], dim * static_cast<int>(sizeof(T)));
    for (int d = 0; d < dim; d += Vec::kLanes) {
      store_upto(out + static_cast<int64_t>(i) * ld + d, load_upto(row + d, dim - d) * factor, dim - d);
    }
  }
}

// B with one row of the tensor per depth: out[(d / kPanel)][r][d % kPanel] = rows[r][d] * scale, r < depth.
// Rows from n on and columns from dim on are zero. False if a value is not finite.
template <typename T>
[[gnu::noinline]] bool pack_panels_of(const void* const* rows, int n, int depth, int dim, float scale,
                                      float* out) {
  Vec poison = zero();  // becomes NaN with the first value that is not finite
  const Vec factor = splat(scale);
  for (int d = 0; d < dim; d += kPanel, out += static_cast<int64_t>(depth) * kPanel) {
    for (int r = 0; r < n; ++r) {
      const T* row = static_cast<const T*>(rows[r]) + d;
      if (r + kRowsAhead < n) __builtin_prefetch(static_cast<const T*>(rows[r + kRowsAhead]) + d);
      for (int half = 0; half < kPanel; half += Vec::kLanes) {
        const Vec x = d + half < dim ? load_upto(row + half, dim - d - half) * factor : zero();
        poison = fma(x, zero(), poison);
        store(out + r * kPanel + half, x);
      }
    }
    for (int r = n * kPanel; r < depth * kPanel; r += Vec::kLanes) store(out + r, zero());
  }
  return sum(poison) == 0.0f;
}

// B with one row of the tensor per column: out[(r / kPanel)][d][r % kPanel] = rows[r][d], d < dim. Rows from
// n up to the next multiple of kPanel are zero.
template <typename T>
[[gnu::noinline]] void pack_transposed_of(const void* const* rows, int n, int dim, float* out) {
  constexpr int kLanes = Vec::kLanes;
  for (int r = 0; r < n; r += kPanel, out += static_cast<int64_t>(dim) * kPanel) {
    for (int half = 0; half < kPanel; half += kLanes) {
      for (int row = r + half + kLanes; row < r + half + 2 * kLanes && row < n; ++row)
        prefetch_row(rows[row], dim * static_cast<int>(sizeof(T)));
      for (int d = 0; d < dim; d += kLanes) {
        Vec block[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          const int row = r + half + i;
          block[i] = row < n ? load_upto(static_cast<const T*>(rows[row]) + d, dim - d) : zero();
        }
        transpose_lanes(block);
        for (int i = 0; i < kLanes && d + i < dim; ++i) store(out + (d + i) * kPanel + half, block[i]);
      }
    }
  }
}

// rows[i][d] = in[i * ld + d] * scale[i * scale_step] for d < dim, rounded to the storage type.
template <typename T>
[[gnu::noinline]] void store_rows_of(void* const* rows, int n, int dim, const float* in, int ld,
                                     const float* scale, int scale_step) {
  for (int i = 0; i < n; ++i) {
    T* row = static_cast<T*>(rows[i]);
    if (i + kRowsAhead < n) prefetch_row(rows[i + kRowsAhead], dim * static_cast<int>(sizeof(T)));
    const Vec factor = splat(scale[i * scale_step]);
    for (int d = 0; d < dim; d += Vec::kLanes) {
      store_upto(row + d, load(in + static_cast<int64_t>(i) * ld + d) * factor, dim - d);
    }
  }
}

inline void convert_rows(DType dtype, const void* const* rows, int n, int dim, float scale, float* out,
                         int ld) {
  with_dtype(dtype,
             [&](auto tag) { convert_rows_of<typename decltype(tag)::type>(rows, n, dim, scale, out, ld); });
}

inline bool pack_panels(DType dtype, const void* const* rows, int n, int depth, int dim, float scale,
                        float* out) {
  bool finite = true;
  with_dtype(dtype, [&](auto tag) {
    finite = pack_panels_of<typename decltype(tag)::type>(rows, n, depth, dim, scale, out);
  });
  return finite;
}

inline void pack_transposed(DType dtype, const void* const* rows, int n, int dim, float* out) {
  with_dtype(dtype, [&](auto tag) { pack_transposed_of<typename decltype(tag)::type>(rows, n, dim, out); });
}

inline void store_rows(DType dtype, void* const* rows, int n, int dim, const float* in, int ld,
                       const float* scale, int scale_step) {
  with_dtype(dtype, [&](auto tag) {
    store_rows_of<typename decltype(tag)::type>(rows, n, dim, in, ld, scale, scale_step);
  });
}

}  // namespace
}  // namespace padfree
