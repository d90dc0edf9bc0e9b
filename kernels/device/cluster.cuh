// Clusters: rank and size, the cluster barrier, asynchronous stores to the shared memory of a peer.
#pragma once

#include "mbarrier.cuh"

#include <cstdint>
#include <cuda/ptx>

namespace bakewell {

// Largest cluster (non-portable size of sm_90 and sm_100; 8 elsewhere).
constexpr int max_cluster = 16;

__device__ inline uint32_t cluster_rank() { return cuda::ptx::get_sreg_cluster_ctarank(); }

// 1 when launched without a cluster.
__device__ inline uint32_t cluster_size() { return cuda::ptx::get_sreg_cluster_nctarank(); }

// First half of the cluster barrier, without ordering memory: this CTA has started.
// PTX: barrier.cluster.arrive.relaxed.aligned
__device__ inline void cluster_arrive_relaxed() { cuda::ptx::barrier_cluster_arrive(cuda::ptx::sem_relaxed); }

// Second half. PTX: barrier.cluster.wait.acquire.aligned
__device__ inline void cluster_wait() { cuda::ptx::barrier_cluster_wait(cuda::ptx::sem_acquire); }

// An address in the shared memory of one CTA of the cluster.
template <class T>
class PeerPointer {
    template <class U>
    friend class PeerPointer;
    uint32_t address;

  public:
    // The place in CTA `rank` that `local` has here. PTX: mapa.shared::cluster.u32
    __device__ PeerPointer(const T* local, uint32_t rank) {
        uint32_t own = static_cast<uint32_t>(__cvta_generic_to_shared(local));
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(own), "r"(rank));
    }

    // Stores without waiting; `barrier`, in the same CTA as this address, counts 16 bytes.
    // PTX: st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32
    __device__ void store(float4 value, PeerPointer<Mbarrier> barrier) const {
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
            "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier.address)
            : "memory");
    }

    // The same for 8 bytes. PTX: st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32
    __device__ void store(float2 value, PeerPointer<Mbarrier> barrier) const {
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(address),
            "f"(value.x), "f"(value.y), "r"(barrier.address)
            : "memory");
    }
};

} // namespace bakewell
