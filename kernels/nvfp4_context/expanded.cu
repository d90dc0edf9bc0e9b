// NVFP4 paged-context attention on the warpgroup tensor cores of sm_90a, of many query rows: every block of keys and
// values was expanded once, by dequantise.cu, into the tiles that the tensor cores read.
//
//   out = E4M3(bmm2 * softmax(bmm1 * Q K^T, causal bottom-right) V)
//
// A CTA holds two or three halves of 64 query rows (tokens x packed heads) against all key blocks that they see, from the
// last block down.
//
//   load    | Q, K V, K' V', K'' V'' ...           as far ahead as the ring allows
//   half 0  | Q K, weights |  P V, output | Q K', weights' | P V', output | ...
//   half 1                 | Q K, weights |  P V, output   | Q K', weights' | ...
//
// The bytes are those of wgmma.cu: the same arithmetic in the same order; splits are merged by merge.cu. What a half does:
// consumer.cuh.

#include "../device/barrier_ring.cuh"
#include "../device/bulk_copy.cuh"
#include "../device/tensor_map.cuh"
#include "consumer.cuh"
#include "expanded_params.cuh"
#include "expanded_tile.cuh"
#include "schedule.cuh"

namespace bakewell {

using Walk = TileWalk<G, Params>;

struct Barriers {
    BarrierRing<q_slots> q;    // load -> consumers: a tile, and all halves' queries
    BlockRing expanded[sides]; // load -> consumers
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
};
static_assert(offsetof(SharedMap, operands) % swizzle_period == 0);

// ---------------------------------------------------------------- load

// One thread.
class Loader {
    const Params& params;
    SharedMap& shared;
    TileProducer<Params, SharedMap> tiles;
    typename BlockRing::Producer keys;
    typename BlockRing::Producer values;

    __device__ void load(Side side, int slot, const uint8_t* tile) const {
        Mbarrier& full = shared.head.barriers.expanded[index(side)].full[slot];
        full.arrive_expect(tile_bytes);
        bulk_load(shared.operands.expanded[index(side)][slot], tile, tile_bytes, full);
    }

  public:
    __device__ Loader(const Params& params, SharedMap& shared)
        : params(params), shared(shared), tiles(params, shared),
          keys(shared.head.barriers.expanded[index(Side::K)]), values(shared.head.barriers.expanded[index(Side::V)]) {}

    __device__ void run() {
        Walk walk(params);
        Tile tile;
        while (walk.next(tile)) {
            tiles.give(tile);
            if (tile.empty()) {
                continue;
            }
            const uint32_t kv_head = tile.unit / (params.heads_per_kv / G::pack);
            const uint8_t* block = params.expanded + tile_offset(tile.request, params.q_heads / params.heads_per_kv, kv_head,
                                                                 params.key_blocks, tile.end - 1, Side::K);
            for (int i = tile.blocks(); i > 0; --i) {
                load(Side::K, keys.acquire(), block);
                load(Side::V, values.acquire(), block + tile_bytes);
                block -= sides * tile_bytes;
            }
        }
        tiles.end();
    }
};

// ---------------------------------------------------------------- entry

__device__ void init_barriers(Barriers& barriers) {
    constexpr uint32_t copy = 1;
    if (threadIdx.x < 32) {
        init_ring(barriers.q, copy, consumer_warps);
        for (int side = 0; side < sides; ++side) {
            init_ring(barriers.expanded[side], copy, consumer_warps);
        }
    }
    fence_mbarrier_init();
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, 1)
    nvfp4_context_expanded(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(swizzle_period) uint8_t shared_bytes[];
    SharedMap& shared = *reinterpret_cast<SharedMap*>(shared_bytes);
    if (threadIdx.x == 0) {
        prefetch_tensor_map(params.q);
    }
    init_barriers(shared.head.barriers);
    zero_dead_rows(shared.operands);
    __syncthreads();

    // The first warpgroup loads, one thread of it; the others have a half each.
    if (threadIdx.x < warpgroup_threads) {
        cuda::ptx::setmaxnreg_dec(cuda::ptx::n32_t<S::load_registers>{});
        if (threadIdx.x == 0) {
            Loader(params, shared).run();
        }
    } else {
        cuda::ptx::setmaxnreg_inc(cuda::ptx::n32_t<S::consumer_registers>{});
        Consumer(params, shared, threadIdx.x - warpgroup_threads).run();
    }
}
