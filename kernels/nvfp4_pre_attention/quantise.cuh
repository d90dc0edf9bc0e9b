// NVFP4 quantisation in canonical arithmetic: every operation is the IEEE one, rounded to nearest even, so that a CPU gives
// the same bytes. A block is 16 values with one E4M3 scale; `global_scale` g is an encode scale.
//
//   scale = e4m3(g * (max|h| * (1/6)))      code = e2m1(h * min(1 / (value(scale) * (1/g)), FLT_MAX))
#pragma once

#include "../device/element.cuh"
#include "words.cuh"

#include <cfloat>
#include <cstdint>

namespace bakewell {

// E4M3 byte of a value, nearest even, saturating at 448. PTX: cvt.rn.satfinite.e4m3x2.f32
__device__ inline uint32_t encode_e4m3(float value) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    return pair;
}

// Value of an E4M3 byte, exact. PTX: cvt.rn.f16x2.e4m3x2; cvt.f32.f16
__device__ inline float decode_e4m3(uint32_t byte) {
    float value;
    asm("{\n\t"
        ".reg .b32 pair;\n\t"
        ".reg .b16 low, high;\n\t"
        "cvt.rn.f16x2.e4m3x2 pair, %1;\n\t"
        "mov.b32 {low, high}, pair;\n\t"
        "cvt.f32.f16 %0, low;\n\t"
        "}"
        : "=f"(value)
        : "h"(static_cast<uint16_t>(byte)));
    return value;
}

namespace detail {

// E2M1 by integers. From magnitudes to codes is a concave map of three straight pieces, 2 m up to 2, m + 2 up to 4, m / 2 + 4
// up to 6: their minimum. An addition to `integers`, rounded once, rounds a piece to an even integer at ties, as codes are.
constexpr float integers = 0x1.8p23f; // the integers from here on are neighbouring floats

// Code of a magnitude, above the bits of `integers`. The last piece is m / 2 - 2, exact in 4..6, between its ends 0 and 1.
__device__ inline uint32_t encode_magnitude(float magnitude) {
    const int first = __float_as_int(__fmaf_rn(magnitude, 2.0f, integers));
    const int second = __float_as_int(__fadd_rn(magnitude, integers + 2));
    const int third = __float_as_int(__fadd_rn(__saturatef(__fmaf_rn(magnitude, 0.5f, -2.0f)), integers + 6));
    return min(min(first, second), third);
}

} // namespace detail

// E2M1 codes of eight bf16 values, two a word, times `inverse`, the first in the lowest nibble; nearest even, saturating at 6.
// The sign of zero stays. PTX: cvt.rn.satfinite.e2m1x2.f32, or prmt.b32 where there is none
template <bool instruction>
__device__ inline uint32_t encode_e2m1(const uint32_t* words, float inverse) {
    if constexpr (instruction) {
        uint32_t codes;
        const auto scaled = [inverse](float value) { return __fmul_rn(value, inverse); };
        asm("{\n\t"
            ".reg .b8 byte0, byte1, byte2, byte3;\n\t"
            "cvt.rn.satfinite.e2m1x2.f32 byte0, %2, %1;\n\t"
            "cvt.rn.satfinite.e2m1x2.f32 byte1, %4, %3;\n\t"
            "cvt.rn.satfinite.e2m1x2.f32 byte2, %6, %5;\n\t"
            "cvt.rn.satfinite.e2m1x2.f32 byte3, %8, %7;\n\t"
            "mov.b32 %0, {byte0, byte1, byte2, byte3};\n\t"
            "}"
            : "=r"(codes)
            : "f"(scaled(low_value(words[0]))), "f"(scaled(high_value(words[0]))), "f"(scaled(low_value(words[1]))),
              "f"(scaled(high_value(words[1]))), "f"(scaled(low_value(words[2]))), "f"(scaled(high_value(words[2]))),
              "f"(scaled(low_value(words[3]))), "f"(scaled(high_value(words[3]))));
        return codes;
    } else {
        uint32_t even[vector_words], odd[vector_words];
#pragma unroll
        for (int i = 0; i < vector_words; ++i) {
            even[i] = detail::encode_magnitude(__fmul_rn(fabsf(low_value(words[i])), inverse));
            odd[i] = detail::encode_magnitude(__fmul_rn(fabsf(high_value(words[i])), inverse));
        }
        // The low bytes of four words.
        const auto bytes = [](const uint32_t* from) {
            return __byte_perm(__byte_perm(from[0], from[1], 0x40), __byte_perm(from[2], from[3], 0x40), 0x5410);
        };
        const uint32_t codes = bytes(even) + (bytes(odd) << 4);
        // The bytes with signs: of the even values of two words, then of the odd ones.
        const uint32_t first = __byte_perm(words[0], words[1], 0x7351), second = __byte_perm(words[2], words[3], 0x7351);
        return codes | (low_halves(first, second) >> 4 & 0x0808'0808) | (high_halves(first, second) & 0x8080'8080);
    }
}

// The encode scale of a tensor, and its reciprocal.
struct GlobalScale {
    float value;
    float reciprocal;

    explicit __device__ GlobalScale(float value) : value(value), reciprocal(__frcp_rn(value)) {}
};

// E4M3 scale of a block whose largest magnitude is given.
__device__ inline uint32_t encode_scale(float largest_magnitude, float global) {
    constexpr float sixth = 1.0f / 6.0f;
    return encode_e4m3(__fmul_rn(global, __fmul_rn(largest_magnitude, sixth)));
}

// What the values of a block with this scale are multiplied by before they are encoded; FLT_MAX where the scale is 0.
__device__ inline float inverse_scale(uint32_t byte, GlobalScale global) {
    return fminf(__frcp_rn(__fmul_rn(decode_e4m3(byte), global.reciprocal)), FLT_MAX);
}

// The scale of one block.
struct BlockScale {
    uint32_t byte; // E4M3
    float inverse;

    __device__ BlockScale(float largest_magnitude, GlobalScale global)
        : byte(encode_scale(largest_magnitude, global.value)), inverse(inverse_scale(byte, global)) {}
};

} // namespace bakewell
