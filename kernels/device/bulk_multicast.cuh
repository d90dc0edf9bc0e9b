// Copies of contiguous bytes by the copy engine with hints to the second-level cache, also to several CTAs at once.
#pragma once

#include "bulk_copy.cuh"
#include "l2_policy.cuh"

#include <cstdint>

namespace bakewell {

// `bulk_load` with a hint.
// PTX: cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint
__device__ inline void bulk_load(void* shared, const void* global, uint32_t bytes, Mbarrier& barrier, L2Policy policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                     static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes),
                 "r"(static_cast<uint32_t>(__cvta_generic_to_shared(&barrier))), "l"(policy.operand())
                 : "memory");
}

// Global to the same place in every CTA of the cluster whose rank is a set bit of `ctas`; the barrier of each, at the
// same place too, counts the bytes.
// PTX: cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint
__device__ inline void bulk_load_multicast(void* shared, const void* global, uint32_t bytes, Mbarrier& barrier,
                                           uint16_t ctas, L2Policy policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4, %5;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
        "l"(__cvta_generic_to_global(global)), "r"(bytes),
        "r"(static_cast<uint32_t>(__cvta_generic_to_shared(&barrier))), "h"(ctas), "l"(policy.operand())
        : "memory");
}

} // namespace bakewell
