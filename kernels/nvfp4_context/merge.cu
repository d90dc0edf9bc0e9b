// Merges the partial results of split tiles: the launch after those of wgmma.cu and expanded.cu. A warp has a row of the
// output, a lane four of its columns.
//
//   out = E4M3(bmm2 * sum_s w[s] out[s] / sum_s w[s] sum[s]), w[s] = exp2(bmm1 * log2(e) * (max[s] - max))
//
// The order of the sums depends on the number of splits only.

#include "../device/softmax.cuh"
#include "merge_params.cuh"
#include "output.cuh"
#include "schedule.cuh"

namespace bakewell {

using S = Schedule;

constexpr int warps = S::threads / 32;

struct SharedMap {
    float weights[warps][max_splits];
};

template <class Combine>
__device__ float across_warp(float value, Combine combine) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        value = combine(value, __shfl_xor_sync(~0u, value, distance));
    }
    return value;
}

// One warp.
__device__ void merge(const Params& params, uint64_t row, float (&weights)[max_splits]) {
    const uint32_t lane = threadIdx.x % 32;
    const uint64_t first = row * params.splits;
    const float scale = Scales(params).log2;
    float maximum = -INFINITY;
    for (uint32_t split = lane; split < params.splits; split += 32) {
        maximum = fmaxf(maximum, params.partial_max[first + split]);
    }
    maximum = across_warp(maximum, [](float a, float b) { return fmaxf(a, b); });
    float sum = 0;
    for (uint32_t split = lane; split < params.splits; split += 32) {
        const float of_split = params.partial_max[first + split];
        const float weight = of_split > -INFINITY ? exp2_approx((of_split - maximum) * scale) : 0.0f;
        weights[split % max_splits] = weight;
        sum = fmaf(weight, params.partial_sum[first + split], sum);
    }
    sum = across_warp(sum, [](float a, float b) { return a + b; });
    __syncwarp();
    float4 out = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (uint32_t split = 0; split < params.splits; ++split) {
        const float weight = weights[split % max_splits];
        // A split without visible keys wrote no output.
        if (weight > 0) {
            const float4 value = *reinterpret_cast<const float4*>(params.partial_out + (first + split) * head_dim + 4 * lane);
            out.x = fmaf(weight, value.x, out.x);
            out.y = fmaf(weight, value.y, out.y);
            out.z = fmaf(weight, value.z, out.z);
            out.w = fmaf(weight, value.w, out.w);
        }
    }
    const Normaliser normaliser(params, static_cast<int64_t>(row % params.q_heads), maximum, sum);
    reinterpret_cast<uint32_t*>(params.out + row * head_dim)[lane] = normaliser.pack(out.x, out.y, out.z, out.w);
    if (params.lse && lane == 0) {
        params.lse[row] = normaliser.lse;
    }
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads)
    nvfp4_context_merge(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(16) uint8_t shared_bytes[];
    SharedMap& shared = *reinterpret_cast<SharedMap*>(shared_bytes);
    const uint32_t warp = threadIdx.x / 32;
    const uint64_t row = static_cast<uint64_t>(blockIdx.x) * warps + warp;
    if (row < static_cast<uint64_t>(params.cu_seqlens_q[params.batch]) * params.q_heads) {
        merge(params, row, shared.weights[warp]);
    }
}
