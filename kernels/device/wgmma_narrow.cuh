// Warpgroup products of 64 rows and few columns, E4M3 operands, A in registers.
#pragma once

#include "wgmma.cuh"

namespace bakewell::wgmma {

// D (+)= A B^T, B 8 x 32 in shared memory, K-major. Register i of lane t of warp w of D: row 16 w + t / 4 + 8 (i / 2),
// column 2 (t % 4) + i % 2; of A as for wider products.
// PTX: wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3
__device__ inline void mma_e4m3(float (&d)[1][4], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
    asm volatile("{\n\t"
                 ".reg .pred p;\n\t"
                 "setp.ne.b32 p, %9, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1;\n\t"
                 "}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int32_t>(accumulate)));
}

// The same of B 16 x 32: two sets of 8 columns.
// PTX: wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3
__device__ inline void mma_e4m3(float (&d)[2][4], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
    asm volatile("{\n\t"
                 ".reg .pred p;\n\t"
                 "setp.ne.b32 p, %13, 0;\n\t"
                 "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7}, "
                 "{%8, %9, %10, %11}, %12, p, 1, 1;\n\t"
                 "}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),
                   "+f"(d[1][2]), "+f"(d[1][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int32_t>(accumulate)));
}

} // namespace bakewell::wgmma
