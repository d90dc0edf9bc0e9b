// Sizes and tables that all stages share. Layouts are those of `bakewell_core::schedule::gdn`.
#pragma once

#include <cstdint>

namespace bakewell {

constexpr int chunk_tokens = 64;
constexpr int head_dim = 128;
constexpr int head_bytes = head_dim * 2; // of a bf16 row

struct Chunk {
    uint32_t first_token;
    uint32_t tokens; // 0: padding
    int32_t sequence;
    uint32_t reserved;
};

struct Segment {
    uint32_t first_chunk;
    uint32_t chunks;
    int32_t sequence; // -1: padding
    uint32_t index;   // within the sequence
};

struct Sequence {
    uint32_t first_segment;
    uint32_t segments;
};

static_assert(sizeof(Chunk) == 16 && sizeof(Segment) == 16 && sizeof(Sequence) == 8);

// First byte of the head's row of a token in a bf16 tensor. Strides are in elements.
__device__ inline const char* row_of(const void* base, uint64_t token, uint64_t token_stride, uint32_t head,
                                     uint64_t head_stride) {
    return static_cast<const char*>(base) + (token * token_stride + head * head_stride) * 2;
}

} // namespace bakewell
