// Operands of a CTA in shared and tensor memory, and the products over them. One thread of the leading CTA issues for
// both.
#pragma once

#include "../device/cluster_ring.cuh"
#include "../device/cta_pair.cuh"
#include "../device/nvfp4_mma.cuh"
#include "schedule.cuh"
#include "tiles.cuh"

#include <cstdint>

namespace bakewell {

constexpr uint32_t swizzle_period = 1024;

// A stage holds 256 elements of K: four sets of 64, each with a tile of scales for A and two for B.
constexpr uint32_t stage_k = 256;
constexpr uint32_t stage_sets = stage_k / nvfp4_mma::set_k;
constexpr uint32_t row_bytes = stage_k / 2;
constexpr uint32_t operand_bytes = tile_tokens * row_bytes; // of A, and of a CTA's half of B

// With K = 96, eight products cover three stages.
constexpr uint32_t window_stages = 3;
constexpr uint32_t window_products = window_stages * stage_k / 96;

struct Operands {
    uint8_t a[Schedule::stages][operand_bytes];
    uint8_t b[Schedule::stages][operand_bytes];
    uint8_t a_scales[Schedule::stages][stage_sets][nvfp4_mma::scale_tile_bytes];
    uint8_t b_scales[Schedule::stages][stage_sets][2][nvfp4_mma::scale_tile_bytes];

    static constexpr uint32_t matrix_bytes = sizeof(a[0]) + sizeof(b[0]);
    static constexpr uint32_t scale_bytes = sizeof(a_scales[0]) + sizeof(b_scales[0]);
};

// Columns. Scales have a place for each stage of the ring, so that a copy never meets a product that still reads: whoever
// refilled the stage waited for it. A product of K = 96 takes the scales of two neighbouring sets; the set after the last
// stage is a second place of the first stage's first set.
struct TmemMap {
    static constexpr uint32_t columns = 512;
    static constexpr uint32_t accumulator = 0;
    static constexpr uint32_t sets = Schedule::stages * stage_sets + (Schedule::product_k == 96);
    static constexpr uint32_t a_scales = accumulator + nvfp4_mma::n;
    static constexpr uint32_t b_scales = a_scales + sets * nvfp4_mma::a_set_columns;
};
static_assert(TmemMap::b_scales + TmemMap::sets * nvfp4_mma::b_set_columns <= TmemMap::columns);

class Products {
    uint32_t tmem;
    uint64_t a, b, a_scales, b_scales; // descriptors of the first stage

    __device__ uint32_t a_columns(uint32_t set) const {
        return tmem + TmemMap::a_scales + set * nvfp4_mma::a_set_columns;
    }
    __device__ uint32_t b_columns(uint32_t set) const {
        return tmem + TmemMap::b_scales + set * nvfp4_mma::b_set_columns;
    }

    // From set `set` of a stage to place `place`.
    __device__ void copy_set(int slot, uint32_t set, uint32_t place) const {
        constexpr uint32_t tile = nvfp4_mma::scale_tile_bytes;
        const uint32_t from = slot * stage_sets + set;
        nvfp4_mma::copy_scales(a_columns(place), tcgen05::advance(a_scales, from * tile));
        nvfp4_mma::copy_scales(b_columns(place), tcgen05::advance(b_scales, 2 * from * tile));
        nvfp4_mma::copy_scales(b_columns(place) + nvfp4_mma::scale_tile_columns,
                               tcgen05::advance(b_scales, (2 * from + 1) * tile));
    }

  public:
    __device__ Products(uint32_t tmem, const Operands& operands)
        : tmem(tmem), a(tcgen05::swizzled_descriptor(operands.a[0])), b(tcgen05::swizzled_descriptor(operands.b[0])),
          a_scales(nvfp4_mma::scale_descriptor(operands.a_scales[0])),
          b_scales(nvfp4_mma::scale_descriptor(operands.b_scales[0])) {}

    // The scales of the first `sets` sets of a stage, to the places of the stage.
    __device__ void copy_scales(int slot, uint32_t sets) const {
        for (uint32_t set = 0; set < sets; ++set) {
            copy_set(slot, set, slot * stage_sets + set);
        }
        if (TmemMap::sets > Schedule::stages * stage_sets && slot == 0) {
            copy_set(slot, 0, Schedule::stages * stage_sets);
        }
    }

    // Accumulator (+)= the products of one set.
    __device__ void multiply_set(int slot, uint32_t set, bool accumulate) const {
        constexpr uint32_t k = nvfp4_mma::set_k;
        const uint32_t offset = slot * operand_bytes + set * nvfp4_mma::bytes(k);
        const uint32_t place = slot * stage_sets + set;
        nvfp4_mma::mma(tmem + TmemMap::accumulator, tcgen05::advance(a, offset), tcgen05::advance(b, offset),
                       nvfp4_mma::instruction(k, 0), a_columns(place), b_columns(place), accumulate);
    }

    // Whether product `j` of a window begins in one stage and ends in the next.
    static __device__ constexpr bool straddles(uint32_t j) {
        return j * nvfp4_mma::bytes(96) % row_bytes + nvfp4_mma::bytes(96) > row_bytes;
    }

    // Accumulator (+)= product `j` of a window. It begins in stage `slot`; what does not fit there is in stage `next`.
    __device__ void multiply_96(int slot, int next, uint32_t j, bool accumulate) const {
        constexpr uint32_t k = 96, scales = k / 16, set_scales = nvfp4_mma::set_k / 16;
        const uint32_t offset = j * nvfp4_mma::bytes(k) % row_bytes;
        const uint32_t place = slot * stage_sets + j * scales / set_scales % stage_sets;
        const auto operand = [&](uint64_t first) {
            return nvfp4_mma::continued(tcgen05::advance(first, slot * operand_bytes + offset),
                                        tcgen05::advance(first, next * operand_bytes));
        };
        nvfp4_mma::mma(tmem + TmemMap::accumulator, operand(a), operand(b),
                       nvfp4_mma::instruction(k, j * scales % set_scales), a_columns(place), b_columns(place),
                       accumulate);
    }
};

} // namespace bakewell
