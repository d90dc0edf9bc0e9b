// The parameter block of stage `compose`. Offsets are those of `bakewell_core::schedule::gdn::compose::PARAMS`.
#pragma once

#include "tables.cuh"

#include <cstdint>

namespace bakewell {

struct Params {
    const Segment* segments;    // [segments]
    const Sequence* sequences;  // [sequences]
    const float* boundary;      // [sequences, value_heads, 128 K, 128 V], h0 or dht; null: zeros
    const float* segment_state; // [segments, value_heads, 128 V, 128 K], H or G
    const float* m;             // [segments, value_heads, 128, 128 K], a row per column of M
    const uint32_t* carries;    // [segments, value_heads]: 0 where M is zero and not there; null: M is always there
    float* start;               // [segments, value_heads, 128 V, 128 K]
    uint32_t value_heads;
    uint32_t adjoint;
};

} // namespace bakewell
