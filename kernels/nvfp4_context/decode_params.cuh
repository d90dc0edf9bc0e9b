// Parameters of the decode kernel. Field order and offsets: bakewell_core::schedule::nvfp4_context. Strides in bytes.
#pragma once

#include <cstdint>

namespace bakewell {

struct Params {
    const uint8_t* q;       // E4M3 [total_q, q_heads, head_dim]
    const uint8_t* k;       // packed FP4 [pages, kv_heads, 16, 64]
    const uint8_t* v;       // the same of V
    const uint8_t* k_scale; // E4M3 [pages, kv_heads, 128], [token][group]
    const uint8_t* v_scale; // the same of V, [token / 4][group][token % 4]

    const int32_t* page_table;   // [batch, page_table_stride]
    const int32_t* seq_lens_kv;  // [batch]
    const int32_t* cu_seqlens_q; // [batch + 1]
    uint8_t* out;                // E4M3 [total_q, q_heads, head_dim]
    float* lse;                  // [total_q, q_heads], or null
    const float* sinks;          // [q_heads], or null
    const float* bmm1_device;    // [1], or null: then bmm1_scale
    const float* bmm2_device;    // [1], or null: then bmm2_scale
    float* partial_out;          // [batch, kv_heads, columns, clusters, head_dim]; null without
    float* partial_max;          // [batch, kv_heads, columns, clusters], exponent reference; -inf: no key
    float* partial_sum;          // [batch, kv_heads, columns, clusters]
    uint32_t* completed;         // [batch, kv_heads], 0 between launches

    uint64_t q_token_stride, q_head_stride;
    uint64_t k_page_stride, k_head_stride, k_token_stride;
    uint64_t v_page_stride, v_head_stride, v_token_stride;
    uint64_t k_scale_page_stride, k_scale_head_stride;
    uint64_t v_scale_page_stride, v_scale_head_stride;
    uint64_t page_table_stride; // in entries
    float bmm1_scale;
    float bmm2_scale;
    uint32_t q_heads;
    uint32_t heads_per_kv;      // query heads per KV head
    uint32_t kv_heads;          // = gridDim.z
    uint32_t max_pages;         // entries of a row of the page table
    uint32_t splits;            // CTAs that share a request's keys, a multiple of the cluster size; = gridDim.y
};

} // namespace bakewell
