// Decay and write strength of a token.
#pragma once

#include "../device/softmax.cuh"

#include <cstdint>
#include <cuda_bf16.h>

namespace bakewell {

constexpr float log2_e = 1.44269504088896341f;

// The factor by which a state decays over a stretch of gate, in log2 units, at most 0. Every stage uses this one.
__device__ inline float decay(float gate) { return exp2_approx(gate); }

// beta of a token and value head; f32 or bf16.
__device__ inline float load_beta(const void* beta, bool is_bf16, uint64_t index) {
    if (is_bf16) {
        return __bfloat162float(static_cast<const __nv_bfloat16*>(beta)[index]);
    }
    return static_cast<const float*>(beta)[index];
}

} // namespace bakewell
