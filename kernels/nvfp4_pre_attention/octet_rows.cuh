// Head rows by warps: eight lanes share a row and have a block of sixteen elements each, four rows at a time.
//
// A thread per row would touch as many lines of memory with each load of angles and each store as it has lanes. The data
// path that carries them also carries the operands of the products, which need nearly all of it.
#pragma once

#include "head_row.cuh"

#include <cstdint>

namespace bakewell {

constexpr int row_lanes = row_blocks;
constexpr int warp_rows = 32 / row_lanes;

// Vectors of eight elements in a block.
constexpr int block_vectors = 2;

// Sum over the lanes of a row, neighbours first, which is the tree of the specification; the same bits in each.
__device__ inline float octet_sum(float value) {
#pragma unroll
    for (int distance = 1; distance < row_lanes; distance *= 2) {
        value = __fadd_rn(value, __shfl_xor_sync(~0u, value, distance));
    }
    return value;
}

// What a lane rotates its two vectors with. Vector j of a row pairs with vector j + pairs, for j < pairs.
class OctetRotation {
    uint32_t pairs;
    uint32_t angle[block_vectors];  // vector of cosines; that of sines is `pairs` further on
    uint32_t source[block_vectors]; // lane with the partner
    uint32_t turns[block_vectors];  // what flips the signs of the sines: `negative` or 0; or `still`: not rotated

    static constexpr uint32_t negative = 0x8000'8000, still = 1;

  public:
    explicit __device__ OctetRotation(uint32_t rope_dim) : pairs(rope_dim / block_elements) {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < block_vectors; ++i) {
            const uint32_t vector = lane % row_lanes * block_vectors + i;
            const bool low = vector < pairs, high = !low && vector < 2 * pairs;
            const uint32_t partner = low ? vector + pairs : high ? vector - pairs : vector;
            angle[i] = high ? vector - pairs : vector;
            source[i] = lane / row_lanes * row_lanes + partner / block_vectors;
            turns[i] = low ? negative : high ? 0 : still;
        }
    }

    struct Angles {
        uint4 cosines[block_vectors];
        uint4 sines[block_vectors];
    };

    // Of a token, whose row begins at `row`.
    __device__ Angles load(const uint4* row) const {
        Angles angles;
#pragma unroll
        for (int i = 0; i < block_vectors; ++i) {
            const bool rotated = turns[i] != still;
            angles.cosines[i] = rotated ? row[angle[i]] : make_uint4(0, 0, 0, 0);
            angles.sines[i] = rotated ? row[angle[i] + pairs] : make_uint4(0, 0, 0, 0);
        }
        return angles;
    }

    // All lanes of the warp call it.
    __device__ void apply(Block& block, const Angles& angles) const {
        Block offered;
        // Partners an odd number of vectors apart are a first and a second vector.
        const bool crossed = pairs % block_vectors != 0;
#pragma unroll
        for (int i = 0; i < block_words; ++i) {
            offered[i] = crossed ? block[(i + vector_words) % block_words] : block[i];
        }
#pragma unroll
        for (int i = 0; i < block_vectors; ++i) {
            const uint4 &c = angles.cosines[i], &s = angles.sines[i];
            const uint32_t cosines[vector_words] = {c.x, c.y, c.z, c.w}, sines[vector_words] = {s.x, s.y, s.z, s.w};
#pragma unroll
            for (int j = 0; j < vector_words; ++j) {
                uint32_t& word = block[i * vector_words + j];
                const uint32_t other = __shfl_sync(~0u, offered[i * vector_words + j], source[i]);
                const uint32_t turned = rotate_word(word, other, cosines[j], sines[j] ^ turns[i]);
                word = turns[i] != still ? turned : word;
            }
        }
    }
};

} // namespace bakewell
