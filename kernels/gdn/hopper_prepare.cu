// Stage `prepare` where value heads share a key head: their warps multiply its keys together.
//
// What is computed is that of prepare.cu. A CTA has a chunk and three or four value heads of one key head, a warp each. The copy
// engine brings the keys; each warp multiplies some of the 10 blocks of K K^T, and all of them take all products:
//
//   keys ->    |        |
//   norms of q | blocks | -L, 10 blocks of 16 x 16 | diagonal inverses | (1,0) (3,2) | the quarter below | A out

#include "../device/tensor_store.cuh"
#include "hopper_prepare_params.cuh"
#include "block_inverse.cuh"
#include "hopper_tiles.cuh"
#include "schedule.cuh"

#include <cstdint>

namespace bakewell {

using S = Schedule;

// Value heads of a CTA.
constexpr int warps = S::threads / warp_lanes;

static_assert(S::threads == warps * warp_lanes, "whole warps");
static_assert(warps <= block_count && 2 * warps >= block_count, "one row of blocks of the keys' products for each, or two");

struct SharedMap {
    union {
        HeadTile keys;
        BlockSpace blocks[warps];
    };
    float4 products[2 * lower_blocks][warp_lanes]; // of keys, as the lanes hold them
    TokenFactors factors[warps];
    Mbarrier loaded;

    static constexpr int barrier_bytes = sizeof(Mbarrier);
};

// Starts the copy of the keys.
__device__ void start_keys(SharedMap& shared, const Params& params, const Work& work) {
    if (threadIdx.x == 0) {
        shared.loaded.init(1);
        fence_mbarrier_init();
        shared.loaded.arrive_expect(sizeof(shared.keys));
        tensor_load<4>(shared.keys, params.k_map,
                       {0, static_cast<int>(work.chunk.first_token), 0, static_cast<int>(work.head)}, shared.loaded);
    }
    // The barrier is there.
    __syncthreads();
}

// Rows past the chunk are another sequence's, or lie past the tensor.
__device__ void clear_rows(SharedMap& shared, int tokens) {
    constexpr int units = Panel::row_bytes / 16;
    for (Panel& panel : shared.keys) {
        for (int i = tokens * units + static_cast<int>(threadIdx.x); i < chunk_tokens * units; i += S::threads) {
            reinterpret_cast<uint4*>(panel.bytes)[i] = make_uint4(0, 0, 0, 0);
        }
    }
    __syncthreads();
}

// Where a lane's row of keys lies, for ldmatrix.
class KeyRows {
    uint32_t first; // of the first block and step

  public:
    // `unit`: which half of a step's columns.
    __device__ KeyRows(const HeadTile& keys, int row, int unit) : first(shared_address(keys[0].at(row, unit))) {}

    // Blocks are whole periods of the swizzle.
    __device__ uint32_t at(int block, int step) const {
        return (first ^ (step % token_steps * 32)) + step / token_steps * sizeof(Panel) +
               block * (block_rows * Panel::row_bytes);
    }
};

// The blocks of row i of K K^T.
template <int i>
__device__ void multiply_row(BlockSum (&sums)[i + 1], const KeyRows& left, const KeyRows& right) {
    for (int step = 0; step < dim_steps; ++step) {
        uint32_t a[4];
        ldmatrix_x4(a, left.at(i, step));
        for (int j = 0; j <= i; ++j) {
            uint32_t b[4];
            ldmatrix_x4(b, right.at(j, step));
            mma_m16n8k16<Element::bf16>(sums[j][0], a[0], a[1], a[2], a[3], b[0], b[1]);
            mma_m16n8k16<Element::bf16>(sums[j][1], a[0], a[1], a[2], a[3], b[2], b[3]);
        }
    }
}

// Rows of blocks are shared out from the longest to the shortest, and what is left in the other direction.
template <int i = block_count - 1>
__device__ void multiply_own_rows(SharedMap& shared, const KeyRows& left, const KeyRows& right, int warp, int lane) {
    if constexpr (i >= 0) {
        constexpr int turn = block_count - 1 - i;
        if (warp == (turn < warps ? turn : 2 * warps - 1 - turn)) {
            BlockSum sums[i + 1] = {};
            multiply_row<i>(sums, left, right);
            for (int j = 0; j <= i; ++j) {
                for (int tile = 0; tile < 2; ++tile) {
                    const auto& sum = sums[j][tile];
                    shared.products[2 * block_index(i, j) + tile][lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
                }
            }
        }
        multiply_own_rows<i - 1>(shared, left, right, warp, lane);
    }
}

__device__ void multiply_keys(KeyProducts& products, SharedMap& shared, int tokens, int warp, int lane) {
    shared.loaded.wait(0);
    if (tokens < chunk_tokens) {
        clear_rows(shared, tokens);
    }
    // Words of left operands: rows 0 to 7, rows 8 to 15, both again with the other half of the columns. Right: columns first.
    const int low = lane / 8 % 2;
    const int high = lane / 16;
    const KeyRows left(shared.keys, lane % 8 + 8 * low, high);
    const KeyRows right(shared.keys, lane % 8 + 8 * high, low);
    multiply_own_rows(shared, left, right, warp, lane);
    __syncthreads();
    for (int block = 0; block < lower_blocks; ++block) {
        for (int tile = 0; tile < 2; ++tile) {
            const float4 sum = shared.products[2 * block + tile][lane];
            auto& to = products[block][tile];
            to[0] = sum.x;
            to[1] = sum.y;
            to[2] = sum.z;
            to[3] = sum.w;
        }
    }
}

// A leaves by the copy engine.
__device__ void store_inverse(BlockSpace& blocks, const Params& params, const Work& work) {
    const InverseCursor target(blocks.inverse, work.lane);
    for (int i = 0; i < block_count; ++i) {
        for (int j = i + 1; j < block_count; ++j) {
            stmatrix_x4(target.at(i, j), 0, 0, 0, 0);
        }
    }
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncwarp();
    if (work.lane == 0) {
        const uint64_t matrix = work.chunk_index * params.value_heads + work.value_head;
        tensor_store<3>(params.a_map, {0, 0, static_cast<int>(matrix)}, &blocks.inverse);
        commit_stores();
        wait_stores_read<0>();
    }
}

__device__ void prepare(SharedMap& shared, const Params& params, const Work& work, int warp) {
    start_keys(shared, params, work);
    const Scalars scalars(params, work);
    store_query_norms(params, work);
    TokenFactors& factors = shared.factors[warp];
    scalars.store(factors, work.lane);
    KeyProducts products;
    multiply_keys(products, shared, static_cast<int>(work.chunk.tokens), warp, work.lane);
    make_factors(factors, products, params, work);
    invert(shared.blocks[warp], factors, products, work);
    store_inverse(shared.blocks[warp], params, work);
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, bakewell::Schedule::min_ctas_per_sm)
    gdn_prepare_group(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(swizzle_period) uint8_t shared_bytes[];
    static_assert(sizeof(SharedMap) == S::dynamic_shared_bytes, "the schedule's budget");
    auto& shared = *reinterpret_cast<SharedMap*>(shared_bytes);

    const uint32_t parts = params.value_heads / warps;
    const int warp = static_cast<int>(threadIdx.x) / warp_lanes;
    const uint32_t part = blockIdx.x % parts;
    const uint64_t value_head = static_cast<uint64_t>(part) * (blockDim.x / warp_lanes) + warp;
    const Work work = Work::of<warps>(params, blockIdx.x / parts, part, value_head,
                                      static_cast<int>(threadIdx.x) % warp_lanes);
    if (work.chunk.tokens > 0) {
        prepare(shared, params, work, warp);
    }
}
