// The chunks that a CTA of a scan walks over.
#pragma once

#include "schedule.cuh"
#include "tables.cuh"

#include <cstdint>

namespace bakewell {

// The chunks of one segment in the order of a scan. All but the last of a sequence are full.
struct Walk {
    int count;
    int first_chunk;
    int first_token;
    int last_tokens;

    __device__ Walk(const Chunk* chunks, const Segment& segment)
        : count(static_cast<int>(segment.chunks)), first_chunk(static_cast<int>(segment.first_chunk)), first_token(0),
          last_tokens(0) {
        if (count > 0) {
            first_token = static_cast<int>(chunks[first_chunk].first_token);
            last_tokens = static_cast<int>(chunks[first_chunk + count - 1].tokens);
        }
    }

    __device__ int position(int step) const { return Schedule::backward ? count - 1 - step : step; }
    __device__ int chunk(int step) const { return first_chunk + position(step); }
    __device__ int64_t token(int step) const {
        return first_token + static_cast<int64_t>(position(step)) * chunk_tokens;
    }
    __device__ int tokens(int step) const { return position(step) + 1 < count ? chunk_tokens : last_tokens; }
};

} // namespace bakewell
