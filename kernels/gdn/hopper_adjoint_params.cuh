// The parameter block of stage `adjoint` on warpgroup products: tensor maps, then the block of the register engine.
// Offsets are those of `bakewell_core::schedule::gdn::wgmma::ADJOINT_PARAMS`.
#pragma once

#include "../device/tensor_map.cuh"
#include "tables.cuh"

#include <cstdint>

namespace bakewell {

// What a map describes is not read through its pointer and strides.
struct Params {
    TensorMap q_map;      // [tokens, heads, 128], 64 tokens
    TensorMap k_map;      // likewise
    TensorMap grad_o_map; // [tokens, value_heads, 128], 64 tokens of half a head
    TensorMap a_map;      // [chunks * value_heads, 64, 64]
    TensorMap dh_map;     // [chunks * value_heads, 128 V, 128 K], 16 rows
    TensorMap dv_map;     // [tokens, value_heads, 128], 64 tokens of half a head; contiguous
#include "adjoint_fields.inc"
};

} // namespace bakewell
