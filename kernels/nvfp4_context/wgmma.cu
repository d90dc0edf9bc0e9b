// NVFP4 paged-context attention on the warpgroup tensor cores of sm_90a: E4M3 queries, FP4 keys and values in pages.
//
//   out = E4M3(bmm2 * softmax(bmm1 * Q K^T, causal bottom-right) V)
//
// A CTA holds two halves of 64 query rows (tokens x packed heads) against all key blocks that they see, from the last
// block down. A warpgroup each loads packed K and V and expands them to E4M3 in shared memory, V transposed, since 8-bit
// operands must be K-major. The other two have a half each, scores and outputs in registers.
//
//   keys       | load K ahead ... | expand K | expand K' | expand K'' | ...
//   values     | load V ahead ... | expand V | expand V' | expand V'' | ...
//   half 0                        | Q K, softmax | P V, rescale | Q K' | ...
//   half 1                        | Q K, softmax | P V, rescale | Q K' | ...
//
// The tensor cores keep 13 bits below the largest term of an FP8 sum: each block's P V starts a fresh accumulator and is
// added to the output in f32. With `split`, several CTAs share a tile's blocks; the last merges in split order.

#include "../device/barrier_ring.cuh"
#include "../device/softmax.cuh"
#include "../device/tensor_map.cuh"
#include "../device/wgmma.cuh"
#include "expand.cuh"
#include "output.cuh"
#include "params.cuh"
#include "schedule.cuh"

namespace bakewell {

using S = Schedule;
using G = Geometry<64, S::pack>;
using Walk = TileWalk<G>;

constexpr int warpgroup_threads = 128;
constexpr int warpgroup_warps = warpgroup_threads / 32;
constexpr int consumer_threads = halves * warpgroup_threads;
constexpr int q_slots = 2;
constexpr int sides = 2; // K and V
constexpr int rows_per_thread = 2; // 8 apart

using PackedRing = BarrierRing<S::packed_stages>;
using ExpandedRing = BarrierRing<S::expanded_stages>;

struct Barriers {
    BarrierRing<q_slots> q;       // keys -> consumers: both halves of a tile's queries
    PackedRing packed[sides];     // a producer's loads -> the producer
    ExpandedRing expanded[sides]; // producers -> consumers
};

struct SharedMap {
    static constexpr int barrier_bytes = sizeof(Barriers);

    struct Head {
        Barriers barriers;
        uint32_t merge_flag;
    };

    Head head;
    uint8_t unused[swizzle_period - sizeof(Head)];
    uint8_t q[q_slots][halves][G::half_rows * row_bytes];
    uint8_t expanded[sides][S::expanded_stages][block_keys * row_bytes];
    PackedTile packed[sides][S::packed_stages];
};
static_assert(offsetof(SharedMap, q) % swizzle_period == 0 && offsetof(SharedMap, packed) % copy_alignment == 0);

enum class NamedBarrier : uint32_t { Merge = 1 };

enum class Role { keys, values, half0, half1 };

struct Context {
    const Params& params;
    SharedMap& shared;

    __device__ int thread() const { return threadIdx.x % warpgroup_threads; }
    __device__ int warp() const { return thread() / 32; }
    __device__ int lane() const { return threadIdx.x % 32; }
};

// ---------------------------------------------------------------- producers

__device__ constexpr int index(Side side) { return static_cast<int>(side); }

// Runs ahead of the expansion with the copies of packed tiles. One warp: lanes 0-7 copy the codes of a page each, lanes
// 8-15 the scales.
template <Side side>
class Loader {
    Context c;
    typename PackedRing::Producer ring;
    Walk walk;
    Tile tile;
    int block;    // copied next; below the tile's first when there is none
    int page = 0; // of this lane in that block

    // Slots past the last page repeat it: its tokens there are past the cache and expand to zeros. An empty cache names
    // a page that no tensor has, for which the copy engine writes zeros.
    __device__ void fetch_page() {
        if (tile.kv_len == 0) {
            page = INT32_MAX;
            return;
        }
        const int64_t last = (tile.kv_len - 1) / page_tokens;
        const int64_t slot = min(static_cast<int64_t>(block) * block_pages + c.lane() % block_pages, last);
        page = c.params.page_table[tile.request * c.params.page_table_stride + slot];
    }

    // The last block of the next tile with keys for this split.
    __device__ void next_tile() {
        while (walk.next(tile)) {
            if (!tile.empty()) {
                block = tile.end - 1;
                return;
            }
        }
        tile.begin = 0;
        block = -1;
    }

    __device__ bool more() const { return block >= tile.begin; }

  public:
    explicit __device__ Loader(Context c) : c(c), ring(c.shared.head.barriers.packed[index(side)]), walk(c.params) {
        next_tile();
        if (more()) {
            fetch_page();
        }
    }

    // Starts the copy of the next packed tile, if there is one, and fetches the page ids of the one after.
    __device__ void issue() {
        if (!more()) {
            return;
        }
        const int slot = ring.acquire();
        Mbarrier& full = c.shared.head.barriers.packed[index(side)].full[slot];
        if (c.lane() == 0) {
            full.arrive_expect(sizeof(PackedTile));
        }
        __syncwarp();
        const int kv_head = tile.unit * G::pack / static_cast<int>(c.params.heads_per_kv);
        PackedTile& packed = c.shared.packed[index(side)][slot];
        if (c.lane() < block_pages) {
            const TensorMap& codes = side == Side::K ? c.params.k : c.params.v;
            tensor_load<4>(packed.codes[c.lane()], codes, {0, 0, kv_head, page}, full);
        } else if (c.lane() < 2 * block_pages) {
            const TensorMap& scales = side == Side::K ? c.params.k_scale : c.params.v_scale;
            tensor_load<3>(packed.scales[c.lane() - block_pages], scales, {0, kv_head, page}, full);
        }
        --block;
        if (!more()) {
            next_tile();
        }
        if (more()) {
            fetch_page();
        }
    }
};

// Loads and expands K or V. The keys' producer also loads the queries.
template <Side side>
class Producer {
    Context c;
    typename BarrierRing<q_slots>::Producer q;
    typename PackedRing::Consumer packed;
    typename ExpandedRing::Producer expanded;

    __device__ void load_queries(const Tile& tile) {
        const int slot = q.acquire();
        if (c.thread() == 0) {
            Mbarrier& full = c.shared.head.barriers.q.full[slot];
            full.arrive_expect(halves * G::live_rows * row_bytes);
            for (int half = 0; half < halves; ++half) {
                const int token =
                    static_cast<int>(tile.q_start + tile.first_token) + half * G::tokens_per_half;
                tensor_load<4>(c.shared.q[slot][half], c.params.q, {0, 0, token, tile.unit}, full);
            }
        }
    }

    __device__ void expand(const Tile& tile, int block) {
        const int from = packed.wait();
        const int to = expanded.acquire();
        const int live_tokens = tile.kv_len - block * block_keys;
        const PackedTile& codes = c.shared.packed[index(side)][from];
        uint8_t* out = c.shared.expanded[index(side)][to];
        if constexpr (side == Side::K) {
            expand_row<S::dequantise, S::code_reads, side>(codes, out, c.thread(), c.thread() < live_tokens);
        } else {
            Transposer(c.thread()).expand(codes, out, live_tokens);
        }
        // The tensor cores read through the async proxy what these threads wrote.
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        __syncwarp();
        if (c.lane() == 0) {
            c.shared.head.barriers.expanded[index(side)].full[to].arrive();
            c.shared.head.barriers.packed[index(side)].empty[from].arrive();
        }
    }

  public:
    explicit __device__ Producer(Context c)
        : c(c), q(c.shared.head.barriers.q), packed(c.shared.head.barriers.packed[index(side)]),
          expanded(c.shared.head.barriers.expanded[index(side)]) {}

    __device__ void run() {
        // Only the first warp loads; the loader of the others stays idle.
        Loader<side> loader(c);
        const bool loads = c.warp() == 0;
        // One slot less than the ring has: the copy that follows a step then never waits for that step's readers.
        for (int stage = 0; loads && stage < S::packed_stages - 1; ++stage) {
            loader.issue();
        }
        Walk walk(c.params);
        Tile tile;
        while (walk.next(tile)) {
            if (tile.empty()) {
                continue;
            }
            if constexpr (side == Side::K) {
                load_queries(tile);
            }
            for (int block = tile.end - 1; block >= tile.begin; --block) {
                if (loads) {
                    loader.issue();
                }
                expand(tile, block);
            }
        }
    }
};

// ---------------------------------------------------------------- consumers

// Softmax state of the two rows of a thread. The sum is of this thread's columns only, until the end of the tile.
struct Rows {
    float maximum[rows_per_thread] = {-INFINITY, -INFINITY};
    float sum[rows_per_thread] = {0, 0};
};

// Element of an accumulator: row 0 or 1 of the thread, column pair of an 8-column group.
__device__ constexpr int at(int row, int group, int element) { return 4 * group + 2 * row + element; }
constexpr int column_groups = 16;

// Largest of the four threads that share a row.
__device__ inline float quad_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
    return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}

__device__ inline float quad_sum(float value) {
    value += __shfl_xor_sync(~0u, value, 1);
    return value + __shfl_xor_sync(~0u, value, 2);
}

class Consumer {
    Context c;
    int half;
    typename BarrierRing<q_slots>::Consumer q;
    typename ExpandedRing::Consumer keys;
    typename ExpandedRing::Consumer values;
    float scale;
    Merger<G, static_cast<uint32_t>(NamedBarrier::Merge), consumer_threads> merger;

    __device__ int row(int i) const { return 16 * c.warp() + c.lane() / 4 + 8 * i; }
    __device__ int quad_lane() const { return c.lane() % 4; }

    __device__ void release(Mbarrier& empty) const {
        __syncwarp();
        if (c.lane() == 0) {
            empty.arrive();
        }
    }

    __device__ void scores(wgmma::Accumulator& s, uint64_t queries) {
        const int slot = keys.wait();
        const uint64_t operand = wgmma::swizzled_descriptor(c.shared.expanded[index(Side::K)][slot]);
        wgmma::fence();
#pragma unroll
        for (int step = 0; step < head_dim / wgmma::e4m3_k; ++step) {
            const uint32_t offset = step * wgmma::e4m3_k;
            wgmma::mma_e4m3(s, wgmma::advance(queries, offset), wgmma::advance(operand, offset), step > 0);
        }
        wgmma::commit();
        wgmma::wait<0>();
        release(c.shared.head.barriers.expanded[index(Side::K)].empty[slot]);
    }

    // Keys from limit[row] on are not seen.
    __device__ void mask(wgmma::Accumulator& s, const int (&limit)[rows_per_thread]) const {
#pragma unroll
        for (int i = 0; i < rows_per_thread; ++i) {
            if (limit[i] >= block_keys) {
                continue;
            }
#pragma unroll
            for (int group = 0; group < column_groups; ++group) {
#pragma unroll
                for (int element = 0; element < 2; ++element) {
                    const int key = 8 * group + 2 * quad_lane() + element;
                    float& score = s[at(i, group, element)];
                    score = key < limit[i] ? score : -INFINITY;
                }
            }
        }
    }

    // Scores to weights; returns the factors of the old output.
    __device__ void weigh(wgmma::Accumulator& s, Rows& rows, float (&factor)[rows_per_thread]) const {
#pragma unroll
        for (int i = 0; i < rows_per_thread; ++i) {
            float top = rows.maximum[i];
#pragma unroll
            for (int group = 0; group < column_groups; ++group) {
                top = fmaxf(top, fmaxf(s[at(i, group, 0)], s[at(i, group, 1)]));
            }
            top = quad_max(top);
            const float reference = (top == -INFINITY ? 0.0f : top) * scale;
            // Equal maxima: exactly 1, whatever the rounding of the reference.
            const bool moved = rows.maximum[i] > -INFINITY && rows.maximum[i] != top;
            factor[i] = moved ? exp2_approx(fmaf(rows.maximum[i], scale, -reference)) : 1.0f;
            rows.maximum[i] = top;
            const float shift = bias - reference;
            float sums[2] = {0, 0};
#pragma unroll
            for (int group = 0; group < column_groups; ++group) {
#pragma unroll
                for (int element = 0; element < 2; ++element) {
                    float& score = s[at(i, group, element)];
                    score = exp2_approx(fmaf(score, scale, shift));
                    sums[element] += score;
                }
            }
            rows.sum[i] = fmaf(rows.sum[i], factor[i], sums[0] + sums[1]);
        }
    }

    // output = factor * output + P V; the weights are rounded to E4M3.
    __device__ void accumulate(wgmma::Accumulator& output, const wgmma::Accumulator& weights,
                               const float (&factor)[rows_per_thread]) {
        constexpr int steps = block_keys / wgmma::e4m3_k;
        uint32_t p[steps][4];
#pragma unroll
        for (int step = 0; step < steps; ++step) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int i = j % 2, group = 2 * (2 * step + j / 2); // two groups of a page
                p[step][j] = pack_e4m3(weights[at(i, group, 0)], weights[at(i, group, 1)], weights[at(i, group + 1, 0)],
                                       weights[at(i, group + 1, 1)]);
            }
        }
        const int slot = values.wait();
        const uint64_t operand = wgmma::swizzled_descriptor(c.shared.expanded[index(Side::V)][slot]);
        wgmma::Accumulator product;
        wgmma::fence();
#pragma unroll
        for (int step = 0; step < steps; ++step) {
            wgmma::mma_e4m3(product, p[step], wgmma::advance(operand, step * wgmma::e4m3_k), step > 0);
        }
        wgmma::commit();
        wgmma::wait<0>();
        release(c.shared.head.barriers.expanded[index(Side::V)].empty[slot]);
#pragma unroll
        for (int group = 0; group < column_groups; ++group) {
#pragma unroll
            for (int i = 0; i < rows_per_thread; ++i) {
#pragma unroll
                for (int element = 0; element < 2; ++element) {
                    const int index = at(i, group, element);
                    output[index] = fmaf(output[index], factor[i], product[index]);
                }
            }
        }
    }

    // Bytes of one row: the quad's threads exchange pairs until each has 8 neighbouring columns of every fourth group.
    __device__ void store_row(const Normaliser& normaliser, const wgmma::Accumulator& output, int i, uint8_t* out) const {
        const bool odd = quad_lane() & 1, upper = quad_lane() & 2;
#pragma unroll
        for (int first = 0; first < column_groups; first += 4) {
            uint32_t word[2];
#pragma unroll
            for (int pair = 0; pair < 2; ++pair) {
                const int group = first + 2 * pair;
                // This thread's two columns of both groups; then four columns of one of them.
                const uint32_t own = normaliser.pack(output[at(i, group, 0)], output[at(i, group, 1)],
                                                     output[at(i, group + 1, 0)], output[at(i, group + 1, 1)]);
                const uint32_t other = __shfl_xor_sync(~0u, own, 1);
                word[pair] = odd ? __byte_perm(other, own, 0x7632) : __byte_perm(own, other, 0x5410);
            }
            const uint32_t kept = upper ? word[1] : word[0];
            const uint32_t given = __shfl_xor_sync(~0u, upper ? word[0] : word[1], 2);
            const uint2 eight = upper ? make_uint2(given, kept) : make_uint2(kept, given);
            const int group = first + 2 * (upper ? 1 : 0) + (odd ? 1 : 0);
            if (out) {
                *reinterpret_cast<uint2*>(out + 8 * group) = eight;
            }
        }
    }

    __device__ void write_output(const Tile& tile, const Rows& rows, const wgmma::Accumulator& output) const {
#pragma unroll
        for (int i = 0; i < rows_per_thread; ++i) {
            const OutputRow<G> target(c.params, tile, half, row(i));
            const Normaliser normaliser(c.params, target.head, rows.maximum[i], rows.sum[i]);
            store_row(normaliser, output, i, target.live ? c.params.out + target.head_row * head_dim : nullptr);
            if (target.live && c.params.lse && quad_lane() == 0) {
                c.params.lse[target.head_row] = normaliser.lse;
            }
        }
    }

    __device__ void write_partial(const Tile& tile, const Rows& rows, const wgmma::Accumulator& output) const {
#pragma unroll
        for (int i = 0; i < rows_per_thread; ++i) {
            if (!OutputRow<G>(c.params, tile, half, row(i)).live) {
                continue;
            }
            const uint64_t index = partial_row<G>(c.params, tile, tile.split, half, row(i));
            float* out = c.params.partial_out + index * head_dim + 2 * quad_lane();
#pragma unroll
            for (int group = 0; group < column_groups; ++group) {
                *reinterpret_cast<float2*>(out + 8 * group) =
                    make_float2(output[at(i, group, 0)], output[at(i, group, 1)]);
            }
            if (quad_lane() == 0) {
                c.params.partial_max[index] = rows.maximum[i];
                c.params.partial_sum[index] = rows.sum[i];
            }
        }
    }

    __device__ void attend(const Walk& walk, const Tile& tile, int q_slot) {
        const uint64_t queries = wgmma::swizzled_descriptor(c.shared.q[q_slot][half]);
        int visible[rows_per_thread];
#pragma unroll
        for (int i = 0; i < rows_per_thread; ++i) {
            visible[i] = tile.visible_keys(tile.first_token + half * G::tokens_per_half + row(i) / G::pack);
        }
        Rows rows;
        wgmma::Accumulator output;
#pragma unroll
        for (float& value : output) {
            value = 0;
        }
        for (int block = tile.end - 1; block >= tile.begin; --block) {
            wgmma::Accumulator s;
            scores(s, queries);
            const int first_key = block * block_keys;
            mask(s, {visible[0] - first_key, visible[1] - first_key});
            float factor[rows_per_thread];
            weigh(s, rows, factor);
            accumulate(output, s, factor);
        }
        release(c.shared.head.barriers.q.empty[q_slot]);
#pragma unroll
        for (float& sum : rows.sum) {
            sum = quad_sum(sum);
        }
        if constexpr (S::split) {
            write_partial(walk.again(), rows, output);
        } else {
            write_output(walk.again(), rows, output);
        }
    }

    // A half without queries only keeps the rings moving.
    __device__ void pass(const Tile& tile, int q_slot) {
        for (int i = 0; i < tile.blocks(); ++i) {
            release(c.shared.head.barriers.expanded[index(Side::K)].empty[keys.wait()]);
            release(c.shared.head.barriers.expanded[index(Side::V)].empty[values.wait()]);
        }
        release(c.shared.head.barriers.q.empty[q_slot]);
    }

  public:
    __device__ Consumer(Context c, int half)
        : c(c), half(half), q(c.shared.head.barriers.q), keys(c.shared.head.barriers.expanded[index(Side::K)]),
          values(c.shared.head.barriers.expanded[index(Side::V)]), scale(Scales(c.params).log2),
          merger{c.params, c.shared.head.merge_flag, threadIdx.x - sides * warpgroup_threads} {}

    __device__ void run() {
        Walk walk(c.params);
        Tile tile;
        while (walk.next(tile)) {
            if (tile.empty()) {
                if constexpr (S::split) {
                    merger.finish_empty(tile);
                }
                continue;
            }
            const int q_slot = q.wait();
            if (tile.first_token + half * G::tokens_per_half < tile.q_len) {
                attend(walk, tile, q_slot);
            } else {
                pass(tile, q_slot);
            }
            if constexpr (S::split) {
                merger.finish(walk.again());
            }
        }
    }
};

// ---------------------------------------------------------------- entry

__device__ void init_barriers(Barriers& barriers) {
    constexpr uint32_t copy = 1, producer_warps = warpgroup_warps, consumer_warps = halves * warpgroup_warps;
    const auto init = [](auto& ring, int slots, uint32_t full, uint32_t empty) {
        for (int slot = threadIdx.x; slot < slots; slot += 32) {
            ring.full[slot].init(full);
            ring.empty[slot].init(empty);
        }
    };
    if (threadIdx.x < 32) {
        init(barriers.q, q_slots, copy, consumer_warps);
        for (int side = 0; side < sides; ++side) {
            init(barriers.packed[side], S::packed_stages, copy, producer_warps);
            init(barriers.expanded[side], S::expanded_stages, producer_warps, consumer_warps);
        }
    }
    fence_mbarrier_init();
}

// The copies never write the dead rows of the queries; the products read them.
__device__ void zero_dead_rows(SharedMap& shared) {
    constexpr int dead_chunks = (G::half_rows - G::live_rows) * row_bytes / chunk_bytes;
    for (int i = 0; i < q_slots * halves; ++i) {
        for (int chunk = threadIdx.x; chunk < dead_chunks; chunk += S::threads) {
            uint8_t* dead = &shared.q[i / halves][i % halves][G::live_rows * row_bytes];
            reinterpret_cast<uint4*>(dead)[chunk] = make_uint4(0, 0, 0, 0);
        }
    }
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, 1)
    nvfp4_context_wgmma(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(swizzle_period) uint8_t shared_bytes[];
    SharedMap& shared = *reinterpret_cast<SharedMap*>(shared_bytes);
    if (threadIdx.x == 0) {
        for (const TensorMap* map : {&params.q, &params.k, &params.v, &params.k_scale, &params.v_scale}) {
            prefetch_tensor_map(*map);
        }
    }
    init_barriers(shared.head.barriers);
    zero_dead_rows(shared);
    __syncthreads();

    const Context context{params, shared};
    switch (static_cast<Role>(threadIdx.x / warpgroup_threads)) {
    case Role::keys:
        cuda::ptx::setmaxnreg_dec(cuda::ptx::n32_t<S::key_registers>{});
        Producer<Side::K>(context).run();
        break;
    case Role::values:
        cuda::ptx::setmaxnreg_dec(cuda::ptx::n32_t<S::value_registers>{});
        Producer<Side::V>(context).run();
        break;
    case Role::half0:
    case Role::half1:
        cuda::ptx::setmaxnreg_inc(cuda::ptx::n32_t<S::consumer_registers>{});
        Consumer(context, threadIdx.x / warpgroup_threads - static_cast<int>(Role::half0)).run();
        break;
    }
}
