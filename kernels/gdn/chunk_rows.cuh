// Rows of a chunk from memory to a tile in shared memory.
#pragma once

#include "../device/async_copy.cuh"
#include "../device/swizzled_tile.cuh"
#include "tables.cuh"

#include <cstdint>

namespace bakewell {

using RowTile = SwizzledTile<chunk_tokens, head_bytes>;

// Starts the copies of `rows` rows, `threads` threads together; zeros in the other rows of the tile.
template <int threads, int tile_rows = chunk_tokens, class Tile>
__device__ inline void copy_rows(Tile& tile, const char* first_row, uint64_t row_stride_bytes, int rows, int thread) {
    constexpr int rows_at_once = threads / Tile::pieces;
    static_assert(threads % Tile::pieces == 0 && tile_rows % rows_at_once == 0);
    const int piece = thread % Tile::pieces;
    const char* first = first_row + piece * 16;
    const char* source = first + thread / Tile::pieces * row_stride_bytes;
    static_assert(rows_at_once % Tile::period == 0);
    uint32_t target = typename Tile::Cursor(tile, thread / Tile::pieces, piece).at(0, 0);
    // Unrolled in full, the multiples of the stride would be kept in registers across chunks.
#pragma unroll 2
    for (int row = thread / Tile::pieces; row < tile_rows; row += rows_at_once) {
        const bool live = row < rows;
        // A row past the chunk reads nothing, but its address exists.
        async_copy_16(target, live ? source : first, live);
        source += rows_at_once * row_stride_bytes;
        target += rows_at_once * Tile::pieces * 16;
    }
}

} // namespace bakewell
