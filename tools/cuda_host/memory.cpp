#include "memory.h"

#include <algorithm>

namespace cuda_host {

Memory& global_memory() {
  static Memory memory;
  return memory;
}

void Memory::allow(const std::string& name, const void* data, size_t bytes, Use use) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  if (bytes != 0) ranges_.push_back({name, begin, begin + bytes, use, nullptr});
}

void Memory::forget_accesses() {
  for (Range& range : ranges_) range.shadow = nullptr;
}

std::string Memory::access(Access kind, const Accessor& by, uintptr_t address, size_t bytes) {
  const Range* readable = nullptr;
  for (Range& range : ranges_) {
    if (address < range.begin || address + bytes > range.end) continue;
    if (range.use == Use::kRead) {
      readable = &range;
      continue;
    }
    if (range.shadow == nullptr) range.shadow = std::make_unique<Shadow>(range.end - range.begin, true);
    const std::string wrong = range.shadow->access(kind, by, address - range.begin, bytes);
    return wrong.empty() ? wrong
                         : range.name + "[byte " + std::to_string(address - range.begin) + "]: " + wrong;
  }
  if (readable == nullptr) return nearest(address);
  return kind == Access::kRead ? std::string() : readable->name + " may only be read";
}

std::string Memory::nearest(uintptr_t address) const {
  const auto distance = [address](const Range& range) {
    return address < range.begin ? range.begin - address : address - std::min(address, range.end - 1);
  };
  const auto closest = std::min_element(ranges_.begin(), ranges_.end(), [&](const Range& a, const Range& b) {
    return distance(a) < distance(b);
  });
  if (closest == ranges_.end()) return "no memory has been handed to the kernel";
  const auto offset = static_cast<intptr_t>(address - closest->begin);
  return "out of bounds: nearest is byte " + std::to_string(offset) + " of " + closest->name +
         ", which has " + std::to_string(closest->end - closest->begin);
}

}  // namespace cuda_host
