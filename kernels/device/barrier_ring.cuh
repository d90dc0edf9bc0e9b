// The barriers of a ring whose slots live elsewhere: full and empty per slot, slot and phase inside the cursors.
#pragma once

#include "mbarrier.cuh"

#include <cstdint>

namespace bakewell {

template <int slots>
struct BarrierRing {
    Mbarrier full[slots];
    Mbarrier empty[slots];

    class Cursor {
      protected:
        BarrierRing& ring;
        int slot = 0;
        uint32_t phase;

        __device__ Cursor(BarrierRing& ring, uint32_t first_phase) : ring(ring), phase(first_phase) {}

        __device__ void advance() {
            if (++slot == slots) {
                slot = 0;
                phase ^= 1;
            }
        }
    };

    class Producer : Cursor {
      public:
        // The phase before the first counts as complete: the first round over the ring does not wait.
        explicit __device__ Producer(BarrierRing& ring) : Cursor(ring, 1) {}

        // Waits until the slot is free and returns it.
        __device__ int acquire() {
            this->ring.empty[this->slot].wait(this->phase);
            return this->slot;
        }

        // The barrier that says the slot is full; its arrivals are made by whoever fills it.
        __device__ Mbarrier& full() { return this->ring.full[this->slot]; }

        // On to the next slot.
        __device__ void commit() { this->advance(); }
    };

    class Consumer : Cursor {
      public:
        explicit __device__ Consumer(BarrierRing& ring) : Cursor(ring, 0) {}

        // Waits until the slot is full and returns it.
        __device__ int wait() {
            this->ring.full[this->slot].wait(this->phase);
            return this->slot;
        }

        // The barrier that says the slot is free; its arrivals are made by whoever read it.
        __device__ Mbarrier& empty() { return this->ring.empty[this->slot]; }

        // On to the next slot.
        __device__ void release() { this->advance(); }
    };
};

// One barrier whose phases are completed by one side and observed by the other, in turn.
class PhaseCursor {
    uint32_t phase;

    explicit __device__ PhaseCursor(uint32_t first_phase) : phase(first_phase) {}

  public:
    // The first wait needs the first completion.
    static __device__ PhaseCursor waits_first() { return PhaseCursor(0); }

    // The first wait passes on a fresh barrier.
    static __device__ PhaseCursor passes_first() { return PhaseCursor(1); }

    __device__ void wait(Mbarrier& barrier) {
        barrier.wait(phase);
        phase ^= 1;
    }
};

} // namespace bakewell
