// Requests to the second-level cache for what will be read. A request returns nothing and never changes data.
#pragma once

#include <cstdint>
#include <cuda/ptx>

namespace bakewell {

// Address and size are multiples of 16, size > 0. PTX: cp.async.bulk.prefetch.L2.global.L2::cache_hint
__device__ inline void request_bytes(const void* global, uint32_t bytes) {
    cuda::ptx::cp_async_bulk_prefetch(global, bytes);
}

// The line that holds the address. PTX: prefetch.global.L2
__device__ inline void request_line(const void* global) { cuda::ptx::prefetch_L2(global); }

} // namespace bakewell
