// The parameter block of stages `scan` and `states` on tensor memory: tensor maps, then the block of the register
// engine, whose fields scan_params.cuh explains. Offsets: `bakewell_core::schedule::gdn::tcgen05::SCAN_PARAMS`.
#pragma once

#include "../device/tensor_map.cuh"
#include "tables.cuh"

#include <cstdint>

namespace bakewell {

// What a map describes is not read through its pointer and strides.
struct Params {
    TensorMap q_map;     // [tokens, heads, 128], 64 tokens
    TensorMap k_map;     // likewise
    TensorMap v_map;     // [tokens, value_heads, 128], 64 tokens of half a head
    TensorMap a_map;     // [chunks * value_heads, 64, 64]
    TensorMap h_map;     // [chunks * value_heads, 128 V, 128 K], 16 rows
    TensorMap o_map;     // [tokens, value_heads, 128], 64 tokens of half a head; contiguous
    TensorMap v_new_map; // likewise
    const void *q, *k, *v, *beta;
    const float *rq, *rk, *gate;
    const void* a;
    const Chunk* chunks;
    const Segment* segments;
    const Sequence* sequences;
    const float *h0, *start;
    void *o, *v_new, *h;
    float *ht, *segment_state, *m;
    uint64_t q_token_stride, q_head_stride, k_token_stride, k_head_stride, v_token_stride, v_head_stride;
    uint64_t beta_token_stride;
    uint32_t heads, value_heads, beta_bf16, m_of_first, m_of_last;
    float scale;
};

} // namespace bakewell
