// The inverse of a chunk's unit lower triangle by blocks of 16 x 16, from the products of its keys: one warp.
//
// The diagonal blocks are inverted by substitution in f32, a lane per column; the other blocks never leave the registers
// they were made in. Their products split operands in two bf16: accumulators are left operands as they are, those of a
// transposed product are right operands. A is rounded once.
#pragma once

#include "../device/ldmatrix.cuh"
#include "../device/split_bf16.cuh"
#include "prepare_chunk.cuh"

#include <cstdint>

namespace bakewell {

// 16 x 16 floats. The pitch puts four columns of 8 rows, and eight of 4 pairs of rows, into different banks.
struct Block {
    float at[block_rows][20];
};

using SquareTile = SwizzledTile<chunk_tokens, chunk_tokens * 2>;

// Of a value head.
union BlockSpace {
    // -L of diagonal blocks, transposed; what is not below the diagonal is not meant. Then the inverses, transposed.
    Block diagonal[block_count];
    // A on its way out.
    SquareTile inverse;
};

// -L: in place, and to shared memory where it is a diagonal block. Decays of other blocks are products of two, with the
// last row of the column's block between them. Rows past the chunk are 0: their keys are, and their factors.
__device__ void make_lower(BlockSpace& blocks, const TokenFactors& factors, KeyProducts& products, const Work& work) {
    const auto& [group, pair] = work.fragment;
#pragma unroll
    for (int i = 0; i < block_count; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int r = group + 8 * half;
            const int row = block_rows * i + r;
            const float factor = factors.row[row];
            const float gate = factors.gate[row];
#pragma unroll
            for (int j = 0; j < i; ++j) {
                const float row_factor = factor * decay(gate - factors.gate[block_rows * j + block_rows - 1]);
#pragma unroll
                for (int tile = 0; tile < 2; ++tile) {
                    const int column = block_rows * j + 8 * tile + 2 * pair;
                    const float2 column_factors = *reinterpret_cast<const float2*>(&factors.column[column]);
                    auto& sums = products[block_index(i, j)][tile];
                    // r_t r_s may exceed f32 where both rows are zero; r_t (k . k) r_s does not.
                    sums[2 * half] = row_factor * sums[2 * half] * column_factors.x;
                    sums[2 * half + 1] = row_factor * sums[2 * half + 1] * column_factors.y;
                }
            }
#pragma unroll
            for (int tile = 0; tile <= half; ++tile) {
                const int c = 8 * tile + 2 * pair;
                const float2 rk = *reinterpret_cast<const float2*>(&factors.rk[block_rows * i + c]);
                const float2 gates = *reinterpret_cast<const float2*>(&factors.gate[block_rows * i + c]);
                const auto& sums = products[block_index(i, i)][tile];
                auto& block = blocks.diagonal[i].at;
                block[c][r] = factor * sums[2 * half] * rk.x * decay(gate - gates.x);
                block[c + 1][r] = factor * sums[2 * half + 1] * rk.y * decay(gate - gates.y);
            }
        }
    }
    __syncwarp();
}

// Inverses of two neighbouring diagonal blocks of I + L, a lane per column.
__device__ void invert_diagonal(BlockSpace& blocks, int first, int lane) {
    const int i = first + lane / block_rows;
    auto& lower = blocks.diagonal[i].at;
    const int column = lane % block_rows;
    float x[block_rows];
#pragma unroll
    for (int r = 0; r < block_rows; ++r) {
        x[r] = r == column ? 1.0f : 0.0f;
    }
#pragma unroll
    for (int m = 0; m < block_rows - 1; ++m) {
#pragma unroll
        for (int r = m / 4 * 4; r < block_rows; r += 4) {
            const float4 l = *reinterpret_cast<const float4*>(&lower[m][r]);
            const float four[4] = {l.x, l.y, l.z, l.w};
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                if (r + e > m) {
                    x[r + e] = fmaf(four[e], x[m], x[r + e]);
                }
            }
        }
    }
    // All lanes have read L before its place is taken.
    __syncwarp();
#pragma unroll
    for (int r = 0; r < block_rows; r += 4) {
        *reinterpret_cast<float4*>(&lower[column][r]) = make_float4(x[r], x[r + 1], x[r + 2], x[r + 3]);
    }
}

// Four pairs of neighbours along the sum, split: a left operand of 16 rows, or a right operand of 16 columns.
struct Operand {
    SplitPair at[4];

    // Left: the block as it lies.
    static __device__ Operand rows_of(const Block& block, const FragmentLane& lane) {
        Operand operand;
        for (int n = 0; n < 4; ++n) {
            const float* row = block.at[lane.group + n % 2 * 8];
            operand.at[n] = SplitPair::of(*reinterpret_cast<const float2*>(row + 2 * lane.pair + n / 2 * 8));
        }
        return operand;
    }

    // Left: the block transposed.
    static __device__ Operand columns_of(const Block& block, const FragmentLane& lane) {
        Operand operand;
        for (int n = 0; n < 4; ++n) {
            const int row = lane.group + n % 2 * 8;
            const int column = 2 * lane.pair + n / 2 * 8;
            operand.at[n] = SplitPair::of(block.at[column][row], block.at[column + 1][row]);
        }
        return operand;
    }

    // Left: accumulators.
    static __device__ Operand of(const BlockSum& sum) {
        return {SplitPair::of(sum[0][0], sum[0][1]), SplitPair::of(sum[0][2], sum[0][3]),
                SplitPair::of(sum[1][0], sum[1][1]), SplitPair::of(sum[1][2], sum[1][3])};
    }
};

// sum += left right^T: the rows of `right`, a left operand too, are the columns.
__device__ void add_product(BlockSum& sum, const Operand& left, const Operand& right) {
    for (int tile = 0; tile < 2; ++tile) {
        const SplitPair columns[2] = {right.at[tile], right.at[tile + 2]};
        mma_split(sum[tile], left.at, columns);
    }
}

// A rounded, through its place in shared memory.
struct InverseWords {
    uint32_t at[lower_blocks][4];

    __device__ void set(int i, int j, const BlockSum& sum) {
        for (int n = 0; n < 4; ++n) {
            at[block_index(i, j)][n] = pack<Element::bf16>(sum[n / 2][n % 2 * 2], sum[n / 2][n % 2 * 2 + 1]);
        }
    }

    // Rows of a block that is stored transposed.
    __device__ void set_diagonal(int i, const Block& block, const FragmentLane& lane) {
        for (int n = 0; n < 4; ++n) {
            const int row = lane.group + n % 2 * 8;
            const int column = 2 * lane.pair + n / 2 * 8;
            at[block_index(i, i)][n] = pack<Element::bf16>(block.at[column][row], block.at[column + 1][row]);
        }
    }
};

// Where a lane's row of a block of A lies, for stmatrix.
class InverseCursor {
    SquareTile::Cursor first;

  public:
    __device__ InverseCursor(const SquareTile& inverse, int lane) : first(inverse, lane % 16, lane / 16) {}

    __device__ uint32_t at(int i, int j) const { return first.at(block_rows * i, 2 * j); }
};

// The blocks below the diagonal, with N = -L: X_ij = sum_m X_im N_ml X_lj.
//   X_10 = X_11 N_10 X_00, transposed; X_32 = X_33 N_32 X_22; then T_mj = sum_l N_ml X_lj for m in 2, 3 and j in 0, 1,
//   transposed; X_2j = X_22 T_2j; X_3j = X_32 T_2j + X_33 T_3j.
__device__ void make_inverse(InverseWords& words, const BlockSpace& blocks, const KeyProducts& lower, const Work& work) {
    const FragmentLane& lane = work.fragment;
    const auto& diagonal = blocks.diagonal;
    const auto below = [&](int i, int j) { return Operand::of(lower[block_index(i, j)]); };
    const Operand x00_t = Operand::rows_of(diagonal[0], lane);
    const Operand x11_t = Operand::rows_of(diagonal[1], lane);
    BlockSum u_t = {};
    add_product(u_t, x00_t, below(1, 0));
    BlockSum x10_t = {};
    add_product(x10_t, Operand::of(u_t), Operand::columns_of(diagonal[1], lane));
    // As it lies, for the output: the lanes transpose their 8 x 8 matrices.
    for (int n = 0; n < 4; ++n) {
        const auto& sums = x10_t[n % 2];
        words.at[block_index(1, 0)][n] =
            transpose_8x8(pack<Element::bf16>(sums[n / 2 * 2], sums[n / 2 * 2 + 1]));
    }

    const Operand x33 = Operand::columns_of(diagonal[3], lane);
    BlockSum v_t = {};
    add_product(v_t, Operand::rows_of(diagonal[2], lane), below(3, 2));
    BlockSum x32 = {};
    add_product(x32, x33, Operand::of(v_t));
    words.set(3, 2, x32);

    const Operand x10_left = Operand::of(x10_t);
    BlockSum t_t[2][2] = {};
    for (int m = 0; m < 2; ++m) {
        const Operand n1 = below(2 + m, 1);
        add_product(t_t[m][0], x00_t, below(2 + m, 0));
        add_product(t_t[m][0], x10_left, n1);
        add_product(t_t[m][1], x11_t, n1);
    }
    const Operand x22 = Operand::columns_of(diagonal[2], lane);
    const Operand x32_left = Operand::of(x32);
    for (int j = 0; j < 2; ++j) {
        const Operand t2 = Operand::of(t_t[0][j]);
        const Operand t3 = Operand::of(t_t[1][j]);
        BlockSum x2 = {};
        add_product(x2, x22, t2);
        words.set(2, j, x2);
        BlockSum x3 = {};
        add_product(x3, x32_left, t2);
        add_product(x3, x33, t3);
        words.set(3, j, x3);
    }
    for (int i = 0; i < block_count; ++i) {
        words.set_diagonal(i, diagonal[i], lane);
    }
}

// A of a value head, whose key products and factors are there, into its place in shared memory; nothing above the diagonal
// blocks.
__device__ void invert(BlockSpace& blocks, const TokenFactors& factors, KeyProducts& products, const Work& work) {
    make_lower(blocks, factors, products, work);
    invert_diagonal(blocks, 0, work.lane);
    invert_diagonal(blocks, 2, work.lane);
    __syncwarp();
    InverseWords words;
    make_inverse(words, blocks, products, work);
    const InverseCursor target(blocks.inverse, work.lane);
    // All lanes have read the blocks.
    __syncwarp();
    for (int i = 0; i < block_count; ++i) {
        for (int j = 0; j <= i; ++j) {
            const auto& w = words.at[block_index(i, j)];
            stmatrix_x4(target.at(i, j), w[0], w[1], w[2], w[3]);
        }
    }
}

} // namespace bakewell
