// Expanded blocks of keys and values that the two CTAs of a cluster share. They differ in blockIdx.y only and so walk the same
// tiles, of which each has halves of its own. A block is expanded by one of them, slot after slot in turn, which copies it
// into the same slot of its peer.
//
//   CTA 0 | expand 0, copy ->                | expand 2, copy ->                | ...
//   CTA 1 |                | expand 1, copy ->                | expand 3, copy ->
//
// A slot's owner waits until the halves of both CTAs have read it: its barrier `empty` counts them all. At the peer, `full`
// counts the owner, which announces the bytes, and the bytes of its copy.
#pragma once

#include "../device/barrier_ring.cuh"
#include "../device/bulk_peer.cuh"
#include "../device/cluster.cuh"
#include "../device/cluster_barrier.cuh"
#include "../device/named_barrier.cuh"
#include "expand.cuh"
#include "half_tile.cuh"
#include "schedule.cuh"

#include <cstdint>
#include <type_traits>

namespace bakewell {

using BlockRing = BarrierRing<S::expanded_stages>;

constexpr uint32_t block_bytes = block_keys * row_bytes;

static_assert(S::cluster == 1 || S::cluster == 2, "a CTA has one peer");
static_assert(S::expanded_stages % S::cluster == 0, "a slot has one owner");

__device__ inline uint32_t owner_of(int slot) { return slot % S::cluster; }

__device__ inline bool owns(int slot) { return S::cluster == 1 || owner_of(slot) == cluster_rank(); }

// Halves of the tile that lie before those of this CTA.
__device__ inline int first_half() { return S::cluster == 1 ? 0 : static_cast<int>(cluster_rank()) * S::query_halves; }

// One warp: the barriers of a ring that `filling_warps` fill and `reading_warps` of every CTA read.
__device__ inline void init_blocks(BlockRing& ring, uint32_t filling_warps, uint32_t reading_warps) {
    constexpr uint32_t owner = 1;
    for (int slot = threadIdx.x; slot < S::expanded_stages; slot += 32) {
        ring.full[slot].init(owns(slot) ? filling_warps : owner);
        ring.empty[slot].init(S::cluster * reading_warps);
    }
}

// A warp that has read a slot gives it back to its owner.
__device__ inline void give_back(BlockRing& ring, int slot) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        ClusterMbarrier(ring.empty[slot], owner_of(slot)).signal();
    }
}

// Slots in order, of which this CTA fills its own.
class SharedBlockProducer : BlockRing::Cursor {
    BlockRing& ring;

  public:
    explicit __device__ SharedBlockProducer(BlockRing& ring) : BlockRing::Cursor(1), ring(ring) {}

    // Whether the next slot is the peer's, which is then behind.
    __device__ bool skips() {
        const bool skip = !owns(slot());
        if (skip) {
            take();
        }
        return skip;
    }

    // Waits until the next slot is free and returns it.
    __device__ int acquire() {
        ring.empty[slot()].wait_cluster(phase());
        return take();
    }
};

// What fills a ring of blocks.
using BlockProducer = std::conditional_t<S::cluster == 1, BlockRing::Producer, SharedBlockProducer>;

__device__ inline bool skips(BlockRing::Producer&) { return false; }
__device__ inline bool skips(SharedBlockProducer& producer) { return producer.skips(); }

// The warpgroup that filled a slot, each of whose threads made its writes visible to the async proxy: copies the slot to the
// peer. `barrier`: a named one.
__device__ inline void share_block(const uint8_t* block, const Mbarrier& full, uint32_t barrier) {
    named_barrier_sync(barrier, warpgroup_threads);
    if (threadIdx.x % warpgroup_threads == 0) {
        const uint32_t peer = cluster_rank() ^ 1;
        ClusterMbarrier(full, peer).arrive_expect(block_bytes);
        copy_to_peer(block, block_bytes, full, peer);
    }
}

} // namespace bakewell
