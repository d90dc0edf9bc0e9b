// The parameter block of stages `scan` and `states` on tensor memory: tensor maps, then the block of the register
// engine, whose fields scan_params.cuh explains. Offsets: `bakewell_core::schedule::gdn::tcgen05::SCAN_PARAMS`.
#pragma once

#include "../device/tensor_map.cuh"
#include "tables.cuh"

#include <cstdint>

namespace bakewell {

// What a map describes is not read through its pointer and strides.
struct Params {
    TensorMap q_map;     // [tokens, heads, 128], 64 tokens
    TensorMap k_map;     // likewise
    TensorMap v_map;     // [tokens, value_heads, 128], 64 tokens of half a head
    TensorMap a_map;     // [chunks * value_heads, 64, 64]
    TensorMap h_map;     // [chunks * value_heads, 128 V, 128 K], 16 rows
    TensorMap o_map;     // [tokens, value_heads, 128], 64 tokens of half a head; contiguous
    TensorMap v_new_map; // likewise
#include "scan_fields.inc"
};

} // namespace bakewell
