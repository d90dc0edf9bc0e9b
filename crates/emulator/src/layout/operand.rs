//! Matrix operands in shared memory: descriptors of wgmma and tcgen05 and the bytes they name (ISA notes, async 6.3 and
//! 6.4, tcgen05 5).
//!
//! Both descriptors describe the same walk, in units of 16 bytes. Of a K-major operand a *line* is a row (of M or N)
//! and units run along K; of an MN-major operand a line is one k and units run along M or N. Addresses are
//! CTA-relative.

use super::swizzle::Pattern;

/// Which index is contiguous in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Major {
    /// Consecutive k.
    K,
    /// Consecutive rows of A or columns of B ("transposed").
    Mn,
}

/// Layout of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperandLayout {
    /// Core matrices of 8 lines x 16 bytes.
    None,
    /// 32-byte rows, 32-byte swizzle.
    B32,
    /// 64-byte rows, 64-byte swizzle.
    B64,
    /// 128-byte rows, 128-byte swizzle.
    B128,
    /// 128-byte rows, 32-byte chunks, four lines per group; MN-major TF32 only.
    B128Base32,
}

impl OperandLayout {
    /// Bytes of a row; `None` without swizzle.
    pub const fn width(self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::B32 => Some(32),
            Self::B64 => Some(64),
            Self::B128 | Self::B128Base32 => Some(128),
        }
    }

    const fn pattern(self) -> Pattern {
        match self {
            Self::None => Pattern::None,
            Self::B32 => Pattern::B32,
            Self::B64 => Pattern::B64,
            Self::B128 => Pattern::B128,
            Self::B128Base32 => Pattern::B128Atom32,
        }
    }
}

/// A decoded descriptor. All values in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// CTA-relative address of the first byte.
    pub start: u32,
    /// Leading-dimension offset (LBO), or the absolute address of the second atom column.
    pub leading: u32,
    /// Stride-dimension offset (SBO).
    pub stride: u32,
    /// Layout.
    pub layout: OperandLayout,
    /// Whether `leading` is an absolute address (48-byte K of sm_103).
    pub leading_is_address: bool,
}

/// Why a descriptor is not usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperandError {
    /// Reserved or constant bits differ from what the format says.
    #[error("descriptor {descriptor:#018x}: bits [{high}:{low}] are {value:#x}, expected {expected:#x}")]
    Bits {
        /// The descriptor.
        descriptor: u64,
        /// Lowest bit of the field.
        low: u32,
        /// Highest bit of the field.
        high: u32,
        /// What it holds.
        value: u64,
        /// What it must hold.
        expected: u64,
    },
    /// The layout code has no meaning.
    #[error("descriptor {descriptor:#018x}: layout code {code} is undefined")]
    Layout {
        /// The descriptor.
        descriptor: u64,
        /// Its layout code.
        code: u64,
    },
    /// A nonzero base offset with a swizzled layout.
    #[error("descriptor {descriptor:#018x}: base offset {value} with a swizzled layout has no established effect")]
    BaseOffset {
        /// The descriptor.
        descriptor: u64,
        /// Base offset.
        value: u64,
    },
    /// Absolute leading address outside its one use.
    #[error(
        "descriptor {descriptor:#018x}: an absolute leading address needs a target with K = 96, 128-byte swizzle and base offset 0"
    )]
    LeadingAddress {
        /// The descriptor.
        descriptor: u64,
    },
    /// The bytes of one instruction along K leave the swizzle row.
    #[error("K-major operand: {bytes} bytes along K from byte {offset} of a {width}-byte swizzle row leave the row")]
    CrossesRow {
        /// Bytes of K of one instruction.
        bytes: u32,
        /// Position of the start in its row.
        offset: u32,
        /// Row width.
        width: u32,
    },
    /// The layout does not exist for this operand.
    #[error("the 128-byte layout with 32-byte chunks needs an MN-major operand of 32-bit elements")]
    Base32,
    /// MN-major for a type that has to be K-major.
    #[error("an MN-major operand of {bits}-bit elements has no layout")]
    MnMajor {
        /// Element bits.
        bits: u32,
    },
}

const fn field(descriptor: u64, high: u32, low: u32) -> u64 {
    (descriptor >> low) & (u64::MAX >> (63 - (high - low)))
}

fn expect(descriptor: u64, high: u32, low: u32, expected: u64) -> Result<(), OperandError> {
    let value = field(descriptor, high, low);
    if value == expected { Ok(()) } else { Err(OperandError::Bits { descriptor, low, high, value, expected }) }
}

impl Operand {
    fn addresses(descriptor: u64, layout: OperandLayout) -> Self {
        Self {
            start: (field(descriptor, 13, 0) as u32) << 4,
            leading: (field(descriptor, 29, 16) as u32) << 4,
            stride: (field(descriptor, 45, 32) as u32) << 4,
            layout,
            leading_is_address: false,
        }
    }

    fn base_offset(descriptor: u64, layout: OperandLayout) -> Result<(), OperandError> {
        match field(descriptor, 51, 49) {
            // Without swizzle the field has no meaning and compilers leave values in it.
            value if value != 0 && layout != OperandLayout::None => Err(OperandError::BaseOffset { descriptor, value }),
            _ => Ok(()),
        }
    }

    /// Decodes a wgmma descriptor.
    ///
    /// # Errors
    /// [`OperandError`]: reserved bits, base offset with swizzle.
    pub fn from_wgmma(descriptor: u64) -> Result<Self, OperandError> {
        let layout = match field(descriptor, 63, 62) {
            0 => OperandLayout::None,
            1 => OperandLayout::B128,
            2 => OperandLayout::B64,
            _ => OperandLayout::B32,
        };
        for (high, low) in [(15, 14), (31, 30), (48, 46), (61, 52)] {
            expect(descriptor, high, low, 0)?;
        }
        Self::base_offset(descriptor, layout)?;
        Ok(Self::addresses(descriptor, layout))
    }

    /// Decodes a tcgen05 descriptor. `long_k` says whether the target has 48-byte K with an absolute leading address.
    ///
    /// # Errors
    /// [`OperandError`]: reserved or constant bits, undefined layout, base offset with swizzle, a misplaced leading
    /// address.
    pub fn from_tcgen05(descriptor: u64, long_k: bool) -> Result<Self, OperandError> {
        let layout = match field(descriptor, 63, 61) {
            0 => OperandLayout::None,
            1 => OperandLayout::B128Base32,
            2 => OperandLayout::B128,
            4 => OperandLayout::B64,
            6 => OperandLayout::B32,
            code => return Err(OperandError::Layout { descriptor, code }),
        };
        for (high, low, expected) in [(15, 14, 0), (31, 30, 0), (48, 46, 1), (60, 53, 0)] {
            expect(descriptor, high, low, expected)?;
        }
        Self::base_offset(descriptor, layout)?;
        let leading_is_address = field(descriptor, 52, 52) == 1;
        if leading_is_address && !(long_k && layout == OperandLayout::B128) {
            return Err(OperandError::LeadingAddress { descriptor });
        }
        Ok(Self { leading_is_address, ..Self::addresses(descriptor, layout) })
    }

    /// Checks that an operand of `bits`-bit elements (containers) and `k_bytes` along K can use this descriptor.
    ///
    /// # Errors
    /// [`OperandError`] when K leaves its swizzle row, or the layout does not exist for the type and direction.
    pub fn check(&self, major: Major, bits: u32, k_bytes: u32) -> Result<(), OperandError> {
        if self.layout == OperandLayout::B128Base32 && !(major == Major::Mn && bits == 32) {
            return Err(OperandError::Base32);
        }
        match major {
            Major::Mn if bits < 8 || (bits == 32 && self.layout != OperandLayout::B128Base32) => {
                Err(OperandError::MnMajor { bits })
            }
            Major::Mn => Ok(()),
            Major::K => match self.layout.width() {
                Some(width) if !self.leading_is_address && self.start % width + k_bytes > width => {
                    Err(OperandError::CrossesRow { bytes: k_bytes, offset: self.start % width, width })
                }
                _ => Ok(()),
            },
        }
    }

    /// Address of unit `unit` of line `line`: of row `line` bytes `16 * unit..` along K, or of `k = line` bytes
    /// `16 * unit..` along M or N.
    #[inline(always)]
    pub fn unit(&self, major: Major, line: u32, unit: u32) -> u32 {
        match major {
            Major::K => self.k_major(line, unit),
            Major::Mn => self.mn_major(line, unit),
        }
    }

    #[inline(always)]
    fn k_major(&self, row: u32, unit: u32) -> u32 {
        let group = (row / 8) * self.stride;
        let Some(width) = self.layout.width() else {
            return wrap(self.start + (row % 8) * 16 + group + unit * self.leading);
        };
        let inside = self.start % 128 + unit * 16;
        let column =
            if self.leading_is_address && inside >= 128 { self.leading + inside - 128 } else { self.start + unit * 16 };
        self.layout.pattern().apply(wrap(column + (row % 8) * width + group))
    }

    #[inline(always)]
    fn mn_major(&self, k: u32, unit: u32) -> u32 {
        let Some(width) = self.layout.width() else {
            return wrap(self.start + unit * self.stride + (k % 8) * 16 + (k / 8) * self.leading);
        };
        let lines = if self.layout == OperandLayout::B128Base32 { 4 } else { 8 };
        let along = (unit * 16) % width + (unit * 16 / width) * self.leading;
        self.layout.pattern().apply(wrap(self.start + along + (k % lines) * width + (k / lines) * self.stride))
    }
}

/// Descriptor addresses have 18 bits.
const fn wrap(address: u32) -> u32 {
    address & 0x3_ffff
}

#[cfg(test)]
mod tests {
    use super::*;
    use OperandLayout as L;

    fn operand(start: u32, leading: u32, stride: u32, layout: L) -> Operand {
        Operand { start, leading, stride, layout, leading_is_address: false }
    }

    #[test]
    fn decodes_the_check_values() {
        let tile = Operand::from_tcgen05(0x4000_4040_0001_0040, false).unwrap();
        assert_eq!(tile, operand(0x400, 16, 1024, L::B128));
        let scale = Operand::from_tcgen05(0x0000_4008_0000_0040, false).unwrap();
        assert_eq!(scale, operand(0x400, 0, 128, L::None));
        let hopper = Operand::from_wgmma(1 << 62 | 64 << 32 | 1 << 16 | 0x40).unwrap();
        assert_eq!(hopper, operand(0x400, 16, 1024, L::B128));
        assert_eq!(Operand::from_wgmma(3 << 62).unwrap().layout, L::B32);
    }

    #[test]
    fn refuses_bad_bits() {
        let good = 0x4000_4040_0001_0040u64;
        for bit in [14, 15, 30, 31, 46, 47, 48, 53, 60] {
            assert!(matches!(Operand::from_tcgen05(good ^ 1 << bit, true), Err(OperandError::Bits { .. })), "{bit}");
        }
        for code in [3u64, 5, 7] {
            let error = Operand::from_tcgen05(good & !(7 << 61) | code << 61, true);
            assert!(matches!(error, Err(OperandError::Layout { code: c, .. }) if c == code));
        }
        assert!(matches!(Operand::from_tcgen05(good | 1 << 49, true), Err(OperandError::BaseOffset { value: 1, .. })));
        assert!(Operand::from_tcgen05(0x0000_4008_0000_0040 | 4 << 49, false).is_ok(), "ignored without swizzle");
        assert!(matches!(Operand::from_tcgen05(good | 1 << 52, false), Err(OperandError::LeadingAddress { .. })));
        assert!(Operand::from_tcgen05(good | 1 << 52, true).is_ok());
        assert!(matches!(Operand::from_wgmma(1 << 52), Err(OperandError::Bits { .. })));
        assert!(matches!(Operand::from_wgmma(1 << 62 | 1 << 49), Err(OperandError::BaseOffset { .. })));
    }

    /// Element addresses as the ISA notes write them, for every element size.
    #[test]
    fn units_match_the_element_formulas() {
        for e in [1u32, 2, 4] {
            let t = 16 / e;
            for layout in [L::None, L::B32, L::B64, L::B128] {
                let (lbo, sbo) = (0x1200, 0x800);
                let d = operand(0x2000, lbo, sbo, layout);
                let sw = |a: u32| layout.pattern().apply(a);
                for mn in 0..64u32 {
                    for k in 0..32 / e {
                        let kb = k * e;
                        let expected = match layout.width() {
                            None => 0x2000 + (mn % 8) * 16 + (mn / 8) * sbo + (kb / 16) * lbo + kb % 16,
                            Some(w) => sw(0x2000 + (mn % 8) * w + (mn / 8) * sbo + kb),
                        };
                        assert_eq!(
                            d.unit(Major::K, mn, kb / 16) + kb % 16,
                            expected,
                            "K {layout:?} e={e} mn={mn} k={k}"
                        );
                    }
                }
                if e == 4 {
                    continue;
                }
                for mn in 0..256u32 {
                    for k in 0..32u32 {
                        let expected = match layout.width() {
                            None => 0x2000 + (mn % t) * e + (mn / t) * sbo + (k % 8) * 16 + (k / 8) * lbo,
                            Some(w) => {
                                let p = w / e;
                                sw(0x2000 + (mn % p) * e + (mn / p) * lbo + (k % 8) * w + (k / 8) * sbo)
                            }
                        };
                        assert_eq!(
                            d.unit(Major::Mn, k, mn / t) + mn % t * e,
                            expected,
                            "MN {layout:?} e={e} mn={mn} k={k}"
                        );
                    }
                }
            }
        }
        let d = operand(0x2000, 0x1000, 0x200, L::B128Base32);
        for mn in 0..64u32 {
            for k in 0..8u32 {
                let a = 0x2000 + (mn % 32) * 4 + (mn / 32) * 0x1000 + (k % 4) * 128 + (k / 4) * 0x200;
                assert_eq!(d.unit(Major::Mn, k, mn / 4) + mn % 4 * 4, a ^ ((a >> 7) & 3) << 5);
            }
        }
    }

    /// Advancing the start inside a 128-byte row reads the next K step of a tile that a copy wrote with the same
    /// swizzle.
    #[test]
    fn stepping_inside_a_row_follows_the_copy() {
        let tile = 0x800;
        for step in 0..4 {
            let d = operand(tile + 32 * step, 0, 1024, L::B128);
            d.check(Major::K, 16, 32).unwrap();
            for row in 0..64 {
                for unit in 0..2 {
                    let copied = Pattern::B128.apply(tile + row * 128 + step * 32 + unit * 16);
                    assert_eq!(d.unit(Major::K, row, unit), copied);
                }
            }
        }
        let error = operand(tile + 112, 0, 1024, L::B128).check(Major::K, 16, 32);
        assert_eq!(error, Err(OperandError::CrossesRow { bytes: 32, offset: 112, width: 128 }));
    }

    /// The 48-byte walk over three 128-byte buffers: starts 96 and 112 straddle into the next buffer.
    #[test]
    fn forty_eight_byte_steps_straddle() {
        let buffers = [0x400u32, 0x2400, 0x4400];
        for (buffer, offset) in [(0, 0), (0, 48), (0, 96), (1, 16), (1, 64), (1, 112), (2, 32), (2, 80)] {
            let second = buffers[(buffer + 1) % 3];
            let d = Operand { leading_is_address: true, ..operand(buffers[buffer] + offset, second, 1024, L::B128) };
            d.check(Major::K, 4, 48).unwrap();
            for row in 0..16 {
                for unit in 0..3 {
                    let byte = offset + unit * 16;
                    let (base, byte) = if byte < 128 { (buffers[buffer], byte) } else { (second, byte - 128) };
                    let copied = Pattern::B128.apply(base + row * 128 + byte);
                    assert_eq!(d.unit(Major::K, row, unit), copied, "start {offset} row {row} unit {unit}");
                }
            }
        }
    }

    #[test]
    fn checks_type_and_direction() {
        let none = operand(0, 0, 0, L::None);
        assert_eq!(none.check(Major::Mn, 4, 32), Err(OperandError::MnMajor { bits: 4 }));
        assert_eq!(none.check(Major::Mn, 32, 32), Err(OperandError::MnMajor { bits: 32 }));
        assert_eq!(none.check(Major::Mn, 8, 32), Ok(()));
        let base32 = operand(0, 0, 0, L::B128Base32);
        assert_eq!(base32.check(Major::K, 32, 32), Err(OperandError::Base32));
        assert_eq!(base32.check(Major::Mn, 32, 32), Ok(()));
    }
}
