// What the values of a 4-D mask mean, and what is known of whole cells of it: shared by the host's scan
// (mask_cells.cpp) and the kernels.
//
// Unnamed namespace, because per-ISA files include it.
#pragma once

#include "attention/params.h"
#include "common/dispatch.h"

namespace padfree::attention {
namespace {

constexpr float kHidden = -__builtin_inff();

// Eight bytes of a mask that hide all of their keys, and that leave all of their scores alone.
struct Words {
  uint64_t hidden, neutral;
};
inline Words words_of(const uint8_t*) {
  return {0, 0x0101010101010101u};
}
inline Words words_of(const float*) {
  return {0xff800000ff800000u, 0};
}
inline Words words_of(const BFloat16*) {
  return {0xff80ff80ff80ff80u, 0};
}
inline Words words_of(const Float16*) {
  return {0xfc00fc00fc00fc00u, 0};
}

// Whether a value of a mask hides its key.
template <typename T>
inline bool hides(T value) {
  const uint64_t hidden = words_of(&value).hidden;
  return __builtin_memcmp(&value, &hidden, sizeof value) == 0;
}

// Calls f with a typed pointer to the mask of one query position and head at key `key`.
template <typename F>
inline void with_mask_at(const MaskView& m, int64_t batch, int64_t head, int64_t position, int64_t key,
                         F&& f) {
  const int64_t offset =
      batch * m.batch_stride + head * m.head_stride + position * m.row_stride + key * m.key_stride;
  if (m.kind == MaskKind::kBool) return f(static_cast<const uint8_t*>(m.data) + offset);
  with_dtype(m.dtype,
             [&](auto tag) { f(static_cast<const typename decltype(tag)::type*>(m.data) + offset); });
}

// What the mask does to some query positions of some heads at some keys: kShows and kChanges, added.
inline int mask_effect(const MaskCells& cells, int64_t batch, int64_t head_begin, int64_t head_end,
                       int64_t position_begin, int64_t position_end, int64_t key_begin, int64_t key_end) {
  if (cells.data == nullptr) return kShows | kChanges;
  int effect = 0;
  for (int64_t head = head_begin; head < head_end; ++head) {
    for (int64_t row = position_begin / kCellRows; row * kCellRows < position_end; ++row) {
      const uint8_t* cell =
          cells.data + batch * cells.batch_stride + head * cells.head_stride + row * cells.row_stride;
      for (int64_t key = key_begin / kCellKeys; key * kCellKeys < key_end; ++key) effect |= cell[key];
    }
    if (cells.head_stride == 0) break;
  }
  return effect;
}

}  // namespace
}  // namespace padfree::attention
