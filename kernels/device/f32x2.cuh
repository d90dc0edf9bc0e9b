// Packed pairs of f32 (sm_100 and later): elementwise, nearest even.
#pragma once

namespace bakewell {

// PTX: add.rn.f32x2
__device__ inline float2 add(float2 a, float2 b) { return __fadd2_rn(a, b); }

// PTX: fma.rn.f32x2
__device__ inline float2 fma(float2 a, float2 b, float2 c) { return __ffma2_rn(a, b, c); }

} // namespace bakewell
