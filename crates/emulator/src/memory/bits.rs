//! A set of bits with range operations.

/// A fixed-size set of bits.
#[derive(Debug, Clone, Default)]
pub struct BitSet {
    words: Vec<u64>,
}

impl BitSet {
    /// `len` clear bits.
    pub fn new(len: usize) -> BitSet {
        BitSet { words: vec![0; len.div_ceil(64)] }
    }

    /// Calls `f(word index, mask)` for every word that bits `start..start + len` touch.
    fn each(start: usize, len: usize, mut f: impl FnMut(usize, u64) -> bool) -> bool {
        let mut at = start;
        let end = start + len;
        while at < end {
            let word = at / 64;
            let low = at % 64;
            let high = (end - word * 64).min(64);
            let mask = (u64::MAX << low) & (u64::MAX >> (64 - high));
            if !f(word, mask) {
                return false;
            }
            at = (word + 1) * 64;
        }
        true
    }

    /// Sets bits `start..start + len`.
    pub fn set(&mut self, start: usize, len: usize) {
        Self::each(start, len, |word, mask| {
            self.words[word] |= mask;
            true
        });
    }

    /// Clears bits `start..start + len`.
    pub fn clear(&mut self, start: usize, len: usize) {
        Self::each(start, len, |word, mask| {
            self.words[word] &= !mask;
            true
        });
    }

    /// Whether all bits `start..start + len` are set.
    pub fn all(&self, start: usize, len: usize) -> bool {
        Self::each(start, len, |word, mask| self.words[word] & mask == mask)
    }

    /// The first clear bit of `start..start + len`.
    pub fn first_clear(&self, start: usize, len: usize) -> Option<usize> {
        (start..start + len).find(|&bit| self.words[bit / 64] >> (bit % 64) & 1 == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cross_words() {
        let mut bits = BitSet::new(200);
        bits.set(60, 80);
        assert!(bits.all(60, 80));
        assert!(!bits.all(59, 2));
        assert!(!bits.all(139, 2));
        bits.clear(64, 64);
        assert_eq!(bits.first_clear(60, 80), Some(64));
        assert!(bits.all(128, 12));
    }
}
