// A warpgroup of sm_90a that attends: half a tile of query rows against expanded blocks of keys and values, scores and
// output in registers. The kernels differ in who fills the ring of blocks.
//
// The tensor cores keep 13 bits below the largest term of an FP8 sum: each block's P V starts a fresh accumulator and is
// added to the output in f32.
#pragma once

#include "../device/barrier_ring.cuh"
#include "../device/tensor_map.cuh"
#include "../device/turns.cuh"
#include "expand.cuh"
#include "half_tile.cuh"
#include "output.cuh"
#include "schedule.cuh"

#include <cstdint>
#include <cuda/ptx>

namespace bakewell {

constexpr int warpgroup_warps = warpgroup_threads / 32;
constexpr int consumer_threads = halves * warpgroup_threads;
constexpr int consumer_warps = halves * warpgroup_warps;
constexpr int q_slots = 2;
constexpr int sides = 2; // K and V

enum class NamedBarrier : uint32_t { Turn = 1, OtherTurn = 2 };

__device__ constexpr int index(Side side) { return static_cast<int>(side); }

using BlockRing = BarrierRing<S::expanded_stages>;

// What a consumer reads: `Barriers` of the kernel have a ring `q` of tiles, each with the queries of both halves, and a
// ring `expanded` of blocks for each side.
struct Operands {
    uint8_t q[q_slots][halves][G::half_rows * row_bytes];
    uint8_t expanded[sides][S::expanded_stages][block_keys * row_bytes];
};

// The copies never write the dead rows of the queries; the products read them.
__device__ inline void zero_dead_rows(Operands& operands) {
    constexpr int dead_chunks = (G::half_rows - G::live_rows) * row_bytes / chunk_bytes;
    for (int i = 0; i < q_slots * halves; ++i) {
        for (int chunk = threadIdx.x; chunk < dead_chunks; chunk += S::threads) {
            uint8_t* dead = &operands.q[i / halves][i % halves][G::live_rows * row_bytes];
            reinterpret_cast<uint4*>(dead)[chunk] = make_uint4(0, 0, 0, 0);
        }
    }
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
}

// What comes after the last tile.
__device__ inline Tile no_tile() {
    Tile tile{};
    tile.request = -1;
    return tile;
}
__device__ inline bool is_tile(const Tile& tile) { return tile.request >= 0; }

// Hands tiles to the consumers, for whom finding one takes as long as multiplying by half a block. One thread. `SharedMap`
// is the consumers'.
template <class Params, class SharedMap>
class TileProducer {
    const Params& params;
    SharedMap& shared;
    typename BarrierRing<q_slots>::Producer q;

    // The barrier that says that the tile is there.
    __device__ Mbarrier& put(const Tile& tile, int slot) {
        shared.head.tiles[slot] = tile;
        return shared.head.barriers.q.full[slot];
    }

  public:
    __device__ TileProducer(const Params& params, SharedMap& shared)
        : params(params), shared(shared), q(shared.head.barriers.q) {}

    // A tile, and the copies of its queries; one without keys needs none.
    __device__ void give(const Tile& tile) {
        const int slot = q.acquire();
        Mbarrier& full = put(tile, slot);
        if (tile.empty()) {
            full.arrive();
            return;
        }
        full.arrive_expect(halves * G::live_rows * row_bytes);
        for (int half = 0; half < halves; ++half) {
            const int token = static_cast<int>(tile.q_start + tile.first_token) + half * G::tokens_per_half;
            tensor_load<4>(shared.operands.q[slot][half], params.q, {0, 0, token, tile.unit}, full);
        }
    }

    // That there are no more.
    __device__ void end() { put(no_tile(), q.acquire()).arrive(); }
};

// One warp: the barriers of a ring.
template <int slots>
__device__ void init_ring(BarrierRing<slots>& ring, uint32_t full, uint32_t empty) {
    for (int slot = threadIdx.x; slot < slots; slot += 32) {
        ring.full[slot].init(full);
        ring.empty[slot].init(empty);
    }
}

// Both halves' warpgroups. `SharedMap` has `head.barriers`, `head.tiles` and `operands`.
template <class Params, class SharedMap>
class Consumer {
    const Params& params;
    SharedMap& shared;
    int half;
    HalfTile math;
    typename BarrierRing<q_slots>::Consumer q;
    typename BlockRing::Consumer keys;
    typename BlockRing::Consumer values;
    Turns<static_cast<uint32_t>(NamedBarrier::Turn), consumer_threads> turns;

    __device__ void release(Mbarrier& empty) const {
        __syncwarp();
        if (math.lane == 0) {
            empty.arrive();
        }
    }

    // S = Q K^T of the next block.
    __device__ void scores(wgmma::Accumulator& s, uint64_t queries) {
        const int slot = keys.wait();
        const uint64_t operand = wgmma::swizzled_descriptor(shared.operands.expanded[index(Side::K)][slot]);
        wgmma::fence();
#pragma unroll
        for (int step = 0; step < head_dim / wgmma::e4m3_k; ++step) {
            const uint32_t offset = step * wgmma::e4m3_k;
            wgmma::mma_e4m3(s, wgmma::advance(queries, offset), wgmma::advance(operand, offset), step > 0);
        }
        wgmma::commit();
        wgmma::wait<0>();
        release(shared.head.barriers.expanded[index(Side::K)].empty[slot]);
    }

    // P V of the next block.
    __device__ void multiply(wgmma::Accumulator& product, const Weights& p) {
        const int slot = values.wait();
        const uint64_t operand = wgmma::swizzled_descriptor(shared.operands.expanded[index(Side::V)][slot]);
        wgmma::fence();
#pragma unroll
        for (int step = 0; step < weight_steps; ++step) {
            wgmma::mma_e4m3(product, p[step], wgmma::advance(operand, step * wgmma::e4m3_k), step > 0);
        }
        wgmma::commit();
        wgmma::wait<0>();
        release(shared.head.barriers.expanded[index(Side::V)].empty[slot]);
    }

    // One product after another. Halves that take turns make their weights one at a time, each while the other multiplies
    // and adds.
    __device__ void attend_blocks(int begin, int end, bool paired, uint64_t queries, const int (&visible)[rows_per_thread],
                                  Rows& rows, wgmma::Accumulator& output) {
        for (int block = end - 1; block >= begin; --block) {
            wgmma::Accumulator s;
            float factor[rows_per_thread];
            scores(s, queries);
            if (paired) {
                turns.take();
            }
            const int first_key = block * block_keys;
            math.mask(s, {visible[0] - first_key, visible[1] - first_key});
            math.weigh(s, rows, factor);
            if (paired) {
                turns.give();
            }
            Weights p;
            math.round(p, s);
            wgmma::Accumulator product;
            multiply(product, p);
            math.add(output, product, factor);
        }
    }

    __device__ void attend(const Tile& tile, bool paired, int q_slot) {
        const uint64_t queries = wgmma::swizzled_descriptor(shared.operands.q[q_slot][half]);
        int visible[rows_per_thread];
#pragma unroll
        for (int i = 0; i < rows_per_thread; ++i) {
            visible[i] = tile.visible_keys(tile.first_token + half * G::tokens_per_half + math.row(i) / G::pack);
        }
        Rows rows;
        wgmma::Accumulator output;
#pragma unroll
        for (float& value : output) {
            value = 0;
        }
        attend_blocks(tile.begin, tile.end, paired, queries, visible, rows, output);
#pragma unroll
        for (float& sum : rows.sum) {
            sum = quad_sum(sum);
        }
        if constexpr (S::split) {
            math.write_partial(params, tile, half, rows, output);
        } else {
            math.write_output(params, tile, half, rows, output, shared.operands.q[q_slot][half]);
        }
    }

    // A half without queries only keeps the rings moving.
    __device__ void pass(const Tile& tile) {
        for (int i = 0; i < tile.blocks(); ++i) {
            release(shared.head.barriers.expanded[index(Side::K)].empty[keys.wait()]);
            release(shared.head.barriers.expanded[index(Side::V)].empty[values.wait()]);
        }
    }

    // The split's part of a tile.
    __device__ void consume(const Tile& tile, int q_slot) {
        if (tile.empty()) {
            if constexpr (S::split) {
                math.write_nothing(params, tile, half);
            }
        } else if (has_queries(tile, half)) {
            attend(tile, S::take_turns && has_queries(tile, halves - 1), q_slot);
        } else {
            pass(tile);
        }
    }

    __device__ bool has_queries(const Tile& tile, int half) const {
        return tile.first_token + half * G::tokens_per_half < tile.q_len;
    }

  public:
    // `thread` among those of all consumers.
    __device__ Consumer(const Params& params, SharedMap& shared, uint32_t thread)
        : params(params), shared(shared), half(thread / warpgroup_threads),
          math{static_cast<int>(thread % 32), Scales(params).log2},
          q(shared.head.barriers.q), keys(shared.head.barriers.expanded[index(Side::K)]),
          values(shared.head.barriers.expanded[index(Side::V)]), turns(half) {}

    __device__ void run() {
        if constexpr (S::take_turns) {
            turns.begin();
        }
        while (true) {
            const int slot = q.wait();
            const Tile& tile = shared.head.tiles[slot];
            if (!is_tile(tile)) {
                return;
            }
            consume(tile, slot);
            release(shared.head.barriers.q.empty[slot]);
        }
    }
};

} // namespace bakewell
