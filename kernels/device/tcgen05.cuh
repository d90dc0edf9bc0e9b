// Tensor-core products on shared and tensor memory. One thread issues; descriptors say where the operands lie.
#pragma once

#include "mbarrier.cuh"

#include <cstdint>
#include <cuda/ptx>

namespace bakewell::tcgen05 {

// Rows of 128 bytes under the 128-byte swizzle; groups of eight rows are 1024 bytes apart.
constexpr uint32_t swizzled_row_bytes = 128;
constexpr uint32_t swizzled_group_bytes = 8 * swizzled_row_bytes;

// Shared-memory descriptor of a tile whose rows are packed at 128 bytes with 128-byte swizzle, 1024-byte aligned.
// The same record serves K-major tiles (rows along M or N) and MN-major tiles (rows along K).
__device__ inline uint64_t swizzled_descriptor(const void* tile) {
    constexpr uint64_t version = 1, swizzle_128b = 2, unused_leading_offset = 1;
    const uint64_t start = static_cast<uint32_t>(__cvta_generic_to_shared(tile));
    return (start >> 4) | unused_leading_offset << 16 | static_cast<uint64_t>(swizzled_group_bytes >> 4) << 32 |
           version << 46 | swizzle_128b << 61;
}

// The descriptor `bytes` further on: swizzling follows absolute addresses, so the start field just moves.
__device__ constexpr uint64_t advance(uint64_t descriptor, uint32_t bytes) { return descriptor + (bytes >> 4); }

enum class Major : uint32_t { K = 0, MN = 1 };

// Instruction descriptor of E4M3 x E4M3 with f32 accumulator.
constexpr uint32_t e4m3_instruction(uint32_t m, uint32_t n, Major b_major) {
    constexpr uint32_t f32_accumulator = 1;
    return f32_accumulator << 4 | static_cast<uint32_t>(b_major) << 16 | (n >> 3) << 17 | (m >> 4) << 24;
}
static_assert(e4m3_instruction(128, 128, Major::K) == 0x08200010);

// K of one E4M3 instruction, in elements and bytes.
constexpr int e4m3_k = 32;

// D[d] (+)= A B with A and B in shared memory. Own wrapper: the overloads of <cuda/ptx> are ambiguous for this kind.
// PTX: tcgen05.mma.cta_group::1.kind::f8f6f4 [d], a_desc, b_desc, idesc, enable_input_d
__device__ inline void mma_e4m3(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction, bool accumulate) {
    asm volatile("{\n\t"
                 ".reg .pred p;\n\t"
                 "setp.ne.b32 p, %4, 0;\n\t"
                 "tcgen05.mma.cta_group::1.kind::f8f6f4 [%0], %1, %2, %3, p;\n\t"
                 "}" ::"r"(d),
                 "l"(a), "l"(b), "r"(instruction), "r"(static_cast<uint32_t>(accumulate))
                 : "memory");
}

// D[d] (+)= A B with A in tensor memory. PTX: tcgen05.mma.cta_group::1.kind::f8f6f4 [d], [a], b_desc, ...
__device__ inline void mma_e4m3_tmem_a(uint32_t d, uint32_t a, uint64_t b, uint32_t instruction, bool accumulate) {
    asm volatile("{\n\t"
                 ".reg .pred p;\n\t"
                 "setp.ne.b32 p, %4, 0;\n\t"
                 "tcgen05.mma.cta_group::1.kind::f8f6f4 [%0], [%1], %2, %3, p;\n\t"
                 "}" ::"r"(d),
                 "r"(a), "l"(b), "r"(instruction), "r"(static_cast<uint32_t>(accumulate))
                 : "memory");
}

// One arrival on the barrier once all earlier products of this thread have finished reading and writing.
// PTX: tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64
__device__ inline void commit(Mbarrier& barrier) {
    cuda::ptx::tcgen05_commit(cuda::ptx::cta_group_1, &barrier.word);
}

} // namespace bakewell::tcgen05
