// A warp's attention over the keys of a KV head, and where the merged result belongs.
#pragma once

#include "../device/block_attention.cuh"
#include "../device/element.cuh"
#include "../device/softmax.cuh"
#include "../device/split_merge.cuh"
#include "params.cuh"
#include "work.cuh"

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace bakewell {

// The heads of a group are the columns of one product.
template <class S>
using Attention = BlockAttention<S::element, S::group_size, S::head_dim>;

template <class S>
using Partials = WarpPartials<S::consumer_warps, S::group_size, S::head_dim>;

template <class S>
using MergeOf = MergeMap<S::consumer_warps, S::group_size, S::head_dim>;

template <class S>
__device__ Attention<S> attention_of(const Params& params, Work<S> work, int lane) {
    static_assert(S::group_size <= 8, "the heads of a group are the columns of one product");
    const char* rows = work.queries(params);
    return Attention<S>(lane, params.scale_log2, [&](int head, int vector) {
        return reinterpret_cast<const uint4*>(rows + head * Work<S>::row_bytes)[vector];
    });
}

// The heads of a CTA's group, for `SplitMerge`.
template <class S>
struct Output {
    const Params& params;
    const Work<S> work;
    const int32_t length;
    const uint32_t split, splits;
    const GlobalPartials global;

    __device__ Output(const Params& params, Work<S> work, int32_t length)
        : params(params), work(work), length(length), split(work.split), splits(params.splits),
          global{params.partial_out, params.partial_max, params.partial_sum} {}

    __device__ size_t row(int head) const { return work.query_head(params) + head; }
    __device__ uint32_t* completed() const { return &params.completed[work.head(params)]; }

    // Normalises and rounds once. A request of length 0 has zeros, and log-sum-exp -inf.
    __device__ void finish(int head, int vector, const Partial& partial) const {
        const float inverse = length > 0 ? reciprocal_approx(partial.sum) : 0.0f;
        uint2* out = reinterpret_cast<uint2*>(static_cast<char*>(params.out) + row(head) * Work<S>::row_bytes);
        out[vector] = make_uint2(pack<S::element>(partial.out.x * inverse, partial.out.y * inverse),
                                 pack<S::element>(partial.out.z * inverse, partial.out.w * inverse));
        if (params.lse != nullptr && vector == 0) {
            params.lse[row(head)] = length > 0 ? (partial.reference + log2f(partial.sum)) * ln_2 : -INFINITY;
        }
    }
};

// All threads, once the consumer warps stored their partials and the peers of the cluster have started.
template <class S>
__device__ void merge_and_store(const Params& params, Work<S> work, MergeOf<S>& map, int32_t length) {
    const Output<S> output(params, work, length);
    SplitMerge<MergeOf<S>, S::threads, Output<S>>(output, map).run();
}

} // namespace bakewell
