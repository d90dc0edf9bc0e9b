// Parameters of attention over expanded tiles. Field order and offsets: bakewell_core::schedule::nvfp4_context.
#pragma once

#include "../device/tensor_map.cuh"

#include <cstdint>

namespace bakewell {

struct Params {
    TensorMap q; // E4M3 [head_dim, pack, total_q, units]; box: pack heads of the tokens of half a tile

    const uint8_t* expanded;     // E4M3 tiles [batch, kv_heads, key_blocks, 2, 128 * 128], written by dequantise.cu
    const int32_t* seq_lens_kv;  // [batch]
    const int32_t* cu_seqlens_q; // [batch + 1]
    uint8_t* out;                // E4M3 [total_q, q_heads, head_dim]
    float* lse;                  // [total_q, q_heads], or null
    const float* sinks;          // [q_heads], or null
    const float* bmm1_device;    // [1], or null: then bmm1_scale
    const float* bmm2_device;    // [1], or null: then bmm2_scale
    float* partial_out;          // [total_q, q_heads, splits, head_dim]; null without split
    float* partial_max;          // [total_q, q_heads, splits]
    float* partial_sum;          // [total_q, q_heads, splits]

    float bmm1_scale;
    float bmm2_scale;
    uint32_t q_heads;
    uint32_t heads_per_kv;      // query heads per KV head
    uint32_t key_blocks;        // of 128 keys in the longest request, at least 1
    uint32_t units_per_request; // packs of query heads: q_heads / pack
    uint32_t units;             // of all requests
    uint32_t m_blocks;          // tiles along the queries of the longest request
    uint32_t splits;            // CTAs that share a tile's keys; 1 without split
    uint32_t work_items;        // units * m_blocks * splits
};

} // namespace bakewell
