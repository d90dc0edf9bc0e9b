// What stage `prepare` does for a chunk and value head beside the products of the keys: norms, gate sums, and the factors of
// tokens. Included behind the parameters of a kernel, whose names are those of prepare_params.cuh.
#pragma once

#include "../device/mma_sync.cuh"
#include "../device/swizzled_tile.cuh"
#include "gate.cuh"
#include "tables.cuh"

#include <cstdint>

namespace bakewell {

constexpr int block_rows = 16;
constexpr int block_count = chunk_tokens / block_rows;
constexpr int warp_lanes = 32;
constexpr uint32_t full_warp = 0xFFFFFFFF;

constexpr float norm_epsilon = 1e-6f;

constexpr int lower_blocks = block_count * (block_count + 1) / 2;

__device__ constexpr int block_index(int i, int j) { return i * (i + 1) / 2 + j; }

// K K^T by blocks of the lower triangle, two tiles of 8 columns each.
using BlockSum = float[2][4];
using KeyProducts = BlockSum[lower_blocks];

struct TokenFactors {
    float gate[chunk_tokens];   // of each token alone at first
    float rk[chunk_tokens];
    float row[chunk_tokens];    // beta at first, then -beta r; 0 past the chunk
    float column[chunk_tokens]; // r 2^(c of the block's last row - c)
};

// A chunk and a value head.
struct Work {
    uint64_t chunk_index;
    Chunk chunk;
    uint64_t value_head;
    uint64_t head;
    uint64_t index; // among the key head's value heads
    uint64_t group; // of them
    int lane;
    FragmentLane fragment;

    // `part` of the chunk: the value heads of a CTA, `warps` of one key head; `value_head`: one of them.
    template <uint32_t warps>
    static __device__ Work of(const Params& params, uint32_t chunk_index, uint32_t part, uint64_t value_head, int lane) {
        const uint32_t group = params.value_heads / params.heads;
        const uint64_t head = part / (group / warps);
        return {chunk_index, params.chunks[chunk_index], value_head, head, value_head - head * group,
                group,       lane,                       FragmentLane::of(lane)};
    }

    // Bytes from the start of a row to what this lane reads of it.
    __device__ uint64_t piece() const { return static_cast<uint64_t>(fragment.pair) * 16; }
    __device__ bool is_live(int row) const { return row < static_cast<int>(chunk.tokens); }
    // A row past the chunk stands for its first: an address that exists.
    __device__ uint64_t token(int row) const {
        return chunk.first_token + static_cast<uint64_t>(is_live(row) ? row : 0);
    }
};

__device__ float reciprocal_norm(float squares, bool l2norm) { return l2norm ? rsqrtf(squares + norm_epsilon) : 1.0f; }

// The squares of 16 rows are the diagonal of the product with themselves: the lane that holds an element of it for its
// row of either half calls visit(half, square).
template <class Visit>
__device__ void visit_diagonal(const float (&low)[4], const float (&high)[4], const FragmentLane& lane, Visit visit) {
    if (lane.pair == lane.group / 2) {
        visit(0, lane.group % 2 ? low[1] : low[0]);
        visit(1, lane.group % 2 ? high[3] : high[2]);
    }
}

// Bytes of a row that its four lanes read at once, 16 each. Read like this by all, rows have their elements in another order
// along a sum, which is free.
constexpr int piece_bytes = 4 * 16;

// What a lane reads of 16 rows of q; zeros past the chunk.
struct QueryRows {
    uint4 at[2][4];

    __device__ void load(const char* q, uint64_t first, const Params& params, const Work& work) {
        for (int half = 0; half < 2; ++half) {
            const uint64_t row = first + work.fragment.group + 8 * half;
            const char* piece = q + row * (params.q_token_stride * 2) + work.piece();
            for (int n = 0; n < 4; ++n) {
                at[half][n] = row < work.chunk.tokens ? *reinterpret_cast<const uint4*>(piece + n * piece_bytes)
                                                      : make_uint4(0, 0, 0, 0);
            }
        }
    }

    __device__ void square(float (&squares)[2][4]) const {
        for (int n = 0; n < 4; ++n) {
            const uint4 a = at[0][n];
            const uint4 b = at[1][n];
            mma_m16n8k16<Element::bf16>(squares[0], a.x, b.x, a.y, b.y, a.x, a.y);
            mma_m16n8k16<Element::bf16>(squares[1], a.x, b.x, a.y, b.y, b.x, b.y);
            mma_m16n8k16<Element::bf16>(squares[0], a.z, b.z, a.w, b.w, a.z, a.w);
            mma_m16n8k16<Element::bf16>(squares[1], a.z, b.z, a.w, b.w, b.z, b.w);
        }
    }
};

// 1 / norms of q, of blocks of rows that the value heads of a key head take in turn. The next block is in flight meanwhile.
__device__ void store_query_norms(const Params& params, const Work& work) {
    const char* q = row_of(params.q, work.chunk.first_token, params.q_token_stride, work.head, params.q_head_stride);
    const uint64_t turn = block_rows * work.group;
    QueryRows next = {};
    if (params.l2norm) {
        next.load(q, block_rows * work.index, params, work);
    }
#pragma unroll 1
    for (uint64_t first = block_rows * work.index; first < chunk_tokens; first += turn) {
        const QueryRows rows = next;
        if (params.l2norm && first + turn < chunk_tokens) {
            next.load(q, first + turn, params, work);
        }
        float squares[2][4] = {};
        rows.square(squares);
        visit_diagonal(squares[0], squares[1], work.fragment, [&](int half, float square) {
            const int row = static_cast<int>(first) + work.fragment.group + 8 * half;
            if (work.is_live(row)) {
                params.rq[work.token(row) * params.heads + work.head] = reciprocal_norm(square, params.l2norm);
            }
        });
    }
}

// Gate and write strength of two tokens; those of the chunk's first where there is none.
struct Scalars {
    float gate[2];
    float beta[2];

    __device__ Scalars(const Params& params, const Work& work) {
        for (int half = 0; half < 2; ++half) {
            const uint64_t token = work.token(work.lane + 32 * half);
            gate[half] = params.g[token * params.g_token_stride + work.value_head];
            beta[half] = load_beta(params.beta, params.beta_bf16, token * params.beta_token_stride + work.value_head);
        }
    }

    __device__ void store(TokenFactors& factors, int lane) const {
        for (int half = 0; half < 2; ++half) {
            factors.gate[lane + 32 * half] = gate[half];
            factors.row[lane + 32 * half] = beta[half];
        }
    }
};

// Norms of the keys, gate sums, and what they make of beta, for every token.
__device__ void make_factors(TokenFactors& factors, const KeyProducts& products, const Params& params, const Work& work) {
    for (int i = 0; i < block_count; ++i) {
        const auto& [low, high] = products[block_index(i, i)];
        visit_diagonal(low, high, work.fragment, [&](int half, float square) {
            factors.rk[block_rows * i + work.fragment.group + 8 * half] = reciprocal_norm(square, params.l2norm);
        });
    }
    __syncwarp();
    float sums[2];
    bool bounded = params.l2norm;
    for (int half = 0; half < 2; ++half) {
        const int row = work.lane + 32 * half;
        const float beta = factors.row[row];
        factors.row[row] = work.is_live(row) ? -beta * factors.rk[row] : 0.0f;
        bounded = bounded && beta >= 0.0f && beta <= 2.0f;
        // Rows past the chunk repeat the last sum.
        float sum = work.is_live(row) ? factors.gate[row] : 0.0f;
        for (int distance = 1; distance < 32; distance *= 2) {
            const float before = __shfl_up_sync(full_warp, sum, distance);
            sum = work.lane >= distance ? sum + before : sum;
        }
        sums[half] = sum;
    }
    sums[1] += __shfl_sync(full_warp, sums[0], 31);
    bounded = __all_sync(full_warp, bounded);
    if (params.fade != nullptr && work.lane == 31) {
        params.fade[work.chunk_index * params.value_heads + work.value_head] =
            bounded ? sums[1] * log2_e : __int_as_float(0x7F800000);
    }
    for (int half = 0; half < 2; ++half) {
        const int row = work.lane + 32 * half;
        const float gate = sums[half] * log2_e;
        factors.gate[row] = gate;
        const float block_end = __shfl_sync(full_warp, gate, work.lane | (block_rows - 1));
        factors.column[row] = decay(block_end - gate) * factors.rk[row];
        if (work.is_live(row)) {
            params.gate[work.token(row) * params.value_heads + work.value_head] = gate;
            if (work.index == 0) {
                params.rk[work.token(row) * params.heads + work.head] = factors.rk[row];
            }
        }
    }
    __syncwarp();
}

} // namespace bakewell
