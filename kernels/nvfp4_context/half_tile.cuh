// The arithmetic of half a tile on sm_90a: mask, softmax, rescale and output of 64 query rows, whose scores and output the
// warpgroup's threads have in registers as the tensor cores leave them.
#pragma once

#include "../device/softmax.cuh"
#include "../device/store_matrix.cuh"
#include "../device/wgmma.cuh"
#include "output.cuh"
#include "schedule.cuh"

#include <cmath>
#include <cstdint>
#include <cuda/ptx>

namespace bakewell {

using S = Schedule;

// A tile has as many halves of 64 query rows as the schedule says, in each CTA of a cluster.
struct G : Geometry<64, S::pack> {
    static constexpr int tile_tokens = S::cluster * S::query_halves * tokens_per_half;
};

constexpr int warpgroup_threads = 128;
constexpr int rows_per_thread = 2; // 8 apart

// Softmax state of the two rows of a thread. The sum is of this thread's columns only, until the end of the tile.
struct Rows {
    float maximum[rows_per_thread] = {-INFINITY, -INFINITY};
    float sum[rows_per_thread] = {0, 0};
};

// The weights of a block in E4M3: operands of its steps.
constexpr int weight_steps = block_keys / wgmma::e4m3_k;
using Weights = uint32_t[weight_steps][4];

// Element of an accumulator: row 0 or 1 of the thread, column pair of an 8-column group.
__device__ constexpr int at(int row, int group, int element) { return 4 * group + 2 * row + element; }
constexpr int column_groups = 16;

// Largest of the four threads that share a row.
__device__ inline float quad_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
    return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}

__device__ inline float quad_sum(float value) {
    value += __shfl_xor_sync(~0u, value, 1);
    return value + __shfl_xor_sync(~0u, value, 2);
}

// The arithmetic of a half: what is done to accumulators.
struct HalfTile {
    int lane;

    // What is made of the thread's index would else be kept over all tiles, in registers that the blocks need.
    // PTX: mov.u32 %tid.x
    static __device__ int thread() {
        int thread;
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
        return thread;
    }
    static __device__ int warpgroup() { return thread() / warpgroup_threads; }

    // Row of the half.
    static __device__ int row(int i) {
        const int index = thread();
        return index % warpgroup_threads / 32 * 16 + index % 32 / 4 + 8 * i;
    }
    __device__ int quad_lane() const { return lane % 4; }

    // Keys from limit[row] on are not seen.
    __device__ void mask(wgmma::Accumulator& s, const int (&limit)[rows_per_thread]) const {
#pragma unroll
        for (int i = 0; i < rows_per_thread; ++i) {
            if (limit[i] >= block_keys) {
                continue;
            }
            const int own_limit = limit[i] - 2 * quad_lane(); // from the thread's first key on
#pragma unroll
            for (int group = 0; group < column_groups; ++group) {
#pragma unroll
                for (int element = 0; element < 2; ++element) {
                    float& score = s[at(i, group, element)];
                    score = 8 * group + element < own_limit ? score : -INFINITY;
                }
            }
        }
    }

    // Scores to weights; `scale` is that of scores, base 2. Returns the factors of the old output. The two rows go
    // together: few warps share a scheduler, so that four chains must hide the latency of maxima and exponentials.
    __device__ void weigh(wgmma::Accumulator& s, float scale, Rows& rows, float (&factor)[rows_per_thread]) const {
        float top[rows_per_thread][2];
#pragma unroll
        for (int i = 0; i < rows_per_thread; ++i) {
            top[i][0] = rows.maximum[i];
            top[i][1] = s[at(i, 0, 0)];
        }
#pragma unroll
        for (int group = 0; group < column_groups; ++group) {
#pragma unroll
            for (int i = 0; i < rows_per_thread; ++i) {
                float& own = top[i][group % 2];
                own = fmaxf(own, fmaxf(s[at(i, group, 0)], s[at(i, group, 1)]));
            }
        }
        float shift[rows_per_thread], sums[rows_per_thread][2] = {};
#pragma unroll
        for (int i = 0; i < rows_per_thread; ++i) {
            const float maximum = quad_max(fmaxf(top[i][0], top[i][1]));
            const float reference = (maximum == -INFINITY ? 0.0f : maximum) * scale;
            // Equal maxima: exactly 1, whatever the rounding of the reference.
            const bool moved = rows.maximum[i] > -INFINITY && rows.maximum[i] != maximum;
            factor[i] = moved ? exp2_approx(fmaf(rows.maximum[i], scale, -reference)) : 1.0f;
            rows.maximum[i] = maximum;
            shift[i] = bias - reference;
        }
#pragma unroll
        for (int group = 0; group < column_groups; ++group) {
#pragma unroll
            for (int i = 0; i < rows_per_thread; ++i) {
#pragma unroll
                for (int element = 0; element < 2; ++element) {
                    float& score = s[at(i, group, element)];
                    score = exp2_approx(fmaf(score, scale, shift[i]));
                    sums[i][element] += score;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < rows_per_thread; ++i) {
            rows.sum[i] = fmaf(rows.sum[i], factor[i], sums[i][0] + sums[i][1]);
        }
    }

    // The weights of a block, rounded to E4M3.
    static __device__ void round(Weights& p, const wgmma::Accumulator& weights) {
#pragma unroll
        for (int step = 0; step < weight_steps; ++step) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int i = j % 2, group = 2 * (2 * step + j / 2); // two groups of a page
                p[step][j] = pack_e4m3(weights[at(i, group, 0)], weights[at(i, group, 1)], weights[at(i, group + 1, 0)],
                                       weights[at(i, group + 1, 1)]);
            }
        }
    }

    // output = factor * output + product
    static __device__ void add(wgmma::Accumulator& output, const wgmma::Accumulator& product,
                               const float (&factor)[rows_per_thread]) {
#pragma unroll
        for (int group = 0; group < column_groups; ++group) {
#pragma unroll
            for (int i = 0; i < rows_per_thread; ++i) {
#pragma unroll
                for (int element = 0; element < 2; ++element) {
                    const int index = at(i, group, element);
                    output[index] = fmaf(output[index], factor[i], product[index]);
                }
            }
        }
    }

    // Writes output and log-sum-exp. `staging` is the half's queries, no longer needed, with rows of as many bytes as the
    // output has: a warp leaves its 16 rows there and copies them out in whole rows.
    template <class Params>
    __device__ void write_output(const Params& params, const Tile& tile, int half, const Rows& rows,
                                 const wgmma::Accumulator& output, uint8_t* staging) const {
        float factor[rows_per_thread];
        uint32_t seen[rows_per_thread]; // rows that see nothing are zero, whatever the products left
#pragma unroll
        for (int i = 0; i < rows_per_thread; ++i) {
            const OutputRow<G> target(params, tile, half, row(i));
            const Normaliser normaliser(params, target.head, rows.maximum[i], rows.sum[i]);
            factor[i] = normaliser.factor;
            seen[i] = normaliser.factor == 0 ? 0 : ~0u;
            if (target.live && params.lse && quad_lane() == 0) {
                params.lse[target.head_row] = normaliser.lse;
            }
        }
        const int first_row = row(0) & ~7; // of the warp
#pragma unroll
        for (int step = 0; step < output_chunks; step += 2) {
            uint32_t matrices[4]; // rows 0-7 and 8-15 of a chunk of columns, then those of the next
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int i = j % 2, group = 2 * (step + j / 2); // two groups of a chunk
                const auto scaled = [&](int group, int element) { return output[at(i, group, element)] * factor[i]; };
                matrices[j] = seen[i] & pack_e4m3(scaled(group, 0), scaled(group, 1), scaled(group + 1, 0),
                                                  scaled(group + 1, 1));
            }
            store_matrices(staged(staging, first_row + lane % 16, step + lane / 16), matrices);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < output_chunks / 2; ++i) {
            const int in_half = first_row + 4 * i + lane / output_chunks, chunk = lane % output_chunks;
            // Word t has columns 2t, 2t + 1, 8 + 2t, 9 + 2t, as weights have keys.
            const uint4 words = *staged(staging, in_half, chunk);
            const OutputRow<G> target(params, tile, half, in_half);
            if (target.live) {
                reinterpret_cast<uint4*>(params.out + target.head_row * head_dim)[chunk] =
                    make_uint4(__byte_perm(words.x, words.y, 0x5410), __byte_perm(words.z, words.w, 0x5410),
                               __byte_perm(words.x, words.y, 0x7632), __byte_perm(words.z, words.w, 0x7632));
            }
        }
        // The next queries are written by the copy engine.
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    }

    // The split's partial result, which merge.cu finds by the row of the output.
    template <class Params>
    __device__ void write_partial(const Params& params, const Tile& tile, int half, const Rows& rows,
                                  const wgmma::Accumulator& output) const {
#pragma unroll
        for (int i = 0; i < rows_per_thread; ++i) {
            const OutputRow<G> target(params, tile, half, row(i));
            if (!target.live) {
                continue;
            }
            const int64_t index = target.head_row * params.splits + tile.split;
            float* out = params.partial_out + index * head_dim + 2 * quad_lane();
#pragma unroll
            for (int group = 0; group < column_groups; ++group) {
                *reinterpret_cast<float2*>(out + 8 * group) =
                    make_float2(output[at(i, group, 0)], output[at(i, group, 1)]);
            }
            write_maximum(params, index, rows.maximum[i], rows.sum[i]);
        }
    }

    // That of a split past the visible keys: no output.
    template <class Params>
    __device__ void write_nothing(const Params& params, const Tile& tile, int half) const {
#pragma unroll
        for (int i = 0; i < rows_per_thread; ++i) {
            const OutputRow<G> target(params, tile, half, row(i));
            if (target.live) {
                write_maximum(params, target.head_row * params.splits + tile.split, -INFINITY, 0);
            }
        }
    }

  private:
    static constexpr int output_chunks = head_dim / 16; // of 16 columns

    // A chunk of a row, in a place that lets neither rows nor chunks of a warp meet in a bank.
    static __device__ uint4* staged(uint8_t* staging, int row, int chunk) {
        return reinterpret_cast<uint4*>(staging + row * head_dim) + (chunk ^ (row & 7));
    }

    template <class Params>
    __device__ void write_maximum(const Params& params, int64_t index, float maximum, float sum) const {
        if (quad_lane() == 0) {
            params.partial_max[index] = maximum;
            params.partial_sum[index] = sum;
        }
    }
};

} // namespace bakewell
