// Where a block's scale byte lies: tiles of 128 rows x 4 blocks, the layout that tcgen05.cp and cuBLASLt read.
#pragma once

#include <cstdint>

namespace bakewell {

// Elements that share a scale factor.
constexpr uint32_t scale_group = 16;
constexpr uint32_t scale_tile_rows = 128;
constexpr uint32_t scale_tile_groups = 4;
constexpr uint32_t scale_tile_bytes = scale_tile_rows * scale_tile_groups;

// Byte offset of a row's groups 4 set .. 4 set + 3, in a matrix of `sets` sets a row. The four bytes are consecutive.
__host__ __device__ constexpr uint64_t scale_offset(uint64_t row, uint64_t set, uint32_t sets) {
    const uint64_t tile = row / scale_tile_rows * sets + set;
    return tile * scale_tile_bytes + row % 32 * 16 + row % scale_tile_rows / 32 * scale_tile_groups;
}
static_assert(scale_offset(0, 1, 84) == 512 && scale_offset(33, 0, 84) == 20 && scale_offset(128, 1, 2) == 1536);

} // namespace bakewell
