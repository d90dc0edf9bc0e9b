// A ring of tiles in shared memory between one producer warp and the consumer warps. Stage and phase live in cursors.
#pragma once

#include "mbarrier.cuh"

#include <cstdint>

namespace bakewell {

template <class Tile, int stages>
struct Ring {
    static_assert(stages >= 2, "a ring of one tile serialises load and use");

    Tile tiles[stages];
    Mbarrier full[stages];
    Mbarrier empty[stages];

    // One thread, before any other use. A full barrier has one arrival, that of the producer's expect; an empty
    // barrier one per consumer warp.
    __device__ void init(uint32_t consumer_warps) {
        for (int stage = 0; stage < stages; ++stage) {
            full[stage].init(1);
            empty[stage].init(consumer_warps);
        }
        fence_mbarrier_init();
    }

    class Cursor {
      protected:
        int stage = 0;
        uint32_t phase;

        explicit __device__ Cursor(uint32_t first_phase) : phase(first_phase) {}

        __device__ void advance() {
            if (++stage == stages) {
                stage = 0;
                phase ^= 1;
            }
        }
    };

    // Held by every lane of the producer warp.
    class Producer : Cursor {
        Ring& ring;

      public:
        // The phase before the first counts as complete, so that the first round over the ring does not wait.
        explicit __device__ Producer(Ring& ring) : Cursor(1), ring(ring) {}

        // Waits until the consumers released the tile, announces its bytes from lane 0, and runs
        // copy(tile, full barrier) on every lane. The announcement precedes the copies of all lanes.
        template <class Copy>
        __device__ void fill(int lane, uint32_t bytes, Copy copy) {
            ring.empty[this->stage].wait(this->phase);
            if (lane == 0) {
                ring.full[this->stage].arrive_expect(bytes);
            }
            __syncwarp();
            copy(ring.tiles[this->stage], ring.full[this->stage]);
            this->advance();
        }
    };

    // Held by every lane of a consumer warp.
    class Consumer : Cursor {
        Ring& ring;

      public:
        explicit __device__ Consumer(Ring& ring) : Cursor(0), ring(ring) {}

        // The next tile, once its bytes have arrived.
        __device__ const Tile& wait() {
            ring.full[this->stage].wait(this->phase);
            return ring.tiles[this->stage];
        }

        // The warp has read the tile: one arrival, after all lanes. The fence orders the reads, which may still be on
        // their way to registers, before the copy engine's next write of the slot; the arrival alone orders them only
        // before accesses of the generic proxy. PTX: fence.proxy.async.shared::cta
        __device__ void release(int lane) {
            cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
            __syncwarp();
            if (lane == 0) {
                ring.empty[this->stage].arrive();
            }
            this->advance();
        }
    };
};

} // namespace bakewell
