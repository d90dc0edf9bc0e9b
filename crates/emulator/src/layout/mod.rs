//! Layouts: where operands, fragments and copies put their bytes, as pure functions of addresses and descriptors.
//!
//! | module | content |
//! |---|---|
//! | [`swizzle`] | chunk permutations of shared memory |
//! | [`tensor_map`] | the 128-byte record: encode, decode, device-side replacement |
//! | [`box_walk`] | runs of a tile, gather4 or scatter4 copy |
//! | [`operand`] | shared-memory descriptors of wgmma and tcgen05 |
//! | [`instruction_descriptor`] | the descriptor of tcgen05.mma, decoded and checked |
//! | [`tensor_memory`] | tcgen05 loads, stores, copies, accumulators, A and scales in tensor memory |
//! | [`fragment`] | register fragments of mma.sync and wgmma |
//! | [`matrix`] | ldmatrix, stmatrix, movmatrix |

pub mod box_walk;
pub mod fragment;
pub mod instruction_descriptor;
pub mod matrix;
pub mod operand;
pub mod swizzle;
pub mod tensor_map;
pub mod tensor_memory;
