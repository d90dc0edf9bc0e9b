// States at the boundaries of a sequence's segments, from the maps of the segments.
//
//   forward   S <- M S + H       from the first segment on,  S = h0 or zero before it
//   adjoint   S <- M^T S + G     from the last segment back, S = dht or zero after it
//
// One CTA per segment, value head and 16 value columns, which are the rows of its products: S^T M^T. A segment whose M is
// zero forgets what was before: the CTA of the segment after it walks on from there to the next such segment, and those of
// segments that another CTA comes by have nothing to do. A warp makes 32 of the 128 columns, and reads those of M straight
// from global memory. The state goes round through shared memory.
//
//   segment    | split S | products with M | + H or G, store | barrier |
//
// Operands are split in two bf16, sums are f32: what is lost is below 2^-16 of the largest.

#include "../device/split_bf16.cuh"
#include "compose_params.cuh"
#include "schedule.cuh"

#include <cstdint>

namespace bakewell {

using S = Schedule;

constexpr int warps = S::threads / 32;
constexpr int warp_keys = head_dim / warps;
constexpr int value_splits = head_dim / S::value_columns;

static_assert(S::value_columns == 16, "the rows of one product");

// Rows of S^T; the pitch puts pairs of columns of 4 rows into different banks.
struct StateRows {
    float at[S::value_columns][head_dim + 8];
};

// The state of this segment and of the next, in turn.
struct SharedMap {
    StateRows state[2];
};

struct Work {
    Segment segment; // the first, in the order of the walk, whose start state the CTA makes
    uint64_t segment_index;
    uint64_t value_head;
    int first_column;
    int first_key; // of the warp
    FragmentLane lane;

    // First element of the CTA's rows in the state of a segment.
    __device__ uint64_t rows(const Params& params, uint64_t segment) const {
        return matrix(params, segment) + first_column * head_dim;
    }
    __device__ uint64_t matrix(const Params& params, uint64_t index) const {
        return (index * params.value_heads + value_head) * (head_dim * head_dim);
    }
    __device__ bool forgets(const Params& params, uint64_t segment) const {
        return params.carries != nullptr && params.carries[segment * params.value_heads + value_head] == 0;
    }
};

// The state at the outer end of the sequence.
__device__ void load_boundary(StateRows& state, const Params& params, const Work& work) {
    constexpr int step = S::threads / S::value_columns;
    const int column = static_cast<int>(threadIdx.x) % S::value_columns;
    const int first = static_cast<int>(threadIdx.x) / S::value_columns;
    const float* from = params.boundary + work.matrix(params, work.segment.sequence) + work.first_column + column +
                        first * head_dim;
    for (int k = 0; k < head_dim; k += step) {
        state.at[column][first + k] = from[0];
        from += step * head_dim;
    }
}

// Sums of the warp's columns, 8 a tile.
using Sums = float[warp_keys / 8][4];

// sums = S^T M^T, or S^T M in the adjoint; `m` holds M transposed.
template <bool adjoint>
__device__ void multiply(Sums& sums, const StateRows& state, const float* m, const Work& work) {
    const int group = work.lane.group;
    const int pair = 2 * work.lane.pair;
    // Elements from one to the next along the sum, and along the columns of the result.
    constexpr int along = adjoint ? 1 : head_dim;
    constexpr int across = adjoint ? head_dim : 1;
    m += pair * along + (work.first_key + group) * across;
    // Unrolled: all of M is on its way before the first product.
#pragma unroll
    for (int i = 0; i < head_dim; i += 16) {
        SplitPair a[4];
        for (int n = 0; n < 4; ++n) {
            a[n] = SplitPair::of(*reinterpret_cast<const float2*>(&state.at[group + n % 2 * 8][i + pair + n / 2 * 8]));
        }
        for (int tile = 0; tile < warp_keys / 8; ++tile) {
            SplitPair b[2];
            for (int half = 0; half < 2; ++half) {
                const float* two = m + 8 * half * along + 8 * tile * across;
                b[half] = adjoint ? SplitPair::of(*reinterpret_cast<const float2*>(two))
                                  : SplitPair::of(two[0], two[along]);
            }
            mma_split(sums[tile], a, b);
        }
        m += 16 * along;
    }
}

template <bool adjoint>
__device__ void compose(SharedMap& shared, const Params& params, const Work& work) {
    constexpr int64_t direction = adjoint ? -1 : 1;
    const Sequence sequence = params.sequences[work.segment.sequence];
    const int last = static_cast<int>(sequence.segments) - 1;
    const int target = adjoint ? last - static_cast<int>(work.segment.index) : static_cast<int>(work.segment.index);
    if (target == 0) {
        return;
    }
    // The outermost map has no M where nothing is before it.
    int64_t segment = static_cast<int64_t>(work.segment_index) - direction;
    bool forgets = (target == 1 && params.boundary == nullptr) || work.forgets(params, segment);
    if (target > 1 && !forgets) {
        return;
    }
    if (!forgets) {
        load_boundary(shared.state[0], params, work);
        __syncthreads();
    }
    for (int step = target; step <= last; ++step) {
        Sums sums = {};
        if (!forgets) {
            multiply<adjoint>(sums, shared.state[(step - target) % 2], params.m + work.matrix(params, segment), work);
        }
        const int64_t next = segment + direction;
        const float* added = params.segment_state + work.rows(params, segment);
        float* start = params.start + work.rows(params, next);
        auto& state = shared.state[(step - target + 1) % 2].at;
        for (int tile = 0; tile < warp_keys / 8; ++tile) {
            for (int half = 0; half < 2; ++half) {
                const int row = work.lane.group + 8 * half;
                const int column = work.first_key + 8 * tile + 2 * work.lane.pair;
                const float2 add = *reinterpret_cast<const float2*>(&added[row * head_dim + column]);
                const float2 sum = make_float2(sums[tile][2 * half] + add.x, sums[tile][2 * half + 1] + add.y);
                *reinterpret_cast<float2*>(&state[row][column]) = sum;
                *reinterpret_cast<float2*>(&start[row * head_dim + column]) = sum;
            }
        }
        if (step < last && work.forgets(params, next)) {
            return;
        }
        forgets = false;
        segment = next;
        // The next step reads what all warps wrote, and replaces what they have read.
        __syncthreads();
    }
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, bakewell::Schedule::min_ctas_per_sm)
    gdn_compose(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(128) char shared_bytes[];
    static_assert(sizeof(SharedMap) == S::dynamic_shared_bytes, "the schedule's budget");
    auto& shared = *reinterpret_cast<SharedMap*>(shared_bytes);

    const uint32_t split = blockIdx.x % value_splits;
    const uint32_t head = blockIdx.x / value_splits;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const uint64_t segment = head / params.value_heads;
    const Work work{params.segments[segment],
                    segment,
                    head % params.value_heads,
                    static_cast<int>(split) * S::value_columns,
                    warp * warp_keys,
                    FragmentLane::of(static_cast<int>(threadIdx.x) % 32)};
    if (work.segment.sequence < 0) {
        return;
    }
    if (params.adjoint) {
        compose<true>(shared, params, work);
    } else {
        compose<false>(shared, params, work);
    }
}
