// BF16 warpgroup products of sm_90a: D (+)= A B, f32 accumulators. All 128 threads of a warpgroup execute them.
//
// Tiles in shared memory are panels: rows of 128 bytes with 128-byte swizzle, 1024-byte aligned. The same panel serves
// as B with its rows along N (K-major) or along K (MN-major).
#pragma once

#include "wgmma.cuh"

#include <cstdint>

namespace bakewell::wgmma {

// K of one BF16 instruction in elements, and the bytes of it in a K-major row.
constexpr int bf16_k = 16;
constexpr uint32_t bf16_k_bytes = 2 * bf16_k;

// Which dimension of an operand is contiguous in shared memory. The value is the instruction's transposition immediate.
enum class Major : int { k = 0, mn = 1 };

// Descriptor of an MN-major tile: panels of 64 columns and as many rows as K has, `panel_bytes` apart. Advance by
// `bf16_k` rows of 128 bytes per instruction.
__device__ inline uint64_t mn_descriptor(const void* tile, uint32_t panel_bytes) {
    constexpr uint64_t leading_offset_field = uint64_t{0x3FFF} << 16;
    return (swizzled_descriptor(tile) & ~leading_offset_field) | static_cast<uint64_t>(panel_bytes >> 4) << 16;
}

// Accumulators of 64 rows. Register i of lane t of warp w: row 16 w + t / 4 + 8 (i / 2 % 2),
// column 8 (i / 4) + 2 (t % 4) + i % 2. Eight registers from 8 s on, packed in pairs, are the A operand of K step s.
using Accumulator64 = float[32];
using Accumulator128 = Accumulator;

// After the wait that covers its products: keeps the compiler from moving uses of an accumulator up across the wait.
template <int registers>
__device__ inline void settle(float (&d)[registers]) {
#pragma unroll
    for (int i = 0; i < registers; ++i) {
        asm volatile("" : "+f"(d[i])::"memory");
    }
}

// A operand of one instruction in registers: lane t of warp w holds row 16 w + t / 4 + 8 (j % 2),
// columns 2 (t % 4) + 8 (j / 2) and the next in register j.
using Fragment = uint32_t[4];

// 64 rows x 64 columns, A in registers.
// PTX: wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16
template <Major b_major>
__device__ inline void mma_bf16(Accumulator64& d, const Fragment& a, uint64_t b, bool accumulate) {
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "setp.ne.b32 p, %37, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n\t"
        "}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
          "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int32_t>(accumulate)),
          "n"(static_cast<int>(b_major)));
}

// The same with A in shared memory, K-major.
template <Major b_major>
__device__ inline void mma_bf16(Accumulator64& d, uint64_t a, uint64_t b, bool accumulate) {
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "setp.ne.b32 p, %34, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, 0, %35;\n\t"
        "}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
          "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"(static_cast<int32_t>(accumulate)),
          "n"(static_cast<int>(b_major)));
}

// 64 rows x 128 columns, A in registers.
// PTX: wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16
template <Major b_major>
__device__ inline void mma_bf16(Accumulator128& d, const Fragment& a, uint64_t b, bool accumulate) {
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "setp.ne.b32 p, %69, 0;\n\t"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n\t"
        "}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
          "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
          "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]),
          "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
          "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int32_t>(accumulate)),
          "n"(static_cast<int>(b_major)));
}

} // namespace bakewell::wgmma
