// Two teams of warps take turns at a unit that they share, with a named barrier each.
#pragma once

#include "named_barrier.cuh"

#include <cstdint>

namespace bakewell {

// `threads` of both teams together; barriers `first` and `first + 1`. Both teams take and give equally often, so that the
// turn is team 0's again whenever both have given.
template <uint32_t first, uint32_t threads>
class Turns {
    uint32_t team;

    // PTX: barrier.cta.arrive.aligned
    static __device__ void arrive(uint32_t barrier) {
        asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
    }

  public:
    explicit __device__ Turns(uint32_t team) : team(team) {}

    // Once, before the first turn, which is team 0's.
    __device__ void begin() const {
        if (team == 1) {
            give();
        }
    }

    __device__ void take() const { named_barrier_sync(first + team, threads); }
    __device__ void give() const { arrive(first + 1 - team); }
};

} // namespace bakewell
