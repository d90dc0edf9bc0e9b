// Warp-wide matrix products on registers. Lane t holds row or column g = t / 4 and the pair q = t % 4.
#pragma once

#include "schedule_types.cuh"

#include <cstdint>

namespace bakewell {

// Position of a lane in a matrix fragment.
struct FragmentLane {
    int group; // t / 4: row of A and C, column of B
    int pair;  // t % 4: pair of columns of A and C, pair of rows of B

    static __device__ FragmentLane of(int lane) { return {lane >> 2, lane & 3}; }
};

// C[16, 8] += A[16, 16] B[16, 8], accumulated in f32.
// a: (row g, k low), (row g + 8, k low), (row g, k high), (row g + 8, k high); b: k low, k high;
// c: (row g, columns 2q, 2q + 1), (row g + 8, columns 2q, 2q + 1). k low is {2q, 2q + 1}, k high 8 more.
// PTX: mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
template <Element element>
__device__ inline void mma_m16n8k16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1) {
    if constexpr (element == Element::f16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
}

// Transposes an 8x8 matrix of 16-bit elements across the warp: row g, columns {2q, 2q + 1} in,
// column g, rows {2q, 2q + 1} out. PTX: movmatrix.sync.aligned.m8n8.trans.b16
__device__ inline uint32_t transpose_8x8(uint32_t row_pair) {
    uint32_t column_pair;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(column_pair) : "r"(row_pair));
    return column_pair;
}

} // namespace bakewell
