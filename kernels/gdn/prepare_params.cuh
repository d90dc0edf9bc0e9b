// The parameter block of stage `prepare`. Offsets are those of `bakewell_core::schedule::gdn::prepare::PARAMS`.
#pragma once

#include "tables.cuh"

#include <cstdint>

namespace bakewell {

// Strides are in elements.
struct Params {
    const void* q;       // [tokens, heads, head_dim] bf16, strided; not read without l2norm
    const void* k;       // [tokens, heads, head_dim] bf16, strided
    const float* g;      // [tokens, value_heads], natural logarithm of the decay; heads contiguous
    const void* beta;    // [tokens, value_heads] f32 or bf16; heads contiguous
    const Chunk* chunks; // [chunks]
    float* rq;           // [tokens, heads], 1 / norm of q; 1 without l2norm
    float* rk;           // [tokens, heads], likewise of k
    float* gate;         // [tokens, value_heads], inclusive sum of g over the chunk, log2 units
    float* fade;         // [chunks, value_heads], of fade.cuh; null: not wanted
    void* a;             // [chunks, value_heads, 64, 64] bf16, the inverse; identity in rows past the chunk
    uint64_t q_token_stride;
    uint64_t q_head_stride;
    uint64_t k_token_stride;
    uint64_t k_head_stride;
    uint64_t g_token_stride;
    uint64_t beta_token_stride;
    uint32_t heads;
    uint32_t value_heads; // a multiple of heads
    uint32_t beta_bf16;
    uint32_t l2norm;
};

} // namespace bakewell
