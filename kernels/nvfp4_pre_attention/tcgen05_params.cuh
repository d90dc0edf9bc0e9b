// Parameters of the tcgen05 GEMM. Field order and offsets: bakewell_core::schedule::nvfp4_pre_attention::tcgen05.
#pragma once

#include "../device/tensor_map.cuh"

#include <cstdint>

namespace bakewell {

struct Params {
    TensorMap a;        // activation codes [tokens, hidden / 2] bytes; box: 128 tokens x 256 elements, 128-byte swizzle
    TensorMap b;        // weight codes [heads * 384, hidden / 2] bytes; the same box
    TensorMap a_scales; // [token tiles of 128 * hidden / 64, 512] bytes as 64 words of 8; box: 4 tiles
    TensorMap b_scales; // [pairs of row tiles * hidden / 64 * 2, 512] bytes, likewise; box: 8 tiles
    TensorMap out;      // [destinations, tokens, heads / destinations * 3, row bytes]; box: one row of 128 tokens

    const uint4* rope_cos_sin;     // bf16 [tokens, rope_dim]: cosines, then sines
    const uint4* q_norm_weight;    // bf16 [128]
    const uint4* k_norm_weight;    // bf16 [128]
    uint8_t* out_sf;               // [destinations, tiles of 128 rows, 1024], NVFP4 only
    const float* out_global_scale; // [1], NVFP4 only
    uint4* debug_q;                // bf16 [tokens, heads, 128], or null
    uint4* debug_k;                // the same of K

    float alpha; // 1 / (encode scale of the activation * encode scale of the weight)
    float eps;
    float inverse_scale_q; // E4M3 only: 1 / decode scale of each kind
    float inverse_scale_k;
    float inverse_scale_v;
    uint32_t tokens;
    uint32_t heads;
    uint32_t destinations;
    uint32_t rope_dim;
    uint32_t hidden;
};

} // namespace bakewell
