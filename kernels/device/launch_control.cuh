// Cluster launch control: a running cluster takes over one that has not been launched yet.
#pragma once

#include "mbarrier.cuh"

#include <cstdint>
#include <cuda/ptx>

namespace bakewell {

// Answer to a request, in shared memory.
struct alignas(16) LaunchResponse {
    longlong2 word;

    // Asks on behalf of the whole cluster, one thread of it. Each CTA gets the answer in its own response at this place,
    // and its own barrier at this place counts the 16 bytes. No request may follow one that was seen to fail.
    // PTX: clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128
    __device__ void request(Mbarrier& barrier) {
        cuda::ptx::clusterlaunchcontrol_try_cancel_multicast(&word, &barrier.word);
    }

    // Whether a cluster was taken over; then x of its first CTA. The thread reads the response here, so that a fence of
    // the async proxy must follow before the slot is given back.
    // PTX: clusterlaunchcontrol.query_cancel.is_canceled; .get_first_ctaid::x
    __device__ bool taken(uint32_t& first_cta) const {
        const longlong2 answer = word;
        if (!cuda::ptx::clusterlaunchcontrol_query_cancel_is_canceled(answer)) {
            return false;
        }
        first_cta = cuda::ptx::clusterlaunchcontrol_query_cancel_get_first_ctaid_x<uint32_t>(answer);
        return true;
    }
};

} // namespace bakewell
