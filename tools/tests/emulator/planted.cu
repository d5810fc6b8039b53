// Small kernels, right and wrong, for test_emulator.py. Usage: planted NAME; prints "right", or "fault: " and
// its text.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/cuda/barrier.cuh"
#include "common/cuda/convert.cuh"
#include "common/cuda/copy.cuh"
#include "common/cuda/launch.h"
#include "common/cuda/mma.cuh"
#include "common/cuda/shared.cuh"
#include "cuda_host/memory.h"

namespace padfree {
namespace {

struct Params {
  const float* in;
  float* out;
  int count;
  int fault;  // 0: none
};

struct Shared {
  float values[256];
};

// out[i] = in[255 - i] through shared memory.
__global__ void reverse(const __grid_constant__ Params p) {
  Shared& shared = shared_memory<Shared>();
  const int i = threadIdx.x;
  if (p.fault != 2 || i != 17) shared.values[i] = p.in[i];
  if (p.fault != 1) __syncthreads();
  p.out[i] = shared.values[255 - i];
}

// The same twice over: without the second barrier a fast warp overwrites what a slow one has yet to read.
__global__ void reverse_twice(const __grid_constant__ Params p) {
  Shared& shared = shared_memory<Shared>();
  const int i = threadIdx.x;
  for (int round = 0; round < 2; ++round) {
    shared.values[i] = p.in[i] + round;
    __syncthreads();
    p.out[i] = shared.values[255 - i];
    if (p.fault == 0) __syncthreads();
  }
}

__global__ void reverse_async(const __grid_constant__ Params p) {
  Shared& shared = shared_memory<Shared>();
  const int i = threadIdx.x;
  if (i < 64) copy_async(shared.values + 4 * i, p.in + 4 * i, i != 63);
  copy_commit();
  if (p.fault == 0) copy_wait<0>();
  if (p.fault == 2) copy_wait<1>();
  __syncthreads();
  p.out[i] = shared.values[255 - i];
}

// Warps 0 to 3 fill, warps 4 to 7 empty.
__global__ void hand_over(const __grid_constant__ Params p) {
  Shared& shared = shared_memory<Shared>();
  const int i = threadIdx.x;
  if (i < 128) {
    shared.values[i] = p.in[i];
    barrier_arrive(1, 256);
    if (p.fault == 1) shared.values[i] = 0.0f;
  } else {
    barrier_sync(1, 256);
    p.out[i] = shared.values[255 - i];
  }
}

__global__ void bounds(const __grid_constant__ Params p) {
  const int i = threadIdx.x;
  const int from = p.fault == 1 ? i + 1 : p.fault == 2 ? i - 1 : i;
  const float value = p.in[from];
  if (p.fault == 4) const_cast<float*>(p.in)[i] = 0.0f;
  if (p.fault == 5) shared_memory<Shared>().values[i + 1] = value;
  p.out[p.fault == 3 ? i + 1 : i] = value;
}

__global__ void divergent(const __grid_constant__ Params p) {
  const int i = threadIdx.x;
  if (p.fault == 1 && i >= 224) return;
  if (p.fault == 2 && i < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  if (p.fault == 3 && i % 32 < 16) return;
  p.out[i] = __shfl_down_sync(~0u, static_cast<float>(i), 1);
}

__global__ void one_word(const __grid_constant__ Params p) {
  Shared& shared = shared_memory<Shared>();
  const int i = threadIdx.x;
  if (i % 32 == 0 && (p.fault == 1 || i == 0)) shared.values[0] = static_cast<float>(i);
  if (p.fault == 2 && i == 0) shared.values[1] = 0.0f;
  if (p.fault == 2 && i == 1) shared.values[1] = 1.0f;
  __syncthreads();
  if (p.fault == 3) {
    atomicAdd(&shared.values[0], 1.0f);
    __syncthreads();
  }
  p.out[i] = shared.values[0];
}

__global__ void across_blocks(const __grid_constant__ Params p) {
  const int i = threadIdx.x + (p.fault == 0 ? blockIdx.x * blockDim.x : 0);
  p.out[i] = static_cast<float>(blockIdx.x);
}

// What the address sanitizer finds and the hooks do not: the array is the thread's own.
__global__ void local_array(const __grid_constant__ Params p) {
  const int i = threadIdx.x;
  float held[4];
  for (float& each : held) each = p.in[i];
  p.out[i] = held[i % 4 + p.fault];
}

__global__ void misaligned(const __grid_constant__ Params p) {
  if (threadIdx.x < 16)
    store_packet<16>(p.out + 4 * threadIdx.x, load_packet<16>(p.in + 4 * threadIdx.x + p.fault));
}

// A product of two 16x16 matrices by the tensor core, and each transport of a warp.
__global__ void product(const __grid_constant__ Params p) {
  struct Matrices {
    alignas(16) BFloat16 a[16][16], b[16][16];
  };
  Matrices& shared = shared_memory<Matrices>();
  const int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) {
    shared.a[i / 16][i % 16] = from_float<BFloat16>(p.in[i]);
    shared.b[i / 16][i % 16] = from_float<BFloat16>(p.in[255 - i]);
  }
  __syncwarp();
  uint32_t a[4], b[4];
  load_matrices(a, &shared.a[lane % 16][lane / 16 * 8]);
  load_matrices_transposed(b, &shared.b[lane % 16][lane / 16 * 8]);
  for (int half = 0; half < 2; ++half) {
    float d[4] = {};
    const uint32_t column[2] = {b[2 * half], b[2 * half + 1]};
    multiply_add<BFloat16>(d, a, column);
    for (int i = 0; i < 4; ++i) {
      p.out[(lane / 4 + i / 2 * 8) * 16 + half * 8 + lane % 4 * 2 + i % 2] = d[i];
    }
  }
}

__global__ void shuffles(const __grid_constant__ Params p) {
  const int lane = threadIdx.x;
  float sum = p.in[lane];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  const float up = __shfl_up_sync(~0u, p.in[lane], 1), down = __shfl_down_sync(~0u, p.in[lane], 1);
  const float first = __shfl_sync(~0u, p.in[lane], 0, 8);
  const unsigned odd = __ballot_sync(~0u, lane % 2);
  p.out[lane] = sum + 1e3f * up + 1e4f * down + 1e5f * first + (odd == 0xaaaaaaaau ? 1e7f : 0.0f);
}

using Kernel = void (*)(Params);

struct Case {
  Kernel kernel;
  int fault, blocks, threads;
  std::function<float(const std::vector<float>&, int)> wanted;  // of out[i]; none: not compared
};

float bfloat(float x) {
  return to_float(from_float<BFloat16>(x));
}

const std::map<std::string, Case>& cases() {
  const auto reversed = [](const std::vector<float>& in, int i) { return in[255 - i]; };
  static const std::map<std::string, Case> table = {
      {"reverse", {reverse, 0, 1, 256, reversed}},
      {"missing-barrier", {reverse, 1, 1, 256, nullptr}},
      {"unwritten", {reverse, 2, 1, 256, nullptr}},
      {"reverse-twice", {reverse_twice, 0, 1, 256, [](auto& in, int i) { return in[255 - i] + 1; }}},
      {"missing-barrier-after-reading", {reverse_twice, 1, 1, 256, nullptr}},
      {"reverse-async",
       {reverse_async, 0, 1, 256, [](auto& in, int i) { return i < 4 ? 0.0f : in[255 - i]; }}},
      {"missing-wait", {reverse_async, 1, 1, 256, nullptr}},
      {"waits-for-too-few", {reverse_async, 2, 1, 256, nullptr}},
      {"hand-over", {hand_over, 0, 1, 256, [](auto& in, int i) { return i < 128 ? -1.0f : in[255 - i]; }}},
      {"write-after-arrive", {hand_over, 1, 1, 256, nullptr}},
      {"bounds", {bounds, 0, 1, 256, [](auto& in, int i) { return in[i]; }}},
      {"read-past-the-end", {bounds, 1, 1, 256, nullptr}},
      {"read-before-the-start", {bounds, 2, 1, 256, nullptr}},
      {"write-past-the-end", {bounds, 3, 1, 256, nullptr}},
      {"write-to-an-input", {bounds, 4, 1, 256, nullptr}},
      {"write-past-shared-memory", {bounds, 5, 1, 256, nullptr}},
      {"exit-before-barrier", {divergent, 1, 1, 256, nullptr}},
      {"two-barriers", {divergent, 2, 1, 256, nullptr}},
      {"exit-before-shuffle", {divergent, 3, 1, 256, nullptr}},
      {"one-writer", {one_word, 0, 1, 256, [](auto&, int) { return 0.0f; }}},
      {"two-warps-one-word", {one_word, 1, 1, 256, nullptr}},
      {"two-lanes-one-word", {one_word, 2, 1, 256, nullptr}},
      {"atomics", {one_word, 3, 1, 256, [](auto&, int) { return 256.0f; }}},
      {"blocks", {across_blocks, 0, 2, 128, [](auto&, int i) { return i < 128 ? 0.0f : 1.0f; }}},
      {"two-blocks-one-word", {across_blocks, 1, 2, 128, nullptr}},
      {"packets", {misaligned, 0, 1, 256, [](auto& in, int i) { return i < 64 ? in[i] : -1.0f; }}},
      {"local-array", {local_array, 0, 1, 256, [](auto& in, int i) { return in[i]; }}},
      {"past-a-local-array", {local_array, 4, 1, 256, nullptr}},
      {"misaligned-packet", {misaligned, 1, 1, 256, nullptr}},
      {"product",
       {product, 0, 1, 32,
        [](auto& in, int i) {
          float sum = 0.0f;
          for (int k = 0; k < 16; ++k)
            sum += bfloat(in[i / 16 * 16 + k]) * bfloat(in[255 - (k * 16 + i % 16)]);
          return sum;
        }}},
      {"shuffles",
       {shuffles, 0, 1, 32,
        [](auto& in, int i) {
          if (i >= 32) return -1.0f;
          float sum = 0.0f;
          for (int k = 0; k < 32; ++k) sum += in[k];
          return sum + 1e3f * in[i == 0 ? 0 : i - 1] + 1e4f * in[i == 31 ? 31 : i + 1] +
                 1e5f * in[i / 8 * 8] + 1e7f;
        }}},
      {"no-such-launch", {reverse, 0, 1, 2048, nullptr}},
  };
  return table;
}

int run_case(const Case& one) {
  alignas(16) static float storage[2][512];
  std::vector<float> in(256);
  float *data = storage[0] + 64, *out = storage[1] + 64;
  for (int i = 0; i < 256; ++i) {
    data[i] = in[i] = static_cast<float>(i % 37) - 11.0f;
    out[i] = -1.0f;
  }
  cuda_host::global_memory().allow("in", data, sizeof(float) * 256, cuda_host::Memory::Use::kRead);
  cuda_host::global_memory().allow("out", out, sizeof(float) * 256, cuda_host::Memory::Use::kWrite);
  launch(one.kernel,
         {.op = "planted",
          .kernel = "planted",
          .shape = "256 floats",
          .blocks = one.blocks,
          .threads = one.threads,
          .shared_bytes = sizeof(Shared),
          .stream = nullptr},
         Params{data, out, 256, one.fault});
  for (int i = 0; one.wanted != nullptr && i < 256; ++i) {
    const float wanted = one.wanted(in, i);
    if (std::abs(out[i] - wanted) > 1e-6f * std::abs(wanted)) {
      std::printf("wrong: out[%d] is %g, wanted %g\n", i, out[i], wanted);
      return 1;
    }
  }
  std::puts("right");
  return 0;
}

}  // namespace
}  // namespace padfree

int main(int count, char** words) {
  const auto& cases = padfree::cases();
  if (count < 2) {
    for (const auto& [name, one] : cases) std::puts(name.c_str());
    return 0;
  }
  try {
    return padfree::run_case(cases.at(words[1]));
  } catch (const cuda_host::Fault& fault) {
    std::printf("fault: %s\n", fault.what());
    return 0;
  }
}
