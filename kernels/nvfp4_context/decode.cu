// Attention of a few query rows over paged NVFP4 keys: every warp streams pages of its own.
//
//   out = E4M3(bmm2 * softmax(bmm1 * Q K^T, causal bottom-right) V)
//
// The query tokens of a request times the heads of a group are the columns of one product of 16 keys, the tokens of a
// page. Codes become E4M3 by a table of the scales' products, and those become f16, which holds them exactly.
//
//   warp w   | lengths, ids | queries | pages 0 1 | scores 0 | page 2 | weights, output 0 | scores 1 | ... | store partial |
//   CTA                                                                                                       | merge |
//
// Warp w of split s has page s x warps + w and every (splits x warps)th after it, in a ring of its own in shared memory.
// No barrier ties the warps together.

#include "../device/block_attention.cuh"
#include "../device/cluster.cuh"
#include "../device/pdl.cuh"
#include "decode_params.cuh"
#include "page_ring.cuh"
#include "scale_table.cuh"
#include "scales.cuh"
#include "schedule.cuh"

namespace bakewell {

using S = Schedule;
using Attention = BlockAttention<Element::f16, S::columns, head_dim, Vectors::run>;
using Map = MergeMap<S::warps, S::columns, head_dim>;

static_assert(S::threads == S::warps * 32, "every warp computes");
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

// The queries of a CTA's columns in f16, as the lanes of a product read them.
struct Queries {
    static constexpr int count = Attention::tiles * Attention::key_vectors;
    uint4 fragment[Attention::tiles][Attention::key_vectors][32];

    // Again for each page: held in registers they would leave too few.
    __device__ void read(Attention& attention, int lane) const {
        for (int tile = 0; tile < Attention::tiles; ++tile) {
            for (int j = 0; j < Attention::key_vectors; ++j) {
                attention.query[tile][j] = fragment[tile][j][lane];
            }
        }
    }
};

// A warp's share of them, on its way from global memory.
class QueryLoad {
    static constexpr int share = (Queries::count + S::warps - 1) / S::warps;
    uint2 bytes[share];

    template <class Action>
    static __device__ void each(int warp, Action action) {
        for (int i = 0; i < share; ++i) {
            const int fragment = warp + i * S::warps;
            if (fragment < Queries::count) {
                action(i, fragment / Attention::key_vectors, fragment % Attention::key_vectors);
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

    __device__ void store(Queries& queries, int warp, int lane) const {
        each(warp, [&](int i, int tile, int j) {
            const uint2 first = e4m3_to_f16(bytes[i].x), second = e4m3_to_f16(bytes[i].y);
            queries.fragment[tile][j][lane] = make_uint4(first.x, first.y, second.x, second.y);
        });
    }
};

struct SharedMap {
    static constexpr int barrier_bytes = Map::barrier_bytes;

    PackedPage ring[S::warps][S::page_slots];
    Queries queries;
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

    __device__ uint32_t id(uint32_t page) const { return entries[page]; }
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

    __device__ Attention::Keys expand(const PackedKeys& packed) const {
        Attention::Keys keys;
        for (int half = 0; half < 2; ++half) {
            for (int part = 0; part < 2; ++part) {
                const Products products = table.of(packed.scales[half][part]);
                const uint4& codes = packed.codes[half];
                const uint4 bytes =
                    products.look_up(part == 0 ? make_uint2(codes.x, codes.y) : make_uint2(codes.z, codes.w));
                const uint2 f16[4] = {e4m3_to_f16(bytes.x), e4m3_to_f16(bytes.y), e4m3_to_f16(bytes.z),
                                      e4m3_to_f16(bytes.w)};
                keys.row[half][2 * part] = make_uint4(f16[0].x, f16[0].y, f16[1].x, f16[1].y);
                keys.row[half][2 * part + 1] = make_uint4(f16[2].x, f16[2].y, f16[3].x, f16[3].y);
            }
        }
        return keys;
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

// Pages of a warp that are asked for before their turn.
struct FirstPages {
    uint32_t ids[S::page_slots + 1]; // one more than has a slot

    // Before the length is known, which would cost another latency.
    __device__ FirstPages(const PageList& list, uint32_t row_entries) {
        for (int i = 0; i <= S::page_slots; ++i) {
            const uint32_t page = list.first + i * list.step;
            ids[i] = page < row_entries ? list.id(page) : 0;
        }
    }

    __device__ void start(const PageCopy& copy, PackedPage (&ring)[S::page_slots], const PageList& list,
                          uint32_t pages) const {
        for (int i = 0; i < S::page_slots; ++i) {
            if (list.first + i * list.step < pages) {
                copy.start(ring[i], ids[i]);
            }
            async_copy_commit();
        }
    }
};

__device__ void attend(const Params& params, const Work& work, const SharedMap& shared, Attention& attention,
                       const PageList& list, const PageCopy& copy, PackedPage (&ring)[S::page_slots], uint32_t next_id) {
    const int lane = threadIdx.x % 32;
    const uint32_t pages = work.pages();
    const uint32_t ahead = S::page_slots * list.step;
    const Pages cache(shared.table, attention.lane);
    int visible[Attention::tiles][2];
    for (int tile = 0; tile < Attention::tiles; ++tile) {
        for (int i = 0; i < 2; ++i) {
            visible[tile][i] = work.visible_keys(work.row(params, attention.column(tile, i)));
        }
    }
    // Up to this key all count for every live column; past it some do not.
    const int whole = work.kv_len - work.q_len + 1;
    int slot = 0;
    for (uint32_t page = list.first; page < pages; page += list.step) {
        const int key = page * page_tokens;
        async_copy_wait<S::page_slots - 1>();
        __syncwarp();
        typename Attention::Scores scores[1];
        shared.queries.read(attention, lane);
        attention.score(cache.expand(cache.keys(ring[slot])), scores[0]);
        PackedValues values = cache.values(ring[slot]);
        // All lanes have read the slot.
        __syncwarp();
        if (page + ahead < pages) {
            copy.start(ring[slot], next_id);
            next_id = list.id(min(page + ahead + list.step, pages - 1));
        }
        async_copy_commit();
        slot = slot + 1 == S::page_slots ? 0 : slot + 1;
        if (key + page_tokens > whole) {
            attention.mask(scores[0], [&](int slot, int tile, int i) { return key + slot < visible[tile][i]; });
            cache.clear(values, work.kv_len - key);
        }
        if (attention.exceeds_headroom(scores)) {
            attention.rescale_to_reference(scores);
        }
        attention.weigh(scores[0]);
        const Pages::ValueRows lower = cache.expand(values, 0), upper = cache.expand(values, 1);
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
    extern __shared__ __align__(128) char shared_bytes[];
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
    const FirstPages first(list, params.max_pages);
    const Work work(params);
    // Its queries are read for each page.
    Attention attention(lane, Scales(params).log2, [](int, int) { return make_uint4(0, 0, 0, 0); });
    // Before the pages, behind which it would wait.
    const QueryLoad queries(params, work, attention, warp);
    const PageCopy copy(params, work.kv_head, lane);
    first.start(copy, shared.ring[warp], list, work.pages());
    queries.store(shared.queries, warp, lane);
    __syncthreads();
    attend(params, work, shared, attention, list, copy, shared.ring[warp], first.ids[S::page_slots]);
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
