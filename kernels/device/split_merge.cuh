// From partial results to output rows: warps of a CTA, then CTAs of a cluster, then clusters.
//
//   warps     shared memory, in warp order
//   cluster   every CTA sends slice r of its partial to CTA r by asynchronous stores that CTA r's barrier counts;
//             CTA r merges the slices in rank order
//   clusters  partials in global memory; the CTA that arrives last merges them in split order
// Each level runs only where it has more than one part. The order is fixed, so the result does not depend on timing.
// A partial result has a row for each of `columns` query rows.
#pragma once

#include "cluster.cuh"
#include "completion_counter.cuh"
#include "mbarrier.cuh"
#include "softmax.cuh"

#include <cmath>
#include <cstdint>

namespace bakewell {

template <int warps, int columns, int head_dim>
struct WarpPartials {
    alignas(16) float out[warps][columns][head_dim];
    float reference[warps][columns];
    float sum[warps][columns];
};

// Reference and sum of one row.
struct alignas(8) Weight {
    float reference;
    float sum;
};

template <int warp_count, int columns, int head_dim>
struct MergeMap {
    static constexpr int warp_parts = warp_count;
    static constexpr int barrier_bytes = sizeof(Mbarrier);
    static constexpr int vectors = columns * head_dim / 4; // float4 of all rows
    static constexpr int row_vectors = head_dim / 4;

    WarpPartials<warp_count, columns, head_dim> warps;
    float4 received_out[vectors];                  // [rank][vectors / cluster size]
    Weight received_weight[max_cluster][columns];  // [rank][row]
    Mbarrier received;                             // counts the bytes of both
    uint32_t last;
    static_assert(vectors % max_cluster == 0, "every CTA of a cluster merges whole vectors");
    static_assert(row_vectors >= max_cluster, "a row has a thread for every peer");

    // One thread, before the cluster barrier after which peers may send.
    __device__ void init() {
        if (cluster_size() > 1) {
            received.init(1);
            fence_mbarrier_init();
            received.arrive_expect(sizeof(received_out) + cluster_size() * sizeof(received_weight[0]));
        }
    }
};

// Where partial results of clusters lie: rows of out, reference and sum.
struct GlobalPartials {
    float* out;
    float* reference; // -inf: no key
    float* sum;
};

// `Output` says where this CTA's part belongs:
//   split, splits              which part, of how many; splits is a multiple of the cluster size
//   global                     partial results of clusters, those of a row one after another
//   row(i)                     place of row i among all rows
//   completed()                counter of the clusters that are done, zero before and after
//   finish(i, vector, partial) normalises and stores four columns of row i
template <class Map, int threads, class Output>
class SplitMerge {
    const Output& output;
    Map& map;
    const uint32_t ctas; // of the cluster
    static_assert(Map::vectors <= 2 * threads, "a thread for every vector that a CTA of a cluster merges");

  public:
    __device__ SplitMerge(const Output& output, Map& map) : output(output), map(map), ctas(cluster_size()) {}

    // All threads, once the consumer warps stored their partials and the peers of the cluster have started.
    __device__ void run() {
        __syncthreads();
        if (ctas == 1) {
            for (int vector = threadIdx.x; vector < Map::vectors; vector += threads) {
                emit(vector, merge_warps(vector));
            }
        } else {
            merge_cluster();
        }
        if (output.splits > ctas) {
            const bool last = arrive_last(output.completed(), output.splits, map.last);
            if (last) {
                merge_clusters();
            }
        }
    }

  private:
    __device__ Partial merge_warps(int vector) const {
        const int row = vector / Map::row_vectors;
        const int column = vector % Map::row_vectors;
        const auto& warps = map.warps;
        return merge_partials(
            Map::warp_parts, [&](int warp) { return warps.reference[warp][row]; },
            [&](int warp) { return warps.sum[warp][row]; },
            [&](int warp) { return reinterpret_cast<const float4*>(warps.out[warp][row])[column]; });
    }

    __device__ void merge_cluster() {
        const uint32_t rank = cluster_rank();
        const int slice = Map::vectors / ctas; // a power of two, as ctas is
        for (int vector = threadIdx.x; vector < Map::vectors; vector += threads) {
            const Partial partial = merge_warps(vector);
            const int owner = vector * ctas / Map::vectors;
            PeerPointer(&map.received_out[rank * slice + (vector & (slice - 1))], owner)
                .store(partial.out, PeerPointer(&map.received, owner));
            // Every CTA needs the weights of all rows; the threads of a row send one each.
            const int row = vector / Map::row_vectors;
            const int peer = vector % Map::row_vectors;
            if (peer < ctas) {
                PeerPointer(&map.received_weight[rank][row], peer)
                    .store(make_float2(partial.reference, partial.sum), PeerPointer(&map.received, peer));
            }
        }
        // A CTA that has received everything is not written to again, so nobody need wait for it before it exits.
        map.received.wait_cluster(0);
        if (threadIdx.x < slice) {
            const int vector = rank * slice + threadIdx.x;
            const int row = vector / Map::row_vectors;
            emit(vector, merge_partials(
                             ctas, [&](int peer) { return map.received_weight[peer][row].reference; },
                             [&](int peer) { return map.received_weight[peer][row].sum; },
                             [&](int peer) { return map.received_out[peer * slice + threadIdx.x]; }));
        }
    }

    // Partials of all clusters, in order.
    __device__ void merge_clusters() {
        const uint32_t partials = output.splits / ctas;
        const GlobalPartials& global = output.global;
        for (int vector = threadIdx.x; vector < Map::vectors; vector += threads) {
            const size_t row = partial_row(vector, 0);
            const float4* out =
                reinterpret_cast<const float4*>(global.out) + row * Map::row_vectors + vector % Map::row_vectors;
            finish(vector, merge_partials(
                               partials, [&](int i) { return global.reference[row + i]; },
                               [&](int i) { return global.sum[row + i]; },
                               [&](int i) { return out[static_cast<size_t>(i) * Map::row_vectors]; }));
        }
    }

    __device__ size_t partial_row(int vector, uint32_t partial) const {
        return output.row(vector / Map::row_vectors) * (output.splits / ctas) + partial;
    }

    // The CTA's or cluster's result for one vector: to the output, or to the partials if others have to join it.
    __device__ void emit(int vector, const Partial& partial) const {
        if (output.splits == ctas) {
            finish(vector, partial);
            return;
        }
        const GlobalPartials& global = output.global;
        const size_t row = partial_row(vector, output.split / ctas);
        reinterpret_cast<float4*>(global.out)[row * Map::row_vectors + vector % Map::row_vectors] = partial.out;
        if (vector % Map::row_vectors == 0) {
            const bool empty = partial.reference == lowest_reference;
            global.reference[row] = empty ? -INFINITY : partial.reference;
            global.sum[row] = partial.sum;
        }
    }

    __device__ void finish(int vector, const Partial& partial) const {
        output.finish(vector / Map::row_vectors, vector % Map::row_vectors, partial);
    }
};

} // namespace bakewell
