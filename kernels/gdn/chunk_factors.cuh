// What the tokens of a chunk are multiplied with, and their masked, decayed products P = lower(scale (Q K^T) o D).
#pragma once

#include "chunk_walk.cuh"
#include "gate.cuh"
#include "panel.cuh"

#include <cstdint>

namespace bakewell {

// Factors of rows of X, Vn, O and of their gradients. c: gate sums in log2 units; rows past the chunk: 0.
struct alignas(16) Factors {
    float decay[chunk_tokens];  // 2^(c_last - c) r_k
    float output[chunk_tokens]; // scale 2^c r_q
    float erase[chunk_tokens];  // -beta 2^c r_k
    float beta[chunk_tokens];
    float total; // 2^c_last
};

// Factors of the two of a pair.
struct alignas(16) PairFactors {
    float gate[chunk_tokens];
    float query[chunk_tokens]; // scale r_q
    float key[chunk_tokens];   // r_k
};

__device__ inline float2 factors_of(const float (&factors)[chunk_tokens], int token) {
    return *reinterpret_cast<const float2*>(&factors[token]);
}

// Scalars of a token. Past a short chunk: those of its last token.
struct TokenScalars {
    float rq, rk, gate, last_gate, beta;

    template <class Params>
    __device__ void fetch(const Params& params, const Work& work, int step, int i) {
        const int64_t first = work.walk.token(step), last = first + work.walk.tokens(step) - 1;
        const int64_t token = min(first + i, last);
        rq = params.rq[token * params.heads + work.head];
        rk = params.rk[token * params.heads + work.head];
        gate = params.gate[token * params.value_heads + work.value_head];
        last_gate = params.gate[last * params.value_heads + work.value_head];
        beta = load_beta(params.beta, params.beta_bf16 != 0, token * params.beta_token_stride + work.value_head);
    }

    // The rows of token i, which exists or does not.
    __device__ void write(Factors& factors, PairFactors& pairs, float scale, int i, bool exists) const {
        const float query = exists ? scale * rq : 0.0f, key = exists ? rk : 0.0f, strength = exists ? beta : 0.0f;
        const float since_start = decay(gate);
        factors.decay[i] = decay(last_gate - gate) * key;
        factors.output[i] = since_start * query;
        factors.erase[i] = -strength * (since_start * key);
        factors.beta[i] = strength;
        if (i == 0) {
            factors.total = decay(last_gate);
        }
        pairs.gate[i] = gate;
        pairs.query[i] = query;
        pairs.key[i] = key;
    }
};

// Of 16 rows of a square of a chunk.
constexpr int products_per_thread = chunk_tokens / 2;

// P of the 16 rows from `first_row` on and columns j <= i, zero elsewhere, from the products of queries and keys.
__device__ inline void write_weights(const float (&products)[products_per_thread], const PairFactors& factors,
                                     int first_row, Panel& to) {
    const FragmentLane at = FragmentLane::here();
    const int rows[2] = {first_row + at.row(0), first_row + at.row(1)};
    const float gates[2] = {factors.gate[rows[0]], factors.gate[rows[1]]};
    const float queries[2] = {factors.query[rows[0]], factors.query[rows[1]]};
#pragma unroll
    for (int step = 0; step < products_per_thread / 8; ++step) {
        uint32_t words[4];
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
            const int half = pair % 2, index = 8 * step + 2 * pair;
            const int i = rows[half], j = at.column(2 * step + pair / 2);
            const float2 gate = factors_of(factors.gate, j), key = factors_of(factors.key, j);
            const float low = products[index] * queries[half] * key.x * decay(gates[half] - gate.x);
            const float high = products[index + 1] * queries[half] * key.y * decay(gates[half] - gate.y);
            words[pair] = pack_bf16(j <= i ? low : 0.0f, j + 1 <= i ? high : 0.0f);
        }
        stmatrix_x4(at.direct(to, first_row, 2 * step), words[0], words[1], words[2], words[3]);
    }
}

} // namespace bakewell
