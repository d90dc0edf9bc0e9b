// Which request, KV head and split a CTA works on, and where its tensors lie.
//
// Grid [batch, splits, kv_heads], cluster [1, cluster size, 1]: the splits of a cluster share a request and KV head.
// The cluster size is a power of two up to 16 and divides splits.
#pragma once

#include "../device/element.cuh"
#include "params.cuh"

#include <cstddef>
#include <cstdint>

namespace bakewell {

template <class S>
struct Work {
    static constexpr uint32_t row_bytes = S::head_dim * element_bytes;

    uint32_t request;
    uint32_t split;
    uint32_t kv_head;

    static __device__ Work of_this_cta() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }

    // Keys of the request. A length outside [0, capacity] counts as the bound next to it: no key is read past the cache.
    __device__ int32_t length(const Params& params) const {
        const auto most = static_cast<int32_t>(min(params.capacity, static_cast<uint64_t>(INT32_MAX)));
        return max(0, min(params.sequence_lengths[request], most));
    }

    // Index of [request, kv_head].
    __device__ size_t head(const Params& params) const {
        return static_cast<size_t>(request) * params.kv_heads + kv_head;
    }

    // Index of the group's first query head in [request, query head].
    __device__ size_t query_head(const Params& params) const { return head(params) * S::group_size; }

    // First row of the group's queries.
    __device__ const char* queries(const Params& params) const {
        return static_cast<const char*>(params.q) + query_head(params) * row_bytes;
    }

    // First row of K or V of this head.
    __device__ const char* keys(const Params& params) const {
        const size_t plane = static_cast<size_t>(request) * 2 * params.kv_heads + kv_head;
        return static_cast<const char*>(params.kv) + plane * params.capacity * row_bytes;
    }
    __device__ const char* values(const Params& params) const {
        return keys(params) + params.kv_heads * params.capacity * row_bytes;
    }
};

} // namespace bakewell
