// The parameter block of stages `scan`, `states` and `pre_scan` on warpgroup products: tensor maps, then the block of the
// register engine, then what the pre-scan alone reads and writes.
// Offsets are those of `bakewell_core::schedule::gdn::wgmma::SCAN_PARAMS`.
#pragma once

#include "../device/tensor_map.cuh"
#include "tables.cuh"

#include <cstdint>

namespace bakewell {

// What a map describes is not read through its pointer and strides.
struct Params {
    TensorMap q_map;      // [tokens, heads, 128], 64 tokens
    TensorMap k_map;      // likewise
    TensorMap v_map;      // [tokens, value_heads, 128], 64 tokens of half a head
    TensorMap a_map;      // [chunks * value_heads, 64, 64]
    TensorMap h_map;      // [chunks * value_heads, 128 V, 128 K], 16 rows
    TensorMap o_map;      // [tokens, value_heads, 128], 64 tokens of half a head; contiguous
    TensorMap v_new_map;  // likewise
#include "scan_fields.inc"
    const float* fade; // [chunks, value_heads], of fade.cuh; null: nothing is forgotten
    uint32_t* carries; // [segments, value_heads]: whether M is there and not zero; null: always
    float forget;      // of fade.cuh
};

} // namespace bakewell
