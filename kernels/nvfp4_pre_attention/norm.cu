// Hidden states to NVFP4 activation, two token rows a CTA:
//
//   n = bf16(x * rsqrt(mean(x^2) + eps) * weight)      h = bf16(n * bf16(1 + scale[row]) + shift[row])
//   h -> E2M1 codes and one E4M3 scale per 16 elements; where the schedule says so, their values as an operand image too
//
//   warps 0 1  row 2b     | load x, add squares | meet | normalise, modulate, quantise, store, chunk by chunk
//   warps 2 3  row 2b + 1 | the same
//
// The grid covers the rows that round the tokens up to whole scale tiles: their scale bytes, and their rows of the image, are zeros. The arithmetic is
// canonical (every operation rounded to nearest even, in a fixed order), so that the bytes are those of a CPU.

#include "../device/element.cuh"
#include "image.cuh"
#include "quantise.cuh"
#include "scale_layout.cuh"
#include "schedule.cuh"

#include <cstdint>

namespace bakewell {

using S = Schedule;

struct Params {
    const uint4* x;              // bf16 [tokens, hidden]
    const uint4* weight;         // bf16 [hidden]
    const uint4* adaln_scale;    // bf16 [table_rows, hidden]
    const uint4* adaln_shift;    // bf16 [table_rows, hidden]
    const int32_t* adaln_index;  // [tokens]; a row outside the table gives zeros
    const float* global_scale;   // [1]
    uint32_t* activation_q;      // E2M1 [tokens, hidden / 8 words]
    uint8_t* activation_sf;      // E4M3, tiles of 128 rows x 4 groups
    uint8_t* image;              // operand image of [tokens, hidden], rows rounded up to blocks; null without
    uint4* debug_adaln;          // bf16 [tokens, hidden], or null
    uint8_t* out_sf;             // scales of the GEMM's output whose last tiles are to be zeroed, or null
    uint64_t out_sf_bytes;       // of one destination
    uint32_t tokens;
    uint32_t hidden;             // a multiple of 64
    uint32_t table_rows;
    uint32_t destinations;
    float eps;
};

constexpr uint32_t rows_per_cta = 2;
constexpr uint32_t row_threads = 64;
constexpr uint32_t row_warps = row_threads / 32;
static_assert(S::threads == rows_per_cta * row_threads);

// Chunk c of a row is 512 elements: one 16-byte vector for each of its threads.
constexpr int vector_values = vector_elements;

struct SharedMap {
    float sums[rows_per_cta][row_warps];
};
static_assert(sizeof(SharedMap) == S::dynamic_shared_bytes);

// bf16 pairs to f32, exact.
struct Values {
    float at[vector_values];

    explicit __device__ Values(uint4 vector) {
        const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            at[2 * i] = __uint_as_float(words[i] << 16);
            at[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF'0000);
        }
    }
};

__device__ inline float round_to_bf16(float value) { return __bfloat162float(__float2bfloat16_rn(value)); }

// Which vectors of a row are this thread's: those of its lane in each chunk, up to the row's end.
struct Lane {
    uint32_t lane;    // in the row, 0..63
    uint32_t vectors; // of the row

    explicit __device__ Lane(const Params& params)
        : lane(threadIdx.x % row_threads), vectors((S::hidden != 0 ? S::hidden : params.hidden) / vector_values) {}

    // Chunks in which any lane of the warp has a vector.
    __device__ uint32_t chunks() const { return (vectors - lane / 32 * 32 + row_threads - 1) / row_threads; }

    __device__ uint64_t index(uint32_t chunk) const { return static_cast<uint64_t>(chunk) * row_threads + lane; }
    __device__ bool has(uint32_t chunk) const { return index(chunk) < vectors; }

    // Vector of a chunk, zeros past the row's end. They change no sum and no maximum.
    __device__ uint4 load(const uint4* row, uint32_t chunk) const {
        return has(chunk) ? row[index(chunk)] : make_uint4(0, 0, 0, 0);
    }
};

// The thread's part of a row of x: in registers if the row's length is known, otherwise read again at each use.
template <int hidden>
class InputRow {
    static constexpr uint32_t most_chunks = (hidden / vector_values + row_threads - 1) / row_threads;
    uint4 kept[most_chunks];

  public:
    __device__ InputRow(const uint4* row, Lane lane) {
#pragma unroll
        for (uint32_t chunk = 0; chunk < most_chunks; ++chunk) {
            kept[chunk] = lane.load(row, chunk);
        }
    }

    template <class Use>
    __device__ void for_each_chunk(Lane lane, Use use) const {
#pragma unroll
        for (uint32_t chunk = 0; chunk < most_chunks; ++chunk) {
            if (chunk < lane.chunks()) {
                use(chunk, kept[chunk]);
            }
        }
    }
};

template <>
class InputRow<0> {
    const uint4* row;

  public:
    __device__ InputRow(const uint4* row, Lane) : row(row) {}

    template <class Use>
    __device__ void for_each_chunk(Lane lane, Use use) const {
        for (uint32_t chunk = 0; chunk < lane.chunks(); ++chunk) {
            use(chunk, lane.load(row, chunk));
        }
    }
};

// Sum over the warp, neighbours first; the same bits in every lane.
__device__ inline float warp_sum(float value) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        value = __fadd_rn(value, __shfl_xor_sync(~0u, value, distance));
    }
    return value;
}

// 1 / sqrt(mean of squares + eps). Every thread of the CTA calls it.
template <class Row>
__device__ float inverse_rms(const Row& row, Lane lane, SharedMap& shared, const Params& params) {
    float sum = 0;
    row.for_each_chunk(lane, [&](uint32_t, uint4 vector) {
        const Values x(vector);
#pragma unroll
        for (int i = 0; i < vector_values; ++i) {
            sum = __fmaf_rn(x.at[i], x.at[i], sum);
        }
    });
    float(&sums)[row_warps] = shared.sums[threadIdx.x / row_threads];
    sums[lane.lane / 32] = warp_sum(sum);
    __syncthreads();
    const float elements = static_cast<float>(lane.vectors * vector_values);
    return __frsqrt_rn(__fadd_rn(__fdiv_rn(__fadd_rn(sums[0], sums[1]), elements), params.eps));
}

// The weight and the modulation row of a token.
struct Modulation {
    const uint4* weight;
    const uint4* scale;
    const uint4* shift;

    // h of one vector.
    __device__ Values apply(Values x, float rstd, Lane lane, uint32_t chunk) const {
        const Values w(lane.load(weight, chunk)), a(lane.load(scale, chunk)), b(lane.load(shift, chunk));
#pragma unroll
        for (int i = 0; i < vector_values; ++i) {
            const float normed = round_to_bf16(__fmul_rn(__fmul_rn(x.at[i], rstd), w.at[i]));
            const float factor = round_to_bf16(__fadd_rn(1.0f, a.at[i]));
            x.at[i] = round_to_bf16(__fmaf_rn(normed, factor, b.at[i]));
        }
        return x;
    }
};

// Where the results of one row go.
struct OutputRow {
    const Params& params;
    Lane lane;
    uint32_t row;

    __device__ uint64_t vector(uint32_t chunk) const {
        return static_cast<uint64_t>(row) * lane.vectors + lane.index(chunk);
    }

    // Four scale bytes of eight lanes, by the first of them.
    __device__ void store_scales(uint32_t chunk, uint32_t bytes) const {
        constexpr uint32_t set_lanes = scale_tile_groups * scale_group / vector_values;
        if (lane.lane % set_lanes == 0 && lane.has(chunk)) {
            const uint32_t sets = lane.vectors / set_lanes;
            const uint64_t offset = scale_offset(row, lane.index(chunk) / set_lanes, sets);
            *reinterpret_cast<uint32_t*>(params.activation_sf + offset) = bytes;
        }
    }

    __device__ void store_image(uint32_t chunk, uint4 values) const {
        if (S::image && lane.has(chunk)) {
            const uint64_t offset = image_chunk_offset(row, lane.index(chunk) * vector_values, lane.vectors * vector_values);
            *reinterpret_cast<uint4*>(params.image + offset) = values;
        }
    }

    // Codes and scales of one chunk. The whole warp calls it: two lanes share a block, eight a word of scales.
    __device__ void quantise(uint32_t chunk, const Values& h, GlobalScale global) const {
        float largest = 0;
#pragma unroll
        for (int i = 0; i < vector_values; ++i) {
            largest = fmaxf(largest, fabsf(h.at[i]));
        }
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        const BlockScale scale(largest, global);
        const uint32_t codes = encode_e2m1<S::e2m1_instruction>(h.at, scale.inverse);
        if (lane.has(chunk)) {
            params.activation_q[vector(chunk)] = codes;
        }
        store_image(chunk, decode_bf16(codes, scale_to_bf16x2(scale.byte)));
        const uint32_t pair = scale.byte | __shfl_down_sync(~0u, scale.byte, 2) << 8;
        store_scales(chunk, pair | __shfl_down_sync(~0u, pair, 4) << 16);
    }

    __device__ void store_debug(uint32_t chunk, const Values& h) const {
        if (params.debug_adaln != nullptr && lane.has(chunk)) {
            params.debug_adaln[vector(chunk)] =
                make_uint4(pack<Element::bf16>(h.at[0], h.at[1]), pack<Element::bf16>(h.at[2], h.at[3]),
                           pack<Element::bf16>(h.at[4], h.at[5]), pack<Element::bf16>(h.at[6], h.at[7]));
        }
    }

    // A row outside the table, or one past the last token, which is in scales and image only.
    __device__ void zero(bool live) const {
        for (uint32_t chunk = 0; chunk < lane.chunks(); ++chunk) {
            store_scales(chunk, 0);
            store_image(chunk, make_uint4(0, 0, 0, 0));
            if (live && lane.has(chunk)) {
                params.activation_q[vector(chunk)] = 0;
                if (params.debug_adaln != nullptr) {
                    params.debug_adaln[vector(chunk)] = make_uint4(0, 0, 0, 0);
                }
            }
        }
    }
};

// Zeros the last scale tile of the CTA's destination, live rows included: the GEMM, which runs later, writes those.
__device__ void clear_output_padding(const Params& params) {
    constexpr uint32_t output_sets = 2;
    constexpr uint32_t tile_bytes = output_sets * scale_tile_bytes;
    static_assert(tile_bytes == S::threads * sizeof(uint2));
    if (params.out_sf != nullptr && blockIdx.x < params.destinations) {
        uint8_t* tile = params.out_sf + (blockIdx.x + uint64_t{1}) * params.out_sf_bytes - tile_bytes;
        reinterpret_cast<uint2*>(tile)[threadIdx.x] = make_uint2(0, 0);
    }
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, bakewell::Schedule::min_ctas_per_sm)
    nvfp4_pre_attention_norm(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(16) char shared_bytes[];
    auto& shared = *reinterpret_cast<SharedMap*>(shared_bytes);

    const Lane lane(params);
    const uint32_t row = blockIdx.x * rows_per_cta + threadIdx.x / row_threads;
    const bool live = row < params.tokens;
    // A row past the last token has the sum of the last one computed again: its threads must meet the others.
    const uint32_t token = min(row, params.tokens - 1);
    const uint64_t vectors = lane.vectors;
    const InputRow<S::hidden> x(params.x + token * vectors, lane);
    const int32_t table_row = live ? params.adaln_index[row] : -1;
    clear_output_padding(params);
    const float rstd = inverse_rms(x, lane, shared, params);

    const OutputRow out{params, lane, row};
    if (table_row < 0 || table_row >= static_cast<int64_t>(params.table_rows)) {
        out.zero(live);
        return;
    }
    const uint64_t table_offset = table_row * vectors;
    const Modulation modulation{params.weight, params.adaln_scale + table_offset, params.adaln_shift + table_offset};
    const GlobalScale global(*params.global_scale);
    x.for_each_chunk(lane, [&](uint32_t chunk, uint4 vector) {
        const Values h = modulation.apply(Values(vector), rstd, lane, chunk);
        out.store_debug(chunk, h);
        out.quantise(chunk, h, global);
    });
}
