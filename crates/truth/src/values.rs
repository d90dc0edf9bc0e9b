//! Inputs, made by rules from a seed.

use half::{bf16, f16};

use crate::case::Input;

/// A generator of 64-bit values (splitmix64).
#[derive(Debug, Clone)]
pub struct Source(u64);

impl Source {
    /// A generator that depends on a name only.
    pub fn named(name: &str) -> Source {
        Source(crate::record::digest(&[name.as_bytes()]))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }

    /// `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n.div_ceil(8)).flat_map(|_| self.bits().to_le_bytes()).take(n).collect()
    }
}

/// Kind of an elementwise operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// 16-bit integer.
    I16,
    /// 32-bit integer.
    I32,
    /// 64-bit integer.
    I64,
    /// A number from 0 to 80, for shifts and positions.
    Count,
    /// binary32
    F32,
    /// binary64
    F64,
    /// binary16
    F16,
    /// bfloat16
    Bf16,
    /// Two binary16.
    F16x2,
    /// Two bfloat16.
    Bf16x2,
    /// Two FP8 codes in a 16-bit register: all of them occur.
    Fp8x2,
}

impl Kind {
    /// Bits of its register.
    pub fn bits(self) -> u32 {
        match self {
            Kind::I16 | Kind::F16 | Kind::Bf16 | Kind::Fp8x2 => 16,
            Kind::I64 | Kind::F64 => 64,
            _ => 32,
        }
    }

    fn edges(self) -> Vec<u64> {
        match self {
            Kind::I16 => [0u64, 1, 2, 0x7fff, 0x8000, 0x8001, 0xffff, 0xff, 0x100, 0x5555].to_vec(),
            Kind::I32 => {
                [0u64, 1, 2, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, 0xffff_ffff, 0xffff, 0x1_0000, 0x5555_5555, 31, 32]
                    .to_vec()
            }
            Kind::I64 => {
                [0, 1, 2, i64::MAX as u64, 1 << 63, (1 << 63) + 1, u64::MAX, 0xffff_ffff, 1 << 32, 63].to_vec()
            }
            Kind::Count => (0..80).collect(),
            Kind::F32 => [
                0u32,
                0x8000_0000,
                1,
                0x8000_0001,
                0x7f_ffff,
                0x80_0000,
                0x8080_0000,
                0x3f80_0000,
                0xbf80_0000,
                0x3f80_0001,
                0x3f7f_ffff,
                0x3f00_0000,
                0x4b80_0000,
                0x7f7f_ffff,
                0xff7f_ffff,
                0x7f80_0000,
                0xff80_0000,
                0x7fc0_0000,
                0x7f80_0001,
                0xffc1_2345,
                0x477f_e000,
                0x477f_f000,
                0x43e0_0000,
                0x43e8_0000,
                0x3300_0000,
                0x3380_0000,
                0x3a80_0000,
                0x3b00_0000,
                0x4f00_0000,
                0xcf00_0000,
                0x4f80_0000,
                0x5f00_0000,
                0x5f80_0000,
            ]
            .map(u64::from)
            .to_vec(),
            Kind::F64 => [
                0u64,
                1 << 63,
                1,
                0xf_ffff_ffff_ffff,
                0x10_0000_0000_0000,
                0x3ff0_0000_0000_0000,
                0xbff0_0000_0000_0000,
                0x3ff0_0000_0000_0001,
                0x3fef_ffff_ffff_ffff,
                0x7fef_ffff_ffff_ffff,
                0xffef_ffff_ffff_ffff,
                0x7ff0_0000_0000_0000,
                0xfff0_0000_0000_0000,
                0x7ff8_0000_0000_0000,
                0x7ff0_0000_0000_0001,
                0xfff8_1234_5678_9abc,
                0x41e0_0000_0000_0000,
                0x43e0_0000_0000_0000,
                0x3690_0000_0000_0000,
                0x380f_ffff_ffff_ffff,
                0x47ef_ffff_f000_0000,
                0x3810_0000_0000_0000,
            ]
            .to_vec(),
            Kind::F16 | Kind::F16x2 => [
                0u64, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x3c00, 0xbc00, 0x3c01, 0x3bff, 0x7bff, 0xfbff, 0x7c00, 0xfc00,
                0x7e00, 0x7c01, 0xfe12, 0x5f00, 0x5f40,
            ]
            .to_vec(),
            Kind::Bf16 | Kind::Bf16x2 => [
                0u64, 0x8000, 1, 0x8001, 0x7f, 0x80, 0x3f80, 0xbf80, 0x3f81, 0x3f7f, 0x7f7f, 0xff7f, 0x7f80, 0xff80,
                0x7fc0, 0x7f81, 0xffc1, 0x4380, 0x3300,
            ]
            .to_vec(),
            Kind::Fp8x2 => (0..256).map(|code| code << 8 | (255 - code)).collect(),
        }
    }

    /// Bits that are not edge values: half of the time any, half of the time numbers near 1.
    fn drawn(self, source: &mut Source) -> u64 {
        let bits = source.bits();
        let near = source.below(2) == 0;
        let exponent = source.below(24) as i64 - 12;
        let moderate = |fraction: u32, bias: i64| {
            let sign_and_fraction = bits & (1 << fraction | ((1 << fraction) - 1));
            (sign_and_fraction >> fraction) << (63)
                | ((bias + exponent) as u64) << fraction
                | (bits & ((1 << fraction) - 1))
        };
        let mask = |bits: u64, width: u32| if width == 64 { bits } else { bits & ((1 << width) - 1) };
        match self {
            Kind::F32 if near => {
                let x = moderate(23, 127);
                (x >> 63) << 31 | mask(x, 31)
            }
            Kind::F64 if near => moderate(52, 1023),
            Kind::F16 if near => {
                let x = moderate(10, 15);
                (x >> 63) << 15 | mask(x, 15)
            }
            Kind::Bf16 if near => {
                let x = moderate(7, 127);
                (x >> 63) << 15 | mask(x, 15)
            }
            Kind::F16x2 => Kind::F16.drawn(source) | Kind::F16.drawn(source) << 16,
            Kind::Bf16x2 => Kind::Bf16.drawn(source) | Kind::Bf16.drawn(source) << 16,
            Kind::Count => bits % 80,
            // Small integers often.
            Kind::I16 | Kind::I32 | Kind::I64 if near => mask((bits as i64 >> 48) as u64, self.bits()),
            _ => mask(bits, self.bits()),
        }
    }
}

/// Operands of `n` threads: pairs of edge values first (all pairs of the first two operands, third ones drawn), then
/// edge values and drawn bits mixed.
pub fn operands(name: &str, kinds: &[Kind], n: usize) -> Vec<Input> {
    let mut source = Source::named(name);
    let edges: Vec<Vec<u64>> = kinds.iter().map(|kind| kind.edges()).collect();
    let pairs: usize = edges.iter().take(2).map(Vec::len).product();
    let mut inputs: Vec<Input> = kinds.iter().map(|kind| Input { bits: kind.bits(), values: Vec::new() }).collect();
    for i in 0..n {
        let mut rest = i;
        for (j, (kind, edges)) in kinds.iter().zip(&edges).enumerate() {
            let pick = |source: &mut Source| edges[source.below(edges.len() as u64) as usize];
            let mut value = if i < pairs && j < 2 {
                let value = edges[rest % edges.len()];
                rest /= edges.len();
                value
            } else if source.below(3) == 0 {
                pick(&mut source)
            } else {
                kind.drawn(&mut source)
            };
            if matches!(kind, Kind::F16x2 | Kind::Bf16x2) && value >> 16 == 0 {
                value |= pick(&mut source) << 16;
            }
            inputs[j].values.push(value);
        }
    }
    inputs
}

/// An element format of matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Element {
    F16,
    Bf16,
    Tf32,
    F32,
    F64,
    E4m3,
    E5m2,
    I8,
    I32,
}

impl Element {
    /// Bits.
    pub fn bits(self) -> u32 {
        match self {
            Element::E4m3 | Element::E5m2 | Element::I8 => 8,
            Element::F16 | Element::Bf16 => 16,
            Element::Tf32 | Element::F32 | Element::I32 => 32,
            Element::F64 => 64,
        }
    }

    /// A value of random sign and fraction whose exponent lies within `spread` of 0; one in eight is zero. Spread 0
    /// gives small integers, and a spread above 100 any code at all, infinities and NaN included.
    pub fn draw(self, source: &mut Source, spread: u32) -> u64 {
        let bits = source.bits();
        if matches!(self, Element::I8 | Element::I32) || spread > 100 {
            return if self.bits() == 64 { bits } else { bits & ((1 << self.bits()) - 1) };
        }
        let x = if spread == 0 {
            (bits % 7) as f64 - 3.0
        } else if bits.is_multiple_of(8) {
            0.0
        } else {
            let fraction = 1.0 + (bits >> 12) as f64 / (1u64 << 52) as f64;
            let exponent = source.below(2 * u64::from(spread) + 1) as i32 - spread as i32;
            let x = fraction * f64::from(exponent).exp2();
            if source.below(2) == 0 { x } else { -x }
        };
        self.encode(x)
    }

    /// The code of a value; FP8 and tf32 drop bits, the others round.
    pub fn encode(self, x: f64) -> u64 {
        let small = |fraction: u32, bias: i32, most: f64| {
            let sign = u64::from(x.is_sign_negative()) << 7;
            let magnitude = x.abs().min(most);
            if magnitude < f64::from(1 - bias).exp2() {
                return sign | (magnitude * f64::from(bias - 1 + fraction as i32).exp2()) as u64;
            }
            let bits = magnitude.to_bits();
            let exponent = (bits >> 52) as i32 - 1023 + bias;
            sign | (exponent as u64) << fraction | (bits >> (52 - fraction) & ((1 << fraction) - 1))
        };
        match self {
            Element::F16 => f16::from_f64(x).to_bits().into(),
            Element::Bf16 => bf16::from_f64(x).to_bits().into(),
            Element::Tf32 => u64::from((x as f32).to_bits() & !0x1fff),
            Element::F32 => (x as f32).to_bits().into(),
            Element::F64 => x.to_bits(),
            Element::E4m3 => small(3, 7, 448.0),
            Element::E5m2 => small(2, 15, 57344.0),
            Element::I8 | Element::I32 => x as i64 as u64 & ((1 << self.bits()) - 1),
        }
    }

    /// A register of `bits` filled with elements.
    pub fn register(self, source: &mut Source, spread: u32, bits: u32) -> u64 {
        (0..bits / self.bits()).fold(0, |word, i| word | self.draw(source, spread) << (i * self.bits()))
    }
}
