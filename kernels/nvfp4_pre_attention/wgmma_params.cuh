// Parameters of the GEMM on the warpgroup tensor cores. Field order and offsets: bakewell_core::schedule::nvfp4_pre_attention.
#pragma once

#include <cstdint>

namespace bakewell {

struct Params {
    const uint8_t* activation;     // image of [tokens, hidden], tokens rounded up to 128
    const uint8_t* weight;         // image of [heads * 3 * 128, hidden]
    const uint8_t* rope_cos_sin;   // bf16 [tokens, rope_dim]: cosines, then sines
    const uint8_t* q_norm_weight;  // bf16 [128]
    const uint8_t* k_norm_weight;  // bf16 [128]
    const float* out_global_scale; // [1], NVFP4 output only
    uint8_t* out_q;                // [destinations, tokens, heads / destinations, 3, row bytes]
    uint8_t* out_sf;               // [destinations, swizzled scales], NVFP4 output only
    uint8_t* debug_q;              // bf16 [tokens, heads, 128], or null
    uint8_t* debug_k;              // the same of K

    float alpha; // 1 / (product of the operands' encode scales)
    float eps;
    float inverse_scale_q; // E4M3 output only: reciprocals of qkv_scales
    float inverse_scale_k;
    float inverse_scale_v;
    uint32_t tokens;
    uint32_t hidden;
    uint32_t heads;
    uint32_t destinations;
    uint32_t rope_dim;
};

} // namespace bakewell
