// Gradients of the gate and of beta of one chunk and value head, from sums of its products.
//
//   dg_i = sum_{m >= i, j < i} Z_mj + sum_{m >= i} a_m + sum_{j < i} kappa_j + keep <S, dS>
//   dbeta_i = <dVb_i, Vn_i> / beta_i, or <dVb_i, V_i> - 2^c_i rk_i <dVb_i S^T, K_i> - sum_j N_ij <dVb_i, Vn_j>
//
// Z, 64 x 64 and strictly lower, comes in 4 x 4 blocks of 16: of a block row, the sums of its columns left of the
// diagonal block; of a row, its sum left of the diagonal block; and the finished sums within the diagonal blocks. Every
// sum runs away from its boundary, so each of its terms has the factor of the gate at the boundary and nothing large
// cancels.
#pragma once

#include "gate.cuh"
#include "tables.cuh"

#include <cstdint>

namespace bakewell {

constexpr uint32_t full_warp = 0xFFFFFFFF;

// Whether beta divides; where it does not, its gradient is the longer sum.
__device__ inline bool divides(float beta) { return fabsf(beta) >= 0x1p-40f; }

// Halves of a pair are summed in order: q and k side of Z, columns of the keys of row sums.
struct GateSums {
    float columns[2][3][48];            // Z: columns of block row 1, 2, 3
    float rows[2][chunk_tokens];        // Z: of a row left of its diagonal block
    float corner[2][chunk_tokens];      // Z: sum over m >= i, j < i within the diagonal block of i
    float outer[2][chunk_tokens];       // a
    float inner[2][chunk_tokens];       // kappa
    float states[8];                    // <S, dS> of each warp
    float diagonal[chunk_tokens];       // <dVb_i, Vn_i>
    float state_value[2][chunk_tokens]; // 2^c_i rk_i <dVb_i S^T, K_i>
    float key_value[chunk_tokens];      // sum_j N_ij <dVb_i, Vn_j>
};

// Sum over the lanes before this one, of a group of `width`.
template <int width = 32>
__device__ inline float sum_before(float x, int lane) {
    float sum = x;
#pragma unroll
    for (int distance = 1; distance < width; distance *= 2) {
        const float before = __shfl_up_sync(full_warp, sum, distance, width);
        sum = lane % width >= distance ? sum + before : sum;
    }
    const float before = __shfl_up_sync(full_warp, sum, 1, width);
    return lane % width > 0 ? before : 0.0f;
}

// Sum over this lane and those behind it, of a group of `width`.
template <int width = 32>
__device__ inline float sum_from(float x, int lane) {
#pragma unroll
    for (int distance = 1; distance < width; distance *= 2) {
        const float behind = __shfl_down_sync(full_warp, x, distance, width);
        x = lane % width + distance < width ? x + behind : x;
    }
    return x;
}

__device__ inline float sum_of_warp(float x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        x += __shfl_xor_sync(full_warp, x, distance);
    }
    return x;
}

// dg of rows `lane` and `lane + 32`.
__device__ inline float2 gate_gradient(const GateSums& sums, float keep, int lane) {
    const auto of = [&](const float (&halves)[2][chunk_tokens], int row) { return halves[0][row] + halves[1][row]; };
    const auto column = [&](int block_row, int j) {
        return sums.columns[0][block_row - 1][j] + sums.columns[1][block_row - 1][j];
    };
    // Boundaries in block 0 have block rows 1 to 3 below them, those in block 1 rows 2 and 3, those in block 2 row 3.
    const float below_0 = lane < 16 ? column(1, lane) + column(2, lane) + column(3, lane) : 0.0f;
    const float below_1 = column(2, lane) + column(3, lane);
    const float below_2 = column(3, lane);
    const float below_2_high = lane < 16 ? column(3, lane + 32) : 0.0f;
    const float before_0 = sum_before(below_0, lane);
    const float before_1 = sum_before(below_1, lane);
    const float before_2 = sum_of_warp(below_2) + sum_before(below_2_high, lane);

    float state = 0.0f;
    for (const float part : sums.states) {
        state += part;
    }
    const float inner = of(sums.inner, lane);
    const float outer_high = of(sums.outer, lane + 32);
    float2 dg;
    dg.x = lane < 16 ? before_0 : before_1;
    dg.x += sum_from<16>(of(sums.rows, lane), lane) + of(sums.corner, lane);
    dg.x += sum_from(of(sums.outer, lane), lane) + sum_of_warp(outer_high);
    dg.x += sum_before(inner, lane) + keep * state;
    dg.y = lane < 16 ? before_2 : 0.0f;
    dg.y += sum_from<16>(of(sums.rows, lane + 32), lane) + of(sums.corner, lane + 32);
    dg.y += sum_from(outer_high, lane);
    dg.y += sum_of_warp(inner) + sum_before(of(sums.inner, lane + 32), lane) + keep * state;
    return dg;
}

// dbeta of a row whose beta does not divide; `value` is <dVb_i, V_i>.
__device__ inline float gradient_without_quotient(const GateSums& sums, int row, float value) {
    return value - (sums.state_value[0][row] + sums.state_value[1][row]) - sums.key_value[row];
}

} // namespace bakewell
