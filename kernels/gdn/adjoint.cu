// Backward over the chunks of a segment, last to first: the gradient of the state.
//
//   dV2 = to_end o (K dS) + P^T dO          to_end = 2^(c_last - c) rk
//   dVb = A^T dV2                           P_ts = scale rq_t rk_s (q_t . k_s) 2^(c_t - c_s), s <= t
//   dS' = keep dS + Q^T (from_start o dO) + K^T (back o dVb)
//                                           keep = 2^c_last, from_start = scale 2^c rq, back = -beta 2^c rk
//
// dS^T is held by the chain warps, 16 value rows each, as accumulators; every product is computed transposed, so that
// an accumulator rounded to bf16 is the left operand of the next product and nothing of the chain leaves a warp. The
// helper warps keep the ring of chunks full and make P and the factors of a chunk while the chain is at the one before.
//
//   helper | copy i, i+1 | factors, P of i | copy i+2 | factors, P of i+1 | ...
//   chain                                  | K dS | + P^T dO | A^T | store dVb | update | K dS ...
//                                          | store dh        |
//
// One CTA per segment, value head and split of the value columns. Rows past a short chunk are zeros in shared memory.

#include "../device/async_copy_barrier.cuh"
#include "../device/mbarrier.cuh"
#include "../device/named_barrier.cuh"
#include "adjoint_params.cuh"
#include "chunk_rows.cuh"
#include "fade.cuh"
#include "fragments.cuh"
#include "gate.cuh"
#include "schedule.cuh"

#include <cstdint>

namespace bakewell {

using S = Schedule;

constexpr int block = 16; // rows and columns of an operand block
constexpr int key_blocks = head_dim / block;
constexpr int token_blocks = chunk_tokens / block;

constexpr int chain_warps = S::value_columns / block;
constexpr int helper_warps = token_blocks; // one per 16 rows of P
constexpr int helper_threads = helper_warps * 32;
static_assert(S::threads == (chain_warps + helper_warps) * 32, "roles and threads");

enum class NamedBarrier : uint32_t { factors = 1 };

using ValueTile = SwizzledTile<chunk_tokens, S::value_columns * 2>;
using TokenTile = SwizzledTile<chunk_tokens, chunk_tokens * 2>;

// A chunk in the ring.
struct Slot {
    RowTile k;
    RowTile q;
    ValueTile grad_o;
    TokenTile a;
    TokenTile p;
    float to_end[chunk_tokens];
    float from_start[chunk_tokens];
    float back[chunk_tokens];
    // Of P: c; scale rq; rk.
    float gate[chunk_tokens];
    float row_factor[chunk_tokens];
    float column_factor[chunk_tokens];
};

// Where a chain warp turns its results into rows. dh and dVb take turns.
union Staging {
    SwizzledTile<block, head_bytes / 2> dh;    // [value, key], a half of the keys at a time
    SwizzledTile<chunk_tokens, block * 2> dvb; // [token, value]
};

struct SharedMap {
    static constexpr int barrier_bytes = 3 * S::stages * sizeof(Mbarrier);

    Slot slots[S::stages];
    Staging staging[chain_warps];
    Mbarrier copied[S::stages]; // the copies of the helper threads
    Mbarrier ready[S::stages];  // and factors and P
    Mbarrier empty[S::stages];

    __device__ void init() {
        for (int i = 0; i < S::stages; ++i) {
            copied[i].init(helper_threads);
            ready[i].init(helper_warps);
            empty[i].init(chain_warps);
        }
        fence_mbarrier_init();
    }
};

// What the CTA works on.
struct Work {
    uint32_t segment;
    uint32_t chunks;
    uint32_t first_chunk;
    uint32_t first_token;
    uint32_t last_tokens; // tokens of the last chunk
    uint32_t head;
    uint32_t value_head;
    uint32_t first_column; // of the values

    __device__ uint64_t chunk_index(uint32_t chunk) const { return static_cast<uint64_t>(first_chunk) + chunk; }
    __device__ uint64_t token(uint32_t chunk) const {
        return first_token + static_cast<uint64_t>(chunk) * chunk_tokens;
    }
    __device__ int tokens(uint32_t chunk) const {
        return static_cast<int>(chunk + 1 == chunks ? last_tokens : chunk_tokens);
    }
};

// Position in the ring: chunks are taken in the same order by everybody.
struct Cursor {
    int slot = 0;
    uint32_t phase = 0;

    __device__ void advance() {
        if (++slot == S::stages) {
            slot = 0;
            phase ^= 1;
        }
    }
};

class Helper {
    const Params& params;
    SharedMap& shared;
    const Work& work;
    const int thread;
    const int warp;
    const int lane;
    Cursor copies;

  public:
    __device__ Helper(const Params& params, SharedMap& shared, const Work& work, int thread)
        : params(params), shared(shared), work(work), thread(thread), warp(thread / 32), lane(thread % 32) {}

    __device__ void run() {
        const uint32_t chunks = work.chunks;
        constexpr uint32_t ahead = S::stages - 1;
        for (uint32_t i = 0; i < ahead && i < chunks; ++i) {
            copy(chunks - 1 - i);
        }
        Cursor cursor;
        for (uint32_t i = 0; i < chunks; ++i) {
            make(chunks - 1 - i, cursor);
            cursor.advance();
            // The slot becomes free when the chain is done with the chunk before the one just made.
            if (i + ahead < chunks) {
                copy(chunks - 1 - i - ahead);
            }
        }
    }

  private:
    // The blocks of A on and below the diagonal; nobody reads the others.
    __device__ void copy_inverse(TokenTile& tile, const char* matrix) {
        constexpr int rows_at_once = helper_threads / TokenTile::pieces;
        const int piece = thread % TokenTile::pieces;
#pragma unroll
        for (int i = 0; i < chunk_tokens / rows_at_once; ++i) {
            const int row = thread / TokenTile::pieces + i * rows_at_once;
            if (piece / 2 <= row / block) {
                async_copy_16(TokenTile::Cursor(tile, row, piece).at(0, 0),
                              matrix + row * (chunk_tokens * 2) + piece * 16, true);
            }
        }
    }

    __device__ void copy(uint32_t chunk) {
        shared.empty[copies.slot].wait(copies.phase ^ 1);
        auto& slot = shared.slots[copies.slot];
        const uint64_t token = work.token(chunk);
        const int tokens = work.tokens(chunk);
        const char* q = row_of(params.q, token, params.q_token_stride, work.head, params.q_head_stride);
        const char* k = row_of(params.k, token, params.k_token_stride, work.head, params.k_head_stride);
        const char* grad_o =
            row_of(params.grad_o, token, params.grad_o_token_stride, work.value_head, params.grad_o_head_stride);
        const uint64_t matrix = work.chunk_index(chunk) * params.value_heads + work.value_head;
        copy_rows<helper_threads>(slot.k, k, params.k_token_stride * 2, tokens, thread);
        copy_rows<helper_threads>(slot.q, q, params.q_token_stride * 2, tokens, thread);
        copy_rows<helper_threads>(slot.grad_o, grad_o + work.first_column * 2, params.grad_o_token_stride * 2, tokens,
                                  thread);
        copy_inverse(slot.a, static_cast<const char*>(params.a) + matrix * (chunk_tokens * chunk_tokens * 2));
        async_copy_arrive(shared.copied[copies.slot]);
        copies.advance();
    }

    __device__ void make(uint32_t chunk, const Cursor& cursor) {
        auto& slot = shared.slots[cursor.slot];
        if (thread < chunk_tokens) {
            make_factors(slot, chunk);
        }
        named_barrier_sync(static_cast<uint32_t>(NamedBarrier::factors), helper_threads);
        shared.copied[cursor.slot].wait(cursor.phase);
        make_p(slot);
        __syncwarp();
        if (lane == 0) {
            shared.ready[cursor.slot].arrive();
        }
    }

    // One thread per row. Rows past the chunk have the gate of its last and zeros otherwise: their exponents are
    // finite.
    __device__ void make_factors(Slot& slot, uint32_t chunk) {
        const int last = work.tokens(chunk) - 1;
        const bool live = thread <= last;
        const uint64_t token = work.token(chunk) + (live ? thread : last);
        const float gate = params.gate[token * params.value_heads + work.value_head];
        const float gate_last = params.gate[(work.token(chunk) + last) * params.value_heads + work.value_head];
        const float rq = live ? params.rq[token * params.heads + work.head] : 0.0f;
        const float rk = live ? params.rk[token * params.heads + work.head] : 0.0f;
        const float beta = load_beta(params.beta, params.beta_bf16, token * params.beta_token_stride + work.value_head);
        slot.gate[thread] = gate;
        slot.row_factor[thread] = params.scale * rq;
        slot.column_factor[thread] = rk;
        slot.to_end[thread] = decay(gate_last - gate) * rk;
        slot.from_start[thread] = params.scale * decay(gate) * rq;
        slot.back[thread] = -beta * decay(gate) * rk;
    }

    // The warp's 16 rows of P up to the diagonal block.
    __device__ void make_p(Slot& slot) {
        const auto fragment = FragmentLane::of(lane);
        float p[2 * token_blocks][4] = {};
        for (int i = 0; i < key_blocks; ++i) {
            uint32_t a[4];
            load_left(a, slot.q, block * warp, block * i, lane);
#pragma unroll
            for (int j = 0; j < token_blocks; ++j) {
                if (j <= warp) {
                    uint32_t b[4];
                    load_right_transposed(b, slot.k, block * j, block * i, lane);
                    multiply(p[2 * j], p[2 * j + 1], a, b);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < token_blocks; ++j) {
            if (j <= warp) {
                for (int t = 2 * j; t < 2 * j + 2; ++t) {
                    for (int e = 0; e < 4; ++e) {
                        const int row = block * warp + fragment.group + e / 2 * 8;
                        const int column = 8 * t + 2 * fragment.pair + e % 2;
                        const float factor = decay(slot.gate[row] - slot.gate[column]) * slot.row_factor[row];
                        p[t][e] = column <= row ? p[t][e] * factor * slot.column_factor[column] : 0.0f;
                    }
                }
                uint32_t words[4];
                pack_left(words, p[2 * j], p[2 * j + 1]);
                store_left(slot.p, block * warp, block * j, words, lane);
            }
        }
    }
};

// 16 value rows of the chain.
class Chain {
    const Params& params;
    SharedMap& shared;
    const Work& work;
    const int warp;
    const int lane;
    const FragmentLane fragment;
    float state[2 * key_blocks][4]; // dS^T [16 values, 128 keys]

    // A 16 x 64 accumulator, and the same rounded, as left operands: values by tokens.
    using Tokens = float[2 * token_blocks][4];
    using TokenWords = uint32_t[token_blocks][4];

  public:
    __device__ Chain(const Params& params, SharedMap& shared, const Work& work, int warp, int lane)
        : params(params), shared(shared), work(work), warp(warp), lane(lane), fragment(FragmentLane::of(lane)) {}

    __device__ void run() {
        load();
        Cursor cursor;
        for (uint32_t i = 0; i < work.chunks; ++i) {
            shared.ready[cursor.slot].wait(cursor.phase);
            step(shared.slots[cursor.slot], work.chunks - 1 - i);
            __syncwarp();
            if (lane == 0) {
                shared.empty[cursor.slot].arrive();
            }
            cursor.advance();
        }
        store();
    }

  private:
    __device__ uint32_t first_value() const { return work.first_column + block * warp; }

    // The lane's first element in a matrix per item and value head, [value, key] or [key, value]; the others lie at
    // constant distances.
    template <class Float>
    __device__ Float* value_major(Float* matrices, uint64_t item) const {
        const uint64_t row = (item * params.value_heads + work.value_head) * head_dim + first_value() + fragment.group;
        return matrices + row * head_dim + 2 * fragment.pair;
    }
    template <class Float>
    __device__ Float* key_major(Float* matrices, uint64_t item) const {
        const uint64_t row = (item * params.value_heads + work.value_head) * head_dim + 2 * fragment.pair;
        return matrices + row * head_dim + first_value() + fragment.group;
    }

    // From there to an element of the accumulators.
    static __device__ constexpr int value_major_step(int tile, int element) {
        return element / 2 * 8 * head_dim + 8 * tile + element % 2;
    }
    static __device__ constexpr int key_major_step(int tile, int element) {
        return (8 * tile + element % 2) * head_dim + element / 2 * 8;
    }

    // From zeros in the pre-scan, from the sequence's end in its last segment, from the next segment in the others.
    __device__ void load() {
        const Segment segment = params.segments[work.segment];
        const bool last = segment.index + 1 == params.sequences[segment.sequence].segments;
        const bool main_scan = params.segment_state == nullptr;
        if (main_scan && !last) {
            const float* start = value_major(params.start, work.segment);
            fill([&](int tile, int element) { return start[value_major_step(tile, element)]; });
        } else if (main_scan && params.dht != nullptr) {
            const float* dht = key_major(params.dht, segment.sequence);
            fill([&](int tile, int element) { return dht[key_major_step(tile, element)]; });
        } else {
            fill([](int, int) { return 0.0f; });
        }
    }

    template <class Element>
    __device__ void fill(Element element_of) {
#pragma unroll
        for (int t = 0; t < 2 * key_blocks; ++t) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                state[t][e] = element_of(t, e);
            }
        }
    }

    template <class Step>
    __device__ void store(float* to, Step step_of) const {
#pragma unroll
        for (int t = 0; t < 2 * key_blocks; ++t) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                to[step_of(t, e)] = state[t][e];
            }
        }
    }

    __device__ void store() const {
        // Read again rather than kept in registers through the scan.
        const Segment segment = params.segments[work.segment];
        if (params.segment_state != nullptr) {
            store(value_major(params.segment_state, work.segment), value_major_step);
        } else if (segment.index == 0 && params.dh0 != nullptr) {
            store(key_major(params.dh0, segment.sequence), key_major_step);
        }
    }

    __device__ void step(const Slot& slot, uint32_t chunk) {
        auto& staging = shared.staging[warp];
        Tokens values = {};
        // The last chunk's dVb has been read.
        __syncwarp();
        multiply_state<0>(values, slot, staging, chunk);
        multiply_state<1>(values, slot, staging, chunk);
        scale(values, slot.to_end);
        add_local(values, slot);
        TokenWords words;
        round(words, values);
        solve(values, words, slot);
        round(words, values);
        store_dvb(staging, words, chunk);
        scale(values, slot.back);
        round(words, values);
        update(slot, words);
    }

    // += dS^T K^T over a half of the keys, which is also stored as dh.
    template <int half>
    __device__ void multiply_state(Tokens& values, const Slot& slot, Staging& staging, uint32_t chunk) const {
        constexpr int first = half * key_blocks / 2;
#pragma unroll
        for (int i = first; i < first + key_blocks / 2; ++i) {
            uint32_t a[4];
            pack_left(a, state[2 * i], state[2 * i + 1]);
            store_left(staging.dh, 0, block * (i - first), a, lane);
#pragma unroll
            for (int j = 0; j < token_blocks; ++j) {
                uint32_t b[4];
                load_right_transposed(b, slot.k, block * j, block * i, lane);
                multiply(values[2 * j], values[2 * j + 1], a, b);
            }
        }
        __syncwarp();
        store_dh<half>(staging, chunk);
        __syncwarp();
    }

    template <int half>

    __device__ void store_dh(const Staging& staging, uint32_t chunk) const {
        if (params.dh != nullptr) {
            constexpr int row_pieces = head_bytes / 16;
            constexpr int pieces = row_pieces / 2;
            const uint64_t matrix = work.chunk_index(chunk) * params.value_heads + work.value_head;
            auto* out = static_cast<uint4*>(params.dh) + (matrix * head_dim + first_value()) * row_pieces;
#pragma unroll
            for (int i = 0; i < block * pieces / 32; ++i) {
                const int row = (lane + 32 * i) / pieces;
                const int piece = lane % pieces;
                out[row * row_pieces + half * pieces + piece] =
                    *reinterpret_cast<const uint4*>(staging.dh.at(row, piece));
            }
        }
    }

    // Multiplies the columns, one per token.
    __device__ void scale(Tokens& values, const float (&factors)[chunk_tokens]) const {
#pragma unroll
        for (int t = 0; t < 2 * token_blocks; ++t) {
            const float2 factor = *reinterpret_cast<const float2*>(&factors[8 * t + 2 * fragment.pair]);
            values[t][0] *= factor.x;
            values[t][1] *= factor.y;
            values[t][2] *= factor.x;
            values[t][3] *= factor.y;
        }
    }

    __device__ static void round(TokenWords& words, const Tokens& values) {
#pragma unroll
        for (int i = 0; i < token_blocks; ++i) {
            pack_left(words[i], values[2 * i], values[2 * i + 1]);
        }
    }

    // += dO^T P.
    __device__ void add_local(Tokens& values, const Slot& slot) const {
#pragma unroll
        for (int i = 0; i < token_blocks; ++i) {
            uint32_t a[4];
            load_left_transposed(a, slot.grad_o, block * i, block * warp, lane);
#pragma unroll
            for (int j = 0; j <= i; ++j) {
                uint32_t b[4];
                load_right(b, slot.p, block * i, block * j, lane);
                multiply(values[2 * j], values[2 * j + 1], a, b);
            }
        }
    }

    // = dV2^T A.
    __device__ void solve(Tokens& values, const TokenWords& dv2, const Slot& slot) const {
#pragma unroll
        for (auto& tile : values) {
            for (float& element : tile) {
                element = 0.0f;
            }
        }
#pragma unroll
        for (int i = 0; i < token_blocks; ++i) {
#pragma unroll
            for (int j = 0; j <= i; ++j) {
                uint32_t b[4];
                load_right(b, slot.a, block * i, block * j, lane);
                multiply(values[2 * j], values[2 * j + 1], dv2[i], b);
            }
        }
    }

    // Each lane 16 bytes: half a row of the warp's 16 values.
    __device__ void store_dvb(Staging& staging, const TokenWords& words, uint32_t chunk) const {
        if (params.dv != nullptr) {
#pragma unroll
            for (int i = 0; i < token_blocks; ++i) {
                store_left_transposed(staging.dvb, block * i, 0, words[i], lane);
            }
            __syncwarp();
            const int tokens = work.tokens(chunk);
#pragma unroll
            for (int i = 0; i < token_blocks; ++i) {
                const int row = block * i + lane / 2;
                if (row < tokens) {
                    const uint64_t token = work.token(chunk) + row;
                    const uint64_t element =
                        (token * params.value_heads + work.value_head) * head_dim + first_value() + lane % 2 * 8;
                    *reinterpret_cast<uint4*>(static_cast<char*>(params.dv) + element * 2) =
                        *reinterpret_cast<const uint4*>(staging.dvb.at(row, lane % 2));
                }
            }
        }
    }

    // dS^T = keep dS^T + (from_start o dO)^T Q + (back o dVb)^T K.
    __device__ void update(const Slot& slot, const TokenWords& dvb) {
        const float keep = decay(slot.gate[chunk_tokens - 1]);
#pragma unroll
        for (auto& tile : state) {
            for (float& element : tile) {
                element *= keep;
            }
        }
#pragma unroll
        for (int i = 0; i < token_blocks; ++i) {
            uint32_t a[4];
            load_left_transposed(a, slot.grad_o, block * i, block * warp, lane);
            for (int word = 0; word < 4; ++word) {
                const int token = block * i + 2 * fragment.pair + word / 2 * 8;
                const float2 factor = *reinterpret_cast<const float2*>(&slot.from_start[token]);
                const float2 pair = unpack(a[word]);
                a[word] = pack<Element::bf16>(pair.x * factor.x, pair.y * factor.y);
            }
            add_outer(a, slot.q, i);
        }
#pragma unroll
        for (int i = 0; i < token_blocks; ++i) {
            add_outer(dvb[i], slot.k, i);
        }
    }

    __device__ void add_outer(const uint32_t (&a)[4], const RowTile& rows, int i) {
#pragma unroll
        for (int j = 0; j < key_blocks; ++j) {
            uint32_t b[4];
            load_right(b, rows, block * i, block * j, lane);
            multiply(state[2 * j], state[2 * j + 1], a, b);
        }
    }
};

enum class Role { chain, helper };

__device__ Role role_of(int warp) { return warp < chain_warps ? Role::chain : Role::helper; }

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, bakewell::Schedule::min_ctas_per_sm)
    gdn_adjoint(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(256) char shared_bytes[];
    static_assert(sizeof(SharedMap) == S::dynamic_shared_bytes, "the schedule's budget");
    auto& shared = *reinterpret_cast<SharedMap*>(shared_bytes);

    constexpr uint32_t splits = head_dim / S::value_columns;
    Work work;
    work.value_head = blockIdx.x / splits % params.value_heads;
    work.segment = blockIdx.x / splits / params.value_heads;
    work.first_column = blockIdx.x % splits * S::value_columns;
    work.head = work.value_head / (params.value_heads / params.heads);
    const Segment segment = params.segments[work.segment];
    // The pre-scan's result is the gradient before the segment: nothing is before the first. It needs the chunks that
    // remember what is before them.
    if (segment.sequence < 0 || (params.segment_state != nullptr && segment.index == 0)) {
        return;
    }
    work.chunks = segment.chunks;
    if (params.segment_state != nullptr) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        work.chunks =
            remember<false>(params.fade, params.forget, segment, params.value_heads, work.value_head, lane).chunks;
    }
    work.first_chunk = segment.first_chunk;
    work.first_token = work.last_tokens = 0;
    if (segment.chunks > 0) {
        work.first_token = params.chunks[segment.first_chunk].first_token;
        work.last_tokens = params.chunks[segment.first_chunk + work.chunks - 1].tokens;
    }

    if (threadIdx.x == 0) {
        shared.init();
    }
    __syncthreads();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    switch (role_of(warp)) {
    case Role::chain:
        Chain(params, shared, work, warp, threadIdx.x % 32).run();
        break;
    case Role::helper:
        Helper(params, shared, work, static_cast<int>(threadIdx.x) - chain_warps * 32).run();
        break;
    }
}
