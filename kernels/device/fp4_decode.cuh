// NVFP4 to bf16: code x scale has at most six significant bits, so that nothing is rounded.
#pragma once

#include "fp4.cuh"

#include <cstdint>

namespace bakewell {

// An E4M3 scale in both halves of a bf16x2 word; exact.
// PTX: cvt.rn.f16x2.e4m3x2; cvt.f32.f16; cvt.rn.bf16x2.f32
__device__ inline uint32_t scale_to_bf16x2(uint32_t scale) {
    uint32_t pair;
    asm("{\n\t"
        ".reg .b16 low, high;\n\t"
        ".reg .f32 value;\n\t"
        "mov.b32 {low, high}, %1;\n\t"
        "cvt.f32.f16 value, low;\n\t"
        "cvt.rn.bf16x2.f32 %0, value, value;\n\t"
        "}"
        : "=r"(pair)
        : "r"(detail::scale_to_f16x2(scale)));
    return pair;
}

// Eight codes times a scale, as bf16, two a word; exact: six significant bits. `signs`: words with the signs of the results.
// PTX: prmt.b32; mul.rn.bf16x2
__device__ inline uint4 decode_bf16(uint32_t codes, const uint32_t (&signs)[4], uint32_t scale_bf16x2) {
    // Magnitudes 0 .5 1 1.5 and 2 3 4 6 as bf16: their low bytes and their high bytes.
    constexpr uint32_t low_bytes[2] = {0xC080'0000, 0xC080'4000}, high_bytes[2] = {0x3F3F'3F00, 0x4040'4040};
    const uint32_t magnitudes = codes & 0x7777'7777;
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t four = magnitudes >> 16 * (i / 2);
        const uint32_t low = __byte_perm(low_bytes[0], low_bytes[1], four);
        const uint32_t high = __byte_perm(high_bytes[0], high_bytes[1], four);
        const uint32_t pair = __byte_perm(low, high, i % 2 == 0 ? 0x5140 : 0x7362) | (signs[i] & 0x8000'8000);
        asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(words[i]) : "r"(pair), "r"(scale_bf16x2));
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// The same with the signs of the codes.
__device__ inline uint4 decode_bf16(uint32_t codes, uint32_t scale_bf16x2) {
    uint32_t signs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t pair = codes >> 8 * i & 0xFF;
        signs[i] = pair << 12 | pair << 24;
    }
    return decode_bf16(codes, signs, scale_bf16x2);
}

} // namespace bakewell
