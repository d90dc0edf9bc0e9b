// E4M3 bytes from f32, nearest even, saturating at 448.
#pragma once

#include <cstdint>

namespace bakewell {

// Four values to four bytes, first value in the lowest byte. PTX: cvt.rn.satfinite.e4m3x2.f32
__device__ inline uint32_t pack_e4m3(float a, float b, float c, float d) {
    uint32_t bytes;
    asm("{\n\t"
        ".reg .b16 low, high;\n\t"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n\t"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n\t"
        "mov.b32 %0, {low, high};\n\t"
        "}"
        : "=r"(bytes)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return bytes;
}

} // namespace bakewell
