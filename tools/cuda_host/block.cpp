#include "block.h"

#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>

#include "memory.h"

namespace cuda_host {
namespace {

// What shared memory holds before anything is written, and what an asynchronous copy leaves until it lands:
// NaN as float, bfloat16 and float16.
constexpr int kPoison = 0xff;
constexpr size_t kSharedBytes = 228 << 10;

// With the address sanitizer in the hooks' place, what plain stores write is not known here, so nothing is
// judged.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kHooked = false;
#else
constexpr bool kHooked = true;
#endif

Block* running = nullptr;

Fiber& fiber(int thread) {
  static std::vector<std::unique_ptr<Fiber>> fibers;
  while (fibers.size() <= static_cast<size_t>(thread)) fibers.push_back(std::make_unique<Fiber>());
  return *fibers[thread];
}

std::byte* shared_arena() {
  alignas(1024) static std::byte arena[kSharedBytes];
  return arena;
}

std::string text(Index i) {
  return "(" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " + std::to_string(i.z) + ")";
}

std::string text(const Site& site) {
  const std::string file = site.file_name();
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(site.line());
}

// Where the program that the kernels are part of keeps what cannot be written: constants, which kernels may
// read.
std::vector<std::pair<uintptr_t, uintptr_t>> find_constants() {
  std::vector<std::pair<uintptr_t, uintptr_t>> found;
  const auto visit = [](dl_phdr_info* object, size_t, void* result) {
    auto& found = *static_cast<std::vector<std::pair<uintptr_t, uintptr_t>>*>(result);
    const auto own = reinterpret_cast<uintptr_t>(&running);
    std::vector<std::pair<uintptr_t, uintptr_t>> segments;
    bool is_own = false;
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const auto& segment = object->dlpi_phdr[i];
      const uintptr_t begin = object->dlpi_addr + segment.p_vaddr, end = begin + segment.p_memsz;
      if (segment.p_type == PT_LOAD && own >= begin && own < end) is_own = true;
      const bool loaded = segment.p_type == PT_LOAD && (segment.p_flags & PF_W) == 0;
      if (loaded || segment.p_type == PT_GNU_RELRO) segments.emplace_back(begin, end);
    }
    if (is_own) found = segments;
    return is_own ? 1 : 0;
  };
  dl_iterate_phdr(visit, &found);
  return found;
}

bool constant(uintptr_t address) {
  static const auto segments = find_constants();
  return std::any_of(segments.begin(), segments.end(), [address](const auto& segment) {
    return address >= segment.first && address < segment.second;
  });
}

bool same(const Site& a, const Site& b) {
  return a.line() == b.line() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

}  // namespace

Block* running_block() {
  return running;
}

Block& this_block() {
  if (running == nullptr) throw Fault("cuda_host: a device function was called outside of a kernel");
  return *running;
}

Block::Block(const Launch& launch, Index index, uint32_t number, Schedule& schedule)
    : launch_(launch),
      index_(index),
      number_(number),
      schedule_(schedule),
      count_(static_cast<int>(launch.block.x * launch.block.y * launch.block.z)),
      threads_(count_),
      warps_((count_ + kWarpSize - 1) / kWarpSize),
      shared_(shared_arena()),
      shadow_(std::make_unique<Shadow>(launch.shared_bytes, false)) {
  const auto nothing = std::make_shared<const std::vector<uint32_t>>(count_);
  for (Thread& thread : threads_) thread.clock.known = nothing;
  std::memset(shared_, kPoison, launch.shared_bytes);
}

Block::~Block() {
  running = nullptr;
}

// ---- the schedule ----

void Block::run() {
  const auto main = [](void* self) {
    Block* block = static_cast<Block*>(self);
    block->launch_.body(block->launch_.params);
    block->threads_[block->running_].state = State::kDone;
  };
  for (int i = 0; i < count_; ++i) fiber(i).start(main, this);
  std::vector<int> order(warps_.size());
  std::iota(order.begin(), order.end(), 0);
  if (schedule_.seed == 1) std::reverse(order.begin(), order.end());
  for (bool progress = true; progress;) {
    if (schedule_.seed > 1) std::shuffle(order.begin(), order.end(), schedule_.random);
    progress = false;
    for (int warp : order) {
      const bool ran = run_warp(warp);
      while (ran && schedule_.seed % 2 == 1 && run_warp(warp)) {
      }
      progress |= ran;
    }
  }
  for (const Thread& thread : threads_) {
    if (thread.state != State::kDone) stuck();
  }
}

// Lets each thread of the warp that can go on do so once; whether there was one.
bool Block::run_warp(int warp) {
  const int first = warp * kWarpSize, lanes = std::min(kWarpSize, count_ - first);
  std::array<int, kWarpSize> order;
  std::iota(order.begin(), order.end(), 0);
  if (schedule_.seed == 1) std::reverse(order.begin(), order.begin() + lanes);
  if (schedule_.seed > 1) std::shuffle(order.begin(), order.begin() + lanes, schedule_.random);
  bool ran = false;
  for (int i = 0; i < lanes; ++i) {
    const int thread = first + order[i];
    if (threads_[thread].state != State::kReady) continue;
    resume(thread);
    ran = true;
  }
  return ran;
}

void Block::resume(int thread) {
  running_ = thread;
  running = this;
  fiber(thread).resume();
  running = nullptr;
  if (wrong_.empty() && !fiber(thread).intact()) wrong_ = place() + "more stack than a fiber has";
  if (!wrong_.empty()) throw Fault(wrong_);
}

void Block::wait(State state, const Site& site) {
  Thread& thread = threads_[running_];
  thread.state = state;
  thread.site = &site;
  fiber(running_).yield();
}

// No thread can go on, and some are not at their end.
void Block::stuck() {
  std::map<std::string, int> groups;
  for (const Thread& thread : threads_) {
    ++groups[thread.state == State::kDone      ? "are at their end"
             : thread.state == State::kBarrier ? "wait at the barrier in " + text(*thread.site)
                                               : "wait for lanes of their warp in " + text(*thread.site)];
  }
  std::string all;
  for (const auto& [what, number] : groups) {
    all += (all.empty() ? "" : ", ") + std::to_string(number) + " threads " + what;
  }
  throw Fault(std::string(launch_.kernel) + " block " + text(index_) + ": divergent barrier: " + all);
}

// ---- waiting for each other ----

// From here on the thread does nothing that those who meet it may rely on.
Block::Arrival Block::arrive() {
  const Arrival now = {running_, threads_[running_].clock};
  ++threads_[running_].clock.time;
  return now;
}

// The threads go on, and may rely on all that was done before the arrivals.
void Block::wake(std::span<const int> threads, std::span<const Arrival> after) {
  auto known = std::make_shared<std::vector<uint32_t>>(count_);
  const std::vector<uint32_t>* last = nullptr;
  for (const Arrival& arrival : after) {
    if (arrival.clock.known.get() == last) continue;
    last = arrival.clock.known.get();
    for (int j = 0; j < count_; ++j) (*known)[j] = std::max((*known)[j], (*last)[j]);
  }
  for (const Arrival& arrival : after) (*known)[arrival.thread] = arrival.clock.time;
  for (int thread : threads) {
    threads_[thread].clock.known = known;
    threads_[thread].state = State::kReady;
  }
}

void Block::barrier(int id, int count, bool wait_for_all, const Site& site) {
  if (id < 0 || id >= kNamedBarriers) fault("barrier " + std::to_string(id) + " does not exist");
  if (count % kWarpSize != 0 && count != count_) {
    fault("a barrier takes whole warps, got " + std::to_string(count) + " threads");
  }
  Barrier& barrier = barriers_[id];
  if (barrier.arrived.empty()) {
    barrier.count = count;
    barrier.site = site;
  } else if (barrier.count != count || (id == 0 && !same(barrier.site, site))) {
    fault("divergent barrier: here " + std::to_string(count) + " threads are to meet in " + text(site) +
          ", and thread " + std::to_string(barrier.arrived[0].thread) + " waits for " +
          std::to_string(barrier.count) + " in " + text(barrier.site));
  }
  barrier.arrived.push_back(arrive());
  if (wait_for_all) barrier.waiting.push_back(running_);
  if (static_cast<int>(barrier.arrived.size()) < count) {
    if (wait_for_all) wait(State::kBarrier, site);
    return;
  }
  const Barrier done = std::move(barrier);
  barrier = {};
  wake(done.waiting, done.arrived);
}

void Block::warp(const WarpOperation& operation, uint32_t mask, void* operands, const Site& site) {
  const int first = running_ / kWarpSize * kWarpSize, lane = running_ % kWarpSize;
  if ((mask >> lane & 1) == 0)
    fault(std::string(operation.name) + ": the mask leaves out the lane that calls");
  if (first + kWarpSize > count_ && mask >> (count_ - first) != 0) {
    fault(std::string(operation.name) + ": the mask names lanes that the block does not have");
  }
  Warp& warp = warps_[running_ / kWarpSize];
  if (warp.arrived == 0) {
    warp.operation = &operation;
    warp.mask = mask;
    warp.site = site;
  } else if (warp.operation->run != operation.run || warp.mask != mask || !same(warp.site, site)) {
    fault("divergent warp: lane " + std::to_string(lane) + " is at " + operation.name + " in " + text(site) +
          ", others at " + warp.operation->name + " in " + text(warp.site));
  }
  warp.arrived |= 1u << lane;
  warp.operands[lane] = operands;
  warp.arrivals.push_back(arrive());
  if (warp.arrived != mask) return wait(State::kWarp, site);
  std::vector<int> lanes;
  for (const Arrival& arrival : warp.arrivals) lanes.push_back(arrival.thread);
  warp.arrived = 0;
  operation.run(warp.operands, mask);
  wake(lanes, warp.arrivals);
  warp.arrivals.clear();
}

// ---- memory ----

Index Block::thread_index() const {
  const unsigned i = running_, x = launch_.block.x, y = launch_.block.y;
  return {i % x, i / x % y, i / x / y};
}

Accessor Block::accessor() const {
  return {number_, running_, &threads_[running_].clock};
}

void Block::access(Access kind, uintptr_t address, size_t bytes) {
  if (!kHooked || fiber(running_).owns(address)) return;
  const auto shared = reinterpret_cast<uintptr_t>(shared_);
  const auto params = reinterpret_cast<uintptr_t>(launch_.params);
  const char* verb = kind == Access::kRead ? "reads " : kind == Access::kWrite ? "writes " : "updates ";
  std::string wrong, where;
  if (address - shared < kSharedBytes) {
    where = " bytes at shared[byte " + std::to_string(address - shared) + "]: ";
    wrong = address - shared + bytes > launch_.shared_bytes
                ? "out of bounds: the block has " + std::to_string(launch_.shared_bytes)
                : shadow_->access(kind, accessor(), address - shared, bytes);
  } else if (kind == Access::kRead && (constant(address) || address - params < launch_.params_bytes)) {
    return;
  } else {
    where = " bytes of global memory: ";
    wrong = global_memory().access(kind, accessor(), address, bytes);
  }
  if (!wrong.empty()) fault(verb + std::to_string(bytes) + where + wrong);
}

void Block::copy_async(uintptr_t to, uintptr_t from, size_t bytes, size_t valid) {
  const auto shared = reinterpret_cast<uintptr_t>(shared_);
  const std::string what = "asynchronous copy of " + std::to_string(bytes) + " bytes: ";
  if ((bytes != 4 && bytes != 8 && bytes != 16) || valid > bytes) fault(what + "4, 8 or 16 wanted");
  if (to % bytes != 0 || from % bytes != 0) fault(what + "an address is not a multiple of them");
  if (to - shared + bytes > launch_.shared_bytes) fault(what + "it does not go to shared memory");
  if (valid != 0) access(Access::kRead, from, valid);
  const std::string wrong = shadow_->begin_copy(accessor(), to - shared, bytes);
  if (!wrong.empty()) fault(what + "to shared[byte " + std::to_string(to - shared) + "]: " + wrong);
  std::memset(reinterpret_cast<void*>(to), kPoison, bytes);
  threads_[running_].uncommitted.push_back({to, from, bytes, valid});
}

void Block::copy_commit() {
  Thread& thread = threads_[running_];
  thread.copies.push_back(std::move(thread.uncommitted));
  thread.uncommitted.clear();
}

void Block::copy_wait(size_t groups_under_way) {
  Thread& thread = threads_[running_];
  while (thread.copies.size() > groups_under_way) {
    land(thread.copies.front());
    thread.copies.erase(thread.copies.begin());
  }
}

void Block::land(std::vector<Copy>& copies) {
  const auto shared = reinterpret_cast<uintptr_t>(shared_);
  for (const Copy& copy : copies) {
    shadow_->land(accessor(), copy.to - shared, copy.bytes);
    if (copy.valid != 0) access(Access::kRead, copy.from, copy.valid);  // as late as the source may be read
    std::memcpy(reinterpret_cast<void*>(copy.to), reinterpret_cast<const void*>(copy.from), copy.valid);
    std::memset(reinterpret_cast<char*>(copy.to) + copy.valid, 0, copy.bytes - copy.valid);
  }
}

std::string Block::place() const {
  return std::string(launch_.kernel) + " block " + text(index_) + " thread " + std::to_string(running_) +
         ": ";
}

void Block::fault(const std::string& what) {
  wrong_ = place() + what;
  fiber(running_).yield();  // never to be resumed: its stack is used anew by the next block
  __builtin_unreachable();
}

void run(const Launch& launch) {
  const uint64_t threads = uint64_t{launch.block.x} * launch.block.y * launch.block.z;
  if (threads == 0 || threads > kMaxThreads || launch.shared_bytes > kSharedBytes || launch.grid.y > 65535 ||
      launch.grid.z > 65535 || launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0) {
    throw Fault(std::string(launch.kernel) + ": no GPU takes a grid of " + text(launch.grid) + " blocks of " +
                text(launch.block) + " threads with " + std::to_string(launch.shared_bytes) +
                " bytes of shared memory");
  }
  const char* seed = std::getenv("PADFREE_EMULATOR_SEED");
  Schedule schedule(seed == nullptr ? 0 : std::strtoull(seed, nullptr, 10));
  global_memory().forget_accesses();
  uint32_t number = 0;
  for (unsigned z = 0; z < launch.grid.z; ++z) {
    for (unsigned y = 0; y < launch.grid.y; ++y) {
      for (unsigned x = 0; x < launch.grid.x; ++x) {
        Block(launch, {x, y, z}, ++number, schedule).run();
      }
    }
  }
}

}  // namespace cuda_host
