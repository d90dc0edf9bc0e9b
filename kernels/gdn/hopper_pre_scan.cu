// What a segment of the gated delta rule makes of the state at its start, S -> M S + H, on the warpgroup tensor cores of
// sm_90a: H is what becomes of zeros, M what becomes of the identity without values.
//
//   load   | tiles and tables of later chunks ...
//   helper | rows of a short chunk
//   state  | K S   | A Y     | K^T Vn | K S of i + 1 ...
//          | V     | decay S |
//
// Every product waits for the one before; two state warpgroups fill each other's gaps. Only the chunks that are remembered
// at the end of the segment are scanned; where its start is not, there is no M.

#include "fade.cuh"
#include "hopper_chain.cuh"
#include "hopper_forward_params.cuh"

namespace bakewell {

class SegmentMap : Chain {
    const Params& params;

    __device__ void clear_values() {
        for (wgmma::Fragment& words : v_new) {
            for (uint32_t& word : words) {
                word = 0;
            }
        }
    }

    __device__ void advance(Place place, bool last) {
        multiply_keys(place);
        if (work.identity) {
            clear_values();
        } else {
            load_values(place, last);
        }
        wgmma::wait<0>();
        wgmma::settle(product);
        multiply_inverse(place);
        state.scale(tables(place).total);
        wgmma::wait<0>();
        wgmma::settle(product);
        multiply_values(place);
        // V has been read.
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        wgmma::wait<0>();
        wgmma::settle(state.s);
        release_operands(shared.head.barriers, place, state.at.lane);
        release_prepared(shared.head.barriers, place, state.at.lane);
        if (!work.identity && state.at.lane == 0) {
            shared.head.barriers.values.empty[place.stage].arrive();
        }
    }

  public:
    __device__ SegmentMap(const Params& params, SharedMap& shared, int warpgroup)
        : Chain(shared, warpgroup), params(params) {
        if (work.identity) {
            state.load_identity();
        } else {
            state.load_key_major(nullptr);
        }
    }

    __device__ void run() {
        Place place;
        for (int step = 0; step < walk.count; ++step) {
            advance(place, step + 1 == walk.count);
            place = place.next();
        }
        float* to = work.identity ? params.m : params.segment_state;
        state.store_value_major(to + work.state_offset(work.segment_index, params.value_heads));
    }
};

// The CTA's part of a call, padding where nobody asks for its map. Half of the CTAs of a segment make H, half M. A warp
// together.
__device__ Work work_of_block(const Params& params, int lane) {
    constexpr uint32_t ctas = 2 * value_splits;
    Work work = Work::of_unit(params, blockIdx.x / ctas, blockIdx.x % ctas);
    if (work.padding()) {
        return work;
    }
    Segment& segment = work.segment;
    const bool alone = segment.index == 0 && work.last_segment;
    const bool m_wanted = !alone && (segment.index > 0 || params.m_of_first) && (!work.last_segment || params.m_of_last);
    const Remembered remembered =
        remember<true>(params.fade, params.forget, segment, params.value_heads, work.value_head, lane);
    if (work.identity && m_wanted && params.carries != nullptr && work.first_panel == 0 && lane == 0) {
        params.carries[static_cast<int64_t>(work.segment_index) * params.value_heads + work.value_head] =
            !remembered.forgets;
    }
    segment.first_chunk += segment.chunks - remembered.chunks;
    segment.chunks = remembered.chunks;
    if (work.identity ? !m_wanted || remembered.forgets : work.last_segment) {
        segment.sequence = -1;
    }
    work.walk = Walk(params.chunks, segment);
    return work;
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, 1)
    gdn_pre_scan_wgmma(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(swizzle_period) uint8_t shared_bytes[];
    SharedMap& shared = *reinterpret_cast<SharedMap*>(shared_bytes);
    if (threadIdx.x < 32) {
        const Work work = work_of_block(params, static_cast<int>(threadIdx.x));
        if (threadIdx.x == 0) {
            init_barriers(shared.head.barriers);
            shared.head.work = work;
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
        SegmentMap(params, shared, warpgroup).run();
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
                                  !work.identity};
        run_others(warpgroup, inputs, shared, [](RowSender&, int, const Panel&, int) {});
    }
}
