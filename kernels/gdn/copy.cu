// Makes a tensor contiguous that no other stage can read in place.
//
// One CTA per token; a thread moves a unit at a time: 16 bytes where strides and address allow it, else an element.

#include "copy_params.cuh"
#include "schedule.cuh"

#include <cstdint>

namespace bakewell {

using S = Schedule;

// None.
struct SharedMap {
    char bytes[0];
};

template <typename Unit> __device__ void copy(const Params& params) {
    const uint64_t token = blockIdx.x;
    const char* row = params.source + token / params.row_tokens * params.batch_stride +
                      token % params.row_tokens * params.token_stride;
    const uint64_t units = params.units;
    const uint64_t count = params.row_heads * units;
    Unit* target = reinterpret_cast<Unit*>(params.target) + token * count;
    uint64_t head = threadIdx.x / units;
    uint64_t unit = threadIdx.x % units;
    for (uint64_t i = threadIdx.x; i < count; i += S::threads) {
        target[i] = *reinterpret_cast<const Unit*>(row + head * params.head_stride + unit * params.unit_stride);
        // One division per thread: the next unit is found from this one.
        head += S::threads / units;
        unit += S::threads % units;
        if (unit >= units) {
            unit -= units;
            ++head;
        }
    }
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, bakewell::Schedule::min_ctas_per_sm)
    gdn_copy(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    switch (params.unit_bytes) {
    case sizeof(uint4):
        return copy<uint4>(params);
    case sizeof(uint32_t):
        return copy<uint32_t>(params);
    default:
        return copy<uint16_t>(params);
    }
}
