// The parameter block of stage `adjoint` on warpgroup products: tensor maps, then the block of the register engine.
// Offsets are those of `bakewell_core::schedule::gdn::wgmma::ADJOINT_PARAMS`.
#pragma once

#include "../device/tensor_map.cuh"
#include "tables.cuh"

#include <cstdint>

namespace bakewell {

// Strides are in elements. What a map describes is not read through its pointer and strides.
struct Params {
    TensorMap q_map;      // [tokens, heads, 128], 64 tokens
    TensorMap k_map;      // likewise
    TensorMap grad_o_map; // [tokens, value_heads, 128], 64 tokens of half a head
    TensorMap a_map;      // [chunks * value_heads, 64, 64]
    TensorMap dh_map;     // [chunks * value_heads, 128 V, 128 K], 16 rows
    TensorMap dv_map;     // [tokens, value_heads, 128], 64 tokens of half a head; contiguous
    const void* q;               // [tokens, heads, head_dim] bf16, strided
    const void* k;               // [tokens, heads, head_dim] bf16, strided
    const void* grad_o;          // [tokens, value_heads, head_dim] bf16, strided
    const void* beta;            // [tokens, value_heads] f32 or bf16; heads contiguous
    const float* rq;             // [tokens, heads]
    const float* rk;             // [tokens, heads]
    const float* gate;           // [tokens, value_heads], inclusive sum over the chunk, log2 units
    const void* a;               // [chunks, value_heads, 64, 64] bf16
    const Chunk* chunks;         // [chunks]
    const Segment* segments;     // [segments]
    const Sequence* sequences;   // [sequences]
    const float* dht;            // [sequences, value_heads, key, value]; null: zeros
    const float* start;          // [segments, value_heads, value, key]: where a segment is not the last of its sequence
    void* dv;                    // [tokens, value_heads, head_dim] bf16: receives dVb; null in the pre-scan
    void* dh;                    // [chunks, value_heads, value, key] bf16; null in the pre-scan
    float* dh0;                  // [sequences, value_heads, key, value]; null: not wanted
    float* segment_state;        // [segments, value_heads, value, key]: the pre-scan's G; null: not the pre-scan
    uint64_t q_token_stride;
    uint64_t q_head_stride;
    uint64_t k_token_stride;
    uint64_t k_head_stride;
    uint64_t grad_o_token_stride;
    uint64_t grad_o_head_stride;
    uint64_t beta_token_stride;
    uint32_t heads;
    uint32_t value_heads; // a multiple of heads
    uint32_t beta_bf16;
    float scale;
    const float* fade; // of the pre-scan, which the register engine has
    float forget;
};

} // namespace bakewell
