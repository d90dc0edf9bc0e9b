// What the forward and the adjoint scan on tensor memory share: warps, memory, the state, products, loads and stores.
//
// A CTA walks the chunks of a segment for one value head. Everything is transposed: value columns are lanes of tensor
// memory. The state is 128 columns of f32 accumulators that the products update in place; what is made of it for the
// next product is written beside it, as an A operand. Two state warpgroups share the columns of every link of this
// chain; the warpgroup of the row warps does what the state does not wait for.
#pragma once

#include "../device/barrier_ring.cuh"
#include "../device/named_barrier.cuh"
#include "../device/tcgen05_bf16.cuh"
#include "../device/tensor_map.cuh"
#include "../device/tensor_store.cuh"
#include "../device/tmem_fragments.cuh"
#include "chunk_factors.cuh"
#include "chunk_walk.cuh"
#include "panel.cuh"
#include "schedule.cuh"

#include <cstdint>

namespace bakewell {

using S = Schedule;

// ---------------------------------------------------------------- warps

constexpr int warpgroup_threads = 128;
constexpr int quarters = 4; // of the lanes of tensor memory: a warp of each warpgroup has one
constexpr int state_warps = 2 * quarters;
constexpr int row_warps = quarters;

enum class Role { state, row, mma, load, store_rows, store_states };

__device__ inline Role role_of(int warp) {
    constexpr int first_issuer = state_warps + row_warps;
    return warp < state_warps    ? Role::state
           : warp < first_issuer ? Role::row
                                 : static_cast<Role>(static_cast<int>(Role::mma) + warp - first_issuer);
}
static_assert(S::threads == 32 * (state_warps + row_warps + 4));

enum class NamedBarrier : uint32_t { RowWarps = 1 };

// The thread index, read anew: what follows from it must not occupy registers through the loop over chunks.
__device__ inline int thread_index() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// ---------------------------------------------------------------- memory

// Tiles of one chunk as they arrive. Rows that leave take the places of tiles that have been used.
struct Tiles {
    HeadTile k;
    HeadTile q;      // forward: then rows of O
    HeadTile values; // V, then rows of Vn; or dO, then rows of dVb
    Panel a;
};

// A state on its way to memory, 16 rows at a time, which are the boxes of its tensor map.
struct Snapshot {
    static constexpr int rows = 16;
    PanelRows<rows> panels[2];
};
constexpr int snapshots = head_dim / Snapshot::rows;

// Who arrives, and when. `aside`: beside the chain, see the kernels.
struct Barriers {
    BarrierRing<S::stages> tiles; // load; back from products and state warps
    BarrierRing<S::stages> rows;  // state or row warps: rows lie in the tiles' places; back to load from store
    BarrierRing<2> factors;       // row warps: rows of a short chunk are cleared, too; back from both
    BarrierRing<1> snapshot;      // state warps; back from store
    Mbarrier operand;             // state warps: the state rounded
    Mbarrier read;                // products: K S
    Mbarrier bracket;             // state warps: what the inverse multiplies
    Mbarrier solved;              // products: what it gives
    Mbarrier change;              // state warps: what K^T multiplies; the state is decayed
    Mbarrier updated;             // products: the state
    Mbarrier scores;              // products: Q K^T
    Mbarrier weights;             // row warps: P
    Mbarrier aside[3];
};

// Columns.
struct TmemMap {
    static constexpr int state = 0;     // 128: f32
    static constexpr int operand = 128; // 64: the state rounded
    static constexpr int product = 192; // 64: K S, then what the inverse gives
    static constexpr int bracket = 256; // 32: what the inverse multiplies, then what K^T does
    static constexpr int aside = 288;   // 32: an operand
    static constexpr int sums = 320;    // 128: accumulators
    static constexpr int scores = 448;  // 64, 16 lanes of each quarter
    static constexpr int columns = 512;
};

struct SharedMap {
    static constexpr int barrier_bytes = sizeof(Barriers);
    static constexpr int tmem_columns = TmemMap::columns;

    struct Head {
        Barriers barriers;
        Factors factors[2];
        PairFactors pairs[2];
        uint32_t tmem; // address of the allocation
    };

    Head head;
    uint8_t unused[4 * swizzle_period - sizeof(Head)];
    Panel p;
    Tiles tiles[S::stages];
    Snapshot snapshot[S::snapshots ? snapshots : 0];
};
static_assert(offsetof(SharedMap, p) % swizzle_period == 0);

template <class Params>
struct Context {
    const Params& params;
    SharedMap& shared;
    Work work;

    __device__ Barriers& barriers() const { return shared.head.barriers; }
    __device__ int count() const { return work.walk.count; }
    __device__ uint32_t column(int column) const { return shared.head.tmem + column; }
    // Of the quarter of a warp.
    __device__ uint32_t own(int column) const { return tmem::own_lanes(shared.head.tmem, column, thread_index() / 32); }
    // First element of the [.., value_heads, 128, 128] state `index`.
    __device__ int64_t state_offset(int64_t index) const {
        return (index * params.value_heads + work.value_head) * (head_dim * head_dim);
    }
};

// All lanes have worked on tensor memory, and their stores are complete: one arrival.
__device__ inline void signal(Mbarrier& barrier) {
    tmem::fence_before_signal();
    __syncwarp();
    if (thread_index() % 32 == 0) {
        barrier.arrive();
    }
}

// Waits for products, or for what they are to work on.
__device__ inline void wait_for(PhaseCursor& cursor, Mbarrier& barrier) {
    cursor.wait(barrier);
    tmem::fence_after_wait();
}

// ---------------------------------------------------------------- the state

// A state warp's part: of the state a value column per lane and half of the keys; of [value, token] products its
// quarter of the values and half of the tokens, as two fragments of 16 values.
struct StatePart {
    static constexpr int keys = head_dim / 2, tokens = chunk_tokens / 2;

    int quarter, half, lane;

    static __device__ StatePart here() {
        const int thread = thread_index();
        return {thread / 32 % quarters, thread / warpgroup_threads, thread % 32};
    }

    __device__ int value() const { return 32 * quarter + lane; }
    __device__ int first_key() const { return half * keys; }
    __device__ int first_token() const { return half * tokens; }
};

// Elements of a state in memory: [128 keys, 128 values] or [128 values, 128 keys].
enum class StateLayout { keys, values };

__device__ inline int state_element(StateLayout layout, const StatePart& part, int i) {
    const int key = part.first_key() + i;
    return layout == StateLayout::keys ? key * head_dim + part.value() : part.value() * head_dim + key;
}

// To tensor memory; null: zeros.
template <StateLayout layout, class Params>
__device__ void load_state(const Context<Params>& c, const float* from) {
    const StatePart part = StatePart::here();
    constexpr int columns = 32;
#pragma unroll 1
    for (int first = 0; first < StatePart::keys; first += columns) {
        float values[columns];
#pragma unroll
        for (int i = 0; i < columns; ++i) {
            values[i] = from ? from[state_element(layout, part, first + i)] : 0.0f;
        }
        tmem::store(c.own(TmemMap::state + part.first_key() + first), values);
    }
    tmem::wait_store();
}

// From tensor memory, as [128 keys, 128 values].
template <class Params>
__device__ void store_state(const Context<Params>& c, float* to) {
    const StatePart part = StatePart::here();
    constexpr int columns = 32;
#pragma unroll 1
    for (int first = 0; first < StatePart::keys; first += columns) {
        float values[columns];
        tmem::load(values, c.own(TmemMap::state + part.first_key() + first));
        tmem::wait_load(values);
#pragma unroll
        for (int i = 0; i < columns; ++i) {
            to[state_element(StateLayout::keys, part, first + i)] = values[i];
        }
    }
}

// Rounds the state for the next product, and decays it in place once its factor is known.
struct StateRow {
    float values[StatePart::keys];
    uint32_t words[StatePart::keys / 2];

    template <class Params>
    __device__ void round(const Context<Params>& c) {
        const StatePart part = StatePart::here();
        tmem::load(values, c.own(TmemMap::state + part.first_key()));
        tmem::wait_load(values);
#pragma unroll
        for (int i = 0; i < StatePart::keys / 2; ++i) {
            words[i] = pack_bf16(values[2 * i], values[2 * i + 1]);
        }
        tmem::store(c.own(TmemMap::operand + part.first_key() / 2), words);
        tmem::wait_store();
        signal(c.barriers().operand);
    }

    // Complete with the wait before the next signal.
    template <class Params>
    __device__ void decay(const Context<Params>& c, float factor) {
#pragma unroll
        for (float& value : values) {
            value *= factor;
        }
        tmem::store(c.own(TmemMap::state + StatePart::here().first_key()), values);
    }

    // Writes the rounded state where store_states() finds it.
    template <class Params>
    __device__ void leave(const Context<Params>& c, BarrierRing<1>::Producer& ring) const {
        ring.acquire();
        const StatePart part = StatePart::here();
        Snapshot& to = c.shared.snapshot[part.value() / Snapshot::rows];
#pragma unroll
        for (int unit = 0; unit < Panel::units; ++unit) {
            const uint32_t(&w)[StatePart::keys / 2] = words;
            *reinterpret_cast<uint4*>(to.panels[part.half].at(part.lane % Snapshot::rows, unit)) =
                make_uint4(w[4 * unit], w[4 * unit + 1], w[4 * unit + 2], w[4 * unit + 3]);
        }
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        __syncwarp();
        if (part.lane == 0) {
            c.barriers().snapshot.full[0].arrive();
        }
    }
};

// ---------------------------------------------------------------- fragments of [value, token] products

// Of 16 values and `tokens` tokens.
template <int tokens>
using Fragment = float[tokens / 2];
template <int tokens>
using FragmentWords = uint32_t[tokens / 4];

// Where 16 tokens of a fragment lie in the rows of a tile, for ldmatrix and stmatrix, transposed. `upper`: the second
// 16 values of the quarter.
__device__ inline uint32_t rows_address(HeadTile& tile, int quarter, int upper, int first_token) {
    return FragmentLane::here().transposed(tile[quarter / 2], first_token, 4 * (quarter % 2) + 2 * upper);
}

template <int words>
__device__ inline void load_rows(uint32_t (&to)[words], HeadTile& tile, int quarter, int upper, int first_token) {
#pragma unroll
    for (int step = 0; step < words / 4; ++step) {
        uint32_t(&four)[4] = *reinterpret_cast<uint32_t(*)[4]>(&to[4 * step]);
        ldmatrix_x4_transposed(four, rows_address(tile, quarter, upper, first_token + 16 * step));
    }
}

template <int words>
__device__ inline void stage_rows(HeadTile& tile, int quarter, int upper, int first_token,
                                  const uint32_t (&from)[words]) {
#pragma unroll
    for (int step = 0; step < words / 4; ++step) {
        const uint32_t* w = &from[4 * step];
        stmatrix_x4_transposed(rows_address(tile, quarter, upper, first_token + 16 * step), w[0], w[1], w[2], w[3]);
    }
}

// Calls change(index, token) for each pair of neighbouring tokens: registers index and index + 1, word index / 2.
template <int registers, class Change>
__device__ inline void for_each_pair(int first_token, Change change) {
    const FragmentLane at = FragmentLane::here();
#pragma unroll
    for (int index = 0; index < registers; index += 2) {
        change(index, first_token + at.column(index / 4));
    }
}

// Rows lie in the places of a stage, or what lay there has been read: one arrival.
__device__ inline void hand_over(Mbarrier& barrier) {
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncwarp();
    if (thread_index() % 32 == 0) {
        barrier.arrive();
    }
}

// ---------------------------------------------------------------- the chain

// A state warp. The scan says what the links make of the products:
//   bracket(factors, values, words)         K S -> what the inverse multiplies; `values`: tile of the chunk
//   change(factors, solved, words, driven)  what the inverse gives -> what K^T multiplies; rows that leave, in `words`
//   follow(words)                           behind the chain
template <class Scan, class Params>
class StateChain {
    BarrierRing<S::stages>::Consumer tiles;
    BarrierRing<2>::Consumer factors;
    BarrierRing<1>::Producer snapshot;
    PhaseCursor read = PhaseCursor::waits_first(), solved = PhaseCursor::waits_first(),
                updated = PhaseCursor::waits_first();

  protected:
    using Sums = Fragment<StatePart::tokens>[2];
    using Words = FragmentWords<StatePart::tokens>[2];

    const Context<Params>& c;
    StatePart part = StatePart::here();

    explicit __device__ StateChain(const Context<Params>& c)
        : tiles(c.barriers().tiles), factors(c.barriers().factors), snapshot(c.barriers().snapshot), c(c) {}

    // This warp's part of accumulators.
    __device__ void load_sums(Sums& x, int column) const {
        const uint32_t address = c.own(column + part.first_token());
        tmem::load_fragment(x[0], address);
        tmem::load_fragment(x[1], tmem::upper_lanes(address));
        tmem::wait_load(x[0]);
        tmem::wait_load(x[1]);
    }

    __device__ void store_operand(int column, const Words& words) const {
        const uint32_t address = c.own(column + part.first_token() / 2);
        tmem::store_fragment(address, words[0]);
        tmem::store_fragment(tmem::upper_lanes(address), words[1]);
        tmem::wait_store();
    }

    // K S of the chunk.
    __device__ void load_read(Sums& x) {
        wait_for(read, c.barriers().read);
        load_sums(x, TmemMap::product);
    }

    __device__ void advance() {
        Scan& scan = static_cast<Scan&>(*this);
        Barriers& barriers = c.barriers();
        const int stage = tiles.wait(), slot = factors.wait();
        const Factors& of = c.shared.head.factors[slot];
        HeadTile& values = c.shared.tiles[stage].values;
        {
            StateRow row;
            row.round(c);
            row.decay(c, of.total);
            if constexpr (S::snapshots) {
                row.leave(c, snapshot);
            }
        }
        Words words;
        scan.bracket(of, values, words);
        store_operand(TmemMap::bracket, words);
        signal(barriers.bracket);
        {
            Sums x;
            Words driven;
            wait_for(solved, barriers.solved);
            load_sums(x, TmemMap::product);
            scan.change(of, x, words, driven);
            store_operand(TmemMap::bracket, driven);
            signal(barriers.change);
        }
        scan.follow(words);
        if constexpr (S::snapshots) {
            for (int upper = 0; upper < 2; ++upper) {
                stage_rows(values, part.quarter, upper, part.first_token(), words[upper]);
            }
            hand_over(barriers.rows.full[stage]);
        }
        hand_over(barriers.tiles.empty[stage]);
        if (part.lane == 0) {
            barriers.factors.empty[slot].arrive();
        }
        wait_for(updated, barriers.updated);
    }
};

// ---------------------------------------------------------------- products

// Issues the products; one thread. Their operands: A of 128 values in tensor memory, B in the tiles of a stage.
template <class Params>
struct Products {
    static constexpr int dim_steps = head_dim / tcgen05::bf16_k, token_steps = chunk_tokens / tcgen05::bf16_k;
    static constexpr uint32_t rows_step_bytes = tcgen05::bf16_k * Panel::row_bytes; // from 16 rows to the next
    static constexpr tcgen05::Major k = tcgen05::Major::K, mn = tcgen05::Major::MN;
    static constexpr uint32_t token_instruction = tcgen05::bf16_instruction(tmem::lanes, chunk_tokens, k, k);
    static constexpr uint32_t square_instruction = tcgen05::bf16_instruction(tmem::lanes, chunk_tokens, k, mn);
    static constexpr uint32_t state_instruction = tcgen05::bf16_instruction(tmem::lanes, head_dim, k, mn);
    static constexpr uint32_t weight_instruction = tcgen05::bf16_instruction(tmem::lanes, chunk_tokens, mn, mn);
    static constexpr uint32_t score_instruction = tcgen05::bf16_instruction(chunk_tokens, chunk_tokens, k, k);

    const Context<Params>& c;

    // D = A rows^T: the head dimension of the rows is summed over.
    __device__ void by_rows(int d, int a, HeadTile& rows) const {
        const uint64_t panels[2] = {tcgen05::swizzled_descriptor(&rows[0]), tcgen05::swizzled_descriptor(&rows[1])};
#pragma unroll
        for (int step = 0; step < dim_steps; ++step) {
            const uint64_t b =
                tcgen05::advance(panels[step / token_steps], step % token_steps * tcgen05::bf16_k_bytes);
            tcgen05::mma_bf16_tmem_a(c.column(d), c.column(a) + step * tcgen05::bf16_k_columns, b, token_instruction,
                                     step > 0);
        }
    }

    // D = A square^T: the columns of the square are summed over; or D = A square: its rows are.
    template <tcgen05::Major major>
    __device__ void by_square(int d, int a, Panel& square) const {
        constexpr uint32_t instruction = major == k ? token_instruction : square_instruction;
        constexpr uint32_t step_bytes = major == k ? tcgen05::bf16_k_bytes : rows_step_bytes;
        const uint64_t panel = tcgen05::swizzled_descriptor(&square);
#pragma unroll
        for (int step = 0; step < token_steps; ++step) {
            tcgen05::mma_bf16_tmem_a(c.column(d), c.column(a) + step * tcgen05::bf16_k_columns,
                                     tcgen05::advance(panel, step * step_bytes), instruction, step > 0);
        }
    }

    // D = values^T P: the rows of both are summed over.
    __device__ void by_weights(int d, HeadTile& values, Panel& p) const {
        const uint64_t a = tcgen05::blocked_descriptor(&values, sizeof(Panel)), b = tcgen05::swizzled_descriptor(&p);
#pragma unroll
        for (int step = 0; step < token_steps; ++step) {
            tcgen05::mma_bf16(c.column(d), tcgen05::advance(a, step * rows_step_bytes),
                              tcgen05::advance(b, step * rows_step_bytes), weight_instruction, step > 0);
        }
    }

    // The state += A rows: tokens are summed over.
    __device__ void update(int a, HeadTile& rows) const {
        const uint64_t tile = tcgen05::blocked_descriptor(&rows, sizeof(Panel));
#pragma unroll
        for (int step = 0; step < token_steps; ++step) {
            tcgen05::mma_bf16_tmem_a(c.column(TmemMap::state), c.column(a) + step * tcgen05::bf16_k_columns,
                                     tcgen05::advance(tile, step * rows_step_bytes), state_instruction, true);
        }
    }

    // The tiles of a chunk have been read, once all earlier products have. No commit may be left when the CTA ends:
    // those that no load waits for are not made.
    __device__ void release(int step, int stage) const {
        if (step + S::stages < c.count()) {
            tcgen05::commit(c.barriers().tiles.empty[stage]);
        }
    }

    // Q K^T, 64 rows.
    __device__ void scores(Tiles& of) const {
#pragma unroll
        for (int step = 0; step < dim_steps; ++step) {
            const int panel = step / token_steps;
            const uint32_t offset = step % token_steps * tcgen05::bf16_k_bytes;
            tcgen05::mma_bf16(c.column(TmemMap::scores),
                              tcgen05::advance(tcgen05::swizzled_descriptor(&of.q[panel]), offset),
                              tcgen05::advance(tcgen05::swizzled_descriptor(&of.k[panel]), offset), score_instruction,
                              step > 0);
        }
        tcgen05::commit(c.barriers().scores);
    }
};

// ---------------------------------------------------------------- row warps

struct PreparedChunk {
    int stage; // of its tiles
    int slot;  // of its factors
};

// What the row warps make of each chunk ahead of the state.
template <class Params>
class ChunkPreparer {
    const Context<Params>& c;
    TokenScalars scalars; // of the next chunk, for the first threads
    BarrierRing<S::stages>::Consumer tiles;
    BarrierRing<2>::Producer factors;
    PhaseCursor scores = PhaseCursor::waits_first();

    static __device__ int thread() { return thread_index() % warpgroup_threads; }

    // Starts the reads of a chunk's scalars, which arrive during the chunk before.
    __device__ void fetch(int step) {
        if (step < c.count() && thread() < chunk_tokens) {
            scalars.fetch(c.params, c.work, step, thread());
        }
    }

    // Rows past a short chunk belong to the next sequence, or lie past the tensor: whatever they hold, even NaN, must
    // not reach the state.
    __device__ void clear(Tiles& of, int tokens) const {
        for (HeadTile* tile : {&of.k, &of.q, &of.values}) {
            for (Panel& panel : *tile) {
#pragma unroll 1
                for (int i = tokens * Panel::units + thread(); i < chunk_tokens * Panel::units;
                     i += warpgroup_threads) {
                    reinterpret_cast<uint4*>(panel.bytes)[i] = make_uint4(0, 0, 0, 0);
                }
            }
        }
    }

  public:
    explicit __device__ ChunkPreparer(const Context<Params>& c)
        : c(c), tiles(c.barriers().tiles), factors(c.barriers().factors) {
        fetch(0);
    }

    // Waits for the tiles of the next chunk, and makes its factors.
    __device__ PreparedChunk prepare(int step) {
        const int slot = factors.acquire();
        const int tokens = c.work.walk.tokens(step);
        if (thread() < chunk_tokens) {
            scalars.write(c.shared.head.factors[slot], c.shared.head.pairs[slot], c.params.scale, thread(),
                          thread() < tokens);
        }
        fetch(step + 1);
        const int stage = tiles.wait();
        if (tokens < chunk_tokens) {
            clear(c.shared.tiles[stage], tokens);
        }
        hand_over(c.barriers().factors.full[slot]);
        named_barrier_sync(static_cast<uint32_t>(NamedBarrier::RowWarps), warpgroup_threads);
        return {stage, slot};
    }

    // The warp no longer reads the factors of a chunk.
    __device__ void release(const PreparedChunk& chunk) const {
        __syncwarp();
        if (thread() % 32 == 0) {
            c.barriers().factors.empty[chunk.slot].arrive();
        }
    }

    // P of a chunk. The caller knows that products no longer read the P before.
    __device__ void weigh(const PreparedChunk& chunk) {
        wait_for(scores, c.barriers().scores);
        float products[products_per_thread];
        tmem::load_fragment(products, c.own(TmemMap::scores));
        tmem::wait_load(products);
        write_weights(products, c.shared.head.pairs[chunk.slot], thread() / 32 * 16, c.shared.p);
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        signal(c.barriers().weights);
    }
};

// ---------------------------------------------------------------- load and store

// One thread. `queries`: whether Q is wanted.
template <class Params>
__device__ void load_tiles(const Context<Params>& c, const TensorMap& values, bool queries) {
    BarrierRing<S::stages>::Producer tiles(c.barriers().tiles), places(c.barriers().rows);
    const uint32_t bytes = sizeof(Tiles) - (queries ? 0 : sizeof(HeadTile));
    for (int step = 0; step < c.count(); ++step) {
        const int stage = tiles.acquire();
        places.acquire();
        Mbarrier& full = c.barriers().tiles.full[stage];
        Tiles& to = c.shared.tiles[stage];
        const int token = static_cast<int>(c.work.walk.token(step));
        full.arrive_expect(bytes);
        tensor_load<4>(to.k, c.params.k_map, {0, token, 0, c.work.head}, full);
#pragma unroll
        for (int panel = 0; panel < 2; ++panel) {
            tensor_load<4>(&to.values[panel], values, {0, token, panel, c.work.value_head}, full);
        }
        const int matrix = c.work.walk.chunk(step) * static_cast<int>(c.params.value_heads) + c.work.value_head;
        tensor_load<3>(&to.a, c.params.a_map, {0, 0, matrix}, full);
        if (queries) {
            tensor_load<4>(to.q, c.params.q_map, {0, token, 0, c.work.head}, full);
        }
    }
}

// Sends the rows of a chunk to a [tokens, value_heads, 128] tensor: by the copy engine where the chunk is whole. What
// follows a short chunk belongs to others. A warp.
template <class Params>
__device__ void send_rows(const Context<Params>& c, int step, HeadTile& from, const TensorMap& map, void* to) {
    const int64_t token = c.work.walk.token(step);
    const int tokens = c.work.walk.tokens(step), lane = thread_index() % 32;
    if (tokens == chunk_tokens) {
        if (lane == 0) {
            for (int panel = 0; panel < 2; ++panel) {
                tensor_store<4>(map, {0, static_cast<int>(token), panel, c.work.value_head}, &from[panel]);
            }
        }
        return;
    }
    constexpr int row_units = 2 * Panel::units;
    uint4* rows = static_cast<uint4*>(to) + (token * c.params.value_heads + c.work.value_head) * row_units;
    for (int i = lane; i < tokens * row_units; i += 32) {
        const int row = i / row_units, unit = i % row_units;
        rows[static_cast<int64_t>(row) * c.params.value_heads * row_units + unit] =
            *reinterpret_cast<const uint4*>(from[unit / Panel::units].at(row, unit % Panel::units));
    }
}

// A warp: send(step, tiles) sends what lies in the places of a chunk.
template <class Params, class Send>
__device__ void store_rows(const Context<Params>& c, Send send) {
    BarrierRing<S::stages>::Consumer rows(c.barriers().rows);
    for (int step = 0; step < c.count(); ++step) {
        const int stage = rows.wait();
        send(step, c.shared.tiles[stage]);
        if (thread_index() % 32 == 0) {
            commit_stores();
            wait_stores_read<0>();
        }
        hand_over(c.barriers().rows.empty[stage]);
    }
}

// One thread: the states of the chunks, to a tensor of [128 values, 128 keys] matrices.
template <class Params>
__device__ void store_states(const Context<Params>& c, const TensorMap& map) {
    BarrierRing<1>::Consumer ring(c.barriers().snapshot);
    for (int step = 0; step < c.count(); ++step) {
        ring.wait();
        const int matrix = c.work.walk.chunk(step) * static_cast<int>(c.params.value_heads) + c.work.value_head;
        for (int i = 0; i < snapshots; ++i) {
            tensor_store<4>(map, {0, i * Snapshot::rows, 0, matrix}, &c.shared.snapshot[i]);
        }
        commit_stores();
        wait_stores_read<0>();
        c.barriers().snapshot.empty[0].arrive();
    }
}

// ---------------------------------------------------------------- entry

template <int slots>
__device__ inline void init_ring(BarrierRing<slots>& ring, uint32_t full, uint32_t empty) {
    for (int slot = 0; slot < slots; ++slot) {
        ring.full[slot].init(full);
        ring.empty[slot].init(empty);
    }
}

// One thread, once. `row_senders`: warps that write the rows of a chunk; `aside`: arrivals on each of those barriers.
__device__ inline void init_barriers(Barriers& barriers, uint32_t row_senders, const uint32_t (&aside)[3]) {
    constexpr uint32_t copy = 1, commit = 1, sender = 1;
    init_ring(barriers.tiles, copy, commit + state_warps);
    init_ring(barriers.rows, row_senders, sender);
    init_ring(barriers.factors, row_warps, state_warps + row_warps);
    init_ring(barriers.snapshot, state_warps, sender);
    for (Mbarrier* barrier : {&barriers.operand, &barriers.bracket, &barriers.change}) {
        barrier->init(state_warps);
    }
    for (Mbarrier* barrier : {&barriers.read, &barriers.solved, &barriers.updated, &barriers.scores}) {
        barrier->init(commit);
    }
    barriers.weights.init(row_warps);
    for (int i = 0; i < 3; ++i) {
        barriers.aside[i].init(aside[i]);
    }
    fence_mbarrier_init();
}

// All threads, around everything. Barriers are initialised before.
__device__ inline void open_tensor_memory(SharedMap& shared) {
    if (thread_index() / 32 == 0) {
        __syncwarp();
        tmem::allocate(shared.head.tmem, TmemMap::columns);
    }
    tmem::fence_before_signal();
    __syncthreads();
    tmem::fence_after_wait();
}

__device__ inline void close_tensor_memory(SharedMap& shared) {
    __syncwarp();
    tmem::fence_before_signal();
    __syncthreads();
    if (thread_index() / 32 == 0) {
        tmem::free(shared.head.tmem, TmemMap::columns);
    }
}

} // namespace bakewell
