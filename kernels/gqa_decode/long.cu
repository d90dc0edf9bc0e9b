// Decode attention over long prefixes: a producer warp keeps a ring of K and V tiles full, the other warps compute.
//
//   out[b, h] = softmax_t(scale * q[b, h] . K[b, h / group, t]) . V[b, h / group, t],  t < sequence_lengths[b]
//
// Split s has tiles s, s + splits, ... of the request. A split without tiles gives the empty partial. All query heads
// of a KV head are computed together, so that each byte of the cache is read once.
//
//   producer      | init ring | K0 V0 K1 V1 ... as slots become free                     |
//   consumer w    | load q    | scores K0 | weights | output V0 | scores K1 | ...        | store partial |
//   CTA                                                                                                  | merge |

#include "../device/bulk_copy.cuh"
#include "../device/cluster.cuh"
#include "../device/ring.cuh"
#include "early_request.cuh"
#include "output.cuh"
#include "params.cuh"
#include "schedule.cuh"
#include "work.cuh"

namespace bakewell {

using S = Schedule;

// A tile of K or V in eight strips of consecutive keys, one bulk copy each. Slot r of every block lies in strip r % 8,
// and the strips start at skewed addresses: the eight lanes of a 16-byte access phase, which read the same columns of
// different slots (K: slots 2h and 2h + 1, V: slots 0, 2, 4, 6 or 1, 3, 5, 7), then cover all banks. With plain rows
// of a multiple of 128 bytes they would meet in the same banks.
struct Tile {
    static constexpr int strips = 8;
    static constexpr int strip_keys = S::tile_keys / strips;
    static constexpr int strip_bytes = strip_keys * Work<S>::row_bytes;
    static constexpr int blocks = S::tile_keys / block_keys;
    static_assert(S::tile_keys % block_keys == 0);

    // Start of a strip. The skew in 16-byte vectors is 0 4 10 14 20 24 30 34, modulo 8: 0 4 2 6 4 0 6 2.
    static constexpr __device__ int strip_offset(int strip) {
        return strip * strip_bytes + 16 * (10 * (strip / 2) + 4 * (strip % 2));
    }

    // Key of a slot of a block, and its row.
    static __device__ int key(int block, int slot) { return (slot % strips) * strip_keys + 2 * block + slot / strips; }
    __device__ const uint4* row(int block, int slot) const {
        const int offset = strip_offset(slot % strips) + (2 * block + slot / strips) * Work<S>::row_bytes;
        return reinterpret_cast<const uint4*>(bytes + offset);
    }

    static constexpr int size = strips * strip_bytes + 16 * 34;
    alignas(128) char bytes[size];
};

struct SharedMap {
    static constexpr int barrier_bytes = 2 * S::stages * sizeof(Mbarrier) + MergeOf<S>::barrier_bytes;

    Ring<Tile, S::stages> ring;
    alignas(16) MergeOf<S> merge;
};

// Keys of a tile below the length.
__device__ int live_keys(uint32_t tile, int32_t length) {
    const int64_t rest = length - static_cast<int64_t>(tile) * S::tile_keys;
    return rest < S::tile_keys ? static_cast<int>(rest) : S::tile_keys;
}

__device__ void load(const Params& params, Work<S> work, uint32_t tiles, int32_t length,
                     typename Ring<Tile, S::stages>::Producer ring, int lane) {
    const char* planes[2] = {work.keys(params), work.values(params)};
    for (uint32_t tile = work.split; tile < tiles; tile += params.splits) {
        // Rows past the length are not copied, so nothing past the capacity is touched.
        const int keys = live_keys(tile, length);
        const int first = lane * Tile::strip_keys;
        const int strip_keys = min(Tile::strip_keys, keys - first);
        const size_t offset = (static_cast<size_t>(tile) * S::tile_keys + first) * Work<S>::row_bytes;
        for (const char* plane : planes) {
            ring.fill(lane, keys * Work<S>::row_bytes, [&](Tile& destination, Mbarrier& full) {
                if (lane < Tile::strips && strip_keys > 0) {
                    bulk_load(destination.bytes + Tile::strip_offset(lane), plane + offset,
                              strip_keys * Work<S>::row_bytes, full);
                }
            });
        }
    }
}

// One tile by one warp; `keys` of it count. Partial: fewer than all of them.
template <bool partial>
__device__ void attend(Attention<S>& attention, typename Ring<Tile, S::stages>::Consumer& ring, int keys,
                       uint32_t warp, int lane) {
    constexpr int blocks = Tile::blocks / S::consumer_warps;
    static_assert(Tile::blocks % S::consumer_warps == 0, "every warp has the same number of blocks");
    const auto block = [&](int b) { return warp * blocks + b; };
    const auto live = [&](int b) {
        return [=, first = block(b)](int slot) { return !partial || Tile::key(first, slot) < keys; };
    };
    // Rows past the length were not copied.
    const auto read = [&](const Tile& tile, int b) {
        return [&tile, first = block(b), live = live(b)](int slot, int vector) {
            return live(slot) ? tile.row(first, slot)[vector] : make_uint4(0, 0, 0, 0);
        };
    };

    typename Attention<S>::Scores scores[blocks];
    const Tile& k = ring.wait();
    for (int b = 0; b < blocks; ++b) {
        attention.score(attention.load_keys(read(k, b)), scores[b]);
        if constexpr (partial) {
            attention.mask(scores[b], [live = live(b)](int slot, int, int) { return live(slot); });
        }
    }
    ring.release(lane);
    if (attention.exceeds_headroom(scores)) {
        attention.rescale_to_reference(scores);
    }
    for (int b = 0; b < blocks; ++b) {
        attention.weigh(scores[b]);
    }
    const Tile& v = ring.wait();
    for (int b = 0; b < blocks; ++b) {
        attention.accumulate(scores[b], attention.load_values(read(v, b)));
    }
    ring.release(lane);
}

__device__ void consume(const Params& params, Work<S> work, uint32_t tiles, int32_t length,
                        typename Ring<Tile, S::stages>::Consumer ring, Partials<S>& partials, uint32_t warp,
                        int lane) {
    Attention<S> attention = attention_of<S>(params, work, lane);
    for (uint32_t tile = work.split; tile < tiles; tile += params.splits) {
        const int keys = live_keys(tile, length);
        if (keys == S::tile_keys) {
            attend<false>(attention, ring, keys, warp, lane);
        } else {
            attend<true>(attention, ring, keys, warp, lane);
        }
    }
    attention.store(partials, warp);
}

enum class Role { consumer, producer };

// The producer is the last warp.
__device__ Role role_of(uint32_t warp) { return warp < S::consumer_warps ? Role::consumer : Role::producer; }
static_assert(S::threads == (S::consumer_warps + 1) * 32, "one warp loads");

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, bakewell::Schedule::min_ctas_per_sm)
    gqa_decode_long(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(128) char shared_bytes[];
    static_assert(sizeof(SharedMap) == S::dynamic_shared_bytes, "the schedule's budget");
    auto& shared = *reinterpret_cast<SharedMap*>(shared_bytes);
    const auto work = Work<S>::of_this_cta();
    const uint32_t warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;

    if (role_of(warp) == Role::producer && lane == 0) {
        shared.ring.init(S::consumer_warps);
        shared.merge.init();
    }
    __syncwarp();
    // Pairs with the wait before the merge: no CTA writes into a peer that has not started.
    cluster_arrive_relaxed();
    wait_for_earlier_grids(params, work, warp, lane);
    const int32_t length = work.length(params);
    __syncthreads();
    const uint32_t tiles = (static_cast<uint32_t>(length) + S::tile_keys - 1) / S::tile_keys;
    switch (role_of(warp)) {
    case Role::producer:
        load(params, work, tiles, length, typename Ring<Tile, S::stages>::Producer(shared.ring), lane);
        break;
    case Role::consumer:
        consume(params, work, tiles, length, typename Ring<Tile, S::stages>::Consumer(shared.ring),
                shared.merge.warps, warp, lane);
        break;
    }
    cluster_wait();
    merge_and_store<S>(params, work, shared.merge, length);
}
