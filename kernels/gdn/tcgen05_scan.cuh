// What the forward and the adjoint scan on tensor memory share: warps, memory, the state, products, loads and stores.
//
// A CTA walks the chunks of a segment for one value head. Everything is transposed: value columns are lanes of tensor
// memory. The state is 128 columns of f32 accumulators that the products update in place; what is made of it for the
// next product is written beside it, as an A operand. Two state warpgroups share the columns of every link of this
// chain; the warpgroup of the row warps does what the state does not wait for.
#pragma once

#include "tcgen05_beside.cuh"
#include "tcgen05_chain.cuh"

namespace bakewell {

template <int slots>
__device__ inline void init_ring(BarrierRing<slots>& ring, uint32_t full, uint32_t empty) {
    for (int slot = 0; slot < slots; ++slot) {
        ring.full[slot].init(full);
        ring.empty[slot].init(empty);
    }
}

// One thread, once. `row_senders`: warps that write the rows of a chunk; `aside`: arrivals on each of those barriers.
__device__ inline void init_barriers(Barriers& barriers, uint32_t row_senders, const uint32_t (&aside)[3]) {
    constexpr uint32_t copy = 1, commit = 1, sender = 1;
    init_ring(barriers.tiles, copy, commit + state_warps);
    init_ring(barriers.rows, row_senders, sender);
    init_ring(barriers.factors, row_warps, state_warps + row_warps);
    init_ring(barriers.snapshot, state_warps, sender);
    for (Mbarrier* barrier : {&barriers.operand, &barriers.bracket, &barriers.change}) {
        barrier->init(state_warps);
    }
    for (Mbarrier* barrier : {&barriers.read, &barriers.solved, &barriers.updated, &barriers.scores}) {
        barrier->init(commit);
    }
    barriers.weights.init(row_warps);
    for (int i = 0; i < 3; ++i) {
        barriers.aside[i].init(aside[i]);
    }
    fence_mbarrier_init();
}

// All threads, around everything. Barriers are initialised before.
__device__ inline void open_tensor_memory(SharedMap& shared) {
    if (thread_index() / 32 == 0) {
        __syncwarp();
        tmem::allocate(shared.head.tmem, TmemMap::columns);
    }
    tmem::fence_before_signal();
    __syncthreads();
    tmem::fence_after_wait();
}

__device__ inline void close_tensor_memory(SharedMap& shared) {
    __syncwarp();
    tmem::fence_before_signal();
    __syncthreads();
    if (thread_index() / 32 == 0) {
        tmem::free(shared.head.tmem, TmemMap::columns);
    }
}

} // namespace bakewell
