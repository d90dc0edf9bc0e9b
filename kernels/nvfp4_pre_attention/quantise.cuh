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

// E2M1 code by integers: |value| is rounded to multiples of its quantum by an addend whose last bit is worth that much.
// Quanta are 1/2 below 2, 1 below 4, 2 below 8; a step of the quantum is a step of the code in each.
__device__ inline uint32_t encode_e2m1_integer(float value) {
    constexpr uint32_t exponent_bits = 0x7F80'0000, one = 0x3F80'0000;
    const float magnitude = fminf(fabsf(value), 6.0f);
    const uint32_t binade = max(__float_as_uint(magnitude) & exponent_bits, one);
    const uint32_t addend = binade + (22u << 23);
    const uint32_t steps = __float_as_uint(__fadd_rn(magnitude, __uint_as_float(addend))) - addend;
    // Two codes to a binade above the first, whose four steps are codes 0 to 4.
    return steps + (binade - one >> 22) | __float_as_uint(value) >> 31 << 3;
}

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
            codes |= detail::encode_e2m1_integer(__fmul_rn(values[i], inverse)) << 4 * i;
        }
    }
    return codes;
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
