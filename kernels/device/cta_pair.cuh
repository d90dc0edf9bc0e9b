// CTA pairs: two CTAs of a cluster whose ranks differ in the last bit work on one accumulator. The even one leads: one
// of its threads issues products, copies and commits for both, with the addresses of its own shared and tensor memory,
// which hold at the same places in the other CTA.
#pragma once

#include "cluster_barrier.cuh"
#include "tensor_map.cuh"

#include <cstdint>
#include <cuda/ptx>

namespace bakewell::cta_pair {

constexpr uint32_t ctas = 2;
constexpr uint32_t leader = 0;

// One whole warp in each CTA; both get the same columns. A barrier must follow before others read the address.
// PTX: tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32
__device__ inline void allocate(uint32_t& shared_address, uint32_t columns) {
    cuda::ptx::tcgen05_alloc(cuda::ptx::cta_group_2, &shared_address, columns);
    cuda::ptx::tcgen05_relinquish_alloc_permit(cuda::ptx::cta_group_2);
}

// One whole warp in each CTA, after every use in both. PTX: tcgen05.dealloc.cta_group::2.sync.aligned.b32
__device__ inline void free(uint32_t address, uint32_t columns) {
    cuda::ptx::tcgen05_dealloc(cuda::ptx::cta_group_2, address, columns);
}

// Box of a tensor to this CTA's shared memory; the barrier, in either CTA of the pair, counts the bytes.
// PTX: cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2
__device__ inline void tensor_load(void* shared, const TensorMap& map, const int32_t (&at)[2],
                                   const ClusterMbarrier& barrier) {
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(&map), "r"(at[0]), "r"(at[1]), "r"(barrier.shared_address())
                 : "memory");
}

// One arrival on the barrier in each CTA once all earlier products and copies of this thread have finished.
// PTX: tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64
__device__ inline void commit(Mbarrier& barrier) {
    constexpr uint16_t both = (1 << ctas) - 1;
    cuda::ptx::tcgen05_commit_multicast(cuda::ptx::cta_group_2, &barrier.word, both);
}

} // namespace bakewell::cta_pair
