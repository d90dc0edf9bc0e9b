// NVFP4: E2M1 codes, two per byte, low nibble first, with one E4M3 scale per 16 elements.
//
// dequantised byte = E4M3, nearest even, saturating, of code x scale: one rounding. A NaN scale gives NaN.
#pragma once

#include "schedule_types.cuh"

#include <cstdint>

namespace bakewell {

// Elements that share a scale factor.
constexpr int fp4_block = 16;

namespace detail {

// Four codes (16 bits) times one scale, by the packed multiply of sm_100a and sm_103a.
// PTX: mul.rn.satfinite.e4m3x4.e2m1x4.e4m3x4
__device__ inline uint32_t dequantise_4_packed(uint16_t codes, uint32_t broadcast_scale) {
    uint32_t bytes;
    asm("mul.rn.satfinite.e4m3x4.e2m1x4.e4m3x4 %0, %1, %2;" : "=r"(bytes) : "h"(codes), "r"(broadcast_scale));
    return bytes;
}

// The same by way of f16, in which every product is exact.
// PTX: cvt.rn.f16x2.e2m1x2; mul.f16x2; cvt.rn.satfinite.e4m3x2.f16x2
__device__ inline uint32_t dequantise_4_f16(uint16_t codes, uint32_t scale_f16x2) {
    uint32_t bytes;
    asm("{\n\t"
        ".reg .b8 low, high;\n\t"
        ".reg .b16 first, second;\n\t"
        ".reg .b32 pair0, pair1;\n\t"
        "mov.b16 {low, high}, %1;\n\t"
        "cvt.rn.f16x2.e2m1x2 pair0, low;\n\t"
        "cvt.rn.f16x2.e2m1x2 pair1, high;\n\t"
        "mul.rn.f16x2 pair0, pair0, %2;\n\t"
        "mul.rn.f16x2 pair1, pair1, %2;\n\t"
        "cvt.rn.satfinite.e4m3x2.f16x2 first, pair0;\n\t"
        "cvt.rn.satfinite.e4m3x2.f16x2 second, pair1;\n\t"
        "mov.b32 %0, {first, second};\n\t"
        "}"
        : "=r"(bytes)
        : "h"(codes), "r"(scale_f16x2));
    return bytes;
}

// An E4M3 scale in both halves of an f16x2 word; exact. PTX: cvt.rn.f16x2.e4m3x2
__device__ inline uint32_t scale_to_f16x2(uint32_t scale) {
    uint32_t pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(scale | scale << 8)));
    return pair;
}

} // namespace detail

// The eight non-negative products of a block's scale, for lookups by code.
// PTX: mul.f16x2; cvt.rn.satfinite.e4m3x2.f16x2; prmt.b32
struct Fp4Table {
    uint32_t low, high; // codes 0-3, codes 4-7

    explicit __device__ Fp4Table(uint32_t scale) {
        constexpr uint32_t magnitudes[4] = {0x3800'0000, 0x3E00'3C00, 0x4200'4000, 0x4600'4400}; // 0 .5 1 1.5 2 3 4 6
        const uint32_t factor = detail::scale_to_f16x2(scale);
        const auto products = [&](uint32_t pair0, uint32_t pair1) {
            uint32_t bytes;
            asm("{\n\t"
                ".reg .b16 first, second;\n\t"
                ".reg .b32 pair;\n\t"
                "mul.rn.f16x2 pair, %1, %3;\n\t"
                "cvt.rn.satfinite.e4m3x2.f16x2 first, pair;\n\t"
                "mul.rn.f16x2 pair, %2, %3;\n\t"
                "cvt.rn.satfinite.e4m3x2.f16x2 second, pair;\n\t"
                "mov.b32 %0, {first, second};\n\t"
                "}"
                : "=r"(bytes)
                : "r"(pair0), "r"(pair1), "r"(factor));
            return bytes;
        };
        low = products(magnitudes[0], magnitudes[1]);
        high = products(magnitudes[2], magnitudes[3]);
    }

    // Four codes in the low 16 bits to four bytes.
    __device__ uint32_t look_up(uint32_t codes) const {
        const uint32_t magnitudes = __byte_perm(low, high, codes & 0x7777);
        // A selector nibble with bit 3 set replicates the sign of its byte: 0xFF for negative codes, 0x80 for others.
        const uint32_t negative = prmt(0x8080'8080, codes);
        return magnitudes ^ (negative << 1 & 0x8080'8080);
    }

  private:
    // __byte_perm masks bit 3 of the selectors. PTX: prmt.b32
    static __device__ uint32_t prmt(uint32_t bytes, uint32_t selector) {
        uint32_t picked;
        asm("prmt.b32 %0, %1, %1, %2;" : "=r"(picked) : "r"(bytes), "r"(selector));
        return picked;
    }
};

// One block: 16 codes in two words, one scale byte; sixteen E4M3 bytes in element order.
template <Dequantise method>
__device__ inline uint4 dequantise_block(uint2 codes, uint32_t scale) {
    const auto low = [](uint32_t word) { return static_cast<uint16_t>(word); };
    const auto high = [](uint32_t word) { return static_cast<uint16_t>(word >> 16); };
    if constexpr (method == Dequantise::table) {
        const Fp4Table table(scale);
        return make_uint4(table.look_up(codes.x), table.look_up(codes.x >> 16), table.look_up(codes.y),
                          table.look_up(codes.y >> 16));
    } else if constexpr (method == Dequantise::packed_multiply) {
        const uint32_t broadcast = __byte_perm(scale, 0, 0x0000);
        return make_uint4(
            detail::dequantise_4_packed(low(codes.x), broadcast), detail::dequantise_4_packed(high(codes.x), broadcast),
            detail::dequantise_4_packed(low(codes.y), broadcast), detail::dequantise_4_packed(high(codes.y), broadcast));
    } else {
        const uint32_t pair = detail::scale_to_f16x2(scale);
        return make_uint4(
            detail::dequantise_4_f16(low(codes.x), pair), detail::dequantise_4_f16(high(codes.x), pair),
            detail::dequantise_4_f16(low(codes.y), pair), detail::dequantise_4_f16(high(codes.y), pair));
    }
}

} // namespace bakewell
