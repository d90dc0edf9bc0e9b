// Bulk tensor copies: boxes of a tensor that a tensor map describes.
#pragma once

#include "mbarrier.cuh"

#include <cstdint>
#include <cuda/ptx>

namespace bakewell {

// The record that the host encodes. By value in the parameter block, so that the copy engine needs no fence for it.
struct alignas(64) TensorMap {
    uint8_t bytes[128];
};

// Box of a tensor to this CTA's shared memory (128-byte aligned); the barrier counts the bytes of the full box, those
// outside the tensor included, which arrive as zeros. Coordinates are in elements, innermost first.
// PTX: cp.async.bulk.tensor.Nd.shared::cta.global.tile.mbarrier::complete_tx::bytes
template <int rank>
__device__ inline void tensor_load(void* shared, const TensorMap& map, const int32_t (&at)[rank], Mbarrier& barrier) {
    cuda::ptx::cp_async_bulk_tensor(cuda::ptx::space_shared, cuda::ptx::space_global, shared, &map, at, &barrier.word);
}

// Fetches the record itself ahead of its first use. PTX: prefetch.param.tensormap
__device__ inline void prefetch_tensor_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

} // namespace bakewell
