// What runs ahead of the state in the scans on warpgroup products: one thread that starts the loads, a warp that makes a
// chunk's tables of decay factors, and the helper warpgroup, which makes its masked, decayed products
// P = scale (Q K^T) o D, and clears the keys and queries that a short chunk does not have.
#pragma once

#include "../device/barrier_ring.cuh"
#include "../device/named_barrier.cuh"
#include "../device/tensor_map.cuh"
#include "gate.cuh"
#include "hopper_tiles.cuh"
#include "schedule.cuh"
#include "walk.cuh"

#include <cstdint>

namespace bakewell {

// Chunks that the helper may have prepared and the state not yet used.
constexpr int slots = Schedule::slots;

// Columns of P that are masked and decayed together.
constexpr int block_rows = 16;

// What the state's warpgroups need to know of a chunk, per token. c: gate prefix in log2 units; rows past the chunk: 0.
struct alignas(16) Tables {
    float decay[chunk_tokens];  // 2^(c_last - c) r_k
    float output[chunk_tokens]; // scale 2^c r_q
    float erase[chunk_tokens];  // -beta 2^c r_k
    float beta[chunk_tokens];
    float total; // 2^c_last
};

// What only the helper reads.
struct alignas(16) HelperRows {
    float gate[chunk_tokens];
    float query[chunk_tokens];  // scale r_q
    float key[chunk_tokens];    // r_k
    float column[chunk_tokens]; // r_k 2^(c of the last row of the 16 - c)
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
    BarrierRing<stages> operands;    // k, q, a: loads -> helper, and through it state; back from state
    BarrierRing<stages> values;      // loads -> state; back from stores, or from state where nothing is stored
    BarrierRing<slots> factors;      // tables -> helper, and through it state; back from state
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
    uint32_t heads, value_heads;
    int value_head;
    int first_panel;
    bool has_values; // where not, zeros stand for them

    __device__ int head() const { return static_cast<int>(value_head / (value_heads / heads)); }
};

// One thread: the copy engine may make it wait, which nobody else notices.
template <int stages, int value_panels, int warpgroups>
__device__ void load_chunks(const HelperInputs& in, const Walk& walk, ScanBarriers<stages, warpgroups>& barriers,
                            Tiles<value_panels>* tiles) {
    typename BarrierRing<stages>::Producer operands(barriers.operands), values(barriers.values);
    const int head = in.head();
    for (int step = 0; step < walk.count; ++step) {
        const int stage = operands.acquire();
        Mbarrier& full = barriers.operands.full[stage];
        Tiles<value_panels>& to = tiles[stage];
        const int token = static_cast<int>(walk.token(step));
        full.arrive_expect(sizeof(to) - sizeof(to.values));
        tensor_load<4>(to.k, in.k, {0, token, 0, head}, full);
        if constexpr (Schedule::output) {
            tensor_load<4>(to.q, in.q, {0, token, 0, head}, full);
        }
        tensor_load<3>(&to.a, in.a, {0, 0, walk.chunk(step) * static_cast<int>(in.value_heads) + in.value_head}, full);
        if (in.has_values) {
            values.acquire();
            Mbarrier& there = barriers.values.full[stage];
            there.arrive_expect(sizeof(to.values));
            for (int panel = 0; panel < value_panels; ++panel) {
                tensor_load<4>(&to.values[panel], in.values, {0, token, in.first_panel + panel, in.value_head}, there);
            }
        }
    }
}

// The warp that makes the tables: a lane has the tokens `lane` and `lane` + 32.
class FactorWarp {
    static constexpr int halves = 2, lanes = 32;

    const HelperInputs& in;
    const Walk& walk;
    const int head;
    const int lane = threadIdx.x % lanes;

    // Scalars of a token. Past a short chunk: those of its last token.
    struct Row {
        float rq, rk, gate, beta;
    } rows[halves];

    // Starts the reads of a chunk's scalars, which arrive while a place is waited for.
    __device__ void fetch(int step) {
        const int64_t first = walk.token(step);
        const int last = walk.tokens(step) - 1;
#pragma unroll
        for (int half = 0; half < halves; ++half) {
            const uint64_t token = first + min(lane + half * lanes, last);
            const uint64_t key = token * in.heads + head, value = token * in.value_heads + in.value_head;
            rows[half] = {in.rq[key], in.rk[key], in.gate[value],
                          load_beta(in.beta, in.beta_bf16, token * in.beta_token_stride + in.value_head)};
        }
    }

    __device__ void write(int tokens, Tables& to, HelperRows& pairs) const {
        const float last_gate = __shfl_sync(0xFFFFFFFF, rows[halves - 1].gate, lanes - 1);
#pragma unroll
        for (int half = 0; half < halves; ++half) {
            const int i = lane + half * lanes;
            const Row& row = rows[half];
            const bool live = i < tokens;
            const float query = live ? in.scale * row.rq : 0.0f, key = live ? row.rk : 0.0f;
            const float beta = live ? row.beta : 0.0f, since_start = decay(row.gate);
            to.decay[i] = decay(last_gate - row.gate) * key;
            to.output[i] = since_start * query;
            to.erase[i] = -beta * (since_start * key);
            to.beta[i] = beta;
            if constexpr (Schedule::output) {
                const float block_end = __shfl_sync(0xFFFFFFFF, row.gate, lane | (block_rows - 1));
                pairs.gate[i] = row.gate;
                pairs.query[i] = query;
                pairs.key[i] = key;
                pairs.column[i] = decay(block_end - row.gate) * key;
            }
        }
        if (lane == 0) {
            to.total = decay(last_gate);
        }
    }

  public:
    __device__ FactorWarp(const HelperInputs& in, const Walk& walk) : in(in), walk(walk), head(in.head()) {}

    __device__ void run(BarrierRing<slots>& ring, Tables* tables, HelperRows* pairs) {
        BarrierRing<slots>::Producer places(ring);
        for (int step = 0; step < walk.count; ++step) {
            fetch(step);
            const int slot = places.acquire();
            write(walk.tokens(step), tables[slot], pairs[slot]);
            __syncwarp();
            if (lane == 0) {
                ring.full[slot].arrive();
            }
        }
    }
};

template <int stages, int value_panels, int warpgroups, uint32_t barrier>
class Helper {
    using ChunkTiles = Tiles<value_panels>;

    const Walk& walk;
    BarrierRing<slots>& results;
    ChunkTiles* tiles;
    Panel* p;
    const HelperRows* rows;
    typename BarrierRing<stages>::Consumer loaded;
    BarrierRing<slots>::Consumer factors;
    BarrierRing<slots>::Producer prepared;

    static __device__ int thread() { return threadIdx.x % warpgroup_threads; }

    static __device__ void clear(Panel& panel, int first_row) {
        constexpr int units = Panel::row_bytes / 16;
#pragma unroll 1
        for (int i = first_row * units + thread(); i < chunk_tokens * units; i += warpgroup_threads) {
            reinterpret_cast<uint4*>(panel.bytes)[i] = make_uint4(0, 0, 0, 0);
        }
    }

    // Rows past a short chunk belong to the next sequence, or lie past the tensor: whatever they hold, even NaN, must
    // not reach the state.
    static __device__ void clear_rows(ChunkTiles& of, int tokens) {
        for (Panel& panel : of.k) {
            clear(panel, tokens);
        }
        for (Panel& panel : of.q) {
            clear(panel, tokens);
        }
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        named_barrier_sync(barrier, warpgroup_threads);
    }

    // Starts Q K^T.
    static __device__ void multiply(wgmma::Accumulator64& products, const ChunkTiles& of) {
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
    }

    // A warp's rows of P.
    struct ProductRows {
        const HelperRows& rows;
        FragmentThread at = FragmentThread::anew();
        float gates[2], queries[2];

        explicit __device__ ProductRows(const HelperRows& rows)
            : rows(rows), gates{rows.gate[at.row(0)], rows.gate[at.row(1)]},
              queries{rows.query[at.row(0)], rows.query[at.row(1)]} {}

        // Columns that all come before the rows: decays are products of two, with the last of the columns between them.
        __device__ void before(wgmma::Fragment& m, int step, const wgmma::Accumulator64& products) const {
            const float end = rows.gate[block_rows * step + block_rows - 1];
            const float factors[2] = {queries[0] * decay(gates[0] - end), queries[1] * decay(gates[1] - end)};
#pragma unroll
            for (int pair = 0; pair < 4; ++pair) {
                const int index = 8 * step + 2 * pair;
                const float factor = factors[pair % 2];
                const float2 column = *reinterpret_cast<const float2*>(&rows.column[at.column(2 * step + pair / 2)]);
                m[pair] = pack_bf16(products[index] * factor * column.x, products[index + 1] * factor * column.y);
            }
        }

        // Columns of the rows' own tokens: zero where j > i.
        __device__ void diagonal(wgmma::Fragment& m, int step, const wgmma::Accumulator64& products) const {
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
        }
    };

    // P of the rows i of warp `warp` and columns j <= i; blocks above the diagonal stay zero.
    template <int warp>
    static __device__ void write_products(const wgmma::Accumulator64& products, const HelperRows& rows, Panel& to) {
        const ProductRows own(rows);
#pragma unroll
        for (int first = 0; first <= warp; first += 2) {
            wgmma::Fragment m[2];
#pragma unroll
            for (int step = first; step < first + 2 && step <= warp; ++step) {
                if (step < warp) {
                    own.before(m[step - first], step, products);
                } else {
                    own.diagonal(m[step - first], step, products);
                }
            }
#pragma unroll
            for (int step = first; step < first + 2 && step <= warp; ++step) {
                const wgmma::Fragment& words = m[step - first];
                stmatrix_x4(own.at.direct(to, step), words[0], words[1], words[2], words[3]);
            }
        }
    }

    static __device__ void write_products(const wgmma::Accumulator64& products, const HelperRows& rows, Panel& to) {
        switch (thread() / 32) {
        case 0: return write_products<0>(products, rows, to);
        case 1: return write_products<1>(products, rows, to);
        case 2: return write_products<2>(products, rows, to);
        default: return write_products<3>(products, rows, to);
        }
    }

    __device__ void prepare(int step) {
        ChunkTiles& of = tiles[loaded.wait()];
        if (walk.tokens(step) < chunk_tokens) {
            clear_rows(of, walk.tokens(step));
        }
        wgmma::Accumulator64 products;
        if constexpr (Schedule::output) {
            multiply(products, of);
        }
        factors.wait();
        const int slot = prepared.acquire();
        if constexpr (Schedule::output) {
            wgmma::wait<0>();
            wgmma::settle(products);
            write_products(products, rows[slot], p[slot]);
        }
        // The state's products read P, and a short chunk's cleared rows, through the async proxy.
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        __syncwarp();
        if (thread() % 32 == 0) {
            results.full[slot].arrive();
        }
    }

  public:
    __device__ Helper(const Walk& walk, ScanBarriers<stages, warpgroups>& barriers, ChunkTiles* tiles, Panel* p,
                      const HelperRows* rows)
        : walk(walk), results(barriers.prepared), tiles(tiles), p(p), rows(rows), loaded(barriers.operands),
          factors(barriers.factors), prepared(barriers.prepared) {}

    __device__ void run() {
        if constexpr (Schedule::output) {
            for (int slot = 0; slot < slots; ++slot) {
                clear(p[slot], 0);
            }
            named_barrier_sync(barrier, warpgroup_threads);
        }
        for (int step = 0; step < walk.count; ++step) {
            prepare(step);
        }
    }
};

} // namespace bakewell
