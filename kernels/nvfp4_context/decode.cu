// Attention of a few query rows over paged NVFP4 keys: every warp streams pages of its own.
//
//   out = E4M3(bmm2 * softmax(bmm1 * Q K^T, causal bottom-right) V)
//
// The query tokens of a request times the heads of a group are the columns of products. Codes become E4M3 by a table of
// the scales' products. Scores are products of a warpgroup in E4M3, 16 keys of each warp, the tokens of its page; values
// become f16, which holds them exactly, and outputs are products of a warp.
//
//   warp w   | lengths, ids | queries | pages 0 1 | scores 0 | page 2 | weights, output 0 | scores 1 | ... | store partial |
//   CTA                                                                                                       | merge |
//
// Warp w of split s has page s x warps + w and every (splits x warps)th after it, in a ring of its own in shared memory.
// Only the scores tie the four warps of a warpgroup together.

#include "../device/block_attention.cuh"
#include "../device/cluster.cuh"
#include "../device/pdl.cuh"
#include "../device/wgmma_narrow.cuh"
#include "decode_params.cuh"
#include "page_ring.cuh"
#include "scale_table.cuh"
#include "scales.cuh"
#include "schedule.cuh"

namespace bakewell {

using S = Schedule;
using Attention = BlockAttention<Element::f16, S::columns, head_dim, Vectors::run>;
using Map = MergeMap<S::warps, S::columns, head_dim>;

constexpr int warpgroup_warps = 4;
static_assert(S::threads == S::warps * 32, "every warp computes");
static_assert(S::warps % warpgroup_warps == 0, "warpgroups score");
static_assert(block_keys == page_tokens, "a block is a page");

// A query row: token of the request, head of the group. The masks change nothing: they show that products are small.
struct QueryRow {
    int token, head;

    // The quotient of the small numbers is exact: halves are far from what the reciprocal may be off.
    __device__ QueryRow(int column, uint32_t heads_per_kv)
        : token(static_cast<int>((column + 0.5f) * reciprocal_approx(heads_per_kv)) & (S::columns - 1)),
          head(column - token * (heads_per_kv & (2 * S::columns - 1))) {}
};

// Request, KV head and split of a CTA, and the lengths of the request: no keys where no query asks for them.
struct Work {
    uint32_t request, split, kv_head;
    int q_start, q_len, kv_len;

    explicit __device__ Work(const Params& params)
        : request(blockIdx.x), split(blockIdx.y), kv_head(blockIdx.z), q_start(params.cu_seqlens_q[request]),
          q_len(params.cu_seqlens_q[request + 1] - q_start), kv_len(params.seq_lens_kv[request]) {
        kv_len = q_len > 0 ? kv_len : 0;
    }

    __device__ uint32_t pages() const { return (kv_len + page_tokens - 1u) / page_tokens; }

    // Whether only the first warp of a request that is not split may have a page.
    __device__ bool one_warp() const { return pages() <= 1; }

    // Index of [request, KV head].
    __device__ size_t unit(const Params& params) const {
        return static_cast<size_t>(request) * params.kv_heads + kv_head;
    }

    __device__ QueryRow row(const Params& params, int column) const { return {column, params.heads_per_kv}; }
    __device__ bool is_live(QueryRow row) const { return row.token < q_len; }

    // Keys that a row sees: its token and all before it; none past the last token.
    __device__ int visible_keys(QueryRow row) const {
        return is_live(row) ? min(kv_len, row.token + kv_len - q_len + 1) : 0;
    }

    // Token of the batch, query head, index of [token, head].
    __device__ int64_t token(QueryRow row) const { return q_start + row.token; }
    __device__ int64_t head(const Params& params, QueryRow row) const {
        return static_cast<int64_t>(kv_head) * params.heads_per_kv + row.head;
    }
    __device__ int64_t head_row(const Params& params, QueryRow row) const {
        return token(row) * params.q_heads + head(params, row);
    }
};

// The queries of a CTA's columns under the swizzle of the tensor cores, dims in the order in which the lanes of a product
// have those of K: word 8 q + 2 j + h of a row, half h of vector j of lane q, is word 8 j + 4 h + q here.
struct Queries {
    static constexpr int chunk = 16; // unit of the swizzle
    alignas(1024) uint8_t rows[8 * Attention::tiles][head_dim];

    __device__ void put(int row, int pair, int j, uint2 vector) {
        for (int h = 0; h < 2; ++h) {
            const int place = (2 * j + h ^ row % 8) * chunk + 4 * pair;
            *reinterpret_cast<uint32_t*>(&rows[row][place]) = h == 0 ? vector.x : vector.y;
        }
    }
};

// A warp's share of them, on its way from global memory.
class QueryLoad {
    static constexpr int vectors = Attention::tiles * Attention::key_vectors;
    static constexpr int share = (vectors + S::warps - 1) / S::warps;
    uint2 bytes[share];

    template <class Action>
    static __device__ void each(int warp, Action action) {
        for (int i = 0; i < share; ++i) {
            const int vector = warp + i * S::warps;
            if (vector < vectors) {
                action(i, vector / Attention::key_vectors, vector % Attention::key_vectors);
            }
        }
    }

  public:
    __device__ QueryLoad(const Params& params, const Work& work, const Attention& attention, int warp) {
        each(warp, [&](int i, int tile, int j) {
            const int column = 8 * tile + attention.lane.group;
            const QueryRow row = work.row(params, column < S::columns ? column : 0);
            // A column past the last token repeats the batch's first: an address that exists; nobody reads its result.
            const int64_t token = work.is_live(row) ? work.token(row) : 0;
            const uint8_t* start = params.q + token * params.q_token_stride + work.head(params, row) * params.q_head_stride;
            bytes[i] = reinterpret_cast<const uint2*>(start)[attention.key_vector(j)];
        });
    }

    __device__ void store(Queries& queries, int warp, FragmentLane lane) const {
        each(warp, [&](int i, int tile, int j) { queries.put(8 * tile + lane.group, lane.pair, j, bytes[i]); });
        // The tensor cores read what these threads wrote.
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    }
};

struct SharedMap {
    static constexpr int barrier_bytes = Map::barrier_bytes;

    Queries queries;
    PackedPage ring[S::warps][S::page_slots];
    alignas(16) Map merge;
    alignas(16) ScaleTable table;
};

// The pages of one warp: every `step`th, so that where its first ones stand does not depend on the length.
struct PageList {
    const int32_t* entries; // of the request
    uint32_t first, step;

    __device__ PageList(const Params& params, int warp)
        : entries(params.page_table + blockIdx.x * params.page_table_stride), first(blockIdx.y * S::warps + warp),
          step(min(params.splits, max_splits) * S::warps) {}

    __device__ uint32_t id(uint64_t page) const { return entries[page]; }
};

// What a lane needs of a page: of K the rows g and g + 8, dims 32q to 32q + 31, of V slots 2q, 2q + 1, 2q + 8, 2q + 9,
// dims 16g to 16g + 15. A scale for each 16 dims.
struct PackedKeys {
    uint4 codes[2];
    uint32_t scales[2][2];
};
struct PackedValues {
    uint2 codes[4];
    uint32_t scales[4];
};

// Reads pages in shared memory and expands them.
class Pages {
    const ScaleTable& table;
    FragmentLane lane;
    uint32_t key, key_scale, value, value_scale; // where a lane's part of a page begins

    template <class T>
    static __device__ T read(const uint8_t* address) {
        return *reinterpret_cast<const T*>(address);
    }

  public:
    __device__ Pages(const ScaleTable& table, FragmentLane lane)
        : table(table), lane(lane), key(dense_row * lane.group + 16 * lane.pair),
          key_scale(scale_index<Side::K>(lane.group, 2 * lane.pair)),
          value(PackedPage::value_chunk(2 * lane.pair, lane.group / 2) + 8 * (lane.group % 2)),
          value_scale(scale_index<Side::V>(2 * lane.pair, lane.group)) {
        // Held in registers: otherwise they are computed anew for each page.
        asm("" : "+r"(key), "+r"(key_scale), "+r"(value), "+r"(value_scale));
    }

    __device__ PackedKeys keys(const PackedPage& page) const {
        PackedKeys packed;
        for (int half = 0; half < 2; ++half) {
            packed.codes[half] = read<uint4>(page.keys + key + half * PackedPage::half_codes);
            for (int part = 0; part < 2; ++part) {
                packed.scales[half][part] = page.key_scales[key_scale + half * PackedPage::half_scales + part];
            }
        }
        return packed;
    }

    __device__ PackedValues values(const PackedPage& page) const {
        PackedValues packed;
        for (int half = 0; half < 2; ++half) {
            const uint8_t* codes = page.values + half * PackedPage::half_codes;
            packed.codes[2 * half] = read<uint2>(codes + value);
            packed.codes[2 * half + 1] = read<uint2>(codes + (value ^ PackedPage::odd_value));
            for (int odd = 0; odd < 2; ++odd) {
                packed.scales[2 * half + odd] = page.value_scales[value_scale + half * PackedPage::half_scales + odd];
            }
        }
        return packed;
    }

    // Rows past the cache become zeros: a weight of zero does not hide a NaN.
    __device__ void clear(PackedValues& packed, int live_tokens) const {
        for (int i = 0; i < 4; ++i) {
            const int token = 2 * lane.pair + i % 2 + 8 * (i / 2);
            packed.scales[i] = token < live_tokens ? packed.scales[i] : 0;
        }
    }

    // Rows g and g + 8 as registers of products of 32 dims, of which a lane has eight neighbours.
    struct KeyRows {
        uint32_t product[head_dim / wgmma::e4m3_k][4];
    };
    __device__ KeyRows expand(const PackedKeys& packed) const {
        KeyRows rows;
        for (int half = 0; half < 2; ++half) {
            for (int part = 0; part < 2; ++part) {
                const Products products = table.of(packed.scales[half][part]);
                const uint4& codes = packed.codes[half];
                const uint4 bytes =
                    products.look_up(part == 0 ? make_uint2(codes.x, codes.y) : make_uint2(codes.z, codes.w));
                auto& first = rows.product[2 * part];
                auto& second = rows.product[2 * part + 1];
                first[half] = bytes.x;
                first[half + 2] = bytes.y;
                second[half] = bytes.z;
                second[half + 2] = bytes.w;
            }
        }
        return rows;
    }

    // Slots 2q and 2q + 1, or 8 more: rows of output tiles, a pair of keys in a word, of dims 2t and 2t + 1.
    struct ValueRows {
        uint2 tile[Attention::out_tiles];
    };
    __device__ ValueRows expand(const PackedValues& packed, int half) const {
        const uint4 even = table.of(packed.scales[2 * half]).look_up(packed.codes[2 * half]);
        const uint4 odd = table.of(packed.scales[2 * half + 1]).look_up(packed.codes[2 * half + 1]);
        constexpr uint32_t uint4::* words[4] = {&uint4::x, &uint4::y, &uint4::z, &uint4::w};
        ValueRows rows;
        for (int i = 0; i < 4; ++i) {
            rows.tile[2 * i] = e4m3_to_f16(permute(even.*words[i], odd.*words[i], 0x5140));
            rows.tile[2 * i + 1] = e4m3_to_f16(permute(even.*words[i], odd.*words[i], 0x7362));
        }
        return rows;
    }
};

// The ids of a warp's pages, one in each lane, for 32 pages and the 32 after them: a page is asked for when its slot is
// free, its id long before.
class PageIds {
    const PageList& list;
    const uint32_t row_entries;
    uint32_t ids, later = 0;

    // Before the length is known, which would cost another latency.
    __device__ uint32_t load(uint32_t index) const {
        const uint64_t page = list.first + static_cast<uint64_t>(index + threadIdx.x % 32) * list.step;
        return page < row_entries ? list.id(page) : 0;
    }

  public:
    __device__ PageIds(const PageList& list, uint32_t row_entries)
        : list(list), row_entries(row_entries), ids(load(0)) {}

    // Of the warp's page `index`. Indices come in order.
    __device__ uint32_t of(uint32_t index) {
        const uint32_t lane = index % 32;
        if (lane == 0) {
            ids = index == 0 ? ids : later;
            later = load(index + 32);
        }
        return __shfl_sync(full_warp, ids, lane);
    }
};

__device__ void start_first(PageIds& ids, const PageCopy& copy, PackedPage (&ring)[S::page_slots], const PageList& list,
                            uint32_t pages) {
    for (int i = 0; i < S::page_slots; ++i) {
        if (list.first + i * list.step < pages) {
            copy.start(ring[i], ids.of(i));
        }
        async_copy_commit();
    }
}

__device__ void attend(const Params& params, const Work& work, const SharedMap& shared, Attention& attention,
                       const PageList& list, PageIds& ids, const PageCopy& copy, PackedPage (&ring)[S::page_slots]) {
    const uint32_t pages = work.pages();
    const uint32_t ahead = S::page_slots * list.step;
    const Pages cache(shared.table, attention.lane);
    const uint64_t queries = wgmma::swizzled_descriptor(shared.queries.rows);
    int visible[Attention::tiles][2];
    for (int tile = 0; tile < Attention::tiles; ++tile) {
        for (int i = 0; i < 2; ++i) {
            visible[tile][i] = work.visible_keys(work.row(params, attention.column(tile, i)));
        }
    }
    // Up to this key all count for every live column; past it some do not.
    const int whole = work.kv_len - work.q_len + 1;
    // The warps of a warpgroup score together: none ends before all have no page.
    const uint32_t end = pages + threadIdx.x / 32 % warpgroup_warps;
    int slot = 0;
    uint32_t index = S::page_slots;
    for (uint32_t page = list.first; page < end; page += list.step, ++index) {
        const bool live = page < pages;
        const int key = page * page_tokens;
        async_copy_wait<S::page_slots - 1>();
        __syncwarp();
        Pages::KeyRows keys = {};
        if (live) {
            keys = cache.expand(cache.keys(ring[slot]));
        }
        typename Attention::Scores scores[1];
        wgmma::fence();
        for (int i = 0; i < head_dim / wgmma::e4m3_k; ++i) {
            wgmma::mma_e4m3(scores[0], keys.product[i], wgmma::advance(queries, i * wgmma::e4m3_k), i > 0);
        }
        wgmma::commit();
        if (!live) {
            wgmma::wait<0>();
            break;
        }
        PackedValues values = cache.values(ring[slot]);
        // All lanes have read the slot.
        __syncwarp();
        if (page + ahead < pages) {
            copy.start(ring[slot], ids.of(index));
        }
        async_copy_commit();
        slot = slot + 1 == S::page_slots ? 0 : slot + 1;
        const bool partly = key + page_tokens > whole;
        if (partly) {
            cache.clear(values, work.kv_len - key);
        }
        const Pages::ValueRows lower = cache.expand(values, 0), upper = cache.expand(values, 1);
        wgmma::wait<0>();
        if (partly) {
            attention.mask(scores[0], [&](int slot, int tile, int i) { return key + slot < visible[tile][i]; });
        }
        if (attention.exceeds_headroom(scores)) {
            attention.rescale_to_reference(scores);
        }
        attention.weigh(scores[0]);
        attention.accumulate_rows(scores[0], [&](int t) {
            return Attention::Rows{lower.tile[t].x, lower.tile[t].y, upper.tile[t].x, upper.tile[t].y};
        });
    }
}

// Where the result belongs.
struct Output {
    const Params& params;
    const Work& work;
    const uint32_t split, splits;
    const GlobalPartials global;

    __device__ Output(const Params& params, const Work& work)
        : params(params), work(work), split(work.split), splits(params.splits),
          global{params.partial_out, params.partial_max, params.partial_sum} {}

    __device__ size_t row(int column) const { return work.unit(params) * S::columns + column; }
    __device__ uint32_t* completed() const { return &params.completed[work.unit(params)]; }

    // Without a merge: the first warp's partial result is the whole.
    template <class Partials>
    __device__ void finish_warp(const Partials& partials) const {
        for (int i = threadIdx.x; i < Map::vectors; i += S::threads) {
            const int column = i / Map::row_vectors, vector = i % Map::row_vectors;
            const float4 out = reinterpret_cast<const float4*>(partials.out[0][column])[vector];
            finish(column, vector, {out, partials.reference[0][column], partials.sum[0][column]});
        }
    }

    // A row that sees nothing is zero, with log-sum-exp -inf, or that of its sink.
    __device__ void finish(int column, int vector, const Partial& partial) const {
        const QueryRow target = work.row(params, column);
        if (!work.is_live(target)) {
            return;
        }
        float sum = partial.sum;
        bool visible = sum != 0 && !isnan(sum);
        float unseen = -INFINITY;
        if (params.sinks) {
            unseen = params.sinks[work.head(params, target)];
            sum += exp2f(fmaf(unseen, static_cast<float>(log2_e), -partial.reference));
            visible = visible && sum < INFINITY;
        }
        const float factor = visible ? reciprocal_approx(sum) * Scales(params).bmm2 : 0.0f;
        const int64_t row = work.head_row(params, target);
        reinterpret_cast<uint32_t*>(params.out + row * head_dim)[vector] =
            pack_scaled(factor, partial.out.x, partial.out.y, partial.out.z, partial.out.w);
        if (params.lse && vector == 0) {
            params.lse[row] = visible ? (partial.reference + log2f(sum)) * ln_2 : unseen;
        }
    }
};

} // namespace bakewell

extern "C" __global__ void __launch_bounds__(bakewell::Schedule::threads, bakewell::Schedule::min_ctas_per_sm)
    nvfp4_context_decode(const __grid_constant__ bakewell::Params params) {
    using namespace bakewell;
    extern __shared__ __align__(1024) char shared_bytes[];
    static_assert(sizeof(SharedMap) == S::dynamic_shared_bytes, "the schedule's budget");
    auto& shared = *reinterpret_cast<SharedMap*>(shared_bytes);

    if (threadIdx.x == 0) {
        shared.merge.init();
    }
    shared.table.fill(threadIdx.x, S::threads);
    const bool clustered = cluster_size() > 1;
    if (clustered) {
        // Pairs with the wait before the merge: no CTA writes into a peer that has not started.
        __syncwarp();
        cluster_arrive_relaxed();
    }
    if constexpr (S::pdl) {
        launch_dependents();
        wait_for_prerequisites();
    }
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const PageList list(params, warp);
    PageIds ids(list, params.max_pages);
    const Work work(params);
    // Its scores are made elsewhere, from queries in shared memory.
    Attention attention(lane, Scales(params).log2, [](int, int) { return make_uint4(0, 0, 0, 0); });
    // Before the pages, behind which it would wait.
    const QueryLoad queries(params, work, attention, warp);
    const PageCopy copy(params, work.kv_head, lane);
    start_first(ids, copy, shared.ring[warp], list, work.pages());
    queries.store(shared.queries, warp, attention.lane);
    __syncthreads();
    attend(params, work, shared, attention, list, ids, copy, shared.ring[warp]);
    const bool one_warp = work.one_warp() && params.splits == 1;
    if (warp == 0 || !one_warp) {
        attention.store(shared.merge.warps, warp);
    }
    if (clustered) {
        cluster_wait();
    }
    const Output output(params, work);
    if (one_warp) {
        __syncthreads();
        output.finish_warp(shared.merge.warps);
    } else {
        SplitMerge<Map, S::threads, Output>(output, shared.merge).run();
    }
}
