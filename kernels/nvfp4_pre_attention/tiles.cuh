// Which tile a CTA has, and how the roles of a cluster walk over the tiles that it takes over.
#pragma once

#include "../device/cluster_ring.cuh"
#include "../device/cta_pair.cuh"
#include "../device/launch_control.cuh"
#include "head_row.cuh"
#include "tcgen05_params.cuh"

#include <cstdint>

namespace bakewell {

constexpr uint32_t tile_tokens = 128;  // of a CTA
constexpr uint32_t tile_columns = 256; // two head rows
constexpr uint32_t halves = 2;

// Which head row a half of a tile is: columns are ordered [head][kind][element].
struct HeadColumn {
    uint64_t head;
    Kind kind;

    __device__ HeadColumn(uint64_t n, uint32_t half)
        : head((n * halves + half) / kinds), kind(static_cast<Kind>((n * halves + half) % kinds)) {}
};

// Token tiles of a group: their activation stays in L2 while the weights stream by.
constexpr uint32_t group_tiles = 64;

struct Tile {
    uint64_t m; // 128 tokens
    uint32_t n; // 256 columns
};

// Groups of token tiles; in a group token tiles first, then columns. The CTAs of a pair, whose indices are neighbours,
// have neighbouring token tiles and the same columns.
struct TileOrder {
    uint32_t m_tiles; // even
    uint32_t n_tiles;

    explicit __device__ TileOrder(const Params& params)
        : m_tiles((params.tokens + 2 * tile_tokens - 1) / (2 * tile_tokens) * 2),
          n_tiles(params.heads * kinds / halves) {}

    __device__ Tile at(uint32_t cta) const {
        const uint32_t group = cta / (group_tiles * n_tiles), inside = cta % (group_tiles * n_tiles);
        const uint64_t first = static_cast<uint64_t>(group) * group_tiles;
        const uint32_t size = min(static_cast<uint64_t>(group_tiles), m_tiles - first);
        return {first + inside % size, inside / size};
    }
};

// ---------------------------------------------------------------- launch control

constexpr int response_slots = 4;

// Answers to the requests for further tiles. Each CTA has its own; a slot is free when the leader's barrier says so.
struct Launches {
    ClusterRing<response_slots>& ring;
    LaunchResponse (&responses)[response_slots];
};

// One thread of the leader: asks for the next tile of the cluster, once per tile, ahead of time.
class Requests {
    Launches launches;
    ClusterRing<response_slots>::Producer ring;

  public:
    explicit __device__ Requests(Launches launches) : launches(launches), ring(launches.ring) {}

    __device__ void next() {
        const int slot = ring.acquire();
        Mbarrier& full = launches.ring.full[slot];
        for (uint32_t rank = 0; rank < cta_pair::ctas; ++rank) {
            ClusterMbarrier(full, rank).arrive_expect(sizeof(LaunchResponse));
        }
        launches.responses[slot].request(full);
    }
};

enum class Walker { thread, warp };

// The tiles of a CTA, in the order in which all its roles meet them: that of its launch, then those taken over.
template <Walker walker>
class TileWalk {
    Launches launches;
    ClusterRing<response_slots>::Consumer ring;
    TileOrder order;
    uint32_t cta;

  public:
    __device__ TileWalk(const Params& params, Launches launches)
        : launches(launches), ring(launches.ring), order(params), cta(blockIdx.x) {}

    __device__ Tile tile() const { return order.at(cta); }

    // Moves to the next tile; false when there is none.
    __device__ bool next() {
        const int slot = ring.wait();
        uint32_t first = 0;
        const bool taken = launches.responses[slot].taken(first);
        cta = first + cta % cta_pair::ctas;
        // The response has been read, and the copy engine may write the next one over it.
        cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
        if constexpr (walker == Walker::warp) {
            __syncwarp();
        }
        if (walker == Walker::thread || threadIdx.x % 32 == 0) {
            ClusterMbarrier(launches.ring.empty[slot], cta_pair::leader).arrive();
        }
        return taken;
    }
};

} // namespace bakewell
