// Gradients of a chunk on the warpgroup tensor cores of sm_90a, once the states around it and dVb are known: what tail.cu
// computes, and its names.
//
// A value head comes in two halves of its value columns, through a ring. Two warpgroups have 64 of the key columns each: of
// the running sums over the value heads of a group, rq dQ and rk dK, and of what a value head adds to them. Of the products
// of tokens with tokens, the first makes those of q, the second those of k; R and N' + N'^T go round through shared memory.
//
//   loads     | halves ahead: dO, dVb, Vn, S, dS ...
//   factors   | gates, betas and norms of heads ahead, rows of an item ...
//   values    | dV of a half ...
//   sums      | <S, dS> of a half ...                                                          | dg, dbeta
//   consumers | dO S^T, dVb S^T, Vn dS^T, dO Vn^T or dVb Vn^T | Q K^T or K K^T  | R K, N' K, R^T Q | ... | dq, dk
//             | of either half                                | dots with q, k  |
//   barriers                                                            R, N' complete ^
//
// A CTA takes items, (chunk, key head), in turn.

#include "../device/barrier_ring.cuh"
#include "../device/mma_sync.cuh"
#include "../device/named_barrier.cuh"
#include "block_row.cuh"
#include "gate.cuh"
#include "gate_gradient.cuh"
#include "hopper_tail_params.cuh"
#include "hopper_tiles.cuh"
#include "schedule.cuh"
#include "tail_item.cuh"

#include <cstdint>
#include <cuda/ptx>

namespace bakewell {

using S = Schedule;

constexpr int halves = 2; // of a head's columns, value and key

constexpr int consumer_warpgroups = halves;
constexpr int consumer_warps = consumer_warpgroups * warpgroup_warps;
constexpr int consumer_threads = consumer_warpgroups * warpgroup_threads;
static_assert(S::threads == consumer_threads + warpgroup_threads, "roles and threads");

enum class NamedBarrier : uint32_t { consumers = 1 };

__device__ inline void consumers_meet() {
    named_barrier_sync(static_cast<uint32_t>(NamedBarrier::consumers), consumer_threads);
}

// 16 value rows of a state as one copy brings them: two panels of 64 key columns.
struct alignas(swizzle_period) StateRows {
    static constexpr int rows = wgmma::bf16_k;
    uint8_t panels[halves][rows * Panel::row_bytes];
};

// 64 value rows.
using StateHalf = StateRows[token_steps];

// Of a value head, 64 of its value columns. Rows past a short chunk: zeros, once they are ready.
struct ValueHalf {
    Panel grad_o;
    Panel dvb;
    Panel v_new;
    StateHalf h;
    StateHalf dh;
};

// Of a value head. Past a short chunk: zeros, and the gate of the last token.
struct Factors {
    uint64_t token; // first of the chunk
    uint32_t value_head;
    int tokens; // 0: no more heads
    float gate[chunk_tokens];
    float beta[chunk_tokens];
    float rq[chunk_tokens];
    float rk[chunk_tokens];
    float value_dot[chunk_tokens]; // <dVb_i, V_i> where beta does not divide, once there are sums

    // Of a tensor [tokens, value_heads].
    __device__ uint64_t index(int row, uint32_t value_heads) const { return (token + row) * value_heads + value_head; }
};

struct SharedMap {
    static constexpr int factor_slots = 2;
    static constexpr int barrier_bytes = (3 * S::stages + 2 * factor_slots + 4) * sizeof(Mbarrier);

    ValueHalf values[S::stages];
    HeadTile q; // at an item's end, its gradient
    HeadTile k;
    Panel r;
    Panel n; // N' + N'^T
    Factors factors[factor_slots];
    GateSums sums;
    float row_dots[2][halves][chunk_tokens]; // of dq and dk with their rows
    BarrierRing<S::stages> values_ring;
    Mbarrier values_ready[S::stages]; // of short chunks only
    BarrierRing<factor_slots> factors_ring;
    Mbarrier rows_full;
    Mbarrier rows_empty;
    Mbarrier sums_full;
    Mbarrier sums_empty;

    __device__ void init() {
        constexpr uint32_t copy = 1, warp = 1, consumers = consumer_warps;
        for (int stage = 0; stage < S::stages; ++stage) {
            values_ring.full[stage].init(copy);
            values_ring.empty[stage].init(consumers + 2 * warp);
            values_ready[stage].init(warp);
        }
        for (int slot = 0; slot < factor_slots; ++slot) {
            factors_ring.full[slot].init(warp);
            factors_ring.empty[slot].init(consumers + 2 * warp);
        }
        rows_full.init(copy);
        rows_empty.init(consumers);
        sums_full.init(consumers + warp);
        sums_empty.init(warp);
        fence_mbarrier_init();
    }
};

// All lanes are through with what the barrier guards.
__device__ inline void arrive_once(Mbarrier& barrier, int lane) {
    __syncwarp();
    if (lane == 0) {
        barrier.arrive();
    }
}

// The same where the copy engine writes next.
__device__ inline void release(Mbarrier& empty, int lane) {
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    arrive_once(empty, lane);
}

// One thread.
__device__ void load_halves(const Params& params, SharedMap& shared) {
    BarrierRing<S::stages>::Producer ring(shared.values_ring);
    for_each_head(params, [&](const Item& item, uint64_t value_head, bool) {
        const int token = static_cast<int>(item.token(0));
        const int head = static_cast<int>(value_head);
        const int state = static_cast<int>(item.chunk_index * params.value_heads) + head;
        // dVb of the rows past a short chunk may be in the middle of becoming their dV.
        const bool whole = item.tokens() == chunk_tokens;
#pragma unroll 1
        for (int half = 0; half < halves; ++half) {
            const int slot = ring.acquire();
            ValueHalf& to = shared.values[slot];
            Mbarrier& full = shared.values_ring.full[slot];
            full.arrive_expect(whole ? sizeof(ValueHalf) : sizeof(ValueHalf) - sizeof(Panel));
            tensor_load<4>(&to.grad_o, params.grad_o_map, {0, token, half, head}, full);
            if (whole) {
                tensor_load<4>(&to.dvb, params.dv_map, {0, token, half, head}, full);
            }
            tensor_load<4>(&to.v_new, params.v_new_map, {0, token, half, head}, full);
            for (int step = 0; step < token_steps; ++step) {
                const int row = half * Panel::columns + step * StateRows::rows;
                tensor_load<4>(&to.h[step], params.h_map, {0, row, 0, state}, full);
                tensor_load<4>(&to.dh[step], params.dh_map, {0, row, 0, state}, full);
            }
        }
    });
}

// One warp.
class FactorWarp {
    const Params& params;
    SharedMap& shared;
    const int lane;
    PhaseCursor rows_empty = PhaseCursor::passes_first();
    BarrierRing<SharedMap::factor_slots>::Producer factors;

  public:
    __device__ FactorWarp(const Params& params, SharedMap& shared, int lane)
        : params(params), shared(shared), lane(lane), factors(shared.factors_ring) {}

    __device__ void run() {
        for_each_head(params, [&](const Item& item, uint64_t value_head, bool first) {
            const int slot = factors.acquire();
            write_factors(shared.factors[slot], item, value_head);
            arrive_once(shared.factors_ring.full[slot], lane);
            if (first) {
                load_rows(item);
            }
        });
        const int slot = factors.acquire();
        shared.factors[slot].tokens = 0;
        arrive_once(shared.factors_ring.full[slot], lane);
    }

  private:
    __device__ void write_factors(Factors& to, const Item& item, uint64_t value_head) const {
        to.token = item.token(0);
        to.value_head = static_cast<uint32_t>(value_head);
        to.tokens = item.tokens();
#pragma unroll
        for (int row = lane; row < chunk_tokens; row += 32) {
            const bool live = row < item.tokens();
            const uint64_t token = item.token(live ? row : item.tokens() - 1);
            const float beta = load_beta(params.beta, params.beta_bf16, token * params.beta_token_stride + value_head);
            const float rq = params.rq[token * params.heads + item.head];
            const float rk = params.rk[token * params.heads + item.head];
            to.gate[row] = params.gate[token * params.value_heads + value_head];
            to.beta[row] = live ? beta : 0.0f;
            to.rq[row] = live ? rq : 0.0f;
            to.rk[row] = live ? rk : 0.0f;
        }
    }

    __device__ void load_rows(const Item& item) {
        rows_empty.wait(shared.rows_empty);
        if (lane == 0) {
            const int token = static_cast<int>(item.token(0));
            const int head = static_cast<int>(item.head);
            shared.rows_full.arrive_expect(2 * sizeof(HeadTile));
            tensor_load<4>(&shared.q, params.q_map, {0, token, 0, head}, shared.rows_full);
            tensor_load<4>(&shared.k, params.k_map, {0, token, 0, head}, shared.rows_full);
        }
        __syncwarp();
    }
};

// One warp: dV, and the rows that a short chunk does not have.
class ValueWarp {
    static constexpr int units = Panel::row_bytes / 16;
    static constexpr int rows_at_once = 32 / units;
    static constexpr int steps = chunk_tokens / rows_at_once;

    const Params& params;
    SharedMap& shared;
    int lane;
    PhaseCursor sums_empty = PhaseCursor::passes_first();
    BarrierRing<SharedMap::factor_slots>::Consumer factors;
    BarrierRing<S::stages>::Consumer values;

    __device__ int unit() const { return lane % units; }
    __device__ int row(int step) const { return lane / units + step * rows_at_once; }

  public:
    __device__ ValueWarp(const Params& params, SharedMap& shared, int lane)
        : params(params), shared(shared), lane(lane), factors(shared.factors_ring), values(shared.values_ring) {}

    __device__ void run() {
        for (;;) {
            const int factors_slot = factors.wait();
            Factors& head = shared.factors[factors_slot];
            if (head.tokens == 0) {
                return;
            }
#pragma unroll 1
            for (int half = 0; half < halves; ++half) {
                // Addresses are computed again rather than kept.
                asm volatile("" : "+r"(lane));
                const int slot = values.wait();
                ValueHalf& of = shared.values[slot];
                uint4* dv = static_cast<uint4*>(params.dv) + (head.index(0, params.value_heads) * halves + half) * units;
                if (head.tokens < chunk_tokens) {
                    complete(of, dv, head.tokens);
                    arrive_once(shared.values_ready[slot], lane);
                }
                store_dv(of.dvb, head, dv, half);
                release(shared.values_ring.empty[slot], lane);
            }
            sums_empty.wait(shared.sums_empty);
            arrive_once(shared.sums_full, lane);
            arrive_once(shared.factors_ring.empty[factors_slot], lane);
        }
    }

  private:
    // Units of 16 bytes between a token's values and the next one's.
    __device__ uint64_t token_units() const { return uint64_t{params.value_heads} * halves * units; }

    // dVb of the rows there are; zeros elsewhere, whatever another sequence has there.
    __device__ void complete(ValueHalf& of, const uint4* dvb, int tokens) const {
        const uint4 zeros = make_uint4(0, 0, 0, 0);
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            const bool live = row(step) < tokens;
            *reinterpret_cast<uint4*>(of.dvb.at(row(step), unit())) =
                live ? dvb[row(step) * token_units() + unit()] : zeros;
            if (!live) {
                *reinterpret_cast<uint4*>(of.grad_o.at(row(step), unit())) = zeros;
                *reinterpret_cast<uint4*>(of.v_new.at(row(step), unit())) = zeros;
            }
        }
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    }

    // dV = beta o dVb.
    __device__ void store_dv(const Panel& dvb, Factors& of, uint4* dv, int half) const {
        dv += row(0) * token_units() + unit();
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            const float beta = of.beta[row(step)];
            const bool live = row(step) < of.tokens;
            uint4 x = *reinterpret_cast<const uint4*>(dvb.at(row(step), unit()));
            const bool wanted = live && !divides(beta);
            if (__any_sync(full_warp, wanted)) {
                dot_values(of, x, half, row(step), wanted);
            }
            for (const auto word : {&uint4::x, &uint4::y, &uint4::z, &uint4::w}) {
                x.*word = pack_bf16(beta * low_float(x.*word), beta * high_float(x.*word));
            }
            if (live) {
                *dv = x;
            }
            dv += rows_at_once * token_units();
        }
    }

    // Adds <dVb_i, V_i> over a half. Whole warps.
    __device__ void dot_values(Factors& of, const uint4& dvb, int half, int row, bool wanted) const {
        float dot = 0.0f;
        if (wanted) {
            const char* first =
                row_of(params.v, of.token + row, params.v_token_stride, of.value_head, params.v_head_stride);
            const uint4 v = reinterpret_cast<const uint4*>(first)[half * units + unit()];
            for (const auto word : {&uint4::x, &uint4::y, &uint4::z, &uint4::w}) {
                dot = fmaf(low_float(dvb.*word), low_float(v.*word), dot);
                dot = fmaf(high_float(dvb.*word), high_float(v.*word), dot);
            }
        }
        for (int distance = 1; distance < units; distance *= 2) {
            dot += __shfl_xor_sync(full_warp, dot, distance);
        }
        if (wanted && unit() == 0) {
            of.value_dot[row] = half == 0 ? dot : of.value_dot[row] + dot;
        }
    }
};

// One warp: <S, dS>, and what follows from the sums of a head.
class SumWarp {
    const Params& params;
    SharedMap& shared;
    const int lane;
    PhaseCursor sums_full = PhaseCursor::waits_first();
    BarrierRing<SharedMap::factor_slots>::Consumer factors;
    BarrierRing<S::stages>::Consumer values;

  public:
    __device__ SumWarp(const Params& params, SharedMap& shared, int lane)
        : params(params), shared(shared), lane(lane), factors(shared.factors_ring), values(shared.values_ring) {}

    __device__ void run() {
        for (;;) {
            const int head = factors.wait();
            if (shared.factors[head].tokens == 0) {
                return;
            }
            DiagonalSum states;
#pragma unroll 1
            for (int half = 0; half < halves; ++half) {
                const int slot = values.wait();
                states.add(shared.values[slot], lane);
                release(shared.values_ring.empty[slot], lane);
            }
            put_states(states.of_lane(lane));
            sums_full.wait(shared.sums_full);
            store_gradients(shared.factors[head]);
            arrive_once(shared.sums_empty, lane);
            arrive_once(shared.factors_ring.empty[head], lane);
        }
    }

  private:
    // Row by row products of two tiles: the diagonals of matrix products of eight rows with eight, of which an instruction
    // has two. Tiles are permuted alike, so that any order of their rows will do.
    struct DiagonalSum {
        float upper[2][4] = {}; // wanted: elements 0 and 1
        float lower[2][4] = {}; // 2 and 3

        __device__ void add(const ValueHalf& of, int lane) {
            constexpr int step_bytes = 32 * 16;
            const uint32_t h = shared_address(of.h) + 16 * lane;
            const uint32_t dh = shared_address(of.dh) + 16 * lane;
#pragma unroll 4
            for (int step = 0; step < static_cast<int>(sizeof(StateHalf)) / step_bytes; ++step) {
                uint32_t a[4];
                uint32_t b[4];
                ldmatrix_x4(a, h + step * step_bytes);
                ldmatrix_x4(b, dh + step * step_bytes);
                mma_m16n8k16<Element::bf16>(upper[step % 2], a[0], a[1], a[2], a[3], b[0], b[2]);
                mma_m16n8k16<Element::bf16>(lower[step % 2], a[0], a[1], a[2], a[3], b[1], b[3]);
            }
        }

        __device__ float of_lane(int lane) const {
            const auto [group, pair] = FragmentLane::of(lane);
            const float even = upper[0][0] + upper[1][0] + (lower[0][2] + lower[1][2]);
            const float odd = upper[0][1] + upper[1][1] + (lower[0][3] + lower[1][3]);
            return group / 2 != pair ? 0.0f : group % 2 == 0 ? even : odd;
        }
    };

    // Four lanes to a part.
    __device__ void put_states(float sum) const {
        float part[2] = {sum, 0.0f};
        sum_of_row(part);
        static_assert(sizeof(GateSums::states) == 8 * sizeof(float));
        if (lane % 4 == 0) {
            shared.sums.states[lane / 4] = part[0];
        }
    }

    __device__ void store_gradients(const Factors& of) const {
        const GateSums& sums = shared.sums;
        const float2 dg = gate_gradient(sums, decay(of.gate[chunk_tokens - 1]), lane);
#pragma unroll 1
        for (int i = 0; i < 2; ++i) {
            const int row = lane + 32 * i;
            if (row >= of.tokens) {
                continue;
            }
            const float beta = of.beta[row];
            const float dbeta =
                divides(beta) ? sums.diagonal[row] / beta : gradient_without_quotient(sums, row, of.value_dot[row]);
            const uint64_t index = of.index(row, params.value_heads);
            params.dg[index] = i == 0 ? dg.x : dg.y;
            if (params.beta_bf16) {
                static_cast<__nv_bfloat16*>(params.dbeta)[index] = __float2bfloat16_rn(dbeta);
            } else {
                static_cast<float*>(params.dbeta)[index] = dbeta;
            }
        }
    }
};

// Phases of a barrier per slot that not every round needs.
class SlotPhases {
    uint32_t phases = 0;

  public:
    template <int slots>
    __device__ void wait(Mbarrier (&barriers)[slots], int slot) {
        barriers[slot].wait(phases >> slot & 1);
        phases ^= 1u << slot;
    }
};

class Consumer {
    const Params& params;
    SharedMap& shared;
    const int half; // of the key columns; the matrix that it makes: R or N'
    FragmentThread at = FragmentThread::here();
    PhaseCursor rows_full = PhaseCursor::waits_first();
    PhaseCursor sums_empty = PhaseCursor::passes_first();
    SlotPhases values_ready;
    BarrierRing<SharedMap::factor_slots>::Consumer factors_ring;
    BarrierRing<S::stages>::Consumer values_ring;
    wgmma::Accumulator64 dq; // rq dQ, over the heads of the group
    wgmma::Accumulator64 dk; // rk dK

  public:
    __device__ Consumer(const Params& params, SharedMap& shared, int half)
        : params(params), shared(shared), half(half), factors_ring(shared.factors_ring), values_ring(shared.values_ring) {}

    __device__ void run() {
        const uint32_t group = params.value_heads / params.heads;
        for_each_item(params, [&](const Item& item) {
#pragma unroll
            for (int i = 0; i < 32; ++i) {
                dq[i] = dk[i] = 0.0f;
            }
            for (uint32_t member = 0; member < group; ++member) {
                const int slot = add_head(item, member == 0);
                if (member + 1 == group) {
                    finish(item, shared.factors[slot]);
                }
                arrive_once(shared.factors_ring.empty[slot], at.lane);
            }
        });
    }

  private:
    // What a value head has of products with value columns.
    struct Products {
        wgmma::Accumulator64 from_o;   // dO S^T
        wgmma::Accumulator64 from_v;   // dVb S^T
        wgmma::Accumulator64 from_s;   // Vn dS^T
        wgmma::Accumulator64 gradient; // dO Vn^T, or dVb Vn^T
    };

    // Returns the slot of the head's factors.
    __device__ int add_head(const Item& item, bool first) {
        Products products;
        const int slots[halves] = {start_half<false>(products, item), start_half<true>(products, item)};
        wgmma::wait<1>();
        arrive_once(shared.values_ring.empty[slots[0]], at.lane);
        wgmma::wait<0>();
        wgmma::settle(products.from_o);
        wgmma::settle(products.from_v);
        wgmma::settle(products.from_s);
        wgmma::settle(products.gradient);
        arrive_once(shared.values_ring.empty[slots[1]], at.lane);

        const int slot = factors_ring.wait();
        const Factors& factors = shared.factors[slot];
        if (first) {
            wait_rows(item);
        }
        sums_empty.wait(shared.sums_empty);
        forget_addresses();
        float outer[2];
        add_from_states(products, factors, outer);
        wgmma::Accumulator64 product;
        start_product(product);
        add_from_outputs(products.from_o, factors, outer);
        wgmma::wait<0>();
        wgmma::settle(product);
        forget_addresses();
        make_matrix(product, products.gradient, factors);
        arrive_once(shared.sums_full, at.lane);
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        // R, N' are complete.
        consumers_meet();
        forget_addresses();
        add_matrices();
        return slot;
    }

    // What depends on the lane is computed again from here on. The compiler would keep addresses in registers through all
    // phases, and spill.
    __device__ void forget_addresses() { asm volatile("" : "+r"(at.lane), "+r"(at.warp)); }

    // Starts the products of a half of the value columns, and returns its slot.
    template <bool accumulate>
    __device__ int start_half(Products& products, const Item& item) {
        const int slot = values_ring.wait();
        if (item.tokens() < chunk_tokens) {
            values_ready.wait(shared.values_ready, slot);
        }
        const ValueHalf& values = shared.values[slot];
        wgmma::fence();
        multiply_state<accumulate>(products.from_o, values.grad_o, values.h);
        multiply_state<accumulate>(products.from_v, values.dvb, values.h);
        multiply_state<accumulate>(products.from_s, values.v_new, values.dh);
        const uint64_t left = wgmma::swizzled_descriptor(half == 0 ? &values.grad_o : &values.dvb);
        const uint64_t right = wgmma::swizzled_descriptor(&values.v_new);
#pragma unroll
        for (int step = 0; step < token_steps; ++step) {
            const uint32_t offset = step * wgmma::bf16_k_bytes;
            wgmma::mma_bf16<wgmma::Major::k>(products.gradient, wgmma::advance(left, offset),
                                             wgmma::advance(right, offset), accumulate || step > 0);
        }
        wgmma::commit();
        return slot;
    }

    // This warpgroup's key columns of rows times a state.
    template <bool accumulate>
    __device__ void multiply_state(wgmma::Accumulator64& d, const Panel& rows, const StateHalf& state) const {
        const uint64_t a = wgmma::swizzled_descriptor(&rows);
        const uint64_t b = wgmma::mn_descriptor(state[0].panels[half], sizeof(StateRows));
#pragma unroll
        for (int step = 0; step < token_steps; ++step) {
            wgmma::mma_bf16<wgmma::Major::mn>(d, wgmma::advance(a, step * wgmma::bf16_k_bytes),
                                              wgmma::advance(b, step * sizeof(StateRows)), accumulate || step > 0);
        }
    }

    // The item's rows of q and k, zeros past a short chunk.
    __device__ void wait_rows(const Item& item) {
        rows_full.wait(shared.rows_full);
        if (item.tokens() == chunk_tokens) {
            return;
        }
        constexpr int units = Panel::row_bytes / 16;
        const int thread = half * warpgroup_threads + 32 * at.warp + at.lane;
        for (Panel* panel : {&shared.q[0], &shared.q[1], &shared.k[0], &shared.k[1]}) {
#pragma unroll 1
            for (int i = item.tokens() * units + thread; i < chunk_tokens * units; i += consumer_threads) {
                reinterpret_cast<uint4*>(panel->bytes)[i] = make_uint4(0, 0, 0, 0);
            }
        }
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        consumers_meet();
    }

    // Two columns of a panel's row, as accumulator registers i and i + 1 are.
    __device__ float2 pair_of(const Panel& panel, int i) const {
        const uint32_t word = reinterpret_cast<const uint32_t*>(panel.at(at.row(i / 2 % 2), i / 4))[at.lane % 4];
        return make_float2(low_float(word), high_float(word));
    }

    // Dot products of the lane's two rows of an accumulator with the same columns of a panel, over the row's four lanes.
    __device__ void row_dots(float (&dots)[2], const wgmma::Accumulator64& d, const Panel& panel) const {
        dots[0] = dots[1] = 0.0f;
#pragma unroll
        for (int i = 0; i < 32; i += 2) {
            const float2 x = pair_of(panel, i);
            dots[i / 2 % 2] = fmaf(d[i + 1], x.y, fmaf(d[i], x.x, dots[i / 2 % 2]));
        }
        sum_of_row(dots);
    }

    __device__ static void add_scaled(wgmma::Accumulator64& to, const wgmma::Accumulator64& from,
                                      const float (&factors)[2]) {
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            to[i] = fmaf(factors[i / 2 % 2], from[i], to[i]);
        }
    }

    // to[row] = value, from one of the lanes that hold it.
    __device__ void put_rows(float (&to)[chunk_tokens], const float (&values)[2]) const {
        if (at.lane % 4 == 0) {
            to[at.row(0)] = values[0];
            to[at.row(1)] = values[1];
        }
    }

    // dk += to_end o (Vn dS^T) + back o (dVb S^T). `outer`: the second term's part of a.
    __device__ void add_from_states(const Products& products, const Factors& factors, float (&outer)[2]) {
        float inner[2];
        float value[2];
        row_dots(inner, products.from_s, shared.k[half]);
        row_dots(value, products.from_v, shared.k[half]);
        float to_end[2];
        float back[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = at.row(i);
            const float rk = factors.rk[row];
            to_end[i] = decay(factors.gate[chunk_tokens - 1] - factors.gate[row]) * rk;
            const float from_start = decay(factors.gate[row]) * rk;
            back[i] = -factors.beta[row] * from_start;
            inner[i] *= to_end[i];
            outer[i] = back[i] * value[i];
            value[i] *= from_start;
        }
        put_rows(shared.sums.inner[half], inner);
        put_rows(shared.sums.state_value[half], value);
        add_scaled(dk, products.from_s, to_end);
        add_scaled(dk, products.from_v, back);
    }

    // dq += from_start o (dO S^T).
    __device__ void add_from_outputs(const wgmma::Accumulator64& from_o, const Factors& factors, float (&outer)[2]) {
        float dots[2];
        row_dots(dots, from_o, shared.q[half]);
        float from_start[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = at.row(i);
            from_start[i] = params.scale * decay(factors.gate[row]) * factors.rq[row];
            outer[i] = fmaf(from_start[i], dots[i], outer[i]);
        }
        put_rows(shared.sums.outer[half], outer);
        add_scaled(dq, from_o, from_start);
    }

    // Starts Q K^T or K K^T.
    __device__ void start_product(wgmma::Accumulator64& product) const {
        const HeadTile& left = half == 0 ? shared.q : shared.k;
        const HeadTile& right = shared.k;
        wgmma::fence();
#pragma unroll
        for (int step = 0; step < dim_steps; ++step) {
            const uint32_t offset = step % token_steps * wgmma::bf16_k_bytes;
            const int panel = step / token_steps;
            wgmma::mma_bf16<wgmma::Major::k>(product, wgmma::advance(wgmma::swizzled_descriptor(&left[panel]), offset),
                                             wgmma::advance(wgmma::swizzled_descriptor(&right[panel]), offset),
                                             step > 0);
        }
        wgmma::commit();
    }

    // R or N' + N'^T to shared memory, and their part of Z to the sums.
    __device__ void make_matrix(wgmma::Accumulator64& product, wgmma::Accumulator64& gradient, const Factors& factors) {
        const TokenFactors of{factors.gate, factors.beta, factors.rq, factors.rk, params.scale};
        BlockRow row(half, at.warp, at.lane, of, shared.sums);
        // Both warpgroups have multiplied what the last head left in its place.
        consumers_meet();
        float diagonal_product[2][4];
        float diagonal_gradient[2][4];
#pragma unroll
        for (int j = 0; j < token_steps; ++j) {
            auto& block_product = reinterpret_cast<float (&)[2][4]>(product[8 * j]);
            auto& block_gradient = reinterpret_cast<float (&)[2][4]>(gradient[8 * j]);
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                if (j == 0 || j == at.warp) {
                    diagonal_product[e / 4][e % 4] = block_product[e / 4][e % 4];
                    diagonal_gradient[e / 4][e % 4] = block_gradient[e / 4][e % 4];
                }
            }
            if (j < at.warp) {
                row.add_left(block_product, block_gradient, j);
                wgmma::Fragment words;
                pack_block(words, block_gradient);
                store_block(words, j);
            }
        }
        row.add_diagonal(diagonal_product, diagonal_gradient);
        wgmma::Fragment words;
        pack_block(words, diagonal_gradient);
        store_diagonal(words);
        row.finish();
    }

    __device__ static void pack_block(wgmma::Fragment& to, const float (&block)[2][4]) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            to[j] = pack_bf16(block[j / 2][j % 2 * 2], block[j / 2][j % 2 * 2 + 1]);
        }
    }

    // A block left of the diagonal, and what is opposite: nothing, or its transpose.
    __device__ void store_block(const wgmma::Fragment& m, int j) {
        if (half == 0) {
            stmatrix_x4(at.direct(shared.r, j), m[0], m[1], m[2], m[3]);
            stmatrix_x4_transposed(at.transposed(shared.r, j), 0, 0, 0, 0);
        } else {
            stmatrix_x4(at.direct(shared.n, j), m[0], m[1], m[2], m[3]);
            stmatrix_x4_transposed(at.transposed(shared.n, j), m[0], m[1], m[2], m[3]);
        }
    }

    // The diagonal block. Above its own diagonal are zeros, so that N' + N'^T has the bits of either.
    __device__ void store_diagonal(const wgmma::Fragment& m) {
        if (half == 0) {
            stmatrix_x4(at.direct(shared.r, at.warp), m[0], m[1], m[2], m[3]);
        } else {
            stmatrix_x4(at.direct(shared.n, at.warp), m[0] | transpose_8x8(m[0]), m[1], transpose_8x8(m[1]),
                        m[3] | transpose_8x8(m[3]));
        }
    }

    // dq += R K, dk += (N' + N'^T) K + R^T Q.
    __device__ void add_matrices() {
        wgmma::Fragment transposed[token_steps];
#pragma unroll
        for (int step = 0; step < token_steps; ++step) {
            ldmatrix_x4_transposed(transposed[step], at.transposed(shared.r, step));
        }
        const uint64_t r = wgmma::swizzled_descriptor(&shared.r);
        const uint64_t n = wgmma::swizzled_descriptor(&shared.n);
        const uint64_t q = wgmma::mn_descriptor(&shared.q[half], sizeof(Panel));
        const uint64_t k = wgmma::mn_descriptor(&shared.k[half], sizeof(Panel));
        wgmma::fence();
#pragma unroll
        for (int step = 0; step < token_steps; ++step) {
            const uint32_t columns = step * wgmma::bf16_k_bytes;
            const uint64_t of_k = wgmma::advance(k, step * mn_step_bytes);
            wgmma::mma_bf16<wgmma::Major::mn>(dq, wgmma::advance(r, columns), of_k, true);
            wgmma::mma_bf16<wgmma::Major::mn>(dk, wgmma::advance(n, columns), of_k, true);
        }
#pragma unroll
        for (int step = 0; step < token_steps; ++step) {
            wgmma::mma_bf16<wgmma::Major::mn>(dk, transposed[step], wgmma::advance(q, step * mn_step_bytes), true);
        }
        wgmma::commit();
        wgmma::wait<0>();
        wgmma::settle(dq);
        wgmma::settle(dk);
    }

    // Through the norms, rounded, to memory.
    __device__ void finish(const Item& item, const Factors& factors) {
        forget_addresses();
        float dots[2];
        row_dots(dots, dq, shared.q[half]);
        put_rows(shared.row_dots[0][half], dots);
        row_dots(dots, dk, shared.k[half]);
        put_rows(shared.row_dots[1][half], dots);
        // Also: the products that read q and k are done.
        consumers_meet();
        if (params.l2norm) {
            subtract_along(dq, shared.q[half], factors.rq, shared.row_dots[0]);
            subtract_along(dk, shared.k[half], factors.rk, shared.row_dots[1]);
        }
        store(params.dq, dq, shared.q[half], item);
        store(params.dk, dk, shared.k[half], item);
        release(shared.rows_empty, at.lane);
    }

    // d - <d, y> y, y = r x.
    __device__ void subtract_along(wgmma::Accumulator64& d, const Panel& x, const float (&r)[chunk_tokens],
                                   const float (&dots)[halves][chunk_tokens]) const {
        float norm[2];
        float factor[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = at.row(i);
            norm[i] = r[row];
            factor[i] = (dots[0][row] + dots[1][row]) * norm[i];
        }
#pragma unroll
        for (int i = 0; i < 32; i += 2) {
            const int of_row = i / 2 % 2;
            const float2 pair = pair_of(x, i);
            d[i] = fmaf(-factor[of_row], pair.x * norm[of_row], d[i]);
            d[i + 1] = fmaf(-factor[of_row], pair.y * norm[of_row], d[i + 1]);
        }
    }

    // 16 rows per warp, by way of where the same rows of q or k were.
    __device__ void store(void* to, const wgmma::Accumulator64& sum, Panel& place, const Item& item) {
        __syncwarp();
#pragma unroll
        for (int step = 0; step < token_steps; ++step) {
            wgmma::Fragment m;
            pack_fragment(m, step, [&](int i) { return sum[i]; });
            stmatrix_x4(at.direct(place, step), m[0], m[1], m[2], m[3]);
        }
        __syncwarp();
        constexpr int units = Panel::row_bytes / 16;
        const int unit = at.lane % units;
#pragma unroll
        for (int i = 0; i < 16 * units / 32; ++i) {
            const int row = 16 * at.warp + at.lane / units + i * (32 / units);
            if (row < item.tokens()) {
                const uint64_t index = item.token(row) * params.heads + item.head;
                static_cast<uint4*>(to)[(index * halves + half) * units + unit] =
                    *reinterpret_cast<const uint4*>(place.at(row, unit));
            }
        }
    }
};

enum class Role { consumer, loads, factors, values, sums };

__device__ Role role_of(int warp) {
    switch (warp - consumer_warps) {
    case 0:
        return Role::loads;
    case 1:
        return Role::factors;
    case 2:
        return Role::values;
    case 3:
        return Role::sums;
    default:
        return Role::consumer;
    }
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, 1)
    gdn_tail_wgmma(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(swizzle_period) uint8_t shared_bytes[];
    static_assert(sizeof(SharedMap) == S::dynamic_shared_bytes, "the schedule's budget");
    SharedMap& shared = *reinterpret_cast<SharedMap*>(shared_bytes);
    if (threadIdx.x == 0) {
        shared.init();
        for (const TensorMap* map : {&params.q_map, &params.k_map, &params.grad_o_map, &params.v_new_map, &params.dv_map,
                                     &params.h_map, &params.dh_map}) {
            prefetch_tensor_map(*map);
        }
    }
    __syncthreads();
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    if (role_of(warp) == Role::consumer) {
        cuda::ptx::setmaxnreg_inc(cuda::ptx::n32_t<S::consumer_registers>{});
        Consumer(params, shared, warp / warpgroup_warps).run();
        return;
    }
    cuda::ptx::setmaxnreg_dec(cuda::ptx::n32_t<S::other_registers>{});
    switch (role_of(warp)) {
    case Role::loads:
        if (lane == 0) {
            load_halves(params, shared);
        }
        break;
    case Role::factors:
        FactorWarp(params, shared, lane).run();
        break;
    case Role::values:
        ValueWarp(params, shared, lane).run();
        break;
    default:
        SumWarp(params, shared, lane).run();
        break;
    }
}
