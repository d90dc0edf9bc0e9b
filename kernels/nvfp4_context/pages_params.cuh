// Parameters of the kernel that shows pages. Field order and offsets: bakewell_core::schedule::nvfp4_context. Strides in bytes.
#pragma once

#include <cstdint>

namespace bakewell {

struct Params {
    const uint8_t* k;       // packed FP4 [pages, kv_heads, 16, 64]
    const uint8_t* v;       // the same of V
    const uint8_t* k_scale; // E4M3 [pages, kv_heads, 128], [token][group]
    const uint8_t* v_scale; // the same of V, [token / 4][group][token % 4]
    uint8_t* k_out;         // E4M3 [pages, kv_heads, 16, head_dim]
    uint8_t* v_out;         // the same of V

    uint64_t k_page_stride, k_head_stride, k_token_stride;
    uint64_t v_page_stride, v_head_stride, v_token_stride;
    uint64_t k_scale_page_stride, k_scale_head_stride;
    uint64_t v_scale_page_stride, v_scale_head_stride;
    uint32_t pages;
    uint32_t kv_heads; // = gridDim.y
};

} // namespace bakewell
