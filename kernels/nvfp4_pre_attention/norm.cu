// Hidden states to NVFP4 activation, two token rows a CTA:
//
//   n = bf16(x * rsqrt(mean(x^2) + eps) * weight)      h = bf16(n * bf16(1 + scale[row]) + shift[row])
//   h -> E2M1 codes and one E4M3 scale per 16 elements; where the schedule says so, their values as an operand image too
//
//   warps 0 1  row 2b     | load x | table of scales, squares | meet | normalise, modulate, quantise, store, chunk by chunk
//   warps 2 3  row 2b + 1 | the same
//
// The grid covers the rows that round the tokens up to whole scale tiles: their scale bytes, and their rows of the image, are
// zeros. The arithmetic is canonical (every operation rounded to nearest even, in a fixed order), so that the bytes are
// those of a CPU.

#include "../device/element.cuh"
#include "image.cuh"
#include "quantise.cuh"
#include "scale_layout.cuh"
#include "schedule.cuh"
#include "words.cuh"

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

// Lanes of a row that share a group and its scale, and those that share a set of groups.
constexpr uint32_t group_lanes = scale_group / vector_elements;
constexpr uint32_t set_lanes = scale_tile_groups * group_lanes;

// ---------------------------------------------------------------- shared memory

// What a scale byte stands for.
struct ScaleMeaning {
    float inverse;   // what values are multiplied by before they are encoded
    uint32_t factor; // what codes are multiplied by to decode them, bf16x2; for the image
};

// A reciprocal to nearest even costs as much as all else of a group, and there are few different ones.
struct ScaleTable {
    static constexpr uint32_t bytes = 128; // without a sign

    ScaleMeaning of[bytes];

    // All threads of the CTA together.
    __device__ void fill(float global) {
        const GlobalScale scale(global);
        for (uint32_t byte = threadIdx.x; byte < bytes; byte += S::threads) {
            of[byte] = {inverse_scale(byte, scale), scale_to_bf16x2(byte)};
        }
    }

    __device__ ScaleMeaning operator[](uint32_t byte) const { return of[byte % bytes]; }
};

struct SharedMap {
    ScaleTable scales;
    float sums[rows_per_cta][row_warps];
};
static_assert(sizeof(SharedMap) == S::dynamic_shared_bytes);

// ---------------------------------------------------------------- a row

// Which vectors of a row are this thread's: one in each chunk of 64, up to the row's end. A chunk goes by its first vector.
struct Lane {
    uint32_t lane;    // in the row
    uint32_t vectors; // of the row

    explicit __device__ Lane(const Params& params)
        : lane(threadIdx.x % row_threads), vectors((S::hidden != 0 ? S::hidden : params.hidden) / vector_elements) {}

    // Whether the row reaches this lane in a chunk, and whether it reaches any lane of the warp.
    __device__ bool has(uint32_t chunk) const { return reaches(chunk, lane); }
    __device__ bool warp_has(uint32_t chunk) const { return reaches(chunk, lane / 32 * 32); }

    // Vector of a chunk; past the row's end zeros, which change no sum and no maximum. A lane that has none reads the row's
    // last one: a branch around the load would be taken by half of the warps and double the code after it.
    __device__ uint4 load(const uint4* row, uint32_t chunk) const {
        const uint4 vector = __ldg(row + min(chunk + lane, vectors - 1));
        return has(chunk) ? vector : make_uint4(0, 0, 0, 0);
    }

  private:
    __device__ bool reaches(uint32_t chunk, uint32_t lane) const {
        const bool whole = (chunk + row_threads) * vector_elements <= S::hidden; // known when compiling
        return whole || chunk + lane < vectors;
    }
};

// The thread's part of a row of x: in registers if the row's length is known, otherwise read again at each use.
template <int hidden>
class InputRow {
    static constexpr uint32_t most_chunks = (hidden / vector_elements + row_threads - 1) / row_threads;
    Lane lane;
    uint4 kept[most_chunks];

  public:
    __device__ InputRow(const uint4* row, Lane lane) : lane(lane) {
#pragma unroll
        for (uint32_t i = 0; i < most_chunks; ++i) {
            kept[i] = lane.load(row, i * row_threads);
        }
    }

    template <class Use>
    __device__ void for_each_chunk(Use use) const {
#pragma unroll
        for (uint32_t i = 0; i < most_chunks; ++i) {
            if (lane.warp_has(i * row_threads)) {
                use(i * row_threads, kept[i]);
            }
        }
    }
};

template <>
class InputRow<0> {
    Lane lane;
    const uint4* row;

  public:
    __device__ InputRow(const uint4* row, Lane lane) : lane(lane), row(row) {}

    template <class Use>
    __device__ void for_each_chunk(Use use) const {
        for (uint32_t chunk = 0; lane.warp_has(chunk); chunk += row_threads) {
            use(chunk, lane.load(row, chunk));
        }
    }
};

// ---------------------------------------------------------------- norm

// Sum over the warp, neighbours first; the same bits in every lane.
__device__ inline float warp_sum(float value) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        value = __fadd_rn(value, __shfl_xor_sync(~0u, value, distance));
    }
    return value;
}

// Sum of squares over the warp's part of a row.
__device__ inline float square_sum(const InputRow<S::hidden>& x) {
    float sum = 0;
    x.for_each_chunk([&](uint32_t, uint4 vector) {
        const uint32_t words[vector_words] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
        for (int i = 0; i < vector_words; ++i) {
            sum = __fmaf_rn(low_value(words[i]), low_value(words[i]), sum);
            sum = __fmaf_rn(high_value(words[i]), high_value(words[i]), sum);
        }
    });
    return warp_sum(sum);
}

// 1 / sqrt(mean of squares + eps), from the sums of the row's warps.
__device__ inline float inverse_rms(const float (&sums)[row_warps], Lane lane, float eps) {
    const float elements = static_cast<float>(lane.vectors * vector_elements);
    return __frsqrt_rn(__fadd_rn(__fdiv_rn(__fadd_rn(sums[0], sums[1]), elements), eps));
}

// 1 + a, both elements of a word. PTX: add.rn.bf16x2
__device__ inline uint32_t one_plus(uint32_t a) {
    constexpr uint32_t ones = 0x3F80'3F80;
    uint32_t sum;
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(ones));
    return sum;
}

// The weight and the modulation row of a token.
struct Modulation {
    const uint4* weight;
    const uint4* scale;
    const uint4* shift;

    // Makes h of the words of x.
    __device__ void apply(uint32_t (&words)[vector_words], float rstd, Lane lane, uint32_t chunk) const {
        const uint4 w = lane.load(weight, chunk), a = lane.load(scale, chunk), b = lane.load(shift, chunk);
        const uint32_t weights[vector_words] = {w.x, w.y, w.z, w.w};
        const uint32_t scales[vector_words] = {a.x, a.y, a.z, a.w};
        const uint32_t shifts[vector_words] = {b.x, b.y, b.z, b.w};
        const auto scaled = [rstd](float value, float weight) { return __fmul_rn(__fmul_rn(value, rstd), weight); };
#pragma unroll
        for (int i = 0; i < vector_words; ++i) {
            const uint32_t normed = pack<Element::bf16>(scaled(low_value(words[i]), low_value(weights[i])),
                                                        scaled(high_value(words[i]), high_value(weights[i])));
            const uint32_t factors = one_plus(scales[i]);
            words[i] =
                pack<Element::bf16>(__fmaf_rn(low_value(normed), low_value(factors), low_value(shifts[i])),
                                    __fmaf_rn(high_value(normed), high_value(factors), high_value(shifts[i])));
        }
    }
};

// ---------------------------------------------------------------- results

// Where the thread's results of a row go: places of chunk 0, from which the others are constants away.
struct OutputRow {
    Lane lane;
    uint32_t* codes;
    uint8_t* scales;
    uint8_t* image;
    uint4* debug; // or null

    __device__ OutputRow(const Params& params, Lane lane, uint32_t row) : lane(lane) {
        const uint64_t vector = static_cast<uint64_t>(row) * lane.vectors + lane.lane;
        codes = params.activation_q + vector;
        scales = params.activation_sf + scale_offset(row, lane.lane / set_lanes, lane.vectors / set_lanes) +
                 lane.lane % set_lanes / group_lanes;
        image = params.image + image_chunk_offset(row, lane.lane * vector_elements, lane.vectors * vector_elements);
        debug = params.debug_adaln != nullptr ? params.debug_adaln + vector : nullptr;
    }

    // By one of the lanes that share the group.
    __device__ void store_scale(uint32_t chunk, uint32_t byte) const {
        if (lane.lane % group_lanes == 0 && lane.has(chunk)) {
            scales[uint64_t{chunk} * (scale_tile_bytes / set_lanes)] = static_cast<uint8_t>(byte);
        }
    }

    __device__ void store_image(uint32_t chunk, uint4 values) const {
        if (S::image && lane.has(chunk)) {
            *reinterpret_cast<uint4*>(image + uint64_t{chunk} * (vector_elements * image_block_bytes / image_columns)) = values;
        }
    }

    __device__ void store_words(uint32_t chunk, uint32_t word, uint4 h) const {
        if (lane.has(chunk)) {
            codes[chunk] = word;
            if (debug != nullptr) {
                debug[chunk] = h;
            }
        }
    }

    // Quantises and stores one chunk of h. The whole warp calls it.
    __device__ void quantise(uint32_t chunk, const uint32_t (&h)[vector_words], float global, const ScaleTable& table) const {
        static_assert(group_lanes == 2);
        const uint32_t own = larger_magnitudes(larger_magnitudes(h[0], h[1]), larger_magnitudes(h[2], h[3]));
        const uint32_t largest = larger_magnitudes(own, __shfl_xor_sync(~0u, own, 1));
        const uint32_t byte = encode_scale(larger_magnitude(largest), global);
        const ScaleMeaning scale = table[byte];
        const uint32_t word = encode_e2m1<S::e2m1_instruction>(h, scale.inverse);
        store_words(chunk, word, make_uint4(h[0], h[1], h[2], h[3]));
        store_image(chunk, decode_bf16(word, h, scale.factor));
        store_scale(chunk, byte);
    }

    // Of a row outside the table, or one past the last token, which is in scales and image only.
    __device__ void zero(uint32_t chunk, bool live) const {
        store_scale(chunk, 0);
        store_image(chunk, make_uint4(0, 0, 0, 0));
        if (live) {
            store_words(chunk, 0, make_uint4(0, 0, 0, 0));
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
    const uint32_t cta_row = threadIdx.x / row_threads, row = blockIdx.x * rows_per_cta + cta_row;
    const bool live = row < params.tokens;
    const int32_t table_row = live ? params.adaln_index[row] : -1;
    const uint64_t vectors = lane.vectors;
    // A row past the last token reads that one: its threads must meet the others.
    const InputRow<S::hidden> x(params.x + min(row, params.tokens - 1) * vectors, lane);
    const float global = *params.global_scale;
    shared.scales.fill(global);
    clear_output_padding(params);
    shared.sums[cta_row][lane.lane / 32] = square_sum(x);
    __syncthreads();

    const OutputRow out(params, lane, row);
    // The same in all lanes; the vote tells the compiler.
    if (!__all_sync(~0u, table_row >= 0 && table_row < static_cast<int64_t>(params.table_rows))) {
        x.for_each_chunk([&](uint32_t chunk, uint4) { out.zero(chunk, live); });
        return;
    }
    const float rstd = inverse_rms(shared.sums[cta_row], lane, params.eps);
    const uint64_t table_offset = table_row * vectors;
    const Modulation modulation{params.weight, params.adaln_scale + table_offset,
                                params.adaln_shift + table_offset};
    x.for_each_chunk([&](uint32_t chunk, uint4 vector) {
        uint32_t words[vector_words] = {vector.x, vector.y, vector.z, vector.w};
        modulation.apply(words, rstd, lane, chunk);
        out.quantise(chunk, words, global, shared.scales);
    });
}
