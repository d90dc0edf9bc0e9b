// The scans on tensor memory: the state, the chain of links that takes it through a chunk, and its products.
#pragma once

#include "../device/tcgen05_bf16.cuh"
#include "tcgen05_memory.cuh"

namespace bakewell {

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

} // namespace bakewell
