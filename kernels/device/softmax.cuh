// Streaming softmax in base 2, and the merge of its partial results.
//
// A partial result is (reference, sum, out): sum = sum_t exp2(s_t - reference), out = sum_t exp2(s_t - reference) v_t.
// The reference is a finite number near the largest score, not necessarily the largest itself.
#pragma once

#include <cfloat>

namespace bakewell {

// The reference before any score: the lowest finite number. s - lowest_reference is huge for every finite score, and
// -inf for a masked one, so that neither needs a special case.
constexpr float lowest_reference = -FLT_MAX;

// PTX: ex2.approx.ftz.f32 (absolute error below 2^-22 of the result; -inf gives 0)
__device__ inline float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// PTX: rcp.approx.ftz.f32 (within 1 ulp)
__device__ inline float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

constexpr float ln_2 = 0.693147180559945309f;

struct Partial {
    float4 out; // four neighbouring columns
    float reference;
    float sum;
};

// Merges `count` partial results in index order: the same partials give the same bits whoever merges them.
template <class Reference, class Sum, class Out>
__device__ inline Partial merge_partials(int count, Reference reference, Sum sum, Out out) {
    float top = lowest_reference;
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
        top = fmaxf(top, reference(i));
    }
    Partial merged{make_float4(0, 0, 0, 0), top, 0};
#pragma unroll 8
    for (int i = 0; i < count; ++i) {
        const float weight = exp2_approx(reference(i) - top);
        const float4 value = out(i);
        merged.sum += weight * sum(i);
        merged.out.x += weight * value.x;
        merged.out.y += weight * value.y;
        merged.out.z += weight * value.z;
        merged.out.w += weight * value.w;
    }
    return merged;
}

} // namespace bakewell
