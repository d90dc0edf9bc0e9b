//! Hash maps of the checkers: their keys are small numbers, asked for at every access.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map with [`Mix`].
pub(super) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Mix>>;

/// One multiplication for each word. Keys come from the program under test, so nobody chooses them to collide.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mix(u64);

impl Mix {
    #[inline(always)]
    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            self.mix(chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        }
    }

    #[inline(always)]
    fn write_u8(&mut self, word: u8) {
        self.mix(word.into());
    }

    #[inline(always)]
    fn write_u32(&mut self, word: u32) {
        self.mix(word.into());
    }

    #[inline(always)]
    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    #[inline(always)]
    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }

    #[inline(always)]
    fn write_isize(&mut self, word: isize) {
        self.mix(word as u64);
    }

    /// The high bits are the well mixed ones; tables look at both ends.
    #[inline(always)]
    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }
}
