//! Layouts: where operands, fragments and copies put their bytes, as pure functions of addresses and descriptors.
//!
//! | module | content |
//! |---|---|
//! | [`swizzle`] | chunk permutations of shared memory |
//! | [`tensor_map`] | the 128-byte record: encode, decode, device-side replacement |
//! | [`box_walk`] | runs of a tile, gather4 or scatter4 copy |

pub mod box_walk;
pub mod swizzle;
pub mod tensor_map;
