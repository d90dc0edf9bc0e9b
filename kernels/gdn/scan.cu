// Forward over the chunks of a segment, the state in registers.
//
//   X  = V - e^c r (K S)            Vn = A (beta X)
//   O  = scale e^c r (Q S) + P Vn   P  = lower(scale r r (Q K^T) D)
//   S <- e^cL S + K^T (r e^(cL - c) Vn)
//
// One CTA per segment, value head and value columns; the columns are independent. Everything is computed transposed: a
// warp owns 16 value columns as rows of its products, so that its part of S^T is an accumulator whose words become
// left operands where they are, and so are X, Vn and O. K, Q, A and P are the right operands, shared by the warps.
//
//   chunk i | wait, barrier | K S, Q K^T | load i + 1 | P, X | A Y | Vn out | Q S | barrier | P Vn | O out | S, h out |
//
// The first four warps make 16 rows of P each: they multiply their queries with the operands of K S. The second barrier
// hands the rows over. Without output (`states`) there is no Q, P and O and one barrier. A warp stages what it stores
// in its own columns of the V tile.

#include "../device/async_copy.cuh"
#include "../device/element.cuh"
#include "../device/ldmatrix.cuh"
#include "../device/mma_sync.cuh"
#include "../device/swizzled_tile.cuh"
#include "gate.cuh"
#include "scan_params.cuh"
#include "schedule.cuh"

#include <cstdint>

namespace bakewell {

using S = Schedule;

constexpr int warp_columns = 16; // of values: rows of a warp's products
constexpr int warps = S::value_columns / warp_columns;
constexpr int stages = 2;
constexpr int key_steps = head_dim / 16;
constexpr int token_steps = chunk_tokens / 16;
constexpr int value_splits = head_dim / S::value_columns;

static_assert(S::threads == warps * 32, "every warp owns value columns");

using KeyTile = SwizzledTile<chunk_tokens, head_bytes>;
using SquareTile = SwizzledTile<chunk_tokens, chunk_tokens * 2>;
using ValueTile = SwizzledTile<chunk_tokens, warp_columns * 2>; // columns of one warp
using StateTile = SwizzledTile<8, head_bytes>;                  // rows of h, staged in place of a ValueTile
static_assert(sizeof(StateTile) == sizeof(ValueTile));

template <bool output>
struct QueryTile {
    KeyTile q;
};
template <>
struct QueryTile<false> {};

template <bool output>
struct WeightTile {
    SquareTile p;
};
template <>
struct WeightTile<false> {};

struct StageTiles : QueryTile<S::output> {
    KeyTile k;
    SquareTile a;
    ValueTile v[warps];
};

// What the tokens of a chunk are multiplied with; zero for rows past it.
struct Factors {
    float read[chunk_tokens];  // e^c r_k
    float write[chunk_tokens]; // e^(cL - c) r_k
    float beta[chunk_tokens];
    float query[chunk_tokens]; // scale e^c r_q
    float gate[chunk_tokens];  // c
    float rk[chunk_tokens];
    float rq[chunk_tokens]; // scale r_q
    float last[4];          // e^cL; padding
};

struct SharedMap : WeightTile<S::output> {
    StageTiles stage[stages];
    Factors factors[stages];
};

// What a CTA does.
struct Work {
    uint64_t value_head;
    uint64_t head;
    uint64_t segment_index;
    Segment segment;
    bool is_last;     // of its sequence
    bool is_identity; // pre-scan of the identity
    int first_column; // of the CTA
    uint32_t first_token;
    uint32_t last_tokens; // of the last chunk

    __device__ int tokens(uint32_t i) const {
        return i + 1 < segment.chunks ? chunk_tokens : static_cast<int>(last_tokens);
    }
    __device__ uint64_t token(uint32_t i) const { return first_token + i * static_cast<uint64_t>(chunk_tokens); }
    __device__ uint64_t matrix(const Params& params, uint32_t i) const {
        return (static_cast<uint64_t>(segment.first_chunk) + i) * params.value_heads + value_head;
    }
};

// The CTA's part of a call; none for a padding segment and for what nobody reads.
__device__ bool find_work(Work& work, const Params& params) {
    // Found anew at the end, instead of in registers through the loop over chunks.
    uint32_t cta;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(cta));
    const bool pre_scan = params.segment_state != nullptr;
    const uint32_t splits = pre_scan ? 2 * value_splits : value_splits;
    const uint32_t split = cta % splits;
    work.value_head = cta / splits % params.value_heads;
    work.head = work.value_head / (params.value_heads / params.heads);
    work.segment_index = cta / splits / params.value_heads;
    work.segment = params.segments[work.segment_index];
    if (work.segment.sequence < 0) {
        return false;
    }
    const uint32_t segments = params.sequences[work.segment.sequence].segments;
    work.is_last = work.segment.index + 1 == segments;
    work.is_identity = split >= value_splits;
    work.first_column = static_cast<int>(split % value_splits) * S::value_columns;
    work.first_token = 0;
    work.last_tokens = 0;
    if (work.segment.chunks > 0) {
        work.first_token = params.chunks[work.segment.first_chunk].first_token;
        work.last_tokens = params.chunks[work.segment.first_chunk + work.segment.chunks - 1].tokens;
    }
    if (pre_scan && work.is_identity) {
        return segments > 1 && (work.segment.index > 0 || params.m_of_first) && (!work.is_last || params.m_of_last);
    }
    return !pre_scan || !work.is_last;
}

// Where a thread stands.
struct Lane {
    int thread;
    int warp;
    int lane;
    FragmentLane fragment;

    // Read anew where it is asked for: what follows from it must not occupy registers through the loop over chunks.
    static __device__ Lane here() {
        int thread;
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
        return {thread, thread / 32, thread % 32, FragmentLane::of(thread % 32)};
    }

    // First value column of the warp.
    __device__ int column(const Work& work) const { return work.first_column + warp * warp_columns; }

    // Addresses of four 8x8 matrices: two pieces of 8 rows, then of the next 8 rows ...
    template <class Tile>
    __device__ typename Tile::Cursor pieces_first(const Tile& tile) const {
        return typename Tile::Cursor(tile, lane / 16 * 8 + lane % 8, lane / 8 % 2);
    }
    // ... or 16 rows of a piece, then of the next piece.
    template <class Tile>
    __device__ typename Tile::Cursor rows_first(const Tile& tile) const {
        return typename Tile::Cursor(tile, lane % 16, lane / 16);
    }
};

// The rows of a tile from global memory, a row of `pieces` at a time; rows past `live_rows` become zeros.
template <class Tile, int pieces>
__device__ void load_rows(const Tile& tile, int row, int piece, const char* base, uint64_t row_bytes, int live_rows) {
    static_assert(S::threads % pieces == 0);
    constexpr int step = S::threads / pieces;
    const typename Tile::Cursor target(tile, row, piece % Tile::pieces);
    base += piece * 16;
    const char* source = base + row * row_bytes;
#pragma unroll
    for (int i = 0; i < chunk_tokens / step; ++i) {
        const bool live = row + i * step < live_rows;
        uint32_t place;
        if constexpr (step % Tile::period == 0) {
            place = target.at(i * step, 0);
        } else {
            place = target.below(i * step);
        }
        // A row past the chunk reads nothing, but its address exists.
        async_copy_16(place, live ? source : base, live);
        source += step * row_bytes;
    }
}

template <class Tile>
__device__ void load_tile(const Tile& tile, int thread, const char* base, uint64_t row_bytes, int live_rows) {
    load_rows<Tile, Tile::pieces>(tile, thread / Tile::pieces, thread % Tile::pieces, base, row_bytes, live_rows);
}

template <class Tiles>
__device__ void load_chunk(Tiles& stage, const Params& params, const Work& work, uint32_t i) {
    const int thread = Lane::here().thread;
    const uint64_t token = work.token(i);
    const int tokens = work.tokens(i);
    load_tile(stage.k, thread, row_of(params.k, token, params.k_token_stride, work.head, params.k_head_stride),
              params.k_token_stride * 2, tokens);
    constexpr int value_pieces = ValueTile::pieces * warps;
    const char* values = row_of(params.v, token, params.v_token_stride, work.value_head, params.v_head_stride) +
                         work.first_column * 2;
    load_rows<ValueTile, value_pieces>(stage.v[thread % value_pieces / ValueTile::pieces], thread / value_pieces,
                                       thread % value_pieces, values, params.v_token_stride * 2,
                                       work.is_identity ? 0 : tokens);
    load_tile(stage.a, thread, static_cast<const char*>(params.a) + work.matrix(params, i) * sizeof(SquareTile),
              SquareTile::pieces * 16, chunk_tokens);
    if constexpr (S::output) {
        load_tile(stage.q, thread, row_of(params.q, token, params.q_token_stride, work.head, params.q_head_stride),
                  params.q_token_stride * 2, tokens);
    }
    async_copy_commit();
}

// Scalars of this thread's token, on their way from global memory while a chunk is computed.
struct TokenScalars {
    float gate;
    float last;
    float beta;
    float rk;
    float rq;
};

static_assert(S::threads >= chunk_tokens);

__device__ void load_scalars(TokenScalars& scalars, const Params& params, const Work& work, uint32_t i) {
    const int t = Lane::here().thread;
    const int tokens = work.tokens(i);
    if (t < chunk_tokens) {
        const uint64_t token = work.token(i) + (t < tokens ? t : 0);
        scalars.gate = params.gate[token * params.value_heads + work.value_head];
        scalars.last = params.gate[(work.token(i) + (tokens - 1)) * params.value_heads + work.value_head];
        scalars.beta = load_beta(params.beta, params.beta_bf16, token * params.beta_token_stride + work.value_head);
        scalars.rk = params.rk[token * params.heads + work.head];
        scalars.rq = S::output ? params.rq[token * params.heads + work.head] : 0.0f;
    }
}

__device__ void make_factors(Factors& factors, const TokenScalars& scalars, const Params& params, int tokens) {
    const int t = Lane::here().thread;
    const bool live = t < tokens;
    const auto& [gate, last, beta, rk, rq] = scalars;
    if (t < chunk_tokens) {
        factors.read[t] = live ? decay(gate) * rk : 0.0f;
        factors.write[t] = live ? decay(last - gate) * rk : 0.0f;
        factors.beta[t] = live ? beta : 0.0f;
        if constexpr (S::output) {
            factors.query[t] = live ? params.scale * rq * decay(gate) : 0.0f;
            factors.gate[t] = live ? gate : last;
            factors.rk[t] = live ? rk : 0.0f;
            factors.rq[t] = live ? params.scale * rq : 0.0f;
        }
        if (t == 0) {
            factors.last[0] = decay(last);
        }
    }
}

// Accumulators of a warp: its value columns as rows; columns are keys or tokens, 8 a tile.
using State = float[head_dim / 8][4];
using Tokens = float[chunk_tokens / 8][4];

// The same rounded: left operands of steps of 16 tokens.
using TokenWords = uint32_t[token_steps][4];

// Words of two neighbouring tiles.
__device__ void to_words(uint32_t (&words)[4], const float (&low)[4], const float (&high)[4]) {
    words[0] = pack<Element::bf16>(low[0], low[1]);
    words[1] = pack<Element::bf16>(low[2], low[3]);
    words[2] = pack<Element::bf16>(high[0], high[1]);
    words[3] = pack<Element::bf16>(high[2], high[3]);
}

// Adds the product with two neighbouring right operands.
__device__ void multiply(float (&low)[4], float (&high)[4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
    mma_m16n8k16<Element::bf16>(low, a[0], a[1], a[2], a[3], b[0], b[1]);
    mma_m16n8k16<Element::bf16>(high, a[0], a[1], a[2], a[3], b[2], b[3]);
}

__device__ float2 factor_of(const float (&factors)[chunk_tokens], int tile, const Lane& lane) {
    return *reinterpret_cast<const float2*>(&factors[8 * tile + 2 * lane.fragment.pair]);
}

__device__ void scale(float (&sums)[4], float2 factor) {
    sums[0] *= factor.x;
    sums[1] *= factor.y;
    sums[2] *= factor.x;
    sums[3] *= factor.y;
}

// out = S^T rows^T: K S or Q S, transposed.
__device__ void read_state(Tokens& out, const State& state, const KeyTile& rows, const Lane& lane) {
    const KeyTile::Cursor cursor = lane.pieces_first(rows);
#pragma unroll
    for (int i = 0; i < key_steps; ++i) {
        uint32_t a[4];
        to_words(a, state[2 * i], state[2 * i + 1]);
#pragma unroll
        for (int j = 0; j < token_steps; ++j) {
            uint32_t b[4];
            ldmatrix_x4(b, cursor.at(16 * j, 2 * i));
            multiply(out[2 * j], out[2 * j + 1], a, b);
        }
    }
}

// out[, t] += sum over s of words[, s] square[t][s], a lower triangle.
__device__ void multiply_lower(Tokens& out, const TokenWords& words, const SquareTile& square, const Lane& lane) {
    const SquareTile::Cursor cursor = lane.pieces_first(square);
#pragma unroll
    for (int i = 0; i < token_steps; ++i) {
#pragma unroll
        for (int j = i; j < token_steps; ++j) {
            uint32_t b[4];
            ldmatrix_x4(b, cursor.at(16 * j, 2 * i));
            multiply(out[2 * j], out[2 * j + 1], words[i], b);
        }
    }
}

// Y = beta (V - read (K S)), rounded.
__device__ void make_y(TokenWords& y, const Tokens& sums, const ValueTile& v, const Factors& factors,
                       const Lane& lane) {
    const ValueTile::Cursor cursor = lane.pieces_first(v);
#pragma unroll
    for (int i = 0; i < token_steps; ++i) {
        uint32_t values[4];
        ldmatrix_x4_transposed(values, cursor.at(16 * i, 0));
        float x[2][4];
        for (int half = 0; half < 2; ++half) {
            const float2 read = factor_of(factors.read, 2 * i + half, lane);
            for (int e = 0; e < 4; ++e) {
                const uint32_t pair = values[2 * half + e / 2];
                const float value = __uint_as_float(e % 2 ? pair & 0xFFFF0000 : pair << 16);
                x[half][e] = fmaf(e % 2 ? -read.y : -read.x, sums[2 * i + half][e], value);
            }
            scale(x[half], factor_of(factors.beta, 2 * i + half, lane));
        }
        to_words(y[i], x[0], x[1]);
    }
}

// Vn rounded, plain and decayed to the end of the chunk with its key's norm.
__device__ void round_values(TokenWords& plain, TokenWords& written, Tokens& v_new, const Factors& factors,
                             const Lane& lane) {
#pragma unroll
    for (int i = 0; i < token_steps; ++i) {
        to_words(plain[i], v_new[2 * i], v_new[2 * i + 1]);
        scale(v_new[2 * i], factor_of(factors.write, 2 * i, lane));
        scale(v_new[2 * i + 1], factor_of(factors.write, 2 * i + 1, lane));
        to_words(written[i], v_new[2 * i], v_new[2 * i + 1]);
    }
}

// S <- last S + K^T written.
__device__ void update_state(State& state, const TokenWords& written, const KeyTile& k, float last, const Lane& lane) {
    for (auto& sums : state) {
        scale(sums, make_float2(last, last));
    }
    const KeyTile::Cursor cursor = lane.rows_first(k);
#pragma unroll
    for (int i = 0; i < token_steps; ++i) {
#pragma unroll
        for (int j = 0; j < key_steps; ++j) {
            uint32_t b[4];
            ldmatrix_x4_transposed(b, cursor.at(16 * i, 2 * j));
            multiply(state[2 * j], state[2 * j + 1], written[i], b);
        }
    }
}

// Each of the first four warps makes 16 rows of P.
static_assert(warps >= token_steps);

// Products of the warp's queries with the keys: 16 x 16 blocks, two tiles of 8 columns each.
using WeightProducts = float[token_steps][2][4];

// read_state of the keys, and the products of the warp's queries with the same operands.
__device__ void read_state_and_weigh(Tokens& out, WeightProducts& products, const State& state, const KeyTile& k,
                                     const KeyTile& q, const Lane& lane) {
    const KeyTile::Cursor cursor = lane.pieces_first(k);
    const KeyTile::Cursor queries = lane.rows_first(q);
#pragma unroll
    for (int i = 0; i < key_steps; ++i) {
        uint32_t a[4];
        to_words(a, state[2 * i], state[2 * i + 1]);
        uint32_t rows[4];
        ldmatrix_x4(rows, queries.at(16 * lane.warp, 2 * i));
#pragma unroll
        for (int j = 0; j < token_steps; ++j) {
            uint32_t b[4];
            ldmatrix_x4(b, cursor.at(16 * j, 2 * i));
            multiply(out[2 * j], out[2 * j + 1], a, b);
            // Blocks above the diagonal too: a branch would cost more.
            multiply(products[j][0], products[j][1], rows, b);
        }
    }
}

// P from the products: scaled, decayed, and zero above the diagonal.
__device__ void store_weights(SquareTile& p, WeightProducts& products, const Factors& factors, const Lane& lane) {
    const SquareTile::Cursor target = lane.rows_first(p);
    const int first = 16 * lane.warp + lane.fragment.group;
    const float rq[2] = {factors.rq[first], factors.rq[first + 8]};
    const float gate[2] = {factors.gate[first], factors.gate[first + 8]};
#pragma unroll
    for (int j = 0; j < token_steps; ++j) {
        if (j <= lane.warp) {
            for (int column = 0; column < 2; ++column) {
                auto& sums = products[j][column];
                const float2 gates = factor_of(factors.gate, 2 * j + column, lane);
                const float2 rk = factor_of(factors.rk, 2 * j + column, lane);
                for (int e = 0; e < 4; ++e) {
                    const int s = 16 * j + 8 * column + 2 * lane.fragment.pair + e % 2;
                    const float weight = rq[e / 2] * sums[e] * (e % 2 ? rk.y : rk.x);
                    const float decayed = weight * decay(gate[e / 2] - (e % 2 ? gates.y : gates.x));
                    sums[e] = s <= first + 8 * (e / 2) ? decayed : 0.0f;
                }
            }
            uint32_t words[4];
            to_words(words, products[j][0], products[j][1]);
            stmatrix_x4(target.at(16 * lane.warp, 2 * j), words[0], words[1], words[2], words[3]);
        }
    }
}

// Words of a chunk to the warp's columns of a bf16 tensor [tokens, value_heads, head_dim], by way of the V tile.
__device__ void store_tokens(void* out, ValueTile& staging, const TokenWords& words, const Params& params,
                             const Work& work, const Lane& lane, uint32_t i) {
    const ValueTile::Cursor words_at = lane.pieces_first(staging);
    for (int j = 0; j < token_steps; ++j) {
        stmatrix_x4_transposed(words_at.at(16 * j, 0), words[j][0], words[j][1], words[j][2], words[j][3]);
    }
    __syncwarp();
    constexpr int pieces = ValueTile::pieces;
    constexpr int step = 32 / pieces;
    static_assert(step % ValueTile::period == 0);
    const int row = lane.lane / pieces;
    const int tokens = work.tokens(i);
    const ValueTile::Cursor staged(staging, row, lane.lane % pieces);
    const uint64_t line = (work.token(i) + row) * params.value_heads + work.value_head;
    char* target = static_cast<char*>(out) + line * head_bytes + lane.column(work) * 2 + lane.lane % pieces * 16;
#pragma unroll
    for (int n = 0; n < chunk_tokens / step; ++n) {
        if (row + n * step < tokens) {
            *reinterpret_cast<uint4*>(target) = load_piece(staged.at(n * step, 0));
        }
        target += static_cast<uint64_t>(params.value_heads) * (step * head_bytes);
    }
    // The next words may take the place.
    __syncwarp();
}

// The state before chunk i, rounded: the warp's rows of h, 8 at a time by way of a V tile.
__device__ void store_state(void* h, ValueTile& tile, const State& state, const Params& params, const Work& work,
                            const Lane& lane, uint32_t i) {
    auto& staging = reinterpret_cast<StateTile&>(tile);
    const StateTile::Cursor words_at(staging, lane.lane % 8, lane.lane / 8);
    // A warp stores two rows of 16 pieces at once.
    const int row = lane.lane / 16;
    const StateTile::Cursor staged(staging, row, lane.lane % 16);
    char* target = static_cast<char*>(h) + (work.matrix(params, i) * head_dim + lane.column(work) + row) * head_bytes +
                   lane.lane % 16 * 16;
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < head_dim / 8; j += 4) {
            const auto word = [&](int n) {
                return pack<Element::bf16>(state[j + n][2 * half], state[j + n][2 * half + 1]);
            };
            stmatrix_x4(words_at.at(0, j), word(0), word(1), word(2), word(3));
        }
        __syncwarp();
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
            *reinterpret_cast<uint4*>(target + (8 * half + n) * head_bytes) = load_piece(staged.below(n));
        }
        __syncwarp();
    }
}

// O of the chunk. The weights of all warps are there once the barrier is passed.
template <class Shared, class Tiles>
__device__ void make_output(Shared& shared, Tiles& stage, const State& state, const TokenWords& v_new,
                            const Factors& factors, const Params& params, const Work& work, const Lane& lane,
                            uint32_t i) {
    Tokens out = {};
    read_state(out, state, stage.q, lane);
    for (int j = 0; j < chunk_tokens / 8; ++j) {
        scale(out[j], factor_of(factors.query, j, lane));
    }
    __syncthreads();
    multiply_lower(out, v_new, shared.p, lane);
    TokenWords words;
    for (int j = 0; j < token_steps; ++j) {
        to_words(words[j], out[2 * j], out[2 * j + 1]);
    }
    store_tokens(params.o, stage.v[lane.warp], words, params, work, lane, i);
}

// Chunk i. `load_next` starts the copies of the next one, behind the products that the state waits for.
template <class Shared, class LoadNext>
__device__ void scan_chunk(Shared& shared, State& state, const Params& params, const Work& work, uint32_t i,
                           LoadNext load_next) {
    const Lane lane = Lane::here();
    auto& stage = shared.stage[i % stages];
    const Factors& factors = shared.factors[i % stages];
    ValueTile& values = stage.v[lane.warp];
    Tokens sums = {};
    if constexpr (S::output) {
        if (warps == token_steps || lane.warp < token_steps) {
            WeightProducts products = {};
            read_state_and_weigh(sums, products, state, stage.k, stage.q, lane);
            load_next();
            store_weights(shared.p, products, factors, lane);
        } else {
            read_state(sums, state, stage.k, lane);
            load_next();
        }
    } else {
        read_state(sums, state, stage.k, lane);
        load_next();
    }
    TokenWords y;
    make_y(y, sums, values, factors, lane);
    // The warp has read V, whose place stores go through.
    __syncwarp();
    Tokens v_new = {};
    multiply_lower(v_new, y, stage.a, lane);
    TokenWords plain;
    TokenWords written;
    round_values(plain, written, v_new, factors, lane);
    if (params.v_new != nullptr) {
        store_tokens(params.v_new, values, plain, params, work, lane, i);
    }
    if constexpr (S::output) {
        make_output(shared, stage, state, plain, factors, params, work, lane, i);
    }
    const Lane late = Lane::here();
    update_state(state, written, stage.k, factors.last[0], late);
    if (params.h != nullptr && i + 1 < work.segment.chunks) {
        store_state(params.h, stage.v[late.warp], state, params, work, late, i + 1);
    }
}

// Calls visit(element, k, v) for the lane's elements of the warp's part of the state.
template <class Visit>
__device__ void for_each_element(State& state, const Work& work, Visit visit) {
    const Lane lane = Lane::here();
#pragma unroll
    for (int j = 0; j < head_dim / 8; ++j) {
        for (int e = 0; e < 4; ++e) {
            visit(state[j][e], 8 * j + 2 * lane.fragment.pair + e % 2,
                  lane.column(work) + lane.fragment.group + 8 * (e / 2));
        }
    }
}

__device__ uint64_t state_index(uint64_t index, const Params& params, const Work& work) {
    return (index * params.value_heads + work.value_head) * (head_dim * head_dim);
}

__device__ void load_state(State& state, const Params& params, const Work& work) {
    if (work.is_identity) {
        for_each_element(state, work, [](float& s, int k, int v) { s = k == v ? 1.0f : 0.0f; });
    } else if (params.segment_state == nullptr && work.segment.index > 0) {
        const float* from = params.start + state_index(work.segment_index, params, work);
        for_each_element(state, work, [&](float& s, int k, int v) { s = from[v * head_dim + k]; });
    } else if (params.h0 != nullptr) {
        const float* from = params.h0 + state_index(work.segment.sequence, params, work);
        for_each_element(state, work, [&](float& s, int k, int v) { s = from[k * head_dim + v]; });
    } else {
        for_each_element(state, work, [](float& s, int, int) { s = 0.0f; });
    }
}

__device__ void store_final(State& state, const Params& params, const Work& work) {
    if (params.segment_state != nullptr) {
        float* to = (work.is_identity ? params.m : params.segment_state) +
                    state_index(work.segment_index, params, work);
        for_each_element(state, work, [&](float& s, int k, int v) { to[v * head_dim + k] = s; });
    } else if (params.ht != nullptr && work.is_last) {
        float* to = params.ht + state_index(work.segment.sequence, params, work);
        for_each_element(state, work, [&](float& s, int k, int v) { to[k * head_dim + v] = s; });
    }
}

__device__ void scan(SharedMap& shared, const Params& params, const Work& work) {
    State state;
    load_state(state, params, work);
    TokenScalars scalars;
    if (work.segment.chunks > 0) {
        load_chunk(shared.stage[0], params, work, 0);
        load_scalars(scalars, params, work, 0);
        make_factors(shared.factors[0], scalars, params, work.tokens(0));
        if (params.h != nullptr) {
            const Lane lane = Lane::here();
            store_state(params.h, shared.stage[1].v[lane.warp], state, params, work, lane, 0);
        }
    }
    for (uint32_t i = 0; i < work.segment.chunks; ++i) {
        async_copy_wait<0>();
        // Chunk i is there, and every warp has done with chunk i - 1, whose place the next one takes.
        __syncthreads();
        const bool more = i + 1 < work.segment.chunks;
        scan_chunk(shared, state, params, work, i, [&] {
            if (more) {
                load_chunk(shared.stage[(i + 1) % stages], params, work, i + 1);
                load_scalars(scalars, params, work, i + 1);
            }
        });
        if (more) {
            make_factors(shared.factors[(i + 1) % stages], scalars, params, work.tokens(i + 1));
        }
    }
    Work at_end;
    find_work(at_end, params);
    store_final(state, params, at_end);
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, bakewell::Schedule::min_ctas_per_sm)
    gdn_scan(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(256) char shared_bytes[];
    static_assert(sizeof(SharedMap) == S::dynamic_shared_bytes, "the schedule's budget");
    auto& shared = *reinterpret_cast<SharedMap*>(shared_bytes);

    Work work;
    if (find_work(work, params)) {
        scan(shared, params, work);
    }
}
