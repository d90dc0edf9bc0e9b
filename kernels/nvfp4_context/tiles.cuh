// Which tiles a CTA works on, in the order that every warp role walks alike.
//
// A tile is 2 x tokens_per_half query tokens of one request times `pack` query heads (a unit), against the blocks of
// 128 keys that any of its rows sees. Static order: longest tiles first, the splits of a tile together, dealt to the CTAs
// forth and back. Counts are below 2^31, which the plan checks.
#pragma once

#include <cstdint>

namespace bakewell {

constexpr int head_dim = 128;
constexpr int page_tokens = 16;
constexpr int block_keys = 128;
constexpr int block_pages = block_keys / page_tokens;

// A tile is two halves of query rows. A row is a token and one of `pack` heads; rows past the last whole token are dead.
constexpr int halves = 2;
template <int rows, int heads>
struct Geometry {
    static constexpr int half_rows = rows;
    static constexpr int pack = heads;
    static constexpr int tokens_per_half = half_rows / pack;
    static constexpr int live_rows = tokens_per_half * pack;
    static constexpr int tile_tokens = halves * tokens_per_half;
};

// What the plan admits: splits of a tile, and blocks of a request of fewer than 2^30 keys.
constexpr uint32_t max_splits = 64;
constexpr uint32_t max_blocks = (1u << 30) / block_keys;

struct Tile {
    uint32_t index;  // among all tiles, for partial results
    uint32_t split;  // which share of the keys
    int request;
    int unit;        // pack of query heads
    int64_t first_token; // within the request's queries
    int q_start;     // first query token of the request in the packed batch
    int q_len;
    int kv_len;
    int begin, end;  // key blocks [begin, end), visited from the last down

    __device__ int blocks() const { return end - begin; }

    // A split past the visible keys.
    __device__ bool empty() const { return end <= begin; }

    // Keys that the query token sees: itself and all before it.
    __device__ int visible_keys(int64_t token) const {
        return min(kv_len, static_cast<int>(token) + kv_len - q_len + 1);
    }
};

template <class G, class Params>
class TileWalk {
    const Params& params;
    uint32_t round = 0;
    uint32_t current = 0; // position of the last tile

  public:
    explicit __device__ TileWalk(const Params& params) : params(params) {}

    // The next tile of this CTA. Tiles past the end of their request's queries are skipped.
    __device__ bool next(Tile& tile) {
        while (true) {
            const uint64_t first = static_cast<uint64_t>(round) * gridDim.x;
            if (first >= params.work_items) {
                return false;
            }
            const uint64_t position = first + (round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
            ++round;
            current = static_cast<uint32_t>(position);
            if (position < params.work_items && locate(current, tile)) {
                return true;
            }
        }
    }

    // The last tile again, for a role that has no registers to keep it.
    __device__ Tile again() const {
        Tile tile;
        locate(current, tile);
        return tile;
    }

  private:
    // Fills `tile`; false for a tile without queries.
    __device__ bool locate(uint32_t position, Tile& tile) const {
        tile.split = position % params.splits;
        tile.index = position / params.splits;
        const uint32_t m = params.m_blocks - 1 - tile.index / params.units;
        const uint32_t unit = tile.index % params.units;
        tile.request = static_cast<int>(unit / params.units_per_request);
        tile.unit = static_cast<int>(unit % params.units_per_request);
        tile.q_start = params.cu_seqlens_q[tile.request];
        tile.q_len = params.cu_seqlens_q[tile.request + 1] - tile.q_start;
        tile.kv_len = params.seq_lens_kv[tile.request];
        tile.first_token = static_cast<int64_t>(m) * G::tile_tokens;
        if (tile.first_token >= tile.q_len) {
            return false;
        }
        // Rows that see nothing still run one block, which masks everything.
        const int bound = tile.visible_keys(tile.first_token + G::tile_tokens - 1);
        const uint32_t blocks = max(1, (bound + block_keys - 1) / block_keys);
        const uint32_t share = min((blocks + params.splits - 1) / params.splits, max_blocks);
        const uint32_t after = min(tile.split, max_splits - 1) * share;
        tile.end = max(0, static_cast<int>(blocks - after));
        tile.begin = max(0, tile.end - static_cast<int>(share));
        return true;
    }
};

} // namespace bakewell
