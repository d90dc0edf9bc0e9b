// Adjoint scan of the gated delta rule on the warpgroup tensor cores of sm_90a, given the chunk inverses A.
//
//   dV2 = e^{c_last - c} o (K dS) + P^T dO    dVb = A^T dV2    dS- = e^{c_last} dS + Q^T (scale e^c o dO) - K^T (beta e^c o dVb)
//
// Chunks run from the last to the first. As in the forward scan, dS, dV2 and dVb are transposed and stay in the registers
// of one warpgroup; dS is stored at each chunk's end, before the update, and dVb goes where the tail finds it.
//
//   helper | P of an earlier chunk; loads and factors have warps of their own ...
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
    BarrierRing<S::stages>::Consumer values;
    RowStager rows;
    wgmma::Accumulator64 product; // K dS, then dVb
    wgmma::Accumulator64 local;   // P^T dO
    wgmma::Fragment grad[token_steps];

    __device__ ChunkTiles& tiles(Place place) const { return shared.tiles[place.stage]; }
    __device__ const Tables& tables(Place place) const { return shared.head.tables[place.slot]; }

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

    // dO of a chunk; `first`: it is the one scanned first, and may be short.
    __device__ void load_grad(Place place, bool first) {
        state.load_values(grad, tiles(place).values[warpgroup], first ? walk.last_tokens : chunk_tokens);
    }

    // Starts P^T dO of a chunk, once it is prepared.
    __device__ void start_local(Place place, bool first) {
        prepared.wait();
        values.wait();
        load_grad(place, first);
        wgmma::fence();
        multiply_by_columns(local, grad, shared.p[place.slot]);
        wgmma::commit();
    }

    // K dS of a chunk, behind P^T dO; dS before the update leaves and is decayed. Nothing runs on return.
    __device__ void multiply_keys(int step, Place place) {
        state.round();
        wgmma::fence();
        multiply_by_rows(product, state.operand, tiles(place).k);
        wgmma::commit();
        Snapshot& snapshot = reinterpret_cast<Snapshot*>(shared.snapshot)[warpgroup * warpgroup_warps + state.at.warp];
        state.write_snapshot(snapshot);
        // The copy engine reads the snapshot.
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        __syncwarp();
        if (state.at.lane == 0) {
            const int index = walk.chunk(step) * static_cast<int>(params.value_heads) + work.value_head;
            state.send_snapshot(snapshot, params.dh_map, index);
        }
        state.scale(tables(place).total);
        wgmma::settle(state.s);
        wgmma::wait<0>();
        wgmma::settle(product);
        wgmma::settle(local);
        release_prepared(shared.head.barriers, place, state.at.lane);
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
    __device__ void load_scaled_grad(Place place, bool first, const Tables& factors) {
        load_grad(place, first);
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
    __device__ void solve(Place place, bool first) {
        const Tables& factors = tables(place);
        wgmma::Fragment dv2[token_steps];
        combine(dv2, factors);
        wgmma::fence();
        multiply_by_columns(product, dv2, tiles(place).a);
        wgmma::commit();
        load_scaled_grad(place, first, factors);
        wgmma::fence();
        multiply_by_columns(state.s, grad, tiles(place).q);
        wgmma::commit();
        wgmma::wait<1>();
        wgmma::settle(product);
    }

    // Starts the update by dVb, which is also staged.
    __device__ void start_update(Place place, bool first) {
        Panel& staged = tiles(place).values[warpgroup];
        rows.stage(state.at, staged, [&](int k, wgmma::Fragment& m) {
            pack_fragment(m, k, [&](int i) { return product[i]; });
        });
        if (first && walk.last_tokens < chunk_tokens) {
            const int64_t head_row = walk.token(0) * params.value_heads + work.value_head;
            RowStager::copy(state.at, staged, static_cast<uint16_t*>(params.dv) + head_row * head_dim + state.first_value,
                            static_cast<int64_t>(params.value_heads) * head_dim, walk.last_tokens);
        }
        state.scale_columns(product, tables(place).erase);
        pack_fragments(grad, product);
        wgmma::fence();
        multiply_by_columns(state.s, grad, tiles(place).k);
        wgmma::commit();
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        rows.send(state.at.lane);
    }

  public:
    __device__ Adjoint(const Params& params, SharedMap& shared, int warpgroup)
        : params(params), shared(shared), work(shared.head.work), walk(work.walk), warpgroup(warpgroup),
          state(work.first_panel + warpgroup > 0 ? values_per_warpgroup : 0), prepared(shared.head.barriers.prepared),
          values(shared.head.barriers.values), rows(shared.head.barriers.rows[warpgroup]) {
        load_state();
    }

    __device__ void run() {
        const int count = walk.count;
        if (count > 0) {
            Place place;
            start_local(place, true);
            multiply_keys(0, place);
            // Nothing runs across an iteration's end: the assembler follows accumulators within one only.
            for (int step = 1; step < count; ++step) {
                const Place before = place;
                place = place.next();
                solve(before, step == 1);
                start_update(before, step == 1);
                start_local(place, false);
                wgmma::wait<1>();
                wgmma::settle(state.s);
                release_operands(shared.head.barriers, before, state.at.lane);
                multiply_keys(step, place);
            }
            solve(place, count == 1);
            start_update(place, count == 1);
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
                                  params.heads,
                                  params.value_heads,
                                  work.value_head,
                                  work.first_panel,
                                  true};
        run_others(warpgroup, inputs, shared, [&](RowSender& sender, int step, const Panel& place, int panel) {
            sender.send(params.dv_map, place, work.walk, step, panel, work.value_head, true);
        });
    }
}
