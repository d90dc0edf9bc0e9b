// From partial results to the output row: warps of a CTA, then CTAs of a cluster, then clusters.
//
//   warps     shared memory, in warp order
//   cluster   every CTA sends slice r of its partial to CTA r by asynchronous stores that CTA r's barrier counts;
//             CTA r merges the slices in rank order
//   clusters  partials in global memory; the CTA that arrives last merges them in split order
// Each level runs only where it has more than one part. The order is fixed, so the result does not depend on timing.
#pragma once

#include "../device/cluster.cuh"
#include "../device/completion_counter.cuh"
#include "../device/element.cuh"
#include "../device/mbarrier.cuh"
#include "../device/softmax.cuh"
#include "work.cuh"

#include <cstdint>

namespace bakewell {

template <class S>
struct WarpPartials {
    alignas(16) float out[S::consumer_warps][S::group_size][S::head_dim];
    float reference[S::consumer_warps][S::group_size];
    float sum[S::consumer_warps][S::group_size];
};

// Reference and sum of one head.
struct alignas(8) Weight {
    float reference;
    float sum;
};

template <class S>
struct MergeMap {
    static constexpr int barrier_bytes = sizeof(Mbarrier);
    static constexpr int vectors = S::group_size * S::head_dim / 4; // float4 of an output group
    static constexpr int head_vectors = S::head_dim / 4;

    WarpPartials<S> warps;
    float4 received_out[vectors];                     // [rank][vectors / cluster size]
    Weight received_weight[max_cluster][S::group_size]; // [rank][head]
    Mbarrier received;                                  // counts the bytes of both
    uint32_t last;
    static_assert(vectors % max_cluster == 0, "every CTA of a cluster merges whole vectors");
    static_assert(head_vectors >= max_cluster, "a head has a thread for every peer");

    // One thread, before the cluster barrier after which peers may send.
    __device__ void init() {
        if (cluster_size() > 1) {
            received.init(1);
            fence_mbarrier_init();
            received.arrive_expect(sizeof(received_out) + cluster_size() * sizeof(received_weight[0]));
        }
    }
};

template <class S>
class Merge {
    using Map = MergeMap<S>;
    const Params& params;
    const Work<S> work;
    Map& map;
    const int32_t length;
    const uint32_t ctas; // of the cluster

  public:
    __device__ Merge(const Params& params, Work<S> work, Map& map, int32_t length)
        : params(params), work(work), map(map), length(length), ctas(cluster_size()) {}

    // All threads, once the consumer warps stored their partials and the peers of the cluster have started.
    __device__ void run() {
        __syncthreads();
        if (ctas == 1) {
            for (int vector = threadIdx.x; vector < Map::vectors; vector += S::threads) {
                emit(vector, merge_warps(vector));
            }
        } else {
            merge_cluster();
        }
        if (params.splits > ctas) {
            const bool last = arrive_last(&params.completed[work.head(params)], params.splits, map.last);
            if (last) {
                merge_clusters();
            }
        }
    }

  private:
    __device__ Partial merge_warps(int vector) const {
        const int head = vector / Map::head_vectors;
        const int column = vector % Map::head_vectors;
        const auto& warps = map.warps;
        return merge_partials(
            S::consumer_warps, [&](int warp) { return warps.reference[warp][head]; },
            [&](int warp) { return warps.sum[warp][head]; },
            [&](int warp) { return reinterpret_cast<const float4*>(warps.out[warp][head])[column]; });
    }

    __device__ void merge_cluster() {
        const uint32_t rank = cluster_rank();
        const int slice = Map::vectors / ctas; // a power of two, as ctas is
        for (int vector = threadIdx.x; vector < Map::vectors; vector += S::threads) {
            const Partial partial = merge_warps(vector);
            const int owner = vector * ctas / Map::vectors;
            PeerPointer(&map.received_out[rank * slice + (vector & (slice - 1))], owner)
                .store(partial.out, PeerPointer(&map.received, owner));
            // Every CTA needs the weights of all heads; the threads of a head send one each.
            const int head = vector / Map::head_vectors;
            const int peer = vector % Map::head_vectors;
            if (peer < ctas) {
                PeerPointer(&map.received_weight[rank][head], peer)
                    .store(make_float2(partial.reference, partial.sum), PeerPointer(&map.received, peer));
            }
        }
        // A CTA that has received everything is not written to again, so nobody need wait for it before it exits.
        map.received.wait_cluster(0);
        if (threadIdx.x < slice) {
            const int vector = rank * slice + threadIdx.x;
            const int head = vector / Map::head_vectors;
            emit(vector, merge_partials(
                             ctas, [&](int peer) { return map.received_weight[peer][head].reference; },
                             [&](int peer) { return map.received_weight[peer][head].sum; },
                             [&](int peer) { return map.received_out[peer * slice + threadIdx.x]; }));
        }
    }

    // Partials of all clusters, in order.
    __device__ void merge_clusters() {
        const uint32_t partials = params.splits / ctas;
        for (int vector = threadIdx.x; vector < Map::vectors; vector += S::threads) {
            const size_t row = partial_row(vector, 0);
            const float4* out = reinterpret_cast<const float4*>(params.partial_out) + row * Map::head_vectors +
                                vector % Map::head_vectors;
            finish(vector, merge_partials(
                               partials, [&](int i) { return params.partial_max[row + i]; },
                               [&](int i) { return params.partial_sum[row + i]; },
                               [&](int i) { return out[static_cast<size_t>(i) * Map::head_vectors]; }));
        }
    }

    // Index of [request, query head, partial] for the head of an output vector.
    __device__ size_t partial_row(int vector, uint32_t partial) const {
        const size_t head = work.query_head(params) + vector / Map::head_vectors;
        return head * (params.splits / ctas) + partial;
    }

    // The CTA's or cluster's result for one vector: to the output, or to the partials if others have to join it.
    __device__ void emit(int vector, const Partial& partial) const {
        if (params.splits == ctas) {
            finish(vector, partial);
            return;
        }
        const size_t row = partial_row(vector, work.split / ctas);
        reinterpret_cast<float4*>(params.partial_out)[row * Map::head_vectors + vector % Map::head_vectors] =
            partial.out;
        if (vector % Map::head_vectors == 0) {
            const bool empty = partial.reference == lowest_reference;
            params.partial_max[row] = empty ? -INFINITY : partial.reference;
            params.partial_sum[row] = partial.sum;
        }
    }

    // Normalises and rounds once. A request of length 0 has zeros, and log-sum-exp -inf.
    __device__ void finish(int vector, const Partial& partial) const {
        const float inverse = length > 0 ? reciprocal_approx(partial.sum) : 0.0f;
        const size_t head = work.query_head(params);
        uint2* out = reinterpret_cast<uint2*>(static_cast<char*>(params.out) + head * Work<S>::row_bytes);
        out[vector] = make_uint2(pack<S::element>(partial.out.x * inverse, partial.out.y * inverse),
                                 pack<S::element>(partial.out.z * inverse, partial.out.w * inverse));
        if (params.lse != nullptr && vector % Map::head_vectors == 0) {
            params.lse[head + vector / Map::head_vectors] =
                length > 0 ? (partial.reference + log2f(partial.sum)) * ln_2 : -INFINITY;
        }
    }
};

} // namespace bakewell
