// Gradients of a chunk on the warpgroup tensor cores of sm_90a, once the states around it and dVb are known: what tail.cu
// computes, and its names.
//
// A value head comes in two halves of its value columns, through a ring. Two warpgroups have 64 of the key columns each: of
// the running sums over the value heads of a group, rq dQ and rk dK, and of what a value head adds to them. Of the products
// of tokens with tokens, the first makes those of q, the second those of k; R and N' + N'^T go round through shared memory.
//
//   loads     | halves ahead: dO, dVb, Vn, S, dS ...
//   factors   | gates, betas and norms of a head; rows of an item | dg, dbeta ...
//   streams   | <S, dS>, dV of a half ...
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
constexpr int stream_warps = 2;
constexpr int stream_threads = stream_warps * 32;
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
    float gate[chunk_tokens];
    float beta[chunk_tokens];
    float rq[chunk_tokens];
    float rk[chunk_tokens];
};

struct SharedMap {
    static constexpr int barrier_bytes = (2 * S::stages + 4 + halves) * sizeof(Mbarrier);

    ValueHalf values[S::stages];
    HeadTile q; // at an item's end, its gradient
    HeadTile k;
    Panel r;
    Panel n; // N' + N'^T
    Factors factors[2];
    GateSums sums;
    float value_dots[halves][chunk_tokens];     // <dVb_i, V_i> where beta does not divide
    float row_dots[2][halves][chunk_tokens];    // of dq and dk with their rows
    BarrierRing<S::stages> ring;
    Mbarrier rows_full;
    Mbarrier rows_empty;
    Mbarrier rows_ready[halves]; // of a short chunk
    Mbarrier factors_full;       // also: sums may be written again
    Mbarrier sums_full;

    __device__ void init() {
        constexpr uint32_t copy = 1, warp = 1;
        for (int stage = 0; stage < S::stages; ++stage) {
            ring.full[stage].init(copy);
            ring.empty[stage].init(consumer_warps + stream_warps);
        }
        rows_full.init(copy);
        rows_empty.init(consumer_warps);
        for (Mbarrier& ready : rows_ready) {
            ready.init(stream_warps);
        }
        factors_full.init(warp);
        sums_full.init(consumer_warps + stream_warps);
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
    BarrierRing<S::stages>::Producer ring(shared.ring);
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
            Mbarrier& full = shared.ring.full[slot];
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

// One warp: what precedes the products of a head, and what follows from its sums.
class FactorWarp {
    const Params& params;
    SharedMap& shared;
    const int lane;
    PhaseCursor rows_empty = PhaseCursor::passes_first();
    PhaseCursor sums_full = PhaseCursor::waits_first();

  public:
    __device__ FactorWarp(const Params& params, SharedMap& shared, int lane)
        : params(params), shared(shared), lane(lane) {}

    __device__ void run() {
        int turn = 0;
        for_each_head(params, [&](const Item& item, uint64_t value_head, bool first) {
            Factors& factors = shared.factors[turn];
            turn ^= 1;
            write_factors(factors, item, value_head);
            arrive_once(shared.factors_full, lane);
            if (first) {
                load_rows(item);
            }
            sums_full.wait(shared.sums_full);
            store_gate_gradients(factors, item, value_head);
        });
    }

  private:
    __device__ void write_factors(Factors& to, const Item& item, uint64_t value_head) const {
#pragma unroll 1
        for (int row = lane; row < chunk_tokens; row += 32) {
            const bool live = row < item.tokens();
            const uint64_t token = item.token(live ? row : item.tokens() - 1);
            const float beta =
                load_beta(params.beta, params.beta_bf16, token * params.beta_token_stride + value_head);
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

    __device__ void store_gate_gradients(const Factors& factors, const Item& item, uint64_t value_head) const {
        const GateSums& sums = shared.sums;
        const float2 dg = gate_gradient(sums, decay(factors.gate[chunk_tokens - 1]), lane);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int row = lane + 32 * i;
            if (row >= item.tokens()) {
                continue;
            }
            const float beta = factors.beta[row];
            const float dbeta =
                divides(beta)
                    ? sums.diagonal[row] / beta
                    : gradient_without_quotient(sums, row, shared.value_dots[0][row] + shared.value_dots[1][row]);
            const uint64_t index = item.token(row) * params.value_heads + value_head;
            params.dg[index] = i == 0 ? dg.x : dg.y;
            if (params.beta_bf16) {
                static_cast<__nv_bfloat16*>(params.dbeta)[index] = __float2bfloat16_rn(dbeta);
            } else {
                static_cast<float*>(params.dbeta)[index] = dbeta;
            }
        }
    }
};

// Two warps: what a half gives by itself, and the rows that a short chunk does not have.
class Streams {
    static constexpr int units = Panel::row_bytes / 16;
    static constexpr int rows_at_once = stream_threads / units;

    const Params& params;
    SharedMap& shared;
    int thread;
    PhaseCursor factors_full = PhaseCursor::waits_first();
    BarrierRing<S::stages>::Consumer ring;

    __device__ int lane() const { return thread % 32; }
    __device__ int unit() const { return thread % units; }
    __device__ int row(int i) const { return thread / units + i * rows_at_once; }

  public:
    __device__ Streams(const Params& params, SharedMap& shared, int thread)
        : params(params), shared(shared), thread(thread), ring(shared.ring) {}

    __device__ void run() {
        int turn = 0;
        for_each_head(params, [&](const Item& item, uint64_t value_head, bool) {
            factors_full.wait(shared.factors_full);
            const Factors& factors = shared.factors[turn];
            turn ^= 1;
            float states = 0.0f;
#pragma unroll 1
            for (int half = 0; half < halves; ++half) {
                // Addresses are computed again rather than kept.
                asm volatile("" : "+r"(thread));
                const int slot = ring.wait();
                ValueHalf& values = shared.values[slot];
                if (item.tokens() < chunk_tokens) {
                    complete(values, item, value_head, half);
                }
                store_dv(values, factors, item, value_head, half);
                multiply_states(states, values);
                release(shared.ring.empty[slot], lane());
            }
            put_states(states);
            arrive_once(shared.sums_full, lane());
        });
    }

  private:
    // Sixteen bytes of a value head's row.
    __device__ uint4* of_dv(const Item& item, uint64_t value_head, int half, int row) const {
        const uint64_t index = item.token(row) * params.value_heads + value_head;
        return static_cast<uint4*>(params.dv) + (index * halves + half) * units + unit();
    }

    // dVb of the rows there are; zeros elsewhere, whatever another sequence has there.
    __device__ void complete(ValueHalf& values, const Item& item, uint64_t value_head, int half) {
        const uint4 zeros = make_uint4(0, 0, 0, 0);
#pragma unroll 1
        for (int i = 0; i < chunk_tokens / rows_at_once; ++i) {
            const bool live = row(i) < item.tokens();
            *reinterpret_cast<uint4*>(values.dvb.at(row(i), unit())) =
                live ? *of_dv(item, value_head, half, row(i)) : zeros;
            if (!live) {
                *reinterpret_cast<uint4*>(values.grad_o.at(row(i), unit())) = zeros;
                *reinterpret_cast<uint4*>(values.v_new.at(row(i), unit())) = zeros;
            }
        }
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        arrive_once(shared.rows_ready[half], lane());
    }

    // dV = beta o dVb.
    __device__ void store_dv(const ValueHalf& values, const Factors& factors, const Item& item, uint64_t value_head,
                             int half) {
#pragma unroll 1
        for (int i = 0; i < chunk_tokens / rows_at_once; ++i) {
            const float beta = factors.beta[row(i)];
            const bool live = row(i) < item.tokens();
            uint4 x = *reinterpret_cast<const uint4*>(values.dvb.at(row(i), unit()));
            const bool slow = live && !divides(beta);
            if (__any_sync(full_warp, slow)) {
                dot_values(x, item, value_head, half, row(i), slow);
            }
            for (const auto word : {&uint4::x, &uint4::y, &uint4::z, &uint4::w}) {
                x.*word = pack_bf16(beta * low_float(x.*word), beta * high_float(x.*word));
            }
            if (live) {
                *of_dv(item, value_head, half, row(i)) = x;
            }
        }
    }

    // <dVb_i, V_i> over a half. Whole warps.
    __device__ void dot_values(const uint4& dvb, const Item& item, uint64_t value_head, int half, int row, bool wanted) {
        float dot = 0.0f;
        if (wanted) {
            const char* first = row_of(params.v, item.token(row), params.v_token_stride, value_head, params.v_head_stride);
            const uint4 v = reinterpret_cast<const uint4*>(first)[half * units + unit()];
            dot = dot_pieces(dvb, v, dot);
        }
        for (int distance = 1; distance < units; distance *= 2) {
            dot += __shfl_xor_sync(full_warp, dot, distance);
        }
        if (wanted && unit() == 0) {
            shared.value_dots[half][row] = dot;
        }
    }

    __device__ static float dot_pieces(const uint4& x, const uint4& y, float sum) {
        for (const auto word : {&uint4::x, &uint4::y, &uint4::z, &uint4::w}) {
            sum = fmaf(low_float(x.*word), low_float(y.*word), sum);
            sum = fmaf(high_float(x.*word), high_float(y.*word), sum);
        }
        return sum;
    }

    // <S, dS>. Both tiles are permuted alike.
    __device__ void multiply_states(float& sum, const ValueHalf& values) const {
        const auto* h = reinterpret_cast<const uint4*>(values.h);
        const auto* dh = reinterpret_cast<const uint4*>(values.dh);
#pragma unroll 2
        for (int at = thread; at < static_cast<int>(sizeof(StateHalf) / 16); at += stream_threads) {
            sum = dot_pieces(h[at], dh[at], sum);
        }
    }

    // Eight lanes to a part.
    __device__ void put_states(float sum) const {
        for (int distance = 1; distance < 8; distance *= 2) {
            sum += __shfl_xor_sync(full_warp, sum, distance);
        }
        static_assert(sizeof(GateSums::states) == stream_threads / 8 * sizeof(float));
        if (thread % 8 == 0) {
            shared.sums.states[thread / 8] = sum;
        }
    }
};

class Consumer {
    const Params& params;
    SharedMap& shared;
    const int half; // of the key columns; the matrix that it makes: R or N'
    FragmentThread at = FragmentThread::here();
    PhaseCursor rows_full = PhaseCursor::waits_first();
    PhaseCursor rows_ready[halves] = {PhaseCursor::waits_first(), PhaseCursor::waits_first()};
    PhaseCursor factors_full = PhaseCursor::waits_first();
    BarrierRing<S::stages>::Consumer ring;
    int turn = 0;
    wgmma::Accumulator64 dq; // rq dQ, over the heads of the group
    wgmma::Accumulator64 dk; // rk dK

  public:
    __device__ Consumer(const Params& params, SharedMap& shared, int half)
        : params(params), shared(shared), half(half), ring(shared.ring) {}

    __device__ void run() {
        const uint32_t group = params.value_heads / params.heads;
        for_each_item(params, [&](const Item& item) {
#pragma unroll
            for (int i = 0; i < 32; ++i) {
                dq[i] = dk[i] = 0.0f;
            }
            for (uint32_t member = 0; member < group; ++member) {
                add_head(item, member == 0);
            }
            finish(item);
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

    __device__ void add_head(const Item& item, bool first) {
        Products products;
        const int slots[halves] = {start_half<0>(products, item), start_half<1>(products, item)};
        wgmma::wait<1>();
        arrive_once(shared.ring.empty[slots[0]], at.lane);
        wgmma::wait<0>();
        wgmma::settle(products.from_o);
        wgmma::settle(products.from_v);
        wgmma::settle(products.from_s);
        wgmma::settle(products.gradient);
        arrive_once(shared.ring.empty[slots[1]], at.lane);

        factors_full.wait(shared.factors_full);
        const Factors& factors = shared.factors[turn];
        if (first) {
            wait_rows(item);
        }
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
        turn ^= 1;
    }

    // What depends on the lane is computed again from here on. The compiler would keep addresses in registers through all
    // phases, and spill.
    __device__ void forget_addresses() { asm volatile("" : "+r"(at.lane), "+r"(at.warp)); }

    // Starts the products of a half of the value columns, and returns its slot.
    template <int value_half>
    __device__ int start_half(Products& products, const Item& item) {
        const int slot = ring.wait();
        if (item.tokens() < chunk_tokens) {
            rows_ready[value_half].wait(shared.rows_ready[value_half]);
        }
        constexpr bool accumulate = value_half > 0;
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
                row.add(block_product, block_gradient, j, false);
                wgmma::Fragment words;
                pack_block(words, block_gradient);
                store_block(words, j);
            }
        }
        row.add(diagonal_product, diagonal_gradient, at.warp, true);
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
    __device__ void finish(const Item& item) {
        const Factors& factors = shared.factors[turn ^ 1];
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

enum class Role { consumer, loads, factors, streams };

__device__ Role role_of(int warp) {
    if (warp < consumer_warps) {
        return Role::consumer;
    }
    return warp == consumer_warps ? Role::loads : warp == consumer_warps + 1 ? Role::factors : Role::streams;
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
    default:
        Streams(params, shared, static_cast<int>(threadIdx.x) % stream_threads).run();
        break;
    }
}
