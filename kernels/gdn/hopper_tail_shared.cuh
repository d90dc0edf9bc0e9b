// Shared memory of the Hopper tail and its barriers.
#pragma once

#include "../device/barrier_ring.cuh"
#include "../device/named_barrier.cuh"
#include "gate_gradient.cuh"
#include "hopper_tiles.cuh"
#include "schedule.cuh"

#include <cstdint>
#include <cuda/ptx>

namespace bakewell {

using S = Schedule;

constexpr int halves = 2; // of a head's columns, value and key

constexpr int consumer_warpgroups = halves;
constexpr int consumer_warps = consumer_warpgroups * warpgroup_warps;
constexpr int consumer_threads = consumer_warpgroups * warpgroup_threads;
static_assert(S::threads == consumer_threads + warpgroup_threads, "roles and threads");

enum class NamedBarrier : uint32_t { consumers = 1 };

__device__ inline void consumers_meet() {
    named_barrier_sync(static_cast<uint32_t>(NamedBarrier::consumers), consumer_threads);
}

// 16 value rows of a state as one copy brings them: two panels of 64 key columns.
struct alignas(swizzle_period) StateRows {
    static constexpr int rows = wgmma::bf16_k;
    uint8_t panels[halves][rows * Panel::row_bytes];
};

// 64 value rows.
using StateHalf = StateRows[token_steps];

// Of a value head, 64 of its value columns. Rows past a short chunk: zeros, once they are ready.
struct ValueHalf {
    Panel grad_o;
    Panel dvb;
    Panel v_new;
    StateHalf h;
    StateHalf dh;
};

// Of a value head. Past a short chunk: zeros, and the gate of the last token.
struct Factors {
    uint64_t token; // first of the chunk
    uint32_t value_head;
    int tokens; // 0: no more heads
    float gate[chunk_tokens];
    float beta[chunk_tokens];
    float rq[chunk_tokens];
    float rk[chunk_tokens];
    float value_dot[chunk_tokens]; // <dVb_i, V_i> where beta does not divide, once there are sums

    // Of a tensor [tokens, value_heads].
    __device__ uint64_t index(int row, uint32_t value_heads) const { return (token + row) * value_heads + value_head; }
};

struct SharedMap {
    static constexpr int factor_slots = 2;
    static constexpr int barrier_bytes = (3 * S::stages + 2 * factor_slots + 4) * sizeof(Mbarrier);

    ValueHalf values[S::stages];
    HeadTile q; // at an item's end, its gradient
    HeadTile k;
    Panel r;
    Panel n; // N' + N'^T
    Factors factors[factor_slots];
    GateSums sums;
    float row_dots[2][halves][chunk_tokens]; // of dq and dk with their rows
    BarrierRing<S::stages> values_ring;
    Mbarrier values_ready[S::stages]; // of short chunks only
    BarrierRing<factor_slots> factors_ring;
    Mbarrier rows_full;
    Mbarrier rows_empty;
    Mbarrier sums_full;
    Mbarrier sums_empty;

    __device__ void init() {
        constexpr uint32_t copy = 1, warp = 1, consumers = consumer_warps;
        for (int stage = 0; stage < S::stages; ++stage) {
            values_ring.full[stage].init(copy);
            values_ring.empty[stage].init(consumers + 2 * warp);
            values_ready[stage].init(warp);
        }
        for (int slot = 0; slot < factor_slots; ++slot) {
            factors_ring.full[slot].init(warp);
            factors_ring.empty[slot].init(consumers + 2 * warp);
        }
        rows_full.init(copy);
        rows_empty.init(consumers);
        sums_full.init(consumers + warp);
        sums_empty.init(warp);
        fence_mbarrier_init();
    }
};

// All lanes are through with what the barrier guards.
__device__ inline void arrive_once(Mbarrier& barrier, int lane) {
    __syncwarp();
    if (lane == 0) {
        barrier.arrive();
    }
}

// The same where the copy engine writes next.
__device__ inline void release(Mbarrier& empty, int lane) {
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    arrive_once(empty, lane);
}

} // namespace bakewell
