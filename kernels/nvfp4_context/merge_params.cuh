// Parameters of the merge of split tiles. Field order and offsets: bakewell_core::schedule::nvfp4_context.
#pragma once

#include <cstdint>

namespace bakewell {

struct Params {
    const int32_t* cu_seqlens_q; // [batch + 1]
    const float* partial_out;    // [total_q, q_heads, splits, head_dim]
    const float* partial_max;    // [total_q, q_heads, splits]
    const float* partial_sum;    // [total_q, q_heads, splits]
    uint8_t* out;                // E4M3 [total_q, q_heads, head_dim]
    float* lse;                  // [total_q, q_heads], or null
    const float* sinks;          // [q_heads], or null
    const float* bmm1_device;    // [1], or null: then bmm1_scale
    const float* bmm2_device;    // [1], or null: then bmm2_scale

    float bmm1_scale;
    float bmm2_scale;
    uint32_t batch;
    uint32_t q_heads;
    uint32_t splits; // at most max_splits
};

} // namespace bakewell
