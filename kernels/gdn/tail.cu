// Gradients of a chunk, once the states around it and dVb are known.
//
//   rq dQ = from_start o (dO S^T) + R K                      from_start = scale 2^c rq
//   rk dK = to_end o (Vn dS^T) + back o (dVb S^T) + R^T Q + (N' + N'^T) K
//                                                            to_end = 2^(c_last - c) rk, back = -beta 2^c rk
//   dV = beta o dVb;  R, N': block_row.cuh;  dg, dbeta: gate_gradient.cuh
//
// Q and K are the rows as they came: factors carry the norms, and the sums over the value heads of a group, in head
// order, are of rq dQ and rk dK, so that the gradient of a row x is d - <d, y> y with y = r x. They stay f32 in
// registers.
//
//   producer | copy heads ahead, rows of the next item                                            |
//   consumer | dO S^T, dVb S^T | Vn dS^T, <S, dS> | token products -> R, N' | R K, N' K, R^T Q, dV | ... | dq, dk |
//   one warp                                                                | dg, dbeta            |
//   barriers                                                 others read R ^   ^ R complete
//
// A CTA takes items, (chunk, key head), in turn. Consumer warps are 4 blocks of 16 rows by 2 halves of 64 columns; of
// the products of tokens with tokens, the first half makes those of q, the second those of k.

#include "tail_memory.cuh"

#include <cstdint>

namespace bakewell {

class Consumer {
    const Params& params;
    SharedMap& shared;
    const int warp;
    int lane;
    FragmentLane fragment;
    const int half; // of the columns
    const int row_block;
    PhaseCursor rows_full = PhaseCursor::waits_first();
    PhaseCursor states_full = PhaseCursor::waits_first();
    BarrierRing<SharedMap::slots>::Consumer ring;
    uint32_t heads_done = 0;

    // 16 rows by 64 columns.
    using Sum = float[2 * half_blocks][4];
    Sum dq; // rq dQ, over the heads of the group
    Sum dk; // rk dK

  public:
    // A scheduler has one warp of either half; their row blocks add up to the same number of blocks below the diagonal.
    __device__ Consumer(const Params& params, SharedMap& shared, int warp, int lane)
        : params(params), shared(shared), warp(warp), lane(lane), fragment(FragmentLane::of(lane)),
          half(warp / token_blocks),
          row_block(half == 0 ? warp % token_blocks : token_blocks - 1 - warp % token_blocks), ring(shared.ring) {}

    __device__ void run() {
        const uint32_t group = params.value_heads / params.heads;
        for_each_item(params, [&](const Item& item) {
            clear(dq);
            clear(dk);
            for (uint32_t member = 0; member < group; ++member) {
                add_head(item, static_cast<uint64_t>(item.head) * group + member, member == 0);
            }
            finish(item);
        });
    }

  private:
    __device__ static void clear(Sum& sum) {
#pragma unroll
        for (auto& tile : sum) {
            for (float& element : tile) {
                element = 0.0f;
            }
        }
    }

    // Rows of the chunk that this lane's accumulators hold.
    __device__ int row(int element) const { return block * row_block + fragment.group + element / 2 * 8; }
    __device__ int first_column() const { return half * half_columns; }

    __device__ void release(Mbarrier& empty) const {
        __syncwarp();
        if (lane == 0) {
            empty.arrive();
        }
    }

    __device__ void add_head(const Item& item, uint64_t value_head, bool first) {
        const int slot_index = ring.wait();
        const auto& values = shared.values[slot_index];
        auto& sums = shared.sums[heads_done % 2];
        states_full.wait(shared.states_full);
        forget_addresses();
        add_states(values, sums, first);
        forget_addresses();
        add_state_gradient(values, sums);
        multiply_states(sums);
        release(shared.states_empty);
        forget_addresses();
        make_matrices(values, sums);
        // R, N' and the sums are complete.
        consumers_meet();
        forget_addresses();
        add_matrices();
        forget_addresses();
        store_dv(values, item, value_head);
        if (warp == static_cast<int>(heads_done % consumer_warps)) {
            store_gate_gradients(values, sums, item, value_head);
        }
        release(shared.ring.empty[slot_index]);
        ++heads_done;
    }

    // What depends on the lane is computed again from here on. The compiler would keep some fifty addresses of operands
    // in registers through all phases, and spill.
    __device__ void forget_addresses() {
        asm volatile("" : "+r"(lane));
        fragment = FragmentLane::of(lane);
    }

    // Dot products of the lane's two rows of an accumulator with the same columns of a tile, over the row's four lanes.
    __device__ void row_dots(float (&dots)[2], const Sum& sum, const RowTile& tile) const {
        dots[0] = dots[1] = 0.0f;
#pragma unroll
        for (int t = 0; t < 2 * half_blocks; ++t) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float2 x = pair_of(tile, 2 * i, t);
                dots[i] = fmaf(sum[t][2 * i + 1], x.y, fmaf(sum[t][2 * i], x.x, dots[i]));
            }
        }
        sum_of_row(dots);
    }

    // Two columns of a tile's row, as an accumulator holds them.
    __device__ float2 pair_of(const RowTile& tile, int element, int t) const {
        const auto* piece = tile.at(row(element), first_column() / 8 + t);
        return unpack(reinterpret_cast<const uint32_t*>(piece)[fragment.pair]);
    }

    // to[row] = value, from one of the lanes that hold it.
    __device__ void put_rows(float (&to)[chunk_tokens], const float (&values)[2]) const {
        if (fragment.pair == 0) {
            to[row(0)] = values[0];
            to[row(2)] = values[1];
        }
    }

    // dq += from_start o (dO S^T), dk += back o (dVb S^T). A key head's rows are needed from here on.
    __device__ void add_states(const Values& values, GateSums& sums, bool first) {
        Sum from_o = {};
        Sum from_v = {};
#pragma unroll 2
        for (int i = 0; i < head_dim / block; ++i) {
            uint32_t o[4];
            uint32_t v[4];
            load_left(o, values.grad_o, block * row_block, block * i, lane);
            load_left(v, values.dvb, block * row_block, block * i, lane);
#pragma unroll
            for (int j = 0; j < half_blocks; ++j) {
                uint32_t b[4];
                load_right(b, shared.states.h, block * i, first_column() + block * j, lane);
                multiply(from_o[2 * j], from_o[2 * j + 1], o, b);
                multiply(from_v[2 * j], from_v[2 * j + 1], v, b);
            }
        }
        if (first) {
            rows_full.wait(shared.rows_full);
        }
        float dot_o[2];
        float dot_v[2];
        row_dots(dot_o, from_o, shared.rows.q);
        row_dots(dot_v, from_v, shared.rows.k);
        float outer[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float from_start = decay(values.gate[row(2 * i)]);
            const float factor_o = params.scale * from_start * shared.rows.rq[row(2 * i)];
            const float factor_v = -values.beta[row(2 * i)] * from_start * shared.rows.rk[row(2 * i)];
            outer[i] = fmaf(factor_o, dot_o[i], factor_v * dot_v[i]);
            // Of the slow form of dbeta.
            dot_v[i] *= from_start * shared.rows.rk[row(2 * i)];
            add_scaled(dq, from_o, factor_o, i);
            add_scaled(dk, from_v, factor_v, i);
        }
        put_rows(sums.outer[half], outer);
        put_rows(sums.state_value[half], dot_v);
    }

    // One row of the lane.
    __device__ static void add_scaled(Sum& to, const Sum& from, float factor, int i) {
#pragma unroll
        for (int t = 0; t < 2 * half_blocks; ++t) {
            to[t][2 * i] = fmaf(factor, from[t][2 * i], to[t][2 * i]);
            to[t][2 * i + 1] = fmaf(factor, from[t][2 * i + 1], to[t][2 * i + 1]);
        }
    }

    // dk += to_end o (Vn dS^T).
    __device__ void add_state_gradient(const Values& values, GateSums& sums) {
        Sum from_v = {};
#pragma unroll 2
        for (int i = 0; i < head_dim / block; ++i) {
            uint32_t a[4];
            load_left(a, values.v_new, block * row_block, block * i, lane);
#pragma unroll
            for (int j = 0; j < half_blocks; ++j) {
                uint32_t b[4];
                load_right(b, shared.states.dh, block * i, first_column() + block * j, lane);
                multiply(from_v[2 * j], from_v[2 * j + 1], a, b);
            }
        }
        float inner[2];
        row_dots(inner, from_v, shared.rows.k);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float factor =
                decay(values.gate[chunk_tokens - 1] - values.gate[row(2 * i)]) * shared.rows.rk[row(2 * i)];
            inner[i] *= factor;
            add_scaled(dk, from_v, factor, i);
        }
        put_rows(sums.inner[half], inner);
    }

    // <S, dS>. Both tiles are permuted alike.
    __device__ void multiply_states(GateSums& sums) const {
        float sum = 0.0f;
        const auto* h = reinterpret_cast<const uint4*>(shared.states.h.bytes);
        const auto* dh = reinterpret_cast<const uint4*>(shared.states.dh.bytes);
#pragma unroll
        for (int i = 0; i < static_cast<int>(sizeof(StateTile) / 16 / consumer_threads); ++i) {
            const int at = 32 * warp + lane + i * consumer_threads;
            const uint4 x = h[at];
            const uint4 y = dh[at];
            for (const auto word : {&uint4::x, &uint4::y, &uint4::z, &uint4::w}) {
                const float2 a = unpack(x.*word);
                const float2 b = unpack(y.*word);
                sum = fmaf(a.y, b.y, fmaf(a.x, b.x, sum));
            }
        }
        sum = sum_of_warp(sum);
        if (lane == 0) {
            sums.states[warp] = sum;
        }
    }

    // A 16 x 16 block of a product of tokens with tokens.
    using BlockSum = float[2][4];

    // The block row of R, by the first half, or of N', by the second, up to the diagonal block; and its part of Z. One
    // code for all block rows: which one it is, is not known to the compiler.
    __device__ void make_matrices(const Values& values, GateSums& sums) {
        const bool of_keys = half == 1;
        uint32_t left_x[head_dim / block][4];
        uint32_t left_y[head_dim / block][4];
#pragma unroll
        for (int i = 0; i < head_dim / block; ++i) {
            load_left(left_x[i], of_keys ? shared.rows.k : shared.rows.q, block * row_block, block * i, lane);
            load_left(left_y[i], of_keys ? values.dvb : values.grad_o, block * row_block, block * i, lane);
        }
        const TokenFactors factors{values.gate, values.beta, shared.rows.rq, shared.rows.rk, params.scale};
        BlockRow rows(half, row_block, lane, factors, sums);
        auto& matrix = of_keys ? shared.matrices.n : shared.matrices.r;
        // Every warp has read what the last head left in their place.
        consumers_meet();
        BlockSum products;
        BlockSum gradients;
        const auto multiply_block = [&](int j) {
            multiply_rows(products, left_x, shared.rows.k, j);
            multiply_rows(gradients, left_y, values.v_new, j);
        };
        const auto store_block = [&](int j) {
            uint32_t words[4];
            pack_left(words, gradients[0], gradients[1]);
            store_left(matrix, block * row_block, block * j, words, lane);
        };
#pragma unroll 1
        for (int j = 0; j < row_block; ++j) {
            multiply_block(j);
            rows.add_left(products, gradients, j);
            store_block(j);
        }
        multiply_block(row_block);
        rows.add_diagonal(products, gradients);
        store_block(row_block);
        rows.finish();
    }

    // The warp's rows by the 16 rows of block j of a tile. Two chains, so that one product need not wait for the last.
    __device__ void multiply_rows(BlockSum& sum, const uint32_t (&left)[head_dim / block][4], const RowTile& tile,
                                  int j) const {
        BlockSum even = {};
        BlockSum odd = {};
#pragma unroll
        for (int i = 0; i < head_dim / block; ++i) {
            uint32_t b[4];
            load_right_transposed(b, tile, block * j, block * i, lane);
            auto& chain = i % 2 == 0 ? even : odd;
            multiply(chain[0], chain[1], left[i], b);
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            sum[e / 4][e % 4] = even[e / 4][e % 4] + odd[e / 4][e % 4];
        }
    }

    // dq += R K, dk += R^T Q + (N' + N'^T) K.
    __device__ void add_matrices() {
        const auto& [r, n] = shared.matrices;
#pragma unroll 1
        for (int i = 0; i < token_blocks; ++i) {
            uint32_t r_words[4];
            uint32_t n_words[4];
            uint32_t r_transposed[4];
            uint32_t n_transposed[4];
            if (i <= row_block) {
                load_left(r_words, r, block * row_block, block * i, lane);
                load_left(n_words, n, block * row_block, block * i, lane);
            }
            if (i >= row_block) {
                load_left_transposed(r_transposed, r, block * i, block * row_block, lane);
                load_left_transposed(n_transposed, n, block * i, block * row_block, lane);
            }
#pragma unroll
            for (int j = 0; j < half_blocks; ++j) {
                uint32_t b[4];
                load_right(b, shared.rows.k, block * i, first_column() + block * j, lane);
                if (i <= row_block) {
                    multiply(dq[2 * j], dq[2 * j + 1], r_words, b);
                    multiply(dk[2 * j], dk[2 * j + 1], n_words, b);
                }
                if (i >= row_block) {
                    multiply(dk[2 * j], dk[2 * j + 1], n_transposed, b);
                    load_right(b, shared.rows.q, block * i, first_column() + block * j, lane);
                    multiply(dk[2 * j], dk[2 * j + 1], r_transposed, b);
                }
            }
        }
    }

    // dV = beta o dVb, 8 rows per warp.
    __device__ void store_dv(const Values& values, const Item& item, uint64_t value_head) const {
        const int piece = lane % RowTile::pieces;
#pragma unroll
        for (int i = 0; i < chunk_tokens / consumer_warps / 2; ++i) {
            const int at = chunk_tokens / consumer_warps * warp + 2 * i + lane / RowTile::pieces;
            uint4 x = *reinterpret_cast<const uint4*>(values.dvb.at(at, piece));
            for (const auto word : {&uint4::x, &uint4::y, &uint4::z, &uint4::w}) {
                const float2 pair = unpack(x.*word);
                x.*word = pack<Element::bf16>(values.beta[at] * pair.x, values.beta[at] * pair.y);
            }
            if (at < item.tokens()) {
                const uint64_t token = item.token(at);
                const uint64_t row = token * params.value_heads + value_head;
                static_cast<uint4*>(params.dv)[row * RowTile::pieces + piece] = x;
            }
        }
    }

    __device__ void store_gate_gradients(const Values& values, const GateSums& sums, const Item& item,
                                         uint64_t value_head) const {
        const float2 dg = gate_gradient(sums, decay(values.gate[chunk_tokens - 1]), lane);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int at = lane + 32 * i;
            const float dbeta = beta_gradient(values, sums, item, value_head, at);
            if (at < item.tokens()) {
                const uint64_t token = item.token(at);
                const uint64_t index = token * params.value_heads + value_head;
                params.dg[index] = i == 0 ? dg.x : dg.y;
                if (params.beta_bf16) {
                    static_cast<__nv_bfloat16*>(params.dbeta)[index] = __float2bfloat16_rn(dbeta);
                } else {
                    static_cast<float*>(params.dbeta)[index] = dbeta;
                }
            }
        }
    }

    // Of row `at`, one per lane.
    __device__ float beta_gradient(const Values& values, const GateSums& sums, const Item& item, uint64_t value_head,
                                   int at) const {
        const float beta = values.beta[at];
        const bool slow = !divides(beta) && at < item.tokens();
        float dbeta = divides(beta) ? sums.diagonal[at] / beta : 0.0f;
        for (uint32_t rest = __ballot_sync(full_warp, slow); rest != 0; rest &= rest - 1) {
            const int owner = __ffs(rest) - 1;
            const float dot = value_dot(values, item, value_head, at - lane + owner);
            if (lane == owner) {
                dbeta = gradient_without_quotient(sums, at, dot);
            }
        }
        return dbeta;
    }

    // <dVb_i, V_i>, four columns per lane.
    __device__ float value_dot(const Values& values, const Item& item, uint64_t value_head, int at) const {
        const uint64_t token = item.token(at);
        const char* row = row_of(params.v, token, params.v_token_stride, value_head, params.v_head_stride);
        const uint2 v = *reinterpret_cast<const uint2*>(row + lane * 8);
        const uint2 dvb = *reinterpret_cast<const uint2*>(values.dvb.at(at, lane / 2) + lane % 2 * 8);
        const float2 low = unpack(v.x);
        const float2 high = unpack(v.y);
        const float2 d_low = unpack(dvb.x);
        const float2 d_high = unpack(dvb.y);
        return sum_of_warp(fmaf(d_high.y, high.y, fmaf(d_high.x, high.x, fmaf(d_low.y, low.y, d_low.x * low.x))));
    }

    // Through the norms, rounded, to memory.
    __device__ void finish(const Item& item) {
        forget_addresses();
        float dots[2][2];
        row_dots(dots[0], dq, shared.rows.q);
        row_dots(dots[1], dk, shared.rows.k);
        put_rows(shared.row_dots[0][half], dots[0]);
        put_rows(shared.row_dots[1][half], dots[1]);
        // Also: every warp has read R and N', whose place the outputs take.
        consumers_meet();
        if (params.l2norm) {
            subtract_along(dq, shared.rows.q, shared.rows.rq, shared.row_dots[0]);
            subtract_along(dk, shared.rows.k, shared.rows.rk, shared.row_dots[1]);
        }
        release(shared.rows_empty);
        store(params.dq, dq, item);
        store(params.dk, dk, item);
    }

    // d - <d, y> y, y = r x.
    __device__ void subtract_along(Sum& d, const RowTile& x, const float (&r)[chunk_tokens],
                                   const float (&dots)[2][chunk_tokens]) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int at = row(2 * i);
            const float factor = (dots[0][at] + dots[1][at]) * r[at];
#pragma unroll
            for (int t = 0; t < 2 * half_blocks; ++t) {
                const float2 pair = pair_of(x, 2 * i, t);
                d[t][2 * i] = fmaf(-factor, pair.x * r[at], d[t][2 * i]);
                d[t][2 * i + 1] = fmaf(-factor, pair.y * r[at], d[t][2 * i + 1]);
            }
        }
    }

    __device__ void store(void* to, const Sum& sum, const Item& item) {
        auto& tile = shared.outputs[warp];
        __syncwarp();
#pragma unroll
        for (int j = 0; j < half_blocks; ++j) {
            uint32_t words[4];
            pack_left(words, sum[2 * j], sum[2 * j + 1]);
            store_left(tile, 0, block * j, words, lane);
        }
        __syncwarp();
        const int piece = lane % OutputTile::pieces;
#pragma unroll
        for (int i = 0; i < block * OutputTile::pieces / 32; ++i) {
            const int local = lane / OutputTile::pieces + i * (32 / OutputTile::pieces);
            const int at = block * row_block + local;
            if (at < item.tokens()) {
                const uint64_t token = item.token(at);
                const uint64_t element = (token * params.heads + item.head) * head_dim + first_column() + piece * 8;
                *reinterpret_cast<uint4*>(static_cast<char*>(to) + element * 2) =
                    *reinterpret_cast<const uint4*>(tile.at(local, piece));
            }
        }
    }
};

enum class Role { consumer, producer };

__device__ Role role_of(int warp) { return warp < consumer_warps ? Role::consumer : Role::producer; }

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, bakewell::Schedule::min_ctas_per_sm)
    gdn_tail(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(256) char shared_bytes[];
    static_assert(sizeof(SharedMap) == S::dynamic_shared_bytes, "the schedule's budget");
    auto& shared = *reinterpret_cast<SharedMap*>(shared_bytes);

    if (threadIdx.x == 0) {
        shared.init();
    }
    __syncthreads();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    switch (role_of(warp)) {
    case Role::consumer:
        cuda::ptx::setmaxnreg_inc(cuda::ptx::n32_t<consumer_registers>{});
        Consumer(params, shared, warp, threadIdx.x % 32).run();
        break;
    case Role::producer:
        cuda::ptx::setmaxnreg_dec(cuda::ptx::n32_t<producer_registers>{});
        Producer(params, shared, static_cast<int>(threadIdx.x) - consumer_threads).run();
        break;
    }
}
