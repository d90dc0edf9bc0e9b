// What a segment remembers of the state at its one end when it arrives at the other.
//
// Keys of norm at most 1 and beta in 0 .. 2 make every token's factor I - beta k k^T one of norm at most 1: a chunk leaves
// of a state at most 2^c_last of its norm. `fade` has that exponent for every chunk and value head, infinity where there
// is no such bound. A pre-scan needs only the chunks whose exponents sum to less than `forget`.
#pragma once

#include "tables.cuh"

#include <cstdint>

namespace bakewell {

// Chunks of a segment that count, and whether those before them are forgotten.
struct Remembered {
    uint32_t chunks;
    bool forgets;
};

// Counts from the last chunk on (`from_end`) or from the first. A warp together. `fade` null: nothing is forgotten.
template <bool from_end>
__device__ inline Remembered remember(const float* fade, float forget, const Segment& segment, uint32_t value_heads,
                                      uint32_t value_head, int lane) {
    constexpr uint32_t full_warp = 0xFFFFFFFF, warp_lanes = 32;
    if (fade == nullptr) {
        return {segment.chunks, false};
    }
    float before = 0.0f;
    for (uint32_t first = 0; first < segment.chunks; first += warp_lanes) {
        const uint32_t i = first + lane;
        const bool live = i < segment.chunks;
        const uint32_t position = from_end ? segment.chunks - 1 - i : i;
        const uint64_t chunk = segment.first_chunk + static_cast<uint64_t>(live ? position : 0);
        float sum = live ? fade[chunk * value_heads + value_head] : 0.0f;
        for (int distance = 1; distance < static_cast<int>(warp_lanes); distance *= 2) {
            const float other = __shfl_up_sync(full_warp, sum, distance);
            sum = lane >= distance ? sum + other : sum;
        }
        sum += before;
        // A sum that is not a number is not below anything.
        const uint32_t below = __ballot_sync(full_warp, live && sum < forget);
        if (below != 0) {
            return {first + static_cast<uint32_t>(__ffs(static_cast<int>(below))), true};
        }
        before = __shfl_sync(full_warp, sum, warp_lanes - 1);
    }
    return {segment.chunks, false};
}

} // namespace bakewell
