// Forward scan of the gated delta rule on the warpgroup tensor cores of sm_90a, given the chunk inverses A.
//
//   X = V - e^c o (K S)    Vn = A (beta o X)    O = scale e^c o (Q S) + P Vn    S+ = e^{c_last} S + K^T (e^{c_last - c} o Vn)
//
// Products are transposed, so that the state, X and Vn stay in the registers of one warpgroup: accumulators become left
// operands in place. r_q and r_k of the l2 norm are folded into the tables; q and k are the caller's own tensors.
//
//   load    | tiles of later chunks ...
//   factors | tables of a later chunk ...
//   helper  | P of a later chunk ...
//   state   | K S    | A Y          | Q S                    | K^T Vn     | P Vn        | K S of i + 1 | ...
//           | V      | X, Y         | O of i - 1 out, decay S | scale Q S | S to BF16   |
//
// Keys, queries and the inverse of a chunk are free again at its end; rows of O take the place of V, which is free once
// they have left.
//
// With a tape, v_new and the state at each chunk's start are stored as well; without `o` they alone are.

#include "hopper_forward_params.cuh"
#include "hopper_chain.cuh"

namespace bakewell {

class Forward : Chain {
    const Params& params;
    RowStager rows;
    wgmma::Accumulator64 output; // Q S, then O

    __device__ void load_state() {
        if (work.segment.index > 0) {
            state.load_value_major(params.start + work.state_offset(work.segment_index, params.value_heads));
        } else {
            const int64_t offset = work.state_offset(work.segment.sequence, params.value_heads);
            state.load_key_major(params.h0 ? params.h0 + offset : nullptr);
        }
    }

    __device__ void store_state() const {
        if (work.last_segment && params.ht) {
            state.store_key_major(params.ht + work.state_offset(work.segment.sequence, params.value_heads));
        }
    }

    __device__ Snapshot& snapshot() const {
        return reinterpret_cast<Snapshot*>(shared.snapshot)[warpgroup * warpgroup_warps + state.at.warp];
    }

    // Stages rows of a chunk of a [tokens, value_heads, 128] tensor. `last`: it is the segment's last, and may be short.
    template <class Fragment>
    __device__ void stage(Place place, bool last, void* tensor, Fragment fragment) {
        Panel& staged = tiles(place).values[warpgroup];
        rows.stage(state.at, staged, fragment);
        if (last && walk.last_tokens < chunk_tokens && tensor) {
            const int64_t head_row = walk.token(walk.count - 1) * params.value_heads + work.value_head;
            uint16_t* first_row = static_cast<uint16_t*>(tensor) + head_row * head_dim + state.first_value;
            RowStager::copy(state.at, staged, first_row, static_cast<int64_t>(params.value_heads) * head_dim,
                            walk.last_tokens);
        }
    }

    __device__ void stage_output(Place place, bool last) {
        stage(place, last, params.o, [&](int k, wgmma::Fragment& m) {
            pack_fragment(m, k, [&](int i) { return output[i]; });
        });
    }

    // Starts Q S of a chunk, in the registers that the output of the chunk before has left.
    __device__ void multiply_queries(Place place) {
        wgmma::fence();
        multiply_by_rows(output, state.operand, tiles(place).q);
        wgmma::commit();
        if constexpr (S::snapshots) {
            state.write_snapshot(snapshot());
        }
    }

    // Starts P Vn; with a tape, Vn leaves.
    __device__ void multiply_products(Place place, bool last) {
        wgmma::fence();
        multiply_by_rows(output, v_new, shared.p[place.slot], true);
        wgmma::commit();
        if constexpr (S::snapshots) {
            stage(place, last, params.v_new, [&](int k, wgmma::Fragment& m) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    m[j] = v_new[k][j];
                }
            });
            cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
            rows.send(state.at.lane);
        }
    }

    // One chunk where a state warpgroup is alone: the chain K S, A Y, K^T Vn first, everything else behind its products.
    template <bool first>
    __device__ void advance_alone(int step, Place before, Place place, bool last) {
        multiply_keys(place);
        load_values(place, last);
        wgmma::wait<0>(); // K S, and P Vn of the chunk before
        wgmma::settle(product);
        wgmma::settle(output);
        multiply_inverse(place);
        if constexpr (!first) {
            stage_output(before, false);
        }
        multiply_queries(place);
        depart<first>(step, before);
        state.scale(tables(place).total);
        wgmma::settle(state.s);
        wgmma::wait<1>(); // A Y
        wgmma::settle(product);
        multiply_values(place);
        wgmma::wait<1>(); // Q S
        wgmma::settle(output);
        state.scale_columns(output, tables(place).output);
        multiply_products(place, last);
        wgmma::wait<1>(); // the update
        wgmma::settle(state.s);
        release_operands(shared.head.barriers, place, state.at.lane);
    }

    // The first half of a chunk where two state warpgroups share the tensor cores. They fill each other's gaps; what counts
    // is registers, so the rounded state is gone before Vn is made. The chunk before, if there is one, ends behind K S.
    template <bool first>
    __device__ void begin_shared(int step, Place before, Place place, bool last) {
        multiply_keys(place);
        if constexpr (!first) {
            wgmma::wait<1>(); // P Vn
            wgmma::settle(output);
            stage_output(before, false);
        }
        multiply_queries(place);
        depart<first>(step, before);
        state.scale(tables(place).total);
        wgmma::settle(state.s);
        load_values(place, last);
        wgmma::wait<1>(); // K S
        wgmma::settle(product);
        multiply_inverse(place);
        wgmma::wait<1>(); // Q S
        wgmma::settle(output);
        state.scale_columns(output, tables(place).output);
        wgmma::wait<0>(); // A Y
        wgmma::settle(product);
    }

    __device__ void end_shared(Place place, bool last) {
        multiply_values(place);
        multiply_products(place, last);
        wgmma::wait<1>(); // the update
        wgmma::settle(state.s);
        release_operands(shared.head.barriers, place, state.at.lane);
    }

    // The output of the chunk before, if there is one, and the state before this one leave.
    template <bool first>
    __device__ void depart(int step, Place before) {
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        if constexpr (!first) {
            rows.send(state.at.lane);
            release_prepared(shared.head.barriers, before, state.at.lane);
        }
        if constexpr (S::snapshots) {
            __syncwarp();
            if (state.at.lane == 0) {
                const int index = walk.chunk(step) * static_cast<int>(params.value_heads) + work.value_head;
                state.send_snapshot(snapshot(), params.h_map, index);
            }
        }
    }

  public:
    __device__ Forward(const Params& params, SharedMap& shared, int warpgroup)
        : Chain(shared, warpgroup), params(params), rows(shared.head.barriers.rows[warpgroup]) {
        load_state();
    }

    __device__ void run() {
        const int count = walk.count;
        if (count > 0) {
            // Nothing runs across an iteration's end but P Vn: the assembler follows accumulators within one only.
            Place place;
            if constexpr (state_warpgroups == 1) {
                advance_alone<true>(0, place, place, count == 1);
                for (int step = 1; step < count; ++step) {
                    const Place before = place;
                    place = place.next();
                    advance_alone<false>(step, before, place, step + 1 == count);
                }
            } else {
                begin_shared<true>(0, place, place, count == 1);
                for (int step = 1; step < count; ++step) {
                    const Place before = place;
                    place = place.next();
                    end_shared(before, false);
                    begin_shared<false>(step, before, place, step + 1 == count);
                }
                end_shared(place, true);
            }
            wgmma::wait<0>();
            wgmma::settle(output);
            stage_output(place, true);
            cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
            rows.send(state.at.lane);
        }
        store_state();
        wait_stores_read<0>();
    }
};

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, 1)
    gdn_forward_wgmma(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(swizzle_period) uint8_t shared_bytes[];
    SharedMap& shared = *reinterpret_cast<SharedMap*>(shared_bytes);
    if (threadIdx.x == 0) {
        init_barriers(shared.head.barriers);
        shared.head.work = Work::of_block(params);
        for (const TensorMap* map : {&params.q_map, &params.k_map, &params.v_map, &params.a_map}) {
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
        Forward(params, shared, warpgroup).run();
    } else {
        const HelperInputs inputs{params.q_map,
                                  params.k_map,
                                  params.a_map,
                                  params.v_map,
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
            if constexpr (S::snapshots) {
                sender.send(params.v_new_map, place, work.walk, step, panel, work.value_head, true);
            }
            sender.send(params.o_map, place, work.walk, step, panel, work.value_head, params.o != nullptr);
        });
    }
}
