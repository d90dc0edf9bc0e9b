// The parameter block of stage `adjoint` on tensor memory: tensor maps, then the block of the register engine, whose
// fields adjoint_params.cuh explains. Offsets are those of `bakewell_core::schedule::gdn::tcgen05::ADJOINT_PARAMS`.
#pragma once

#include "../device/tensor_map.cuh"
#include "tables.cuh"

#include <cstdint>

namespace bakewell {

// What a map describes is not read through its pointer and strides.
struct Params {
    TensorMap q_map;      // [tokens, heads, 128], 64 tokens
    TensorMap k_map;      // likewise
    TensorMap grad_o_map; // [tokens, value_heads, 128], 64 tokens of half a head
    TensorMap a_map;      // [chunks * value_heads, 64, 64]
    TensorMap dh_map;     // [chunks * value_heads, 128 V, 128 K], 16 rows
    TensorMap dv_map;     // [tokens, value_heads, 128], 64 tokens of half a head; contiguous
    const void *q, *k, *grad_o, *beta;
    const float *rq, *rk, *gate;
    const void* a;
    const Chunk* chunks;
    const Segment* segments;
    const Sequence* sequences;
    const float *dht, *start;
    void *dv, *dh;
    float *dh0, *segment_state;
    uint64_t q_token_stride, q_head_stride, k_token_stride, k_head_stride, grad_o_token_stride, grad_o_head_stride;
    uint64_t beta_token_stride;
    uint32_t heads, value_heads, beta_bf16;
    float scale;
    const float* fade; // of the pre-scan, which the register engine has
    float forget;
};

} // namespace bakewell
