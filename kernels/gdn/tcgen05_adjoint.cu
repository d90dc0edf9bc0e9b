// Adjoint scan of the gated delta rule on the tcgen05 tensor cores, given the chunk inverses A.
//
//   dV2 = e^{c_last - c} o (K dS) + P^T dO    dVb = A^T dV2
//   dS- = e^{c_last} dS + Q^T (scale e^c o dO) - K^T (beta e^c o dVb)
//
// Chunks run from the last to the first. dS is stored at each chunk's end, before the update, and dVb goes where the
// tail finds it.
//
//   load  | tiles of earlier chunks ...
//   state | dS rounded |      | decay dS, dV2 |         | dVb                     |         | dS rounded      | ...
//   mma   |            | K dS                 | A^T dV2 | Q^T dO | Q K^T of i - 1 | K^T dVb | P^T dO of i - 1 | ...
//   row   | factors of i - 1                                     | P, scaled dO of i - 1    | ...

#include "tcgen05_adjoint_params.cuh"
#include "tcgen05_scan.cuh"

namespace bakewell {

using AdjointContext = Context<Params>;

// Beside the chain: the scaled dO is an operand, from the row warps; P^T dO is there.
enum Aside { grads, local };

// ---------------------------------------------------------------- state

class State : StateChain<State, Params> {
    using Chain = StateChain<State, Params>;
    friend Chain;

    PhaseCursor local = PhaseCursor::waits_first();

    // dV2 = e^{c_last - c} o (K dS) + P^T dO.
    __device__ void bracket(const Factors& of, HeadTile&, Words& dv2) {
        Sums sums, x;
        wait_for(local, c.barriers().aside[Aside::local]);
        load_sums(sums, TmemMap::sums);
        load_read(x);
        for_each_pair<StatePart::tokens / 2>(part.first_token(), [&](int i, int token) {
            const float2 decay = factors_of(of.decay, token);
#pragma unroll
            for (int upper = 0; upper < 2; ++upper) {
                dv2[upper][i / 2] = pack_bf16(fmaf(x[upper][i], decay.x, sums[upper][i]),
                                              fmaf(x[upper][i + 1], decay.y, sums[upper][i + 1]));
            }
        });
    }

    // -beta e^c o dVb; and dVb as it is.
    __device__ void change(const Factors& of, const Sums& x, Words& dvb, Words& erased) const {
        for_each_pair<StatePart::tokens / 2>(part.first_token(), [&](int i, int token) {
            const float2 erase = factors_of(of.erase, token);
#pragma unroll
            for (int upper = 0; upper < 2; ++upper) {
                dvb[upper][i / 2] = pack_bf16(x[upper][i], x[upper][i + 1]);
                erased[upper][i / 2] = pack_bf16(x[upper][i] * erase.x, x[upper][i + 1] * erase.y);
            }
        });
    }

    __device__ void follow(const Words&) const {}

    __device__ void load() const {
        if (c.work.last_segment) {
            const int64_t offset = c.state_offset(c.work.segment.sequence);
            load_state<StateLayout::keys>(c, c.params.dht ? c.params.dht + offset : nullptr);
        } else {
            load_state<StateLayout::values>(c, c.params.start + c.state_offset(c.work.segment_index));
        }
    }

  public:
    explicit __device__ State(const AdjointContext& c) : Chain(c) {}

    __device__ void run() {
        load();
        for (int step = 0; step < c.count(); ++step) {
            advance();
        }
        if (c.work.segment.index == 0 && c.params.dh0) {
            store_state(c, c.params.dh0 + c.state_offset(c.work.segment.sequence));
        }
    }
};

// ---------------------------------------------------------------- mma

class Multiplier {
    const AdjointContext& c;
    Products<Params> products;
    BarrierRing<S::stages>::Consumer tiles;
    BarrierRing<2>::Consumer factors;
    PhaseCursor operand = PhaseCursor::waits_first(), bracket = PhaseCursor::waits_first(),
                change = PhaseCursor::waits_first(), weights = PhaseCursor::waits_first(),
                grads = PhaseCursor::waits_first();

    // Q K^T of the next chunk; its stage.
    __device__ int score_next() {
        const int stage = tiles.wait();
        factors.wait();
        products.scores(c.shared.tiles[stage]);
        return stage;
    }

    // P^T dO of a chunk. The commit also says that nobody reads dO any more, whose place dVb takes.
    __device__ void multiply_weights(Tiles& of) {
        wait_for(weights, c.barriers().weights);
        products.by_weights(TmemMap::sums, of.values, c.shared.p);
        wait_for(grads, c.barriers().aside[Aside::grads]);
        tcgen05::commit(c.barriers().aside[Aside::local]);
    }

  public:
    explicit __device__ Multiplier(const AdjointContext& c)
        : c(c), products{c}, tiles(c.barriers().tiles), factors(c.barriers().factors) {}

    __device__ void run() {
        if (c.count() == 0) {
            return;
        }
        Barriers& barriers = c.barriers();
        int following = score_next();
        multiply_weights(c.shared.tiles[following]);
        for (int step = 0; step < c.count(); ++step) {
            const int stage = following;
            const bool more = step + 1 < c.count();
            Tiles& of = c.shared.tiles[stage];
            wait_for(operand, barriers.operand);
            products.by_rows(TmemMap::product, TmemMap::operand, of.k);
            tcgen05::commit(barriers.read);
            wait_for(bracket, barriers.bracket);
            products.by_square<tcgen05::Major::MN>(TmemMap::product, TmemMap::bracket, of.a);
            tcgen05::commit(barriers.solved);
            products.update(TmemMap::aside, of.q);
            if (more) {
                following = score_next();
            }
            wait_for(change, barriers.change);
            products.update(TmemMap::bracket, of.k);
            tcgen05::commit(barriers.updated);
            if (more) {
                multiply_weights(c.shared.tiles[following]);
            }
            products.release(step, stage);
        }
    }
};

// ---------------------------------------------------------------- row

class Row {
    const AdjointContext& c;
    ChunkPreparer<Params> preparer;
    int quarter = thread_index() / 32 % quarters;

    // scale e^c o dO as an operand. What read the one before has ended with the scores of this chunk.
    __device__ void scale_grads(const PreparedChunk& chunk) const {
        const Factors& of = c.shared.head.factors[chunk.slot];
#pragma unroll
        for (int upper = 0; upper < 2; ++upper) {
            FragmentWords<chunk_tokens> words;
            load_rows(words, c.shared.tiles[chunk.stage].values, quarter, upper, 0);
            for_each_pair<chunk_tokens / 2>(0, [&](int i, int token) {
                const float2 factor = factors_of(of.output, token);
                words[i / 2] = pack_bf16(low_float(words[i / 2]) * factor.x, high_float(words[i / 2]) * factor.y);
            });
            tmem::store_fragment(c.own(TmemMap::aside) + upper * (tmem::fragment_lanes << 16), words);
        }
        tmem::wait_store();
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        signal(c.barriers().aside[Aside::grads]);
    }

  public:
    explicit __device__ Row(const AdjointContext& c) : c(c), preparer(c) {}

    __device__ void run() {
        for (int step = 0; step < c.count(); ++step) {
            const PreparedChunk chunk = preparer.prepare(step);
            preparer.weigh(chunk);
            scale_grads(chunk);
            preparer.release(chunk);
        }
    }
};

// ---------------------------------------------------------------- entry

__device__ void run(const AdjointContext& c) {
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
            load_tiles(c, c.params.grad_o_map, true);
        }
        break;
    case Role::store_rows:
        store_rows(c, [&](int step, Tiles& of) { send_rows(c, step, of.values, c.params.dv_map, c.params.dv); });
        break;
    case Role::store_states:
        if (leader) {
            store_states(c, c.params.dh_map);
        }
        break;
    }
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, 1)
    gdn_adjoint_tcgen05(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(swizzle_period) uint8_t shared_bytes[];
    const AdjointContext c{params, *reinterpret_cast<SharedMap*>(shared_bytes), Work::of_block(params)};
    if (c.work.padding()) {
        return;
    }
    if (thread_index() == 0) {
        for (const TensorMap* map : {&params.q_map, &params.k_map, &params.grad_o_map, &params.a_map}) {
            prefetch_tensor_map(*map);
        }
        constexpr uint32_t row_senders = state_warps;
        init_barriers(c.barriers(), row_senders, {row_warps, 1, 1});
    }
    open_tensor_memory(c.shared);
    run(c);
    close_tensor_memory(c.shared);
}
