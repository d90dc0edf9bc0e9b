// 16-bit element types as they travel in registers: two elements per 32-bit word, the first in the low half.
#pragma once

#include "schedule_types.cuh"

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace bakewell {

// Rounds two floats to nearest even and packs them. PTX: cvt.rn.f16x2.f32 / cvt.rn.bf16x2.f32
template <Element element>
__device__ inline uint32_t pack(float low, float high) {
    if constexpr (element == Element::f16) {
        __half2 pair = __floats2half2_rn(low, high);
        return reinterpret_cast<uint32_t&>(pair);
    } else {
        __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        return reinterpret_cast<uint32_t&>(pair);
    }
}

// The low halves of two words, and their high halves. PTX: prmt.b32
__device__ inline uint32_t low_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
__device__ inline uint32_t high_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }

constexpr int element_bytes = 2;

// Elements of one 16-byte vector access.
constexpr int vector_elements = 16 / element_bytes;

} // namespace bakewell
