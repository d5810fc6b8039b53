// Threads for the kernels, without a torch header: the pool is torch's own (torch.set_num_threads holds).
#pragma once

#include <cstdint>

namespace padfree {

// How many threads a parallel region started now would use.
int num_threads();

// Calls task(context, index, worker) once for each index in [0, tasks), on up to num_threads() threads.
// Indices are handed out one by one in rising order, so uneven tasks balance; put the longest first. `worker`
// < num_threads() names the thread for per-thread workspace. A task must write only what its index owns: then
// the result does not depend on the number of threads. Tasks must not throw.
void parallel_tasks(int64_t tasks, void (*task)(void* context, int64_t index, int worker), void* context);

}  // namespace padfree
