// One block of CUDA threads as fibers: who waits where, what a barrier tells whom, and which copies are under
// way.
//
// Blocks run one after another. Inside a block exactly one thread runs at a time, until it waits for others;
// which one comes next is the schedule's choice, and any choice is one that a GPU may make.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <random>
#include <source_location>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "fiber.h"
#include "shadow.h"

namespace cuda_host {

using Site = std::source_location;

constexpr int kMaxThreads = 1024;
constexpr int kNamedBarriers = 16;

// What a kernel did wrong; the text names kernel, block, thread, and what happened.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Index {
  unsigned x, y, z;
};

struct Launch {
  const char* kernel;
  Index grid, block;
  size_t shared_bytes;
  void (*body)(const void*);  // one thread of the kernel
  const void* params;
  size_t params_bytes;
};

// The order in which threads come to run. 0: ascending; 1: descending; others are shuffled, and odd ones let
// a warp run as far as it can before the others.
struct Schedule {
  explicit Schedule(uint64_t seed) : seed(seed), random(seed) {}
  uint64_t seed;
  std::mt19937_64 random;
};

// An operation that the lanes of a warp carry out together. Each lane brings a pointer to its operands; the
// lane that comes last does the work for all. Two lanes take part in the same one if `run` is the same.
struct WarpOperation {
  void (*run)(std::span<void* const, kWarpSize> operands, uint32_t mask);
  const char* name;
};

class Block {
 public:
  Block(const Launch& launch, Index index, uint32_t number, Schedule& schedule);
  ~Block();

  // Runs every thread to its end; throws Fault.
  void run();

  // ---- what a running thread may ask for ----
  Index thread_index() const;
  Index index() const { return index_; }
  const Launch& launch() const { return launch_; }
  std::byte* shared_memory() const { return shared_; }

  // Waits until `count` threads have come to barrier `id`; a thread that only arrives goes on at once.
  void barrier(int id, int count, bool wait, const Site& site);
  void warp(const WarpOperation& operation, uint32_t mask, void* operands, const Site& site);

  void access(Access kind, uintptr_t address, size_t bytes);
  // Copies from global to shared memory at the wait, zeros past `valid` bytes.
  void copy_async(uintptr_t to, uintptr_t from, size_t bytes, size_t valid);
  void copy_commit();
  void copy_wait(size_t groups_under_way);

  [[noreturn]] void fault(const std::string& what);

 private:
  enum class State : uint8_t { kReady, kBarrier, kWarp, kDone };
  struct Copy {
    uintptr_t to, from;
    size_t bytes, valid;
  };
  struct Thread {
    State state = State::kReady;
    Clock clock;
    const Site* site = nullptr;  // where it waits
    uint32_t mask = 0;
    std::vector<std::vector<Copy>> copies = {};  // committed groups, the oldest first
    std::vector<Copy> uncommitted = {};
  };
  // What a thread that has come to a barrier tells the others: its clock then.
  struct Arrival {
    int thread;
    Clock clock;
  };
  struct Barrier {
    int count = 0;
    std::vector<Arrival> arrived = {};
    std::vector<int> waiting = {};
    Site site = {};
  };
  struct Warp {
    const WarpOperation* operation = nullptr;
    Site site = {};
    uint32_t mask = 0, arrived = 0;
    std::array<void*, kWarpSize> operands = {};
    std::vector<Arrival> arrivals = {};
  };

  bool run_warp(int warp);
  void resume(int thread);
  void wait(State state, const Site& site);
  Arrival arrive();
  void wake(std::span<const int> threads, std::span<const Arrival> after);
  void land(std::vector<Copy>& copies);
  [[noreturn]] void stuck();
  std::string place() const;
  Accessor accessor() const;

  const Launch& launch_;
  Index index_;
  uint32_t number_;
  Schedule& schedule_;
  int count_;
  int running_ = -1;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::array<Barrier, kNamedBarriers> barriers_;
  std::byte* shared_;
  std::unique_ptr<Shadow> shadow_;
  std::string wrong_;
};

// The block whose thread runs, null on the host.
Block* running_block();
// The same; a fault of the host's if there is none.
Block& this_block();

// Runs all blocks of a launch in turn. PADFREE_EMULATOR_SEED chooses the schedule.
void run(const Launch& launch);

}  // namespace cuda_host
