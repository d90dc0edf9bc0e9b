// The scans on tensor memory: their warps, shared memory, barriers, and columns of tensor memory.
#pragma once

#include "../device/barrier_ring.cuh"
#include "../device/tensor_map.cuh"
#include "../device/tmem_fragments.cuh"
#include "chunk_factors.cuh"
#include "chunk_walk.cuh"
#include "panel.cuh"
#include "schedule.cuh"

#include <cstdint>

namespace bakewell {

using S = Schedule;

// ---------------------------------------------------------------- warps

constexpr int warpgroup_threads = 128;
constexpr int quarters = 4; // of the lanes of tensor memory: a warp of each warpgroup has one
constexpr int state_warps = 2 * quarters;
constexpr int row_warps = quarters;

enum class Role { state, row, mma, load, store_rows, store_states };

__device__ inline Role role_of(int warp) {
    constexpr int first_issuer = state_warps + row_warps;
    return warp < state_warps    ? Role::state
           : warp < first_issuer ? Role::row
                                 : static_cast<Role>(static_cast<int>(Role::mma) + warp - first_issuer);
}
static_assert(S::threads == 32 * (state_warps + row_warps + 4));

enum class NamedBarrier : uint32_t { RowWarps = 1 };

// The thread index, read anew: what follows from it must not occupy registers through the loop over chunks.
__device__ inline int thread_index() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// ---------------------------------------------------------------- memory

// Tiles of one chunk as they arrive. Rows that leave take the places of tiles that have been used.
struct Tiles {
    HeadTile k;
    HeadTile q;      // forward: then rows of O
    HeadTile values; // V, then rows of Vn; or dO, then rows of dVb
    Panel a;
};

// A state on its way to memory, 16 rows at a time, which are the boxes of its tensor map.
struct Snapshot {
    static constexpr int rows = 16;
    PanelRows<rows> panels[2];
};
constexpr int snapshots = head_dim / Snapshot::rows;

// Who arrives, and when. `aside`: beside the chain, see the kernels.
struct Barriers {
    BarrierRing<S::stages> tiles; // load; back from products and state warps
    BarrierRing<S::stages> rows;  // state or row warps: rows lie in the tiles' places; back to load from store
    BarrierRing<2> factors;       // row warps: rows of a short chunk are cleared, too; back from both
    BarrierRing<1> snapshot;      // state warps; back from store
    Mbarrier operand;             // state warps: the state rounded
    Mbarrier read;                // products: K S
    Mbarrier bracket;             // state warps: what the inverse multiplies
    Mbarrier solved;              // products: what it gives
    Mbarrier change;              // state warps: what K^T multiplies; the state is decayed
    Mbarrier updated;             // products: the state
    Mbarrier scores;              // products: Q K^T
    Mbarrier weights;             // row warps: P
    Mbarrier aside[3];
};

// Columns.
struct TmemMap {
    static constexpr int state = 0;     // 128: f32
    static constexpr int operand = 128; // 64: the state rounded
    static constexpr int product = 192; // 64: K S, then what the inverse gives
    static constexpr int bracket = 256; // 32: what the inverse multiplies, then what K^T does
    static constexpr int aside = 288;   // 32: an operand
    static constexpr int sums = 320;    // 128: accumulators
    static constexpr int scores = 448;  // 64, 16 lanes of each quarter
    static constexpr int columns = 512;
};

struct SharedMap {
    static constexpr int barrier_bytes = sizeof(Barriers);
    static constexpr int tmem_columns = TmemMap::columns;

    struct Head {
        Barriers barriers;
        Factors factors[2];
        PairFactors pairs[2];
        uint32_t tmem; // address of the allocation
    };

    Head head;
    uint8_t unused[4 * swizzle_period - sizeof(Head)];
    Panel p;
    Tiles tiles[S::stages];
    Snapshot snapshot[S::snapshots ? snapshots : 0];
};
static_assert(offsetof(SharedMap, p) % swizzle_period == 0);

template <class Params>
struct Context {
    const Params& params;
    SharedMap& shared;
    Work work;

    __device__ Barriers& barriers() const { return shared.head.barriers; }
    __device__ int count() const { return work.walk.count; }
    __device__ uint32_t column(int column) const { return shared.head.tmem + column; }
    // Of the quarter of a warp.
    __device__ uint32_t own(int column) const { return tmem::own_lanes(shared.head.tmem, column, thread_index() / 32); }
    // First element of the [.., value_heads, 128, 128] state `index`.
    __device__ int64_t state_offset(int64_t index) const {
        return (index * params.value_heads + work.value_head) * (head_dim * head_dim);
    }
};

// All lanes have worked on tensor memory, and their stores are complete: one arrival.
__device__ inline void signal(Mbarrier& barrier) {
    tmem::fence_before_signal();
    __syncwarp();
    if (thread_index() % 32 == 0) {
        barrier.arrive();
    }
}

// Waits for products, or for what they are to work on.
__device__ inline void wait_for(PhaseCursor& cursor, Mbarrier& barrier) {
    cursor.wait(barrier);
    tmem::fence_after_wait();
}

} // namespace bakewell
