// BF16 products with f32 accumulators on tensor memory.
#pragma once

#include "tcgen05.cuh"

#include <cstdint>

namespace bakewell::tcgen05 {

// K of one instruction: elements, bytes along a K-major row, columns of an A operand in tensor memory.
constexpr int bf16_k = 16;
constexpr uint32_t bf16_k_bytes = 2 * bf16_k;
constexpr uint32_t bf16_k_columns = bf16_k / 2;

constexpr uint32_t bf16_instruction(uint32_t m, uint32_t n, Major a_major, Major b_major) {
    constexpr uint32_t f32_accumulator = 1, bf16 = 1;
    return f32_accumulator << 4 | bf16 << 7 | bf16 << 10 | static_cast<uint32_t>(a_major) << 15 |
           static_cast<uint32_t>(b_major) << 16 | (n >> 3) << 17 | (m >> 4) << 24;
}
static_assert(bf16_instruction(128, 256, Major::K, Major::K) == 0x08400490);

// Descriptor of an MN-major operand wider than a row: its blocks of 64 columns are `block_bytes` apart.
__device__ inline uint64_t blocked_descriptor(const void* tile, uint32_t block_bytes) {
    constexpr uint64_t leading_offset = 0x3FFFull << 16;
    return (swizzled_descriptor(tile) & ~leading_offset) | static_cast<uint64_t>(block_bytes >> 4) << 16;
}

// D[d] (+)= A B with A and B in shared memory. Own wrapper: the overloads of <cuda/ptx> are ambiguous.
// PTX: tcgen05.mma.cta_group::1.kind::f16 [d], a_desc, b_desc, idesc, enable_input_d
__device__ inline void mma_bf16(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction, bool accumulate) {
    asm volatile("{\n\t"
                 ".reg .pred p;\n\t"
                 "setp.ne.b32 p, %4, 0;\n\t"
                 "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n\t"
                 "}" ::"r"(d),
                 "l"(a), "l"(b), "r"(instruction), "r"(static_cast<uint32_t>(accumulate))
                 : "memory");
}

// D[d] (+)= A B with A in tensor memory. PTX: tcgen05.mma.cta_group::1.kind::f16 [d], [a], b_desc, ...
__device__ inline void mma_bf16_tmem_a(uint32_t d, uint32_t a, uint64_t b, uint32_t instruction, bool accumulate) {
    asm volatile("{\n\t"
                 ".reg .pred p;\n\t"
                 "setp.ne.b32 p, %4, 0;\n\t"
                 "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p;\n\t"
                 "}" ::"r"(d),
                 "r"(a), "l"(b), "r"(instruction), "r"(static_cast<uint32_t>(accumulate))
                 : "memory");
}

} // namespace bakewell::tcgen05
