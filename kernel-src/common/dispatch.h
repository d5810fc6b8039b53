// Run-time values become compile-time ones here, and nowhere else.
//
// Everything is in an unnamed namespace: per-ISA translation units include this header and must not define
// weak symbols.
#pragma once

#include <type_traits>
#include <utility>

#include "types.h"

namespace padfree {
namespace {

// Calls f(std::true_type) or f(std::false_type).
template <typename F>
inline decltype(auto) with_bool(bool value, F&& f) {
  return value ? f(std::true_type{}) : f(std::false_type{});
}

// Calls f(std::integral_constant<int, V>) for the V in Values that equals `value`; false when there is none.
template <int... Values, typename F>
inline bool with_one_of(int value, F&& f) {
  return ((value == Values && (f(std::integral_constant<int, Values>{}), true)) || ...);
}

template <typename T>
struct TypeTag {
  using type = T;
};

// Calls f(TypeTag<T>) with the storage type that `dtype` names.
template <typename F>
inline void with_dtype(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(TypeTag<float>{});
    case DType::kBFloat16:
      return f(TypeTag<BFloat16>{});
    case DType::kFloat16:
      return f(TypeTag<Float16>{});
  }
  __builtin_unreachable();  // host.cpp refuses every other dtype by name before a kernel is reached
}

}  // namespace
}  // namespace padfree
