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
    wgmma::Accumulator64 product; // K S, then A Y
    wgmma::Fragment v_new[token_steps];

    __device__ Chain(SharedMap& shared, int warpgroup)
        : shared(shared), work(shared.head.work), walk(work.walk), warpgroup(warpgroup),
          state(work.first_panel + warpgroup > 0 ? values_per_warpgroup : 0), prepared(shared.head.barriers.prepared) {}

    __device__ ChunkTiles& tiles(int step) const { return shared.tiles[step % S::stages]; }
    __device__ const Tables& tables(int step) const { return shared.head.tables[step % slots]; }

    // V of a chunk, transposed.
    __device__ void load_values(wgmma::Fragment (&v)[token_steps], int step) const {
#pragma unroll
        for (int k = 0; k < token_steps; ++k) {
            ldmatrix_x4_transposed(v[k], state.at.transposed(tiles(step).values[warpgroup], k));
        }
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
    __device__ void multiply_keys(int step) {
        state.round();
        prepared.wait();
        wgmma::fence();
        multiply_by_rows(product, state.operand, tiles(step).k);
        wgmma::commit();
    }

    // Starts A Y of a chunk.
    __device__ void multiply_inverse(int step) {
        bracket(v_new, tables(step));
        wgmma::fence();
        multiply_by_rows(product, v_new, tiles(step).a, false);
        wgmma::commit();
    }

    // Starts the state update by Vn.
    __device__ void multiply_values(int step) {
        pack_fragments(v_new, product);
        state.scale_columns(product, tables(step).decay);
        wgmma::Fragment decayed[token_steps];
        pack_fragments(decayed, product);
        wgmma::fence();
        multiply_by_columns(state.s, decayed, tiles(step).k);
        wgmma::commit();
    }
};

} // namespace bakewell
