// Loads that are issued where they stand.
#pragma once

#include <cstdint>

namespace bakewell {

// A load that no later branch can hold back: the compiler moves plain loads behind a branch that skips their use.
// PTX: ld.global.v4.u32
__device__ inline uint4 load_early(const uint4* address) {
    uint4 value;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(address));
    return value;
}

} // namespace bakewell
