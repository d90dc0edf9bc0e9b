// Finds the last CTA of a group to arrive, and resets the counter for the next launch.
#pragma once

#include <cstdint>
#include <cuda/atomic>

namespace bakewell {

// All threads of a team call it, after their global stores; `sync` is the team's barrier, `leader` one of its threads.
// Returns true in all threads of the team that arrived last of `expected`; that team then sees the stores of all the
// others. The counter is 0 before and after.
template <class Sync>
__device__ inline bool arrive_last(uint32_t* counter, uint32_t expected, uint32_t& shared_flag, bool leader, Sync sync) {
    // Orders the stores of all threads before the leader's release.
    sync();
    if (leader) {
        cuda::atomic_ref<uint32_t, cuda::thread_scope_device> arrivals(*counter);
        const bool last = arrivals.fetch_add(1, cuda::memory_order_acq_rel) == expected - 1;
        if (last) {
            arrivals.store(0, cuda::memory_order_relaxed);
        }
        shared_flag = last;
    }
    // Passes the leader's acquire on to the team.
    sync();
    return shared_flag != 0;
}

// The whole CTA as the team.
__device__ inline bool arrive_last(uint32_t* counter, uint32_t expected, uint32_t& shared_flag) {
    return arrive_last(counter, expected, shared_flag, threadIdx.x == 0, [] { __syncthreads(); });
}

} // namespace bakewell
