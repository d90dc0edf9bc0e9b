// FP4 to E4M3 by a table in shared memory: the eight products of a scale and the non-negative codes, ready for prmt.
#pragma once

#include "../device/fp4.cuh"

#include <cstdint>

namespace bakewell {

// PTX: prmt.b32. Unlike __byte_perm it takes the selector as it is.
__device__ inline uint32_t permute(uint32_t low, uint32_t high, uint32_t selector) {
    uint32_t bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
    return bytes;
}

// Four E4M3 bytes to f16, exact: bytes 0 1, bytes 2 3. PTX: cvt.rn.f16x2.e4m3x2
__device__ inline uint2 e4m3_to_f16(uint32_t bytes) {
    uint2 pairs;
    asm("{\n\t"
        ".reg .b16 low, high;\n\t"
        "mov.b32 {low, high}, %2;\n\t"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n\t"
        "cvt.rn.f16x2.e4m3x2 %1, high;\n\t"
        "}"
        : "=r"(pairs.x), "=r"(pairs.y)
        : "r"(bytes));
    return pairs;
}

// The products of one scale.
struct Products {
    uint32_t low, high; // codes 0-3, codes 4-7

    // Eight codes to their bytes: codes 0-3 of the word, codes 4-7.
    __device__ uint2 look_up(uint32_t codes) const {
        const uint32_t magnitudes = codes & 0x7777'7777;
        // Top bits of bytes: the signs of the odd codes, and of the even ones.
        const uint32_t even = codes << 4;
        const auto with_signs = [&](uint32_t selector, uint32_t order) {
            return permute(low, high, selector) ^ (permute(even, codes, order) & 0x8080'8080);
        };
        return make_uint2(with_signs(magnitudes, 0x5140), with_signs(magnitudes >> 16, 0x7362));
    }

    // Sixteen codes.
    __device__ uint4 look_up(uint2 codes) const {
        const uint2 first = look_up(codes.x), second = look_up(codes.y);
        return make_uint4(first.x, first.y, second.x, second.y);
    }
};

// By scale byte. The products of scale 0 are zeros, whatever the codes: the scale of what must not be seen.
struct ScaleTable {
    uint2 products[256];

    __device__ void fill(int thread, int threads) {
#pragma unroll 1
        for (int scale = thread; scale < 256; scale += threads) {
            const Fp4Table table(scale);
            products[scale] = make_uint2(table.low, table.high);
        }
    }

    __device__ Products of(uint32_t scale) const { return {products[scale].x, products[scale].y}; }
};

} // namespace bakewell
