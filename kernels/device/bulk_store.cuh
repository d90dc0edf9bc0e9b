// Copies of contiguous bytes out of shared memory by the copy engine, in groups of the issuing thread.
#pragma once

#include "tensor_store.cuh"

#include <cstdint>
#include <cuda/ptx>

namespace bakewell {

// This CTA's shared memory to global memory. Addresses and size are multiples of 16. What the copy reads was written by
// threads that then executed fence.proxy.async and met the issuing thread. Groups: see tensor_store.cuh.
// PTX: cp.async.bulk.global.shared::cta.bulk_group
__device__ inline void bulk_store(void* global, const void* shared, uint32_t bytes) {
    cuda::ptx::cp_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared, global, shared, bytes);
}

} // namespace bakewell
