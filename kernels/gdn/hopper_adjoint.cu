// Adjoint scan of the gated delta rule on the warpgroup tensor cores of sm_90a, given the chunk inverses A.
//
//   dV2 = e^{c_last - c} o (K dS) + P^T dO    dVb = A^T dV2    dS- = e^{c_last} dS + Q^T (scale e^c o dO) - K^T (beta e^c o dVb)
//
// Chunks run from the last to the first. As in the forward scan, dS, dV2 and dVb are transposed and stay in the registers
// of one warpgroup; dS is stored at each chunk's end, before the update, and dVb goes where the tail finds it.
//
//   helper | loads of earlier chunks, tables and P of chunk i - 1 ...
//   state  | K dS                  | Q^T dO          | A^T dV2 | K^T dVb  | P^T dO of i - 1 | K dS of i - 1 | ...
//          | decay dS, scale dO    | dV2             |         | dVb out  | dS to BF16      | dS out

#include "hopper_adjoint_params.cuh"
#include "hopper_scan.cuh"

namespace bakewell {

class Adjoint {
    const Params& params;
    SharedMap& shared;
    const Work& work;
    const Walk& walk;
    int warpgroup;
    StateTile state;
    BarrierRing<slots>::Consumer prepared;
    RowStager rows;
    wgmma::Accumulator64 product; // K dS, then dVb
    wgmma::Accumulator64 local;   // P^T dO
    wgmma::Fragment grad[token_steps];

    __device__ ChunkTiles& tiles(int step) const { return shared.tiles[step % S::stages]; }
    __device__ const Tables& tables(int step) const { return shared.head.tables[step % slots]; }

    __device__ void load_state() {
        if (work.last_segment) {
            const int64_t offset = work.state_offset(work.segment.sequence, params.value_heads);
            state.load_key_major(params.dht ? params.dht + offset : nullptr);
        } else {
            state.load_value_major(params.start + work.state_offset(work.segment_index, params.value_heads));
        }
    }

    __device__ void store_state() const {
        if (work.segment.index == 0 && params.dh0) {
            state.store_key_major(params.dh0 + work.state_offset(work.segment.sequence, params.value_heads));
        }
    }

    // dO of a chunk, transposed, as an operand.
    __device__ void load_grad(int step) {
#pragma unroll
        for (int k = 0; k < token_steps; ++k) {
            ldmatrix_x4_transposed(grad[k], state.at.transposed(tiles(step).values[warpgroup], k));
        }
    }

    // Starts P^T dO of a chunk, once it is prepared.
    __device__ void start_local(int step) {
        prepared.wait();
        load_grad(step);
        wgmma::fence();
        multiply_by_columns(local, grad, shared.p[step % slots]);
        wgmma::commit();
    }

    // K dS of a chunk, behind P^T dO; dS before the update leaves and is decayed. Nothing runs on return.
    __device__ void multiply_keys(int step) {
        state.round();
        wgmma::fence();
        multiply_by_rows(product, state.operand, tiles(step).k);
        wgmma::commit();
        Snapshot& snapshot = reinterpret_cast<Snapshot*>(shared.snapshot)[warpgroup * warpgroup_warps + state.at.warp];
        state.write_snapshot(snapshot);
        // The copy engine reads the snapshot, and overwrites the tiles of the chunk before.
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        __syncwarp();
        if (step > 0) {
            release_chunk(shared.head.barriers, step - 1, state.at.lane);
        }
        if (state.at.lane == 0) {
            const int index = walk.chunk(step) * static_cast<int>(params.value_heads) + work.value_head;
            state.send_snapshot(snapshot, params.dh_map, index);
        }
        state.scale(tables(step).total);
        wgmma::wait<0>();
        wgmma::settle(product);
        wgmma::settle(local);
    }

    // dV2 = e^{c_last - c} o (K dS) + P^T dO, as an operand.
    __device__ void combine(wgmma::Fragment (&dv2)[token_steps], const Tables& factors) const {
#pragma unroll
        for (int k = 0; k < token_steps; ++k) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float2 factor = *reinterpret_cast<const float2*>(&factors.decay[state.at.column(2 * k + j / 2)]);
                const int index = 8 * k + 2 * j;
                dv2[k][j] = pack_bf16(fmaf(product[index], factor.x, local[index]),
                                      fmaf(product[index + 1], factor.y, local[index + 1]));
            }
        }
    }

    // scale e^c o dO, as an operand.
    __device__ void load_scaled_grad(int step, const Tables& factors) {
        load_grad(step);
#pragma unroll
        for (int k = 0; k < token_steps; ++k) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float2 factor = *reinterpret_cast<const float2*>(&factors.output[state.at.column(2 * k + j / 2)]);
                grad[k][j] = pack_bf16(low_float(grad[k][j]) * factor.x, high_float(grad[k][j]) * factor.y);
            }
        }
    }

    // A^T dV2 and, behind it, Q^T dO onto the decayed dS, which runs on return.
    __device__ void solve(int step) {
        const Tables& factors = tables(step);
        wgmma::Fragment dv2[token_steps];
        combine(dv2, factors);
        wgmma::fence();
        multiply_by_columns(product, dv2, tiles(step).a);
        wgmma::commit();
        load_scaled_grad(step, factors);
        wgmma::fence();
        multiply_by_columns(state.s, grad, tiles(step).q);
        wgmma::commit();
        wgmma::wait<1>();
        wgmma::settle(product);
    }

    // Starts the update by dVb, which is also staged.
    __device__ void start_update(int step) {
        const int64_t head_row = walk.token(step) * params.value_heads + work.value_head;
        uint16_t* first_row = static_cast<uint16_t*>(params.dv) + head_row * head_dim + state.first_value;
        rows.stage(
            state.at, tiles(step).values[warpgroup],
            [&](int k, wgmma::Fragment& m) { pack_fragment(m, k, [&](int i) { return product[i]; }); }, first_row,
            static_cast<int64_t>(params.value_heads) * head_dim, walk.tokens(step));
        state.scale_columns(product, tables(step).erase);
        pack_fragments(grad, product);
        wgmma::fence();
        multiply_by_columns(state.s, grad, tiles(step).k);
        wgmma::commit();
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        rows.send(state.at.lane);
    }

  public:
    __device__ Adjoint(const Params& params, SharedMap& shared, int warpgroup)
        : params(params), shared(shared), work(shared.head.work), walk(work.walk), warpgroup(warpgroup),
          state(work.first_panel + warpgroup > 0 ? values_per_warpgroup : 0), prepared(shared.head.barriers.prepared),
          rows(shared.head.barriers.rows[warpgroup]) {
        load_state();
    }

    __device__ void run() {
        if (walk.count > 0) {
            start_local(0);
            multiply_keys(0);
            int step = 0;
            // Nothing runs across an iteration's end: the assembler follows accumulators within one only.
            for (; step + 1 < walk.count; ++step) {
                solve(step);
                start_update(step);
                start_local(step + 1);
                wgmma::wait<1>();
                wgmma::settle(state.s);
                multiply_keys(step + 1);
            }
            solve(step);
            start_update(step);
            wgmma::wait<0>();
            wgmma::settle(state.s);
        }
        store_state();
        wait_stores_read<0>();
    }
};

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, 1)
    gdn_adjoint_wgmma(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(swizzle_period) uint8_t shared_bytes[];
    SharedMap& shared = *reinterpret_cast<SharedMap*>(shared_bytes);
    if (threadIdx.x == 0) {
        init_barriers(shared.head.barriers);
        shared.head.work = Work::of_block(params);
        for (const TensorMap* map : {&params.q_map, &params.k_map, &params.grad_o_map, &params.a_map, &params.dh_map}) {
            prefetch_tensor_map(*map);
        }
    }
    __syncthreads();

    const Work& work = shared.head.work;
    if (work.padding()) {
        return;
    }
    const int warpgroup = threadIdx.x / warpgroup_threads;
    if (warpgroup < state_warpgroups) {
        cuda::ptx::setmaxnreg_inc(cuda::ptx::n32_t<S::state_registers>{});
        Adjoint(params, shared, warpgroup).run();
    } else {
        const HelperInputs inputs{params.q_map,
                                  params.k_map,
                                  params.a_map,
                                  params.grad_o_map,
                                  params.rq,
                                  params.rk,
                                  params.gate,
                                  params.beta,
                                  params.beta_token_stride,
                                  params.beta_bf16 != 0,
                                  params.scale,
                                  static_cast<int>(params.heads),
                                  static_cast<int>(params.value_heads),
                                  work.value_head,
                                  work.first_panel,
                                  true};
        run_others(warpgroup, inputs, shared, [&](RowSender& sender, int step, const Panel& place, int panel) {
            sender.send(params.dv_map, place, work.walk, step, panel, work.value_head, true);
        });
    }
}
