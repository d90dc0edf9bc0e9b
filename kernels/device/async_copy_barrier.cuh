// Completion of asynchronous copies by threads, told to a barrier in shared memory.
#pragma once

#include "mbarrier.cuh"

#include <cstdint>

namespace bakewell {

// Arrives on the barrier once all copies of this thread so far have landed. The barrier counts the thread. By hand,
// since the wrapper in <cuda/ptx> names no state space but passes an address of the shared window. PTX:
// cp.async.mbarrier.arrive.noinc.shared::cta.b64
__device__ inline void async_copy_arrive(Mbarrier& barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                     static_cast<uint32_t>(__cvta_generic_to_shared(&barrier.word)))
                 : "memory");
}

} // namespace bakewell
