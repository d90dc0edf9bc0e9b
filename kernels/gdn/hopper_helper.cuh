// What runs ahead of the state in the scans on warpgroup products: one thread that starts the loads, and the helper
// warpgroup, which makes a chunk's tables of decay factors and its masked, decayed products P = scale (Q K^T) o D, and
// clears what a short chunk does not have.
#pragma once

#include "../device/barrier_ring.cuh"
#include "../device/named_barrier.cuh"
#include "../device/tensor_map.cuh"
#include "gate.cuh"
#include "hopper_tiles.cuh"
#include "schedule.cuh"

#include <cstdint>

namespace bakewell {

// Chunks that the helper may have prepared and the state not yet used.
constexpr int slots = Schedule::slots;

// What the state's warpgroups need to know of a chunk, per token. c: gate prefix in log2 units; rows past the chunk: 0.
struct alignas(16) Tables {
    float decay[chunk_tokens];  // 2^(c_last - c) r_k
    float output[chunk_tokens]; // scale 2^c r_q
    float erase[chunk_tokens];  // -beta 2^c r_k
    float beta[chunk_tokens];
    float total; // 2^c_last
};

// What only the helper reads, of its current chunk.
struct alignas(16) HelperRows {
    float gate[chunk_tokens];
    float query[chunk_tokens]; // scale r_q
    float key[chunk_tokens];   // r_k
};

// The chunks of one segment in the order of a scan. All but the last of a sequence are full.
struct Walk {
    int count;
    int first_chunk;
    int first_token;
    int last_tokens;

    __device__ Walk(const Chunk* chunks, const Segment& segment)
        : count(static_cast<int>(segment.chunks)), first_chunk(static_cast<int>(segment.first_chunk)), first_token(0), last_tokens(0) {
        if (count > 0) {
            first_token = static_cast<int>(chunks[first_chunk].first_token);
            last_tokens = static_cast<int>(chunks[first_chunk + count - 1].tokens);
        }
    }

    __device__ int position(int step) const { return Schedule::backward ? count - 1 - step : step; }
    __device__ int chunk(int step) const { return first_chunk + position(step); }
    __device__ int64_t token(int step) const { return first_token + static_cast<int64_t>(position(step)) * chunk_tokens; }
    __device__ int tokens(int step) const { return position(step) + 1 < count ? chunk_tokens : last_tokens; }
};

// Tiles of one chunk as they arrive. `values`: panels of V, or of dO, one per warpgroup of the state.
template <int value_panels>
struct Tiles {
    HeadTile k;
    Panel q[Schedule::output ? 2 : 0];
    Panel values[value_panels];
    Panel a;
};

template <int stages, int warpgroups>
struct ScanBarriers {
    BarrierRing<stages> tiles;       // loads -> helper and state; back from state and stores
    BarrierRing<slots> prepared;     // helper -> state
    BarrierRing<1> rows[warpgroups]; // state -> stores: rows lie in the place of the chunk's values
};

// What a scan's helper works on. `values`: map of V or dO; `first_panel`: of the CTA in the head.
struct HelperInputs {
    const TensorMap& q;
    const TensorMap& k;
    const TensorMap& a;
    const TensorMap& values;
    const float* rq;
    const float* rk;
    const float* gate;
    const void* beta;
    uint64_t beta_token_stride;
    bool beta_bf16;
    float scale;
    int heads, value_heads;
    int value_head;
    int first_panel;
    bool has_values; // where not, zeros stand for them

    __device__ int head() const { return value_head / (value_heads / heads); }
};

// One thread: the copy engine may make it wait, which nobody else notices.
template <int stages, int value_panels>
__device__ void load_chunks(const HelperInputs& in, const Walk& walk, BarrierRing<stages>& ring,
                            Tiles<value_panels>* tiles) {
    typename BarrierRing<stages>::Producer loads(ring);
    for (int step = 0; step < walk.count; ++step) {
        const int stage = loads.acquire();
        Mbarrier& full = ring.full[stage];
        Tiles<value_panels>& to = tiles[stage];
        const int token = static_cast<int>(walk.token(step));
        full.arrive_expect(sizeof(to) - (in.has_values ? 0 : sizeof(to.values)));
        tensor_load<4>(to.k, in.k, {0, token, 0, in.head()}, full);
        if constexpr (Schedule::output) {
            tensor_load<4>(to.q, in.q, {0, token, 0, in.head()}, full);
        }
        for (int panel = 0; in.has_values && panel < value_panels; ++panel) {
            tensor_load<4>(&to.values[panel], in.values, {0, token, in.first_panel + panel, in.value_head}, full);
        }
        tensor_load<3>(&to.a, in.a, {0, 0, walk.chunk(step) * in.value_heads + in.value_head}, full);
    }
}

template <int stages, int value_panels, uint32_t barrier>
class Helper {
    using ChunkTiles = Tiles<value_panels>;

    const HelperInputs& in;
    const Walk& walk;
    BarrierRing<slots>& results;
    ChunkTiles* tiles;
    Panel* p;
    Tables* tables;
    HelperRows* rows; // one per slot: slower warps still read those of the previous chunk
    typename BarrierRing<stages>::Consumer loaded;
    typename BarrierRing<slots>::Producer prepared;

    // Scalars of one token, held by the first 64 threads. Past a short chunk: those of its last token.
    struct Row {
        float rq, rk, gate, beta, last_gate;
    } row;

    __device__ int thread() const { return threadIdx.x % warpgroup_threads; }

    // Starts the reads of a chunk's scalars. Nothing here depends on them, so that they arrive during the chunk before.
    __device__ void fetch_row(int step) {
        if (thread() >= chunk_tokens || step >= walk.count) {
            return;
        }
        const int64_t first = walk.token(step), last = first + walk.tokens(step) - 1;
        const int64_t token = min(first + thread(), last);
        row.rq = in.rq[token * in.heads + in.head()];
        row.rk = in.rk[token * in.heads + in.head()];
        row.gate = in.gate[token * in.value_heads + in.value_head];
        row.last_gate = in.gate[last * in.value_heads + in.value_head];
        row.beta = load_beta(in.beta, in.beta_bf16, token * in.beta_token_stride + in.value_head);
    }

    __device__ void write_tables(int step, Tables& to, HelperRows& own) {
        const int i = thread();
        if (i >= chunk_tokens) {
            return;
        }
        const bool live = i < walk.tokens(step);
        const float rq = live ? row.rq : 0.0f, rk = live ? row.rk : 0.0f, beta = live ? row.beta : 0.0f;
        const float since_start = decay(row.gate);
        to.decay[i] = decay(row.last_gate - row.gate) * rk;
        to.output[i] = since_start * (in.scale * rq);
        to.erase[i] = -beta * (since_start * rk);
        to.beta[i] = beta;
        if (i == 0) {
            to.total = decay(row.last_gate);
        }
        own.gate[i] = row.gate;
        own.query[i] = in.scale * rq;
        own.key[i] = rk;
    }

    // Rows past a short chunk belong to the next sequence, or lie past the tensor: whatever they hold, even NaN, must
    // not reach the state.
    __device__ void clear_rows(ChunkTiles& of, int tokens) {
        constexpr int units = Panel::row_bytes / 16;
        const auto clear = [&](Panel& panel) {
#pragma unroll 1
            for (int i = tokens * units + thread(); i < chunk_tokens * units; i += warpgroup_threads) {
                reinterpret_cast<uint4*>(panel.bytes)[i] = make_uint4(0, 0, 0, 0);
            }
        };
        for (Panel& panel : of.k) {
            clear(panel);
        }
        for (Panel& panel : of.q) {
            clear(panel);
        }
        for (Panel& panel : of.values) {
            clear(panel);
        }
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    }

    // P of rows i and columns j <= i, zero elsewhere.
    __device__ void write_products(const wgmma::Accumulator64& products, const HelperRows& rows, Panel& to) {
        const FragmentThread at = FragmentThread::here();
        const float gates[2] = {rows.gate[at.row(0)], rows.gate[at.row(1)]};
        const float queries[2] = {rows.query[at.row(0)], rows.query[at.row(1)]};
#pragma unroll
        for (int step = 0; step < token_steps; ++step) {
            wgmma::Fragment m;
#pragma unroll
            for (int pair = 0; pair < 4; ++pair) {
                const int half = pair % 2, index = 8 * step + 2 * pair;
                const int i = at.row(half), j = at.column(2 * step + pair / 2);
                const float2 gate = *reinterpret_cast<const float2*>(&rows.gate[j]);
                const float2 key = *reinterpret_cast<const float2*>(&rows.key[j]);
                const float low = products[index] * queries[half] * key.x * decay(gates[half] - gate.x);
                const float high = products[index + 1] * queries[half] * key.y * decay(gates[half] - gate.y);
                m[pair] = pack_bf16(j <= i ? low : 0.0f, j + 1 <= i ? high : 0.0f);
            }
            stmatrix_x4(at.direct(to, step), m[0], m[1], m[2], m[3]);
        }
    }

    __device__ void prepare(int step) {
        const int slot = prepared.acquire();
        write_tables(step, tables[slot], rows[slot]);
        fetch_row(step + 1);
        ChunkTiles& of = tiles[loaded.wait()];
        if (walk.tokens(step) < chunk_tokens) {
            clear_rows(of, walk.tokens(step));
        }
        named_barrier_sync(barrier, warpgroup_threads);
        if constexpr (Schedule::output) {
            make_products(of, rows[slot], p[slot]);
        }
        // The state's products read P, and a short chunk's cleared rows, through the async proxy.
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        __syncwarp();
        if (thread() % 32 == 0) {
            results.full[slot].arrive();
        }
    }

    __device__ void make_products(const ChunkTiles& of, const HelperRows& rows, Panel& to) {
        wgmma::Accumulator64 products;
        wgmma::fence();
        const uint64_t q[2] = {wgmma::swizzled_descriptor(&of.q[0]), wgmma::swizzled_descriptor(&of.q[1])};
        const uint64_t k[2] = {wgmma::swizzled_descriptor(&of.k[0]), wgmma::swizzled_descriptor(&of.k[1])};
#pragma unroll
        for (int i = 0; i < dim_steps; ++i) {
            const uint32_t offset = i % token_steps * wgmma::bf16_k_bytes;
            wgmma::mma_bf16<wgmma::Major::k>(products, wgmma::advance(q[i / token_steps], offset),
                                             wgmma::advance(k[i / token_steps], offset), i > 0);
        }
        wgmma::commit();
        wgmma::wait<0>();
        wgmma::settle(products);
        write_products(products, rows, to);
    }

  public:
    __device__ Helper(const HelperInputs& in, const Walk& walk, BarrierRing<stages>& loads,
                      BarrierRing<slots>& results, ChunkTiles* tiles, Panel* p, Tables* tables, HelperRows* rows)
        : in(in), walk(walk), results(results), tiles(tiles), p(p), tables(tables), rows(rows), loaded(loads),
          prepared(results) {}

    __device__ void run() {
        fetch_row(0);
        for (int step = 0; step < walk.count; ++step) {
            prepare(step);
        }
    }
};

} // namespace bakewell
