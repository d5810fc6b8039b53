// Who touched which byte of a piece of memory, and whether the touches were ordered: finds races and reads of
// shared memory that nothing wrote.
//
// Time is kept per thread and moves on at each synchronisation (Lamport's vector clocks). What a barrier
// tells its participants of each other is one array that they share, so a barrier costs one array and not one
// per thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace cuda_host {

constexpr int kWarpSize = 32;

struct Clock {
  // known[i]: the last time of thread i whose accesses this thread may rely on.
  std::shared_ptr<const std::vector<uint32_t>> known;
  uint32_t time = 1;
};

// The thread that accesses: its block in the launch (from 1), its index in the block, its clock.
struct Accessor {
  uint32_t block;
  int thread;
  const Clock* clock;
};

enum class Access : uint8_t { kRead, kWrite, kAtomic };

class Shadow {
 public:
  // `written`: whether the bytes hold something from the start.
  Shadow(size_t bytes, bool written);

  // Each notes an access to [offset, offset + bytes); an empty string, or what is wrong with it.
  std::string access(Access kind, const Accessor& by, size_t offset, size_t bytes);
  // An asynchronous copy into these bytes is under way until land(); in between nothing may touch them.
  std::string begin_copy(const Accessor& by, size_t offset, size_t bytes);
  void land(const Accessor& by, size_t offset, size_t bytes);

 private:
  // Two bytes each: no kernel here keeps single bytes.
  static constexpr size_t kGranule = 2;
  static constexpr uint32_t kNone = ~0u;
  struct Cell {
    uint32_t block = 0;  // of the last writer; 0: the host, or nobody
    uint32_t time = 0;
    uint16_t thread = 0;
    bool written = false, atomic = false, pending = false;
    uint32_t readers = kNone;  // since the last write
  };
  // Lanes of one warp that read at the same time of theirs.
  struct Readers {
    uint32_t block, time, lanes, next;
    uint16_t warp;
  };

  static bool ordered(const Accessor& by, uint32_t block, int thread, uint32_t time);
  std::string conflict(Access kind, const Accessor& by, const Cell& cell) const;
  std::string unread(const Accessor& by, const Cell& cell) const;
  void note_read(const Accessor& by, Cell& cell);
  void note_write(const Accessor& by, Cell& cell, bool atomic);

  std::vector<Cell> cells_;
  std::vector<Readers> readers_;
};

}  // namespace cuda_host
