// Shared memory of tail.cu, its barriers, and the warps that load.
#pragma once

#include "../device/async_copy_barrier.cuh"
#include "../device/barrier_ring.cuh"
#include "../device/named_barrier.cuh"
#include "block_row.cuh"
#include "chunk_rows.cuh"
#include "fragments.cuh"
#include "gate.cuh"
#include "gate_gradient.cuh"
#include "schedule.cuh"
#include "tail_item.cuh"
#include "tail_params.cuh"

#include <cstdint>
#include <cuda/ptx>

namespace bakewell {

using S = Schedule;

constexpr int block = 16;
constexpr int token_blocks = chunk_tokens / block;
constexpr int half_columns = head_dim / 2;
constexpr int half_blocks = half_columns / block;

constexpr int consumer_warps = 2 * token_blocks;
constexpr int consumer_threads = consumer_warps * 32;
constexpr int producer_threads = 128;
static_assert(S::threads == consumer_threads + producer_threads, "roles and threads");

// Registers per thread once the roles have parted; the launch gives everybody 168.
constexpr int consumer_registers = 232;
constexpr int producer_registers = 40;
static_assert(consumer_threads * consumer_registers + producer_threads * producer_registers <= S::threads * 168);

enum class NamedBarrier : uint32_t { matrices = 1 };

__device__ void consumers_meet() {
    named_barrier_sync(static_cast<uint32_t>(NamedBarrier::matrices), consumer_threads);
}

using StateTile = SwizzledTile<head_dim, head_bytes>; // [value, key]
using TokenTile = SwizzledTile<chunk_tokens, chunk_tokens * 2>;
using OutputTile = SwizzledTile<block, half_columns * 2>; // what a warp owns of dq or dk

// Of a key head.
struct Rows {
    RowTile q;
    RowTile k;
    float rq[chunk_tokens];
    float rk[chunk_tokens];
};

// Of a value head. Rows past the chunk: zeros, and the gate of the last.
struct Values {
    RowTile grad_o;
    RowTile dvb;
    RowTile v_new;
    float gate[chunk_tokens];
    float beta[chunk_tokens];
};

struct States {
    StateTile h;
    StateTile dh;
};

struct SharedMap {
    static constexpr int slots = 2;
    static constexpr int barrier_bytes = (2 + 2 + 2 * slots) * sizeof(Mbarrier);

    Rows rows;
    States states;
    Values values[slots];
    union {
        struct {
            TokenTile r;
            TokenTile n;
        } matrices;
        OutputTile outputs[consumer_warps];
    };
    GateSums sums[2];
    float row_dots[2][2][chunk_tokens]; // of dq and dk with their rows, each half of the columns
    Mbarrier rows_full;
    Mbarrier rows_empty;
    Mbarrier states_full;
    Mbarrier states_empty;
    BarrierRing<slots> ring;

    // A full barrier counts every producer thread twice: its stores, and its copies when they land.
    __device__ void init() {
        constexpr uint32_t producer = 2 * producer_threads;
        rows_full.init(producer);
        rows_empty.init(consumer_warps);
        states_full.init(producer);
        states_empty.init(consumer_warps);
        for (int i = 0; i < slots; ++i) {
            ring.full[i].init(producer);
            ring.empty[i].init(consumer_warps);
        }
        fence_mbarrier_init();
    }
};

class Producer {
    const Params& params;
    SharedMap& shared;
    int thread;
    PhaseCursor rows = PhaseCursor::passes_first();
    PhaseCursor states = PhaseCursor::passes_first();
    BarrierRing<SharedMap::slots>::Producer ring;

  public:
    __device__ Producer(const Params& params, SharedMap& shared, int thread)
        : params(params), shared(shared), thread(thread), ring(shared.ring) {}

    __device__ void run() {
        for_each_head(params, [&](const Item& item, uint64_t value_head, bool first) {
            // As the consumers do: addresses are computed again rather than kept.
            asm volatile("" : "+r"(thread));
            copy_values(item, value_head);
            copy_states(item, value_head);
            // Rows are the last that the item before gives back, and not the first that this one needs.
            if (first) {
                copy_key_rows(item);
            }
        });
    }

  private:
    __device__ void commit(Mbarrier& full) const {
        async_copy_arrive(full);
        full.arrive();
    }

    __device__ void copy_values(const Item& item, uint64_t value_head) {
        const int slot_index = ring.acquire();
        auto& slot = shared.values[slot_index];
        const uint64_t token = item.token(0);
        const uint64_t dense = static_cast<uint64_t>(params.value_heads) * head_dim;
        copy_rows<producer_threads>(
            slot.grad_o,
            row_of(params.grad_o, token, params.grad_o_token_stride, value_head, params.grad_o_head_stride),
            params.grad_o_token_stride * 2, item.tokens(), thread);
        copy_rows<producer_threads>(slot.dvb, row_of(params.dv, token, dense, value_head, head_dim), dense * 2,
                                    item.tokens(), thread);
        copy_rows<producer_threads>(slot.v_new, row_of(params.v_new, token, dense, value_head, head_dim), dense * 2,
                                    item.tokens(), thread);
        if (const int row = thread; row < chunk_tokens) {
            const bool live = row < item.tokens();
            const uint64_t at = token + (live ? row : item.tokens() - 1);
            slot.gate[row] = params.gate[at * params.value_heads + value_head];
            slot.beta[row] =
                live ? load_beta(params.beta, params.beta_bf16, at * params.beta_token_stride + value_head) : 0.0f;
        }
        commit(shared.ring.full[slot_index]);
    }

    __device__ void copy_states(const Item& item, uint64_t value_head) {
        states.wait(shared.states_empty);
        const uint64_t offset = (item.chunk_index * params.value_heads + value_head) * sizeof(StateTile);
        copy_rows<producer_threads, head_dim>(shared.states.h, static_cast<const char*>(params.h) + offset, head_bytes,
                                              head_dim, thread);
        copy_rows<producer_threads, head_dim>(shared.states.dh, static_cast<const char*>(params.dh) + offset,
                                              head_bytes, head_dim, thread);
        commit(shared.states_full);
    }

    __device__ void copy_key_rows(const Item& item) {
        rows.wait(shared.rows_empty);
        const uint64_t token = item.token(0);
        copy_rows<producer_threads>(shared.rows.q,
                                    row_of(params.q, token, params.q_token_stride, item.head, params.q_head_stride),
                                    params.q_token_stride * 2, item.tokens(), thread);
        copy_rows<producer_threads>(shared.rows.k,
                                    row_of(params.k, token, params.k_token_stride, item.head, params.k_head_stride),
                                    params.k_token_stride * 2, item.tokens(), thread);
        if (const int row = thread; row < chunk_tokens) {
            const bool live = row < item.tokens();
            const uint64_t at = (token + (live ? row : 0)) * params.heads + item.head;
            shared.rows.rq[row] = live ? params.rq[at] : 0.0f;
            shared.rows.rk[row] = live ? params.rk[at] : 0.0f;
        }
        commit(shared.rows_full);
    }
};

} // namespace bakewell
