// Debug: every page of a cache as E4M3, tokens and dims in natural order, as the attention kernels expand it: by the same
// functions, from and to the same tiles in shared memory. No length is known here, so that no token becomes zero.
//
//   copy codes and scales of 8 pages | expand in shared memory | copy rows out

#include "expand.cuh"
#include "pages_params.cuh"
#include "schedule.cuh"

namespace bakewell {

using S = Schedule;

static_assert(S::threads == block_keys && S::threads == head_dim, "a thread expands a row and copies a column");

struct SharedMap {
    alignas(swizzle_period) uint8_t expanded[block_keys * row_bytes];
    PackedTile packed;
};

// K or V of one head.
struct Source {
    const uint8_t* codes;
    const uint8_t* scales;
    uint64_t page_stride, token_stride, scale_page_stride;

    // Pages past the last of the pool repeat it.
    __device__ void load(PackedTile& tile, uint64_t first, uint64_t pages) const {
        constexpr int row_chunks = sizeof(tile.codes[0][0]) / chunk_bytes;
        for (int page = 0; page < block_pages; ++page) {
            const uint64_t source = min(first + page, pages - 1);
            const int token = threadIdx.x / row_chunks, chunk = threadIdx.x % row_chunks * chunk_bytes;
            if (token < page_tokens) {
                copy(&tile.codes[page][token][chunk], codes + source * page_stride + token * token_stride + chunk);
            } else if (const int i = (threadIdx.x - page_tokens * row_chunks) * chunk_bytes; i < sizeof(tile.scales[0])) {
                copy(&tile.scales[page][i], scales + source * scale_page_stride + i);
            }
        }
    }

  private:
    static __device__ void copy(uint8_t* to, const uint8_t* from) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    }
};

// Where the byte of a token and dim lies in an expanded tile.
template <bool transposed>
__device__ int place(int token, int dim) {
    if constexpr (transposed) {
        const int slot = token % page_tokens; // bytes 4t .. 4t + 3 of a page's chunk hold 2t, 2t + 1, 8 + 2t, 9 + 2t
        return dim * block_keys + (token / page_tokens ^ dim % 8) * chunk_bytes + slot % 8 / 2 * 4 + slot / 8 * 2 + slot % 2;
    } else {
        return token * row_bytes + (dim / chunk_bytes ^ token % 8) * chunk_bytes + dim % chunk_bytes;
    }
}

template <Side side>
__device__ void show(const Params& params, SharedMap& shared, const Source& source, uint8_t* out) {
    constexpr bool transposed = side == Side::V && S::transposed_values;
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * block_pages;
    source.load(shared.packed, first, params.pages);
    __syncthreads();
    const int thread = threadIdx.x;
    if constexpr (transposed) {
        Transposer(thread).expand(shared.packed, shared.expanded, block_keys);
    } else {
        expand_row<S::dequantise, S::code_reads, side>(shared.packed, shared.expanded, thread, true);
    }
    __syncthreads();
    for (int token = 0; token < block_keys; ++token) {
        const uint64_t page = first + token / page_tokens;
        if (page < params.pages) {
            const uint64_t row = (page * params.kv_heads + blockIdx.y) * page_tokens + token % page_tokens;
            out[row * head_dim + thread] = shared.expanded[place<transposed>(token, thread)];
        }
    }
}

} // namespace bakewell

// Grid: [blocks of pages, KV heads, K and V].
extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads)
    nvfp4_context_pages(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(swizzle_period) uint8_t shared_bytes[];
    SharedMap& shared = *reinterpret_cast<SharedMap*>(shared_bytes);
    const uint64_t head = blockIdx.y;
    if (blockIdx.z == 0) {
        const Source source{params.k + head * params.k_head_stride, params.k_scale + head * params.k_scale_head_stride,
                            params.k_page_stride, params.k_token_stride, params.k_scale_page_stride};
        show<Side::K>(params, shared, source, params.k_out);
    } else {
        const Source source{params.v + head * params.v_head_stride, params.v_scale + head * params.v_scale_head_stride,
                            params.v_page_stride, params.v_token_stride, params.v_scale_page_stride};
        show<Side::V>(params, shared, source, params.v_out);
    }
}
