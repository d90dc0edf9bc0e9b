// Teams of warps take turns at a unit that they share, in a circle, with a named barrier each.
#pragma once

#include "named_barrier.cuh"

#include <cstdint>

namespace bakewell {

// `teams` of `threads` each; barriers `first` to `first + teams - 1`. A barrier has the team whose turn it is and the one
// before it. All teams take and give equally often, so that the turn is team 0's again whenever all have given.
template <uint32_t first, uint32_t teams, uint32_t threads>
class Turns {
    static_assert(first + teams <= 16, "a CTA has 16 named barriers");

    uint32_t team;

    __device__ uint32_t next() const { return team + 1 < teams ? team + 1 : 0; }

    // PTX: barrier.cta.arrive.aligned
    static __device__ void arrive(uint32_t barrier) {
        asm volatile("barrier.cta.arrive.aligned %0, %1;" ::"r"(barrier), "r"(2 * threads) : "memory");
    }

  public:
    explicit __device__ Turns(uint32_t team) : team(team) {}

    // Once, before the first turn, which is team 0's.
    __device__ void begin() const {
        if (team == teams - 1) {
            give();
        }
    }

    __device__ void take() const { named_barrier_sync(first + team, 2 * threads); }
    __device__ void give() const { arrive(first + next()); }
};

} // namespace bakewell
