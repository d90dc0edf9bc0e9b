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

#include "block_row.cuh"
#include "hopper_tail_warps.cuh"

#include <cstdint>
#include <cuda/ptx>

namespace bakewell {

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
