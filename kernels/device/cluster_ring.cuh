// Rings and barriers that other CTAs of the cluster signal: waits acquire at the scope of the cluster.
#pragma once

#include "barrier_ring.cuh"

#include <cstdint>

namespace bakewell {

// A `BarrierRing` between CTAs. Slot and phase stay inside the cursors.
template <int slots>
struct ClusterRing : BarrierRing<slots> {
    // Fills slots in order; the first round does not wait.
    class Producer : BarrierRing<slots>::Cursor {
        ClusterRing& ring;

      public:
        explicit __device__ Producer(ClusterRing& ring) : BarrierRing<slots>::Cursor(1), ring(ring) {}

        // Waits until the next slot is free and returns it.
        __device__ int acquire() {
            ring.empty[this->slot()].wait_cluster(this->phase());
            return this->take();
        }

        // Waits until every slot is free.
        __device__ void drain() {
            for (int i = 0; i < slots; ++i) {
                acquire();
            }
        }
    };

    // Reads slots in order; several may be held at once.
    class Consumer : BarrierRing<slots>::Cursor {
        ClusterRing& ring;

      public:
        explicit __device__ Consumer(ClusterRing& ring) : BarrierRing<slots>::Cursor(0), ring(ring) {}

        // Waits until the next slot is full and returns it.
        __device__ int wait() {
            ring.full[this->slot()].wait_cluster(this->phase());
            return this->take();
        }
    };
};

// One barrier whose phases one side completes and the other observes, in turn.
class ClusterPhase {
    uint32_t phase;

    explicit __device__ ClusterPhase(uint32_t first_phase) : phase(first_phase) {}

  public:
    // The first wait needs the first completion.
    static __device__ ClusterPhase waits_first() { return ClusterPhase(0); }

    // The first wait passes on a fresh barrier.
    static __device__ ClusterPhase passes_first() { return ClusterPhase(1); }

    __device__ void wait(Mbarrier& barrier) {
        barrier.wait_cluster(phase);
        phase ^= 1;
    }
};

} // namespace bakewell
