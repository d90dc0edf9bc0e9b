// Products of a warp of scan.cu with the state in its registers, and P.
#pragma once

#include "scan_memory.cuh"

#include <cstdint>

namespace bakewell {

// Accumulators of a warp: its value columns as rows; columns are keys or tokens, 8 a tile.
using State = float[head_dim / 8][4];
using Tokens = float[chunk_tokens / 8][4];

// The same rounded: left operands of steps of 16 tokens.
using TokenWords = uint32_t[token_steps][4];

// Words of two neighbouring tiles.
__device__ void to_words(uint32_t (&words)[4], const float (&low)[4], const float (&high)[4]) {
    words[0] = pack<Element::bf16>(low[0], low[1]);
    words[1] = pack<Element::bf16>(low[2], low[3]);
    words[2] = pack<Element::bf16>(high[0], high[1]);
    words[3] = pack<Element::bf16>(high[2], high[3]);
}

// Adds the product with two neighbouring right operands.
__device__ void multiply(float (&low)[4], float (&high)[4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
    mma_m16n8k16<Element::bf16>(low, a[0], a[1], a[2], a[3], b[0], b[1]);
    mma_m16n8k16<Element::bf16>(high, a[0], a[1], a[2], a[3], b[2], b[3]);
}

__device__ float2 factor_of(const float (&factors)[chunk_tokens], int tile, const Lane& lane) {
    return *reinterpret_cast<const float2*>(&factors[8 * tile + 2 * lane.fragment.pair]);
}

__device__ void scale(float (&sums)[4], float2 factor) {
    sums[0] *= factor.x;
    sums[1] *= factor.y;
    sums[2] *= factor.x;
    sums[3] *= factor.y;
}

// out = S^T rows^T: K S or Q S, transposed.
__device__ void read_state(Tokens& out, const State& state, const KeyTile& rows, const Lane& lane) {
    const KeyTile::Cursor cursor = lane.pieces_first(rows);
#pragma unroll
    for (int i = 0; i < key_steps; ++i) {
        uint32_t a[4];
        to_words(a, state[2 * i], state[2 * i + 1]);
#pragma unroll
        for (int j = 0; j < token_steps; ++j) {
            uint32_t b[4];
            ldmatrix_x4(b, cursor.at(16 * j, 2 * i));
            multiply(out[2 * j], out[2 * j + 1], a, b);
        }
    }
}

// out[, t] += sum over s of words[, s] square[t][s], a lower triangle.
__device__ void multiply_lower(Tokens& out, const TokenWords& words, const SquareTile& square, const Lane& lane) {
    const SquareTile::Cursor cursor = lane.pieces_first(square);
#pragma unroll
    for (int i = 0; i < token_steps; ++i) {
#pragma unroll
        for (int j = i; j < token_steps; ++j) {
            uint32_t b[4];
            ldmatrix_x4(b, cursor.at(16 * j, 2 * i));
            multiply(out[2 * j], out[2 * j + 1], words[i], b);
        }
    }
}

// Y = beta (V - read (K S)), rounded.
__device__ void make_y(TokenWords& y, const Tokens& sums, const ValueTile& v, const Factors& factors,
                       const Lane& lane) {
    const ValueTile::Cursor cursor = lane.pieces_first(v);
#pragma unroll
    for (int i = 0; i < token_steps; ++i) {
        uint32_t values[4];
        ldmatrix_x4_transposed(values, cursor.at(16 * i, 0));
        float x[2][4];
        for (int half = 0; half < 2; ++half) {
            const float2 read = factor_of(factors.read, 2 * i + half, lane);
            for (int e = 0; e < 4; ++e) {
                const uint32_t pair = values[2 * half + e / 2];
                const float value = __uint_as_float(e % 2 ? pair & 0xFFFF0000 : pair << 16);
                x[half][e] = fmaf(e % 2 ? -read.y : -read.x, sums[2 * i + half][e], value);
            }
            scale(x[half], factor_of(factors.beta, 2 * i + half, lane));
        }
        to_words(y[i], x[0], x[1]);
    }
}

// Vn rounded, plain and decayed to the end of the chunk with its key's norm.
__device__ void round_values(TokenWords& plain, TokenWords& written, Tokens& v_new, const Factors& factors,
                             const Lane& lane) {
#pragma unroll
    for (int i = 0; i < token_steps; ++i) {
        to_words(plain[i], v_new[2 * i], v_new[2 * i + 1]);
        scale(v_new[2 * i], factor_of(factors.write, 2 * i, lane));
        scale(v_new[2 * i + 1], factor_of(factors.write, 2 * i + 1, lane));
        to_words(written[i], v_new[2 * i], v_new[2 * i + 1]);
    }
}

// S <- last S + K^T written.
__device__ void update_state(State& state, const TokenWords& written, const KeyTile& k, float last, const Lane& lane) {
    for (auto& sums : state) {
        scale(sums, make_float2(last, last));
    }
    const KeyTile::Cursor cursor = lane.rows_first(k);
#pragma unroll
    for (int i = 0; i < token_steps; ++i) {
#pragma unroll
        for (int j = 0; j < key_steps; ++j) {
            uint32_t b[4];
            ldmatrix_x4_transposed(b, cursor.at(16 * i, 2 * j));
            multiply(state[2 * j], state[2 * j + 1], written[i], b);
        }
    }
}

// Each of the first four warps makes 16 rows of P.
static_assert(warps >= token_steps);

// Products of the warp's queries with the keys: 16 x 16 blocks, two tiles of 8 columns each.
using WeightProducts = float[token_steps][2][4];

// read_state of the keys, and the products of the warp's queries with the same operands.
__device__ void read_state_and_weigh(Tokens& out, WeightProducts& products, const State& state, const KeyTile& k,
                                     const KeyTile& q, const Lane& lane) {
    const KeyTile::Cursor cursor = lane.pieces_first(k);
    const KeyTile::Cursor queries = lane.rows_first(q);
#pragma unroll
    for (int i = 0; i < key_steps; ++i) {
        uint32_t a[4];
        to_words(a, state[2 * i], state[2 * i + 1]);
        uint32_t rows[4];
        ldmatrix_x4(rows, queries.at(16 * lane.warp, 2 * i));
#pragma unroll
        for (int j = 0; j < token_steps; ++j) {
            uint32_t b[4];
            ldmatrix_x4(b, cursor.at(16 * j, 2 * i));
            multiply(out[2 * j], out[2 * j + 1], a, b);
            // Blocks above the diagonal too: a branch would cost more.
            multiply(products[j][0], products[j][1], rows, b);
        }
    }
}

// P from the products: scaled, decayed, and zero above the diagonal.
__device__ void store_weights(SquareTile& p, WeightProducts& products, const Factors& factors, const Lane& lane) {
    const SquareTile::Cursor target = lane.rows_first(p);
    const int first = 16 * lane.warp + lane.fragment.group;
    const float rq[2] = {factors.rq[first], factors.rq[first + 8]};
    const float gate[2] = {factors.gate[first], factors.gate[first + 8]};
#pragma unroll
    for (int j = 0; j < token_steps; ++j) {
        if (j <= lane.warp) {
            for (int column = 0; column < 2; ++column) {
                auto& sums = products[j][column];
                const float2 gates = factor_of(factors.gate, 2 * j + column, lane);
                const float2 rk = factor_of(factors.rk, 2 * j + column, lane);
                for (int e = 0; e < 4; ++e) {
                    const int s = 16 * j + 8 * column + 2 * lane.fragment.pair + e % 2;
                    const float weight = rq[e / 2] * sums[e] * (e % 2 ? rk.y : rk.x);
                    const float decayed = weight * decay(gate[e / 2] - (e % 2 ? gates.y : gates.x));
                    sums[e] = s <= first + 8 * (e / 2) ? decayed : 0.0f;
                }
            }
            uint32_t words[4];
            to_words(words, products[j][0], products[j][1]);
            stmatrix_x4(target.at(16 * lane.warp, 2 * j), words[0], words[1], words[2], words[3]);
        }
    }
}

} // namespace bakewell
