// Parameters of the kernel that expands tiles. Field order and offsets: bakewell_core::schedule::nvfp4_context.
#pragma once

#include "../device/tensor_map.cuh"

#include <cstdint>

namespace bakewell {

struct Params {
    TensorMap k;       // packed FP4 bytes [64, 16, kv_heads, pages]; box: one page of one head
    TensorMap v;       // the same of V
    TensorMap k_scale; // E4M3 [128, kv_heads, pages]; box: one page of one head, [token][group]
    TensorMap v_scale; // the same of V, [token / 4][group][token % 4]

    const int32_t* page_table;   // [batch, page_table_stride]
    const int32_t* seq_lens_kv;  // [batch]
    const int32_t* cu_seqlens_q; // [batch + 1]
    uint8_t* expanded;           // E4M3 tiles [batch, kv_heads, key_blocks, 2, 128 * 128]

    uint64_t page_table_stride; // in entries
    uint32_t kv_heads;
    uint32_t key_blocks; // of 128 keys in the longest request, at least 1
};

} // namespace bakewell
