// What this machine can do, measured with the benchmarks: fused multiply-adds and memory traffic a second, on
// the number of threads given. Prints one JSON object. Built by machine_peak.py with -O3 -march=native, never
// shipped.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <thread>
#include <vector>

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif
typedef float Vec __attribute__((vector_size(kBytes)));
constexpr int kChains = 12;  // hides a latency of six cycles at two a cycle

bool cpu_clock =
    false;  // time the first thread spent computing, not what passed: for machines with other work

double now() {
  timespec time;
  clock_gettime(cpu_clock ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

double seconds(const std::function<void()>& work) {
  const double start = now();
  work();
  return now() - start;
}

// Best of five runs of `work(thread)` on `threads` threads at once.
double best(int threads, const std::function<void(int)>& work) {
  double least = 1e30;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double taken = seconds([&] {
      std::vector<std::thread> others;
      for (int i = 1; i < threads; ++i) others.emplace_back(work, i);
      work(0);
      for (std::thread& other : others) other.join();
    });
    if (taken < least) least = taken;
  }
  return least;
}

void multiply_add(long steps, volatile float* sink) {
  Vec chain[kChains], factor = Vec{} + 0.999f, term = Vec{} + 1.0f;
  for (int i = 0; i < kChains; ++i) chain[i] = Vec{} + static_cast<float>(i);
  for (long step = 0; step < steps; ++step) {
    for (int i = 0; i < kChains; ++i) chain[i] = chain[i] * factor + term;
    __asm__ volatile("" : "+x"(factor));  // the steps must not be merged
  }
  for (int i = 0; i < kChains; ++i) *sink = chain[i][0];
}

void read(const float* data, size_t count, volatile float* sink) {
  Vec sums[4] = {};
  const Vec* vectors = reinterpret_cast<const Vec*>(data);
  for (size_t i = 0; i < count * sizeof(float) / kBytes; i += 4) {
    for (int j = 0; j < 4; ++j) sums[j] += vectors[i + j];
  }
  *sink = (sums[0] + sums[1] + sums[2] + sums[3])[0];
}

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  cpu_clock = argc > 2 && std::strcmp(argv[2], "cpu") == 0;
  constexpr long kSteps = 10'000'000;
  constexpr size_t kFloats = 32u << 20;  // 128 MiB a thread: more than the last-level cache
  volatile float sinks[64];
  std::vector<float*> from, to;
  for (int i = 0; i < threads; ++i) {
    from.push_back(static_cast<float*>(std::aligned_alloc(64, kFloats * sizeof(float))));
    to.push_back(static_cast<float*>(std::aligned_alloc(64, kFloats * sizeof(float))));
    std::memset(from.back(), 1, kFloats * sizeof(float));
    std::memset(to.back(), 1, kFloats * sizeof(float));
  }
  const double flops = 2.0 * kSteps * kChains * (kBytes / sizeof(float)) * threads;
  const double bytes = static_cast<double>(kFloats) * sizeof(float) * threads;
  const double fma = best(threads, [&](int i) { multiply_add(kSteps, sinks + i); });
  const double reading = best(threads, [&](int i) { read(from[i], kFloats, sinks + i); });
  const double copying = best(threads, [&](int i) { std::memcpy(to[i], from[i], kFloats * sizeof(float)); });
  std::printf("{\"gflops\": %.1f, \"read_gbs\": %.2f, \"copy_gbs\": %.2f}\n", flops / fma * 1e-9,
              bytes / reading * 1e-9, 2 * bytes / copying * 1e-9);
}
