// The kernels in which every warp reads its keys itself: what surrounds the attention of the warps.
//
//   warp 0   | barrier of the merge | early requests |
//   warp w   | wait for earlier grids | q, length, attend | store partial |
//   CTA                                                                   | merge |
#pragma once

#include "../device/cluster.cuh"
#include "early_request.cuh"
#include "output.cuh"
#include "params.cuh"
#include "work.cuh"

#include <cstdint>

namespace bakewell {

// All threads; the body of the kernel. attend(params, work, length, attention, warp): the warp's keys.
template <class S, auto attend>
__device__ void attend_by_warps(const Params& params, char* shared_bytes) {
    static_assert(S::threads == S::consumer_warps * 32, "every warp computes");
    static_assert(S::tile_keys == S::consumer_warps * block_keys, "one block of keys per warp");
    static_assert(S::stages == 0, "no ring");
    static_assert(sizeof(MergeOf<S>) == S::dynamic_shared_bytes, "the schedule's budget");
    auto& shared = *reinterpret_cast<MergeOf<S>*>(shared_bytes);
    const auto work = Work<S>::of_this_cta();
    const uint32_t warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;

    if (threadIdx.x == 0) {
        shared.init();
    }
    __syncwarp();
    // Pairs with the wait before the merge: no CTA writes into a peer that has not started.
    cluster_arrive_relaxed();
    wait_for_earlier_grids(params, work, warp, lane);
    const int32_t length = work.length(params);
    Attention<S> attention = attention_of<S>(params, work, lane);
    attend(params, work, length, attention, warp);
    attention.store(shared.warps, warp);
    cluster_wait();
    merge_and_store<S>(params, work, shared, length);
}

} // namespace bakewell
