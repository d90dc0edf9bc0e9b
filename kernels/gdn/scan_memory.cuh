// What a CTA of scan.cu works on, its shared memory, and what it loads: tiles of chunks, scalars of tokens.
#pragma once

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

} // namespace bakewell
