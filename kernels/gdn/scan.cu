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

#include "scan_products.cuh"

#include <cstdint>

namespace bakewell {

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
