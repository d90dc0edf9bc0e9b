//! cvt: between integers, floats, and packed narrow formats. Semantics are those of [`crate::numerics::convert`].

mod decode;
mod scalar;

use super::{map1, map2};
use crate::finding::Kind;
use crate::isa::Type;
use crate::machine::{Cluster, Outcome, R32, Reg, Regs, WARP, Warp};
use crate::numerics::convert::{self, Packed};
use crate::numerics::format::{BF16, Narrow, Rounding, decode_bf16, decode_ue8m0};
use scalar::scalar;

pub use decode::ROWS;

/// A decoded conversion.
#[derive(Debug, Clone)]
pub enum ConvertOp {
    /// One scalar to another.
    Scalar {
        /// Written; may be wider than `to`.
        d: Reg,
        /// Read; may be wider than `from`.
        a: Reg,
        /// Destination type.
        to: Type,
        /// Source type.
        from: Type,
        /// How.
        how: ScalarMode,
    },
    /// f32 to TF32.
    Tf32 {
        /// Written.
        d: R32,
        /// Read.
        a: R32,
        /// How.
        how: Narrow,
    },
    /// Two f32 to a packed pair, `a` high.
    Pair {
        /// Element type.
        to: Packed,
        /// Written.
        d: R32,
        /// High element.
        a: R32,
        /// Low element.
        b: R32,
        /// How.
        how: Narrow,
    },
    /// A packed pair to another.
    Repack {
        /// Source elements.
        from: Packed,
        /// Destination elements.
        to: Packed,
        /// Written.
        d: R32,
        /// Read.
        a: R32,
        /// How.
        how: Narrow,
    },
    /// A packed pair times two power-of-two scales, to bf16x2.
    Scaled {
        /// Source elements.
        from: Packed,
        /// Written.
        d: R32,
        /// Elements.
        a: R32,
        /// Scales, ue8m0x2.
        scale: R32,
        /// How.
        how: Narrow,
    },
    /// To two ue8m0, `a` high; without `b` the source is bf16x2.
    ToScale {
        /// Written.
        d: R32,
        /// High element, or both.
        a: R32,
        /// Low element.
        b: Option<R32>,
        /// `.rp`
        up: bool,
        /// `.satfinite`
        satfinite: bool,
    },
    /// ue8m0x2 to bf16x2.
    FromScale {
        /// Written.
        d: R32,
        /// Read.
        a: R32,
    },
    /// f32 with random bits: two or four elements, highest first.
    Stochastic {
        /// Element type.
        to: Packed,
        /// Written.
        d: R32,
        /// Elements, highest first.
        sources: Box<[R32]>,
        /// Random bits.
        random: R32,
        /// How.
        how: Narrow,
    },
    /// `cvt.pack.sat`
    SaturatingPack {
        /// Bits of an element.
        bits: u32,
        /// Signed elements.
        signed: bool,
        /// Written.
        d: R32,
        /// Upper new element.
        a: R32,
        /// Lower new element.
        b: R32,
        /// What moves up.
        c: Option<R32>,
    },
}

/// Modifiers of a scalar conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScalarMode {
    /// Rounding to the destination's precision.
    pub rounding: Rounding,
    /// Rounding to an integral value.
    pub integral: Option<Rounding>,
    /// `.ftz`
    pub ftz: bool,
    /// `.sat`
    pub sat: bool,
    /// `.relu`
    pub relu: bool,
    /// `.satfinite`
    pub satfinite: bool,
}

/// Executes a conversion.
#[inline]
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &ConvertOp) -> Outcome {
    let regs = &mut warp.regs;
    let value = f32::from_bits;
    match *op {
        ConvertOp::Scalar { d, a, to, from, how } => scalar(regs, mask, d, a, (to, from), how),
        ConvertOp::Tf32 { d, a, how } => map1::<u32, u32>(regs, mask, d, a, |a| convert::narrow_tf32(value(a), how)),
        ConvertOp::Pair { to, d, a, b, how } => pair(regs, mask, to, d, (a, b), how),
        ConvertOp::Repack { from, to, d, a, how } => {
            map1::<u32, u32>(regs, mask, d, a, |a| from.convert_x2(a, to, how))
        }
        ConvertOp::Scaled { from, d, a, scale, how } => {
            map2::<u32, u32, u32>(regs, mask, d, a, scale, |a, s| from.scale_to_bf16x2(a, s as u16, how))
        }
        ConvertOp::FromScale { d, a } => map1::<u32, u32>(regs, mask, d, a, |a| {
            let one = |code: u32| {
                if code == 0xff { 0x7fff } else { BF16.narrow_f32(decode_ue8m0(code as u8), Narrow::RN) }
            };
            one(a & 0xff) | one(a >> 8 & 0xff) << 16
        }),
        ConvertOp::ToScale { d, a, b, up, satfinite } => {
            let mut out = [0; WARP];
            let (a, b) = (*regs.get::<u32>(a), b.map(|b| *regs.get::<u32>(b)));
            for lane in super::lanes(mask) {
                let (high, low) = match b {
                    Some(b) => (value(a[lane]), value(b[lane])),
                    None => (decode_bf16((a[lane] >> 16) as u16), decode_bf16(a[lane] as u16)),
                };
                let codes = convert::narrow_ue8m0(high, up, satfinite)
                    .and_then(|high| Ok((high, convert::narrow_ue8m0(low, up, satfinite)?)));
                match codes {
                    Ok((high, low)) => out[lane] = u32::from(high) << 8 | u32::from(low),
                    Err(refused) => return machine.fault(Kind::Undefined, warp, 1 << lane, refused.to_string()),
                }
            }
            warp.regs.set::<u32>(d, mask, &out);
            Outcome::Next
        }
        ConvertOp::Stochastic { to, d, ref sources, random, how } => {
            let random = *regs.get::<u32>(random);
            let bits = to.container_bits();
            let mut out = [0; WARP];
            for (i, &source) in sources.iter().enumerate() {
                let source = *regs.get::<u32>(source);
                let position = (sources.len() - 1 - i) as u32;
                for lane in 0..WARP {
                    let noise = random_bits(to, sources.len(), i, random[lane]);
                    out[lane] |= to.stochastic(value(source[lane]), noise, how) << (bits * position);
                }
            }
            regs.set::<u32>(d, mask, &out);
            Outcome::Next
        }
        ConvertOp::SaturatingPack { bits, signed, d, a, b, c } => {
            let clamp = |x: u32| {
                let (least, most) =
                    if signed { (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1) } else { (0, (1i64 << bits) - 1) };
                (i64::from(x as i32).clamp(least, most) as u32) & ((1u64 << bits) - 1) as u32
            };
            let (a, b) = (*regs.get::<u32>(a), *regs.get::<u32>(b));
            let c = c.map_or([0; WARP], |c| *regs.get::<u32>(c));
            let out = std::array::from_fn(|lane| {
                let above = if bits == 16 { 0 } else { c[lane] << (2 * bits) };
                above | clamp(a[lane]) << bits | clamp(b[lane])
            });
            regs.set::<u32>(d, mask, &out);
            Outcome::Next
        }
    }
}

/// The random bits of element `index` (highest first) of `count`, ISA notes 7.2.
fn random_bits(to: Packed, count: usize, index: usize, random: u32) -> u32 {
    match (to, count) {
        (Packed::F16, _) => (if index == 0 { random >> 16 } else { random }) & 0x1fff,
        (Packed::Bf16, _) => {
            if index == 0 {
                random >> 16
            } else {
                random & 0xffff
            }
        }
        // Four values a, b, e, f: the upper half serves a and b, the lower e and f.
        (Packed::E2m1, _) => (if index < 2 { random >> 24 } else { random >> 8 }) & 0xff,
        _ => {
            if index < 2 {
                random >> 16
            } else {
                random & 0xffff
            }
        }
    }
}

fn pair(regs: &mut Regs, mask: u32, to: Packed, d: R32, (a, b): (R32, R32), how: Narrow) -> Outcome {
    macro_rules! run {
        ($to:expr, $how:expr) => {
            map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| $to.narrow_x2(f32::from_bits(a), f32::from_bits(b), $how))
        };
    }
    match (to, how) {
        (Packed::Bf16, Narrow::RN) => run!(Packed::Bf16, Narrow::RN),
        (Packed::F16, Narrow::RN) => run!(Packed::F16, Narrow::RN),
        (Packed::E4m3, Narrow::RN_SATFINITE) => run!(Packed::E4m3, Narrow::RN_SATFINITE),
        (Packed::E2m1, Narrow::RN_SATFINITE) => run!(Packed::E2m1, Narrow::RN_SATFINITE),
        _ => run!(to, how),
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Target;
    use crate::testing::{lanes, run_on, run32};

    #[test]
    fn integers_truncate_extend_and_saturate() {
        let a = lanes(&[0u32, 0x80, 0x7f, 0xffff_ff80, 0x1_0000, 0xffff_ffff]);
        let ran = run_on(
            Target::Sm90,
            "cvt.s32.s8 %o0, %r0; cvt.u32.u8 %o1, %r0; cvt.sat.s8.s32 %o2, %r0; cvt.sat.u8.s32 %o3, %r0; cvt.u32.u16 %o4, %r0;
             cvt.s64.s32 %q0, %r0; cvt.u64.u32 %q1, %r0; cvt.s16.s8 %h0, %r0; cvt.u32.u16 %o5, %h0;",
            (&[a], &[]),
            (6, 2),
        );
        assert!(ran.report.is_clean());
        for lane in 0..32 {
            let a = a[lane];
            assert_eq!(ran.words[0][lane], a as i8 as u32);
            assert_eq!(ran.words[1][lane], a as u8 as u32);
            assert_eq!(ran.words[2][lane], (a as i32).clamp(-128, 127) as u32);
            assert_eq!(ran.words[3][lane], (a as i32).clamp(0, 255) as u32);
            assert_eq!(ran.words[4][lane], a as u16 as u32);
            assert_eq!(ran.words[5][lane], a as i8 as i16 as u16 as u32);
            assert_eq!(ran.wide[0][lane], a as i32 as i64 as u64);
            assert_eq!(ran.wide[1][lane], u64::from(a));
        }
    }

    #[test]
    fn floats_to_integers_clamp() {
        let x = lanes(&[1.5f32, 2.5, -1.5, 3e9, -3e9, f32::NAN, f32::INFINITY, -0.6]).map(f32::to_bits);
        let out = run32(
            "cvt.rni.s32.f32 %o0, %r0; cvt.rzi.u32.f32 %o1, %r0; cvt.rpi.s32.f32 %o2, %r0; cvt.rmi.f32.f32 %o3, %r0; cvt.rn.f32.s32 %o4, %r1; cvt.rn.f32.u32 %o5, %r1; cvt.rz.f32.u32 %o6, %r1;",
            &[x, lanes(&[0xffff_ffff, 16_777_217, 7])],
            7,
        );
        assert_eq!(
            out[0][..8],
            [2, 2, -2i32 as u32, i32::MAX as u32, i32::MIN as u32, 0, i32::MAX as u32, -1i32 as u32]
        );
        assert_eq!(out[1][..8], [1, 2, 0, 3_000_000_000, 0, 0, u32::MAX, 0]);
        assert_eq!(out[2][..8], [2, 3, -1i32 as u32, i32::MAX as u32, i32::MIN as u32, 0, i32::MAX as u32, 0]);
        assert_eq!(f32::from_bits(out[3][7]), -1.0);
        assert_eq!([out[4][0], out[4][1]].map(f32::from_bits), [-1.0, 16_777_216.0]);
        assert_eq!(f32::from_bits(out[5][0]), 4_294_967_296.0);
        assert_eq!(f32::from_bits(out[6][0]), 4_294_967_040.0);
    }

    #[test]
    fn packed_formats() {
        let f = |x: f32| lanes(&[x.to_bits()]);
        let out = run32(
            "cvt.rn.bf16x2.f32 %o0, %r0, %r1; cvt.rn.f16x2.f32 %o1, %r0, %r1; cvt.rn.satfinite.e4m3x2.f32 %h0, %r0, %r2;
             cvt.u32.u16 %o2, %h0; cvt.rn.f16x2.e4m3x2 %o3, %h0; cvt.rna.tf32.f32 %o4, %r3; cvt.rp.satfinite.ue8m0x2.f32 %h1, %r0, %r3;
             cvt.u32.u16 %o5, %h1; cvt.rn.bf16x2.ue8m0x2 %o6, %h1; cvt.rn.relu.bf16x2.f32 %o7, %r1, %r0;
             cvt.rn.f16.f32 %h2, %r0; cvt.f32.f16 %o8, %h2; cvt.rn.satfinite.e5m2x2.f16x2 %h3, %o1; cvt.u32.u16 %o9, %h3;",
            &[f(1.5), f(-2.0), f(1000.0), f(1.000_4)],
            10,
        );
        let at = |i: usize| out[i][17];
        assert_eq!(at(0), 0x3fc0_c000);
        assert_eq!(at(1), 0x3e00_c000);
        assert_eq!(at(2), 0x3c7e);
        assert_eq!(at(3), 0x3e00_5f00);
        assert_eq!(f32::from_bits(at(4)), 1.0);
        assert_eq!(at(5), 0x8080);
        assert_eq!(at(6), 0x4000_4000);
        assert_eq!(at(7), 0x0000_3fc0);
        assert_eq!(f32::from_bits(at(8)), 1.5);
        assert_eq!(at(9), 0x3ec0);
    }

    #[test]
    fn fp4_pairs_fill_a_byte() {
        let out = run32(
            ".reg .b8 %b<3>; cvt.rn.satfinite.e2m1x2.f32 %b0, %r0, %r1; cvt.u32.u8 %o0, %b0; cvt.rn.f16x2.e2m1x2 %o1, %b0;
             cvt.rn.satfinite.e2m1x2.f32 %b1, %r1, %r0; mov.b16 %h0, {%b0, %b1}; cvt.u32.u16 %o2, %h0;",
            &[lanes(&[3.0f32.to_bits()]), lanes(&[(-0.5f32).to_bits()])],
            3,
        );
        assert_eq!(out[0][0], 0x59);
        assert_eq!(out[1][0], 0x4200_b800);
        assert_eq!(out[2][0], 0x9559);
    }
}
