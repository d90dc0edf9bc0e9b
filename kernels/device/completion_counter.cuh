// Finds the last CTA of a group to arrive, and resets the counter for the next launch.
#pragma once

#include <cstdint>
#include <cuda/atomic>

namespace bakewell {

// All threads of the CTA call it, after their global stores. Returns true in all threads of the CTA that arrived last
// of `expected`; that CTA then sees the stores of all the others. The counter is 0 before and after.
__device__ inline bool arrive_last(uint32_t* counter, uint32_t expected, uint32_t& shared_flag) {
    // Orders the stores of all threads before thread 0's release.
    __syncthreads();
    if (threadIdx.x == 0) {
        cuda::atomic_ref<uint32_t, cuda::thread_scope_device> arrivals(*counter);
        const bool last = arrivals.fetch_add(1, cuda::memory_order_acq_rel) == expected - 1;
        if (last) {
            arrivals.store(0, cuda::memory_order_relaxed);
        }
        shared_flag = last;
    }
    // Passes thread 0's acquire on to the CTA.
    __syncthreads();
    return shared_flag != 0;
}

} // namespace bakewell
