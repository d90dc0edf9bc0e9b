// Operands of mma_m16n8k16 out of bf16 tiles in shared memory, 16 x 16 at a time, and accumulators as operands.
//
// X is a tile, (row, column) the corner of a 16 x 16 block of it. A left operand A[16, 16] is one instruction's, a
// right operand B[16, 16] that of two: words 0 and 1 for its first 8 columns, 2 and 3 for the others.
#pragma once

#include "../device/element.cuh"
#include "../device/ldmatrix.cuh"
#include "../device/mma_sync.cuh"

#include <cstdint>

namespace bakewell {

// The row is added last, where it is an immediate of the instruction. It is a multiple of the period of the
// permutation.

// Lane t addresses row t % 16, piece t / 16: matrices down the first 8 columns, then down the others.
template <class Tile>
__device__ inline uint32_t down_address(const Tile& x, int row, int column, int lane) {
    return typename Tile::Cursor(x, lane % 16, lane / 16).at(0, column / 8) + row * Tile::pieces * 16;
}

// Matrices along the first 8 rows, then along the others.
template <class Tile>
__device__ inline uint32_t along_address(const Tile& x, int row, int column, int lane) {
    return typename Tile::Cursor(x, lane % 8 + lane / 16 * 8, lane / 8 % 2).at(0, column / 8) + row * Tile::pieces * 16;
}

// A = X.
template <class Tile>
__device__ inline void load_left(uint32_t (&a)[4], const Tile& x, int row, int column, int lane) {
    ldmatrix_x4(a, down_address(x, row, column, lane));
}

// A = X^T: rows of A are columns of X.
template <class Tile>
__device__ inline void load_left_transposed(uint32_t (&a)[4], const Tile& x, int row, int column, int lane) {
    ldmatrix_x4_transposed(a, along_address(x, row, column, lane));
}

// B = X.
template <class Tile>
__device__ inline void load_right(uint32_t (&b)[4], const Tile& x, int row, int column, int lane) {
    ldmatrix_x4_transposed(b, down_address(x, row, column, lane));
}

// B = X^T: columns of B are rows of X.
template <class Tile>
__device__ inline void load_right_transposed(uint32_t (&b)[4], const Tile& x, int row, int column, int lane) {
    ldmatrix_x4(b, along_address(x, row, column, lane));
}

// Two accumulators side by side, [16, 16], rounded: the words of a left operand.
__device__ inline void pack_left(uint32_t (&a)[4], const float (&first)[4], const float (&second)[4]) {
    a[0] = pack<Element::bf16>(first[0], first[1]);
    a[1] = pack<Element::bf16>(first[2], first[3]);
    a[2] = pack<Element::bf16>(second[0], second[1]);
    a[3] = pack<Element::bf16>(second[2], second[3]);
}

// X = A.
template <class Tile>
__device__ inline void store_left(Tile& x, int row, int column, const uint32_t (&a)[4], int lane) {
    stmatrix_x4(down_address(x, row, column, lane), a[0], a[1], a[2], a[3]);
}

// X = A^T.
template <class Tile>
__device__ inline void store_left_transposed(Tile& x, int row, int column, const uint32_t (&a)[4], int lane) {
    stmatrix_x4_transposed(along_address(x, row, column, lane), a[0], a[1], a[2], a[3]);
}

// Two accumulators side by side += A B.
__device__ inline void multiply(float (&first)[4], float (&second)[4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
    mma_m16n8k16<Element::bf16>(first, a[0], a[1], a[2], a[3], b[0], b[1]);
    mma_m16n8k16<Element::bf16>(second, a[0], a[1], a[2], a[3], b[2], b[3]);
}

// The two bf16 of a word as f32.
__device__ inline float2 unpack(uint32_t word) {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000));
}

} // namespace bakewell
