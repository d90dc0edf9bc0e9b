// The warps of the Hopper tail that work ahead of the consumers or behind them: loads, factors, dV, sums.
#pragma once

#include "../device/mma_sync.cuh"
#include "gate.cuh"
#include "hopper_tail_params.cuh"
#include "hopper_tail_shared.cuh"
#include "tail_item.cuh"

#include <cstdint>
#include <cuda/ptx>

namespace bakewell {

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

} // namespace bakewell
