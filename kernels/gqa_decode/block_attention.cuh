// Attention of one warp over blocks of 16 keys with mma.m16n8k16.
//
// Scores are computed transposed, S^T[16 keys, 8 heads] = K Q^T, and so is the output, O^T[dims, 8 heads] = V^T P^T:
// the group's heads are the columns, so that a group of 4 wastes half of the product and not three quarters.
// The order of a sum is free, which lets every lane read K and V in 16-byte vectors without ldmatrix:
//   scores   a lane's vectors of its two key rows are vectors q, q + 4, ... of the row; Q is read the same way.
//   output   a lane reads, of its four keys, the vectors g (and g + 8) of the row, 8 neighbouring dims each;
//            pairs of keys are interleaved with prmt into rows g and g + 8 of four products.
// A block has 16 slots. Slot r and r + 8 are rows of S^T; where a slot's key lies is the caller's choice.
#pragma once

#include "../device/element.cuh"
#include "../device/mma_sync.cuh"
#include "../device/softmax.cuh"
#include "merge.cuh"
#include "work.cuh"

#include <cstdint>

namespace bakewell {

constexpr int block_keys = 16;

constexpr uint32_t full_warp = 0xFFFFFFFF;

// exp2(s - reference) may reach 2^headroom before the reference is raised: below the largest f16, and it keeps
// weights down to 2^-(24 + headroom) of the largest out of f16's underflow.
constexpr float headroom = 15;

template <class S>
struct BlockAttention {
    static constexpr int group_size = S::group_size;
    static constexpr int row_vectors = S::head_dim / vector_elements;
    static constexpr int key_vectors = row_vectors / 4;   // per lane and key row
    static constexpr int value_vectors = row_vectors / 8; // per lane and key
    static_assert(group_size <= 8, "the heads of a group are the columns of one product");
    static_assert(S::head_dim % 64 == 0, "eight lanes share a value row in 16-byte vectors");

    // Rows g and g + 8 of K.
    struct Keys {
        uint4 row[2][key_vectors];
    };

    // Rows of V of slots 2q, 2q + 1, 2q + 8, 2q + 9.
    struct Values {
        uint4 key[4][value_vectors];
    };

    // Scores, then weights: [0..1] key slot g, [2..3] slot g + 8; heads 2q, 2q + 1.
    using Scores = float[4];

    FragmentLane lane;
    float scale_log2;
    uint4 query[key_vectors]; // row of head g
    float out[value_vectors * 4][4];
    float reference[2]; // of heads 2q, 2q + 1
    float sum[2];       // over this lane's keys

    __device__ BlockAttention(const Params& params, Work<S> work, int lane_index)
        : lane(FragmentLane::of(lane_index)), scale_log2(params.scale_log2), out{},
          reference{lowest_reference, lowest_reference}, sum{} {
        // The columns past the group repeat its first head; nobody reads their results.
        const int head = lane.group < group_size ? lane.group : 0;
        const char* row = static_cast<const char*>(params.q) + (work.query_head(params) + head) * Work<S>::row_bytes;
        for (int j = 0; j < key_vectors; ++j) {
            query[j] = reinterpret_cast<const uint4*>(row)[4 * j + lane.pair];
        }
    }

    // The slots whose keys a lane reads: as a row of S^T, and as a row of V.
    __device__ int key_slot(int half) const { return lane.group + 8 * half; }
    __device__ int value_slot(int i) const { return 2 * lane.pair + (i & 1) + 8 * (i >> 1); }

    // read(slot, v): 16-byte vector v of the slot's row of K.
    template <class Read>
    __device__ Keys load_keys(Read read) const {
        Keys keys;
        for (int half = 0; half < 2; ++half) {
            for (int j = 0; j < key_vectors; ++j) {
                keys.row[half][j] = read(key_slot(half), 4 * j + lane.pair);
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
                values.key[i][j] = read(value_slot(i), 8 * j + lane.group);
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

    // Raw products; -inf where live(slot) is false.
    template <class Live>
    __device__ void score(const Keys& keys, Live live, Scores& scores) const {
        // Two chains halve the latency of the accumulation.
        float odd[4] = {};
        for (int i = 0; i < 4; ++i) {
            scores[i] = 0;
        }
        for (int j = 0; j < key_vectors; ++j) {
            const uint4 low = keys.row[0][j];
            const uint4 high = keys.row[1][j];
            mma_m16n8k16<S::element>(scores, low.x, high.x, low.y, high.y, query[j].x, query[j].y);
            mma_m16n8k16<S::element>(odd, low.z, high.z, low.w, high.w, query[j].z, query[j].w);
        }
        for (int i = 0; i < 4; ++i) {
            scores[i] = live(key_slot(i >> 1)) ? scores[i] + odd[i] : -INFINITY;
        }
    }

    // Whether some weight of the warp would pass the headroom. NaN does not.
    template <int blocks>
    __device__ bool exceeds_headroom(const Scores (&scores)[blocks]) const {
        bool exceeds = false;
        for (int b = 0; b < blocks; ++b) {
            for (int i = 0; i < 4; ++i) {
                exceeds |= scores[b][i] * scale_log2 - reference[i & 1] > headroom;
            }
        }
        return __any_sync(full_warp, exceeds);
    }

    // Moves the reference of each head to its largest score so far.
    template <int blocks>
    __device__ void raise_reference(const Scores (&scores)[blocks]) {
        for (int head = 0; head < 2; ++head) {
            float top = -INFINITY;
            for (int b = 0; b < blocks; ++b) {
                top = fmaxf(top, fmaxf(scores[b][head], scores[b][head + 2]));
            }
            // Lanes with the same q hold the same heads.
            for (int distance = 4; distance < 32; distance *= 2) {
                top = fmaxf(top, __shfl_xor_sync(full_warp, top, distance));
            }
            reference[head] = fmaxf(reference[head], top * scale_log2);
        }
    }

    // The same, and rescales what was summed under the old reference.
    template <int blocks>
    __device__ void rescale_to_reference(const Scores (&scores)[blocks]) {
        const float old[2] = {reference[0], reference[1]};
        raise_reference(scores);
        for (int head = 0; head < 2; ++head) {
            const float rescale = exp2_approx(old[head] - reference[head]);
            sum[head] *= rescale;
            for (auto& tile : out) {
                tile[head] *= rescale;
                tile[head + 2] *= rescale;
            }
        }
    }

    // Weights of a block under the current reference; adds them to the sums.
    __device__ void weigh(Scores& scores) {
        for (int i = 0; i < 4; ++i) {
            scores[i] = exp2_approx(scores[i] * scale_log2 - reference[i & 1]);
            sum[i & 1] += scores[i];
        }
    }

    // O^T += V^T P^T.
    __device__ void accumulate(const Scores& weights, const Values& values) {
        const uint32_t low = transpose_8x8(pack<S::element>(weights[0], weights[1]));
        const uint32_t high = transpose_8x8(pack<S::element>(weights[2], weights[3]));
        for (int j = 0; j < value_vectors; ++j) {
            product(out[4 * j + 0], values, j, &uint4::x, low, high);
            product(out[4 * j + 1], values, j, &uint4::y, low, high);
            product(out[4 * j + 2], values, j, &uint4::z, low, high);
            product(out[4 * j + 3], values, j, &uint4::w, low, high);
        }
    }

    // This warp's partial result to shared memory.
    __device__ void store(WarpPartials<S>& partials, int warp) const {
        float total[2] = {sum[0], sum[1]};
        for (int distance = 4; distance < 32; distance *= 2) {
            total[0] += __shfl_xor_sync(full_warp, total[0], distance);
            total[1] += __shfl_xor_sync(full_warp, total[1], distance);
        }
        for (int head = 0; head < 2; ++head) {
            const int column = 2 * lane.pair + head;
            if (column < group_size) {
                if (lane.group == 0) {
                    partials.reference[warp][column] = reference[head];
                    partials.sum[warp][column] = total[head];
                }
                float4* row = reinterpret_cast<float4*>(partials.out[warp][column]);
                for (int j = 0; j < value_vectors; ++j) {
                    const auto& t = &out[4 * j];
                    const int vector = (8 * j + lane.group) * (vector_elements / 4);
                    row[vector] = make_float4(t[0][head], t[0][head + 2], t[1][head], t[1][head + 2]);
                    row[vector + 1] = make_float4(t[2][head], t[2][head + 2], t[3][head], t[3][head + 2]);
                }
            }
        }
    }

  private:
    // Dims 2i and 2i + 1 of vector j (word i) as rows g and g + 8.
    __device__ void product(float (&tile)[4], const Values& values, int j, uint32_t uint4::* word, uint32_t low,
                            uint32_t high) {
        const uint32_t k0 = values.key[0][j].*word;
        const uint32_t k1 = values.key[1][j].*word;
        const uint32_t k8 = values.key[2][j].*word;
        const uint32_t k9 = values.key[3][j].*word;
        mma_m16n8k16<S::element>(tile, low_halves(k0, k1), high_halves(k0, k1), low_halves(k8, k9),
                                 high_halves(k8, k9), low, high);
    }
};

} // namespace bakewell
