// How a page of the cache lies in memory: rows of FP4 codes, and the place of each scale byte.
#pragma once

#include "../device/fp4.cuh"

#include <cstdint>

namespace bakewell {

constexpr int head_dim = 128;
constexpr int page_tokens = 16;
constexpr int dense_row = head_dim / 2; // bytes of a row of codes
constexpr int groups = head_dim / fp4_block; // of elements that share a scale

// What the plan admits: CTAs that share keys.
constexpr uint32_t max_splits = 64;

enum class Side { K, V };

// Place of a scale byte within its page: K is [token][group], V is [token / 4][group][token % 4].
template <Side side>
__device__ constexpr int scale_index(int token, int group) {
    return side == Side::K ? token * groups + group : token / 4 * (4 * groups) + group * 4 + token % 4;
}

} // namespace bakewell
