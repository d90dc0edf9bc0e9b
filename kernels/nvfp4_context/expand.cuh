// Packed FP4 tiles in shared memory, and their expansion to E4M3 rows of 128 bytes under the 128-byte swizzle.
#pragma once

#include "../device/fp4.cuh"
#include "tiles.cuh"

#include <cstdint>

namespace bakewell {

constexpr int row_bytes = head_dim; // E4M3
constexpr int chunk_bytes = 16;     // unit of the 128-byte swizzle
constexpr int swizzle_period = 1024; // its pattern repeats; operands start at a multiple
constexpr int copy_alignment = 128;  // of a tensor copy in shared memory
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
    if (!live) {
#pragma unroll
        for (int chunk = 0; chunk < groups; ++chunk) {
            out[chunk ^ (row & 7)] = make_uint4(0, 0, 0, 0);
        }
        return;
    }
    const auto expand_chunk = [&](int chunk, uint4 word) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            const int group = 2 * chunk + part;
            const uint2 block = part == 0 ? make_uint2(word.x, word.y) : make_uint2(word.z, word.w);
            const uint4 bytes = dequantise_block<method>(block, tile.scales[page][scale_index<side>(token, group)]);
            out[group ^ (row & 7)] = bytes;
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

// One block of V as an operand that must be K-major: row = dim, 128 bytes = the block's tokens. Within a page, bytes
// 4t .. 4t + 3 hold tokens 2t, 2t + 1, 8 + 2t, 9 + 2t: the four weights that thread t of a quad has in registers.
//
// 128 threads; each takes 8 tokens of a page x 16 dims. A half-warp covers 8 pages x 2 token octets: its stores (chunk =
// page ^ dim) meet different banks, and its reads do since the pages take different groups and the second octet reads
// its token pairs the other way round. Tokens come in quarters of a page, to hold half as many words.
class Transposer {
    int page, octet, group;

    // Tokens of a quarter of a page, less 4 octet: bytes 4t .. 4t + 3 of a row for t = 2 octet + quarter.
    static constexpr __device__ int token_of(int step, int quarter) {
        constexpr int tokens[4] = {0, 1, 8, 9};
        return tokens[step] + 2 * quarter;
    }

    // Bytes 0 1 (low) or 2 3 (high) of two words, interleaved; the words change places in the second octet.
    __device__ uint32_t interleave_low(uint32_t a, uint32_t b) const {
        return __byte_perm(a, b, octet == 0 ? 0x5140 : 0x1504);
    }
    __device__ uint32_t interleave_high(uint32_t a, uint32_t b) const {
        return __byte_perm(a, b, octet == 0 ? 0x7362 : 0x3726);
    }

    // The scales of four neighbouring tokens, in the order in which they are read.
    __device__ uint32_t scales_of(const PackedTile& tile, int first_token) const {
        const int at = scale_index<Side::V>(first_token, group);
        const uint32_t four = *reinterpret_cast<const uint32_t*>(&tile.scales[page][at]);
        return octet == 0 ? four : __byte_perm(four, 0, 0x2301);
    }

  public:
    explicit __device__ Transposer(int thread)
        : page(thread % block_pages), octet(thread / block_pages % 2), group((thread / (2 * block_pages) + page) % groups) {}

    // Tokens from `live_tokens` on become zeros.
    __device__ void expand(const PackedTile& tile, uint8_t* expanded, int live_tokens) const {
        const uint32_t scales[2] = {scales_of(tile, 4 * octet), scales_of(tile, 8 + 4 * octet)};
        // One quarter at a time: its sixteen words are all that is live.
#pragma unroll 1
        for (int quarter = 0; quarter < 2; ++quarter) {
            expand_quarter(tile, expanded, live_tokens, quarter, scales[0] >> (16 * quarter), scales[1] >> (16 * quarter));
        }
    }

  private:
    __device__ void expand_quarter(const PackedTile& tile, uint8_t* expanded, int live_tokens, int quarter,
                                   uint32_t low_scales, uint32_t high_scales) const {
        constexpr int steps = 4, words = fp4_block / 4;
        uint32_t bytes[steps][words];
#pragma unroll
        for (int step = 0; step < steps; ++step) {
            const int token = (token_of(step, quarter) + 4 * octet) ^ octet;
            const uint2 codes = *reinterpret_cast<const uint2*>(&tile.codes[page][token][group * fp4_block / 2]);
            const Fp4Table table((step < 2 ? low_scales : high_scales) >> (8 * (step % 2)) & 0xFF);
            const bool live = page * page_tokens + token < live_tokens;
            bytes[step][0] = live ? table.look_up(codes.x) : 0;
            bytes[step][1] = live ? table.look_up(codes.x >> 16) : 0;
            bytes[step][2] = live ? table.look_up(codes.y) : 0;
            bytes[step][3] = live ? table.look_up(codes.y >> 16) : 0;
        }
#pragma unroll
        for (int word = 0; word < words; ++word) {
            const auto of = [&](int step) { return bytes[step][word]; };
            const uint32_t low[2] = {interleave_low(of(0), of(1)), interleave_low(of(2), of(3))};
            const uint32_t high[2] = {interleave_high(of(0), of(1)), interleave_high(of(2), of(3))};
            const uint32_t dims[4] = {__byte_perm(low[0], low[1], 0x5410), __byte_perm(low[0], low[1], 0x7632),
                                      __byte_perm(high[0], high[1], 0x5410), __byte_perm(high[0], high[1], 0x7632)};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int dim = group * fp4_block + 4 * word + i;
                uint8_t* row = expanded + dim * block_keys;
                *reinterpret_cast<uint32_t*>(row + (page ^ (dim & 7)) * chunk_bytes + 8 * octet + 4 * quarter) = dims[i];
            }
        }
    }
};

} // namespace bakewell
