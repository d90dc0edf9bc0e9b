//! Shared-memory swizzles: permutations of chunks keyed by absolute address bits (ISA notes, sections 1.3 and 5.3).

use bakewell_core::tensor_map::Swizzle;

/// A swizzle as copies and matrix descriptors apply it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// No permutation.
    None,
    /// 32-byte span, 16-byte chunks.
    B32,
    /// 64-byte span, 16-byte chunks.
    B64,
    /// 128-byte span, 16-byte chunks.
    B128,
    /// 128-byte span, 32-byte chunks.
    B128Atom32,
    /// As [`Self::B128Atom32`], with the 8-byte halves swapped on odd 128-byte lines.
    B128Atom32Flip8,
    /// 128-byte span, 64-byte chunks.
    B128Atom64,
    /// 96-byte span, 16-byte chunks; exists only as a field of the record, on sm_103 and sm_107.
    B96,
}

impl From<Swizzle> for Pattern {
    fn from(swizzle: Swizzle) -> Self {
        match swizzle {
            Swizzle::None => Self::None,
            Swizzle::B32 => Self::B32,
            Swizzle::B64 => Self::B64,
            Swizzle::B128 => Self::B128,
            Swizzle::B128Atom32 => Self::B128Atom32,
            Swizzle::B128Atom32Flip8 => Self::B128Atom32Flip8,
            Swizzle::B128Atom64 => Self::B128Atom64,
        }
    }
}

impl Pattern {
    /// All patterns, in the order of the definition.
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::B32,
        Self::B64,
        Self::B128,
        Self::B128Atom32,
        Self::B128Atom32Flip8,
        Self::B128Atom64,
        Self::B96,
    ];

    /// Physical address of the byte whose address without swizzle is `address`. Its own inverse.
    #[inline(always)]
    pub const fn apply(self, address: u32) -> u32 {
        let line = address >> 7;
        address
            ^ match self {
                Self::None => 0,
                Self::B32 | Self::B96 => (line & 1) << 4,
                Self::B64 => (line & 3) << 4,
                Self::B128 => (line & 7) << 4,
                Self::B128Atom32 => (line & 3) << 5,
                Self::B128Atom32Flip8 => (line & 3) << 5 | (line & 1) << 3,
                Self::B128Atom64 => (line & 1) << 6,
            }
    }

    /// Bytes of an inner row that fills the pattern; `None` without swizzle.
    pub const fn span(self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::B32 => Some(32),
            Self::B64 => Some(64),
            Self::B96 => Some(96),
            Self::B128 | Self::B128Atom32 | Self::B128Atom32Flip8 | Self::B128Atom64 => Some(128),
        }
    }

    /// Bytes that stay together; `None` when everything does.
    pub const fn chunk(self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::B32 | Self::B64 | Self::B128 | Self::B96 => Some(16),
            Self::B128Atom32 => Some(32),
            Self::B128Atom32Flip8 => Some(8),
            Self::B128Atom64 => Some(64),
        }
    }

    /// Bytes after which the pattern repeats: the alignment a tile needs to start at phase 0.
    pub const fn period(self) -> u32 {
        match self {
            Self::None => 1,
            Self::B32 | Self::B128Atom64 | Self::B96 => 256,
            Self::B64 | Self::B128Atom32 | Self::B128Atom32Flip8 => 512,
            Self::B128 => 1024,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn involution_period_and_chunk() {
        for pattern in Pattern::ALL {
            let (chunk, period) = (pattern.chunk().unwrap_or(1), pattern.period());
            let mut seen = vec![false; 4096];
            for address in 0..4096 {
                let physical = pattern.apply(address);
                assert_eq!(pattern.apply(physical), address, "{pattern:?}");
                assert_eq!(pattern.apply(address + period), physical + period, "{pattern:?}");
                assert_eq!(physical, pattern.apply(address / chunk * chunk) + address % chunk, "{pattern:?}");
                assert_eq!(physical / 128, address / 128, "stays in its line");
                assert!(!std::mem::replace(&mut seen[physical as usize], true));
            }
        }
    }

    #[test]
    fn known_positions() {
        assert_eq!(Pattern::B128.apply(0x400 + 3 * 128), 0x400 + 3 * 128 + 0x30);
        assert_eq!(Pattern::B64.apply(0x400 + 3 * 128 + 16), 0x400 + 3 * 128 + 0x20);
        assert_eq!(Pattern::B32.apply(0x480), 0x490);
        assert_eq!(Pattern::B128Atom32.apply(0x480), 0x4a0);
        assert_eq!(Pattern::B128Atom32Flip8.apply(0x480), 0x4a8);
        assert_eq!(Pattern::B128Atom64.apply(0x480), 0x4c0);
    }

    /// The rule in words: inside a 128-byte line, chunk `c` of line `l` goes to chunk `c ^ (l mod 8)`.
    #[test]
    fn chunk_rule_of_the_copy_engine() {
        for (pattern, chunks_per_span) in [(Pattern::B32, 2), (Pattern::B64, 4), (Pattern::B128, 8)] {
            for line in 0..16u32 {
                for chunk in 0..8u32 {
                    let (span, inside) = (chunk / chunks_per_span, chunk % chunks_per_span);
                    let expected = line * 128 + (span * chunks_per_span + (inside ^ (line % chunks_per_span))) * 16;
                    assert_eq!(pattern.apply(line * 128 + chunk * 16), expected);
                }
            }
        }
    }
}
