// The parameter block of stage `tables`. Offsets are those of `bakewell_core::schedule::gdn::tables::PARAMS`.
#pragma once

#include "tables.cuh"

#include <cstdint>

namespace bakewell {

struct Params {
    const void* cu_seqlens; // [sequence_count + 1] i32 or i64: first token of each sequence, and the end
    Chunk* chunks;          // [chunk_count]
    Segment* segments;      // [segment_count]
    Sequence* sequences;    // [sequence_count]
    uint32_t tokens;
    uint32_t sequence_count;
    uint32_t chunk_count;
    uint32_t segment_count;
    uint32_t segment_chunks; // longest segment; 0: sequences are not cut
    uint32_t cu_seqlens_i64;
};

} // namespace bakewell
