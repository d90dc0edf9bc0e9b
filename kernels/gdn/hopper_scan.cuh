// What the forward and the adjoint scan on warpgroup products share: shared memory, barriers, and the state.
//
// A CTA walks the chunks of a segment for one value head, or half of it. Each state warpgroup holds 64 value columns of
// the 128 x 128 state, transposed, as f32 accumulators; a helper warpgroup and a loading thread work ahead
// (hopper_helper.cuh), and a thread per state warpgroup stores.
#pragma once

#include "../device/tensor_store.cuh"
#include "hopper_helper.cuh"
#include "schedule.cuh"

#include <cstdint>

namespace bakewell {

using S = Schedule;

constexpr int values_per_warpgroup = 64;
constexpr int state_warpgroups = S::value_columns / values_per_warpgroup;
constexpr int value_splits = head_dim / S::value_columns;

using ChunkTiles = Tiles<state_warpgroups>;
using Barriers = ScanBarriers<S::stages, state_warpgroups>;

// The 16 rows of the state that one warp holds, on their way to memory: two panels of 64 columns.
struct alignas(swizzle_period) Snapshot {
    static constexpr int rows = 16;
    uint8_t panels[head_dim / Panel::columns][rows * Panel::row_bytes];
};

// What a CTA works on: a segment of a sequence, a value head, and 64 or 128 of its value columns.
struct Work {
    Segment segment;
    uint32_t segment_index;
    int value_head;
    int first_panel; // of 64 value columns
    bool last_segment;
    bool identity; // instead of values: the pre-scan of M
    Walk walk;

    // `cta` of those that have a segment and head in common.
    template <class Params>
    static __device__ Work of_unit(const Params& params, uint32_t unit, uint32_t cta) {
        const uint32_t index = unit / params.value_heads;
        const Segment segment = params.segments[index];
        const bool padding = segment.sequence < 0;
        return {segment,
                index,
                static_cast<int>(unit % params.value_heads),
                static_cast<int>(cta % value_splits) * state_warpgroups,
                !padding && segment.index + 1 == params.sequences[segment.sequence].segments,
                cta >= value_splits,
                Walk(params.chunks, segment)};
    }

    template <class Params>
    static __device__ Work of_block(const Params& params) {
        return of_unit(params, blockIdx.x / value_splits, blockIdx.x % value_splits);
    }

    __device__ bool padding() const { return segment.sequence < 0; }

    // First element of the [.., value_heads, 128, 128] state `index`.
    __device__ int64_t state_offset(int64_t index, uint32_t value_heads) const {
        return (index * value_heads + value_head) * head_dim * head_dim;
    }
};

// `work` stays in shared memory and is read where it is needed: registers of the state's threads are short.
struct ScanHead {
    Barriers barriers;
    Tables tables[slots];
    HelperRows rows[slots];
    Work work;
};

struct SharedMap {
    static constexpr int barrier_bytes = sizeof(Barriers);
    static constexpr int snapshots = S::snapshots ? state_warpgroups * warpgroup_warps : 0;

    union {
        ScanHead head;
        uint8_t unused[(sizeof(ScanHead) + swizzle_period - 1) / swizzle_period * swizzle_period];
    };
    Panel p[S::output ? slots : 0];
    ChunkTiles tiles[S::stages];
    uint8_t snapshot[snapshots * sizeof(Snapshot)];
};

enum class NamedBarrier : uint32_t { Helper = 1 };

// Where a chunk lies: its tiles, and what the helper has made of it.
struct Place {
    int stage = 0;
    int slot = 0;

    __device__ Place next() const {
        return {stage + 1 < S::stages ? stage + 1 : 0, slot + 1 < slots ? slot + 1 : 0};
    }
};

// One warpgroup's part of the state, and what it computes with.
struct StateTile {
    FragmentThread at = FragmentThread::here();
    int first_value; // of the warpgroup's 64 columns, in the head
    wgmma::Accumulator128 s;
    wgmma::Fragment operand[dim_steps]; // s rounded to BF16

    explicit __device__ StateTile(int first_value) : first_value(first_value) {}

    __device__ int value(int i) const { return first_value + at.row(i / 2 % 2); }
    __device__ int key(int i) const { return at.column(i / 4) + i % 2; }

    __device__ void load_identity() {
#pragma unroll
        for (int i = 0; i < 64; ++i) {
            s[i] = key(i) == value(i) ? 1.0f : 0.0f;
        }
    }

    // Values of a chunk, transposed, as operands; those past `tokens` as zeros.
    __device__ void load_values(wgmma::Fragment (&v)[token_steps], const Panel& from, int tokens) const {
#pragma unroll
        for (int k = 0; k < token_steps; ++k) {
            ldmatrix_x4_transposed(v[k], at.transposed(from, k));
        }
        if (tokens < chunk_tokens) {
#pragma unroll
            for (int k = 0; k < token_steps; ++k) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int token = at.column(2 * k + j / 2);
                    v[k][j] &= (token < tokens ? 0x0000FFFFu : 0u) | (token + 1 < tokens ? 0xFFFF0000u : 0u);
                }
            }
        }
    }

    // From a [128 keys, 128 values] state; null: zeros.
    __device__ void load_key_major(const float* from) {
#pragma unroll
        for (int i = 0; i < 64; ++i) {
            s[i] = from ? from[static_cast<int64_t>(key(i)) * head_dim + value(i)] : 0.0f;
        }
    }

    // From a [128 values, 128 keys] state.
    __device__ void load_value_major(const float* from) {
#pragma unroll
        for (int i = 0; i < 64; i += 2) {
            const float2 pair = *reinterpret_cast<const float2*>(&from[static_cast<int64_t>(value(i)) * head_dim + key(i)]);
            s[i] = pair.x;
            s[i + 1] = pair.y;
        }
    }

    __device__ void store_value_major(float* to) const {
#pragma unroll
        for (int i = 0; i < 64; i += 2) {
            *reinterpret_cast<float2*>(&to[static_cast<int64_t>(value(i)) * head_dim + key(i)]) = make_float2(s[i], s[i + 1]);
        }
    }

    __device__ void store_key_major(float* to) const {
#pragma unroll
        for (int i = 0; i < 64; ++i) {
            to[static_cast<int64_t>(key(i)) * head_dim + value(i)] = s[i];
        }
    }

    __device__ void scale(float factor) {
#pragma unroll
        for (int i = 0; i < 64; ++i) {
            s[i] *= factor;
        }
    }

    __device__ void round() { pack_fragments(operand, s); }

    // Writes the rounded state to this warp's snapshot, once the previous one has left.
    __device__ void write_snapshot(Snapshot& to) const {
        if (at.lane == 0) {
            wait_stores_read<0>();
        }
        __syncwarp();
        int lane = at.lane;
        // Addresses made of it cannot be kept over the loop of chunks: registers are short.
        asm volatile("" : "+r"(lane));
#pragma unroll
        for (int step = 0; step < dim_steps; ++step) {
            const int row = lane % 16, unit = 2 * (step % token_steps) + lane / 16;
            uint8_t* line = to.panels[step / token_steps] + row * Panel::row_bytes;
            const wgmma::Fragment& m = operand[step];
            stmatrix_x4(shared_address(line + ((unit ^ (row & 7)) << 4)), m[0], m[1], m[2], m[3]);
        }
    }

    // Lane 0, after a proxy fence of all: sends the snapshot to the [128 values, 128 keys] matrix `index` of a tensor.
    __device__ void send_snapshot(const Snapshot& from, const TensorMap& map, int index) const {
        tensor_store<4>(map, {0, first_value + 16 * at.warp, 0, index}, &from);
        commit_stores();
    }

    // The columns, which are tokens, times their factors, as A operands.
    __device__ void pack_scaled(wgmma::Fragment (&to)[token_steps], const wgmma::Accumulator64& from,
                                const float (&factors)[chunk_tokens]) const {
#pragma unroll
        for (int group = 0; group < chunk_tokens / 8; ++group) {
            const float2 factor = *reinterpret_cast<const float2*>(&factors[at.column(group)]);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int i = 4 * group + 2 * half;
                to[group / 2][2 * (group % 2) + half] = pack_bf16(from[i] * factor.x, from[i + 1] * factor.y);
            }
        }
    }

    // Multiplies the columns, which are tokens, by their factors.
    __device__ void scale_columns(wgmma::Accumulator64& d, const float (&factors)[chunk_tokens]) const {
#pragma unroll
        for (int group = 0; group < chunk_tokens / 8; ++group) {
            const float2 factor = *reinterpret_cast<const float2*>(&factors[at.column(group)]);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                d[4 * group + 2 * half] *= factor.x;
                d[4 * group + 2 * half + 1] *= factor.y;
            }
        }
    }

};

// Rows of a [tokens, value_heads, 128] BF16 tensor on their way from a warpgroup: each warp writes its 16 value columns to
// the place of the chunk's values, of which it has read the same part before, and a thread of its own sends them. Stores
// of the warpgroup itself would hold up every later proxy fence.
class RowStager {
    BarrierRing<1>& ring;
    BarrierRing<1>::Producer places;

  public:
    explicit __device__ RowStager(BarrierRing<1>& ring) : ring(ring), places(ring) {}

    // Staged rows of a short chunk: what follows belongs to others. Two lanes to a row of 32 bytes. `to`: the first row in
    // the tensor, at the warpgroup's columns.
    static __device__ void copy(FragmentThread at, const Panel& staged, uint16_t* to, int64_t stride, int tokens) {
        __syncwarp();
        const int unit = 2 * at.warp + at.lane % 2;
#pragma unroll 1
        for (int row = at.lane / 2; row < tokens; row += 16) {
            *reinterpret_cast<uint4*>(to + row * stride + 8 * unit) =
                *reinterpret_cast<const uint4*>(staged.at(row, unit));
        }
    }

    // fragment(step, m) makes the words of K step `step`.
    template <class Fragment>
    __device__ void stage(FragmentThread at, Panel& place, Fragment fragment) {
        places.acquire();
#pragma unroll
        for (int step = 0; step < token_steps; ++step) {
            wgmma::Fragment m;
            fragment(step, m);
            stmatrix_x4_transposed(at.transposed(place, step), m[0], m[1], m[2], m[3]);
        }
    }

    // After a proxy fence of all lanes.
    __device__ void send(int lane) {
        __syncwarp();
        if (lane == 0) {
            ring.full[0].arrive();
        }
    }
};

// The thread that sends the rows of one state warpgroup: by the copy engine where the chunk is whole.
class RowSender {
    BarrierRing<1>& ring;
    BarrierRing<1>::Consumer rows;

  public:
    explicit __device__ RowSender(BarrierRing<1>& ring) : ring(ring), rows(ring) {}

    __device__ void send(const TensorMap& map, const Panel& from, const Walk& walk, int step, int panel, int value_head,
                         bool wanted) {
        rows.wait();
        if (wanted && walk.tokens(step) == chunk_tokens) {
            tensor_store<4>(map, {0, static_cast<int>(walk.token(step)), panel, value_head}, &from);
            commit_stores();
            wait_stores_read<0>();
        }
        ring.empty[0].arrive();
    }
};

// Of a warp of the state, at a chunk's end: its keys, queries and inverse, and its tables, have been used.
__device__ inline void release_operands(Barriers& barriers, Place place, int lane) {
    __syncwarp();
    if (lane == 0) {
        barriers.operands.empty[place.stage].arrive();
        barriers.factors.empty[place.slot].arrive();
    }
}

// P has been used.
__device__ inline void release_prepared(Barriers& barriers, Place place, int lane) {
    if (lane == 0) {
        barriers.prepared.empty[place.slot].arrive();
    }
}

// One thread, once.
__device__ inline void init_barriers(Barriers& barriers) {
    constexpr uint32_t copy = 1, table_warps = 1, helper_warps = warpgroup_warps;
    constexpr uint32_t state_warps = state_warpgroups * warpgroup_warps;
    for (int stage = 0; stage < S::stages; ++stage) {
        barriers.operands.full[stage].init(copy);
        barriers.operands.empty[stage].init(state_warps);
        barriers.values.full[stage].init(copy);
        barriers.values.empty[stage].init(S::output ? state_warpgroups : state_warps);
    }
    for (int slot = 0; slot < slots; ++slot) {
        barriers.factors.full[slot].init(table_warps);
        barriers.factors.empty[slot].init(state_warps);
        barriers.prepared.full[slot].init(helper_warps);
        barriers.prepared.empty[slot].init(state_warps);
    }
    for (BarrierRing<1>& rows : barriers.rows) {
        rows.full[0].init(warpgroup_warps);
        rows.empty[0].init(1);
    }
    fence_mbarrier_init();
}

// The warpgroups behind those of the state: the helper; then one of single warps: loads, stores of each state warpgroup,
// tables. send(sender, step, place, panel) sends what a warpgroup stages of a chunk.
template <class Send>
__device__ void run_others(int warpgroup, const HelperInputs& inputs, SharedMap& shared, Send send) {
    ScanHead& head = shared.head;
    const Walk& walk = head.work.walk;
    if (warpgroup == state_warpgroups) {
        cuda::ptx::setmaxnreg_dec(cuda::ptx::n32_t<S::helper_registers>{});
        constexpr uint32_t barrier = static_cast<uint32_t>(NamedBarrier::Helper);
        Helper<S::stages, state_warpgroups, state_warpgroups, barrier>(walk, head.barriers, shared.tiles, shared.p,
                                                                       head.rows)
            .run();
        return;
    }
    cuda::ptx::setmaxnreg_dec(cuda::ptx::n32_t<S::load_registers>{});
    const int warp = threadIdx.x % warpgroup_threads / 32;
    if (warp == warpgroup_warps - 1) {
        FactorWarp(inputs, walk).run(head.barriers.factors, head.tables, head.rows);
    } else if (threadIdx.x % 32 != 0) {
        return;
    } else if (warp == 0) {
        load_chunks(inputs, walk, head.barriers, shared.tiles);
    } else if (S::output && warp <= state_warpgroups) {
        RowSender sender(head.barriers.rows[warp - 1]);
        for (int step = 0; step < walk.count; ++step) {
            send(sender, step, shared.tiles[step % S::stages].values[warp - 1], inputs.first_panel + warp - 1);
            head.barriers.values.empty[step % S::stages].arrive();
        }
    }
}

} // namespace bakewell
