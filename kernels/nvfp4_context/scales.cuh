// The factors of the products and of the output.
#pragma once

#include "../device/fp8.cuh"

#include <cstdint>

namespace bakewell {

constexpr double log2_e = 1.44269504088896340736;

// The two factors, from the host or the device.
struct Scales {
    float bmm1, bmm2;
    float log2; // bmm1 in base 2; the product in f64, rounded once, so that both origins give the same bits

    template <class Params>
    explicit __device__ Scales(const Params& params)
        : bmm1(params.bmm1_device ? *params.bmm1_device : params.bmm1_scale),
          bmm2(params.bmm2_device ? *params.bmm2_device : params.bmm2_scale),
          log2(static_cast<float>(static_cast<double>(bmm1) * log2_e)) {}
};

// Four columns of a row times its factor. Rows that see nothing have factor 0 and are zero, whatever the products left.
__device__ inline uint32_t pack_scaled(float factor, float a, float b, float c, float d) {
    return factor == 0 ? 0 : pack_e4m3(a * factor, b * factor, c * factor, d * factor);
}

} // namespace bakewell
