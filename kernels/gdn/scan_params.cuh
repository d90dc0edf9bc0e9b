// The parameter block of stages `scan` and `states`. Offsets are those of `bakewell_core::schedule::gdn::scan::PARAMS`.
#pragma once

#include "tables.cuh"

#include <cstdint>

namespace bakewell {

// Strides are in elements. States that are V-major have a row per value column.
struct Params {
#include "scan_fields.inc"
};

} // namespace bakewell
