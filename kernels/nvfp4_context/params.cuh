// Parameters of the nvfp4_context kernels. Field order and offsets: bakewell_core::schedule::nvfp4_context.
#pragma once

#include "../device/tensor_map.cuh"

#include <cstdint>

namespace bakewell {

struct Params {
    TensorMap q;       // E4M3 [head_dim, pack, total_q, units]; box: pack heads of the tokens of half a tile
    TensorMap k;       // packed FP4 bytes [64, 16, kv_heads, pages]; box: one page of one head
    TensorMap v;       // the same of V
    TensorMap k_scale; // E4M3 [128, kv_heads, pages]; box: one page of one head, [token][group]
    TensorMap v_scale; // the same of V, [token / 4][group][token % 4]

    const int32_t* page_table;   // [batch, page_table_stride]
    const int32_t* seq_lens_kv;  // [batch]
    const int32_t* cu_seqlens_q; // [batch + 1]
    uint8_t* out;                // E4M3 [total_q, q_heads, head_dim]
    float* lse;                  // [total_q, q_heads], or null
    const float* sinks;          // [q_heads], or null
    const float* bmm1_device;    // [1], or null: then bmm1_scale
    const float* bmm2_device;    // [1], or null: then bmm2_scale
    float* partial_out;          // [tiles, splits, 256, head_dim]; null without split
    float* partial_max;          // [tiles, splits, 256]
    float* partial_sum;          // [tiles, splits, 256]
    uint32_t* completed;         // [tiles], 0 between launches

    uint64_t page_table_stride; // in entries
    float bmm1_scale;
    float bmm2_scale;
    uint32_t q_heads;
    uint32_t heads_per_kv;      // query heads per KV head
    uint32_t units_per_request; // packs of query heads: q_heads / pack
    uint32_t units;             // of all requests
    uint32_t m_blocks;          // tiles along the queries of the longest request
    uint32_t splits;            // CTAs that share a tile's keys; 1 without split
    uint32_t work_items;        // units * m_blocks * splits
};

} // namespace bakewell
