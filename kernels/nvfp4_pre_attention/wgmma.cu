// The fused QKV GEMM on the warpgroup tensor cores of sm_90a, with the whole epilogue of a head row.
//
//   out = quantise(rope(norm(bf16(alpha * A W^T))))      A [tokens, hidden], W [heads * 3 * 128, hidden], both decoded
//
// sm_90a multiplies neither FP4 nor block scales. Code x scale has at most six significant bits, so both operands come as
// bf16 images (image.cuh) and the products are exact. A cluster of two CTAs computes 256 tokens x 256 columns, two whole
// head rows of each token; a CTA loads its own tokens and half of the weights, which it sends to both.
//
//   producer   | load k0, k1, ... ahead                  | next tile ...
//   consumer 0 | 64 tokens x 256: products ... | to bf16 | products ...
//   consumer 1 | 64 tokens x 256: products ... | to bf16 | products ...
//   epilogue   | head rows of the tile before                | head rows of this tile ...
//
// The rows reach the epilogue through shared memory as bf16 words, so that the accumulators are free again after a few
// hundred cycles. It has only three warps, which the products of a tile outlast by far: a fourth
// warpgroup would leave too few registers for accumulators of 256 columns.

#include "../device/barrier_ring.cuh"
#include "../device/bulk_multicast.cuh"
#include "../device/cluster_barrier.cuh"
#include "../device/pdl.cuh"
#include "../device/store_matrix.cuh"
#include "../device/wgmma_wide.cuh"
#include "image.cuh"
#include "octet_rows.cuh"
#include "schedule.cuh"
#include "wgmma_params.cuh"

namespace bakewell {

using S = Schedule;

constexpr int warpgroup_warps = 4;
constexpr int producer_warps = 1;
constexpr int epilogue_warps = warpgroup_warps - producer_warps; // the first warpgroup holds both
constexpr int consumers = 2;
constexpr int consumer_rows = 64;
constexpr int tile_rows = consumers * consumer_rows; // of a CTA
constexpr int halves = 2;                            // head rows of a token in a tile
constexpr uint32_t cluster_ctas = 2;
constexpr bool e2m1_instruction = false; // sm_90a has none
constexpr int word_row_bytes = head_dim * element_bytes;

// What an epilogue warp takes at a time: 32 rows of a half.
constexpr int unit_rows = 32;
constexpr int half_units = tile_rows / unit_rows;
static_assert(S::threads == 32 * warpgroup_warps * (1 + consumers) && epilogue_warps <= half_units);
static_assert(tile_rows == image_rows && head_dim == image_rows);
static_assert(halves == cluster_ctas, "each CTA of the pair loads the weights of one half");

struct Stage {
    uint8_t activation[image_block_bytes];
    uint8_t weight[halves][image_block_bytes];
};

using StageRing = BarrierRing<S::stages>;
using WordRing = BarrierRing<halves>;

struct Barriers {
    StageRing stages; // producers of the pair -> consumers
    WordRing words;   // consumers -> epilogue: a half of the tile
};

struct SharedMap {
    static constexpr int barrier_bytes = sizeof(Barriers);

    Stage stages[S::stages];
    uint8_t words[halves][tile_rows * word_row_bytes]; // bf16, chunks of a row swizzled: see word_chunk
    Barriers barriers;
    uint8_t unused[1024 - sizeof(Barriers)];
};
static_assert(sizeof(Stage) % 512 == 0, "the period of the swizzle");

enum class Role { producer, epilogue, consumer };

__device__ inline Role role_of(int warp) {
    return warp < producer_warps ? Role::producer : warp < warpgroup_warps ? Role::epilogue : Role::consumer;
}

// ---------------------------------------------------------------- tiles

// Tile of a cluster: two neighbouring blocks of 128 tokens, 256 columns.
struct Tile {
    int row_pair;
    int columns;
};

// Static and persistent. Groups of row pairs whose activations stay in the second-level cache; in a group, the rows run
// fastest. Without divisions, whose constants would occupy registers throughout.
class TileWalk {
    int pairs;
    int column_tiles;
    int first_pair = 0; // of the group
    int row;            // in the group
    int column = 0;

    static __device__ int clusters() { return gridDim.x / cluster_ctas; }

  public:
    explicit __device__ TileWalk(const Params& params)
        : pairs((params.tokens + cluster_ctas * tile_rows - 1) / (cluster_ctas * tile_rows)),
          column_tiles(params.heads * kinds / halves), row(static_cast<int>(blockIdx.x / cluster_ctas) - clusters()) {}

    __device__ bool next(Tile& tile) {
        row += clusters();
        while (first_pair < pairs) {
            const int group_pairs = min(S::group_pairs, pairs - first_pair);
            for (; row >= group_pairs && column < column_tiles; ++column) {
                row -= group_pairs;
            }
            if (column < column_tiles) {
                tile = {first_pair + row, column};
                return true;
            }
            column = 0;
            first_pair += S::group_pairs;
        }
        return false;
    }
};

struct Context {
    const Params& params;
    SharedMap& shared;

    __device__ int warp() const { return threadIdx.x / 32; }
    __device__ int lane() const { return threadIdx.x % 32; }
    __device__ uint32_t steps() const { return params.hidden / image_columns; }

    // Of this CTA in a tile. The second CTA of the last pair may have none of its own.
    __device__ uint64_t row_block(const Tile& tile) const {
        return static_cast<uint64_t>(tile.row_pair) * cluster_ctas + cuda::ptx::get_sreg_cluster_ctarank();
    }
};

// Offset of a 16-byte chunk in a half of the word tile. The swizzle spreads eight rows over all banks, for the stores of
// the consumers and for the loads of the epilogue.
__device__ inline uint32_t word_chunk(uint32_t row, uint32_t chunk) {
    return row * word_row_bytes + (chunk ^ (row & 7)) * 16;
}

// ---------------------------------------------------------------- producer

// One thread.
__device__ void produce(Context c) {
    const L2Policy keep(Eviction::last), pass(Eviction::first);
    const uint32_t rank = cuda::ptx::get_sreg_cluster_ctarank();
    const uint64_t last_row_block = (c.params.tokens - 1) / tile_rows;
    StageRing::Producer ring(c.shared.barriers.stages);
    TileWalk walk(c.params);
    Tile tile;
    while (walk.next(tile)) {
        // A block of tokens past the end repeats the last one: its results are not stored.
        const uint8_t* activation =
            c.params.activation + image_block(min(c.row_block(tile), last_row_block), 0, c.params.hidden);
        const uint8_t* weight = c.params.weight + image_block(static_cast<uint64_t>(tile.columns) * halves + rank, 0, c.params.hidden);
        for (uint32_t step = 0; step < c.steps(); ++step) {
            const int slot = ring.acquire();
            Stage& stage = c.shared.stages[slot];
            Mbarrier& full = c.shared.barriers.stages.full[slot];
            full.arrive_expect(sizeof(Stage));
            bulk_load(stage.activation, activation, image_block_bytes, full, keep);
            bulk_load_multicast(stage.weight[rank], weight, image_block_bytes, full, (1 << cluster_ctas) - 1, pass);
            activation += image_block_bytes;
            weight += image_block_bytes;
        }
    }
    // The CTA stays until its peer, too, has arrived on its barriers for the last time.
    for (int i = 0; i < S::stages; ++i) {
        ring.acquire();
    }
}

// ---------------------------------------------------------------- consumers

class Consumer {
    Context c;
    int index;
    StageRing::Consumer stages;
    WordRing::Producer words;
    ClusterMbarrier empty; // of the stages, in the CTA of this lane's number

    // The warp's products have read a stage: one arrival in each CTA that loads a part of it.
    __device__ void release(int slot) const {
        __syncwarp();
        if (c.lane() < cluster_ctas) {
            empty.at(slot).signal();
        }
    }

    __device__ void multiply(wgmma::WideAccumulator& sums) {
        constexpr int step_instructions = image_row_bytes / wgmma::k_bytes;
        int before = 0;
        for (uint32_t step = 0; step < c.steps(); ++step) {
            const int slot = stages.wait();
            const Stage& stage = c.shared.stages[slot];
            const uint64_t a = wgmma::swizzled_descriptor_64b(stage.activation + index * consumer_rows * image_row_bytes);
            const uint64_t b = wgmma::swizzled_descriptor_64b(stage.weight);
            wgmma::fence();
#pragma unroll
            for (int i = 0; i < step_instructions; ++i) {
                const uint32_t offset = i * wgmma::k_bytes;
                wgmma::mma_bf16(sums, wgmma::advance(a, offset), wgmma::advance(b, offset), i > 0 || step > 0);
            }
            wgmma::commit();
            // These products keep the tensor cores busy while the stage before is handed back.
            wgmma::wait<1>();
            if (step > 0) {
                release(before);
            }
            before = slot;
        }
        wgmma::wait<0>();
        release(before);
    }

    // Rounds the sums of a half to words. PTX: stmatrix.sync.aligned.m8n8.x4.shared.b16
    __device__ void stage_words(const wgmma::WideAccumulator& sums, int half) const {
        constexpr int groups = head_dim / 8, matrix_groups = 2;
        const uint32_t row = index * consumer_rows + 16 * (c.warp() % warpgroup_warps) + c.lane() % 16;
        uint8_t* tile = c.shared.words[half];
#pragma unroll
        for (int group = 0; group < groups; group += matrix_groups) {
            uint32_t matrices[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float* pair = &sums[4 * (half * groups + group) + 2 * i];
                matrices[i] = pack<Element::bf16>(__fmul_rn(pair[0], c.params.alpha), __fmul_rn(pair[1], c.params.alpha));
            }
            store_matrices(tile + word_chunk(row, group + c.lane() / 16), matrices);
        }
    }

  public:
    explicit __device__ Consumer(Context c)
        : c(c), index(c.warp() / warpgroup_warps - 1), stages(c.shared.barriers.stages), words(c.shared.barriers.words),
          empty(c.shared.barriers.stages.empty[0], c.lane() % cluster_ctas) {}

    __device__ void run() {
        TileWalk walk(c.params);
        Tile tile;
        while (walk.next(tile)) {
            wgmma::WideAccumulator sums;
            multiply(sums);
#pragma unroll
            for (int half = 0; half < halves; ++half) {
                const int slot = words.acquire();
                stage_words(sums, half);
                __syncwarp();
                if (c.lane() == 0) {
                    c.shared.barriers.words.full[slot].arrive();
                }
            }
        }
    }
};

// ---------------------------------------------------------------- epilogue

// What a warp does with 32 rows of a half of the tile.
class UnitEpilogue {
    Context c;
    int half;
    uint32_t first_row; // in the tile
    uint64_t first_token;
    uint32_t head;
    Kind kind;
    RowPlace place; // of token 0

    __device__ int block() const { return c.lane() % row_lanes; }

    __device__ void load_block(uint32_t row, Block& words) const {
#pragma unroll
        for (int i = 0; i < block_vectors; ++i) {
            const uint8_t* chunk = c.shared.words[half] + word_chunk(row, block_vectors * block() + i);
            const uint4 vector = *reinterpret_cast<const uint4*>(chunk);
            words[vector_words * i] = vector.x;
            words[vector_words * i + 1] = vector.y;
            words[vector_words * i + 2] = vector.z;
            words[vector_words * i + 3] = vector.w;
        }
    }

    __device__ void store_debug(const Block& words, uint64_t token) const {
        uint8_t* debug = kind == Kind::q ? c.params.debug_q : c.params.debug_k;
        if (debug) {
            uint4* out = reinterpret_cast<uint4*>(debug + (token * c.params.heads + head) * word_row_bytes);
#pragma unroll
            for (int i = 0; i < block_vectors; ++i) {
                const uint32_t* w = &words[vector_words * i];
                out[block_vectors * block() + i] = make_uint4(w[0], w[1], w[2], w[3]);
            }
        }
    }

    // `token_rows`: rows of a token in a destination.
    __device__ void store(const Block& words, uint64_t token, const GlobalScale& global, float inverse) const {
        const uint64_t token_rows = place.local_heads * uint64_t{kinds};
        const uint64_t row = token * token_rows + place.row;
        const uint64_t all_rows = static_cast<uint64_t>(place.destination) * c.params.tokens * token_rows + row;
        if constexpr (S::fp4_output) {
            const BlockScale scale(largest_magnitude(words), global);
            uint2* codes = reinterpret_cast<uint2*>(c.params.out_q + all_rows * (head_dim / 2));
            codes[block()] = quantise_fp4<e2m1_instruction>(words, scale);
            uint8_t* scales =
                c.params.out_sf + place.destination * destination_scale_bytes(c.params.tokens, place.local_heads);
            const uint32_t group = block();
            scales[scale_offset(static_cast<uint32_t>(row), group / scale_tile_groups, row_scale_sets) +
                   group % scale_tile_groups] = scale.byte;
        } else {
            uint4* bytes = reinterpret_cast<uint4*>(c.params.out_q + all_rows * head_dim);
            bytes[block()] = quantise_e4m3(words, inverse);
        }
    }

    __device__ const uint4* vectors(const uint8_t* bytes) const { return reinterpret_cast<const uint4*>(bytes); }

  public:
    __device__ UnitEpilogue(Context c, const Tile& tile, int half, uint32_t first_row, uint64_t column_row)
        : c(c), half(half), first_row(first_row), first_token(c.row_block(tile) * tile_rows + first_row),
          head(static_cast<uint32_t>(column_row / kinds)), kind(static_cast<Kind>(column_row % kinds)),
          place(0, head, kind, c.params.heads, c.params.destinations) {}

    template <bool normalised>
    __device__ void run() const {
        const OctetRotation rotation(c.params.rope_dim);
        const GlobalScale global(S::fp4_output ? *c.params.out_global_scale : 1);
        const float inverse = kind == Kind::q   ? c.params.inverse_scale_q
                              : kind == Kind::k ? c.params.inverse_scale_k
                                                : c.params.inverse_scale_v;
        uint4 weights[block_vectors] = {};
        if constexpr (normalised) {
            const uint8_t* all = kind == Kind::q ? c.params.q_norm_weight : c.params.k_norm_weight;
#pragma unroll
            for (int i = 0; i < block_vectors; ++i) {
                weights[i] = vectors(all)[block_vectors * block() + i];
            }
        }
#pragma unroll 1
        for (uint32_t i = c.lane() / row_lanes; i < unit_rows; i += warp_rows) {
            const uint64_t token = first_token + i;
            Block words;
            load_block(first_row + i, words);
            if constexpr (normalised) {
                // Every lane takes part; those past the last token repeat its angles.
                const uint64_t row = min(token, uint64_t{c.params.tokens} - 1) * c.params.rope_dim * element_bytes;
                const OctetRotation::Angles angles = rotation.load(vectors(c.params.rope_cos_sin + row));
                normalise(words, row_rstd(octet_sum(square_sum(words)), c.params.eps), weights);
                rotation.apply(words, angles);
            }
            if (token < c.params.tokens) {
                if constexpr (normalised) {
                    store_debug(words, token);
                }
                store(words, token, global, inverse);
            }
        }
    }

    __device__ void run() const { kind == Kind::v ? run<false>() : run<true>(); }
};

// The warps take the units of a tile in turn.
__device__ void finish_rows(Context c) {
    WordRing::Consumer words(c.shared.barriers.words);
    TileWalk walk(c.params);
    Tile tile;
    while (walk.next(tile)) {
        int ready = 0; // halves
        for (int unit = c.warp() - producer_warps; unit < halves * half_units; unit += epilogue_warps) {
            const int half = unit / half_units;
            for (; ready <= half; ++ready) {
                words.wait();
            }
            const uint32_t first_row = unit % half_units * unit_rows;
            const uint64_t column_row = static_cast<uint64_t>(tile.columns) * halves + half;
            UnitEpilogue(c, tile, half, first_row, column_row).run();
            __syncwarp();
            if (c.lane() == 0) {
                c.shared.barriers.words.empty[half].arrive();
            }
        }
    }
}

// ---------------------------------------------------------------- entry

__device__ void init_barriers(Barriers& barriers) {
    // A stage: its producer's announcement; the warps of all consumers that read a part of it, in both CTAs.
    constexpr uint32_t consumer_warps = consumers * warpgroup_warps;
    if (threadIdx.x < S::stages) {
        barriers.stages.full[threadIdx.x].init(1);
        barriers.stages.empty[threadIdx.x].init(cluster_ctas * consumer_warps);
    } else if (threadIdx.x < S::stages + halves) {
        const int half = threadIdx.x - S::stages;
        barriers.words.full[half].init(consumer_warps);
        barriers.words.empty[half].init(half_units);
    }
    fence_mbarrier_init();
}

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, 1) __cluster_dims__(bakewell::cluster_ctas, 1, 1)
    nvfp4_pre_attention_wgmma(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(1024) uint8_t shared_bytes[];
    SharedMap& shared = *reinterpret_cast<SharedMap*>(shared_bytes);
    init_barriers(shared.barriers);
    cluster_sync();
    wait_for_prerequisites();

    const Context context{params, shared};
    switch (role_of(context.warp())) {
    case Role::producer:
        if (context.lane() == 0) {
            produce(context);
        }
        __syncwarp();
        break;
    case Role::epilogue:
        finish_rows(context);
        break;
    case Role::consumer:
        Consumer(context).run();
        break;
    }
}
