// Panels of a chunk in shared memory, as the copy engine writes and the tensor cores read them, and the places of
// fragments in them.
#pragma once

#include "../device/element.cuh"
#include "../device/ldmatrix.cuh"
#include "tables.cuh"

#include <cstdint>

namespace bakewell {

constexpr int swizzle_period = 1024;

// Rows of 64 BF16 elements with 128-byte swizzle.
template <int rows>
struct alignas(swizzle_period) PanelRows {
    static constexpr int columns = 64;
    static constexpr int row_bytes = 128;
    static constexpr int units = row_bytes / 16;

    uint8_t bytes[rows * row_bytes];

    // Sixteen bytes: a row, and eight columns from 8 unit on.
    __device__ uint8_t* at(int row, int unit) { return bytes + row * row_bytes + ((unit ^ (row & 7)) << 4); }
};

// Those of a chunk.
using Panel = PanelRows<chunk_tokens>;

// 64 rows of a head, as two panels.
using HeadTile = Panel[2];

__device__ inline uint32_t pack_bf16(float low, float high) { return pack<Element::bf16>(low, high); }
__device__ inline float low_float(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_float(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

// Where a lane finds its elements of a fragment of 16 rows.
struct FragmentLane {
    int lane;

    static __device__ FragmentLane here() { return {static_cast<int>(threadIdx.x % 32)}; }

    // Row of registers with (i / 2) % 2 == half.
    __device__ int row(int half) const { return lane / 4 + 8 * half; }
    // First of the two columns of a group of eight.
    __device__ int column(int group) const { return 8 * group + 2 * (lane % 4); }

    // Address for stmatrix of 16 columns, from 8 unit on, of a panel that holds the fragment as it is.
    __device__ uint32_t direct(Panel& panel, int first_row, int unit) const {
        return address(panel.at(first_row + 8 * (lane / 8 % 2) + lane % 8, unit + lane / 16));
    }

    // Address for transposed ldmatrix and stmatrix: the panel's rows are 16 columns of the fragment, its columns, from
    // 8 unit on, the fragment's rows.
    __device__ uint32_t transposed(Panel& panel, int first_row, int unit) const {
        return address(panel.at(first_row + 8 * (lane / 16) + lane % 8, unit + lane / 8 % 2));
    }

  private:
    static __device__ uint32_t address(const void* pointer) {
        return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
    }
};

} // namespace bakewell
