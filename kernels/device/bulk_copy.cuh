// Copies of contiguous bytes by the copy engine, without a tensor map.
#pragma once

#include "mbarrier.cuh"

#include <cstdint>
#include <cuda/ptx>

namespace bakewell {

// Global to this CTA's shared memory; the barrier counts the bytes. Addresses and size are multiples of 16, size > 0.
// PTX: cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes
__device__ inline void bulk_load(void* shared, const void* global, uint32_t bytes, Mbarrier& barrier) {
    cuda::ptx::cp_async_bulk(cuda::ptx::space_shared, cuda::ptx::space_global, shared, global, bytes, &barrier.word);
}

} // namespace bakewell
