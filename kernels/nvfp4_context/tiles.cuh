// Which tiles a CTA works on, in the order that every warp role walks alike.
//
// A tile is 2 x tokens_per_half query tokens of one request times `pack` query heads (a unit), against the blocks of
// 128 keys that any of its rows sees. Static order: longest tiles first, dealt to the CTAs forth and back.
#pragma once

#include "params.cuh"

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

// Units whose tiles are dealt together when there is less than one tile per CTA.
constexpr uint32_t section_units = 8;

struct Tile {
    uint32_t index;  // among all tiles, for partial results
    uint32_t split;  // which share of the keys
    int request;
    int unit;        // pack of query heads
    int first_token; // within the request's queries
    int q_start;     // first query token of the request in the packed batch
    int q_len;
    int kv_len;
    int begin, end;  // key blocks [begin, end), visited from the last down

    __device__ int blocks() const { return end - begin; }

    // A split past the visible keys.
    __device__ bool empty() const { return end <= begin; }

    // Keys that the query token sees: itself and all before it.
    __device__ int visible_keys(int token) const { return min(kv_len, token + kv_len - q_len + 1); }
};

template <class G>
class TileWalk {
    const Params& params;
    uint32_t round = 0;
    uint32_t units_per_request;
    uint32_t total_units;

  public:
    explicit __device__ TileWalk(const Params& params)
        : params(params), units_per_request(params.q_heads / G::pack), total_units(params.batch * units_per_request) {}

    // The next tile of this CTA. Tiles past the end of their request's queries are skipped.
    __device__ bool next(Tile& tile) {
        const uint32_t ctas = gridDim.x;
        const uint32_t tiles = total_units * params.m_blocks;
        const uint32_t total = tiles * params.splits;
        while (true) {
            const uint32_t lane = (round % 2 == 0) ? blockIdx.x : ctas - 1 - blockIdx.x;
            const uint64_t position = static_cast<uint64_t>(round) * ctas + lane;
            if (static_cast<uint64_t>(round) * ctas >= total) {
                return false;
            }
            ++round;
            if (position < total && locate(static_cast<uint32_t>(position), tiles, tile)) {
                return true;
            }
        }
    }

  private:
    // Fills `tile`; false for a tile without queries.
    __device__ bool locate(uint32_t position, uint32_t tiles, Tile& tile) const {
        tile.split = position % params.splits;
        tile.index = position / params.splits;
        uint32_t m, unit_of_batch;
        if (tiles > gridDim.x) {
            m = tile.index / total_units;
            unit_of_batch = tile.index % total_units;
        } else {
            const uint32_t in_sections = total_units / section_units * section_units * params.m_blocks;
            if (tile.index < in_sections) {
                m = tile.index / section_units % params.m_blocks;
                unit_of_batch =
                    tile.index / (section_units * params.m_blocks) * section_units + tile.index % section_units;
            } else {
                const uint32_t rest = tile.index - in_sections;
                m = rest % params.m_blocks;
                unit_of_batch = in_sections / params.m_blocks + rest / params.m_blocks;
            }
        }
        m = params.m_blocks - 1 - m;
        tile.request = static_cast<int>(unit_of_batch / units_per_request);
        tile.unit = static_cast<int>(unit_of_batch % units_per_request);
        tile.q_start = params.cu_seqlens_q[tile.request];
        tile.q_len = params.cu_seqlens_q[tile.request + 1] - tile.q_start;
        tile.kv_len = params.seq_lens_kv[tile.request];
        tile.first_token = static_cast<int>(m) * G::tile_tokens;
        if (tile.first_token >= tile.q_len) {
            return false;
        }
        // Rows that see nothing still run one block, which masks everything.
        const int bound = min(tile.kv_len, tile.first_token + G::tile_tokens + tile.kv_len - tile.q_len);
        const int blocks = max(1, (bound + block_keys - 1) / block_keys);
        const int share = (blocks + static_cast<int>(params.splits) - 1) / static_cast<int>(params.splits);
        tile.end = max(0, blocks - static_cast<int>(tile.split) * share);
        tile.begin = max(0, tile.end - share);
        return true;
    }
};

} // namespace bakewell
