// Expands a block of 128 keys of a KV head to E4M3, once for all tiles of query rows that see it: K as rows of tokens, V
// as rows of dims, under the swizzle of the tensor cores. A warpgroup each; tokens past the cache become zeros.
//
//   copy codes and scales of 8 pages | expand in shared memory | copy the tile out

#include "../device/bulk_store.cuh"
#include "../device/mbarrier.cuh"
#include "../device/named_barrier.cuh"
#include "../device/tensor_map.cuh"
#include "dequantise_params.cuh"
#include "expand.cuh"
#include "expanded_tile.cuh"
#include "schedule.cuh"

namespace bakewell {

using S = Schedule;

constexpr int sides = 2; // K and V
constexpr int side_threads = S::threads / sides;
static_assert(side_threads == block_keys, "a thread expands a row");

struct SharedMap {
    static constexpr int barrier_bytes = sides * sizeof(Mbarrier);

    Mbarrier full[sides];
    uint8_t unused[copy_alignment - barrier_bytes];
    uint8_t expanded[sides][tile_bytes];
    PackedTile packed[sides];
};

// Barrier of the first side; the second's follows.
enum class NamedBarrier : uint32_t { Expanded = 1 };

// Which block this CTA expands: heads of a page lie together, and so do their CTAs.
struct Block {
    uint32_t request, block, kv_head;
    int kv_len;
    int live_tokens; // from the block's first on

    explicit __device__ Block(const Params& params)
        : request(blockIdx.x / params.kv_heads / params.key_blocks),
          block(blockIdx.x / params.kv_heads % params.key_blocks), kv_head(blockIdx.x % params.kv_heads),
          kv_len(params.seq_lens_kv[request]), live_tokens(kv_len - static_cast<int>(block) * block_keys) {}

    // Whether a query reads it. Of an empty cache the first block is read.
    __device__ bool wanted(const Params& params) const {
        const bool queries = params.cu_seqlens_q[request + 1] > params.cu_seqlens_q[request];
        return queries && (live_tokens > 0 || block == 0);
    }
};

// One warp: lanes 0-7 copy the codes of a page each, lanes 8-15 the scales. Slots past the last page repeat it: its tokens
// there are past the cache.
__device__ void load(const Params& params, const Block& block, Side side, PackedTile& packed, Mbarrier& full) {
    const int lane = threadIdx.x % 32;
    if (lane == 0) {
        full.arrive_expect(sizeof(PackedTile));
    }
    __syncwarp();
    if (lane >= 2 * block_pages) {
        return;
    }
    const int64_t last = (block.kv_len - 1) / page_tokens;
    const int64_t slot = min(static_cast<int64_t>(block.block) * block_pages + lane % block_pages, last);
    const int page = params.page_table[block.request * params.page_table_stride + slot];
    const int kv_head = static_cast<int>(block.kv_head);
    if (lane < block_pages) {
        tensor_load<4>(packed.codes[lane], side == Side::K ? params.k : params.v, {0, 0, kv_head, page}, full);
    } else {
        const TensorMap& scales = side == Side::K ? params.k_scale : params.v_scale;
        tensor_load<3>(packed.scales[lane - block_pages], scales, {0, kv_head, page}, full);
    }
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, bakewell::Schedule::min_ctas_per_sm)
    nvfp4_context_dequantise(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(copy_alignment) uint8_t shared_bytes[];
    SharedMap& shared = *reinterpret_cast<SharedMap*>(shared_bytes);
    const Block block(params);
    if (!block.wanted(params)) {
        return;
    }
    if (threadIdx.x == 0) {
        for (Mbarrier& full : shared.full) {
            full.init(1);
        }
        fence_mbarrier_init();
    }
    __syncthreads();

    const int thread = threadIdx.x % side_threads;
    const int i = threadIdx.x / side_threads;
    const Side side = static_cast<Side>(i);
    PackedTile& packed = shared.packed[i];
    uint8_t* expanded = shared.expanded[i];
    if (block.live_tokens > 0) {
        if (thread < 32) {
            load(params, block, side, packed, shared.full[i]);
        }
        shared.full[i].wait(0);
    }
    if (side == Side::V && block.live_tokens > 0) {
        Transposer(thread).expand(packed, expanded, block.live_tokens);
    } else {
        expand_row<S::dequantise, S::code_reads, Side::K>(packed, expanded, thread, thread < block.live_tokens);
    }
    // The copy engine reads what these threads wrote.
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    named_barrier_sync(static_cast<uint32_t>(NamedBarrier::Expanded) + i, side_threads);
    if (thread == 0) {
        uint8_t* tile = params.expanded + tile_offset(block.request, params.kv_heads, block.kv_head, params.key_blocks,
                                                      block.block, side);
        bulk_store(tile, shared.expanded[i], tile_bytes);
        commit_stores();
        wait_stores_read<0>();
    }
}
