// The parameter block of stage `copy`. Offsets are those of `bakewell_core::schedule::gdn::copy::PARAMS`.
#pragma once

#include <cstdint>

namespace bakewell {

// Strides are in bytes.
struct Params {
    const char* source; // [batch, row_tokens, row_heads, units], strided
    char* target;       // the same, contiguous
    uint64_t batch_stride;
    uint64_t token_stride;
    uint64_t head_stride;
    uint64_t unit_stride;
    uint32_t row_tokens;
    uint32_t row_heads;
    uint32_t units;
    uint32_t unit_bytes; // 2, 4 or 16; `source` and all strides are multiples of it
};

} // namespace bakewell
