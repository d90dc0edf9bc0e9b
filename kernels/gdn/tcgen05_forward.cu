// Forward scan of the gated delta rule on the tcgen05 tensor cores, given the chunk inverses A.
//
//   X = V - e^c o (K S)               Vn = A (beta o X)
//   O = scale e^c o (Q S) + P Vn      S+ = e^{c_last} S + K^T (e^{c_last - c} o Vn)
//
// r_q and r_k of the l2 norm are folded into the factors; q and k are the caller's own tensors.
//
//   load  | tiles of later chunks ...
//   state | S rounded |     | decay S, Y |     | Vn             |        | S of i + 1 rounded | ...
//   mma   |           | K S | Q S        | A Y | Q K^T of i + 1 | K^T Vn | P Vn               | K S of i + 1 | ...
//   row   | factors of i + 1                                                                  | O, P of i + 1 | ...
//
// With a tape, Vn and the state at each chunk's start are stored as well; without `o` they alone are.

#include "tcgen05_forward_params.cuh"
#include "tcgen05_scan.cuh"

namespace bakewell {

using ForwardContext = Context<Params>;

// Beside the chain: Vn is an operand, from the state warps; Q S and P Vn are there; and the row warps have read them.
enum Aside { values, output, output_read };

__device__ inline bool wants_output(const Params& params) { return !S::snapshots || params.o != nullptr; }

// ---------------------------------------------------------------- state

class State : StateChain<State, Params> {
    using Chain = StateChain<State, Params>;
    friend Chain;

    bool output;

    // Y = beta o V - beta e^c o (K S).
    __device__ void bracket(const Factors& of, HeadTile& values, Words& v) {
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
            load_rows(v[upper], values, part.quarter, upper, part.first_token());
        }
        Sums x;
        load_read(x);
        for_each_pair<StatePart::tokens / 2>(part.first_token(), [&](int i, int token) {
            const float2 beta = factors_of(of.beta, token), erase = factors_of(of.erase, token);
#pragma unroll
            for (int upper = 0; upper < 2; ++upper) {
                uint32_t& word = v[upper][i / 2];
                word = pack_bf16(fmaf(beta.x, low_float(word), erase.x * x[upper][i]),
                                 fmaf(beta.y, high_float(word), erase.y * x[upper][i + 1]));
            }
        });
    }

    // Vn decayed to the end of the chunk; and as it is.
    __device__ void change(const Factors& of, const Sums& x, Words& v_new, Words& decayed) const {
        for_each_pair<StatePart::tokens / 2>(part.first_token(), [&](int i, int token) {
            const float2 decay = factors_of(of.decay, token);
#pragma unroll
            for (int upper = 0; upper < 2; ++upper) {
                v_new[upper][i / 2] = pack_bf16(x[upper][i], x[upper][i + 1]);
                decayed[upper][i / 2] = pack_bf16(x[upper][i] * decay.x, x[upper][i + 1] * decay.y);
            }
        });
    }

    __device__ void follow(const Words& v_new) const {
        if (output) {
            store_operand(TmemMap::aside, v_new);
            signal(c.barriers().aside[Aside::values]);
        }
    }

    __device__ void load() const {
        if (c.work.segment.index > 0) {
            load_state<StateLayout::values>(c, c.params.start + c.state_offset(c.work.segment_index));
        } else {
            const int64_t offset = c.state_offset(c.work.segment.sequence);
            load_state<StateLayout::keys>(c, c.params.h0 ? c.params.h0 + offset : nullptr);
        }
    }

  public:
    explicit __device__ State(const ForwardContext& c) : Chain(c), output(wants_output(c.params)) {}

    __device__ void run() {
        load();
        for (int step = 0; step < c.count(); ++step) {
            advance();
        }
        if (c.work.last_segment && c.params.ht) {
            store_state(c, c.params.ht + c.state_offset(c.work.segment.sequence));
        }
    }
};

// ---------------------------------------------------------------- mma

class Multiplier {
    const ForwardContext& c;
    bool output;
    Products<Params> products;
    BarrierRing<S::stages>::Consumer tiles;
    BarrierRing<2>::Consumer factors;
    PhaseCursor operand = PhaseCursor::waits_first(), bracket = PhaseCursor::waits_first(),
                change = PhaseCursor::waits_first(), weights = PhaseCursor::waits_first(),
                v_new = PhaseCursor::waits_first(), output_read = PhaseCursor::passes_first();

    // The stage of the next chunk, complete and cleared.
    __device__ int next() {
        const int stage = tiles.wait();
        factors.wait();
        return stage;
    }

    // Q S, behind K S.
    __device__ void multiply_queries(Tiles& of) {
        wait_for(output_read, c.barriers().aside[Aside::output_read]);
        products.by_rows(TmemMap::sums, TmemMap::operand, of.q);
    }

    __device__ void multiply_weights() {
        wait_for(v_new, c.barriers().aside[Aside::values]);
        products.by_square<tcgen05::Major::K>(TmemMap::sums + chunk_tokens, TmemMap::aside, c.shared.p);
        tcgen05::commit(c.barriers().aside[Aside::output]);
    }

  public:
    explicit __device__ Multiplier(const ForwardContext& c)
        : c(c), output(wants_output(c.params)), products{c}, tiles(c.barriers().tiles), factors(c.barriers().factors) {}

    __device__ void run() {
        if (c.count() == 0) {
            return;
        }
        Barriers& barriers = c.barriers();
        int following = next();
        if (output) {
            products.scores(c.shared.tiles[following]);
        }
        for (int step = 0; step < c.count(); ++step) {
            const int stage = following;
            const bool more = step + 1 < c.count();
            Tiles& of = c.shared.tiles[stage];
            wait_for(operand, barriers.operand);
            products.by_rows(TmemMap::product, TmemMap::operand, of.k);
            tcgen05::commit(barriers.read);
            if (output) {
                multiply_queries(of);
            }
            wait_for(bracket, barriers.bracket);
            products.by_square<tcgen05::Major::K>(TmemMap::product, TmemMap::bracket, of.a);
            tcgen05::commit(barriers.solved);
            if (more) {
                following = next();
            }
            if (output) {
                wait_for(weights, barriers.weights);
                if (more) {
                    products.scores(c.shared.tiles[following]);
                }
            }
            wait_for(change, barriers.change);
            products.update(TmemMap::bracket, of.k);
            tcgen05::commit(barriers.updated);
            if (output) {
                multiply_weights();
            }
            products.release(step, stage);
        }
    }
};

// ---------------------------------------------------------------- row

class Row {
    const ForwardContext& c;
    ChunkPreparer<Params> preparer;
    PhaseCursor output = PhaseCursor::waits_first();
    int quarter = thread_index() / 32 % quarters;

    // O = scale e^c o (Q S) + P Vn of 16 values.
    __device__ void combine(FragmentWords<chunk_tokens>& words, const Factors& of, int upper) const {
        Fragment<chunk_tokens> read, added;
        const uint32_t address = c.own(TmemMap::sums) + upper * (tmem::fragment_lanes << 16);
        tmem::load_fragment(read, address);
        tmem::load_fragment(added, address + chunk_tokens);
        tmem::wait_load(read);
        tmem::wait_load(added);
        for_each_pair<chunk_tokens / 2>(0, [&](int i, int token) {
            const float2 factor = factors_of(of.output, token);
            words[i / 2] = pack_bf16(fmaf(factor.x, read[i], added[i]), fmaf(factor.y, read[i + 1], added[i + 1]));
        });
    }

    // Leaves O in the place of Q.
    __device__ void finish(const PreparedChunk& chunk) {
        wait_for(output, c.barriers().aside[Aside::output]);
        const Factors& of = c.shared.head.factors[chunk.slot];
        FragmentWords<chunk_tokens> words[2];
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
            combine(words[upper], of, upper);
        }
        signal(c.barriers().aside[Aside::output_read]);
        for (int upper = 0; upper < 2; ++upper) {
            stage_rows(c.shared.tiles[chunk.stage].q, quarter, upper, 0, words[upper]);
        }
        hand_over(c.barriers().rows.full[chunk.stage]);
    }

  public:
    explicit __device__ Row(const ForwardContext& c) : c(c), preparer(c) {}

    __device__ void run() {
        if (c.count() == 0) {
            return;
        }
        const bool output = wants_output(c.params);
        PreparedChunk following = preparer.prepare(0);
        if (output) {
            preparer.weigh(following);
        }
        for (int step = 0; step < c.count(); ++step) {
            const PreparedChunk chunk = following;
            const bool more = step + 1 < c.count();
            if (more) {
                following = preparer.prepare(step + 1);
            }
            if (output) {
                finish(chunk);
            }
            preparer.release(chunk);
            if (output && more) {
                preparer.weigh(following);
            }
        }
    }
};

// ---------------------------------------------------------------- entry

__device__ void run(const ForwardContext& c) {
    const bool leader = thread_index() % 32 == 0;
    switch (role_of(thread_index() / 32)) {
    case Role::state:
        State(c).run();
        break;
    case Role::row:
        Row(c).run();
        break;
    case Role::mma:
        if (leader) {
            Multiplier(c).run();
        }
        break;
    case Role::load:
        if (leader) {
            load_tiles(c, c.params.v_map, wants_output(c.params));
        }
        break;
    case Role::store_rows:
        store_rows(c, [&](int step, Tiles& of) {
            if (S::snapshots && c.params.v_new) {
                send_rows(c, step, of.values, c.params.v_new_map, c.params.v_new);
            }
            if (c.params.o) {
                send_rows(c, step, of.q, c.params.o_map, c.params.o);
            }
        });
        break;
    case Role::store_states:
        if (S::snapshots && leader) {
            store_states(c, c.params.h_map);
        }
        break;
    }
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, 1)
    gdn_forward_tcgen05(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(swizzle_period) uint8_t shared_bytes[];
    const ForwardContext c{params, *reinterpret_cast<SharedMap*>(shared_bytes), Work::of_block(params)};
    if (c.work.padding()) {
        return;
    }
    if (thread_index() == 0) {
        for (const TensorMap* map : {&params.q_map, &params.k_map, &params.v_map, &params.a_map}) {
            prefetch_tensor_map(*map);
        }
        const uint32_t row_senders = (wants_output(params) ? row_warps : 0) + (S::snapshots ? state_warps : 0);
        init_barriers(c.barriers(), row_senders, {state_warps, 1, row_warps});
    }
    open_tensor_memory(c.shared);
    run(c);
    close_tensor_memory(c.shared);
}
