// Tensor memory: 128 lanes x 512 columns of 32 bits. A warp reaches the 32 lanes of its quarter, w % 4.
#pragma once

#include <cstdint>
#include <cuda/ptx>

namespace bakewell::tmem {

constexpr int lanes = 128;
constexpr int max_columns = 512;

// Address of a column in the first lane of a warp's quarter.
__device__ inline uint32_t own_lanes(uint32_t base, int column, int warp) {
    const uint32_t first_lane = 32 * static_cast<uint32_t>(warp % 4);
    return base + static_cast<uint32_t>(column) + (first_lane << 16);
}

// One whole warp. The base address arrives in shared memory: a barrier must follow before others read it.
// PTX: tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32
__device__ inline void allocate(uint32_t& shared_address, uint32_t columns) {
    cuda::ptx::tcgen05_alloc(cuda::ptx::cta_group_1, &shared_address, columns);
    cuda::ptx::tcgen05_relinquish_alloc_permit(cuda::ptx::cta_group_1);
}

// One whole warp, after every use in the CTA. PTX: tcgen05.dealloc.cta_group::1.sync.aligned.b32
__device__ inline void free(uint32_t address, uint32_t columns) {
    cuda::ptx::tcgen05_dealloc(cuda::ptx::cta_group_1, address, columns);
}

// `count` neighbouring columns of this thread's lane. The registers may be read after wait_load().
// PTX: tcgen05.ld.sync.aligned.32x32b.xN.b32
template <int count>
__device__ inline void load(float (&values)[count], uint32_t address) {
    cuda::ptx::tcgen05_ld_32x32b(reinterpret_cast<uint32_t(&)[count]>(values), address);
}

// PTX: tcgen05.st.sync.aligned.32x32b.xN.b32
template <class Word, int count>
__device__ inline void store(uint32_t address, const Word (&values)[count]) {
    cuda::ptx::tcgen05_st_32x32b(address, values);
}

// Earlier loads of this thread have delivered. PTX: tcgen05.wait::ld.sync.aligned
// Ties the registers to the wait, so that the compiler cannot read them before it.
template <int count>
__device__ inline void wait_load(float (&values)[count]) {
    cuda::ptx::tcgen05_wait_ld();
#pragma unroll
    for (int i = 0; i < count; ++i) {
        asm volatile("" : "+f"(values[i]));
    }
}

// Earlier stores of this thread are visible to later tensor-core work, once ordered by a barrier.
// PTX: tcgen05.wait::st.sync.aligned
__device__ inline void wait_store() { cuda::ptx::tcgen05_wait_st(); }

// Before signalling: earlier tensor-memory work of this thread is ordered before the signal.
// PTX: tcgen05.fence::before_thread_sync
__device__ inline void fence_before_signal() { cuda::ptx::tcgen05_fence_before_thread_sync(); }

// After waiting: later tensor-memory work of this thread is ordered after the wait.
// PTX: tcgen05.fence::after_thread_sync
__device__ inline void fence_after_wait() { cuda::ptx::tcgen05_fence_after_thread_sync(); }

} // namespace bakewell::tmem
