// What the forward scan and the backward of a chunk share and the state does not touch.
//
//   r = 1 / sqrt(sum x^2 + 1e-6) of the rows of q and k (1 without l2norm)
//   c = inclusive sum of g, log2 units;  D_ts = 2^(c_t - c_s) for s < t
//   A = (I + L)^-1,  L_ts = beta_t r_t r_s (k_t . k_s) D_ts for s < t
//
// One CTA per chunk and key head: keys are read once, K K^T once, and the inverse is made for each value head of the
// group in turn. L and A are 4 x 4 blocks of 16; warp w owns block row w.
//
//   once       | load q, k | norms, K K^T in registers |
//   per head   | gate sums, L | diagonal: substitution, a lane per column | (1,0) (3,2): two products | quarter: four | A |
//   barriers                  every warp on its own                        ^                           ^              ^
//
// Substitution and L are f32; the products of blocks split their operands in two bf16. A is rounded once, when stored.

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

static_assert(S::threads == block_count * 32, "a warp per block row");

constexpr float norm_epsilon = 1e-6f;

// 16 x 16 floats; the pitch puts pairs of columns of 4 rows into different banks.
struct Block {
    float at[block_rows][24];
};

constexpr int lower_blocks = block_count * (block_count + 1) / 2;

__device__ constexpr int block_index(int i, int j) { return i * (i + 1) / 2 + j; }

using RowTile = SwizzledTile<chunk_tokens, head_bytes>;

struct SharedMap {
    union {
        struct {
            RowTile q;
            RowTile k;
        } rows;
        struct {
            // L. A diagonal block is stored transposed, and replaced by its inverse, transposed; block (1, 0) is replaced by
            // the inverse's, transposed.
            Block lower[lower_blocks];
            Block inverse[lower_blocks];
        } blocks;
    };
    float gate[block_count][chunk_tokens]; // of each warp
    float rk[chunk_tokens];
};

// Which chunk and heads; where the lane stands in a fragment.
struct Work {
    uint64_t chunk_index;
    Chunk chunk;
    uint32_t head;
    int warp;
    int lane;
    FragmentLane fragment;

    // Rows of the chunk that this lane's fragments hold.
    __device__ int row(int half) const { return warp * block_rows + fragment.group + 8 * half; }
};

__device__ void load_rows(const RowTile& tile, const Work& work, const void* base, uint64_t token_stride,
                          uint64_t head_stride) {
    constexpr int step = S::threads / RowTile::pieces;
    const int piece = static_cast<int>(threadIdx.x) % RowTile::pieces;
    const int first = static_cast<int>(threadIdx.x) / RowTile::pieces;
    const RowTile::Cursor target(tile, first, piece);
    const char* start = row_of(base, work.chunk.first_token, token_stride, work.head, head_stride) + piece * 16;
    const char* source = start + first * token_stride * 2;
#pragma unroll
    for (int i = 0; i < chunk_tokens / step; ++i) {
        const bool live = first + i * step < static_cast<int>(work.chunk.tokens);
        // A row past the chunk reads nothing, but its address exists.
        async_copy_16(target.at(i * step, 0), live ? source : start, live);
        source += step * token_stride * 2;
    }
}

// The warp's 16 rows as left operands of steps of 16 columns.
__device__ RowTile::Cursor own_rows(const RowTile& tile, const Work& work) {
    return RowTile::Cursor(tile, work.warp * block_rows + work.lane % 16, work.lane / 16);
}

__device__ void add_squares(float (&sums)[2], const uint32_t (&a)[4]) {
    for (int i = 0; i < 4; ++i) {
        const float low = __uint_as_float(a[i] << 16);
        const float high = __uint_as_float(a[i] & 0xFFFF0000);
        sums[i & 1] = fmaf(high, high, fmaf(low, low, sums[i & 1]));
    }
}

// 1 / norm of the lane's two rows, out of the sums of the four lanes that share them.
__device__ void reciprocal_norms(float (&sums)[2], bool l2norm) {
    for (float& sum : sums) {
        sum += __shfl_xor_sync(full_warp, sum, 1);
        sum += __shfl_xor_sync(full_warp, sum, 2);
        sum = l2norm ? rsqrtf(sum + norm_epsilon) : 1.0f;
    }
}

__device__ void store_norms(float* out, const float (&norms)[2], const Params& params, const Work& work) {
    for (int half = 0; half < 2; ++half) {
        if (work.fragment.pair == 0 && work.row(half) < static_cast<int>(work.chunk.tokens)) {
            const uint64_t token = work.chunk.first_token + work.row(half);
            out[token * params.heads + work.head] = norms[half];
        }
    }
}

// Products of the warp's rows with all rows up to its last, 8 columns each.
using KeyProducts = float[2 * block_count][4];

__device__ void multiply_keys(KeyProducts& products, float (&squares)[2], const RowTile& k, const Work& work) {
    const RowTile::Cursor own = own_rows(k, work);
    const RowTile::Cursor all(k, work.lane / 16 * 8 + work.lane % 8, work.lane / 8 % 2);
#pragma unroll 2
    for (int i = 0; i < head_dim / 16; ++i) {
        uint32_t a[4];
        ldmatrix_x4(a, own.at(0, 2 * i));
        add_squares(squares, a);
#pragma unroll
        for (int j = 0; j < block_count; ++j) {
            if (j <= work.warp) {
                uint32_t b[4];
                ldmatrix_x4(b, all.at(16 * j, 2 * i));
                mma_m16n8k16<Element::bf16>(products[2 * j], a[0], a[1], a[2], a[3], b[0], b[1]);
                mma_m16n8k16<Element::bf16>(products[2 * j + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
            }
        }
    }
}

// Inclusive sums of g over the chunk into the warp's table; rows past the chunk repeat the last.
__device__ void sum_gates(float (&table)[chunk_tokens], const Params& params, const Work& work, uint64_t value_head) {
    float sums[2];
    for (int half = 0; half < 2; ++half) {
        const int row = work.lane + 32 * half;
        const bool live = row < static_cast<int>(work.chunk.tokens);
        const uint64_t token = work.chunk.first_token + row;
        float sum = live ? params.g[token * params.g_token_stride + value_head] : 0.0f;
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
        table[row] = gate;
        if (work.warp == 0 && row < static_cast<int>(work.chunk.tokens)) {
            const uint64_t token = work.chunk.first_token + row;
            params.gate[token * params.value_heads + value_head] = gate;
        }
    }
}

// The warp's block row of L.
__device__ void make_lower(SharedMap& shared, const KeyProducts& products, const float (&rk)[2], const Params& params,
                           const Work& work, uint64_t value_head) {
    const auto& gate = shared.gate[work.warp];
    const int tokens = static_cast<int>(work.chunk.tokens);
    float factor[2];
    for (int half = 0; half < 2; ++half) {
        const bool live = work.row(half) < tokens;
        const uint64_t token = work.chunk.first_token + (live ? work.row(half) : 0);
        factor[half] =
            load_beta(params.beta, params.beta_bf16, token * params.beta_token_stride + value_head) * rk[half];
    }
#pragma unroll
    for (int j = 0; j < 2 * block_count; ++j) {
        if (j < 2 * work.warp + 2) {
            const int column = 8 * j + 2 * work.fragment.pair;
            auto& block = shared.blocks.lower[block_index(work.warp, j / 2)].at;
            for (int half = 0; half < 2; ++half) {
                const int row = work.row(half);
                float pair[2];
                for (int e = 0; e < 2; ++e) {
                    // r_t r_s may exceed f32 where both rows are zero; r_t (k . k) r_s does not.
                    const float product = factor[half] * products[j][2 * half + e] * shared.rk[column + e];
                    const float value = product * decay(gate[row] - gate[column + e]);
                    pair[e] = column + e < row && row < tokens ? value : 0.0f;
                }
                const int r = row % block_rows;
                const int c = column % block_rows;
                if (j / 2 == work.warp) {
                    block[c][r] = pair[0];
                    block[c + 1][r] = pair[1];
                } else {
                    *reinterpret_cast<float2*>(&block[r][c]) = make_float2(pair[0], pair[1]);
                }
            }
        }
    }
}

// Inverse of the warp's diagonal block of I + L, a lane per column.
__device__ void invert_diagonal(SharedMap& shared, const Work& work) {
    auto& lower = shared.blocks.lower[block_index(work.warp, work.warp)].at;
    auto& inverse = shared.blocks.inverse[block_index(work.warp, work.warp)].at;
    const int column = work.lane % block_rows;
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
    if (work.lane < block_rows) {
#pragma unroll
        for (int r = 0; r < block_rows; ++r) {
            inverse[r][column] = x[r];
        }
#pragma unroll
        for (int r = 0; r < block_rows; r += 4) {
            *reinterpret_cast<float4*>(&lower[column][r]) = make_float4(x[r], x[r + 1], x[r + 2], x[r + 3]);
        }
    }
}

// Operands of products of blocks. A left operand is a block as it lies; a right operand B a block whose rows are the
// columns of B, so that pairs along the sum are neighbours.
__device__ void load_left(SplitPair (&a)[4], const Block& block, const FragmentLane& lane) {
    for (int i = 0; i < 4; ++i) {
        const float* row = block.at[lane.group + 8 * (i & 1)];
        a[i] = SplitPair::of(*reinterpret_cast<const float2*>(row + 2 * lane.pair + 8 * (i >> 1)));
    }
}

__device__ void load_right(SplitPair (&b)[2], const Block& block, const FragmentLane& lane, int tile) {
    for (int i = 0; i < 2; ++i) {
        const float* row = block.at[8 * tile + lane.group];
        b[i] = SplitPair::of(*reinterpret_cast<const float2*>(row + 2 * lane.pair + 8 * i));
    }
}

// A 16 x 16 accumulator: two tiles of 8 columns.
using BlockSum = float[2][4];

// sum^T += X^T L^T: X is given transposed, L as it lies.
__device__ void add_transposed(BlockSum& sum, const Block& x_transposed, const Block& l, const FragmentLane& lane) {
    SplitPair a[4];
    load_left(a, x_transposed, lane);
    for (int tile = 0; tile < 2; ++tile) {
        SplitPair b[2];
        load_right(b, l, lane, tile);
        mma_split(sum[tile], a, b);
    }
}

// sum += X T, T given by the accumulators of T^T: its rows are the columns of T already.
__device__ void add_product(BlockSum& sum, const Block& x, const BlockSum& t_transposed, const FragmentLane& lane) {
    SplitPair a[4];
    load_left(a, x, lane);
    for (int tile = 0; tile < 2; ++tile) {
        const SplitPair b[2] = {SplitPair::of(t_transposed[0][2 * tile], t_transposed[0][2 * tile + 1]),
                                SplitPair::of(t_transposed[1][2 * tile], t_transposed[1][2 * tile + 1])};
        mma_split(sum[tile], a, b);
    }
}

// Stores -sum as it lies.
__device__ void store_negated(Block& block, const BlockSum& sum, const FragmentLane& lane) {
    for (int tile = 0; tile < 2; ++tile) {
        for (int half = 0; half < 2; ++half) {
            *reinterpret_cast<float2*>(&block.at[lane.group + 8 * half][8 * tile + 2 * lane.pair]) =
                make_float2(-sum[tile][2 * half], -sum[tile][2 * half + 1]);
        }
    }
}

// From inverses of 16 rows to inverses of 32: X_ij = -X_ii L_ij X_jj for (1, 0) and (3, 2).
__device__ void invert_pairs(SharedMap& shared, const Work& work) {
    auto& [lower, inverse] = shared.blocks;
    const int i = work.warp;
    if (i % 2 == 0) {
        return;
    }
    const int j = i - 1;
    BlockSum t_transposed = {};
    add_transposed(t_transposed, lower[block_index(j, j)], lower[block_index(i, j)], work.fragment);
    BlockSum x = {};
    add_product(x, inverse[block_index(i, i)], t_transposed, work.fragment);
    store_negated(inverse[block_index(i, j)], x, work.fragment);
    if (i == 1) {
        auto& transposed = lower[block_index(1, 0)].at;
        __syncwarp();
        for (int tile = 0; tile < 2; ++tile) {
            for (int e = 0; e < 4; ++e) {
                transposed[8 * tile + 2 * work.fragment.pair + e % 2][work.fragment.group + e / 2 * 8] = -x[tile][e];
            }
        }
    }
}

// From 32 to 64, a 16 x 16 quarter per warp: X_ij = -sum_m X_im (sum_l L_ml X_lj), m in 2..i, l in j..1.
__device__ void invert_quarters(SharedMap& shared, const Work& work) {
    auto& [lower, inverse] = shared.blocks;
    const int i = 2 + work.warp / 2;
    const int j = work.warp % 2;
    BlockSum x = {};
    for (int m = 2; m <= i; ++m) {
        BlockSum t_transposed = {};
        for (int l = j; l < 2; ++l) {
            add_transposed(t_transposed, lower[block_index(l, j)], lower[block_index(m, l)], work.fragment);
        }
        add_product(x, inverse[block_index(i, m)], t_transposed, work.fragment);
    }
    store_negated(inverse[block_index(i, j)], x, work.fragment);
}

__device__ void store_inverse(const SharedMap& shared, const Params& params, const Work& work, uint64_t value_head) {
    constexpr int row_pieces = chunk_tokens * 2 / 16;
    const uint64_t matrix = work.chunk_index * params.value_heads + value_head;
    auto* out = static_cast<uint4*>(params.a) + matrix * (chunk_tokens * row_pieces);
    const int piece = threadIdx.x % row_pieces;
    for (int row = static_cast<int>(threadIdx.x) / row_pieces; row < chunk_tokens; row += S::threads / row_pieces) {
        uint4 packed = make_uint4(0, 0, 0, 0);
        if (piece / 2 <= row / block_rows) {
            const auto& block = shared.blocks.inverse[block_index(row / block_rows, piece / 2)].at;
            const auto* values = reinterpret_cast<const float4*>(&block[row % block_rows][piece % 2 * 8]);
            const float4 low = values[0];
            const float4 high = values[1];
            packed.x = pack<Element::bf16>(low.x, low.y);
            packed.y = pack<Element::bf16>(low.z, low.w);
            packed.z = pack<Element::bf16>(high.x, high.y);
            packed.w = pack<Element::bf16>(high.z, high.w);
        }
        out[row * row_pieces + piece] = packed;
    }
}

__device__ void prepare(SharedMap& shared, const Params& params, const Work& work) {
    float norms[2] = {0.0f, 0.0f};
    float rk[2] = {0.0f, 0.0f};
    KeyProducts products = {};
    load_rows(shared.rows.k, work, params.k, params.k_token_stride, params.k_head_stride);
    if (params.l2norm) {
        load_rows(shared.rows.q, work, params.q, params.q_token_stride, params.q_head_stride);
    }
    async_copy_commit();
    async_copy_wait<0>();
    __syncthreads();
    multiply_keys(products, rk, shared.rows.k, work);
    reciprocal_norms(rk, params.l2norm);
    if (params.l2norm) {
        const RowTile::Cursor own = own_rows(shared.rows.q, work);
        for (int i = 0; i < head_dim / 16; ++i) {
            uint32_t a[4];
            ldmatrix_x4(a, own.at(0, 2 * i));
            add_squares(norms, a);
        }
    }
    reciprocal_norms(norms, params.l2norm);
    store_norms(params.rq, norms, params, work);
    store_norms(params.rk, rk, params, work);
    for (int half = 0; half < 2; ++half) {
        if (work.fragment.pair == 0) {
            shared.rk[work.row(half)] = rk[half];
        }
    }
    // Ends the use of the rows, whose place the blocks take.
    __syncthreads();

    const uint32_t group = params.value_heads / params.heads;
    for (uint32_t member = 0; member < group; ++member) {
        const uint64_t value_head = static_cast<uint64_t>(work.head) * group + member;
        sum_gates(shared.gate[work.warp], params, work, value_head);
        __syncwarp();
        make_lower(shared, products, rk, params, work, value_head);
        __syncwarp();
        invert_diagonal(shared, work);
        __syncthreads();
        invert_pairs(shared, work);
        __syncthreads();
        invert_quarters(shared, work);
        __syncthreads();
        store_inverse(shared, params, work, value_head);
        // The next head replaces the blocks.
        __syncthreads();
    }
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, bakewell::Schedule::min_ctas_per_sm)
    gdn_prepare(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(256) char shared_bytes[];
    static_assert(sizeof(SharedMap) == S::dynamic_shared_bytes, "the schedule's budget");
    auto& shared = *reinterpret_cast<SharedMap*>(shared_bytes);

    const uint32_t chunk_index = blockIdx.x / params.heads;
    const int lane = threadIdx.x % 32;
    const Work work{chunk_index, params.chunks[chunk_index], blockIdx.x % params.heads,
                    static_cast<int>(threadIdx.x) / 32, lane, FragmentLane::of(lane)};
    if (work.chunk.tokens == 0) {
        return;
    }
    prepare(shared, params, work);
}
