// Barriers across a cluster: all its threads, or an mbarrier in one of its CTAs.
#pragma once

#include "mbarrier.cuh"

#include <cstdint>
#include <cuda/ptx>

namespace bakewell {

// All threads of all CTAs of the cluster meet; orders their memory accesses. Warps converged.
// PTX: barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned
__device__ inline void cluster_sync() {
    cuda::ptx::barrier_cluster_arrive(cuda::ptx::sem_release);
    cuda::ptx::barrier_cluster_wait(cuda::ptx::sem_acquire);
}

// The mbarrier that CTA `rank` of the cluster has where this CTA has `local`. It must outlive every arrival.
class ClusterMbarrier {
    uint32_t address;

  public:
    // PTX: mapa.shared::cluster.u32
    __device__ ClusterMbarrier(const Mbarrier& local, uint32_t rank) {
        const uint32_t own = static_cast<uint32_t>(__cvta_generic_to_shared(&local));
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(own), "r"(rank));
    }

    // Address in the window shared::cluster.
    __device__ uint32_t shared_address() const { return address; }

    // The barrier `index` places further on in the same CTA.
    __device__ ClusterMbarrier at(int index) const {
        ClusterMbarrier moved = *this;
        moved.address += index * static_cast<uint32_t>(sizeof(Mbarrier));
        return moved;
    }

    // Says that asynchronous operations which this thread has waited for are over. Of its ordinary accesses it orders
    // nothing for another CTA: on sm_90 the release that would is a fence of the whole device.
    // PTX: mbarrier.arrive.shared::cluster.b64
    __device__ void signal() const { asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory"); }

    // Releases this thread's earlier accesses to whoever waits, in any CTA of the cluster.
    // PTX: mbarrier.arrive.release.cluster.shared::cluster.b64
    __device__ void arrive() const {
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
    }

    // Arrives without ordering accesses of the generic proxy: for tensor memory, whose fences order their own.
    // PTX: mbarrier.arrive.relaxed.cluster.shared::cluster.b64
    __device__ void arrive_relaxed() const {
        asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
    }

    // Arrives and announces bytes that copies will add to this phase. Orders nothing but the copies: a release of the
    // cluster's scope waits for all memory of the thread, and a thread that only starts copies has nothing to release.
    // PTX: mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64
    __device__ void arrive_expect(uint32_t bytes) const {
        asm volatile("mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(address),
                     "r"(bytes)
                     : "memory");
    }
};

} // namespace bakewell
