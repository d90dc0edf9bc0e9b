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
#include "tail_fields.inc"
};

} // namespace bakewell
