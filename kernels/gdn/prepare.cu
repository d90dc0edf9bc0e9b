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
// The diagonal blocks are inverted by substitution in f32, a lane per column; the other blocks never leave the registers
// they were made in. Their products split operands in two bf16: accumulators are left operands as they are, those of a
// transposed product are right operands. A is rounded once.

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

using SquareTile = SwizzledTile<chunk_tokens, chunk_tokens * 2>;

// A quarter of every key of a chunk.
struct KeyQuarter {
    uint4 pieces[chunk_tokens][4];
};

constexpr int key_quarters = head_bytes / static_cast<int>(sizeof(KeyQuarter::pieces[0]));
constexpr int quarters_in_flight = 2;

struct SharedMap {
    union {
        KeyQuarter keys[quarters_in_flight];
        // -L of diagonal blocks, transposed; what is not below the diagonal is not meant. Then the inverses, transposed.
        Block diagonal[block_count];
        // A on its way out.
        SquareTile inverse;
    };
    float gate[chunk_tokens];   // of each token alone at first
    float rk[chunk_tokens];
    float row[chunk_tokens];    // beta at first, then -beta r; 0 past the chunk
    float column[chunk_tokens]; // r 2^(c of the block's last row - c)
};

struct Work {
    uint64_t chunk_index;
    Chunk chunk;
    uint64_t value_head;
    uint64_t head;
    uint64_t index; // among the key head's value heads
    uint64_t group; // of them
    int lane;
    FragmentLane fragment;

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

// 1 / norms of q, of blocks of rows that the value heads of a key head take in turn.
__device__ void store_query_norms(const Params& params, const Work& work) {
    const char* q = row_of(params.q, work.chunk.first_token, params.q_token_stride, work.head, params.q_head_stride);
#pragma unroll 1
    for (uint64_t first = block_rows * work.index; first < chunk_tokens; first += block_rows * work.group) {
        float squares[2][4] = {};
        if (params.l2norm) {
            uint4 rows[2][4];
            for (int half = 0; half < 2; ++half) {
                const uint64_t row = first + work.fragment.group + 8 * half;
                const char* piece = q + row * (params.q_token_stride * 2) + work.piece();
                for (int n = 0; n < 4; ++n) {
                    rows[half][n] = row < work.chunk.tokens ? *reinterpret_cast<const uint4*>(piece + n * piece_bytes)
                                                            : make_uint4(0, 0, 0, 0);
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
            const int row = static_cast<int>(first) + work.fragment.group + 8 * half;
            if (work.is_live(row)) {
                params.rq[work.token(row) * params.heads + work.head] = reciprocal_norm(square, params.l2norm);
            }
        });
    }
}

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

// K K^T by blocks of the lower triangle, two tiles of 8 columns each.
using BlockSum = float[2][4];
using KeyProducts = BlockSum[lower_blocks];

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

    __device__ void store(SharedMap& shared, int lane) const {
        for (int half = 0; half < 2; ++half) {
            shared.gate[lane + 32 * half] = gate[half];
            shared.row[lane + 32 * half] = beta[half];
        }
    }
};

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
    bool bounded = params.l2norm;
    for (int half = 0; half < 2; ++half) {
        const int row = work.lane + 32 * half;
        const float beta = shared.row[row];
        shared.row[row] = work.is_live(row) ? -beta * shared.rk[row] : 0.0f;
        bounded = bounded && beta >= 0.0f && beta <= 2.0f;
        // Rows past the chunk repeat the last sum.
        float sum = work.is_live(row) ? shared.gate[row] : 0.0f;
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
        shared.gate[row] = gate;
        const float block_end = __shfl_sync(full_warp, gate, work.lane | (block_rows - 1));
        shared.column[row] = decay(block_end - gate) * shared.rk[row];
        if (work.is_live(row)) {
            params.gate[work.token(row) * params.value_heads + work.value_head] = gate;
            if (work.index == 0) {
                params.rk[work.token(row) * params.heads + work.head] = shared.rk[row];
            }
        }
    }
    __syncwarp();
}

// -L: in place, and to shared memory where it is a diagonal block. Decays of other blocks are products of two, with the
// last row of the column's block between them. Rows past the chunk are 0: their keys are, and their factors.
__device__ void make_lower(SharedMap& shared, KeyProducts& products, const Work& work) {
    const auto& [group, pair] = work.fragment;
#pragma unroll
    for (int i = 0; i < block_count; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int r = group + 8 * half;
            const int row = block_rows * i + r;
            const float factor = shared.row[row];
            const float gate = shared.gate[row];
#pragma unroll
            for (int j = 0; j < i; ++j) {
                const float row_factor = factor * decay(gate - shared.gate[block_rows * j + block_rows - 1]);
#pragma unroll
                for (int tile = 0; tile < 2; ++tile) {
                    const int column = block_rows * j + 8 * tile + 2 * pair;
                    const float2 column_factors = *reinterpret_cast<const float2*>(&shared.column[column]);
                    auto& sums = products[block_index(i, j)][tile];
                    // r_t r_s may exceed f32 where both rows are zero; r_t (k . k) r_s does not.
                    sums[2 * half] = row_factor * sums[2 * half] * column_factors.x;
                    sums[2 * half + 1] = row_factor * sums[2 * half + 1] * column_factors.y;
                }
            }
#pragma unroll
            for (int tile = 0; tile <= half; ++tile) {
                const int c = 8 * tile + 2 * pair;
                const float2 rk = *reinterpret_cast<const float2*>(&shared.rk[block_rows * i + c]);
                const float2 gates = *reinterpret_cast<const float2*>(&shared.gate[block_rows * i + c]);
                const auto& sums = products[block_index(i, i)][tile];
                auto& block = shared.diagonal[i].at;
                block[c][r] = factor * sums[2 * half] * rk.x * decay(gate - gates.x);
                block[c + 1][r] = factor * sums[2 * half + 1] * rk.y * decay(gate - gates.y);
            }
        }
    }
    __syncwarp();
}

// Inverses of two neighbouring diagonal blocks of I + L, a lane per column.
__device__ void invert_diagonal(SharedMap& shared, int first, int lane) {
    const int i = first + lane / block_rows;
    auto& lower = shared.diagonal[i].at;
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
                    x[r + e] = fmaf(four[e], x[m], x[r + e]);
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

// The blocks below the diagonal, with N = -L: X_ij = sum_m X_im N_ml X_lj.
//   X_10 = X_11 N_10 X_00, transposed; X_32 = X_33 N_32 X_22; then T_mj = sum_l N_ml X_lj for m in 2, 3 and j in 0, 1,
//   transposed; X_2j = X_22 T_2j; X_3j = X_32 T_2j + X_33 T_3j.
__device__ void make_inverse(InverseWords& words, const SharedMap& shared, const KeyProducts& lower, const Work& work) {
    const FragmentLane& lane = work.fragment;
    const auto& diagonal = shared.diagonal;
    const auto below = [&](int i, int j) { return Operand::of(lower[block_index(i, j)]); };
    const Operand x00_t = Operand::rows_of(diagonal[0], lane);
    const Operand x11_t = Operand::rows_of(diagonal[1], lane);
    BlockSum u_t = {};
    add_product(u_t, x00_t, below(1, 0));
    BlockSum x10_t = {};
    add_product(x10_t, Operand::of(u_t), Operand::columns_of(diagonal[1], lane));
    // As it lies, for the output: the lanes transpose their 8 x 8 matrices.
    for (int n = 0; n < 4; ++n) {
        const auto& sums = x10_t[n % 2];
        words.at[block_index(1, 0)][n] =
            transpose_8x8(pack<Element::bf16>(sums[n / 2 * 2], sums[n / 2 * 2 + 1]));
    }

    const Operand x33 = Operand::columns_of(diagonal[3], lane);
    BlockSum v_t = {};
    add_product(v_t, Operand::rows_of(diagonal[2], lane), below(3, 2));
    BlockSum x32 = {};
    add_product(x32, x33, Operand::of(v_t));
    words.set(3, 2, x32);

    const Operand x10_left = Operand::of(x10_t);
    BlockSum t_t[2][2] = {};
    for (int m = 0; m < 2; ++m) {
        const Operand n1 = below(2 + m, 1);
        add_product(t_t[m][0], x00_t, below(2 + m, 0));
        add_product(t_t[m][0], x10_left, n1);
        add_product(t_t[m][1], x11_t, n1);
    }
    const Operand x22 = Operand::columns_of(diagonal[2], lane);
    const Operand x32_left = Operand::of(x32);
    for (int j = 0; j < 2; ++j) {
        const Operand t2 = Operand::of(t_t[0][j]);
        const Operand t3 = Operand::of(t_t[1][j]);
        BlockSum x2 = {};
        add_product(x2, x22, t2);
        words.set(2, j, x2);
        BlockSum x3 = {};
        add_product(x3, x32_left, t2);
        add_product(x3, x33, t3);
        words.set(3, j, x3);
    }
    for (int i = 0; i < block_count; ++i) {
        words.set_diagonal(i, diagonal[i], lane);
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
    for (int quarter = 0; quarter < quarters_in_flight; ++quarter) {
        start_keys(shared, quarter, params, work);
        async_copy_commit();
    }
    const Scalars scalars(params, work);
    store_query_norms(params, work);
    scalars.store(shared, work.lane);
    KeyProducts products = {};
    multiply_keys(products, shared, params, work);
    // All lanes have read the keys before their place is taken.
    __syncwarp();
    make_factors(shared, products, params, work);
    make_lower(shared, products, work);
    invert_diagonal(shared, 0, work.lane);
    invert_diagonal(shared, 2, work.lane);
    __syncwarp();
    InverseWords words;
    make_inverse(words, shared, products, work);
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
    const Work work{chunk_index,
                    params.chunks[chunk_index],
                    value_head,
                    value_head / group,
                    value_head % group,
                    group,
                    lane,
                    FragmentLane::of(lane)};
    if (work.chunk.tokens > 0) {
        prepare(shared, params, work);
    }
}
