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
#include "shared_blocks.cuh"

#include <cstdint>
#include <cuda/ptx>

namespace bakewell {

constexpr int warpgroup_warps = warpgroup_threads / 32;
constexpr int consumer_warps = S::query_halves * warpgroup_warps;
constexpr int q_slots = 2;
constexpr int sides = 2; // K and V

// `Turn` is that of the first half; those of the others follow.
enum class NamedBarrier : uint32_t { Turn = 1, KeysExpanded = Turn + S::query_halves, ValuesExpanded };

__device__ constexpr int index(Side side) { return static_cast<int>(side); }

// What a consumer reads: `Barriers` of the kernel have a ring `q` of tiles, each with the queries of all halves, and a
// ring `expanded` of blocks for each side.
struct Operands {
    uint8_t q[q_slots][S::query_halves][G::half_rows * row_bytes];
    uint8_t expanded[sides][S::expanded_stages][block_bytes];
};

// The copies never write the dead rows of the queries; the products read them.
__device__ inline void zero_dead_rows(Operands& operands) {
    constexpr int dead_chunks = (G::half_rows - G::live_rows) * row_bytes / chunk_bytes;
    for (int i = 0; i < q_slots * S::query_halves; ++i) {
        for (int chunk = threadIdx.x; chunk < dead_chunks; chunk += S::threads) {
            uint8_t* dead = &operands.q[i / S::query_halves][i % S::query_halves][G::live_rows * row_bytes];
            reinterpret_cast<uint4*>(dead)[chunk] = make_uint4(0, 0, 0, 0);
        }
    }
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
}

// Where in the ring of tiles a tile is.
class TilePlace : BarrierRing<q_slots>::Cursor {
    using Cursor = BarrierRing<q_slots>::Cursor;

  public:
    __device__ TilePlace() : Cursor(0) {}
    using Cursor::phase;
    using Cursor::slot;
    using Cursor::take;
};

// A tile as the consumers find it, with what they ask in every block and with its place: their registers are for
// accumulators.
struct GivenTile {
    Tile tile;
    int whole_blocks; // from the first on: all rows see all of their keys
    float scale;      // of scores, base 2
    bool paired;      // whether the halves take turns
    TilePlace place;

    // What comes after the last tile.
    static __device__ GivenTile none() {
        GivenTile given{};
        given.tile.request = -1;
        return given;
    }
    __device__ bool is_none() const { return tile.request < 0; }
};

__device__ inline bool has_queries(const Tile& tile, int half) {
    return tile.first_token + half * G::tokens_per_half < tile.q_len;
}

// Hands tiles to the consumers, for whom finding one takes as long as multiplying by half a block. One thread. `SharedMap`
// is the consumers'.
template <class Params, class SharedMap>
class TileProducer {
    const Params& params;
    SharedMap& shared;
    typename BarrierRing<q_slots>::Producer q;
    TilePlace place;

    // The barrier that says that the tile is there.
    __device__ Mbarrier& put(const GivenTile& given, int slot) {
        shared.head.tiles[slot] = given;
        place.take();
        return shared.head.barriers.q.full[slot];
    }

  public:
    __device__ TileProducer(const Params& params, SharedMap& shared)
        : params(params), shared(shared), q(shared.head.barriers.q) {}

    // A tile, and the copies of its queries; one without keys needs none.
    __device__ void give(const Tile& tile) {
        const int slot = q.acquire();
        const int whole_blocks = tile.visible_keys(tile.first_token) / block_keys - tile.begin;
        const bool paired = S::take_turns && has_queries(tile, first_half() + S::query_halves - 1);
        Mbarrier& full = put({tile, whole_blocks, Scales(params).log2, paired, place}, slot);
        if (tile.empty()) {
            full.arrive();
            return;
        }
        full.arrive_expect(S::query_halves * G::live_rows * row_bytes);
        const int first_token = static_cast<int>(tile.q_start + tile.first_token);
        for (int half = 0; half < S::query_halves; ++half) {
            const int token = (first_half() + half) * G::tokens_per_half;
            tensor_load<4>(shared.operands.q[slot][half], params.q, {0, 0, first_token + token, tile.unit}, full);
        }
    }

    // That there are no more.
    __device__ void end() { put(GivenTile::none(), q.acquire()).arrive(); }
};

// One warp: the barriers of a ring.
template <int slots>
__device__ void init_ring(BarrierRing<slots>& ring, uint32_t full, uint32_t empty) {
    for (int slot = threadIdx.x; slot < slots; slot += 32) {
        ring.full[slot].init(full);
        ring.empty[slot].init(empty);
    }
}

// The warpgroups of all halves. `SharedMap` has `head.barriers`, `head.tiles` and `operands`.
template <class Params, class SharedMap>
class Consumer {
    const Params& params;
    SharedMap& shared;
    HalfTile math;
    typename BlockRing::Consumer keys;
    typename BlockRing::Consumer values;
    Turns<static_cast<uint32_t>(NamedBarrier::Turn), S::query_halves, warpgroup_threads> turns;

    // Of this CTA's halves.
    static __device__ int own_half() {
        return HalfTile::warpgroup() - (S::threads / warpgroup_threads - S::query_halves);
    }

    // Of the tile's.
    static __device__ int half() { return first_half() + own_half(); }

    __device__ void release(Mbarrier& empty) const {
        __syncwarp();
        if (math.lane == 0) {
            empty.arrive();
        }
    }

    // A tile of a block.
    __device__ void release(Side side, int slot) const {
        BlockRing& ring = shared.head.barriers.expanded[index(side)];
        if constexpr (S::cluster == 1) {
            release(ring.empty[slot]);
        } else {
            give_back(ring, slot);
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
        release(Side::K, slot);
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
        release(Side::V, slot);
    }

    // Keys that the thread's row sees.
    __device__ int visible_keys(const Tile& tile, int i) const {
        return tile.visible_keys(tile.first_token + half() * G::tokens_per_half + math.row(i) / G::pack);
    }

    // The block after which `blocks - 1` are left.
    __device__ void mask(wgmma::Accumulator& s, const Tile& tile, int blocks) const {
        const int first_key = (tile.begin + blocks - 1) * block_keys;
        math.mask(s, {visible_keys(tile, 0) - first_key, visible_keys(tile, 1) - first_key});
    }

    // One product after another. Halves that take turns make their weights one at a time, each while the other multiplies
    // and adds.
    __device__ void attend_blocks(const GivenTile& given, uint64_t queries, Rows& rows, wgmma::Accumulator& output) {
        const bool paired = given.paired;
        for (int blocks = given.tile.blocks(); blocks > 0; --blocks) {
            wgmma::Accumulator s;
            float factor[rows_per_thread];
            scores(s, queries);
            if (paired) {
                turns.take();
            }
            if (blocks > given.whole_blocks) {
                mask(s, given.tile, blocks);
            }
            math.weigh(s, given.scale, rows, factor);
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

    __device__ void attend(const GivenTile& given) {
        const Tile& tile = given.tile;
        const uint64_t queries = wgmma::swizzled_descriptor(shared.operands.q[given.place.slot()][own_half()]);
        Rows rows;
        wgmma::Accumulator output;
#pragma unroll
        for (float& value : output) {
            value = 0;
        }
        attend_blocks(given, queries, rows, output);
#pragma unroll
        for (float& sum : rows.sum) {
            sum = quad_sum(sum);
        }
        if constexpr (S::split) {
            math.write_partial(params, tile, half(), rows, output);
        } else {
            math.write_output(params, tile, half(), rows, output, shared.operands.q[given.place.slot()][own_half()]);
        }
    }

    // A half without queries only keeps the rings moving.
    __device__ void pass(const Tile& tile) {
        for (int i = 0; i < tile.blocks(); ++i) {
            release(Side::K, keys.wait());
            release(Side::V, values.wait());
        }
    }

    // The split's part of a tile.
    __device__ void consume(const GivenTile& given) {
        const Tile& tile = given.tile;
        if (tile.empty()) {
            if constexpr (S::split) {
                math.write_nothing(params, tile, half());
            }
        } else if (has_queries(tile, half())) {
            attend(given);
        } else {
            pass(tile);
        }
    }

  public:
    // `thread` among those of all consumers.
    __device__ Consumer(const Params& params, SharedMap& shared, uint32_t thread)
        : params(params), shared(shared), math{static_cast<int>(thread % 32)},
          keys(shared.head.barriers.expanded[index(Side::K)]), values(shared.head.barriers.expanded[index(Side::V)]),
          turns(thread / warpgroup_threads) {}

    __device__ void run() {
        if constexpr (S::take_turns) {
            turns.begin();
        }
        TilePlace place;
        while (true) {
            shared.head.barriers.q.full[place.slot()].wait(place.phase());
            const GivenTile& given = shared.head.tiles[place.slot()];
            if (given.is_none()) {
                return;
            }
            consume(given);
            place = given.place;
            release(shared.head.barriers.q.empty[place.take()]);
        }
    }
};

} // namespace bakewell
