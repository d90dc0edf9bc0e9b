// From unnormalised rows to the output: normalisation, log-sum-exp, partial results of split tiles and their merge.
#pragma once

#include "../device/completion_counter.cuh"
#include "../device/named_barrier.cuh"
#include "../device/softmax.cuh"
#include "scales.cuh"
#include "tiles.cuh"

#include <cmath>
#include <cstdint>

namespace bakewell {

// P = exp2(s - max + bias) fills E4M3 up to 448 = 2^bias. The row sum carries the same factor.
constexpr float bias = 8.807355f;
constexpr float ln_448 = 6.10479323f;

// A query row of a tile as the output sees it. `G` is the geometry of the tile.
template <class G>
struct OutputRow {
    bool live;
    int64_t head;
    int64_t head_row; // token * q_heads + head

    template <class Params>
    __device__ OutputRow(const Params& params, const Tile& tile, uint32_t half, uint32_t row) {
        const int64_t token = tile.first_token + static_cast<int64_t>(half) * G::tokens_per_half + row / G::pack;
        live = row < G::live_rows && token < tile.q_len;
        head = static_cast<int64_t>(tile.unit) * G::pack + row % G::pack;
        head_row = (tile.q_start + token) * params.q_heads + head;
    }
};

// What turns an unnormalised row into the output, and its log-sum-exp.
struct Normaliser {
    float factor;
    float lse;

    template <class Params>
    __device__ Normaliser(const Params& params, int64_t head, float maximum, float sum) {
        const Scales scales(params);
        const float natural = maximum * scales.bmm1;
        bool visible = sum != 0 && !isnan(sum);
        lse = visible ? natural + logf(sum) - ln_448 : -INFINITY;
        if (params.sinks) {
            const float sink = params.sinks[head];
            sum += exp2f(fmaf(sink, static_cast<float>(log2_e), bias) - maximum * scales.log2);
            visible = visible && maximum > -INFINITY && sum < INFINITY;
            lse = visible ? natural + logf(sum) - ln_448 : sink;
        }
        float reciprocal;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(sum));
        factor = visible ? reciprocal * scales.bmm2 : 0.0f;
    }

    // Rows that see nothing are zero, whatever the products left.
    __device__ uint32_t pack(float a, float b, float c, float d) const {
        return pack_scaled(factor, a, b, c, d);
    }
};

// Row of the partial results [tiles, splits, 2, half_rows].
template <class G, class Params>
__device__ uint64_t partial_row(const Params& params, const Tile& tile, uint32_t split, uint32_t half, uint32_t row) {
    return ((static_cast<uint64_t>(tile.index) * params.splits + split) * halves + half) * G::half_rows + row;
}

// One warp merges one row: lane = four columns. Splits in order, so that the bits do not depend on who merges.
template <class G, class Params>
__device__ void merge_row(const Params& params, const Tile& tile, uint32_t half, uint32_t in_half, uint32_t lane) {
    const OutputRow<G> row(params, tile, half, in_half);
    if (!row.live) {
        return;
    }
    const float scale = Scales(params).log2;
    const auto at = [&](uint32_t split) { return partial_row<G>(params, tile, split, half, in_half); };
    float maximum = -INFINITY;
    for (uint32_t split = 0; split < params.splits; ++split) {
        maximum = fmaxf(maximum, params.partial_max[at(split)]);
    }
    float sum = 0;
    float4 out = make_float4(0, 0, 0, 0);
    for (uint32_t split = 0; split < params.splits; ++split) {
        const float of_split = params.partial_max[at(split)];
        // A split without visible keys wrote no output.
        if (of_split > -INFINITY) {
            const float weight = exp2_approx((of_split - maximum) * scale);
            const float4 value = *reinterpret_cast<const float4*>(params.partial_out + at(split) * head_dim + 4 * lane);
            sum = fmaf(weight, params.partial_sum[at(split)], sum);
            out.x = fmaf(weight, value.x, out.x);
            out.y = fmaf(weight, value.y, out.y);
            out.z = fmaf(weight, value.z, out.z);
            out.w = fmaf(weight, value.w, out.w);
        }
    }
    const Normaliser normaliser(params, row.head, maximum, sum);
    reinterpret_cast<uint32_t*>(params.out + row.head_row * head_dim)[lane] =
        normaliser.pack(out.x, out.y, out.z, out.w);
    if (params.lse && lane == 0) {
        params.lse[row.head_row] = normaliser.lse;
    }
}

// The threads that write a tile's output: `threads` of them, meeting at a named barrier.
template <class G, class Params, uint32_t barrier, uint32_t threads>
struct Merger {
    const Params& params;
    uint32_t& flag; // in shared memory
    uint32_t thread; // among them

    // All of them, once this split's partial results are written. The last CTA of the tile merges.
    __device__ void finish(const Tile& tile) const {
        const auto meet = [] { named_barrier_sync(barrier, threads); };
        if (!arrive_last(&params.completed[tile.index], params.splits, flag, thread == 0, meet)) {
            return;
        }
        for (uint32_t row = thread / 32; row < halves * G::half_rows; row += threads / 32) {
            merge_row<G>(params, tile, row / G::half_rows, row % G::half_rows, thread % 32);
        }
    }

    // A split past the visible keys contributes nothing but its arrival.
    __device__ void finish_empty(const Tile& tile) const {
        for (uint32_t row = thread; row < halves * G::half_rows; row += threads) {
            const uint32_t half = row / G::half_rows, in_half = row % G::half_rows;
            if (OutputRow<G>(params, tile, half, in_half).live) {
                const uint64_t at = partial_row<G>(params, tile, tile.split, half, in_half);
                params.partial_max[at] = -INFINITY;
                params.partial_sum[at] = 0;
            }
        }
        finish(tile);
    }
};

} // namespace bakewell
