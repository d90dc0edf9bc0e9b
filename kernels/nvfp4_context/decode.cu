// Attention of a few query rows over paged NVFP4 keys: every warp streams pages of its own through registers.
//
//   out = E4M3(bmm2 * softmax(bmm1 * Q K^T, causal bottom-right) V)
//
// The query tokens of a request times the heads of a group are the columns of one product of 16 keys, the tokens of a
// page. Codes become E4M3 by a table of the scales' products, and those become f16, which holds them exactly.
//
//   warp w   | load pages 0 1 | expand K0, scores 0, load K2 | weights 0 | expand V0, output 0, load V2 | ... | store partial |
//   CTA                                                                                                           | merge |
//
// Split s of n has, of n x warps equal runs of pages, those of its warps. No barrier ties the warps together.

#include "../device/block_attention.cuh"
#include "../device/cluster.cuh"
#include "../device/pdl.cuh"
#include "cache_layout.cuh"
#include "decode_params.cuh"
#include "scale_table.cuh"
#include "scales.cuh"
#include "schedule.cuh"

namespace bakewell {

using S = Schedule;
using Attention = BlockAttention<Element::f16, S::columns, head_dim, Vectors::run>;
using Map = MergeMap<S::warps, S::columns, head_dim>;

static_assert(S::threads == S::warps * 32, "every warp computes");
static_assert(block_keys == page_tokens, "a block is a page");

struct SharedMap {
    static constexpr int barrier_bytes = Map::barrier_bytes;

    alignas(16) Map merge;
    alignas(16) ScaleTable table;
};

// A query row: token of the request, head of the group. The masks change nothing: they show that products are small.
struct QueryRow {
    int token, head;

    __device__ QueryRow(int column, uint32_t heads_per_kv)
        : token(column / heads_per_kv & (S::columns - 1)), head(column - token * (heads_per_kv & (2 * S::columns - 1))) {}
};

// Request, KV head and split of a CTA, and the lengths of the request: no keys where no query asks for them.
struct Work {
    uint32_t request, split, kv_head;
    int q_start, q_len, kv_len;

    explicit __device__ Work(const Params& params)
        : request(blockIdx.x), split(blockIdx.y), kv_head(blockIdx.z), q_start(params.cu_seqlens_q[request]),
          q_len(params.cu_seqlens_q[request + 1] - q_start), kv_len(q_len > 0 ? params.seq_lens_kv[request] : 0) {}

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

    __device__ HeadPages keys(const Params& params) const {
        return {params.k + kv_head * params.k_head_stride, params.k_scale + kv_head * params.k_scale_head_stride,
                params.k_page_stride, params.k_token_stride, params.k_scale_page_stride};
    }
    __device__ HeadPages values(const Params& params) const {
        return {params.v + kv_head * params.v_head_stride, params.v_scale + kv_head * params.v_scale_head_stride,
                params.v_page_stride, params.v_token_stride, params.v_scale_page_stride};
    }
};

// The queries of a CTA's columns in f16.
__device__ Attention attention_of(const Params& params, const Work& work, int lane) {
    return Attention(lane, Scales(params).log2, [&](int column, int vector) {
        const QueryRow row = work.row(params, column);
        // A column past the last token repeats the batch's first: an address that exists, and nobody reads its result.
        const int64_t token = work.is_live(row) ? work.token(row) : 0;
        const uint8_t* start = params.q + token * params.q_token_stride + work.head(params, row) * params.q_head_stride;
        const uint2 bytes = reinterpret_cast<const uint2*>(start)[vector];
        const uint2 first = e4m3_to_f16(bytes.x), second = e4m3_to_f16(bytes.y);
        return make_uint4(first.x, first.y, second.x, second.y);
    });
}

// The pages of one warp, in order.
class PageIds {
    const int32_t* entries;
    int count, lane;
    uint32_t ids, following; // of 32 pages, one per lane

    __device__ uint32_t fetch(int first) const { return entries[min(first + lane, count - 1)]; }

  public:
    __device__ PageIds(const int32_t* entries, int count, int lane)
        : entries(entries), count(count), lane(lane), ids(fetch(0)), following(fetch(32)) {}

    // Asked for in order.
    __device__ uint32_t next(int i) {
        if (i > 0 && i % 32 == 0) {
            ids = following;
            following = fetch(i + 32);
        }
        return __shfl_sync(full_warp, ids, i % 32);
    }
};

// What a lane needs of a page: of K the rows g and g + 8, dims 32q to 32q + 31, of V slots 2q, 2q + 1, 2q + 8, 2q + 9,
// dims 16g to 16g + 15. Two scale bytes in each half-word.
struct PackedKeys {
    uint4 codes[2];
    uint16_t scales[2];
};
struct PackedValues {
    uint2 codes[4];
    uint16_t scales[2];
};

// Reads and expands pages.
struct Pages {
    const ScaleTable& table;
    HeadPages k, v;
    FragmentLane lane;

    // The cache is read once, so its lines are the first to leave.
    template <class T>
    static __device__ T stream(const uint8_t* address) {
        return __ldcs(reinterpret_cast<const T*>(address));
    }

    __device__ PackedKeys load_keys(uint32_t page) const {
        PackedKeys packed;
        for (int half = 0; half < 2; ++half) {
            const int token = lane.group + 8 * half;
            packed.codes[half] = stream<uint4>(k.row(page, token) + 16 * lane.pair);
            packed.scales[half] = stream<uint16_t>(k.page_scales(page) + scale_index<Side::K>(token, 2 * lane.pair));
        }
        return packed;
    }

    __device__ PackedValues load_values(uint32_t page) const {
        PackedValues packed;
        for (int half = 0; half < 2; ++half) {
            const int token = 2 * lane.pair + 8 * half;
            packed.codes[2 * half] = stream<uint2>(v.row(page, token) + 8 * lane.group);
            packed.codes[2 * half + 1] = stream<uint2>(v.row(page, token + 1) + 8 * lane.group);
            packed.scales[half] = stream<uint16_t>(v.page_scales(page) + scale_index<Side::V>(token, lane.group));
        }
        return packed;
    }

    // Rows past the cache become zeros: a weight of zero does not hide a NaN.
    __device__ void clear(PackedValues& packed, int live_tokens) const {
        for (int half = 0; half < 2; ++half) {
            const int live = live_tokens - (2 * lane.pair + 8 * half);
            packed.scales[half] &= live >= 2 ? 0xFFFF : live == 1 ? 0x00FF : 0;
        }
    }

    __device__ Attention::Keys expand(const PackedKeys& packed) const {
        Attention::Keys keys;
        for (int half = 0; half < 2; ++half) {
            for (int part = 0; part < 2; ++part) {
                const Products products = table.of(packed.scales[half] >> (8 * part) & 0xFF);
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
        const uint32_t scales = packed.scales[half];
        const uint4 even = table.of(scales & 0xFF).look_up(packed.codes[2 * half]);
        const uint4 odd = table.of(scales >> 8).look_up(packed.codes[2 * half + 1]);
        constexpr uint32_t uint4::* words[4] = {&uint4::x, &uint4::y, &uint4::z, &uint4::w};
        ValueRows rows;
        for (int i = 0; i < 4; ++i) {
            rows.tile[2 * i] = e4m3_to_f16(permute(even.*words[i], odd.*words[i], 0x5140));
            rows.tile[2 * i + 1] = e4m3_to_f16(permute(even.*words[i], odd.*words[i], 0x7362));
        }
        return rows;
    }
};

__device__ void attend(const Params& params, const Work& work, const ScaleTable& table, Attention& attention, int warp) {
    // Runs of pages, one for every warp of every split; the last ones may be short or empty.
    const uint32_t pages = (work.kv_len + page_tokens - 1u) / page_tokens;
    const uint32_t warps = min(params.splits, max_splits) * S::warps;
    const uint32_t run = (pages + warps - 1) / warps;
    const uint64_t begin = static_cast<uint64_t>(work.split * S::warps + warp) * run;
    const int first = static_cast<int>(min(begin, static_cast<uint64_t>(pages)));
    const int count = min(run, pages - first);
    if (count == 0) {
        return;
    }
    const FragmentLane lane = attention.lane;
    const Pages cache{table, work.keys(params), work.values(params), lane};
    PageIds ids(params.page_table + work.request * params.page_table_stride + first, count, threadIdx.x % 32);
    PackedKeys keys[S::pages_ahead];
    PackedValues values[S::pages_ahead];
    for (int i = 0; i < S::pages_ahead; ++i) {
        if (i < count) {
            const uint32_t page = ids.next(i);
            keys[i] = cache.load_keys(page);
            values[i] = cache.load_values(page);
        }
    }
    int visible[Attention::tiles][2];
    for (int tile = 0; tile < Attention::tiles; ++tile) {
        for (int i = 0; i < 2; ++i) {
            visible[tile][i] = work.visible_keys(work.row(params, attention.column(tile, i))) - first * page_tokens;
        }
    }
    // Before this page every key counts for every live column; past it some do not.
    const int whole = (work.kv_len - work.q_len + 1) / page_tokens - first;
    for (int base = 0; base < count; base += S::pages_ahead) {
        for (int i = 0; i < S::pages_ahead; ++i) {
            const int page = base + i, later = page + S::pages_ahead;
            if (page >= count) {
                break;
            }
            const uint32_t later_id = later < count ? ids.next(later) : 0;
            typename Attention::Scores scores[1];
            attention.score(cache.expand(keys[i]), scores[0]);
            if (later < count) {
                keys[i] = cache.load_keys(later_id);
            }
            if (page >= whole) {
                attention.mask(scores[0], [&](int slot, int tile, int i) {
                    return page * page_tokens + slot < visible[tile][i];
                });
                cache.clear(values[i], work.kv_len - (first + page) * page_tokens);
            }
            if (attention.exceeds_headroom(scores)) {
                attention.rescale_to_reference(scores);
            }
            attention.weigh(scores[0]);
            const Pages::ValueRows lower = cache.expand(values[i], 0), upper = cache.expand(values[i], 1);
            attention.accumulate_rows(scores[0], [&](int t) {
                return Attention::Rows{lower.tile[t].x, lower.tile[t].y, upper.tile[t].x, upper.tile[t].y};
            });
            if (later < count) {
                values[i] = cache.load_values(later_id);
            }
        }
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

    // A row that sees nothing is zero, with log-sum-exp -inf, or that of its sink.
    __device__ void finish(int column, int vector, const Partial& partial) const {
        const QueryRow target = work.row(params, column);
        if (!work.is_live(target)) {
            return;
        }
        float sum = partial.sum;
        bool visible = sum != 0 && !isnan(sum);
        const auto log_sum = [&] { return (partial.reference + log2f(sum)) * ln_2; };
        float lse = visible ? log_sum() : -INFINITY;
        if (params.sinks) {
            const float sink = params.sinks[work.head(params, target)];
            sum += exp2f(fmaf(sink, static_cast<float>(log2_e), -partial.reference));
            visible = visible && sum < INFINITY;
            lse = visible ? log_sum() : sink;
        }
        const float factor = visible ? reciprocal_approx(sum) * Scales(params).bmm2 : 0.0f;
        const int64_t row = work.head_row(params, target);
        reinterpret_cast<uint32_t*>(params.out + row * head_dim)[vector] =
            pack_scaled(factor, partial.out.x, partial.out.y, partial.out.z, partial.out.w);
        if (params.lse && vector == 0) {
            params.lse[row] = lse;
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
    __syncwarp();
    // Pairs with the wait before the merge: no CTA writes into a peer that has not started.
    cluster_arrive_relaxed();
    if constexpr (S::pdl) {
        launch_dependents();
        wait_for_prerequisites();
    }
    __syncthreads();
    const Work work(params);
    Attention attention = attention_of(params, work, threadIdx.x % 32);
    const int warp = threadIdx.x / 32;
    attend(params, work, shared.table, attention, warp);
    attention.store(shared.merge.warps, warp);
    cluster_wait();
    const Output output(params, work);
    SplitMerge<Map, S::threads, Output>(output, shared.merge).run();
}
