// Programmatic dependent launch: the next grid of the stream may start before this one has ended.
#pragma once

namespace bakewell {

// Lets the dependent grid launch once every CTA of this one has said so. Orders no memory.
// PTX: griddepcontrol.launch_dependents
__device__ inline void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Waits until all prerequisite grids have completed and their writes are visible. Nothing an earlier grid may write
// is read, and nothing it may read is written, before this. PTX: griddepcontrol.wait
__device__ inline void wait_for_prerequisites() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

} // namespace bakewell
