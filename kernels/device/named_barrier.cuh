// Named barriers: some warps of a CTA meet. Barrier 0 is __syncthreads.
#pragma once

#include <cstdint>

namespace bakewell {

// `threads` (a multiple of 32) threads meet at barrier `id` in 1..15. Orders their memory accesses.
// PTX: barrier.cta.sync.aligned
__device__ inline void named_barrier_sync(uint32_t id, uint32_t threads) {
    asm volatile("barrier.cta.sync.aligned %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

} // namespace bakewell
