// A head row in the registers of one thread, in the terms of `ColumnSet`: nothing to exchange.
#pragma once

#include "head_row.cuh"

#include <cstdint>

namespace bakewell {

struct NoExchange {};

// `rope_dim`: 0 when the width is known at run time only.
template <int rope_dim>
struct WholeRow {
    static constexpr int blocks = row_blocks;
    static constexpr int neighbours = 2; // blocks that lie side by side
    static constexpr int scale_groups = 2;

    uint32_t words[row_words];

    __device__ Block& block(int b) { return reinterpret_cast<Block&>(words[b * block_words]); }
    __device__ const Block& block(int b) const { return reinterpret_cast<const Block&>(words[b * block_words]); }
    __device__ uint32_t block_index(int i) const { return i; }

    // `weights`: 16 vectors.
    __device__ void normalise(const uint4* weights, float eps, NoExchange) {
        float sums[row_blocks];
#pragma unroll
        for (int b = 0; b < row_blocks; ++b) {
            sums[b] = square_sum(block(b));
        }
#pragma unroll
        for (int width = 1; width < row_blocks; width *= 2) {
#pragma unroll
            for (int b = 0; b < row_blocks; b += 2 * width) {
                sums[b] = __fadd_rn(sums[b], sums[b + width]);
            }
        }
        const float rstd = row_rstd(sums[0], eps);
#pragma unroll
        for (int b = 0; b < row_blocks; ++b) {
            bakewell::normalise(block(b), rstd, weights + 2 * b);
        }
    }

    // `angles`: the token's row of cosines, then sines.
    __device__ void rotate(const uint4* angles, uint32_t width) {
        static_assert(rope_dim % block_elements == 0 && rope_dim <= head_dim);
        if constexpr (rope_dim == 0) {
            rotate_any(angles, width / block_elements);
        } else {
            constexpr int vectors = rope_dim / block_elements; // of cosines, and as many of sines
#pragma unroll
            for (int i = 0; i < vectors; ++i) {
                rotate_pair(i, i + vectors, angles[i], angles[i + vectors]);
            }
        }
    }

    __device__ uint32_t first_group() const { return 0; }
    __device__ void group_scales(const uint32_t (&scales)[row_blocks], NoExchange,
                                 uint32_t (&groups)[scale_groups]) const {
#pragma unroll
        for (int i = 0; i < scale_groups; ++i) {
            groups[i] = scales[4 * i] | scales[4 * i + 1] << 8 | scales[4 * i + 2] << 16 | scales[4 * i + 3] << 24;
        }
    }

  private:
    __device__ void rotate_pair(int low, int high, const uint4& cosines, const uint4& sines) {
        bakewell::rotate(&words[low * vector_words], &words[high * vector_words], cosines, sines);
    }

    // A width known at run time: `vectors` of cosines and as many of sines. Registers cannot be indexed, so that each
    // pair of vectors that may meet has a branch of its own.
    __device__ void rotate_any(const uint4* angles, uint32_t vectors) {
        constexpr uint32_t most = row_words / vector_words / 2;
#pragma unroll
        for (uint32_t i = 0; i < most; ++i) {
            // Read anew: knowing it from the branch before, the compiler would unfold all widths side by side.
            asm volatile("" : "+r"(vectors));
            if (i < vectors) {
                const uint4 cosines = angles[i], sines = angles[i + vectors];
#pragma unroll
                for (uint32_t distance = i + 1; distance <= most; ++distance) {
                    if (distance == vectors) {
                        rotate_pair(i, i + distance, cosines, sines);
                    }
                }
            }
        }
    }
};

} // namespace bakewell
