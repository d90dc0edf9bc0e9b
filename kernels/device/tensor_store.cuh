// Bulk tensor copies out of shared memory, in groups of the issuing thread.
#pragma once

#include "tensor_map.cuh"

#include <cstdint>
#include <cuda/ptx>

namespace bakewell {

// This CTA's shared memory (128-byte aligned) to a box of a tensor; elements outside the tensor are skipped. What the
// copy reads was written by threads that then executed fence.proxy.async and met the issuing thread.
// PTX: cp.async.bulk.tensor.Nd.global.shared::cta.tile.bulk_group
template <int rank>
__device__ inline void tensor_store(const TensorMap& map, const int32_t (&at)[rank], const void* shared) {
    cuda::ptx::cp_async_bulk_tensor(cuda::ptx::space_global, cuda::ptx::space_shared, &map, at, shared);
}

// Closes the group of copies issued since the last. PTX: cp.async.bulk.commit_group
__device__ inline void commit_stores() { cuda::ptx::cp_async_bulk_commit_group(); }

// Waits until all but the last `pending` groups have read their shared memory, which may then be written again, and
// before the CTA ends. PTX: cp.async.bulk.wait_group.read
template <int pending>
__device__ inline void wait_stores_read() {
    cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<pending>{});
}

} // namespace bakewell
