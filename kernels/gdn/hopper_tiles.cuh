// Tiles of the wgmma kernels: panels in shared memory, and accumulators that become operands in registers.
//
// Products are transposed where they touch the state: rows are value columns, 64 to a warpgroup, so that the state and
// all that is computed from it stay in the registers of one warpgroup, as accumulators and as A operands.
#pragma once

#include "../device/element.cuh"
#include "../device/ldmatrix.cuh"
#include "../device/wgmma_bf16.cuh"
#include "tables.cuh"

#include <cstdint>

namespace bakewell {

constexpr int warpgroup_threads = 128;
constexpr int warpgroup_warps = 4;
constexpr int swizzle_period = 1024;

__device__ inline uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 64 rows of 64 BF16 elements with 128-byte swizzle.
struct alignas(swizzle_period) Panel {
    static constexpr int columns = 64;
    static constexpr int row_bytes = 128;

    uint8_t bytes[64 * row_bytes];

    // Sixteen bytes: a row, and eight columns from 8 unit on.
    __device__ uint8_t* at(int row, int unit) { return bytes + row * row_bytes + ((unit ^ (row & 7)) << 4); }
    __device__ const uint8_t* at(int row, int unit) const { return const_cast<Panel*>(this)->at(row, unit); }
};

// 64 rows of a head, as two panels.
using HeadTile = Panel[2];

__device__ inline uint32_t pack_bf16(float low, float high) { return pack<Element::bf16>(low, high); }
__device__ inline float low_float(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_float(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

// Position of a thread in accumulators and fragments of its warpgroup.
struct FragmentThread {
    int warp, lane;

    static __device__ FragmentThread here() { return of(threadIdx.x); }

    // Read anew: what follows from it does not occupy registers through a loop.
    static __device__ FragmentThread anew() {
        uint32_t thread;
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
        return of(thread);
    }

    static __device__ FragmentThread of(uint32_t thread) {
        const int within = thread % warpgroup_threads;
        return {within / 32, within % 32};
    }

    // Row of accumulator registers with (i / 2) % 2 == half.
    __device__ int row(int half) const { return 16 * warp + lane / 4 + 8 * half; }
    // First of the two columns of a group of eight.
    __device__ int column(int group) const { return 8 * group + 2 * (lane % 4); }

    // Row for transposed ldmatrix and stmatrix of a panel that holds the accumulator transposed: its rows are the
    // columns of K step `step`, its columns the 16 rows of this warp.
    __device__ uint32_t transposed(const Panel& panel, int step) const {
        return shared_address(panel.at(16 * step + 8 * (lane / 16) + lane % 8, 2 * warp + lane / 8 % 2));
    }

    // Row for stmatrix of K step `step` of a panel that holds the accumulator as it is.
    __device__ uint32_t direct(const Panel& panel, int step) const {
        return shared_address(panel.at(16 * warp + 8 * (lane / 8 % 2) + lane % 8, 2 * step + lane / 16));
    }
};

// Sixteen columns of an accumulator as the A operand of a K step. value(index) gives register `index`.
template <class Value>
__device__ inline void pack_fragment(wgmma::Fragment& to, int step, Value value) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        to[j] = pack_bf16(value(8 * step + 2 * j), value(8 * step + 2 * j + 1));
    }
}

// A whole accumulator as A operands.
template <int steps, int registers>
__device__ inline void pack_fragments(wgmma::Fragment (&to)[steps], const float (&from)[registers]) {
    static_assert(registers == 8 * steps);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
        pack_fragment(to[step], step, [&](int i) { return from[i]; });
    }
}

constexpr int token_steps = chunk_tokens / wgmma::bf16_k;
constexpr int dim_steps = head_dim / wgmma::bf16_k;
constexpr uint32_t mn_step_bytes = wgmma::bf16_k * Panel::row_bytes;

// D (+)= A B^T with 64 columns: the rows of `tile` are columns of D, its head dimension is summed over.
__device__ inline void multiply_by_rows(wgmma::Accumulator64& d, const wgmma::Fragment (&a)[dim_steps],
                                        const HeadTile& tile) {
    const uint64_t panels[2] = {wgmma::swizzled_descriptor(&tile[0]), wgmma::swizzled_descriptor(&tile[1])};
#pragma unroll
    for (int step = 0; step < dim_steps; ++step) {
        const uint64_t b = wgmma::advance(panels[step / token_steps], step % token_steps * wgmma::bf16_k_bytes);
        wgmma::mma_bf16<wgmma::Major::k>(d, a[step], b, step > 0);
    }
}

// D (+)= A B^T: as above with 64 columns of B summed over.
__device__ inline void multiply_by_rows(wgmma::Accumulator64& d, const wgmma::Fragment (&a)[token_steps],
                                        const Panel& panel, bool accumulate) {
    const uint64_t descriptor = wgmma::swizzled_descriptor(&panel);
#pragma unroll
    for (int step = 0; step < token_steps; ++step) {
        const uint64_t b = wgmma::advance(descriptor, step * wgmma::bf16_k_bytes);
        wgmma::mma_bf16<wgmma::Major::k>(d, a[step], b, accumulate || step > 0);
    }
}

// The same with the rows of `panel` summed over, its columns those of D.
__device__ inline void multiply_by_columns(wgmma::Accumulator64& d, const wgmma::Fragment (&a)[token_steps],
                                           const Panel& panel) {
    const uint64_t descriptor = wgmma::mn_descriptor(&panel, sizeof(Panel));
#pragma unroll
    for (int step = 0; step < token_steps; ++step) {
        wgmma::mma_bf16<wgmma::Major::mn>(d, a[step], wgmma::advance(descriptor, step * mn_step_bytes), step > 0);
    }
}

// D += A B with 128 columns: the rows of `tile` are summed over, its head dimension becomes the columns of D.
__device__ inline void multiply_by_columns(wgmma::Accumulator128& d, const wgmma::Fragment (&a)[token_steps],
                                           const HeadTile& tile) {
    const uint64_t descriptor = wgmma::mn_descriptor(&tile, sizeof(Panel));
#pragma unroll
    for (int step = 0; step < token_steps; ++step) {
        wgmma::mma_bf16<wgmma::Major::mn>(d, a[step], wgmma::advance(descriptor, step * mn_step_bytes), true);
    }
}

} // namespace bakewell
