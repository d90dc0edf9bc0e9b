// What the forward scan and the backward of a chunk share and the state does not touch.
//
//   r = 1 / sqrt(sum x^2 + 1e-6) of the rows of q and k (1 without l2norm)
//   c = inclusive sum of g, log2 units;  D_ts = 2^(c_t - c_s) for s < t
//   A = (I + L)^-1,  L_ts = beta_t r_t r_s (k_t . k_s) D_ts for s < t
//
// One warp, a CTA of its own, per chunk and value head: many small CTAs hide each other's latencies, and nothing waits
// at a barrier. The first value head of a key head also stores the norms of its keys; all of them share those of its queries.
//
//   norms of q | K K^T | -L, 10 blocks of 16 x 16 | diagonal inverses | (1,0) (3,2) | the quarter below | A out
//   keys ->    | keys ->
//
// K K^T has its left operands as right operands, and the squares of the rows on its diagonal. Keys come through shared memory,
// for no other reason than that a copy in flight occupies no registers: a lane reads what it has asked for itself.

#include "../device/async_copy.cuh"
#include "prepare_params.cuh"
#include "block_inverse.cuh"
#include "schedule.cuh"

#include <cstdint>

namespace bakewell {

using S = Schedule;

static_assert(S::threads == warp_lanes, "a warp");

// A quarter of every key of a chunk.
struct KeyQuarter {
    uint4 pieces[chunk_tokens][4];
};

constexpr int key_quarters = head_bytes / static_cast<int>(sizeof(KeyQuarter::pieces[0]));
constexpr int quarters_in_flight = 2;

struct SharedMap {
    union {
        KeyQuarter keys[quarters_in_flight];
        BlockSpace blocks;
    };
    TokenFactors factors;
};

// Starts the copies of a quarter of the keys; zeros past the chunk.
__device__ void start_keys(SharedMap& shared, int quarter, const Params& params, const Work& work) {
    const auto& [group, pair] = work.fragment;
    const char* first = row_of(params.k, work.chunk.first_token, params.k_token_stride, work.head, params.k_head_stride) +
                        quarter * piece_bytes + work.piece();
    uint4& place = shared.keys[quarter % quarters_in_flight].pieces[group][pair];
    const auto target = static_cast<uint32_t>(__cvta_generic_to_shared(&place));
    const char* source = first + group * (params.k_token_stride * 2);
    for (int row = 0; row < chunk_tokens; row += 8) {
        const bool live = work.is_live(group + row);
        async_copy_16(target + row * sizeof(KeyQuarter::pieces[0]), live ? source : first, live);
        source += 8 * 2 * params.k_token_stride;
    }
}

__device__ void multiply_keys(KeyProducts& products, SharedMap& shared, const Params& params, const Work& work) {
#pragma unroll 1
    for (int n = 0; n < key_quarters; ++n) {
        async_copy_wait<quarters_in_flight - 1>();
        const KeyQuarter& keys = shared.keys[n % quarters_in_flight];
        uint4 rows[block_count][2];
        for (int i = 0; i < block_count; ++i) {
            for (int half = 0; half < 2; ++half) {
                rows[i][half] = keys.pieces[block_rows * i + work.fragment.group + 8 * half][work.fragment.pair];
            }
        }
        if (n + quarters_in_flight < key_quarters) {
            start_keys(shared, n + quarters_in_flight, params, work);
        }
        async_copy_commit();
        for (int i = 0; i < block_count; ++i) {
            for (int j = 0; j <= i; ++j) {
                // The words of 16 rows as right operands: rows 0 to 7 are the columns of the first tile.
                auto& [low, high] = products[block_index(i, j)];
                const auto& [a, b] = rows[i];
                const auto& [c, d] = rows[j];
                mma_m16n8k16<Element::bf16>(low, a.x, b.x, a.y, b.y, c.x, c.y);
                mma_m16n8k16<Element::bf16>(high, a.x, b.x, a.y, b.y, d.x, d.y);
                mma_m16n8k16<Element::bf16>(low, a.z, b.z, a.w, b.w, c.z, c.w);
                mma_m16n8k16<Element::bf16>(high, a.z, b.z, a.w, b.w, d.z, d.w);
            }
        }
    }
}

// A leaves, zeros above its diagonal blocks.
__device__ void store_inverse(const SquareTile& inverse, const Params& params, const Work& work) {
    const uint64_t matrix = work.chunk_index * params.value_heads + work.value_head;
    constexpr int pieces = SquareTile::pieces;
    auto* out = static_cast<uint4*>(params.a) + matrix * (chunk_tokens * pieces) + work.lane;
    const int piece = work.lane % pieces;
    // A warp stores four rows of 8 pieces at once.
    const SquareTile::Cursor source(inverse, work.lane / pieces, piece);
    for (int row = 0; row < chunk_tokens; row += 4) {
        const bool above = piece / 2 > row / block_rows;
        out[row * pieces] = above ? make_uint4(0, 0, 0, 0) : load_piece(source.below(row));
    }
}

__device__ void prepare(SharedMap& shared, const Params& params, const Work& work) {
    for (int quarter = 0; quarter < quarters_in_flight; ++quarter) {
        start_keys(shared, quarter, params, work);
        async_copy_commit();
    }
    const Scalars scalars(params, work);
    store_query_norms(params, work);
    scalars.store(shared.factors, work.lane);
    KeyProducts products = {};
    multiply_keys(products, shared, params, work);
    // All lanes have read the keys before their place is taken.
    __syncwarp();
    make_factors(shared.factors, products, params, work);
    invert(shared.blocks, shared.factors, products, work);
    __syncwarp();
    store_inverse(shared.blocks.inverse, params, work);
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, bakewell::Schedule::min_ctas_per_sm)
    gdn_prepare(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(256) char shared_bytes[];
    static_assert(sizeof(SharedMap) == S::dynamic_shared_bytes, "the schedule's budget");
    auto& shared = *reinterpret_cast<SharedMap*>(shared_bytes);

    const uint32_t value_head = blockIdx.x % params.value_heads;
    const Work work = Work::of<1>(params, blockIdx.x / params.value_heads, value_head, value_head,
                                  static_cast<int>(threadIdx.x));
    if (work.chunk.tokens > 0) {
        prepare(shared, params, work);
    }
}
