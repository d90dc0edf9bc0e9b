// The tables of chunks, segments and sequences from offsets that only the device knows.
//
// One CTA. It takes as many sequences at a time as it has threads:
//
//   a sequence per thread   | length, chunks, segments; sums over the sequences before |
//   barrier                 | sums are in shared memory |
//   a chunk per thread      | looks up its sequence in the sums |   then segments likewise
//
// Entries that the offsets do not need become padding. Offsets outside the tokens, which are the caller's mistake, are
// drawn inside, and no entry is written past its table.

#include "schedule.cuh"
#include "tables_params.cuh"

#include <cstdint>

namespace bakewell {

using S = Schedule;

constexpr int warps = S::threads / 32;
constexpr uint32_t full_warp = 0xFFFFFFFF;

struct Counts {
    uint32_t chunks;
    uint32_t segments;
};

struct SharedMap {
    Counts warp_totals[warps];
    // Of a sequence's thread: its tokens, and the counts up to its end, from the first sequence of the round.
    uint32_t first_token[S::threads];
    uint32_t end_token[S::threads];
    uint32_t chunk_end[S::threads];
    uint32_t segment_end[S::threads];
};

__device__ uint32_t offset_of(const Params& params, uint32_t sequence) {
    const int64_t offset = params.cu_seqlens_i64 ? static_cast<const int64_t*>(params.cu_seqlens)[sequence]
                                                 : static_cast<const int32_t*>(params.cu_seqlens)[sequence];
    const int64_t end = params.tokens;
    return static_cast<uint32_t>(offset < 0 ? 0 : offset > end ? end : offset);
}

__device__ uint32_t segments_of(uint32_t chunks, uint32_t segment_chunks) {
    return segment_chunks == 0 || chunks == 0 ? 1 : (chunks + segment_chunks - 1) / segment_chunks;
}

// Sums over the threads up to this one, and over all of them.
__device__ Counts inclusive_sums(SharedMap& shared, Counts own, Counts& total) {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    Counts sum = own;
    for (int step = 1; step < 32; step *= 2) {
        const uint32_t chunks = __shfl_up_sync(full_warp, sum.chunks, step);
        const uint32_t segments = __shfl_up_sync(full_warp, sum.segments, step);
        if (lane >= step) {
            sum.chunks += chunks;
            sum.segments += segments;
        }
    }
    if (lane == 31) {
        shared.warp_totals[warp] = sum;
    }
    __syncthreads();
    total = {0, 0};
    for (int other = 0; other < warps; ++other) {
        const Counts of_warp = shared.warp_totals[other];
        if (other < warp) {
            sum.chunks += of_warp.chunks;
            sum.segments += of_warp.segments;
        }
        total.chunks += of_warp.chunks;
        total.segments += of_warp.segments;
    }
    return sum;
}

// The first thread whose sum is above `index`; `index` is below the last sum.
__device__ int owner_of(const uint32_t (&ends)[S::threads], uint32_t index) {
    int low = 0;
    for (int step = S::threads / 2; step > 0; step /= 2) {
        if (ends[low + step - 1] <= index) {
            low += step;
        }
    }
    return low;
}

__device__ uint32_t before(const uint32_t (&ends)[S::threads], int thread) { return thread == 0 ? 0 : ends[thread - 1]; }

__device__ Chunk chunk_at(const SharedMap& shared, uint32_t first_sequence, uint32_t index) {
    const int thread = owner_of(shared.chunk_end, index);
    const uint32_t first = shared.first_token[thread] + (index - before(shared.chunk_end, thread)) * chunk_tokens;
    const uint32_t rest = shared.end_token[thread] - first;
    const uint32_t tokens = rest < chunk_tokens ? rest : chunk_tokens;
    return {first, tokens, static_cast<int32_t>(first_sequence) + thread, 0};
}

__device__ Segment segment_at(const SharedMap& shared, uint32_t first_sequence, uint32_t first_chunk, uint32_t index) {
    const int thread = owner_of(shared.segment_end, index);
    const uint32_t chunks_before = before(shared.chunk_end, thread);
    const uint32_t i = index - before(shared.segment_end, thread);
    const uint64_t chunks = shared.chunk_end[thread] - chunks_before;
    const uint64_t segments = shared.segment_end[thread] - before(shared.segment_end, thread);
    const uint32_t start = static_cast<uint32_t>(i * chunks / segments);
    const uint32_t end = static_cast<uint32_t>((i + 1) * chunks / segments);
    return {first_chunk + chunks_before + start, end - start, static_cast<int32_t>(first_sequence) + thread, i};
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, bakewell::Schedule::min_ctas_per_sm)
    gdn_tables(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(16) char shared_bytes[];
    static_assert(sizeof(SharedMap) == S::dynamic_shared_bytes, "the schedule's budget");
    auto& shared = *reinterpret_cast<SharedMap*>(shared_bytes);

    Counts done = {0, 0};
    for (uint32_t first = 0; first < params.sequence_count; first += S::threads) {
        const uint32_t sequence = first + threadIdx.x;
        const bool real = sequence < params.sequence_count;
        const uint32_t start = real ? offset_of(params, sequence) : 0;
        const uint32_t given_end = real ? offset_of(params, sequence + 1) : 0;
        const uint32_t end = given_end < start ? start : given_end;
        const uint32_t chunks = (end - start + chunk_tokens - 1) / chunk_tokens;
        const uint32_t segments = real ? segments_of(chunks, params.segment_chunks) : 0;
        Counts total;
        const Counts sum = inclusive_sums(shared, {chunks, segments}, total);
        shared.first_token[threadIdx.x] = start;
        shared.end_token[threadIdx.x] = end;
        shared.chunk_end[threadIdx.x] = sum.chunks;
        shared.segment_end[threadIdx.x] = sum.segments;
        if (real) {
            params.sequences[sequence] = {done.segments + sum.segments - segments, segments};
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < total.chunks && done.chunks + i < params.chunk_count; i += S::threads) {
            params.chunks[done.chunks + i] = chunk_at(shared, first, i);
        }
        for (uint32_t i = threadIdx.x; i < total.segments && done.segments + i < params.segment_count; i += S::threads) {
            params.segments[done.segments + i] = segment_at(shared, first, done.chunks, i);
        }
        done.chunks += total.chunks;
        done.segments += total.segments;
        // The next round replaces the sums.
        __syncthreads();
    }
    for (uint32_t i = done.chunks + threadIdx.x; i < params.chunk_count; i += S::threads) {
        params.chunks[i] = {0, 0, -1, 0};
    }
    for (uint32_t i = done.segments + threadIdx.x; i < params.segment_count; i += S::threads) {
        params.segments[i] = {0, 0, -1, 0};
    }
}
