// Products of f32 matrices by bf16 tensor-core products: an operand is a sum of two bf16, and three of the four products
// keep 16 bits of each operand.
#pragma once

#include "element.cuh"
#include "mma_sync.cuh"

#include <cstdint>

namespace bakewell {

struct SplitPair {
    uint32_t high;
    uint32_t low;

    static __device__ SplitPair of(float first, float second) {
        const uint32_t high = pack<Element::bf16>(first, second);
        const float first_rest = first - __uint_as_float(high << 16);
        const float second_rest = second - __uint_as_float(high & 0xFFFF0000);
        return {high, pack<Element::bf16>(first_rest, second_rest)};
    }
    static __device__ SplitPair of(float2 pair) { return of(pair.x, pair.y); }
};

// C[16, 8] += A[16, 16] B[16, 8] of split operands, small products first. Words as in mma_m16n8k16.
__device__ inline void mma_split(float (&c)[4], const SplitPair (&a)[4], const SplitPair (&b)[2]) {
    mma_m16n8k16<Element::bf16>(c, a[0].low, a[1].low, a[2].low, a[3].low, b[0].high, b[1].high);
    mma_m16n8k16<Element::bf16>(c, a[0].high, a[1].high, a[2].high, a[3].high, b[0].low, b[1].low);
    mma_m16n8k16<Element::bf16>(c, a[0].high, a[1].high, a[2].high, a[3].high, b[0].high, b[1].high);
}

} // namespace bakewell
