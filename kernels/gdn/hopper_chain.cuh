// The chain of dependent products that takes a state through a chunk, in a forward and in the map of a segment.
//
//   X = V - e^c o (K S)    Vn = A (beta o X)    S+ = e^{c_last} S + K^T (e^{c_last - c} o Vn)
#pragma once

#include "hopper_scan.cuh"

namespace bakewell {

class Chain {
  protected:
    SharedMap& shared;
    const Work& work;
    const Walk& walk;
    int warpgroup;
    StateTile state;
    BarrierRing<slots>::Consumer prepared;
    BarrierRing<S::stages>::Consumer values;
    wgmma::Accumulator64 product; // K S, then A Y
    wgmma::Fragment v_new[token_steps];

    __device__ Chain(SharedMap& shared, int warpgroup)
        : shared(shared), work(shared.head.work), walk(work.walk), warpgroup(warpgroup),
          state(work.first_panel + warpgroup > 0 ? values_per_warpgroup : 0), prepared(shared.head.barriers.prepared),
          values(shared.head.barriers.values) {}

    __device__ ChunkTiles& tiles(Place place) const { return shared.tiles[place.stage]; }
    __device__ const Tables& tables(Place place) const { return shared.head.tables[place.slot]; }

    // V of a chunk; `last`: it is the segment's last, and may be short.
    __device__ void load_values(Place place, bool last) {
        values.wait();
        state.load_values(v_new, tiles(place).values[warpgroup], last ? walk.last_tokens : chunk_tokens);
    }

    // Y = beta o V - beta e^c o (K S), as an operand, in place of V.
    __device__ void bracket(wgmma::Fragment (&v)[token_steps], const Tables& factors) const {
#pragma unroll
        for (int k = 0; k < token_steps; ++k) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int token = state.at.column(2 * k + j / 2), index = 8 * k + 2 * j;
                const float2 beta = *reinterpret_cast<const float2*>(&factors.beta[token]);
                const float2 erase = *reinterpret_cast<const float2*>(&factors.erase[token]);
                v[k][j] = pack_bf16(fmaf(beta.x, low_float(v[k][j]), erase.x * product[index]),
                                    fmaf(beta.y, high_float(v[k][j]), erase.y * product[index + 1]));
            }
        }
    }

    // Starts K S of a chunk, once it is prepared.
    __device__ void multiply_keys(Place place) {
        state.round();
        prepared.wait();
        wgmma::fence();
        multiply_by_rows(product, state.operand, tiles(place).k);
        wgmma::commit();
    }

    // Starts A Y of a chunk.
    __device__ void multiply_inverse(Place place) {
        bracket(v_new, tables(place));
        wgmma::fence();
        multiply_by_rows(product, v_new, tiles(place).a, false);
        wgmma::commit();
    }

    // Starts the state update by Vn, which is rounded meanwhile.
    __device__ void multiply_values(Place place) {
        wgmma::Fragment decayed[token_steps];
        state.pack_scaled(decayed, product, tables(place).decay);
        wgmma::fence();
        multiply_by_columns(state.s, decayed, tiles(place).k);
        wgmma::commit();
        pack_fragments(v_new, product);
    }
};

} // namespace bakewell
