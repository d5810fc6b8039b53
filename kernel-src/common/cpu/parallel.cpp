#include "parallel.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>

namespace padfree {

int num_threads() {
  return static_cast<int>(torch::stable::get_num_threads());
}

void parallel_tasks(int64_t tasks, void (*task)(void* context, int64_t index, int worker), void* context) {
  const int64_t workers = std::min<int64_t>(tasks, num_threads());
  if (workers <= 1) {
    for (int64_t index = 0; index < tasks; ++index) task(context, index, 0);
    return;
  }
  // One slice per worker; each worker then draws tasks from a shared counter. When the pool runs several
  // slices on one thread (nested parallelism), the first drains the counter and the others find nothing:
  // still right.
  std::atomic<int64_t> next{0};
  torch::stable::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      for (int64_t index; (index = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
        task(context, index, static_cast<int>(worker));
      }
    }
  });
}

}  // namespace padfree
