// Tensor memory as fragments of mma.sync: of 16 lanes, thread t has rows t / 4 and 8 more, and of every eight columns
// 2 (t % 4) and one more. Rounded to pairs of 16 bits, such a fragment is stored as an A operand.
#pragma once

#include "tmem.cuh"

#include <cstdint>
#include <cuda/ptx>

namespace bakewell::tmem {

constexpr int fragment_lanes = 16;

// Address of the second 16 lanes of a warp's quarter.
__device__ constexpr uint32_t upper_lanes(uint32_t address) { return address + (fragment_lanes << 16); }

// 2 `count` neighbouring columns: registers 4 g .. 4 g + 3 of every eight. They may be read after wait_load().
// PTX: tcgen05.ld.sync.aligned.16x256b.xN.b32
template <int count>
__device__ inline void load_fragment(float (&values)[count], uint32_t address) {
    cuda::ptx::tcgen05_ld_16x256b(reinterpret_cast<uint32_t(&)[count]>(values), address);
}

// The same as pairs: words 2 g and 2 g + 1 of every four columns. PTX: tcgen05.st.sync.aligned.16x128b.xN.b32
template <int count>
__device__ inline void store_fragment(uint32_t address, const uint32_t (&words)[count]) {
    cuda::ptx::tcgen05_st_16x128b(address, words);
}

} // namespace bakewell::tmem
