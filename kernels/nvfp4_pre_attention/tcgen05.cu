// Fused QKV projection on the tcgen05 tensor cores: NVFP4 activation x NVFP4 weight, then per head row QK norm, rotation,
// quantisation, and the store grouped by destination rank.
//
//   out[destination][token][local head][kind] = quantise(rotate(norm(bf16(alpha * activation weight^T))))
//
// A cluster of two CTAs computes 256 tokens x 256 columns: each CTA owns 128 tokens, and of the columns two head rows per
// token, the halves. Clusters take over tiles that have not been launched, so that the roles run on from tile to tile:
//
//   load     | request 1 | stages of tile 0        | request 2 | stages of tile 1 ...
//   scales   | (schedules with a scale ring of its own) scales of tile 0 | of tile 1 ...
//   mma      |     products of tile 0        |       | products of tile 1        |       | ...
//   epilogue |                               | drain | norm, rotation, codes, store | drain ...
//
// There is one accumulator. The epilogue first reads its share into registers, already rounded to bf16, and hands the
// accumulator back; then it computes, while the next tile's products run.

#include "../device/cluster_ring.cuh"
#include "../device/cta_pair.cuh"
#include "../device/named_barrier.cuh"
#include "../device/tmem.cuh"
#include "column_set.cuh"
#include "products.cuh"
#include "schedule.cuh"
#include "staging.cuh"
#include "tcgen05_params.cuh"
#include "tiles.cuh"
#include "whole_row.cuh"

namespace bakewell {

using S = Schedule;

constexpr bool column_sets = S::column_sets;
static_assert(!column_sets || S::rope_dim == set_rope_dim);

// ---------------------------------------------------------------- warps

// A warpgroup that issues, with few registers; then those of the epilogue: the quarters of tensor memory for half 0, for
// half 1, and with column sets the same again for set 1.
constexpr uint32_t issue_warps = 4;
constexpr uint32_t quarters = tmem::lanes / 32;
constexpr uint32_t set_warps = halves * quarters;
constexpr uint32_t epilogue_warps = (column_sets ? 2 : 1) * set_warps;
static_assert(32 * (issue_warps + epilogue_warps) == S::threads);

enum class Role { load, mma, scales, idle, epilogue };

__device__ inline Role role_of(uint32_t warp) {
    return warp < issue_warps ? static_cast<Role>(warp) : Role::epilogue;
}

// Threads that fill a head half's staging buffer meet at `Half` + half; partners of column sets at `Partner` + pair.
enum NamedBarrier : uint32_t { Half = 1, Partner = Half + halves };
constexpr uint32_t half_threads = 32 * epilogue_warps / halves;

// ---------------------------------------------------------------- shared memory

// Rings of stages: one for matrices and scales together, or one each.
constexpr int rings = S::separate_scales ? 2 : 1;
constexpr int matrix_ring = 0, scale_ring = rings - 1;

struct Barriers {
    ClusterRing<S::stages> stages[rings];  // load of both CTAs -> mma; full: the leader's
    ClusterRing<response_slots> responses; // copy engine -> every walker
    Mbarrier accumulated;                  // mma -> epilogue of both CTAs
    Mbarrier drained;                      // epilogue of both CTAs -> mma; the leader's
};

struct SharedMap {
    static constexpr int barrier_bytes = sizeof(Barriers);
    static constexpr int tmem_columns = TmemMap::columns;

    struct Head {
        Barriers barriers;
        LaunchResponse responses[response_slots];
        uint4 norm_weights[2][head_dim * element_bytes / sizeof(uint4)]; // of Q and K
        uint32_t tmem;                                                   // address of the allocation
    };

    Head head;
    uint8_t unused[2 * swizzle_period - sizeof(Head)];
    Operands operands;
    Staging staging;
};
static_assert(offsetof(SharedMap, operands) % swizzle_period == 0 && offsetof(SharedMap, staging) % swizzle_period == 0);

// The thread index, read anew. What is derived from one early read would stay in registers from tile to tile.
__device__ inline uint32_t thread_index() {
    uint32_t thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// An epilogue thread by its number: warpgroups of the epilogue are half 0, half 1, and with column sets the same again.
__device__ inline uint32_t epilogue_group() { return thread_index() / tile_tokens - issue_warps / quarters; }
__device__ inline uint32_t head_half() { return epilogue_group() % halves; }
__device__ inline uint32_t column_set() { return epilogue_group() / halves; }
// The token of the tile: the lane of tensor memory that the thread's warp may read.
__device__ inline uint32_t tile_token() { return thread_index() % tile_tokens; }

struct Context {
    const Params& params;
    SharedMap& shared;
    uint32_t rank; // in the pair

    __device__ Barriers& barriers() const { return shared.head.barriers; }
    __device__ Launches launches() const { return {shared.head.barriers.responses, shared.head.responses}; }
    __device__ bool leads() const { return rank == cta_pair::leader; }

    // Sets of 64 elements of K, and stages that hold them.
    __device__ uint32_t sets() const { return params.hidden / nvfp4_mma::set_k; }
    __device__ uint32_t stages() const { return (sets() + stage_sets - 1) / stage_sets; }
};

// ---------------------------------------------------------------- load

// One thread of each CTA. A CTA's rows of A and half of the rows of B; the scales of those rows of A and of all of B.

struct Loader {
    Context c;

    __device__ void matrices(const Tile& tile, uint32_t stage, int slot, const ClusterMbarrier& full) const {
        const int32_t column = static_cast<int32_t>(stage * row_bytes);
        const int32_t a_row = static_cast<int32_t>(tile.m * tile_tokens);
        const int32_t b_row = static_cast<int32_t>(tile.n * tile_columns + c.rank * (tile_columns / cta_pair::ctas));
        cta_pair::tensor_load(c.shared.operands.a[slot], c.params.a, {column, a_row}, full);
        cta_pair::tensor_load(c.shared.operands.b[slot], c.params.b, {column, b_row}, full);
    }

    // The tail of K takes whole boxes too; what lies past it is not used.
    __device__ void scales(const Tile& tile, uint32_t stage, int slot, const ClusterMbarrier& full) const {
        const uint32_t set = stage * stage_sets;
        const int32_t a_tile = static_cast<int32_t>(tile.m * c.sets() + set);
        const int32_t b_tile = static_cast<int32_t>(2 * (tile.n * c.sets() + set));
        cta_pair::tensor_load(c.shared.operands.a_scales[slot], c.params.a_scales, {0, a_tile}, full);
        cta_pair::tensor_load(c.shared.operands.b_scales[slot], c.params.b_scales, {0, b_tile}, full);
    }
};

// Fills the stages of a ring, tile after tile. `before` runs at the start of each tile, `copy(tile, stage, slot, full)`
// starts the copies of a stage.
template <class Before, class Copy>
__device__ void fill(Context c, ClusterRing<S::stages>& ring, uint32_t bytes, Before before, Copy copy) {
    ClusterRing<S::stages>::Producer stages(ring);
    TileWalk<Walker::thread> walk(c.params, c.launches());
    do {
        before();
        const Tile tile = walk.tile();
        for (uint32_t stage = 0; stage < c.stages(); ++stage) {
            const int slot = stages.acquire();
            const ClusterMbarrier full(ring.full[slot], cta_pair::leader);
            full.arrive_expect(bytes);
            copy(tile, stage, slot, full);
        }
    } while (walk.next());
    // The leader's commits arrive here too: this CTA stays until the last has.
    stages.drain();
}

__device__ void load(Context c) {
    constexpr bool with_scales = !S::separate_scales;
    constexpr uint32_t bytes = Operands::matrix_bytes + (with_scales ? Operands::scale_bytes : 0);
    const Loader loader{c};
    Requests requests(c.launches());
    const auto request = [&] {
        if (c.leads()) {
            requests.next();
        }
    };
    const auto copy = [&](const Tile& tile, uint32_t stage, int slot, const ClusterMbarrier& full) {
        loader.matrices(tile, stage, slot, full);
        if (with_scales) {
            loader.scales(tile, stage, slot, full);
        }
    };
    fill(c, c.barriers().stages[matrix_ring], bytes, request, copy);
}

__device__ void load_scales(Context c) {
    const Loader loader{c};
    const auto copy = [&](const Tile& tile, uint32_t stage, int slot, const ClusterMbarrier& full) {
        loader.scales(tile, stage, slot, full);
    };
    fill(c, c.barriers().stages[scale_ring], Operands::scale_bytes, [] {}, copy);
}

// ---------------------------------------------------------------- mma

// One thread of the leader, for both CTAs.
class Multiplier {
    Context c;
    Products products;
    ClusterRing<S::stages>::Consumer stages;
    ClusterRing<S::stages>::Consumer scales; // of a ring of their own
    ClusterPhase drained = ClusterPhase::passes_first();

    // The next stage, its scales in tensor memory.
    __device__ int next_stage(uint32_t sets) {
        const int slot = stages.wait();
        // The rings are in step. The wait for the matrices comes first: it says that no product reads the columns.
        if constexpr (S::separate_scales) {
            scales.wait();
        }
        products.copy_scales(slot, sets);
        if constexpr (S::separate_scales) {
            release(scale_ring, slot);
        }
        return slot;
    }

    __device__ void wait_for_accumulator() {
        drained.wait(c.barriers().drained);
        tmem::fence_after_wait();
    }

    __device__ void release(int ring, int slot) { cta_pair::commit(c.barriers().stages[ring].empty[slot]); }

    __device__ void tile_of_64() {
        for (uint32_t set = 0; set < c.sets(); set += stage_sets) {
            const uint32_t sets = min(stage_sets, c.sets() - set);
            const int slot = next_stage(sets);
            if (set == 0) {
                wait_for_accumulator();
            }
            for (uint32_t i = 0; i < sets; ++i) {
                products.multiply_set(slot, i, set + i > 0);
            }
            release(matrix_ring, slot);
        }
    }

    // Three stages at a time, eight products; the third and the sixth straddle two stages. A stage is released with the
    // last product that reads it.
    __device__ void tile_of_96() {
        for (uint32_t stage = 0; stage < c.stages(); stage += window_stages) {
            int slot = next_stage(stage_sets);
            if (stage == 0) {
                wait_for_accumulator();
            }
#pragma unroll
            for (uint32_t j = 0; j < window_products; ++j) {
                const bool straddles = products.straddles(j);
                const int next = straddles ? next_stage(stage_sets) : slot;
                products.multiply_96(slot, next, j, stage + j > 0);
                if (straddles) {
                    release(matrix_ring, slot);
                    slot = next;
                }
            }
            release(matrix_ring, slot);
        }
    }

  public:
    explicit __device__ Multiplier(Context c)
        : c(c), products(c.shared.head.tmem, c.shared.operands), stages(c.barriers().stages[matrix_ring]),
          scales(c.barriers().stages[scale_ring]) {}

    __device__ void tile() {
        if constexpr (S::product_k == 96) {
            tile_of_96();
        } else {
            tile_of_64();
        }
        cta_pair::commit(c.barriers().accumulated);
    }
};

__device__ void mma(Context c) {
    Multiplier multiplier(c);
    TileWalk<Walker::thread> walk(c.params, c.launches());
    do {
        multiplier.tile();
    } while (walk.next());
}

// ---------------------------------------------------------------- epilogue

// A thread has one token of a tile, and of one head half all blocks or a set of them. `Part` says which.

struct WholePart {
    using Row = WholeRow<S::rope_dim>;
    static __device__ Row row() { return {}; }
    static __device__ NoExchange exchange(PackedRows&) { return {}; }
};

template <class Set>
struct SetPart {
    using Row = ColumnSet<Set>;

    static __device__ Row row() {
        Row row;
        row.set = Set(column_set());
        return row;
    }

    // What a thread is told lies in a chunk of the staging row that it overwrites itself with its codes.
    static __device__ Exchange exchange(PackedRows& packed) {
        const Set set(column_set());
        Exchanged* slots[2] = {reinterpret_cast<Exchanged*>(packed.chunk(tile_token(), 0)),
                               reinterpret_cast<Exchanged*>(packed.chunk(tile_token(), PackedRows::row_chunks - 1))};
        const uint32_t pair = head_half() * quarters + tile_token() / 32;
        return {set == 0 ? slots[0] : slots[1], set == 0 ? slots[1] : slots[0], Partner + pair};
    }
};

template <class Part>
class Finisher {
    using Row = typename Part::Row;

    Context c;
    StagingCursor<Half, half_threads> staging;
    GlobalScale global; // NVFP4 only

    __device__ float inverse_scale(Kind kind) const {
        return kind == Kind::q   ? c.params.inverse_scale_q
               : kind == Kind::k ? c.params.inverse_scale_k
                                 : c.params.inverse_scale_v;
    }

    __device__ RowPlace row_place(const HeadColumn& column, uint64_t token) const {
        return {token, static_cast<uint32_t>(column.head), column.kind, c.params.heads, c.params.destinations};
    }

    // Norm and rotation of Q or K.
    template <class Exchange>
    __device__ void transform(Row& row, const HeadColumn& column, uint64_t token, const Exchange& exchange) const {
        row.normalise(c.shared.head.norm_weights[static_cast<uint32_t>(column.kind)], c.params.eps, exchange);
        // Tokens past the end take the last one's angles.
        const uint64_t angles_row = min(token, static_cast<uint64_t>(c.params.tokens - 1));
        const uint32_t row_vectors = c.params.rope_dim * element_bytes / sizeof(uint4);
        row.rotate(c.params.rope_cos_sin + angles_row * row_vectors, c.params.rope_dim);

        uint4* debug = column.kind == Kind::q ? c.params.debug_q : c.params.debug_k;
        if (debug != nullptr && token < c.params.tokens) {
            constexpr uint32_t block_vectors = block_elements * element_bytes / sizeof(uint4);
            debug += (token * c.params.heads + column.head) * (row_blocks * block_vectors);
#pragma unroll
            for (int i = 0; i < Row::blocks; ++i) {
                uint4* out = debug + block_vectors * row.block_index(i);
                const Block& block = row.block(i);
                out[0] = make_uint4(block[0], block[1], block[2], block[3]);
                out[1] = make_uint4(block[4], block[5], block[6], block[7]);
            }
        }
    }

    template <class Exchange>
    __device__ void write_fp4(const Row& row, const HeadColumn& column, uint64_t token, PackedRows& packed,
                              const Exchange& exchange) const {
        uint32_t scales[Row::blocks];
        uint2 codes[Row::blocks];
#pragma unroll
        for (int i = 0; i < Row::blocks; ++i) {
            const BlockScale scale(largest_magnitude(row.block(i)), global);
            scales[i] = scale.byte;
            codes[i] = quantise_fp4<true>(row.block(i), scale);
        }
        uint32_t groups[Row::scale_groups];
        row.group_scales(scales, exchange, groups);
        if (token < c.params.tokens) {
            const RowPlace place = row_place(column, token);
            const uint64_t destination_bytes = destination_scale_bytes(c.params.tokens, place.local_heads);
            uint8_t* out = c.params.out_sf + place.destination * destination_bytes;
#pragma unroll
            for (int i = 0; i < Row::scale_groups; ++i) {
                const uint64_t offset = scale_offset(place.row, row.first_group() + i, row_scale_sets);
                *reinterpret_cast<uint32_t*>(out + offset) = groups[i];
            }
        }
#pragma unroll
        for (int i = 0; i < Row::blocks; i += Row::neighbours) {
            if constexpr (Row::neighbours == 2) {
                packed.store_codes(tile_token(), row.block_index(i), codes[i], codes[i + 1]);
            } else {
                packed.store_codes(tile_token(), row.block_index(i), codes[i]);
            }
        }
    }

    __device__ void write_e4m3(const Row& row, float inverse, PackedRows& packed) const {
#pragma unroll
        for (int i = 0; i < Row::blocks; ++i) {
            packed.store_bytes(tile_token(), row.block_index(i), quantise_e4m3(row.block(i), inverse));
        }
    }

  public:
    explicit __device__ Finisher(Context c)
        : c(c), staging(c.shared.staging), global(fp4_output ? *c.params.out_global_scale : 1.0f) {}

    // This thread's share of the accumulator, scaled and rounded. The next columns load while the last are rounded.
    __device__ Row drain() const {
        constexpr int columns = Row::neighbours * block_elements, parts = Row::blocks / Row::neighbours;
        const uint32_t first = tmem::own_lanes(c.shared.head.tmem, TmemMap::accumulator + head_half() * head_dim,
                                               thread_index() / 32);
        Row row = Part::row();
        float values[2][columns];
        const auto load = [&](int i) {
            tmem::load(values[i % 2], first + block_elements * row.block_index(i * Row::neighbours));
        };
        load(0);
#pragma unroll
        for (int i = 0; i < parts; ++i) {
            float(&arrived)[columns] = values[i % 2];
            tmem::wait_load(arrived);
            if (i + 1 < parts) {
                load(i + 1);
            }
#pragma unroll
            for (int j = 0; j < columns; j += 2) {
                row.words[(i * columns + j) / 2] = pack<Element::bf16>(__fmul_rn(arrived[j], c.params.alpha),
                                                                       __fmul_rn(arrived[j + 1], c.params.alpha));
            }
        }
        return row;
    }

    // From the words of a head row to its packed bytes, on their way to global memory.
    __device__ void finish(Row& row, const Tile& tile) {
        const uint32_t half = head_half();
        const HeadColumn column(tile.n, half);
        const uint64_t first_token = tile.m * tile_tokens, token = first_token + tile_token();
        const bool issuer = column_set() == 0 && tile_token() == 0;
        PackedRows& packed = staging.acquire(half, issuer);
        const auto exchange = Part::exchange(packed);
        if (column.kind != Kind::v) {
            transform(row, column, token, exchange);
        }
        if constexpr (fp4_output) {
            write_fp4(row, column, token, packed, exchange);
        } else {
            write_e4m3(row, inverse_scale(column.kind), packed);
        }
        const RowPlace first = row_place(column, first_token);
        staging.store(half, issuer, c.params, first.head_kind, first_token, first.destination);
    }

    __device__ void end() const { staging.finish(column_set() == 0 && tile_token() == 0); }
};

template <class Part>
__device__ void epilogue(Context c) {
    const ClusterMbarrier drained(c.barriers().drained, cta_pair::leader);
    ClusterPhase accumulated = ClusterPhase::waits_first();
    Finisher<Part> finisher(c);
    TileWalk<Walker::warp> walk(c.params, c.launches());
    do {
        accumulated.wait(c.barriers().accumulated);
        tmem::fence_after_wait();
        auto row = finisher.drain();
        tmem::fence_before_signal();
        __syncwarp();
        if (thread_index() % 32 == 0) {
            drained.arrive_relaxed();
        }
        finisher.finish(row, walk.tile());
    } while (walk.next());
    finisher.end();
}

template <class Schedule>
__device__ void run_epilogue(Context c) {
    if constexpr (!Schedule::column_sets) {
        epilogue<WholePart>(c);
    } else if constexpr (!Schedule::role_per_set) {
        epilogue<SetPart<uint32_t>>(c);
    } else if (column_set() == 0) {
        epilogue<SetPart<ConstantSet<0>>>(c);
    } else {
        epilogue<SetPart<ConstantSet<1>>>(c);
    }
}

// ---------------------------------------------------------------- entry

template <int slots>
__device__ void init_ring(BarrierRing<slots>& ring, uint32_t full, uint32_t empty) {
    for (int slot = 0; slot < slots; ++slot) {
        ring.full[slot].init(full);
        ring.empty[slot].init(empty);
    }
}

// One thread.
__device__ void init_barriers(Barriers& barriers) {
    constexpr uint32_t ctas = cta_pair::ctas, loaders = ctas, commit = 1;
    constexpr uint32_t walkers = ctas * (rings + epilogue_warps) + 1; // loads and epilogue of each, and the products
    for (auto& ring : barriers.stages) {
        init_ring(ring, loaders, commit);
    }
    init_ring(barriers.responses, 1, walkers);
    barriers.accumulated.init(commit);
    barriers.drained.init(ctas * epilogue_warps);
    fence_mbarrier_init();
}

__device__ void copy_norm_weights(Context c) {
    constexpr uint32_t vectors = sizeof(c.shared.head.norm_weights[0]) / sizeof(uint4);
    if (threadIdx.x < 2 * vectors) {
        const uint4* from = threadIdx.x < vectors ? c.params.q_norm_weight : c.params.k_norm_weight;
        c.shared.head.norm_weights[threadIdx.x / vectors][threadIdx.x % vectors] = from[threadIdx.x % vectors];
    }
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, 1)
    nvfp4_pre_attention_tcgen05(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(swizzle_period) uint8_t shared_bytes[];
    const Context c{params, *reinterpret_cast<SharedMap*>(shared_bytes), cuda::ptx::get_sreg_cluster_ctarank()};
    if (threadIdx.x == 0) {
        for (const TensorMap* map : {&params.a, &params.b, &params.a_scales, &params.b_scales, &params.out}) {
            prefetch_tensor_map(*map);
        }
        init_barriers(c.barriers());
    }
    copy_norm_weights(c);
    if (thread_index() / 32 == 0) {
        __syncwarp();
        cta_pair::allocate(c.shared.head.tmem, TmemMap::columns);
    }
    tmem::fence_before_signal();
    __syncthreads();
    cluster_sync();
    tmem::fence_after_wait();

    switch (role_of(thread_index() / 32)) {
    case Role::load:
        cuda::ptx::setmaxnreg_dec(cuda::ptx::n32_t<S::issue_registers>{});
        if (cuda::ptx::elect_sync(~0u)) {
            load(c);
        }
        break;
    case Role::mma:
        cuda::ptx::setmaxnreg_dec(cuda::ptx::n32_t<S::issue_registers>{});
        if (c.leads() && cuda::ptx::elect_sync(~0u)) {
            mma(c);
        }
        break;
    case Role::scales:
        cuda::ptx::setmaxnreg_dec(cuda::ptx::n32_t<S::issue_registers>{});
        if (S::separate_scales && cuda::ptx::elect_sync(~0u)) {
            load_scales(c);
        }
        break;
    case Role::idle:
        cuda::ptx::setmaxnreg_dec(cuda::ptx::n32_t<S::issue_registers>{});
        break;
    case Role::epilogue:
        cuda::ptx::setmaxnreg_inc(cuda::ptx::n32_t<S::epilogue_registers>{});
        run_epilogue<S>(c);
        break;
    }
    __syncwarp();
    tmem::fence_before_signal();
    cluster_sync();
    if (thread_index() / 32 == 0) {
        cta_pair::free(c.shared.head.tmem, TmemMap::columns);
    }
}
