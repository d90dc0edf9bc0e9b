// Decodes an NVFP4 weight [rows, columns] into its operand image (image.cuh), once, when the operation is prepared.
//
// A CTA has 128 rows x 64 columns, which is one tile of the swizzled scales. A thread decodes blocks of 16 elements.

#include "image.cuh"
#include "scale_layout.cuh"
#include "schedule.cuh"

namespace bakewell {

struct Params {
    const uint8_t* codes;  // [rows, columns / 2]
    const uint8_t* scales; // tiles of 128 rows x 4 blocks, 512 bytes each
    uint8_t* image;
    uint32_t columns;
};

struct SharedMap {
    uint8_t scales[scale_tile_bytes];
};

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads)
    nvfp4_pre_attention_weight_image(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(16) uint8_t shared_bytes[];
    SharedMap& shared = *reinterpret_cast<SharedMap*>(shared_bytes);
    const uint64_t row_tile = blockIdx.y, set = blockIdx.x;
    const uint8_t* scales = params.scales + (row_tile * gridDim.x + set) * scale_tile_bytes;
    for (uint32_t i = threadIdx.x; i < scale_tile_bytes; i += Schedule::threads) {
        shared.scales[i] = scales[i];
    }
    __syncthreads();
    // A block of 16 elements at a time; those of a row are neighbours.
    for (uint32_t i = threadIdx.x; i < scale_tile_bytes; i += Schedule::threads) {
        const uint32_t tile_row = i / scale_tile_groups, group = i % scale_tile_groups;
        const uint64_t row = row_tile * scale_tile_rows + tile_row;
        const uint64_t column = (set * scale_tile_groups + group) * scale_group;
        const uint2 codes = *reinterpret_cast<const uint2*>(params.codes + (row * params.columns + column) / 2);
        const uint32_t scale = shared.scales[scale_offset(tile_row, 0, 1) + group];
        write_image_block(params.image, row, column, params.columns, codes, scale);
    }
}
