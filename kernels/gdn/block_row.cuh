// 16 rows of R or of N', and their part of Z, out of products of tokens with tokens, 16 columns at a time.
//
//   R  = scale rq_t rk_s D_ts o (dO Vn^T), s <= t            Z = (Q K^T) o R     D_ts = 2^(c_t - c_s)
//   N' = -beta_t rk_t rk_s D_ts o (dVb Vn^T), s < t          Z = (K K^T) o N'
//
// Blocks of 16 columns are two tiles of eight, as the accumulators of a warp hold them: element e of lane l is row
// l / 4 + 8 (e / 2), column 2 (l % 4) + e % 2.
#pragma once

#include "gate.cuh"
#include "gate_gradient.cuh"

#include <cstdint>

namespace bakewell {

// Two sums per lane, over the four lanes of a row.
__device__ inline void sum_of_row(float (&sums)[2]) {
    for (float& sum : sums) {
        sum += __shfl_xor_sync(full_warp, sum, 1);
        sum += __shfl_xor_sync(full_warp, sum, 2);
    }
}

// What the tokens of a chunk have: gate sums, write strengths, norms of their queries and keys.
struct TokenFactors {
    const float* gate;
    const float* beta;
    const float* rq;
    const float* rk;
    float scale;
};

class BlockRow {
    static constexpr int block = 16;
    using Tile = float[4];

    const int side; // 0: R, 1: N'
    const int row_block;
    const int lane;
    const TokenFactors& of;
    GateSums& sums;
    // Of the lane's two rows.
    float gate[2];
    float factor[2];
    float sign[2];                  // what N' has besides its masks
    float left[2] = {0.0f, 0.0f};   // Z without the sign, left of the diagonal block
    float inside[2] = {0.0f, 0.0f}; // and in it

    __device__ int row(int element) const { return block * row_block + lane / 4 + element / 2 * 8; }
    __device__ int first_column() const { return lane % 4 * 2; }

    // Eight columns: of the products with Vn makes R or N', of the other products Z.
    template <bool diagonal>
    __device__ void mask(Tile& product, Tile& gradient, int tile) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int r = row(e);
            const int c = 8 * tile + first_column() + e % 2;
            if (diagonal && side == 1 && c == r) {
                sums.diagonal[r] = gradient[e];
            }
            const float decayed = decay(gate[e / 2] - of.gate[c]) * factor[e / 2];
            const bool below = !diagonal || c < r;
            const bool in_matrix = below || (side == 0 && c == r);
            const float masked = in_matrix ? gradient[e] * decayed * of.rk[c] : 0.0f;
            const float z = below ? product[e] * masked : 0.0f;
            (diagonal ? inside : left)[e / 2] += z;
            product[e] = sign[e / 2] * z;
            // A zero stays positive: no bits above the diagonal.
            gradient[e] = fmaf(sign[e / 2], masked, 0.0f);
        }
    }

    __device__ static float sum_of_columns(float x) {
        for (int distance = 4; distance < 32; distance *= 2) {
            x += __shfl_xor_sync(full_warp, x, distance);
        }
        return x;
    }

    // Column sums of a block left of the diagonal.
    __device__ void sum_columns(const Tile& first, const Tile& second, int j) const {
        const float columns[4] = {sum_of_columns(first[0] + first[2]), sum_of_columns(first[1] + first[3]),
                                  sum_of_columns(second[0] + second[2]), sum_of_columns(second[1] + second[3])};
        if (lane / 4 == 0) {
            auto* to = &sums.columns[side][row_block - 1][block * j + first_column()];
            *reinterpret_cast<float2*>(to) = make_float2(columns[0], columns[1]);
            *reinterpret_cast<float2*>(to + 8) = make_float2(columns[2], columns[3]);
        }
    }

    // Sums over m >= i and j < i of a diagonal block, for its 16 boundaries i. Its upper right quarter is zero.
    __device__ void sum_diagonal(const Tile& first, const Tile& second) const {
        const int g = lane / 4;
        const int i = first_column();
        const float upper = sum_before<4>(first[0] + first[1], lane);
        const float lower = sum_before<4>(first[2] + first[3], lane);
        const float lower_total = __shfl_sync(full_warp, lower + first[2] + first[3], 3, 4);
        const float corner = lower_total + sum_before<4>(second[2] + second[3], lane);
        const float at[4] = {sum_of_columns((g >= i ? upper : 0.0f) + lower),
                             sum_of_columns((g >= i + 1 ? upper + first[0] : 0.0f) + lower + first[2]),
                             sum_of_columns(g >= i ? corner : 0.0f),
                             sum_of_columns(g >= i + 1 ? corner + second[2] : 0.0f)};
        if (g == 0) {
            auto* to = &sums.corner[side][block * row_block + i];
            *reinterpret_cast<float2*>(to) = make_float2(at[0], at[1]);
            *reinterpret_cast<float2*>(to + 8) = make_float2(at[2], at[3]);
        }
    }

    __device__ void put(float (&to)[chunk_tokens], float first, float second) const {
        if (lane % 4 == 0) {
            to[row(0)] = first;
            to[row(2)] = second;
        }
    }

  public:
    __device__ BlockRow(int side, int row_block, int lane, const TokenFactors& of, GateSums& sums)
        : side(side), row_block(row_block), lane(lane), of(of), sums(sums) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int at = row(2 * i);
            gate[i] = of.gate[at];
            factor[i] = side == 1 ? of.rk[at] : of.scale * of.rq[at];
            sign[i] = side == 1 ? -of.beta[at] : 1.0f;
        }
    }

    // Block `j` of columns, left of the diagonal block, or that block itself: `gradient`, products with Vn, becomes R or N';
    // `product`, those of q or k with k, Z. Whole warps.
    __device__ void add_left(Tile (&product)[2], Tile (&gradient)[2], int j) {
        mask<false>(product[0], gradient[0], 2 * j);
        mask<false>(product[1], gradient[1], 2 * j + 1);
        sum_columns(product[0], product[1], j);
    }

    __device__ void add_diagonal(Tile (&product)[2], Tile (&gradient)[2]) {
        mask<true>(product[0], gradient[0], 2 * row_block);
        mask<true>(product[1], gradient[1], 2 * row_block + 1);
        sum_diagonal(product[0], product[1]);
    }

    // After all blocks: sums of rows.
    __device__ void finish() {
        sum_of_row(left);
        sum_of_row(inside);
        if (side == 1) {
            put(sums.key_value, left[0] + inside[0], left[1] + inside[1]);
        }
        put(sums.rows[side], sign[0] * left[0], sign[1] * left[1]);
    }
};

} // namespace bakewell
