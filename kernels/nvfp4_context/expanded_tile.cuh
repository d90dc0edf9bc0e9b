// Where the expanded tiles of a block of keys lie in the workspace: K, then V, as the tensor cores read them from shared
// memory.
#pragma once

#include "expand.cuh"

#include <cstdint>

namespace bakewell {

constexpr uint32_t tile_bytes = block_keys * row_bytes;

// Offset of a tile in [batch, kv_heads, key_blocks, 2, tile_bytes].
__device__ inline uint64_t tile_offset(uint32_t request, uint32_t kv_heads, uint32_t kv_head, uint32_t key_blocks,
                                       uint32_t block, Side side) {
    const uint64_t head = static_cast<uint64_t>(request) * kv_heads + kv_head;
    return ((head * key_blocks + block) * 2 + static_cast<uint32_t>(side)) * tile_bytes;
}

} // namespace bakewell
