// The epilogue of one head row: 128 words v = bf16(acc * alpha) of one token, head and kind.
//
//   Q, K:  y = bf16(v * rstd * weight), rotated in its first rope_dim elements (split halves: d with d + rope_dim / 2)
//   V:     y = v
//   out:   NVFP4 codes with a scale per 16 elements, or E4M3 of y * scale
//
// Every operation is rounded once, in the order that the specification fixes, so that all kernels and all targets write
// the same bytes. Words travel packed, two bf16 a register, the even element low.
#pragma once

#include "../device/element.cuh"
#include "../device/fp8.cuh"
#include "quantise.cuh"
#include "scale_layout.cuh"
#include "words.cuh"

#include <cstdint>

namespace bakewell {

constexpr int head_dim = 128;
constexpr int block_elements = scale_group;
constexpr int row_blocks = head_dim / block_elements;
constexpr int row_words = head_dim / 2;

// Sixteen elements: what shares a scale, and the unit in which a row is split between threads.
constexpr int block_words = block_elements / 2;
using Block = uint32_t[block_words];

// ---------------------------------------------------------------- normalisation

// Sum of squares of a block: a chain for each half.
__device__ inline float square_sum(const Block& block) {
    float half[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < block_words; ++i) {
        float& sum = half[i / (block_words / 2)];
        sum = __fmaf_rn(low_value(block[i]), low_value(block[i]), sum);
        sum = __fmaf_rn(high_value(block[i]), high_value(block[i]), sum);
    }
    return __fadd_rn(half[0], half[1]);
}

// From the sum over the row, which is ((p0 + p1) + (p2 + p3)) + ((p4 + p5) + (p6 + p7)) of the blocks' sums.
__device__ inline float row_rstd(float sum, float eps) {
    return __frsqrt_rn(__fadd_rn(__fmul_rn(sum, 1.0f / head_dim), eps));
}

// `weights`: the two vectors of the block's weights.
__device__ inline void normalise(Block& block, float rstd, const uint4* weights) {
    const auto scaled = [rstd](float value, float weight) { return __fmul_rn(__fmul_rn(value, rstd), weight); };
    const uint4 low = weights[0], high = weights[1];
    const uint32_t words[block_words] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < block_words; ++i) {
        block[i] = pack<Element::bf16>(scaled(low_value(block[i]), low_value(words[i])),
                                       scaled(high_value(block[i]), high_value(words[i])));
    }
}

// ---------------------------------------------------------------- rotation

// Two elements with their partners half the rotated width away: c * own + s * other, where the sine of the first half is
// negated.
__device__ inline uint32_t rotate_word(uint32_t own, uint32_t other, uint32_t cosines, uint32_t sines) {
    const auto turned = [](float c, float own, float s, float other) { return __fmaf_rn(c, own, __fmul_rn(other, s)); };
    return pack<Element::bf16>(turned(low_value(cosines), low_value(own), low_value(sines), low_value(other)),
                               turned(high_value(cosines), high_value(own), high_value(sines), high_value(other)));
}

// Rotates eight elements `low` with their partners `high`.
__device__ inline void rotate(uint32_t* low, uint32_t* high, const uint4& cosines, const uint4& sines) {
    constexpr uint32_t signs = 0x8000'8000;
    const uint32_t cos_words[vector_words] = {cosines.x, cosines.y, cosines.z, cosines.w};
    const uint32_t sin_words[vector_words] = {sines.x, sines.y, sines.z, sines.w};
#pragma unroll
    for (int i = 0; i < vector_words; ++i) {
        const uint32_t first = low[i], second = high[i];
        low[i] = rotate_word(first, second, cos_words[i], sin_words[i] ^ signs);
        high[i] = rotate_word(second, first, cos_words[i], sin_words[i]);
    }
}

// ---------------------------------------------------------------- output

// Largest magnitude of a block.
__device__ inline float largest_magnitude(const Block& block) {
    uint32_t largest = block[0];
#pragma unroll
    for (int i = 1; i < block_words; ++i) {
        largest = larger_magnitudes(largest, block[i]);
    }
    return larger_magnitude(largest);
}

// The sixteen codes of a block under its scale.
template <bool e2m1_instruction>
__device__ inline uint2 quantise_fp4(const Block& block, const BlockScale& scale) {
    return make_uint2(encode_e2m1<e2m1_instruction>(block, scale.inverse),
                      encode_e2m1<e2m1_instruction>(block + vector_words, scale.inverse));
}

// The sixteen bytes of a block.
__device__ inline uint4 quantise_e4m3(const Block& block, float inverse) {
    uint32_t bytes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t first = block[2 * i], second = block[2 * i + 1];
        bytes[i] = pack_e4m3(__fmul_rn(low_value(first), inverse), __fmul_rn(high_value(first), inverse),
                             __fmul_rn(low_value(second), inverse), __fmul_rn(high_value(second), inverse));
    }
    return make_uint4(bytes[0], bytes[1], bytes[2], bytes[3]);
}

// ---------------------------------------------------------------- places

enum class Kind : uint32_t { q, k, v };
constexpr uint32_t kinds = 3;

// Which row of which destination a head row is. `heads` in all are shared out over `destinations`.
struct RowPlace {
    uint32_t local_heads; // of a destination
    uint32_t destination;
    uint64_t head_kind; // in a token of the destination: local head * 3 + kind
    uint64_t row;       // in the destination: token * local heads * 3 + head_kind

    __device__ RowPlace(uint64_t token, uint32_t head, Kind kind, uint32_t heads, uint32_t destinations)
        : local_heads(heads / destinations), destination(head / local_heads),
          head_kind(static_cast<uint64_t>(head % local_heads) * kinds + static_cast<uint32_t>(kind)),
          row(token * local_heads * kinds + head_kind) {}
};

// Sets of four scales in a row of the output.
constexpr uint32_t row_scale_sets = row_blocks / scale_tile_groups;

// Bytes of a destination's scales: whole tiles of 128 rows.
__device__ inline uint64_t destination_scale_bytes(uint64_t tokens, uint32_t local_heads) {
    const uint64_t tiles = (tokens * local_heads * kinds + scale_tile_rows - 1) / scale_tile_rows;
    return tiles * row_scale_sets * scale_tile_bytes;
}

} // namespace bakewell
