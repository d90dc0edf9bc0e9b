// What a CTA does before the grids that it depends on have ended: it asks the second-level cache for what it reads first.
//
// Nothing that an earlier grid may write is read before the wait. A request returns nothing, so that no result can
// depend on when it is served. It is bounded by the capacity: the length may still be written.
#pragma once

#include "../device/l2_request.cuh"
#include "../device/pdl.cuh"
#include "params.cuh"
#include "work.cuh"

#include <cstdint>

namespace bakewell {

// All lanes of a warp: K and V of the split's first tiles, the queries, the length.
template <class S>
__device__ void request_early(const Params& params, Work<S> work, int lane) {
    constexpr uint32_t row_bytes = Work<S>::row_bytes;
    static_assert(row_bytes % 16 == 0, "requests begin and end with rows");
    if (lane < 2 * params.early_tiles) {
        const uint64_t tile = work.split + static_cast<uint64_t>(lane / 2) * params.splits;
        const uint64_t first = tile * S::tile_keys;
        if (first < params.capacity) {
            const char* plane = lane % 2 == 0 ? work.keys(params) : work.values(params);
            const auto keys =
                static_cast<uint32_t>(min(params.capacity - first, static_cast<uint64_t>(S::tile_keys)));
            request_bytes(plane + first * row_bytes, keys * row_bytes);
        }
    } else if (lane == 2 * most_early_tiles) {
        request_bytes(work.queries(params), S::group_size * row_bytes);
    } else if (lane == 2 * most_early_tiles + 1) {
        request_line(&params.sequence_lengths[work.request]);
    }
}

// All threads, before any of them reads or writes global memory.
template <class S>
__device__ void wait_for_earlier_grids(const Params& params, Work<S> work, uint32_t warp, int lane) {
    if constexpr (S::pdl) {
        launch_dependents();
        if (warp == 0) {
            request_early(params, work, lane);
        }
        wait_for_prerequisites();
    }
}

} // namespace bakewell
