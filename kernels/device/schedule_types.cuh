// Enumerations that a rendered `struct Schedule` uses. One spelling with `bakewell_core::schedule`.
#pragma once

namespace bakewell {

enum class Element { f16, bf16 };

// How FP4 becomes E4M3: by the packed multiply where the target has it, by f16 where it converts E2M1, by a table of the
// eight magnitudes of a block elsewhere. Same bytes.
enum class Dequantise { packed_multiply, f16, table };

// When the correction warps hand a rescale slot back: as soon as it is read, or after the next dequantisation.
enum class ScaleRelease { after_read, after_rescale };

// Who initialises the barriers: one thread, or one lane per barrier.
enum class BarrierInit { thread0, lanes_of_warp0 };

// When a row's codes are read: each 16 bytes before their use, or the whole row first.
enum class CodeReads { per_chunk, whole_row };

// How an accumulator is rescaled: load, multiply, store in turn, or with the next columns loading meanwhile.
enum class Rescale { in_turn, pipelined };

} // namespace bakewell
