// Packed rows on their way out: 128 rows of a head half in shared memory, then one copy to their destination.
#pragma once

#include "../device/named_barrier.cuh"
#include "../device/tensor_store.cuh"
#include "head_row.cuh"
#include "schedule.cuh"
#include "tiles.cuh"

#include <cstdint>

namespace bakewell {

constexpr bool fp4_output = Schedule::fp4_output;

// Bytes of a packed row, and buffers that each half has. With two, a copy has a whole tile's time to read its buffer;
// there is no room for two of the wider rows.
constexpr uint32_t packed_row_bytes = fp4_output ? head_dim / 2 : head_dim;
constexpr uint32_t staging_buffers = fp4_output ? 2 : 1;
constexpr uint32_t packed_chunk_bytes = 16;

struct PackedRows {
    static constexpr uint32_t row_chunks = packed_row_bytes / packed_chunk_bytes;

    uint8_t bytes[tile_tokens * packed_row_bytes];

    // A chunk of 16 bytes, where the swizzle of the output's map has it: 16-byte chunks of eight (e4m3) or four (nvfp4)
    // neighbours trade places by bits 7 and up of the address.
    __device__ uint8_t* chunk(uint32_t row, uint32_t chunk) {
        const uint32_t swizzle = row * packed_row_bytes / 128 % row_chunks;
        return &bytes[row * packed_row_bytes + (chunk ^ swizzle) * packed_chunk_bytes];
    }

    // The codes of a block, of two neighbouring blocks, or the bytes of a block.
    __device__ void store_codes(uint32_t row, uint32_t block, uint2 codes) {
        *reinterpret_cast<uint2*>(chunk(row, block / 2) + block % 2 * sizeof(codes)) = codes;
    }
    __device__ void store_codes(uint32_t row, uint32_t block, uint2 first, uint2 second) {
        *reinterpret_cast<uint4*>(chunk(row, block / 2)) = make_uint4(first.x, first.y, second.x, second.y);
    }
    __device__ void store_bytes(uint32_t row, uint32_t block, uint4 bytes) {
        *reinterpret_cast<uint4*>(chunk(row, block)) = bytes;
    }
};

using Staging = PackedRows[staging_buffers][halves];

// The buffers of a half, in turn, for each of the `threads` threads that fill it. One of them, the issuer, starts the
// copies.
template <uint32_t barrier, uint32_t threads>
class StagingCursor {
    Staging& staging;
    uint32_t buffer = 0;

    static __device__ void meet(uint32_t half) { named_barrier_sync(barrier + half, threads); }

  public:
    explicit __device__ StagingCursor(Staging& staging) : staging(staging) {}

    // The buffer to fill. With one buffer, waits until the copy before has read it; with two, `store` did that.
    __device__ PackedRows& acquire(uint32_t half, bool issuer) {
        if constexpr (staging_buffers == 1) {
            if (issuer) {
                wait_stores_read<0>();
            }
            meet(half);
        }
        return staging[buffer][half];
    }

    // All threads, after their writes: sends the buffer to a row of 128 tokens.
    __device__ void store(uint32_t half, bool issuer, const Params& params, uint32_t row, uint32_t first_token,
                          uint32_t destination) {
        // The copy engine reads through the async proxy what these threads wrote.
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        if (staging_buffers > 1 && issuer) {
            // The other buffer, which is filled next: its copy has had a tile's time.
            wait_stores_read<0>();
        }
        meet(half);
        if (issuer) {
            tensor_store<4>(params.out,
                            {0, static_cast<int32_t>(row), static_cast<int32_t>(first_token),
                             static_cast<int32_t>(destination)},
                            staging[buffer][half].bytes);
            commit_stores();
        }
        buffer = (buffer + 1) % staging_buffers;
    }

    // Before the shared memory goes away.
    __device__ void finish(bool issuer) const {
        if (issuer) {
            wait_stores_read<0>();
        }
    }
};

} // namespace bakewell
