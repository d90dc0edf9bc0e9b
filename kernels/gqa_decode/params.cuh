// The parameter block of the kernels. Offsets are those of `bakewell_core::schedule::gqa_decode::PARAMS`.
#pragma once

#include <cstdint>

namespace bakewell {

// A warp asks for K and V of so many tiles, for the queries and for the length.
constexpr int most_early_tiles = 15;

struct Params {
    const void* q;                     // [batch, kv_heads * group_size, head_dim]
    const void* kv;                    // [batch, 2, kv_heads, capacity, head_dim], 0 = K, 1 = V
    const int32_t* sequence_lengths;   // [batch]; see `Work::length`
    void* out;                         // [batch, kv_heads * group_size, head_dim]
    float* lse;                        // [batch, kv_heads * group_size], natural logarithm; null: not wanted
    float* partial_out;                // [batch, kv_heads * group_size, partials, head_dim]; partials = splits / cluster
    float* partial_max;                // [batch, kv_heads * group_size, partials], exponent reference; -inf: no key
    float* partial_sum;                // [batch, kv_heads * group_size, partials]
    uint32_t* completed;               // [batch, kv_heads], zero before and after
    uint64_t capacity;                 // keys allocated per head, at least 1
    uint32_t kv_heads;                 // = gridDim.z
    uint32_t splits;                   // CTAs per request and KV head, a multiple of the cluster size; = gridDim.y
    float scale_log2;                  // q_scale / (sqrt(head_dim) * ln 2)
    uint32_t early_tiles;              // tiles of a split asked for before earlier grids end, at most `most_early_tiles`
};

} // namespace bakewell
