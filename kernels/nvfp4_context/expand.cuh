// Packed FP4 tiles in shared memory, and their expansion to E4M3 rows of 128 bytes under the 128-byte swizzle.
#pragma once

#include "../device/fp4.cuh"
#include "tiles.cuh"

#include <cstdint>

namespace bakewell::nvfp4_context {

constexpr int row_bytes = head_dim; // E4M3
constexpr int chunk_bytes = 16;     // unit of the 128-byte swizzle
constexpr int groups = head_dim / fp4_block;

// One block of K or V of one head as it lies in memory.
struct PackedTile {
    uint8_t codes[block_pages][page_tokens][head_dim / 2];
    uint8_t scales[block_pages][page_tokens * groups];
};
static_assert(sizeof(PackedTile) == 9216);

enum class Side { K, V };

// Place of a scale byte within its page: K is [token][group], V is [token / 4][group][token % 4].
template <Side side>
__device__ constexpr int scale_index(int token, int group) {
    return side == Side::K ? token * groups + group : token / 4 * (4 * groups) + group * 4 + token % 4;
}

// 16 bytes of codes, two blocks, are read at a time. Rows 2j and 2j + 1 read the same chunk at a step; over the four
// pairs of an access phase both the reads (row pitch 64 bytes) and the swizzled stores (block ^ row) must meet different
// banks: step ^ f(j) is a permutation of the pairs, and so is step ^ f(j) ^ j, for f = 0 2 3 1.
constexpr int row_chunks = head_dim / 2 / chunk_bytes;
__device__ inline int chunk_of(int step, int row) {
    constexpr uint32_t f = 0x1320;
    return step ^ static_cast<int>(f >> (4 * (row / 2 % 4)) & 3);
}

// One token's row of the tile, in natural order of dims. A row past the cache is zero: its bytes may be anything, and
// NaN must not meet a weight of zero.
template <Dequantise method, CodeReads reads, Side side>
__device__ void expand_row(const PackedTile& tile, uint8_t* expanded, int row, bool live) {
    const int page = row / page_tokens, token = row % page_tokens;
    const uint4* codes = reinterpret_cast<const uint4*>(tile.codes[page][token]);
    uint4* out = reinterpret_cast<uint4*>(expanded + row * row_bytes);
    const auto expand_chunk = [&](int chunk, uint4 word) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            const int group = 2 * chunk + part;
            const uint2 block = part == 0 ? make_uint2(word.x, word.y) : make_uint2(word.z, word.w);
            const uint4 bytes = dequantise_block<method>(block, tile.scales[page][scale_index<side>(token, group)]);
            out[group ^ (row & 7)] = live ? bytes : make_uint4(0, 0, 0, 0);
        }
    };
    if constexpr (reads == CodeReads::whole_row) {
        uint4 words[row_chunks];
#pragma unroll
        for (int step = 0; step < row_chunks; ++step) {
            words[step] = codes[chunk_of(step, row)];
        }
#pragma unroll
        for (int step = 0; step < row_chunks; ++step) {
            expand_chunk(chunk_of(step, row), words[step]);
        }
    } else {
#pragma unroll 1
        for (int step = 0; step < row_chunks; ++step) {
            const int chunk = chunk_of(step, row);
            expand_chunk(chunk, codes[chunk]);
        }
    }
}

} // namespace bakewell::nvfp4_context
