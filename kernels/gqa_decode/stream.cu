// Decode attention without a ring: every warp streams its own blocks of keys from global memory through registers.
//
//   out[b, h] = softmax_t(scale * q[b, h] . K[b, h / group, t]) . V[b, h / group, t],  t < sequence_lengths[b]
//
// Split s has tiles s, s + splits, ... of the request, one block of 16 keys per warp and tile. A split without tiles
// gives the empty partial. The next block's rows are loaded into the registers that the current block frees:
//
//   warp w   | load K0 V0 | scores 0, load K1 | weights 0 | output 0, load V1 | scores 1, load K2 | ... | store partial |
//   CTA                                                                                                         | merge |
//
// No barrier ties the warps together, and 8 warps keep 64 KiB of loads in flight.

#include "output.cuh"
#include "params.cuh"
#include "schedule.cuh"
#include "warps.cuh"
#include "work.cuh"

namespace bakewell {

using S = Schedule;
using SharedMap = MergeOf<S>;

// The warp's block of a tile.
class Block {
    int64_t first; // key of slot 0
    int64_t length;

  public:
    __device__ Block(uint32_t tile, uint32_t warp, int32_t length)
        : first(static_cast<int64_t>(tile) * S::tile_keys + warp * block_keys), length(length) {}

    __device__ bool is_partial() const { return length - first < block_keys; }
    __device__ bool is_live(int slot) const { return first + slot < length; }

    // Reads vectors of rows of K or V. Slots past the length read its last row again: an address that exists. The
    // cache is read once, so its lines are the first to leave.
    __device__ auto reader(const char* base) const {
        const int64_t key = min(first, length - 1);
        const int last = static_cast<int>(min(length - 1 - key, static_cast<int64_t>(block_keys - 1)));
        return [block = base + key * Work<S>::row_bytes, last](int slot, int vector) {
            return __ldcs(reinterpret_cast<const uint4*>(block + min(slot, last) * Work<S>::row_bytes) + vector);
        };
    }
};

__device__ void attend(const Params& params, Work<S> work, int32_t length, Attention<S>& attention,
                       uint32_t warp) {
    const uint32_t tiles = (static_cast<uint32_t>(length) + S::tile_keys - 1) / S::tile_keys;
    if (work.split >= tiles) {
        return;
    }
    const char* const k = work.keys(params);
    const char* const v = work.values(params);
    Block block(work.split, warp, length);
    auto keys = attention.load_keys(block.reader(k));
    auto values = attention.load_values(block.reader(v));
    // Keeps the compiler from moving loads of V behind the first product, where they would cost a second latency.
    __syncwarp();
    for (uint32_t tile = work.split + params.splits;; tile += params.splits) {
        const Block next(tile, warp, length);
        const bool more = tile < tiles;
        typename Attention<S>::Scores scores[1];
        attention.score(keys, scores[0]);
        attention.mask(scores[0], [&](int slot, int, int) { return block.is_live(slot); });
        if (more) {
            keys = attention.load_keys(next.reader(k));
        }
        if (attention.exceeds_headroom(scores)) {
            attention.rescale_to_reference(scores);
        }
        attention.weigh(scores[0]);
        if (block.is_partial()) {
            attention.clear_values(values, [&](int slot) { return block.is_live(slot); });
        }
        attention.accumulate(scores[0], values);
        if (!more) {
            break;
        }
        values = attention.load_values(next.reader(v));
        block = next;
    }
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, bakewell::Schedule::min_ctas_per_sm)
    gqa_decode_stream(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(128) char shared_bytes[];
    attend_by_warps<S, attend>(params, shared_bytes);
}
