// NVFP4 paged-context attention on the warpgroup tensor cores of sm_90a: E4M3 queries, FP4 keys and values in pages.
//
//   out = E4M3(bmm2 * softmax(bmm1 * Q K^T, causal bottom-right) V)
//
// A CTA holds two halves of 64 query rows (tokens x packed heads) against all key blocks that they see, from the last
// block down. A warpgroup each loads packed K and V and expands them to E4M3 in shared memory, V transposed, since 8-bit
// operands must be K-major. The other two have a half each, scores and outputs in registers.
//
//   keys       | load K ahead ... | expand K | expand K' | expand K'' | ...
//   values     | load V ahead ... | expand V | expand V' | expand V'' | ...
//   half 0                        | Q K, softmax | P V, rescale | Q K' | ...
//   half 1                        | Q K, softmax | P V, rescale | Q K' | ...
//
// The CTAs of a cluster share a tile, of whose blocks each expands its part: shared_blocks.cuh.
// With `split`, several CTAs share a tile's blocks, whose results merge.cu merges. What a half does: consumer.cuh.

#include "../device/barrier_ring.cuh"
#include "../device/tensor_map.cuh"
#include "consumer.cuh"
#include "expand.cuh"
#include "params.cuh"
#include "schedule.cuh"

namespace bakewell {

using Walk = TileWalk<G, Params>;

using PackedRing = BarrierRing<S::packed_stages>;

struct Barriers {
    BarrierRing<q_slots> q;       // keys -> consumers: a tile, and both halves' queries
    PackedRing packed[sides];     // a producer's loads -> the producer
    BlockRing expanded[sides];    // producers -> consumers
};

struct SharedMap {
    static constexpr int barrier_bytes = sizeof(Barriers);

    struct Head {
        Barriers barriers;
        GivenTile tiles[q_slots];
    };

    Head head;
    uint8_t unused[swizzle_period - sizeof(Head)];
    Operands operands;
    PackedTile packed[sides][S::packed_stages];
};
static_assert(offsetof(SharedMap, operands) % swizzle_period == 0 && offsetof(SharedMap, packed) % copy_alignment == 0);

enum class Role { keys, values, half0, half1 };

struct Context {
    const Params& params;
    SharedMap& shared;

    __device__ int thread() const { return threadIdx.x % warpgroup_threads; }
    __device__ int warp() const { return thread() / 32; }
    __device__ int lane() const { return threadIdx.x % 32; }
};

// ---------------------------------------------------------------- producers

// Runs ahead of the expansion with the copies of packed tiles. One warp: lanes 0-7 copy the codes of a page each, lanes
// 8-15 the scales.
template <Side side>
class Loader {
    Context c;
    typename PackedRing::Producer ring;
    Walk walk;
    Tile tile;
    int block;    // copied next; below the tile's first when there is none
    int slot = 0; // of the ring of expanded blocks, where the next one goes that was not looked at
    int page = 0; // of this lane in that block

    // Slots past the last page repeat it: its tokens there are past the cache and expand to zeros. An empty cache names
    // a page that no tensor has, for which the copy engine writes zeros.
    __device__ void fetch_page() {
        if (tile.kv_len == 0) {
            page = INT32_MAX;
            return;
        }
        const int64_t last = (tile.kv_len - 1) / page_tokens;
        const int64_t slot = min(static_cast<int64_t>(block) * block_pages + c.lane() % block_pages, last);
        page = c.params.page_table[tile.request * c.params.page_table_stride + slot];
    }

    // The last block of the next tile with keys for this split.
    __device__ void next_tile() {
        while (walk.next(tile)) {
            if (!tile.empty()) {
                block = tile.end - 1;
                return;
            }
        }
        tile.begin = 0;
        block = -1;
    }

    __device__ bool more() const { return block >= tile.begin; }

    __device__ void advance() {
        --block;
        if (!more()) {
            next_tile();
        }
    }

    // From here on, the first block that this CTA expands.
    __device__ void find() {
        if constexpr (S::cluster > 1) {
            for (; more() && !owns(slot); slot = (slot + 1) % S::cluster) {
                advance();
            }
            slot = (slot + 1) % S::cluster;
        }
        if (more()) {
            fetch_page();
        }
    }

  public:
    explicit __device__ Loader(Context c) : c(c), ring(c.shared.head.barriers.packed[index(side)]), walk(c.params) {
        next_tile();
        find();
    }

    // Starts the copy of the next packed tile, if there is one, and fetches the page ids of the one after.
    __device__ void issue() {
        if (!more()) {
            return;
        }
        const int slot = ring.acquire();
        Mbarrier& full = c.shared.head.barriers.packed[index(side)].full[slot];
        if (c.lane() == 0) {
            full.arrive_expect(sizeof(PackedTile));
        }
        __syncwarp();
        const int kv_head = tile.unit * G::pack / static_cast<int>(c.params.heads_per_kv);
        PackedTile& packed = c.shared.packed[index(side)][slot];
        if (c.lane() < block_pages) {
            const TensorMap& codes = side == Side::K ? c.params.k : c.params.v;
            tensor_load<4>(packed.codes[c.lane()], codes, {0, 0, kv_head, page}, full);
        } else if (c.lane() < 2 * block_pages) {
            const TensorMap& scales = side == Side::K ? c.params.k_scale : c.params.v_scale;
            tensor_load<3>(packed.scales[c.lane() - block_pages], scales, {0, kv_head, page}, full);
        }
        advance();
        find();
    }
};

// Loads and expands K or V. The keys' producer also loads the queries.
template <Side side>
class Producer {
    Context c;
    TileProducer<Params, SharedMap> tiles;
    typename PackedRing::Consumer packed;
    BlockProducer expanded;

    __device__ void expand(const Tile& tile, int block) {
        const int from = packed.wait();
        const int to = expanded.acquire();
        const int live_tokens = tile.kv_len - block * block_keys;
        const PackedTile& codes = c.shared.packed[index(side)][from];
        uint8_t* out = c.shared.operands.expanded[index(side)][to];
        if constexpr (side == Side::K) {
            expand_row<S::dequantise, S::code_reads, side>(codes, out, c.thread(), c.thread() < live_tokens);
        } else {
            Transposer(c.thread()).expand(codes, out, live_tokens);
        }
        // The tensor cores read through the async proxy what these threads wrote.
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        __syncwarp();
        if (c.lane() == 0) {
            c.shared.head.barriers.expanded[index(side)].full[to].arrive();
            c.shared.head.barriers.packed[index(side)].empty[from].arrive();
        }
        if constexpr (S::cluster > 1) {
            const NamedBarrier barrier = side == Side::K ? NamedBarrier::KeysExpanded : NamedBarrier::ValuesExpanded;
            share_block(out, c.shared.head.barriers.expanded[index(side)].full[to], static_cast<uint32_t>(barrier));
        }
    }

  public:
    explicit __device__ Producer(Context c)
        : c(c), tiles(c.params, c.shared), packed(c.shared.head.barriers.packed[index(side)]),
          expanded(c.shared.head.barriers.expanded[index(side)]) {}

    __device__ void run() {
        // Only the first warp loads; the loader of the others stays idle.
        Loader<side> loader(c);
        const bool loads = c.warp() == 0;
        // One slot less than the ring has: the copy that follows a step then never waits for that step's readers.
        for (int stage = 0; loads && stage < S::packed_stages - 1; ++stage) {
            loader.issue();
        }
        Walk walk(c.params);
        Tile tile;
        while (walk.next(tile)) {
            if (side == Side::K && c.thread() == 0) {
                tiles.give(tile);
            }
            for (int block = tile.end - 1; block >= tile.begin; --block) {
                if (skips(expanded)) {
                    continue;
                }
                if (loads) {
                    loader.issue();
                }
                expand(tile, block);
            }
        }
        if (side == Side::K && c.thread() == 0) {
            tiles.end();
        }
    }
};

// ---------------------------------------------------------------- entry

__device__ void init_barriers(Barriers& barriers) {
    constexpr uint32_t copy = 1, producer_warps = warpgroup_warps;
    if (threadIdx.x < 32) {
        init_ring(barriers.q, copy, consumer_warps);
        for (int side = 0; side < sides; ++side) {
            init_ring(barriers.packed[side], copy, producer_warps);
            if constexpr (S::cluster == 1) {
                init_ring(barriers.expanded[side], producer_warps, consumer_warps);
            } else {
                init_blocks(barriers.expanded[side], producer_warps, consumer_warps);
            }
        }
    }
    fence_mbarrier_init();
}

// The CTAs that share blocks, or the threads of one that shares none.
__device__ void meet() {
    if constexpr (S::cluster == 1) {
        __syncthreads();
    } else {
        cluster_sync();
    }
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, 1)
    nvfp4_context_wgmma(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(swizzle_period) uint8_t shared_bytes[];
    SharedMap& shared = *reinterpret_cast<SharedMap*>(shared_bytes);
    if (threadIdx.x == 0) {
        for (const TensorMap* map : {&params.q, &params.k, &params.v, &params.k_scale, &params.v_scale}) {
            prefetch_tensor_map(*map);
        }
    }
    init_barriers(shared.head.barriers);
    zero_dead_rows(shared.operands);
    meet();

    const Context context{params, shared};
    switch (static_cast<Role>(threadIdx.x / warpgroup_threads)) {
    case Role::keys:
        cuda::ptx::setmaxnreg_dec(cuda::ptx::n32_t<S::key_registers>{});
        Producer<Side::K>(context).run();
        break;
    case Role::values:
        cuda::ptx::setmaxnreg_dec(cuda::ptx::n32_t<S::value_registers>{});
        Producer<Side::V>(context).run();
        break;
    case Role::half0:
    case Role::half1:
        cuda::ptx::setmaxnreg_inc(cuda::ptx::n32_t<S::consumer_registers>{});
        Consumer(params, shared, threadIdx.x - sides * warpgroup_threads).run();
        break;
    }
    if constexpr (S::cluster > 1) {
        // Peers arrive at barriers of this CTA.
        cluster_sync();
    }
}
