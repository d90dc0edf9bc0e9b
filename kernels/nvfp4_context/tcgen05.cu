// NVFP4 paged-context attention on the tcgen05 tensor cores: E4M3 queries, FP4 keys and values in 16-token pages.
//
//   out = E4M3(bmm2 * softmax(bmm1 * Q K^T, causal bottom-right) V)
//
// A CTA holds two halves of 128 query rows (tokens x packed heads) against all key blocks that they see, from the last
// block down. Pages are expanded to E4M3 in shared memory; scores and outputs live in tensor memory.
//
//   pages      | ids of block n      | ids n-1             | ...
//   load       | Q0 Q1 | K(n) V(n) packed | K(n-1) V(n-1)  | ...                            (ring of packed tiles)
//   correction | expand K V | rescale O0 | expand K | rescale O1 | expand V | ... | O0 -> out | O1 -> out
//   mma        |            | Q0 K | Q1 K | P0 V | Q0 K' | P1 V | Q1 K' | ...
//   softmax 0  |                   | max, exp, P0 |        | max, exp, P0' | ...
//   softmax 1  |                          | max, exp, P1 |        | max, exp, P1' | ...
//
// With `split`, several CTAs share a tile's blocks; the last of them merges the partial results in split order.

#include "../device/barrier_ring.cuh"
#include "../device/f32x2.cuh"
#include "../device/fp8.cuh"
#include "../device/softmax.cuh"
#include "../device/tcgen05.cuh"
#include "../device/tensor_map.cuh"
#include "../device/tmem.cuh"
#include "expand.cuh"
#include "output.cuh"
#include "params.cuh"
#include "schedule.cuh"
#include "tiles.cuh"

namespace bakewell {

using S = Schedule;

using G = Geometry<128, S::pack>;
using Walk = TileWalk<G, Params>;

constexpr int warpgroup_threads = 128;
constexpr int page_slots = 6;

struct Barriers {
    Mbarrier q_full[halves];               // load: both boxes of Q
    BarrierRing<S::expanded_stages> expanded;  // correction -> mma: expanded K or V
    BarrierRing<S::packed_stages> packed;  // load -> correction
    Mbarrier s_full[halves];               // mma -> softmax: scores of a block
    Mbarrier p_full[halves];               // softmax and correction -> mma: first 96 keys of P stored, O rescaled
    Mbarrier p_full_tail[halves];          // softmax -> mma: last 32 keys of P
    Mbarrier slot_written[halves];         // softmax -> correction: factor, or sum and maximum
    Mbarrier slot_read[halves];            // correction -> softmax
    Mbarrier exp_turn[halves];             // the other half's softmax: this half may exponentiate
    Mbarrier o_full[halves];               // mma -> correction: output of a tile
    Mbarrier q_empty;                      // mma -> load
    BarrierRing<page_slots> pages;         // pages -> load
};

// Columns. P overlays the scores of its half: a softmax thread holds its whole row before it stores P.
struct TmemMap {
    static constexpr __device__ int scores(int half) { return 128 * half; }
    static constexpr __device__ int weights(int half) { return scores(half) + 64; }
    static constexpr __device__ int output(int half) { return 256 + 128 * half; }
    static constexpr uint32_t columns = 512;
};
static_assert(TmemMap::output(1) + head_dim == TmemMap::columns);

struct SharedMap {
    static constexpr int barrier_bytes = sizeof(Barriers);
    static constexpr int tmem_columns = TmemMap::columns;

    struct Head {
        Barriers barriers;
        uint32_t tmem; // address of the allocation
        uint32_t merge_flag;
        int32_t pages[page_slots][block_pages];
        float factor[halves][G::half_rows]; // rescale factors
        float sum[halves][G::half_rows];
        float maximum[halves][G::half_rows];
    };

    Head head;
    uint8_t unused[swizzle_period * 4 - sizeof(Head)];
    uint8_t q[halves][G::half_rows * row_bytes];
    uint8_t expanded[S::expanded_stages][block_keys * row_bytes]; // K and V in turn
    PackedTile packed[S::packed_stages];
};
static_assert(offsetof(SharedMap, q) % swizzle_period == 0 && offsetof(SharedMap, packed) % copy_alignment == 0);

enum class NamedBarrier : uint32_t { Merge = 1 };

// A warpgroup each for the first three, a warp each for the others.
enum class Role { softmax0, softmax1, correction, mma, pages, idle, load };

__device__ inline Role role_of(int warp) {
    constexpr int group_roles = static_cast<int>(Role::mma), group_warps = warpgroup_threads / 32;
    const int issuing = warp - group_roles * group_warps;
    return static_cast<Role>(issuing < 0 ? warp / group_warps : group_roles + issuing);
}

// The thread index, read anew. Every role reads its own: what is derived from one early read would stay in a register
// through all of them.
__device__ inline uint32_t thread_index() {
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

struct Context {
    const Params& params;
    SharedMap& shared;
    uint32_t tmem;
    uint32_t thread;

    __device__ Context(const Params& params, SharedMap& shared)
        : params(params), shared(shared), tmem(shared.head.tmem), thread(thread_index()) {}

    __device__ int row() const { return static_cast<int>(thread % G::half_rows); }
    __device__ int lane() const { return static_cast<int>(thread % 32); }
    __device__ uint32_t own_lanes(int column) const { return tmem::own_lanes(tmem, column, thread / 32); }
};

// ---------------------------------------------------------------- pages

__device__ void read_pages(Context c) {
    typename BarrierRing<page_slots>::Producer ring(c.shared.head.barriers.pages);
    Walk walk(c.params);
    Tile tile;
    while (walk.next(tile)) {
        const int32_t* table = c.params.page_table + tile.request * c.params.page_table_stride;
        const int last_page = (tile.kv_len - 1) / page_tokens;
        for (int block = tile.end - 1; block >= tile.begin; --block) {
            const int slot = ring.acquire();
            if (c.lane() < block_pages) {
                // Slots past the last page repeat it: its tokens there are past kv_len and expand to zeros. An empty
                // cache names a page that no tensor has, for which the copy engine writes zeros.
                const int64_t page = min(static_cast<int64_t>(block) * block_pages + c.lane(), static_cast<int64_t>(last_page));
                c.shared.head.pages[slot][c.lane()] = tile.kv_len > 0 ? table[page] : INT32_MAX;
                c.shared.head.barriers.pages.full[slot].arrive();
            }
            __syncwarp();
        }
    }
}

// ---------------------------------------------------------------- load

// Lanes 0-7 copy the codes of a page each, lanes 8-15 the scales.
__device__ void load_packed(Context c, typename BarrierRing<S::packed_stages>::Producer& ring,
                            const TensorMap& codes, const TensorMap& scales, int kv_head, int page) {
    const int slot = ring.acquire();
    Mbarrier& full = c.shared.head.barriers.packed.full[slot];
    if (c.lane() == 0) {
        full.arrive_expect(sizeof(PackedTile));
    }
    __syncwarp();
    PackedTile& tile = c.shared.packed[slot];
    if (c.lane() < block_pages) {
        tensor_load<4>(tile.codes[c.lane()], codes, {0, 0, kv_head, page}, full);
    } else if (c.lane() < 2 * block_pages) {
        tensor_load<3>(tile.scales[c.lane() - block_pages], scales, {0, kv_head, page}, full);
    }
}

__device__ void load(Context c) {
    constexpr uint32_t q_bytes = G::live_rows * row_bytes;
    Barriers& barriers = c.shared.head.barriers;
    typename BarrierRing<page_slots>::Consumer pages(barriers.pages);
    typename BarrierRing<S::packed_stages>::Producer packed(barriers.packed);
    PhaseCursor q_empty = PhaseCursor::passes_first();
    Walk walk(c.params);
    Tile tile;
    while (walk.next(tile)) {
        if (tile.empty()) {
            continue;
        }
        q_empty.wait(barriers.q_empty);
        if (c.lane() == 0) {
            for (int half = 0; half < halves; ++half) {
                const int token = static_cast<int>(tile.q_start + tile.first_token) + half * G::tokens_per_half;
                barriers.q_full[half].arrive_expect(q_bytes);
                tensor_load<4>(c.shared.q[half], c.params.q, {0, 0, token, tile.unit}, barriers.q_full[half]);
            }
        }
        __syncwarp();
        const int kv_head = tile.unit * S::pack / static_cast<int>(c.params.heads_per_kv);
        for (int block = tile.end - 1; block >= tile.begin; --block) {
            const int slot = pages.wait();
            const int page = c.shared.head.pages[slot][c.lane() % block_pages];
            __syncwarp();
            if (c.lane() == 0) {
                barriers.pages.empty[slot].arrive();
            }
            load_packed(c, packed, c.params.k, c.params.k_scale, kv_head, page);
            load_packed(c, packed, c.params.v, c.params.v_scale, kv_head, page);
        }
    }
}

// ---------------------------------------------------------------- mma

// Issues the products of one tile; one thread.
class Products {
    Context c;
    uint64_t q[halves];
    uint64_t expanded;
    PhaseCursor p_full[halves] = {PhaseCursor::waits_first(), PhaseCursor::waits_first()};
    PhaseCursor p_full_tail[halves] = {PhaseCursor::waits_first(), PhaseCursor::waits_first()};

    static constexpr int steps = 128 / tcgen05::e4m3_k;
    static constexpr int tail_step = steps - 1;
    static constexpr uint32_t score_instruction =
        tcgen05::e4m3_instruction(G::half_rows, block_keys, tcgen05::Major::K);
    static constexpr uint32_t output_instruction =
        tcgen05::e4m3_instruction(G::half_rows, head_dim, tcgen05::Major::MN);
    // A step of K through the head dimension moves 32 bytes along the rows; through the keys, 32 rows on.
    static constexpr uint32_t key_step_bytes = tcgen05::e4m3_k * row_bytes;
    static constexpr int weight_step_columns = tcgen05::e4m3_k / 4;

    __device__ uint64_t tile(int slot) const { return tcgen05::advance(expanded, slot * block_keys * row_bytes); }

    __device__ void output_step(int half, int slot, int step, bool accumulate) {
        tcgen05::mma_e4m3_tmem_a(c.tmem + TmemMap::output(half),
                                 c.tmem + TmemMap::weights(half) + step * weight_step_columns,
                                 tcgen05::advance(tile(slot), step * key_step_bytes), output_instruction, accumulate);
    }

  public:
    explicit __device__ Products(Context c) : c(c) {
        for (int half = 0; half < halves; ++half) {
            q[half] = tcgen05::swizzled_descriptor(c.shared.q[half]);
        }
        expanded = tcgen05::swizzled_descriptor(c.shared.expanded[0]);
    }

    // Scores of a half against the K in `slot`.
    __device__ void scores(int half, int slot) {
        for (int step = 0; step < steps; ++step) {
            const uint32_t offset = step * tcgen05::e4m3_k;
            tcgen05::mma_e4m3(c.tmem + TmemMap::scores(half), tcgen05::advance(q[half], offset),
                              tcgen05::advance(tile(slot), offset), score_instruction, step > 0);
        }
        tcgen05::commit(c.shared.head.barriers.s_full[half]);
    }

    // Output of a half += P V with the V in `slot`; the first block of a tile overwrites.
    __device__ void output(int half, int slot, bool first_block) {
        Barriers& barriers = c.shared.head.barriers;
        p_full[half].wait(barriers.p_full[half]);
        tmem::fence_after_wait();
        for (int step = 0; step < tail_step; ++step) {
            output_step(half, slot, step, !first_block || step > 0);
        }
        p_full_tail[half].wait(barriers.p_full_tail[half]);
        tmem::fence_after_wait();
        output_step(half, slot, tail_step, true);
    }
};

__device__ void mma(Context c) {
    Barriers& barriers = c.shared.head.barriers;
    typename BarrierRing<S::expanded_stages>::Consumer expanded(barriers.expanded);
    PhaseCursor q_full[halves] = {PhaseCursor::waits_first(), PhaseCursor::waits_first()};
    Products products(c);
    Walk walk(c.params);
    Tile tile;
    while (walk.next(tile)) {
        if (tile.empty()) {
            continue;
        }
        q_full[0].wait(barriers.q_full[0]);
        q_full[1].wait(barriers.q_full[1]);
        int k_slot = expanded.wait();
        products.scores(0, k_slot);
        products.scores(1, k_slot);
        tcgen05::commit(barriers.expanded.empty[k_slot]);
        // The scores of the next block are issued before this block's second output, so that softmax never waits.
        for (int left = tile.blocks() - 1; left > 0; --left) {
            const bool first_block = left == tile.blocks() - 1;
            const int v_slot = expanded.wait();
            products.output(0, v_slot, first_block);
            k_slot = expanded.wait();
            products.scores(0, k_slot);
            products.output(1, v_slot, first_block);
            tcgen05::commit(barriers.expanded.empty[v_slot]);
            products.scores(1, k_slot);
            tcgen05::commit(barriers.expanded.empty[k_slot]);
        }
        tcgen05::commit(barriers.q_empty);
        const int v_slot = expanded.wait();
        products.output(0, v_slot, tile.blocks() == 1);
        tcgen05::commit(barriers.o_full[0]);
        products.output(1, v_slot, tile.blocks() == 1);
        tcgen05::commit(barriers.expanded.empty[v_slot]);
        tcgen05::commit(barriers.o_full[1]);
    }
}

// ---------------------------------------------------------------- softmax

// A row of scores, then of weights, as pairs of neighbouring keys.
struct Row {
    float values[block_keys];

    __device__ void load_scores(uint32_t address) {
        constexpr int columns = 32;
        for (int part = 0; part < block_keys / columns; ++part) {
            tmem::load(reinterpret_cast<float(&)[columns]>(values[part * columns]), address + part * columns);
        }
        tmem::wait_load(values);
    }

    // Keys from `limit` on are not seen.
    __device__ void mask(int limit) {
        if (limit < block_keys) {
#pragma unroll
            for (int key = 0; key < block_keys; ++key) {
                values[key] = key < limit ? values[key] : -INFINITY;
            }
        }
    }

    __device__ float maximum(float start) const {
        float lanes[4] = {start, start, start, start};
#pragma unroll
        for (int key = 0; key < block_keys; ++key) {
            lanes[key % 4] = fmaxf(lanes[key % 4], values[key]);
        }
        return fmaxf(fmaxf(lanes[0], lanes[1]), fmaxf(lanes[2], lanes[3]));
    }

    template <int first, int last>
    __device__ void exponentiate(float scale, float shift) {
        const float2 scales = make_float2(scale, scale), shifts = make_float2(shift, shift);
#pragma unroll
        for (int key = first; key < last; key += 2) {
            const float2 power = fma(make_float2(values[key], values[key + 1]), scales, shifts);
            values[key] = exp2_approx(power.x);
            values[key + 1] = exp2_approx(power.y);
        }
    }

    template <int first, int last>
    __device__ float sum() const {
        float2 lanes = make_float2(0, 0);
#pragma unroll
        for (int key = first; key < last; key += 2) {
            lanes = add(lanes, make_float2(values[key], values[key + 1]));
        }
        return lanes.x + lanes.y;
    }

    // Rounds keys [first, last) to E4M3 and stores them, four to a column.
    template <int first, int last>
    __device__ void store_weights(uint32_t address) const {
        uint32_t words[(last - first) / 4];
#pragma unroll
        for (int i = 0; i < (last - first) / 4; ++i) {
            const float* four = &values[first + 4 * i];
            words[i] = pack_e4m3(four[0], four[1], four[2], four[3]);
        }
        tmem::store(address + first / 4, words);
    }
};

// Part of a row that leaves with p_full, the tail with p_full_tail.
constexpr int head_keys = 96;
// Exponentials left when the other half gets its turn.
constexpr int overlapped_keys = 6;

__device__ void softmax(Context c) {
    Barriers& barriers = c.shared.head.barriers;
    const int half = static_cast<int>(c.thread / G::half_rows);
    const int row = c.row();
    const float scale = Scales(c.params).log2;
    const uint32_t scores = c.own_lanes(TmemMap::scores(half));
    const uint32_t weights = c.own_lanes(TmemMap::weights(half));
    PhaseCursor s_full = PhaseCursor::waits_first();
    PhaseCursor slot_read = PhaseCursor::waits_first();
    PhaseCursor turn = half == 0 ? PhaseCursor::passes_first() : PhaseCursor::waits_first();
    Walk walk(c.params);
    Tile tile;
    while (walk.next(tile)) {
        if (tile.empty()) {
            continue;
        }
        const int visible = tile.visible_keys(tile.first_token + half * G::tokens_per_half + row / S::pack);
        float maximum = -INFINITY;
        float sum = 0;
        for (int block = tile.end - 1; block >= tile.begin; --block) {
            s_full.wait(barriers.s_full[half]);
            tmem::fence_after_wait();
            Row p;
            p.load_scores(scores);
            p.mask(visible - block * block_keys);

            const float previous = maximum;
            maximum = p.maximum(previous);
            const float reference = (maximum == -INFINITY ? 0.0f : maximum) * scale;
            // Equal maxima: exactly 1, whatever the rounding of the reference.
            const bool moved = previous > -INFINITY && previous != maximum;
            const float factor = moved ? exp2_approx(fmaf(previous, scale, -reference)) : 1.0f;
            c.shared.head.factor[half][row] = factor;
            tmem::fence_before_signal();
            barriers.slot_written[half].arrive();

            turn.wait(barriers.exp_turn[half]);
            constexpr int in_turn = block_keys - overlapped_keys;
            p.exponentiate<0, in_turn>(scale, bias - reference);
            barriers.exp_turn[1 - half].arrive();
            p.exponentiate<in_turn, block_keys>(scale, bias - reference);

            p.store_weights<0, 64>(weights);
            p.store_weights<64, head_keys>(weights);
            tmem::wait_store();
            tmem::fence_before_signal();
            barriers.p_full[half].arrive();
            p.store_weights<head_keys, block_keys>(weights);
            tmem::wait_store();
            tmem::fence_before_signal();
            barriers.p_full_tail[half].arrive();

            const float block_sum = (p.sum<0, 64>() + p.sum<64, head_keys>()) + p.sum<head_keys, block_keys>();
            sum = fmaf(sum, factor, block_sum);
            slot_read.wait(barriers.slot_read[half]);
        }
        c.shared.head.sum[half][row] = sum;
        c.shared.head.maximum[half][row] = maximum;
        barriers.slot_written[half].arrive();
        slot_read.wait(barriers.slot_read[half]);
    }
}

// ---------------------------------------------------------------- correction: expand, rescale, write out

// Expands packed tiles in their order, K and V in turn. Thread = token.
class Expander {
    Context c;
    typename BarrierRing<S::packed_stages>::Consumer packed;
    typename BarrierRing<S::expanded_stages>::Producer expanded;

  public:
    explicit __device__ Expander(Context c)
        : c(c), packed(c.shared.head.barriers.packed), expanded(c.shared.head.barriers.expanded) {}

    // The next packed tile, which is K or V of `block`.
    template <Side side>
    __device__ void expand(const Tile& work, int block) {
        const int from = packed.wait();
        const int to = expanded.acquire();
        const bool live = block * block_keys + c.row() < work.kv_len;
        expand_row<S::dequantise, S::code_reads, side>(c.shared.packed[from], c.shared.expanded[to], c.row(), live);
        // The tensor cores read through the async proxy what these threads wrote.
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        __syncwarp();
        if (c.lane() == 0) {
            c.shared.head.barriers.expanded.full[to].arrive();
            c.shared.head.barriers.packed.empty[from].arrive();
        }
    }

    __device__ void expand_pair(const Tile& work, int block) {
        expand<Side::K>(work, block);
        expand<Side::V>(work, block);
    }
};

constexpr int rescale_columns = 16;

__device__ void multiply(float (&values)[rescale_columns], float factor) {
#pragma unroll
    for (float& value : values) {
        value *= factor;
    }
}

// Multiplies this thread's row of an output accumulator, if any row of the warp needs it.
__device__ void rescale(uint32_t address, float factor) {
    constexpr int parts = head_dim / rescale_columns;
    if (!__any_sync(~0u, factor < 1.0f)) {
        return;
    }
    if constexpr (S::rescale == Rescale::pipelined) {
        float values[2][rescale_columns];
        tmem::load(values[0], address);
        // Two parts a round, so that both buffers have fixed registers.
#pragma unroll 1
        for (int part = 0; part < parts; part += 2) {
            tmem::wait_load(values[0]);
            tmem::load(values[1], address + (part + 1) * rescale_columns);
            multiply(values[0], factor);
            tmem::store(address + part * rescale_columns, values[0]);
            tmem::wait_load(values[1]);
            if (part + 2 < parts) {
                tmem::load(values[0], address + (part + 2) * rescale_columns);
            }
            multiply(values[1], factor);
            tmem::store(address + (part + 1) * rescale_columns, values[1]);
        }
    } else {
#pragma unroll 1
        for (int part = 0; part < parts; ++part) {
            float values[rescale_columns];
            tmem::load(values, address + part * rescale_columns);
            tmem::wait_load(values);
            multiply(values, factor);
            tmem::store(address + part * rescale_columns, values);
        }
    }
    tmem::wait_store();
}

// Reads this thread's row of a half's output in parts of 32 columns: write(first column, values).
template <class Write>
__device__ void read_output(uint32_t address, Write write) {
    constexpr int columns = 32;
#pragma unroll 1
    for (int first = 0; first < head_dim; first += columns) {
        float values[columns];
        tmem::load(values, address + first);
        tmem::wait_load(values);
        write(first, values);
    }
    tmem::fence_before_signal();
}

__device__ void write_output(Context c, const Tile& tile, int half, float maximum, float sum) {
    const OutputRow<G> row(c.params, tile, half, c.row());
    const Normaliser normaliser(c.params, row.head, maximum, sum);
    read_output(c.own_lanes(TmemMap::output(half)), [&](int first, const float(&values)[32]) {
        if (row.live) {
            uint4* out = reinterpret_cast<uint4*>(c.params.out + row.head_row * head_dim + first);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const auto word = [&](int w) {
                    const float* four = &values[16 * i + 4 * w];
                    return normaliser.pack(four[0], four[1], four[2], four[3]);
                };
                out[i] = make_uint4(word(0), word(1), word(2), word(3));
            }
        }
    });
    if (row.live && c.params.lse) {
        c.params.lse[row.head_row] = normaliser.lse;
    }
}

__device__ void write_partial(Context c, const Tile& tile, int half, float maximum, float sum) {
    const OutputRow<G> row(c.params, tile, half, c.row());
    const uint64_t at = partial_row<G>(c.params, tile, tile.split, half, c.row());
    read_output(c.own_lanes(TmemMap::output(half)), [&](int first, const float(&values)[32]) {
        if (row.live) {
            float4* out = reinterpret_cast<float4*>(c.params.partial_out + at * head_dim + first);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                out[i] = make_float4(values[4 * i], values[4 * i + 1], values[4 * i + 2], values[4 * i + 3]);
            }
        }
    });
    if (row.live) {
        c.params.partial_max[at] = maximum;
        c.params.partial_sum[at] = sum;
    }
}

class Correction {
    Context c;
    Barriers& barriers;
    Expander expander;
    PhaseCursor slot_written[halves] = {PhaseCursor::waits_first(), PhaseCursor::waits_first()};
    PhaseCursor o_full[halves] = {PhaseCursor::waits_first(), PhaseCursor::waits_first()};
    Walk walk;
    Merger<G, Params, static_cast<uint32_t>(NamedBarrier::Merge), warpgroup_threads> merger;

    static constexpr bool early_release = S::scale_release == ScaleRelease::after_read;

    // The next tile with keys for this split.
    __device__ bool next(Tile& tile) {
        while (walk.next(tile)) {
            if (!tile.empty()) {
                return true;
            }
            if constexpr (S::split) {
                merger.finish_empty(tile);
            }
        }
        return false;
    }

    // Later blocks: bring each half's output to the new maximum before its next product.
    __device__ void rescale_halves(const Tile& tile, int block) {
#pragma unroll
        for (int half = 0; half < halves; ++half) {
            slot_written[half].wait(barriers.slot_written[half]);
            tmem::fence_after_wait();
            const float factor = c.shared.head.factor[half][c.row()];
            if (early_release) {
                barriers.slot_read[half].arrive();
            }
            rescale(c.own_lanes(TmemMap::output(half)), factor);
            tmem::fence_before_signal();
            barriers.p_full[half].arrive();
            if (!early_release) {
                barriers.slot_read[1 - half].arrive();
            }
            if (block > tile.begin) {
                if (half == 0) {
                    expander.expand<Side::K>(tile, block - 1);
                } else {
                    expander.expand<Side::V>(tile, block - 1);
                }
            }
        }
    }

    __device__ void finish_half(const Tile& tile, int half) {
        o_full[half].wait(barriers.o_full[half]);
        tmem::fence_after_wait();
        const float sum = c.shared.head.sum[half][c.row()];
        const float maximum = c.shared.head.maximum[half][c.row()];
        barriers.slot_read[half].arrive();
        if constexpr (S::split) {
            write_partial(c, tile, half, maximum, sum);
        } else {
            write_output(c, tile, half, maximum, sum);
        }
    }

    // One tile; expands the first pair of the next one when `more`.
    __device__ void run(const Tile& tile, const Tile& next_tile, bool more) {
        // The first block needs no rescale; this arrival also says that the previous tile's output has been read.
        barriers.p_full[0].arrive();
        barriers.p_full[1].arrive();
        int block = tile.end - 1;
        if (block > tile.begin) {
            expander.expand_pair(tile, block - 1);
        }
        slot_written[0].wait(barriers.slot_written[0]);
        barriers.slot_read[0].arrive();
        slot_written[1].wait(barriers.slot_written[1]);
        if (early_release) {
            barriers.slot_read[1].arrive();
        }
        while (--block >= tile.begin) {
            rescale_halves(tile, block);
        }
        if (!early_release) {
            barriers.slot_read[1].arrive();
        }
        slot_written[0].wait(barriers.slot_written[0]);
        finish_half(tile, 0);
        slot_written[1].wait(barriers.slot_written[1]);
        if (more) {
            expander.expand_pair(next_tile, next_tile.end - 1);
        }
        finish_half(tile, 1);
    }

  public:
    explicit __device__ Correction(Context c)
        : c(c), barriers(c.shared.head.barriers), expander(c), walk(c.params), merger{c.params, c.shared.head.merge_flag, static_cast<uint32_t>(c.row())} {}

    __device__ void run() {
        Tile tile, following;
        for (bool first = true;; first = false) {
            const bool more = next(following);
            if (!first) {
                run(tile, following, more);
                if constexpr (S::split) {
                    merger.finish(tile);
                }
            } else if (more) {
                expander.expand_pair(following, following.end - 1);
            }
            if (!more) {
                return;
            }
            tile = following;
        }
    }
};

// ---------------------------------------------------------------- entry

// Arrival counts, in the order of `Barriers`.
struct BarrierCounts {
    static constexpr uint32_t softmax = warpgroup_threads, correction = warpgroup_threads;
    static constexpr uint32_t correction_warps = correction / 32;
    static constexpr uint32_t one = 1; // an elected thread or a commit

    static __device__ uint32_t of(uint32_t index) {
        uint32_t end = 0;
        const auto group = [&](uint32_t count) { return index < (end += count); };
        if (group(halves)) return one;                  // q_full
        if (group(S::expanded_stages)) return correction_warps;
        if (group(S::expanded_stages)) return one;
        if (group(S::packed_stages)) return one;
        if (group(S::packed_stages)) return correction_warps;
        if (group(halves)) return one;                  // s_full
        if (group(halves)) return softmax + correction; // p_full
        if (group(halves)) return softmax;              // p_full_tail
        if (group(halves)) return softmax;              // slot_written
        if (group(halves)) return correction;           // slot_read
        if (group(halves)) return softmax;              // exp_turn
        if (group(halves)) return one;                  // o_full
        if (group(1)) return one;                       // q_empty
        if (group(page_slots)) return block_pages;
        return one;                                     // pages.empty
    }
};

__device__ void init_barriers(SharedMap& shared) {
    constexpr uint32_t count = sizeof(Barriers) / sizeof(Mbarrier);
    Mbarrier* barriers = reinterpret_cast<Mbarrier*>(&shared.head.barriers);
    if constexpr (S::barrier_init == BarrierInit::lanes_of_warp0) {
        for (uint32_t i = threadIdx.x; i < count && threadIdx.x < 32; i += 32) {
            barriers[i].init(BarrierCounts::of(i));
        }
    } else if (threadIdx.x == 0) {
#pragma unroll 1
        for (uint32_t i = 0; i < count; ++i) {
            barriers[i].init(BarrierCounts::of(i));
        }
    }
    fence_mbarrier_init();
}

// The copies never write the dead rows of Q; the products read them.
__device__ void zero_dead_rows(SharedMap& shared) {
    constexpr int dead_chunks = (G::half_rows - G::live_rows) * row_bytes / chunk_bytes;
    for (int half = 0; half < halves; ++half) {
        for (int chunk = threadIdx.x; chunk < dead_chunks; chunk += S::threads) {
            reinterpret_cast<uint4*>(&shared.q[half][G::live_rows * row_bytes])[chunk] = make_uint4(0, 0, 0, 0);
        }
    }
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, 1)
    nvfp4_context_tcgen05(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(swizzle_period) uint8_t shared_bytes[];
    SharedMap& shared = *reinterpret_cast<SharedMap*>(shared_bytes);
    if (thread_index() == 0) {
        for (const TensorMap* map : {&params.q, &params.k, &params.v, &params.k_scale, &params.v_scale}) {
            prefetch_tensor_map(*map);
        }
    }
    init_barriers(shared);
    zero_dead_rows(shared);
    if (thread_index() / 32 == 0) {
        tmem::allocate(shared.head.tmem, TmemMap::columns);
    }
    tmem::fence_before_signal();
    __syncthreads();
    tmem::fence_after_wait();

    switch (role_of(thread_index() / 32)) {
    case Role::softmax0:
    case Role::softmax1:
        cuda::ptx::setmaxnreg_inc(cuda::ptx::n32_t<S::softmax_registers>{});
        softmax(Context(params, shared));
        break;
    case Role::correction:
        cuda::ptx::setmaxnreg_dec(cuda::ptx::n32_t<S::correction_registers>{});
        Correction(Context(params, shared)).run();
        break;
    case Role::mma:
        cuda::ptx::setmaxnreg_dec(cuda::ptx::n32_t<S::issue_registers>{});
        if (cuda::ptx::elect_sync(~0u)) {
            mma(Context(params, shared));
        }
        __syncwarp();
        break;
    case Role::pages:
        cuda::ptx::setmaxnreg_dec(cuda::ptx::n32_t<S::issue_registers>{});
        read_pages(Context(params, shared));
        break;
    case Role::load:
        cuda::ptx::setmaxnreg_dec(cuda::ptx::n32_t<S::issue_registers>{});
        load(Context(params, shared));
        break;
    case Role::idle:
        cuda::ptx::setmaxnreg_dec(cuda::ptx::n32_t<S::issue_registers>{});
        break;
    }
    __syncthreads();
    if (thread_index() / 32 == 0) {
        tmem::free(shared.head.tmem, TmemMap::columns);
    }
}
