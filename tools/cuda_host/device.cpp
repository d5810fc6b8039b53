#include "device.h"

#include <bit>

#include "block.h"

struct uint3 {
  unsigned x, y, z;
};

namespace cuda_host {
namespace {

uint3 three(Index i) {
  return {i.x, i.y, i.z};
}

using Operands = std::span<void* const, kWarpSize>;

struct ShuffleOperands {
  uint64_t value, result;
  Shuffle kind;
  int operand, width;
};

// PTX's shfl: lanes beyond the segment of `width` lanes give back the own value.
void run_shuffle(Operands operands, uint32_t mask) {
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    auto& own = *static_cast<ShuffleOperands*>(operands[lane]);
    const int segment = lane / own.width * own.width, place = lane - segment;
    const int wanted = own.kind == Shuffle::kIndex  ? own.operand % own.width
                       : own.kind == Shuffle::kUp   ? place - own.operand
                       : own.kind == Shuffle::kDown ? place + own.operand
                                                    : place ^ own.operand;
    const int source = wanted < 0 || wanted >= own.width ? lane : segment + wanted;
    if ((mask >> source & 1) == 0) this_block().fault("a shuffle reads a lane that its mask leaves out");
    own.result = static_cast<ShuffleOperands*>(operands[source])->value;
  }
}

struct BallotOperands {
  bool predicate;
  uint32_t result;
};

void run_ballot(Operands operands, uint32_t mask) {
  uint32_t votes = 0;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if ((mask >> lane & 1) != 0 && static_cast<BallotOperands*>(operands[lane])->predicate)
      votes |= 1u << lane;
  }
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if ((mask >> lane & 1) != 0) static_cast<BallotOperands*>(operands[lane])->result = votes;
  }
}

struct MatrixOperands {
  uint32_t* fragments;
  uint16_t row[8];
  bool transposed;
};

void run_load_matrices(Operands operands, uint32_t) {
  const auto at = [&](int lane) -> MatrixOperands& { return *static_cast<MatrixOperands*>(operands[lane]); };
  for (int lane = 0; lane < kWarpSize; ++lane) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      const int a = lane / 4, b = lane % 4 * 2;
      const bool transposed = at(lane).transposed;
      const uint16_t low = transposed ? at(matrix * 8 + b).row[a] : at(matrix * 8 + a).row[b];
      const uint16_t high = transposed ? at(matrix * 8 + b + 1).row[a] : at(matrix * 8 + a).row[b + 1];
      at(lane).fragments[matrix] = low | static_cast<uint32_t>(high) << 16;
    }
  }
}

struct ProductOperands {
  float* d;
  const uint32_t *a, *b;
  Element element;
};

// m16n8k16: lane 4 g + t holds of a the rows g, g + 8 and the columns 2t, 2t + 1, 2t + 8, 2t + 9; of b the
// same as rows, in column g; of d the rows g, g + 8 and the columns 2t, 2t + 1.
void run_multiply_add(Operands operands, uint32_t) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const auto& own = *static_cast<ProductOperands*>(operands[lane]);
    const auto number = [&](uint32_t pair, int i) {
      const auto bits = static_cast<uint16_t>(pair >> 16 * i);
      return own.element == Element::kBFloat16 ? bfloat16_to_float(bits) : half_to_float(bits);
    };
    const int g = lane / 4, t = lane % 4 * 2;
    for (int i = 0; i < 2; ++i) {
      for (int half = 0; half < 2; ++half) {
        a[g][t + 8 * half + i] = number(own.a[2 * half], i);
        a[g + 8][t + 8 * half + i] = number(own.a[2 * half + 1], i);
        b[t + 8 * half + i][g] = number(own.b[half], i);
      }
    }
  }
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const auto& own = *static_cast<ProductOperands*>(operands[lane]);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      for (int k = 0; k < 16; ++k) own.d[i] += a[row][k] * b[k][column];
    }
  }
}

constexpr WarpOperation kShuffle = {run_shuffle, "a shuffle"};
constexpr WarpOperation kBallot = {run_ballot, "a vote"};
constexpr WarpOperation kSyncWarp = {[](Operands, uint32_t) {}, "__syncwarp"};
constexpr WarpOperation kLoadMatrices = {run_load_matrices, "ldmatrix"};
constexpr WarpOperation kMultiplyAdd = {run_multiply_add, "mma"};
constexpr uint32_t kAllLanes = ~0u;

void checked(Access kind, const void* address, size_t bytes) {
  const auto number = reinterpret_cast<uintptr_t>(address);
  if (number % bytes != 0) this_block().fault("misaligned access of " + std::to_string(bytes) + " bytes");
  this_block().access(kind, number, bytes);
}

}  // namespace

uint3 thread_index() {
  return three(this_block().thread_index());
}
uint3 block_index() {
  return three(this_block().index());
}
uint3 block_dim() {
  return three(this_block().launch().block);
}
uint3 grid_dim() {
  return three(this_block().launch().grid);
}

std::byte* shared_memory(size_t bytes) {
  Block& block = this_block();
  const size_t given = block.launch().shared_bytes;
  if (bytes > given) {
    block.fault("wants " + std::to_string(bytes) + " bytes of shared memory, was launched with " +
                std::to_string(given));
  }
  return block.shared_memory();
}

void barrier(int id, int threads, bool wait, const Site& site) {
  const Index size = this_block().launch().block;
  this_block().barrier(id, threads < 0 ? static_cast<int>(size.x * size.y * size.z) : threads, wait, site);
}

void sync_warp(uint32_t mask, const Site& site) {
  this_block().warp(kSyncWarp, mask, nullptr, site);
}

uint32_t ballot(uint32_t mask, bool predicate, const Site& site) {
  BallotOperands own = {predicate, 0};
  this_block().warp(kBallot, mask, &own, site);
  return own.result;
}

uint64_t shuffle_bits(uint32_t mask, uint64_t value, Shuffle kind, int operand, int width, const Site& site) {
  ShuffleOperands own = {value, 0, kind, operand, width};
  this_block().warp(kShuffle, mask, &own, site);
  return own.result;
}

void atomic_access(void* address, size_t bytes) {
  checked(Access::kAtomic, address, bytes);
}

void load(void* to, const void* from, size_t bytes) {
  checked(Access::kRead, from, bytes);
  std::memcpy(to, from, bytes);
}

void store(void* to, const void* from, size_t bytes) {
  checked(Access::kWrite, to, bytes);
  std::memcpy(to, from, bytes);
}

void copy_async(void* shared, const void* global, size_t bytes, size_t valid) {
  this_block().copy_async(reinterpret_cast<uintptr_t>(shared), reinterpret_cast<uintptr_t>(global), bytes,
                          valid);
}
void copy_commit() {
  this_block().copy_commit();
}
void copy_wait(int groups_under_way) {
  this_block().copy_wait(groups_under_way);
}

void load_matrices(uint32_t (&fragments)[4], const void* row, bool transposed, const Site& site) {
  MatrixOperands own = {fragments, {}, transposed};
  load(own.row, row, sizeof(own.row));
  this_block().warp(kLoadMatrices, kAllLanes, &own, site);
}

void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Element element,
                  const Site& site) {
  ProductOperands own = {d, a, b, element};
  this_block().warp(kMultiplyAdd, kAllLanes, &own, site);
}

float bfloat16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float half_to_float(uint16_t bits) {
  return static_cast<float>(std::bit_cast<_Float16>(bits));
}

uint16_t float_to_half(float value) {
  return value != value ? 0x7fff : std::bit_cast<uint16_t>(static_cast<_Float16>(value));
}

}  // namespace cuda_host
