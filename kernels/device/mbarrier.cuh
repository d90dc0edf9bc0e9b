// Shared-memory barriers that count arrivals and bytes of asynchronous copies.
#pragma once

#include <cstdint>
#include <cuda/ptx>

namespace bakewell {

struct Mbarrier {
    uint64_t word;

    // One thread, once. PTX: mbarrier.init.shared::cta.b64
    __device__ void init(uint32_t arrivals) { cuda::ptx::mbarrier_init(&word, arrivals); }

    // Arrives for this thread, releasing its earlier accesses to whoever waits. PTX: mbarrier.arrive.shared::cta.b64
    __device__ void arrive() { cuda::ptx::mbarrier_arrive(&word); }

    // Arrives and announces bytes that copies will add to this phase.
    // PTX: mbarrier.arrive.expect_tx.release.cta.shared::cta.b64
    __device__ void arrive_expect(uint32_t bytes) {
        cuda::ptx::mbarrier_arrive_expect_tx(cuda::ptx::sem_release, cuda::ptx::scope_cta, cuda::ptx::space_shared,
                                             &word, bytes);
    }

    // Waits for the end of the phase with this parity. The hardware wait may time out, so it is repeated.
    // PTX: mbarrier.try_wait.parity.shared::cta.b64
    __device__ void wait(uint32_t parity) {
        while (!cuda::ptx::mbarrier_try_wait_parity(&word, parity)) {
        }
    }

    // The same where other CTAs of the cluster signal the barrier.
    // PTX: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64
    __device__ void wait_cluster(uint32_t parity) {
        while (!cuda::ptx::mbarrier_try_wait_parity(cuda::ptx::sem_acquire, cuda::ptx::scope_cluster, &word, parity)) {
        }
    }
};

// Makes barrier initialisation visible to the copy engine and to the CTAs of the cluster, once followed by a barrier
// or issued by the thread that starts the copy.
// PTX: fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta
__device__ inline void fence_mbarrier_init() {
    cuda::ptx::fence_mbarrier_init(cuda::ptx::sem_release, cuda::ptx::scope_cluster);
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
}

} // namespace bakewell
