// Tiles in shared memory whose 16-byte pieces are permuted within a row, so that the same piece of 8 neighbouring rows
// lies in different banks: what ldmatrix and stmatrix read and write at once.
#pragma once

#include <cstdint>

namespace bakewell {

template <int rows, int row_bytes>
struct alignas(128) SwizzledTile {
    static constexpr int pieces = row_bytes / 16;
    static_assert(row_bytes >= 32 && (row_bytes & (row_bytes - 1)) == 0, "rows are a power of two of bytes");

    // Rows that share 128 bytes, all banks.
    static constexpr int rows_per_line = row_bytes < 128 ? 128 / row_bytes : 1;
    static constexpr int permuted = pieces < 8 ? pieces : 8;

    uint8_t bytes[rows * row_bytes];

    __device__ uint8_t* at(int row, int piece) {
        return bytes + row * row_bytes + ((piece ^ ((row / rows_per_line) & (permuted - 1))) * 16);
    }
    __device__ const uint8_t* at(int row, int piece) const { return const_cast<SwizzledTile*>(this)->at(row, piece); }
};

} // namespace bakewell
