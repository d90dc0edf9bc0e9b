// Asynchronous copies of 16 bytes by threads, in groups; they are accesses of the generic proxy. The target is an
// address in shared memory.
#pragma once

#include <cstdint>

namespace bakewell {

// 16 bytes, aligned, past L1; zeros when not `live`, and nothing is read then.
// PTX: cp.async.cg.shared.global
__device__ inline void async_copy_16(uint32_t shared, const void* global, bool live) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(live ? 16 : 0)
                 : "memory");
}

// Closes the group of this thread's copies since the last one. PTX: cp.async.commit_group
__device__ inline void async_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `pending` groups of this thread are in flight. PTX: cp.async.wait_group
template <int pending>
__device__ inline void async_copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

} // namespace bakewell
