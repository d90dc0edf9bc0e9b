// Operand images: decoded operands in the order in which the tensor cores of sm_90a read them.
//
// An image holds bf16 of code x scale (exact: six significant bits), in blocks of 128 rows x 32 columns: 8,192 contiguous
// bytes with rows of 64 bytes, whose 16-byte chunks are swizzled as a shared-memory operand needs them. Blocks follow each
// other along the columns, then along the rows. A block's load is a plain copy.
#pragma once

#include "../device/fp4_decode.cuh"

#include <cstdint>

namespace bakewell {

constexpr int image_rows = 128;
constexpr int image_columns = 32;
constexpr int image_row_bytes = 2 * image_columns;
constexpr int image_block_bytes = image_rows * image_row_bytes;

// Elements of a 16-byte chunk.
constexpr int image_chunk = 8;

// Byte offset of a block in an image of `columns` columns.
__device__ inline uint64_t image_block(uint64_t row_block, uint64_t column_block, uint32_t columns) {
    return (row_block * (columns / image_columns) + column_block) * image_block_bytes;
}

// Byte offset of the chunk that begins at (row, column). 64-byte swizzle: the chunk's number is xored with address bits
// 7 and 8, which are bits 1 and 2 of the row.
__device__ inline uint64_t image_chunk_offset(uint64_t row, uint64_t column, uint32_t columns) {
    const uint64_t chunk = column % image_columns / image_chunk ^ (row >> 1 & 3);
    return image_block(row / image_rows, column / image_columns, columns) + row % image_rows * image_row_bytes + chunk * 16;
}

// Writes the two chunks of 16 codes and their scale.
__device__ inline void write_image_block(uint8_t* image, uint64_t row, uint64_t column, uint32_t columns, uint2 codes,
                                         uint32_t scale) {
    const uint32_t factor = scale_to_bf16x2(scale);
    *reinterpret_cast<uint4*>(image + image_chunk_offset(row, column, columns)) = decode_bf16(codes.x, factor);
    *reinterpret_cast<uint4*>(image + image_chunk_offset(row, column + image_chunk, columns)) =
        decode_bf16(codes.y, factor);
}

} // namespace bakewell
