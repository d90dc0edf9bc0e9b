// Half of a head row in the registers of one thread: four of its eight blocks, chosen so that no pair of a rotation over
// 96 elements crosses threads. The other half belongs to the same lane of another warp, the partner.
//
//   set 0: blocks 0 3 | 1 4      set 1: blocks 2 5 | 6 7       (pairs of the rotation; 6 and 7 are not rotated)
//
// `Set` is a constant, which compiles a copy of the code for each set, or a value that is the same in all lanes of a
// warp, which makes every choice below a uniform select.
#pragma once

#include "../device/named_barrier.cuh"
#include "head_row.cuh"

#include <cstdint>

namespace bakewell {

constexpr int set_blocks = 4;
constexpr int set_rope_dim = 96;

// What partners tell each other: sums of squares (`apart` completes a pair of the tree alone, the others meet those of
// the partner), and the scale byte that the partner's group of four lacks.
struct alignas(16) Exchanged {
    float apart;
    float meet[2];
    uint32_t scale;
};

// A place for each direction, in shared memory.
struct Exchange {
    Exchanged* incoming;
    Exchanged* outgoing;
    uint32_t barrier; // named barrier of the two warps

    __device__ void meet() const { named_barrier_sync(barrier, 64); }
};

template <uint32_t value>
struct ConstantSet {
    ConstantSet() = default;
    explicit __device__ constexpr ConstantSet(uint32_t) {}
    __device__ constexpr operator uint32_t() const { return value; }
};

template <class Set>
struct ColumnSet {
    static constexpr int blocks = set_blocks;
    static constexpr int neighbours = 1; // blocks that lie side by side
    static constexpr int scale_groups = 1;

    uint32_t words[set_blocks * block_words];
    Set set;

    // Which block of the row the i-th is.
    __device__ uint32_t block_index(int i) const {
        constexpr uint32_t order[2] = {0x4130, 0x7652};
        return (set == 0 ? order[0] : order[1]) >> 4 * i & 7;
    }

    __device__ Block& block(int i) { return reinterpret_cast<Block&>(words[i * block_words]); }
    __device__ const Block& block(int i) const { return reinterpret_cast<const Block&>(words[i * block_words]); }

    __device__ void normalise(const uint4* weights, float eps, const Exchange& exchange) {
        float sums[set_blocks];
#pragma unroll
        for (int i = 0; i < set_blocks; ++i) {
            sums[i] = square_sum(block(i));
        }
        // Set 0 has p0 + p1, p3 and p4; set 1 has p6 + p7, p2 and p5.
        const float apart = __fadd_rn(sums[2], set == 0 ? sums[0] : sums[3]);
        const float meet[2] = {set == 0 ? sums[1] : sums[0], set == 0 ? sums[3] : sums[1]};
        exchange.outgoing->apart = apart;
        exchange.outgoing->meet[0] = meet[0];
        exchange.outgoing->meet[1] = meet[1];
        exchange.meet();
        // Volatile: one wide read would take in `scale`, which the partner may be writing by now.
        const volatile Exchanged& incoming = *exchange.incoming;
        const float other = incoming.apart;
        const float low = __fadd_rn(set == 0 ? apart : other, __fadd_rn(meet[0], incoming.meet[0]));
        const float high = __fadd_rn(__fadd_rn(meet[1], incoming.meet[1]), set == 0 ? other : apart);
        const float rstd = row_rstd(__fadd_rn(low, high), eps);
#pragma unroll
        for (int i = 0; i < set_blocks; ++i) {
            bakewell::normalise(block(i), rstd, weights + 2 * block_index(i));
        }
    }

    // `angles`: the token's row of cosines, then sines.
    __device__ void rotate(const uint4* angles, uint32_t) {
        constexpr int sines = set_rope_dim / block_elements;
        const auto rotate_pair = [&](int pair) {
            const uint4* first = angles + 2 * block_index(2 * pair);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                bakewell::rotate(&words[2 * pair * block_words + i * vector_words],
                                 &words[(2 * pair + 1) * block_words + i * vector_words], first[i], first[i + sines]);
            }
        };
        rotate_pair(0);
        if (set == 0) {
            rotate_pair(1);
        }
    }

    // The groups of four scale bytes that this thread stores: one, of blocks 4 set .. 4 set + 3.
    __device__ uint32_t first_group() const { return set; }
    __device__ void group_scales(const uint32_t (&scales)[set_blocks], const Exchange& exchange,
                                 uint32_t (&groups)[scale_groups]) const {
        exchange.outgoing->scale = set == 0 ? scales[3] : scales[0];
        exchange.meet();
        const uint32_t missing = exchange.incoming->scale;
        const uint32_t low = set == 0 ? scales[0] | scales[2] << 8 : missing | scales[1] << 8;
        const uint32_t high = set == 0 ? missing | scales[1] << 8 : scales[2] | scales[3] << 8;
        groups[0] = low | high << 16;
    }
};

} // namespace bakewell
