// The scans on tensor memory: what goes on beside the chain. Factors and P of the next chunk, loads and stores.
#pragma once

#include "../device/named_barrier.cuh"
#include "../device/tensor_store.cuh"
#include "tcgen05_memory.cuh"

namespace bakewell {

// ---------------------------------------------------------------- row warps

struct PreparedChunk {
    int stage; // of its tiles
    int slot;  // of its factors
};

// What the row warps make of each chunk ahead of the state.
template <class Params>
class ChunkPreparer {
    const Context<Params>& c;
    TokenScalars scalars; // of the next chunk, for the first threads
    BarrierRing<S::stages>::Consumer tiles;
    BarrierRing<2>::Producer factors;
    PhaseCursor scores = PhaseCursor::waits_first();

    static __device__ int thread() { return thread_index() % warpgroup_threads; }

    // Starts the reads of a chunk's scalars, which arrive during the chunk before.
    __device__ void fetch(int step) {
        if (step < c.count() && thread() < chunk_tokens) {
            scalars.fetch(c.params, c.work, step, thread());
        }
    }

    // Rows past a short chunk belong to the next sequence, or lie past the tensor: whatever they hold, even NaN, must
    // not reach the state.
    __device__ void clear(Tiles& of, int tokens) const {
        for (HeadTile* tile : {&of.k, &of.q, &of.values}) {
            for (Panel& panel : *tile) {
#pragma unroll 1
                for (int i = tokens * Panel::units + thread(); i < chunk_tokens * Panel::units;
                     i += warpgroup_threads) {
                    reinterpret_cast<uint4*>(panel.bytes)[i] = make_uint4(0, 0, 0, 0);
                }
            }
        }
    }

  public:
    explicit __device__ ChunkPreparer(const Context<Params>& c)
        : c(c), tiles(c.barriers().tiles), factors(c.barriers().factors) {
        fetch(0);
    }

    // Waits for the tiles of the next chunk, and makes its factors.
    __device__ PreparedChunk prepare(int step) {
        const int slot = factors.acquire();
        const int tokens = c.work.walk.tokens(step);
        if (thread() < chunk_tokens) {
            scalars.write(c.shared.head.factors[slot], c.shared.head.pairs[slot], c.params.scale, thread(),
                          thread() < tokens);
        }
        fetch(step + 1);
        const int stage = tiles.wait();
        if (tokens < chunk_tokens) {
            clear(c.shared.tiles[stage], tokens);
        }
        hand_over(c.barriers().factors.full[slot]);
        named_barrier_sync(static_cast<uint32_t>(NamedBarrier::RowWarps), warpgroup_threads);
        return {stage, slot};
    }

    // The warp no longer reads the factors of a chunk.
    __device__ void release(const PreparedChunk& chunk) const {
        __syncwarp();
        if (thread() % 32 == 0) {
            c.barriers().factors.empty[chunk.slot].arrive();
        }
    }

    // P of a chunk. The caller knows that products no longer read the P before.
    __device__ void weigh(const PreparedChunk& chunk) {
        wait_for(scores, c.barriers().scores);
        float products[products_per_thread];
        tmem::load_fragment(products, c.own(TmemMap::scores));
        tmem::wait_load(products);
        write_weights(products, c.shared.head.pairs[chunk.slot], thread() / 32 * 16, c.shared.p);
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        signal(c.barriers().weights);
    }
};

// ---------------------------------------------------------------- load and store

// One thread. `queries`: whether Q is wanted.
template <class Params>
__device__ void load_tiles(const Context<Params>& c, const TensorMap& values, bool queries) {
    BarrierRing<S::stages>::Producer tiles(c.barriers().tiles), places(c.barriers().rows);
    const uint32_t bytes = sizeof(Tiles) - (queries ? 0 : sizeof(HeadTile));
    for (int step = 0; step < c.count(); ++step) {
        const int stage = tiles.acquire();
        places.acquire();
        Mbarrier& full = c.barriers().tiles.full[stage];
        Tiles& to = c.shared.tiles[stage];
        const int token = static_cast<int>(c.work.walk.token(step));
        full.arrive_expect(bytes);
        tensor_load<4>(to.k, c.params.k_map, {0, token, 0, c.work.head}, full);
#pragma unroll
        for (int panel = 0; panel < 2; ++panel) {
            tensor_load<4>(&to.values[panel], values, {0, token, panel, c.work.value_head}, full);
        }
        const int matrix = c.work.walk.chunk(step) * static_cast<int>(c.params.value_heads) + c.work.value_head;
        tensor_load<3>(&to.a, c.params.a_map, {0, 0, matrix}, full);
        if (queries) {
            tensor_load<4>(to.q, c.params.q_map, {0, token, 0, c.work.head}, full);
        }
    }
}

// Sends the rows of a chunk to a [tokens, value_heads, 128] tensor: by the copy engine where the chunk is whole. What
// follows a short chunk belongs to others. A warp.
template <class Params>
__device__ void send_rows(const Context<Params>& c, int step, HeadTile& from, const TensorMap& map, void* to) {
    const int64_t token = c.work.walk.token(step);
    const int tokens = c.work.walk.tokens(step), lane = thread_index() % 32;
    if (tokens == chunk_tokens) {
        if (lane == 0) {
            for (int panel = 0; panel < 2; ++panel) {
                tensor_store<4>(map, {0, static_cast<int>(token), panel, c.work.value_head}, &from[panel]);
            }
        }
        return;
    }
    constexpr int row_units = 2 * Panel::units;
    uint4* rows = static_cast<uint4*>(to) + (token * c.params.value_heads + c.work.value_head) * row_units;
    for (int i = lane; i < tokens * row_units; i += 32) {
        const int row = i / row_units, unit = i % row_units;
        rows[static_cast<int64_t>(row) * c.params.value_heads * row_units + unit] =
            *reinterpret_cast<const uint4*>(from[unit / Panel::units].at(row, unit % Panel::units));
    }
}

// A warp: send(step, tiles) sends what lies in the places of a chunk.
template <class Params, class Send>
__device__ void store_rows(const Context<Params>& c, Send send) {
    BarrierRing<S::stages>::Consumer rows(c.barriers().rows);
    for (int step = 0; step < c.count(); ++step) {
        const int stage = rows.wait();
        send(step, c.shared.tiles[stage]);
        if (thread_index() % 32 == 0) {
            commit_stores();
            wait_stores_read<0>();
        }
        hand_over(c.barriers().rows.empty[stage]);
    }
}

// One thread: the states of the chunks, to a tensor of [128 values, 128 keys] matrices.
template <class Params>
__device__ void store_states(const Context<Params>& c, const TensorMap& map) {
    BarrierRing<1>::Consumer ring(c.barriers().snapshot);
    for (int step = 0; step < c.count(); ++step) {
        ring.wait();
        const int matrix = c.work.walk.chunk(step) * static_cast<int>(c.params.value_heads) + c.work.value_head;
        for (int i = 0; i < snapshots; ++i) {
            tensor_store<4>(map, {0, i * Snapshot::rows, 0, matrix}, &c.shared.snapshot[i]);
        }
        commit_stores();
        wait_stores_read<0>();
        c.barriers().snapshot.empty[0].arrive();
    }
}

} // namespace bakewell
