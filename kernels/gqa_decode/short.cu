// Decode attention without a ring: one pass, every K and V vector goes from global memory straight to a register.
//
//   out[b, h] = softmax_t(scale * q[b, h] . K[b, h / group, t]) . V[b, h / group, t],  t < sequence_lengths[b]
//
// Split s covers keys [s * tile_keys, (s + 1) * tile_keys): capacity <= splits * tile_keys. Each warp has 16 keys.
//
//   warp w   | load q, length, K, V (all issued at once) | scores | weights | output | store partial |
//   CTA                                                                                              | merge |
//
// The loads do not wait for the length: they are bounded by the capacity, and what lies past the length is masked.

#include "../device/early_load.cuh"
#include "output.cuh"
#include "params.cuh"
#include "schedule.cuh"
#include "warps.cuh"
#include "work.cuh"

namespace bakewell {

using S = Schedule;
using SharedMap = MergeOf<S>;

__device__ void attend(const Params& params, Work<S> work, int32_t length, Attention<S>& attention,
                       uint32_t warp) {
    const uint64_t first = static_cast<uint64_t>(work.split) * S::tile_keys + warp * block_keys;
    if (first >= params.capacity) {
        return;
    }
    // Slots past the capacity read the last row again: an address that exists, and a key that is masked.
    const int last = static_cast<int>(min(params.capacity - first, static_cast<uint64_t>(block_keys))) - 1;
    const auto read_from = [&](const char* base) {
        return [=, block = base + first * Work<S>::row_bytes](int slot, int vector) {
            return load_early(reinterpret_cast<const uint4*>(block + min(slot, last) * Work<S>::row_bytes) + vector);
        };
    };
    const auto keys = attention.load_keys(read_from(work.keys(params)));
    auto values = attention.load_values(read_from(work.values(params)));

    // Keys of the block below the length. Without any the partial stays the empty one, and nobody waits for the rows.
    const int64_t count = length - static_cast<int64_t>(first);
    if (count <= 0) {
        return;
    }
    const auto live = [=](int slot) { return slot < count; };
    typename Attention<S>::Scores scores[1];
    attention.score(keys, scores[0]);
    attention.mask(scores[0], [&](int slot, int, int) { return live(slot); });
    attention.raise_reference(scores);
    attention.weigh(scores[0]);
    if (count < block_keys) {
        attention.clear_values(values, live);
    }
    attention.accumulate(scores[0], values);
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, bakewell::Schedule::min_ctas_per_sm)
    gqa_decode_short(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(128) char shared_bytes[];
    attend_by_warps<S, attend>(params, shared_bytes);
}
