// NVFP4 products of CTA pairs: E2M1 x E2M1 with an E4M3 scale per 16 elements of K, f32 accumulator, 256 x 256.
//
// A CTA has the 128 rows of A and of the accumulator that are its own, and half of the 256 rows of B; the hardware reads
// the other half from its peer. Scales lie in tensor memory, complete for B in both CTAs.
#pragma once

#include "tcgen05.cuh"

#include <cstdint>
#include <cuda/ptx>

namespace bakewell::nvfp4_mma {

constexpr uint32_t m = 256, n = 256;

// Scales of 128 rows x 64 elements of K: 512 bytes, 4 columns of tensor memory.
constexpr uint32_t scale_tile_bytes = 512;
constexpr uint32_t scale_tile_columns = 4;
constexpr uint32_t set_k = 64;

// Columns that a set of 64 elements takes: the rows of A of one CTA, all rows of B.
constexpr uint32_t a_set_columns = scale_tile_columns;
constexpr uint32_t b_set_columns = 2 * scale_tile_columns;

// Bytes of a row that a product over `k` elements takes. K is 64, on sm_103a also 96.
__host__ __device__ constexpr uint32_t bytes(uint32_t k) { return k / 2; }

// Instruction descriptor. `first_scale`: byte in the first word of scales at which the product's scales begin.
__host__ __device__ constexpr uint32_t instruction(uint32_t k, uint32_t first_scale) {
    constexpr uint32_t e2m1 = 1;
    return first_scale << 4 | e2m1 << 7 | e2m1 << 10 | (n >> 3) << 17 | (m >> 7) << 27 | first_scale << 29 |
           (k == 96 ? 1u << 31 : 0);
}
static_assert(instruction(64, 0) == 0x10400480);
static_assert(instruction(96, 0) == 0x90400480);
static_assert(instruction(96, 2) == 0xD04004A0);

// Descriptor of an operand of K = 96 that begins at `from` and, past the end of its 128-byte rows, goes on at the start
// of the rows of `next`: the leading offset becomes an absolute address.
__device__ constexpr uint64_t continued(uint64_t from, uint64_t next) {
    constexpr uint64_t field = 0x3FFF, absolute = 1ull << 52;
    return (from & ~(field << 16)) | (next & field) << 16 | absolute;
}

// Shared-memory descriptor of scale tiles: 32 units of 16 bytes, one after another.
__device__ inline uint64_t scale_descriptor(const void* tiles) {
    constexpr uint64_t version = 1, group_bytes = 128;
    const uint64_t start = static_cast<uint32_t>(__cvta_generic_to_shared(tiles));
    return (start >> 4) | (group_bytes >> 4) << 32 | version << 46;
}

// Copies one scale tile to 4 columns in both CTAs, each from its own shared memory. Products that the same thread
// issues later see it. PTX: tcgen05.cp.cta_group::2.32x128b.warpx4
__device__ inline void copy_scales(uint32_t columns, uint64_t tile) {
    cuda::ptx::tcgen05_cp_32x128b_warpx4(cuda::ptx::cta_group_2, columns, tile);
}

// D[d] (+)= A B^T. PTX: tcgen05.mma.cta_group::2.kind::mxf4nvf4.block_scale.block16
__device__ inline void mma(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction, uint32_t a_scales,
                           uint32_t b_scales, bool accumulate) {
    cuda::ptx::tcgen05_mma_block_scale_block16(cuda::ptx::kind_mxf4nvf4, cuda::ptx::cta_group_2, d, a, b, instruction,
                                               a_scales, b_scales, accumulate);
}

} // namespace bakewell::nvfp4_mma
