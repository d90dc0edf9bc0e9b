// Enumerations that a rendered `struct Schedule` uses. One spelling with `bakewell_core::schedule`.
#pragma once

namespace bakewell {

enum class Element { f16, bf16 };

} // namespace bakewell
