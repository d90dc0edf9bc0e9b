// The parameter block of stages `scan`, `states` and `pre_scan` on warpgroup products: tensor maps, then the block of the
// register engine, then what the pre-scan alone reads and writes.
// Offsets are those of `bakewell_core::schedule::gdn::wgmma::SCAN_PARAMS`.
#pragma once

#include "../device/tensor_map.cuh"
#include "tables.cuh"

#include <cstdint>

namespace bakewell {

// Strides are in elements. What a map describes is not read through its pointer and strides.
struct Params {
    TensorMap q_map;      // [tokens, heads, 128], 64 tokens
    TensorMap k_map;      // likewise
    TensorMap v_map;      // [tokens, value_heads, 128], 64 tokens of half a head
    TensorMap a_map;      // [chunks * value_heads, 64, 64]
    TensorMap h_map;      // [chunks * value_heads, 128 V, 128 K], 16 rows
    TensorMap o_map;      // [tokens, value_heads, 128], 64 tokens of half a head; contiguous
    TensorMap v_new_map;  // likewise
    const void* q;             // [tokens, heads, head_dim] bf16, strided; not read without output
    const void* k;             // [tokens, heads, head_dim] bf16, strided
    const void* v;             // [tokens, value_heads, head_dim] bf16, strided
    const void* beta;          // [tokens, value_heads] f32 or bf16; heads contiguous
    const float* rq;           // [tokens, heads]
    const float* rk;           // [tokens, heads]
    const float* gate;         // [tokens, value_heads], log2 units
    const void* a;             // [chunks, value_heads, 64, 64] bf16
    const Chunk* chunks;       // [chunks]; those of a segment follow each other, all but the last full
    const Segment* segments;   // [segments]
    const Sequence* sequences; // [sequences]
    const float* h0;           // [sequences, value_heads, 128 K, 128 V]; null: zeros
    const float* start;        // [segments, value_heads, 128 V, 128 K], of segments that are not their sequence's first
    void* o;                   // [tokens, value_heads, head_dim] bf16; not written without output
    void* v_new;               // [tokens, value_heads, head_dim] bf16; null: not wanted
    void* h;                   // [chunks, value_heads, 128 V, 128 K] bf16, before the chunk; null: not wanted
    float* ht;                 // [sequences, value_heads, 128 K, 128 V]; null: not wanted
    float* segment_state;      // [segments, value_heads, 128 V, 128 K]: pre-scan from zeros; null: no pre-scan
    float* m;                  // [segments, value_heads, 128, 128 K]: pre-scan of the identity, a row per column of it
    uint64_t q_token_stride;
    uint64_t q_head_stride;
    uint64_t k_token_stride;
    uint64_t k_head_stride;
    uint64_t v_token_stride;
    uint64_t v_head_stride;
    uint64_t beta_token_stride;
    uint32_t heads;
    uint32_t value_heads;
    uint32_t beta_bf16;
    uint32_t m_of_first; // pre-scan: M of first segments is wanted
    uint32_t m_of_last;  // pre-scan: M of last segments is wanted
    float scale;
    const float* fade; // [chunks, value_heads], of fade.cuh; null: nothing is forgotten
    uint32_t* carries; // [segments, value_heads]: whether M is there and not zero; null: always
    float forget;      // of fade.cuh
};

} // namespace bakewell
