// The pages of one warp on their way through shared memory: a ring that the warp fills by asynchronous copies and reads
// itself, so that no barrier ties warps together.
#pragma once

#include "../device/async_copy.cuh"
#include "cache_layout.cuh"

#include <cstdint>

namespace bakewell {

// A page of one head. Codes of K lie as in a dense cache, 64 bytes a token.
// Of V the 16-byte chunks of each two tokens are permuted: lanes of a fragment read every other token at the same place,
// which would be the same bank four times.
struct PackedPage {
    static constexpr int chunk = 16;
    static constexpr int row_chunks = dense_row / chunk;
    static constexpr int half_codes = page_tokens / 2 * dense_row; // from a token to the eighth after it
    static constexpr int half_scales = page_tokens / 2 * groups;
    static constexpr int odd_value = chunk * row_chunks; // xor: from an even token's chunk of V to the next token's

    alignas(128) uint8_t keys[page_tokens * dense_row];
    uint8_t values[page_tokens * dense_row];
    uint8_t key_scales[page_tokens * groups];
    uint8_t value_scales[page_tokens * groups];

    // Where a chunk of a token's V begins.
    static __device__ int value_chunk(int token, int index) {
        const int pair = token / 2;
        return pair * 2 * dense_row + chunk * ((token % 2 * row_chunks + index) ^ (2 * pair & (2 * row_chunks - 1)));
    }
};

// A lane's share of copying a page: the same chunk of codes of two tokens, eight apart, of K and of V, and half of the
// lanes a chunk of the scales.
class PageCopy {
    const uint8_t* keys;
    const uint8_t* values;
    const uint8_t* scales;
    uint64_t key_page, value_page, scale_page, key_half, value_half; // strides
    uint32_t key_target, value_target, scale_target;                 // in a page
    bool has_scales;

    static constexpr int scale_chunks = page_tokens * groups / PackedPage::chunk;

  public:
    template <class Params>
    __device__ PageCopy(const Params& params, uint32_t kv_head, int lane)
        : key_page(params.k_page_stride), value_page(params.v_page_stride), key_half(8 * params.k_token_stride),
          value_half(8 * params.v_token_stride), has_scales(lane < 2 * scale_chunks) {
        const int token = lane / PackedPage::row_chunks, index = lane % PackedPage::row_chunks;
        keys = params.k + kv_head * params.k_head_stride + token * params.k_token_stride + PackedPage::chunk * index;
        values = params.v + kv_head * params.v_head_stride + token * params.v_token_stride + PackedPage::chunk * index;
        key_target = offsetof(PackedPage, keys) + PackedPage::chunk * lane;
        value_target = offsetof(PackedPage, values) + PackedPage::value_chunk(token, index);
        const bool of_keys = lane < scale_chunks;
        scales = of_keys ? params.k_scale + kv_head * params.k_scale_head_stride
                         : params.v_scale + kv_head * params.v_scale_head_stride;
        scales += PackedPage::chunk * (lane % scale_chunks);
        scale_page = of_keys ? params.k_scale_page_stride : params.v_scale_page_stride;
        scale_target = offsetof(PackedPage, key_scales) + PackedPage::chunk * (lane % (2 * scale_chunks));
        // Held in registers: otherwise they are computed anew for each page.
        asm("" : "+l"(keys), "+l"(values), "+l"(scales), "+l"(scale_page));
        asm("" : "+r"(key_target), "+r"(value_target), "+r"(scale_target));
    }

    __device__ void start(PackedPage& slot, uint32_t page) const {
        const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(&slot));
        const uint8_t* k = keys + page * key_page;
        const uint8_t* v = values + page * value_page;
        async_copy_16(shared + key_target, k, true);
        async_copy_16(shared + key_target + PackedPage::half_codes, k + key_half, true);
        async_copy_16(shared + value_target, v, true);
        async_copy_16(shared + value_target + PackedPage::half_codes, v + value_half, true);
        if (has_scales) {
            async_copy_16(shared + scale_target, scales + page * scale_page, true);
        }
    }
};

} // namespace bakewell
