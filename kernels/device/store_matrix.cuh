// Fragments of matrices from registers to shared memory.
#pragma once

#include <cstdint>

namespace bakewell {

// Four 8 x 8 matrices of 16-bit elements. Lane l gives the place of row l % 8 of matrix l / 8; register j holds of matrix j
// row l / 4, columns 2 (l % 4) and the next. PTX: stmatrix.sync.aligned.m8n8.x4.shared.b16
__device__ inline void store_matrices(void* row, const uint32_t (&matrices)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     static_cast<uint32_t>(__cvta_generic_to_shared(row))),
                 "r"(matrices[0]), "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
                 : "memory");
}

} // namespace bakewell
