#include "shadow.h"

namespace cuda_host {
namespace {

std::string thread_name(const Accessor& by, uint32_t block, int thread) {
  const std::string name = "thread " + std::to_string(thread);
  return block == by.block ? name : name + " of block " + std::to_string(block - 1);
}

}  // namespace

Shadow::Shadow(size_t bytes, bool written) : cells_((bytes + kGranule - 1) / kGranule) {
  if (!written) return;
  for (Cell& cell : cells_) cell.written = true;
}

// Whether `by` may rely on what `thread` did at `time`. Blocks of one launch may rely on nothing of each
// other.
bool Shadow::ordered(const Accessor& by, uint32_t block, int thread, uint32_t time) {
  if (block == 0) return true;
  if (block != by.block) return false;
  return thread == by.thread || (*by.clock->known)[thread] >= time;
}

std::string Shadow::access(Access kind, const Accessor& by, size_t offset, size_t bytes) {
  for (size_t i = offset / kGranule; i * kGranule < offset + bytes; ++i) {
    Cell& cell = cells_[i];
    if (std::string wrong = conflict(kind, by, cell); !wrong.empty()) return wrong;
    if (kind == Access::kRead) {
      note_read(by, cell);
    } else {
      note_write(by, cell, kind == Access::kAtomic);
    }
  }
  return {};
}

std::string Shadow::conflict(Access kind, const Accessor& by, const Cell& cell) const {
  if (cell.pending) {
    return "an asynchronous copy into it by " + thread_name(by, cell.block, cell.thread) +
           " has not been waited for";
  }
  if (!cell.written && kind != Access::kWrite) return "nothing has been written there";
  const bool both_atomic = kind == Access::kAtomic && cell.atomic;
  if (!both_atomic && !ordered(by, cell.block, cell.thread, cell.time)) {
    return "no barrier lies between this and the write by " + thread_name(by, cell.block, cell.thread);
  }
  return kind == Access::kRead ? std::string() : unread(by, cell);
}

// What is wrong with a write where others have read.
std::string Shadow::unread(const Accessor& by, const Cell& cell) const {
  for (uint32_t i = cell.readers; i != kNone; i = readers_[i].next) {
    const Readers& read = readers_[i];
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const int thread = read.warp * kWarpSize + lane;
      if ((read.lanes >> lane & 1) != 0 && !ordered(by, read.block, thread, read.time)) {
        return "no barrier lies between this and the read by " + thread_name(by, read.block, thread);
      }
    }
  }
  return {};
}

void Shadow::note_read(const Accessor& by, Cell& cell) {
  const uint32_t lane = 1u << by.thread % kWarpSize;
  const auto warp = static_cast<uint16_t>(by.thread / kWarpSize);
  for (uint32_t i = cell.readers; i != kNone; i = readers_[i].next) {
    Readers& read = readers_[i];
    if (read.block == by.block && read.warp == warp && read.time == by.clock->time) {
      read.lanes |= lane;
      return;
    }
  }
  readers_.push_back({by.block, by.clock->time, lane, cell.readers, warp});
  cell.readers = static_cast<uint32_t>(readers_.size() - 1);
}

void Shadow::note_write(const Accessor& by, Cell& cell, bool atomic) {
  cell = {.block = by.block,
          .time = by.clock->time,
          .thread = static_cast<uint16_t>(by.thread),
          .written = true,
          .atomic = atomic};
}

std::string Shadow::begin_copy(const Accessor& by, size_t offset, size_t bytes) {
  std::string wrong = access(Access::kWrite, by, offset, bytes);
  if (!wrong.empty()) return wrong;
  for (size_t i = offset / kGranule; i * kGranule < offset + bytes; ++i) cells_[i].pending = true;
  return {};
}

void Shadow::land(const Accessor& by, size_t offset, size_t bytes) {
  for (size_t i = offset / kGranule; i * kGranule < offset + bytes; ++i) note_write(by, cells_[i], false);
}

}  // namespace cuda_host
