// Attention of one warp over blocks of 16 keys with mma.m16n8k16.
//
// Scores are computed transposed, S^T[16 keys, columns] = K Q^T, and so is the output, O^T[dims, columns] = V^T P^T:
// query rows that share the keys are the columns, so that a group of 4 heads wastes half of the product and not three
// quarters. The order of a sum is free, which lets every lane read K and V in vectors of 8 elements without ldmatrix:
//   scores   a lane's vectors of its two key rows are four of the row, a quarter of all; Q is read the same way.
//   output   a lane reads, of its four keys, an eighth of the row's vectors, 8 neighbouring dims each;
//            pairs of keys are interleaved with prmt into rows g and g + 8 of four products.
// A block has 16 slots. Slot r and r + 8 are rows of S^T; where a slot's key lies is the caller's choice.
#pragma once

#include "element.cuh"
#include "mma_sync.cuh"
#include "softmax.cuh"
#include "split_merge.cuh"

#include <cmath>
#include <cstdint>

namespace bakewell {

constexpr int block_keys = 16;

constexpr uint32_t full_warp = 0xFFFFFFFF;

// exp2(s - reference) may reach 2^headroom before the reference is raised: below the largest f16, and it keeps
// weights down to 2^-(24 + headroom) of the largest out of f16's underflow.
constexpr float headroom = 15;

// Which vectors of a row a lane has: every fourth or eighth, so that lanes side by side read neighbours, or a run of
// neighbours, which share the scales of a packed format.
enum class Vectors { strided, run };

template <Element element, int columns, int head_dim, Vectors order = Vectors::strided>
struct BlockAttention {
    static constexpr int tiles = (columns + 7) / 8; // products side by side
    static constexpr int row_vectors = head_dim / vector_elements;
    static constexpr int key_vectors = row_vectors / 4;   // per lane and key row
    static constexpr int value_vectors = row_vectors / 8; // per lane and key
    static constexpr int out_tiles = value_vectors * 4;   // of 16 dims
    static_assert(head_dim % 64 == 0, "eight lanes share a value row in 16-byte vectors");

    // Rows g and g + 8 of K.
    struct Keys {
        uint4 row[2][key_vectors];
    };

    // Rows of V of slots 2q, 2q + 1, 2q + 8, 2q + 9.
    struct Values {
        uint4 key[4][value_vectors];
    };

    // Scores, then weights, of each 8 columns: [0..1] key slot g, [2..3] slot g + 8; columns 2q, 2q + 1.
    using Scores = float[tiles][4];

    FragmentLane lane;
    float scale_log2;
    uint4 query[tiles][key_vectors]; // row of column g
    float out[tiles][out_tiles][4];
    float reference[tiles][2]; // of columns 2q, 2q + 1
    float sum[tiles][2];       // over this lane's keys

    // read(column, v): vector v of the column's query row. The columns past the last repeat the first; nobody reads
    // their results.
    template <class Read>
    __device__ BlockAttention(int lane_index, float scale_log2, Read read)
        : lane(FragmentLane::of(lane_index)), scale_log2(scale_log2), out{}, sum{} {
        for (int tile = 0; tile < tiles; ++tile) {
            reference[tile][0] = reference[tile][1] = lowest_reference;
            const int column = 8 * tile + lane.group;
            for (int j = 0; j < key_vectors; ++j) {
                query[tile][j] = read(column < columns ? column : 0, key_vector(j));
            }
        }
    }

    // The slots whose keys a lane reads: as a row of S^T, and as a row of V.
    __device__ int key_slot(int half) const { return lane.group + 8 * half; }
    __device__ int value_slot(int i) const { return 2 * lane.pair + (i & 1) + 8 * (i >> 1); }

    // The vectors of these rows that it reads.
    __device__ int key_vector(int j) const {
        return order == Vectors::strided ? 4 * j + lane.pair : key_vectors * lane.pair + j;
    }
    __device__ int value_vector(int j) const {
        return order == Vectors::strided ? 8 * j + lane.group : value_vectors * lane.group + j;
    }

    // Column i, 0 or 1, of a lane in a product.
    __device__ int column(int tile, int i) const { return 8 * tile + 2 * lane.pair + i; }

    // read(slot, v): vector v of the slot's row of K.
    template <class Read>
    __device__ Keys load_keys(Read read) const {
        Keys keys;
        for (int half = 0; half < 2; ++half) {
            for (int j = 0; j < key_vectors; ++j) {
                keys.row[half][j] = read(key_slot(half), key_vector(j));
            }
        }
        return keys;
    }

    // The same of V. Rows of keys that do not count must come as zeros: weight 0 does not hide a NaN or Inf.
    template <class Read>
    __device__ Values load_values(Read read) const {
        Values values;
        for (int i = 0; i < 4; ++i) {
            for (int j = 0; j < value_vectors; ++j) {
                values.key[i][j] = read(value_slot(i), value_vector(j));
            }
        }
        return values;
    }

    // Zeros for the keys that do not count.
    template <class Live>
    __device__ void clear_values(Values& values, Live live) const {
        for (int i = 0; i < 4; ++i) {
            if (!live(value_slot(i))) {
                for (auto& vector : values.key[i]) {
                    vector = make_uint4(0, 0, 0, 0);
                }
            }
        }
    }

    // Raw products.
    __device__ void score(const Keys& keys, Scores& scores) const {
        for (int tile = 0; tile < tiles; ++tile) {
            // Two chains halve the latency of the accumulation.
            float even[4] = {}, odd[4] = {};
            for (int j = 0; j < key_vectors; ++j) {
                const uint4 low = keys.row[0][j];
                const uint4 high = keys.row[1][j];
                const uint4 q = query[tile][j];
                mma_m16n8k16<element>(even, low.x, high.x, low.y, high.y, q.x, q.y);
                mma_m16n8k16<element>(odd, low.z, high.z, low.w, high.w, q.z, q.w);
            }
            for (int i = 0; i < 4; ++i) {
                scores[tile][i] = even[i] + odd[i];
            }
        }
    }

    // -inf where live(slot, tile, i) is false; i: one of the lane's columns in a product.
    template <class Live>
    __device__ void mask(Scores& scores, Live live) const {
        for (int tile = 0; tile < tiles; ++tile) {
            for (int i = 0; i < 4; ++i) {
                if (!live(key_slot(i >> 1), tile, i & 1)) {
                    scores[tile][i] = -INFINITY;
                }
            }
        }
    }

    // Whether some weight of the warp would pass the headroom. NaN does not.
    template <int blocks>
    __device__ bool exceeds_headroom(const Scores (&scores)[blocks]) const {
        bool exceeds = false;
        for (int b = 0; b < blocks; ++b) {
            for (int tile = 0; tile < tiles; ++tile) {
                for (int i = 0; i < 4; ++i) {
                    exceeds |= scores[b][tile][i] * scale_log2 - reference[tile][i & 1] > headroom;
                }
            }
        }
        return __any_sync(full_warp, exceeds);
    }

    // Moves the reference of each column to its largest score so far.
    template <int blocks>
    __device__ void raise_reference(const Scores (&scores)[blocks]) {
        for (int tile = 0; tile < tiles; ++tile) {
            for (int i = 0; i < 2; ++i) {
                float top = -INFINITY;
                for (int b = 0; b < blocks; ++b) {
                    top = fmaxf(top, fmaxf(scores[b][tile][i], scores[b][tile][i + 2]));
                }
                // Lanes with the same q hold the same columns.
                for (int distance = 4; distance < 32; distance *= 2) {
                    top = fmaxf(top, __shfl_xor_sync(full_warp, top, distance));
                }
                reference[tile][i] = fmaxf(reference[tile][i], top * scale_log2);
            }
        }
    }

    // The same, and rescales what was summed under the old reference.
    template <int blocks>
    __device__ void rescale_to_reference(const Scores (&scores)[blocks]) {
        float old[tiles][2];
        for (int tile = 0; tile < tiles; ++tile) {
            old[tile][0] = reference[tile][0];
            old[tile][1] = reference[tile][1];
        }
        raise_reference(scores);
        for (int tile = 0; tile < tiles; ++tile) {
            for (int i = 0; i < 2; ++i) {
                const float rescale = exp2_approx(old[tile][i] - reference[tile][i]);
                sum[tile][i] *= rescale;
                for (auto& rows : out[tile]) {
                    rows[i] *= rescale;
                    rows[i + 2] *= rescale;
                }
            }
        }
    }

    // Weights of a block under the current reference; adds them to the sums.
    __device__ void weigh(Scores& scores) {
        for (int tile = 0; tile < tiles; ++tile) {
            for (int i = 0; i < 4; ++i) {
                scores[tile][i] = exp2_approx(scores[tile][i] * scale_log2 - reference[tile][i & 1]);
                sum[tile][i & 1] += scores[tile][i];
            }
        }
    }

    // Rows g and g + 8 of an operand of 16 dims: of slots 2q, 2q + 1, then of 8 more.
    struct Rows {
        uint32_t first, first_upper, second, second_upper;
    };

    // O^T += V^T P^T; rows(t): the dims of output tile t, which are 2 (t % 4) and one more of value vector t / 4.
    template <class Operand>
    __device__ void accumulate_rows(const Scores& weights, Operand rows) {
        uint32_t low[tiles], high[tiles];
        for (int tile = 0; tile < tiles; ++tile) {
            low[tile] = transpose_8x8(pack<element>(weights[tile][0], weights[tile][1]));
            high[tile] = transpose_8x8(pack<element>(weights[tile][2], weights[tile][3]));
        }
        for (int t = 0; t < out_tiles; ++t) {
            const Rows a = rows(t);
            for (int tile = 0; tile < tiles; ++tile) {
                mma_m16n8k16<element>(out[tile][t], a.first, a.first_upper, a.second, a.second_upper, low[tile],
                                      high[tile]);
            }
        }
    }

    __device__ void accumulate(const Scores& weights, const Values& values) {
        accumulate_rows(weights, [&](int t) {
            constexpr uint32_t uint4::* words[4] = {&uint4::x, &uint4::y, &uint4::z, &uint4::w};
            const auto word = [&](int i) { return values.key[i][t / 4].*words[t % 4]; };
            return Rows{low_halves(word(0), word(1)), high_halves(word(0), word(1)), low_halves(word(2), word(3)),
                        high_halves(word(2), word(3))};
        });
    }

    // This warp's partial result to shared memory.
    template <int warps>
    __device__ void store(WarpPartials<warps, columns, head_dim>& partials, int warp) const {
        for (int tile = 0; tile < tiles; ++tile) {
            float total[2] = {sum[tile][0], sum[tile][1]};
            for (int distance = 4; distance < 32; distance *= 2) {
                total[0] += __shfl_xor_sync(full_warp, total[0], distance);
                total[1] += __shfl_xor_sync(full_warp, total[1], distance);
            }
            for (int i = 0; i < 2; ++i) {
                if (column(tile, i) < columns) {
                    store_column(partials, warp, tile, i, total[i]);
                }
            }
        }
    }

  private:
    template <int warps>
    __device__ void store_column(WarpPartials<warps, columns, head_dim>& partials, int warp, int tile, int i,
                                 float total) const {
        const int column = this->column(tile, i);
        if (lane.group == 0) {
            partials.reference[warp][column] = reference[tile][i];
            partials.sum[warp][column] = total;
        }
        float4* row = reinterpret_cast<float4*>(partials.out[warp][column]);
        for (int j = 0; j < value_vectors; ++j) {
            const auto& t = &out[tile][4 * j];
            const int vector = value_vector(j) * (vector_elements / 4);
            row[vector] = make_float4(t[0][i], t[0][i + 2], t[1][i], t[1][i + 2]);
            row[vector + 1] = make_float4(t[2][i], t[2][i + 2], t[3][i], t[3][i + 2]);
        }
    }
};

} // namespace bakewell
