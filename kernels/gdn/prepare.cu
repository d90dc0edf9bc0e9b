// What the forward scan and the backward of a chunk share and the state does not touch.
//
//   r = 1 / sqrt(sum x^2 + 1e-6) of the rows of q and k (1 without l2norm)
//   c = inclusive sum of g, log2 units;  D_ts = 2^(c_t - c_s) for s < t
//   A = (I + L)^-1,  L_ts = beta_t r_t r_s (k_t . k_s) D_ts for s < t
//
// One warp, a CTA of its own, per chunk and value head: many small CTAs hide each other's latencies, and nothing waits
// at a barrier. The first value head of a key head also stores the norms.
//
//   load k | norms of q | K K^T | L, 10 blocks of 16 x 16 | diagonal inverses | (1,0) (3,2) | the quarter below | A out
//
// K K^T has its left operands as right operands, and the squares of the rows on its diagonal. The diagonal blocks are
// inverted by substitution in f32, a lane per column; the products of blocks split their operands in two bf16 and stay
// in registers: accumulators are left operands as they are, those of a transposed product are right operands. A is
// rounded once.

#include "../device/async_copy.cuh"
#include "../device/ldmatrix.cuh"
#include "../device/split_bf16.cuh"
#include "../device/swizzled_tile.cuh"
#include "gate.cuh"
#include "prepare_params.cuh"
#include "schedule.cuh"

#include <cstdint>

namespace bakewell {

using S = Schedule;

constexpr int block_rows = 16;
constexpr int block_count = chunk_tokens / block_rows;
constexpr uint32_t full_warp = 0xFFFFFFFF;

static_assert(S::threads == 32, "a warp");

constexpr float norm_epsilon = 1e-6f;

// 16 x 16 floats; the pitch puts pairs of columns of 4 rows into different banks.
struct Block {
    float at[block_rows][24];
};

constexpr int lower_blocks = block_count * (block_count + 1) / 2;

__device__ constexpr int block_index(int i, int j) { return i * (i + 1) / 2 + j; }

using RowTile = SwizzledTile<chunk_tokens, head_bytes>;
using SquareTile = SwizzledTile<chunk_tokens, chunk_tokens * 2>;

struct SharedMap {
    union {
        RowTile k;
        // L; its diagonal blocks are transposed, and replaced by their inverses, transposed.
        Block lower[lower_blocks];
        // A on its way out.
        SquareTile inverse;
    };
    float gate[chunk_tokens];
    float rk[chunk_tokens];
    float factor[chunk_tokens]; // beta r
};

struct Work {
    uint64_t chunk_index;
    Chunk chunk;
    uint64_t value_head;
    uint64_t head;
    bool is_first; // of the key head's value heads
    int lane;
    FragmentLane fragment;

    __device__ bool is_live(int row) const { return row < static_cast<int>(chunk.tokens); }
    // A row past the chunk stands for its first: an address that exists.
    __device__ uint64_t token(int row) const {
        return chunk.first_token + static_cast<uint64_t>(is_live(row) ? row : 0);
    }
};

__device__ void load_keys(const RowTile& tile, const Params& params, const Work& work) {
    const int piece = work.lane % RowTile::pieces;
    const int first = work.lane / RowTile::pieces;
    const char* keys =
        row_of(params.k, work.chunk.first_token, params.k_token_stride, work.head, params.k_head_stride);
    const char* start = keys + piece * 16;
    const RowTile::Cursor target(tile, first, piece);
    const char* source = start + first * params.k_token_stride * 2;
#pragma unroll 8
    for (int row = 0; row < chunk_tokens; row += 2) {
        const bool live = work.is_live(first + row);
        async_copy_16(target.below(row), live ? source : start, live);
        source += 4 * params.k_token_stride;
    }
    async_copy_commit();
}

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

// 1 / norms of q. Rows are read in vectors of 16 bytes: the order of a sum is free.
__device__ void store_query_norms(const Params& params, const Work& work) {
    const auto& [group, pair] = work.fragment;
    for (int first = 0; first < chunk_tokens; first += block_rows) {
        float squares[2][4] = {};
        if (params.l2norm) {
            uint4 rows[2][4];
            for (int half = 0; half < 2; ++half) {
                const uint64_t token = work.token(first + group + 8 * half);
                const auto* row = reinterpret_cast<const uint4*>(
                    row_of(params.q, token, params.q_token_stride, work.head, params.q_head_stride));
                for (int n = 0; n < 4; ++n) {
                    rows[half][n] = row[pair + 4 * n];
                }
            }
            for (int n = 0; n < 4; ++n) {
                const uint4 a = rows[0][n];
                const uint4 b = rows[1][n];
                mma_m16n8k16<Element::bf16>(squares[0], a.x, b.x, a.y, b.y, a.x, a.y);
                mma_m16n8k16<Element::bf16>(squares[1], a.x, b.x, a.y, b.y, b.x, b.y);
                mma_m16n8k16<Element::bf16>(squares[0], a.z, b.z, a.w, b.w, a.z, a.w);
                mma_m16n8k16<Element::bf16>(squares[1], a.z, b.z, a.w, b.w, b.z, b.w);
            }
        }
        visit_diagonal(squares[0], squares[1], work.fragment, [&](int half, float square) {
            const int row = first + group + 8 * half;
            if (work.is_live(row)) {
                params.rq[work.token(row) * params.heads + work.head] = reciprocal_norm(square, params.l2norm);
            }
        });
    }
}

// K K^T by blocks of the lower triangle, two tiles of 8 columns each.
using BlockSum = float[2][4];
using KeyProducts = BlockSum[lower_blocks];

__device__ void multiply_keys(KeyProducts& products, const RowTile& k, const Work& work) {
    const RowTile::Cursor rows(k, work.lane % 16, work.lane / 16);
#pragma unroll 2
    for (int n = 0; n < head_dim / 16; ++n) {
        uint32_t a[block_count][4];
        for (int i = 0; i < block_count; ++i) {
            ldmatrix_x4(a[i], rows.at(block_rows * i, 2 * n));
        }
        for (int i = 0; i < block_count; ++i) {
            for (int j = 0; j <= i; ++j) {
                // The words of 16 rows as right operands: rows 0 to 7 are the columns of the first tile.
                auto& [low, high] = products[block_index(i, j)];
                mma_m16n8k16<Element::bf16>(low, a[i][0], a[i][1], a[i][2], a[i][3], a[j][0], a[j][2]);
                mma_m16n8k16<Element::bf16>(high, a[i][0], a[i][1], a[i][2], a[i][3], a[j][1], a[j][3]);
            }
        }
    }
}

// Norms of the keys, gate sums, and what they make of beta, for every token.
__device__ void make_factors(SharedMap& shared, const KeyProducts& products, const Params& params, const Work& work) {
    for (int i = 0; i < block_count; ++i) {
        const auto& [low, high] = products[block_index(i, i)];
        visit_diagonal(low, high, work.fragment, [&](int half, float square) {
            shared.rk[block_rows * i + work.fragment.group + 8 * half] = reciprocal_norm(square, params.l2norm);
        });
    }
    __syncwarp();
    float sums[2];
    for (int half = 0; half < 2; ++half) {
        const int row = work.lane + 32 * half;
        const uint64_t token = work.token(row);
        const float beta = load_beta(params.beta, params.beta_bf16, token * params.beta_token_stride + work.value_head);
        shared.factor[row] = beta * shared.rk[row];
        // Rows past the chunk repeat the last sum.
        const float g = params.g[token * params.g_token_stride + work.value_head];
        float sum = work.is_live(row) ? g : 0.0f;
        for (int distance = 1; distance < 32; distance *= 2) {
            const float before = __shfl_up_sync(full_warp, sum, distance);
            sum = work.lane >= distance ? sum + before : sum;
        }
        sums[half] = sum;
    }
    sums[1] += __shfl_sync(full_warp, sums[0], 31);
    for (int half = 0; half < 2; ++half) {
        const int row = work.lane + 32 * half;
        const float gate = sums[half] * log2_e;
        shared.gate[row] = gate;
        if (work.is_live(row)) {
            params.gate[work.token(row) * params.value_heads + work.value_head] = gate;
            if (work.is_first) {
                params.rk[work.token(row) * params.heads + work.head] = shared.rk[row];
            }
        }
    }
    __syncwarp();
}

// L in place of the keys.
__device__ void make_lower(SharedMap& shared, const KeyProducts& products, const Work& work) {
    const auto& [group, pair] = work.fragment;
#pragma unroll
    for (int i = 0; i < block_count; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int r = group + 8 * half;
            const int row = block_rows * i + r;
            const float factor = shared.factor[row];
            const float gate = shared.gate[row];
            const bool live = work.is_live(row);
#pragma unroll
            for (int tile = 0; tile < 2 * i + 2; ++tile) {
                const int column = 8 * tile + 2 * pair;
                const float2 rk = *reinterpret_cast<const float2*>(&shared.rk[column]);
                const float2 gates = *reinterpret_cast<const float2*>(&shared.gate[column]);
                const auto& sums = products[block_index(i, tile / 2)][tile % 2];
                // r_t r_s may exceed f32 where both rows are zero; r_t (k . k) r_s does not.
                const float first = factor * sums[2 * half] * rk.x * decay(gate - gates.x);
                const float second = factor * sums[2 * half + 1] * rk.y * decay(gate - gates.y);
                auto& block = shared.lower[block_index(i, tile / 2)].at;
                const int c = column % block_rows;
                if (tile / 2 == i) {
                    block[c][r] = live && c < r ? first : 0.0f;
                    block[c + 1][r] = live && c + 1 < r ? second : 0.0f;
                } else {
                    *reinterpret_cast<float2*>(&block[r][c]) = live ? make_float2(first, second) : make_float2(0, 0);
                }
            }
        }
    }
    __syncwarp();
}

// Inverses of two neighbouring diagonal blocks of I + L, a lane per column.
__device__ void invert_diagonal(SharedMap& shared, int first, int lane) {
    const int i = first + lane / block_rows;
    auto& lower = shared.lower[block_index(i, i)].at;
    const int column = lane % block_rows;
    float x[block_rows];
#pragma unroll
    for (int r = 0; r < block_rows; ++r) {
        x[r] = r == column ? 1.0f : 0.0f;
    }
#pragma unroll
    for (int m = 0; m < block_rows - 1; ++m) {
#pragma unroll
        for (int r = m / 4 * 4; r < block_rows; r += 4) {
            const float4 l = *reinterpret_cast<const float4*>(&lower[m][r]);
            const float four[4] = {l.x, l.y, l.z, l.w};
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                if (r + e > m) {
                    x[r + e] = fmaf(-four[e], x[m], x[r + e]);
                }
            }
        }
    }
    // All lanes have read L before its place is taken.
    __syncwarp();
#pragma unroll
    for (int r = 0; r < block_rows; r += 4) {
        *reinterpret_cast<float4*>(&lower[column][r]) = make_float4(x[r], x[r + 1], x[r + 2], x[r + 3]);
    }
}

// Four pairs of neighbours along the sum, split: a left operand of 16 rows, or a right operand of 16 columns.
struct Operand {
    SplitPair at[4];

    // Left: the block as it lies.
    static __device__ Operand rows_of(const Block& block, const FragmentLane& lane) {
        Operand operand;
        for (int n = 0; n < 4; ++n) {
            const float* row = block.at[lane.group + n % 2 * 8];
            operand.at[n] = SplitPair::of(*reinterpret_cast<const float2*>(row + 2 * lane.pair + n / 2 * 8));
        }
        return operand;
    }

    // Left: the block transposed.
    static __device__ Operand columns_of(const Block& block, const FragmentLane& lane) {
        Operand operand;
        for (int n = 0; n < 4; ++n) {
            const int row = lane.group + n % 2 * 8;
            const int column = 2 * lane.pair + n / 2 * 8;
            operand.at[n] = SplitPair::of(block.at[column][row], block.at[column + 1][row]);
        }
        return operand;
    }

    // Left: accumulators.
    static __device__ Operand of(const BlockSum& sum) {
        return {SplitPair::of(sum[0][0], sum[0][1]), SplitPair::of(sum[0][2], sum[0][3]),
                SplitPair::of(sum[1][0], sum[1][1]), SplitPair::of(sum[1][2], sum[1][3])};
    }
};

// sum += left right^T: the rows of `right`, a left operand too, are the columns.
__device__ void add_product(BlockSum& sum, const Operand& left, const Operand& right) {
    for (int tile = 0; tile < 2; ++tile) {
        const SplitPair columns[2] = {right.at[tile], right.at[tile + 2]};
        mma_split(sum[tile], left.at, columns);
    }
}

__device__ void negate(BlockSum& sum) {
    for (auto& tile : sum) {
        for (float& element : tile) {
            element = -element;
        }
    }
}

// A rounded, through its place in shared memory.
struct InverseWords {
    uint32_t at[lower_blocks][4];

    __device__ void set(int i, int j, const BlockSum& sum) {
        for (int n = 0; n < 4; ++n) {
            at[block_index(i, j)][n] = pack<Element::bf16>(sum[n / 2][n % 2 * 2], sum[n / 2][n % 2 * 2 + 1]);
        }
    }

    // Rows of a block that is stored transposed.
    __device__ void set_diagonal(int i, const Block& block, const FragmentLane& lane) {
        for (int n = 0; n < 4; ++n) {
            const int row = lane.group + n % 2 * 8;
            const int column = 2 * lane.pair + n / 2 * 8;
            at[block_index(i, i)][n] = pack<Element::bf16>(block.at[column][row], block.at[column + 1][row]);
        }
    }
};

// The blocks below the diagonal, X_ij = -sum_m X_im L_ml X_lj:
//   X_10 = -X_11 L_10 X_00, transposed; X_32 = -X_33 L_32 X_22; then T_mj = sum_l L_ml X_lj for m in 2, 3 and j in 0,
//   1, transposed; X_2j = -X_22 T_2j; X_3j = -X_32 T_2j - X_33 T_3j.
__device__ void make_inverse(InverseWords& words, const SharedMap& shared, const Work& work) {
    const FragmentLane& lane = work.fragment;
    const auto lower = [&](int i, int j) -> const Block& { return shared.lower[block_index(i, j)]; };
    for (int i = 0; i < block_count; ++i) {
        words.set_diagonal(i, lower(i, i), lane);
    }
    const Operand x00_t = Operand::rows_of(lower(0, 0), lane);
    const Operand x11_t = Operand::rows_of(lower(1, 1), lane);
    BlockSum u_t = {};
    add_product(u_t, x00_t, Operand::rows_of(lower(1, 0), lane));
    BlockSum x10_t = {};
    add_product(x10_t, Operand::of(u_t), Operand::columns_of(lower(1, 1), lane));
    negate(x10_t);
    // As it lies, for the output: the lanes transpose their 8 x 8 matrices.
    for (int n = 0; n < 4; ++n) {
        const auto& sums = x10_t[n % 2];
        words.at[block_index(1, 0)][n] =
            transpose_8x8(pack<Element::bf16>(sums[n / 2 * 2], sums[n / 2 * 2 + 1]));
    }

    const Operand x33 = Operand::columns_of(lower(3, 3), lane);
    BlockSum v_t = {};
    add_product(v_t, Operand::rows_of(lower(2, 2), lane), Operand::rows_of(lower(3, 2), lane));
    BlockSum x32 = {};
    add_product(x32, x33, Operand::of(v_t));
    negate(x32);
    words.set(3, 2, x32);

    const Operand x10_left = Operand::of(x10_t);
    BlockSum t_t[2][2] = {};
    for (int m = 0; m < 2; ++m) {
        const Operand l0 = Operand::rows_of(lower(2 + m, 0), lane);
        const Operand l1 = Operand::rows_of(lower(2 + m, 1), lane);
        add_product(t_t[m][0], x00_t, l0);
        add_product(t_t[m][0], x10_left, l1);
        add_product(t_t[m][1], x11_t, l1);
    }
    const Operand x22 = Operand::columns_of(lower(2, 2), lane);
    const Operand x32_left = Operand::of(x32);
    for (int j = 0; j < 2; ++j) {
        const Operand t2 = Operand::of(t_t[0][j]);
        const Operand t3 = Operand::of(t_t[1][j]);
        BlockSum x2 = {};
        add_product(x2, x22, t2);
        negate(x2);
        words.set(2, j, x2);
        BlockSum x3 = {};
        add_product(x3, x32_left, t2);
        add_product(x3, x33, t3);
        negate(x3);
        words.set(3, j, x3);
    }
}

__device__ void store_inverse(SharedMap& shared, const InverseWords& words, const Params& params, const Work& work) {
    const SquareTile::Cursor target(shared.inverse, work.lane % 16, work.lane / 16);
    // All lanes have read the blocks.
    __syncwarp();
    for (int i = 0; i < block_count; ++i) {
        for (int j = 0; j <= i; ++j) {
            const auto& w = words.at[block_index(i, j)];
            stmatrix_x4(target.at(block_rows * i, 2 * j), w[0], w[1], w[2], w[3]);
        }
    }
    __syncwarp();
    const uint64_t matrix = work.chunk_index * params.value_heads + work.value_head;
    constexpr int pieces = SquareTile::pieces;
    auto* out = static_cast<uint4*>(params.a) + matrix * (chunk_tokens * pieces) + work.lane;
    const int piece = work.lane % pieces;
    // A warp stores four rows of 8 pieces at once.
    const SquareTile::Cursor source(shared.inverse, work.lane / pieces, piece);
    for (int row = 0; row < chunk_tokens; row += 4) {
        const bool above = piece / 2 > row / block_rows;
        out[row * pieces] = above ? make_uint4(0, 0, 0, 0) : load_piece(source.below(row));
    }
}

__device__ void prepare(SharedMap& shared, const Params& params, const Work& work) {
    load_keys(shared.k, params, work);
    if (work.is_first) {
        store_query_norms(params, work);
    }
    async_copy_wait<0>();
    __syncwarp();
    KeyProducts products = {};
    multiply_keys(products, shared.k, work);
    make_factors(shared, products, params, work);
    make_lower(shared, products, work);
    invert_diagonal(shared, 0, work.lane);
    invert_diagonal(shared, 2, work.lane);
    __syncwarp();
    InverseWords words;
    make_inverse(words, shared, work);
    store_inverse(shared, words, params, work);
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, bakewell::Schedule::min_ctas_per_sm)
    gdn_prepare(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(256) char shared_bytes[];
    static_assert(sizeof(SharedMap) == S::dynamic_shared_bytes, "the schedule's budget");
    auto& shared = *reinterpret_cast<SharedMap*>(shared_bytes);

    const uint32_t chunk_index = blockIdx.x / params.value_heads;
    const uint32_t value_head = blockIdx.x % params.value_heads;
    const uint32_t group = params.value_heads / params.heads;
    const int lane = static_cast<int>(threadIdx.x);
    const Work work{chunk_index, params.chunks[chunk_index], value_head, value_head / group, value_head % group == 0,
                    lane, FragmentLane::of(lane)};
    if (work.chunk.tokens > 0) {
        prepare(shared, params, work);
    }
}
