// The parameter block of stage `adjoint`. Offsets are those of `bakewell_core::schedule::gdn::adjoint::PARAMS`.
#pragma once

#include "tables.cuh"

#include <cstdint>

namespace bakewell {

struct Params {
#include "adjoint_fields.inc"
};

} // namespace bakewell
