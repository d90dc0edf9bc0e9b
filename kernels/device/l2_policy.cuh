// Hints to the second-level cache for a copy: what to keep and what to let go. They never change data.
#pragma once

#include <cstdint>

namespace bakewell {

enum class Eviction { first, last };

class L2Policy {
    uint64_t word;

  public:
    // PTX: createpolicy.fractional.L2::evict_first.b64 / createpolicy.fractional.L2::evict_last.b64
    explicit __device__ L2Policy(Eviction eviction) {
        if (eviction == Eviction::first) {
            asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(word));
        } else {
            asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(word));
        }
    }

    __device__ uint64_t operand() const { return word; }
};

} // namespace bakewell
