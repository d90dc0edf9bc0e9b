// The parameter block of stage `tail`. Offsets are those of `bakewell_core::schedule::gdn::tail::PARAMS`.
#pragma once

#include "tables.cuh"

#include <cstdint>

namespace bakewell {

struct Params {
#include "tail_fields.inc"
};

} // namespace bakewell
