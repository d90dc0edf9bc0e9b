// Copies of contiguous bytes between the CTAs of a cluster by the copy engine.
#pragma once

#include "cluster_barrier.cuh"

#include <cstdint>

namespace bakewell {

// This CTA's shared memory to the same place in CTA `rank`, whose barrier in the place of `full` counts the bytes. Address
// and size are multiples of 16. What the copy reads was written by threads that then executed fence.proxy.async and met the
// issuing thread.
// PTX: mapa.shared::cluster.u32; cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
__device__ inline void copy_to_peer(const void* shared, uint32_t bytes, const Mbarrier& full, uint32_t rank) {
    const uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    uint32_t to;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(from), "r"(rank));
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "r"(from), "r"(bytes), "r"(ClusterMbarrier(full, rank).shared_address())
                 : "memory");
}

} // namespace bakewell
