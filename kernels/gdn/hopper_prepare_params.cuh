// The parameter block of stage `prepare` with keys by the copy engine. Offsets are those of
// `bakewell_core::schedule::gdn::prepare::GROUP_PARAMS`.
#pragma once

#include "../device/tensor_map.cuh"
#include "tables.cuh"

#include <cstdint>

namespace bakewell {

// As in prepare_params.cuh, but for what the copy engine moves.
struct Params {
    TensorMap k_map; // [tokens, heads, 128], 64 tokens
    TensorMap a_map; // [chunks * value_heads, 64, 64]
    const void* q;
    const float* g;
    const void* beta;
    const Chunk* chunks;
    float* rq;
    float* rk;
    float* gate;
    float* fade;
    uint64_t q_token_stride;
    uint64_t q_head_stride;
    uint64_t g_token_stride;
    uint64_t beta_token_stride;
    uint32_t heads;
    uint32_t value_heads;
    uint32_t beta_bf16;
    uint32_t l2norm;
};

} // namespace bakewell
