// NVFP4 quantisation in canonical arithmetic: every operation is the IEEE one, rounded to nearest even, so that a CPU gives
// the same bytes. A block is 16 values with one E4M3 scale; `global_scale` g is an encode scale.
//
//   scale = e4m3(g * (max|h| * (1/6)))      code = e2m1(h * min(1 / (value(scale) * (1/g)), FLT_MAX))
#pragma once

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

// Code of a magnitude, above the bits of `integers`.
__device__ inline uint32_t encode_magnitude(float magnitude) {
    const int first = __float_as_int(__fmaf_rn(magnitude, 2.0f, integers));
    const int second = __float_as_int(__fadd_rn(magnitude, integers + 2));
    const int third = __float_as_int(__fmaf_rn(magnitude, 0.5f, integers + 4));
    return min(min(first, second), min(third, __float_as_int(integers + 7)));
}

// What eight of them leave in a word of nibbles beside the codes.
__device__ inline uint32_t integer_bits() { return __float_as_uint(integers) * 0x1111'1111u; }

} // namespace detail

// E2M1 codes of eight values times `inverse`, the first in the lowest nibble; nearest even, saturating at 6. The sign of
// zero stays. PTX: cvt.rn.satfinite.e2m1x2.f32
template <bool instruction>
__device__ inline uint32_t encode_e2m1(const float (&values)[8], float inverse) {
    uint32_t codes = 0;
    if constexpr (instruction) {
        asm("{\n\t"
            ".reg .b8 byte0, byte1, byte2, byte3;\n\t"
            "cvt.rn.satfinite.e2m1x2.f32 byte0, %2, %1;\n\t"
            "cvt.rn.satfinite.e2m1x2.f32 byte1, %4, %3;\n\t"
            "cvt.rn.satfinite.e2m1x2.f32 byte2, %6, %5;\n\t"
            "cvt.rn.satfinite.e2m1x2.f32 byte3, %8, %7;\n\t"
            "mov.b32 %0, {byte0, byte1, byte2, byte3};\n\t"
            "}"
            : "=r"(codes)
            : "f"(__fmul_rn(values[0], inverse)), "f"(__fmul_rn(values[1], inverse)),
              "f"(__fmul_rn(values[2], inverse)), "f"(__fmul_rn(values[3], inverse)),
              "f"(__fmul_rn(values[4], inverse)), "f"(__fmul_rn(values[5], inverse)),
              "f"(__fmul_rn(values[6], inverse)), "f"(__fmul_rn(values[7], inverse)));
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float scaled = __fmul_rn(values[i], inverse);
            codes += (detail::encode_magnitude(fabsf(scaled)) + (__float_as_uint(scaled) >> 28 & 8)) << 4 * i;
        }
        codes -= detail::integer_bits();
    }
    return codes;
}

// The same of eight bf16 values, two a word, where there is no instruction. PTX: prmt.b32
__device__ inline uint32_t encode_e2m1_words(const uint32_t* words, float inverse) {
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t magnitudes = words[i] & 0x7FFF'7FFF;
        const float low = __uint_as_float(magnitudes << 16), high = __uint_as_float(magnitudes & 0xFFFF'0000);
        codes += detail::encode_magnitude(__fmul_rn(low, inverse)) << 8 * i;
        codes += detail::encode_magnitude(__fmul_rn(high, inverse)) << 8 * i + 4;
    }
    // The bytes with the signs of the even and of the odd values.
    const auto bytes = [&](uint32_t of_two) {
        return __byte_perm(__byte_perm(words[0], words[1], of_two), __byte_perm(words[2], words[3], of_two), 0x5410);
    };
    const uint32_t even = bytes(0x51), odd = bytes(0x73);
    return (codes - detail::integer_bits()) | (even >> 4 & 0x0808'0808) | (odd & 0x8080'8080);
}

// The encode scale of a tensor, and its reciprocal.
struct GlobalScale {
    float value;
    float reciprocal;

    explicit __device__ GlobalScale(float value) : value(value), reciprocal(__frcp_rn(value)) {}
};

// The scale of one block.
struct BlockScale {
    uint32_t byte; // E4M3
    float inverse; // what its values are multiplied by; FLT_MAX where the scale is 0

    __device__ BlockScale(float largest_magnitude, GlobalScale global) {
        constexpr float sixth = 1.0f / 6.0f;
        byte = encode_e4m3(__fmul_rn(global.value, __fmul_rn(largest_magnitude, sixth)));
        inverse = fminf(__frcp_rn(__fmul_rn(decode_e4m3(byte), global.reciprocal)), FLT_MAX);
    }
};

} // namespace bakewell
