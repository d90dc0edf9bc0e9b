// The parameter block of stage `tail` on warpgroup products: tensor maps, then the block of the register engine. Offsets
// are those of `bakewell_core::schedule::gdn::wgmma_tail::PARAMS`.
#pragma once

#include "../device/tensor_map.cuh"
#include "tables.cuh"

#include <cstdint>

namespace bakewell {

// Strides are in elements. What a map describes is not read through its pointer and strides, but for dVb.
struct Params {
    TensorMap q_map;      // [tokens, heads, 128], 64 tokens
    TensorMap k_map;      // likewise
    TensorMap grad_o_map; // [tokens, value_heads, 128], 64 tokens of half a head
    TensorMap v_new_map;  // likewise; contiguous
    TensorMap dv_map;     // likewise
    TensorMap h_map;      // [chunks * value_heads, 128 V, 128 K], 16 rows
    TensorMap dh_map;     // likewise
    const void* q;        // [tokens, heads, head_dim] bf16, strided
    const void* k;        // [tokens, heads, head_dim] bf16, strided
    const void* v;        // [tokens, value_heads, head_dim] bf16, strided; rows whose beta is nearly 0 are read
    const void* grad_o;   // [tokens, value_heads, head_dim] bf16, strided
    const void* beta;     // [tokens, value_heads] f32 or bf16; heads contiguous
    const float* rq;      // [tokens, heads]
    const float* rk;      // [tokens, heads]
    const float* gate;    // [tokens, value_heads], inclusive sum over the chunk, log2 units
    const void* v_new;    // [tokens, value_heads, head_dim] bf16
    const void* h;        // [chunks, value_heads, value, key] bf16, state before the chunk
    const void* dh;       // [chunks, value_heads, value, key] bf16, gradient of the state after the chunk
    const Chunk* chunks;  // [chunks]
    void* dq;             // [tokens, heads, head_dim] bf16
    void* dk;             // [tokens, heads, head_dim] bf16
    void* dv;             // [tokens, value_heads, head_dim] bf16: dVb, replaced by its gradient
    float* dg;            // [tokens, value_heads]
    void* dbeta;          // [tokens, value_heads], type of beta
    uint64_t q_token_stride;
    uint64_t q_head_stride;
    uint64_t k_token_stride;
    uint64_t k_head_stride;
    uint64_t v_token_stride;
    uint64_t v_head_stride;
    uint64_t grad_o_token_stride;
    uint64_t grad_o_head_stride;
    uint64_t beta_token_stride;
    uint32_t heads;
    uint32_t value_heads; // a multiple of heads
    uint32_t chunk_count;
    uint32_t beta_bf16;
    uint32_t l2norm;
    float scale;
};

} // namespace bakewell
