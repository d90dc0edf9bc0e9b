// How a page of the cache lies in memory: rows of FP4 codes, and the place of each scale byte.
#pragma once

#include "../device/fp4.cuh"

#include <cstdint>

namespace bakewell {

constexpr int head_dim = 128;
constexpr int page_tokens = 16;
constexpr int groups = head_dim / fp4_block; // of elements that share a scale

// What the plan admits: CTAs that share keys.
constexpr uint32_t max_splits = 64;

enum class Side { K, V };

// Place of a scale byte within its page: K is [token][group], V is [token / 4][group][token % 4].
template <Side side>
__device__ constexpr int scale_index(int token, int group) {
    return side == Side::K ? token * groups + group : token / 4 * (4 * groups) + group * 4 + token % 4;
}

// K or V of one head in the pool. Strides in bytes.
struct HeadPages {
    const uint8_t* codes;  // of page 0
    const uint8_t* scales; // of page 0
    uint64_t page_stride, token_stride, scale_page_stride;

    __device__ const uint8_t* row(uint32_t page, int token) const {
        return codes + page * page_stride + token * token_stride;
    }
    __device__ const uint8_t* page_scales(uint32_t page) const { return scales + page * scale_page_stride; }
};

} // namespace bakewell
