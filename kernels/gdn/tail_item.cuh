// What a tail works on: a chunk and a key head at a time, whose value heads it takes in order.
#pragma once

#include "tables.cuh"

#include <cstdint>

namespace bakewell {

struct Item {
    uint64_t chunk_index;
    uint32_t head;
    Chunk chunk;

    __device__ int tokens() const { return static_cast<int>(chunk.tokens); }
    __device__ uint64_t token(int row) const { return chunk.first_token + static_cast<uint64_t>(row); }
};

// Calls work(item) for every gridDim.x-th item from this CTA's on, heads of a chunk first; padding is passed over. The
// table entry of the next item is read ahead.
template <class Params, class Function>
__device__ inline void for_each_item(const Params& params, Function work) {
    const auto read = [&](uint64_t chunk) { return chunk < params.chunk_count ? params.chunks[chunk] : Chunk{}; };
    uint64_t index = blockIdx.x / params.heads;
    uint32_t head = blockIdx.x % params.heads;
    Chunk next = read(index);
    while (index < params.chunk_count) {
        const Item item{index, head, next};
        index += gridDim.x / params.heads;
        head += gridDim.x % params.heads;
        if (head >= params.heads) {
            head -= params.heads;
            ++index;
        }
        next = read(index);
        if (item.chunk.tokens > 0) {
            work(item);
        }
    }
}

// Calls work(item, value head, whether it is the first of its item) for every value head.
template <class Params, class Function>
__device__ inline void for_each_head(const Params& params, Function work) {
    const uint32_t group = params.value_heads / params.heads;
    for_each_item(params, [&](const Item& item) {
        for (uint32_t member = 0; member < group; ++member) {
            work(item, uint64_t{item.head} * group + member, member == 0);
        }
    });
}

} // namespace bakewell
