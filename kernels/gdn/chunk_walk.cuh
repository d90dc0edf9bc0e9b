// What a CTA of a scan works on: a segment of a sequence and a value head, chunk by chunk.
#pragma once

#include "walk.cuh"

#include <cstdint>

namespace bakewell {

struct Work {
    Segment segment;
    uint32_t segment_index;
    int value_head;
    int head;
    bool last_segment; // of its sequence
    Walk walk;

    template <class Params>
    static __device__ Work of_block(const Params& params) {
        const uint32_t index = blockIdx.x / params.value_heads, value_head = blockIdx.x % params.value_heads;
        const Segment segment = params.segments[index];
        return {segment,
                index,
                static_cast<int>(value_head),
                static_cast<int>(value_head / (params.value_heads / params.heads)),
                segment.sequence >= 0 && segment.index + 1 == params.sequences[segment.sequence].segments,
                Walk(params.chunks, segment)};
    }

    __device__ bool padding() const { return segment.sequence < 0; }
};

} // namespace bakewell
