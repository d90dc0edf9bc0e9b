// Tiles in shared memory whose 16-byte pieces are permuted within a row, so that the same piece of 8 neighbouring rows
// lies in different banks: what ldmatrix and stmatrix read and write at once.
#pragma once

#include <cstdint>

namespace bakewell {

template <int rows, int row_bytes>
struct alignas(row_bytes < 128 ? 128 : row_bytes) SwizzledTile {
    static constexpr int pieces = row_bytes / 16;
    static_assert(row_bytes >= 32 && (row_bytes & (row_bytes - 1)) == 0, "rows are a power of two of bytes");

    // Rows that share 128 bytes, all banks.
    static constexpr int rows_per_line = row_bytes < 128 ? 128 / row_bytes : 1;
    static constexpr int permuted = pieces < 8 ? pieces : 8;

    // The permutation repeats after these rows.
    static constexpr int period = rows_per_line * permuted;

    uint8_t bytes[rows * row_bytes];

    static __device__ int offset(int row, int piece) {
        return row * row_bytes + ((piece ^ ((row / rows_per_line) & (permuted - 1))) * 16);
    }

    __device__ uint8_t* at(int row, int piece) { return bytes + offset(row, piece); }
    __device__ const uint8_t* at(int row, int piece) const { return bytes + offset(row, piece); }

    // Shared-memory addresses as one lane steps through the tile: one register, and an instruction or two per step.
    class Cursor {
        uint32_t address;

      public:
        __device__ Cursor(const SwizzledTile& tile, int row, int piece)
            : address(static_cast<uint32_t>(__cvta_generic_to_shared(tile.at(row, piece)))) {}

        // The piece whose index differs in the bits of `piece`, `row` rows further, a multiple of the period.
        __device__ uint32_t at(int row, int piece) const { return (address + row * row_bytes) ^ (piece * 16); }

        // The same piece `row` rows further, where the cursor's row has none of the bits of `row`.
        __device__ uint32_t below(int row) const {
            static_assert(rows_per_line == 1);
            return at(row, row & (permuted - 1));
        }
    };
};

// PTX: ld.shared.v4.b32
__device__ inline uint4 load_piece(uint32_t address) {
    uint4 piece;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
                 : "r"(address)
                 : "memory");
    return piece;
}

} // namespace bakewell
