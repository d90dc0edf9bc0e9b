// The barriers of a ring whose slots live elsewhere: full and empty per slot, slot and phase inside the cursors.
#pragma once

#include "mbarrier.cuh"

#include <cstdint>

namespace bakewell {

template <int slots>
struct BarrierRing {
    Mbarrier full[slots];
    Mbarrier empty[slots];

    // Slot in the low byte, phase above it: one register, of which a role holds several.
    class Cursor {
        static_assert(slots <= 256);
        uint32_t state;

      protected:
        explicit __device__ Cursor(uint32_t first_phase) : state(first_phase << 8) {}

        __device__ int slot() const { return static_cast<int>(state & 0xFF); }
        __device__ uint32_t phase() const { return state >> 8; }

        // The current slot; the cursor moves on.
        __device__ int take() {
            const int taken = slot();
            state = taken + 1 < slots ? state + 1 : (phase() ^ 1) << 8;
            return taken;
        }
    };

    // Fills slots in order. Whoever fills slot i arrives on full[i].
    class Producer : Cursor {
        BarrierRing& ring;

      public:
        // The phase before the first counts as complete: the first round over the ring does not wait.
        explicit __device__ Producer(BarrierRing& ring) : Cursor(1), ring(ring) {}

        // Waits until the next slot is free and returns it.
        __device__ int acquire() {
            ring.empty[this->slot()].wait(this->phase());
            return this->take();
        }
    };

    // Reads slots in order. Whoever has read slot i arrives on empty[i]; several may be held at once.
    class Consumer : Cursor {
        BarrierRing& ring;

      public:
        explicit __device__ Consumer(BarrierRing& ring) : Cursor(0), ring(ring) {}

        // Waits until the next slot is full and returns it.
        __device__ int wait() {
            ring.full[this->slot()].wait(this->phase());
            return this->take();
        }
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
