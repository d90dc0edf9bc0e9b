// Two bf16 in a 32-bit word, the even element low: their values in f32.
#pragma once

#include <cstdint>

namespace bakewell {

// Words of a vector of eight elements.
constexpr int vector_words = 4;

__device__ inline float low_value(uint32_t word) { return __uint_as_float(word << 16); }
__device__ inline float high_value(uint32_t word) { return __uint_as_float(word & 0xFFFF'0000); }

// Larger magnitudes of two words, element by element; the signs mean nothing. PTX: max.xorsign.abs.bf16x2
__device__ inline uint32_t larger_magnitudes(uint32_t a, uint32_t b) {
    uint32_t larger;
    asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
}

// The larger magnitude of a word's two elements.
__device__ inline float larger_magnitude(uint32_t word) { return fmaxf(fabsf(low_value(word)), fabsf(high_value(word))); }

} // namespace bakewell
