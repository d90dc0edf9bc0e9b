// Fragments of 16-bit matrices between shared memory and registers, four 8x8 matrices at a time.
//
// Lane t gives the shared-memory address of row t % 8 of matrix t / 8: 16 bytes, 16-byte aligned. Lane t's word i holds, of matrix i,
// row t / 4, columns 2 (t % 4) and one more; transposed: rows 2 (t % 4) and one more of column t / 4.
#pragma once

#include <cstdint>

namespace bakewell {

// PTX: ldmatrix.sync.aligned.m8n8.x4.shared.b16
__device__ inline void ldmatrix_x4(uint32_t (&words)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(row)
                 : "memory");
}

// PTX: ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16
__device__ inline void ldmatrix_x4_transposed(uint32_t (&words)[4], uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(row)
                 : "memory");
}

// PTX: stmatrix.sync.aligned.m8n8.x4.shared.b16
__device__ inline void stmatrix_x4(uint32_t row, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
                 "r"(m0), "r"(m1), "r"(m2), "r"(m3)
                 : "memory");
}

// PTX: stmatrix.sync.aligned.m8n8.x4.trans.shared.b16
__device__ inline void stmatrix_x4_transposed(uint32_t row, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
                 "r"(m0), "r"(m1), "r"(m2), "r"(m3)
                 : "memory");
}

} // namespace bakewell
