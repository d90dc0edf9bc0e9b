//! Floating-point arithmetic: f32, f64, f16, bf16, packed pairs, mixed forms, approximate functions.
//!
//! Rounding, NaN, subnormals and saturation are those of [`crate::numerics`]; this file only routes lanes.

mod decode;
#[cfg(test)]
mod tests;

pub use decode::ROWS;

use super::{map1, map2, map3};
use crate::machine::{Cluster, Outcome, P, R32, R64, Regs, WARP, Warp};
use crate::numerics::approx::Approximation;
use crate::numerics::arith::{self, Half, HalfType, MinMax};
use crate::numerics::format::Rounding;

/// Modifiers of an f32 or f64 operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mode {
    /// Rounding.
    pub rounding: Rounding,
    /// `.ftz`
    pub ftz: bool,
    /// `.sat`
    pub sat: bool,
}

/// Sum, difference, product, quotient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`, rounded correctly.
    Div,
    /// `div.approx`
    DivApprox,
    /// `div.full`
    DivFull,
    /// `copysign`: the sign of `a`, the magnitude of `b`.
    CopySign,
}

/// Functions of one f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unary {
    /// Magnitude.
    Abs,
    /// Negation.
    Neg,
    /// `1 / a`, rounded correctly.
    Rcp,
    /// Square root, rounded correctly.
    Sqrt,
    /// `rcp.approx`
    RcpApprox,
    /// `rsqrt.approx`
    Rsqrt,
    /// `sqrt.approx`
    SqrtApprox,
    /// `ex2.approx`
    Ex2,
    /// `lg2.approx`
    Lg2,
    /// `sin.approx`
    Sin,
    /// `cos.approx`
    Cos,
    /// `tanh.approx`
    Tanh,
}

/// A decoded floating-point operation.
#[derive(Debug, Clone)]
pub enum FloatOp {
    /// f32 of one source.
    Unary32 {
        /// What.
        op: Unary,
        /// Modifiers.
        mode: Mode,
        /// Written.
        d: R32,
        /// Read.
        a: R32,
    },
    /// f32 of two sources.
    Binary32 {
        /// What.
        op: Binary,
        /// Modifiers.
        mode: Mode,
        /// Written.
        d: R32,
        /// Read.
        a: R32,
        /// Read.
        b: R32,
    },
    /// `a * b + c` in f32.
    Fma32 {
        /// Modifiers.
        mode: Mode,
        /// Written.
        d: R32,
        /// Read.
        abc: (R32, R32, R32),
    },
    /// Minimum or maximum of two or three f32.
    MinMax32 {
        /// Which, and how NaN and sign count.
        how: MinMax,
        /// Written.
        d: R32,
        /// Read.
        a: R32,
        /// Read.
        b: R32,
        /// Read by the three-operand form.
        c: Option<R32>,
    },
    /// f64 of one source: abs, neg, rcp, sqrt.
    Unary64 {
        /// What.
        op: Unary,
        /// Modifiers.
        mode: Mode,
        /// Written.
        d: R64,
        /// Read.
        a: R64,
    },
    /// f64 of two sources.
    Binary64 {
        /// What.
        op: Binary,
        /// Rounding.
        rounding: Rounding,
        /// Written.
        d: R64,
        /// Read.
        a: R64,
        /// Read.
        b: R64,
    },
    /// `a * b + c` in f64.
    Fma64 {
        /// Rounding.
        rounding: Rounding,
        /// Written.
        d: R64,
        /// Read.
        abc: (R64, R64, R64),
    },
    /// Minimum or maximum of two f64.
    MinMax64 {
        /// Which.
        how: MinMax,
        /// Written.
        d: R64,
        /// Read.
        a: R64,
        /// Read.
        b: R64,
    },
    /// Two f32 in a 64-bit register, element 0 low: sum, difference, product.
    Packed32 {
        /// What.
        op: Binary,
        /// Modifiers.
        mode: Mode,
        /// Written.
        d: R64,
        /// Read.
        a: R64,
        /// Read.
        b: R64,
    },
    /// `a * b + c` on two f32.
    PackedFma32 {
        /// Modifiers.
        mode: Mode,
        /// Written.
        d: R64,
        /// Read.
        abc: (R64, R64, R64),
    },
    /// f16 or bf16, one or two elements.
    Half {
        /// What.
        op: HalfOp,
        /// Format.
        kind: HalfType,
        /// Two elements.
        packed: bool,
        /// Written.
        d: R32,
        /// Sources; fewer are repeated.
        abc: (R32, R32, R32),
    },
    /// Sum, difference or multiply-add of f32 with 16-bit sources, widened exactly first.
    Mixed {
        /// What; `Mul` stands for `fma`.
        op: Binary,
        /// Format of `a` (and of `b` in `fma`).
        kind: HalfType,
        /// Modifiers.
        mode: Mode,
        /// Written.
        d: R32,
        /// Read.
        abc: (R32, R32, R32),
    },
    /// `testp`
    Test {
        /// Which class.
        class: Class,
        /// Written.
        p: P,
        /// f32 source.
        a: R32,
        /// f64 source, when the type is f64.
        wide: Option<R64>,
    },
    /// `mul.rn.satfinite.e4m3x4.e2m1x4.e4m3x4`
    ScaleFp4 {
        /// Written.
        d: R32,
        /// Four FP4 elements.
        a: R32,
        /// Four E4M3 elements.
        b: R32,
    },
}

/// 16-bit operations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HalfOp {
    /// `a + b`
    Add(Half),
    /// `a - b`
    Sub(Half),
    /// `a * b`
    Mul(Half),
    /// `a * b + c`
    Fma(Half),
    /// Minimum or maximum of two or three.
    MinMax(MinMax, bool),
    /// Magnitude; the flag is `.ftz`.
    Abs(bool),
    /// Negation; the flag is `.ftz`.
    Neg(bool),
    /// `ex2.approx`
    Ex2,
    /// `tanh.approx`
    Tanh,
}

/// Classes of `testp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Neither infinite nor NaN.
    Finite,
    /// Infinite.
    Infinite,
    /// Anything but NaN.
    Number,
    /// NaN.
    NotANumber,
    /// Normal.
    Normal,
    /// Subnormal.
    Subnormal,
}

/// Applies `.ftz` and `.sat` around a function of f32.
#[inline(always)]
fn wrap(mode: Mode, x: f32) -> f32 {
    let x = if mode.ftz { arith::flush(x) } else { x };
    if mode.sat { arith::saturate(x) } else { x }
}

#[inline(always)]
fn input(mode: Mode, bits: u32) -> f32 {
    let x = f32::from_bits(bits);
    if mode.ftz { arith::flush(x) } else { x }
}

/// Executes a floating-point operation.
#[inline]
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &FloatOp) -> Outcome {
    let regs = &mut warp.regs;
    match *op {
        FloatOp::Binary32 { op, mode, d, a, b } => binary32(regs, mask, op, mode, d, (a, b)),
        FloatOp::Fma32 { mode, d, abc } => fma32(regs, mask, mode, d, abc),
        FloatOp::Unary32 { op, mode, d, a } => {
            if op == Unary::Ex2 {
                machine.counters.exponentials += u64::from(mask.count_ones());
            }
            unary32(regs, mask, machine.options.approximation, op, mode, d, a)
        }
        FloatOp::MinMax32 { how, d, a, b, c: None } => map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| {
            arith::min_max(f32::from_bits(a), f32::from_bits(b), how).to_bits()
        }),
        FloatOp::MinMax32 { how, d, a, b, c: Some(c) } => {
            map3::<u32, u32, u32, u32>(regs, mask, d, (a, b, c), |a, b, c| {
                arith::min_max3(f32::from_bits(a), f32::from_bits(b), f32::from_bits(c), how).to_bits()
            })
        }
        FloatOp::Unary64 { op, mode, d, a } => map1::<u64, u64>(regs, mask, d, a, |a| unary64(op, mode, a)),
        FloatOp::Binary64 { op, rounding, d, a, b } => map2::<u64, u64, u64>(regs, mask, d, a, b, |a, b| {
            let (x, y) = (f64::from_bits(a), f64::from_bits(b));
            let result = match op {
                Binary::Add => arith::add_f64(x, y, rounding),
                Binary::Sub => arith::sub_f64(x, y, rounding),
                Binary::Mul => arith::mul_f64(x, y, rounding),
                Binary::CopySign => return a & 1 << 63 | b & !(1 << 63),
                _ => arith::div_f64(x, y, rounding),
            };
            result.to_bits()
        }),
        FloatOp::Fma64 { rounding, d, abc } => map3::<u64, u64, u64, u64>(regs, mask, d, abc, |a, b, c| {
            arith::fma_f64(f64::from_bits(a), f64::from_bits(b), f64::from_bits(c), rounding).to_bits()
        }),
        FloatOp::MinMax64 { how, d, a, b } => map2::<u64, u64, u64>(regs, mask, d, a, b, |a, b| {
            arith::min_max_f64(f64::from_bits(a), f64::from_bits(b), how).to_bits()
        }),
        FloatOp::Packed32 { op, mode, d, a, b } => packed32(regs, mask, op, mode, d, (a, b)),
        FloatOp::PackedFma32 { mode, d, abc } => packed_fma32(regs, mask, mode, d, abc),
        FloatOp::Half { op, kind, packed, d, abc } => {
            if op == HalfOp::Ex2 {
                machine.counters.exponentials += u64::from(mask.count_ones()) << u32::from(packed);
            }
            let approximation = machine.options.approximation;
            map3::<u32, u32, u32, u32>(regs, mask, d, abc, |a, b, c| {
                let low = half(op, kind, approximation, [a as u16, b as u16, c as u16]);
                if !packed {
                    return low.into();
                }
                let high = half(op, kind, approximation, [(a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16]);
                u32::from(low) | u32::from(high) << 16
            })
        }
        FloatOp::Mixed { op, kind, mode, d, abc } => map3::<u32, u32, u32, u32>(regs, mask, d, abc, |a, b, c| {
            let wide = |code: u32| kind.decode(code as u16);
            let result = match op {
                Binary::Add => arith::add(wide(a), input(mode, b), mode.rounding),
                Binary::Sub => arith::add(wide(a), -input(mode, b), mode.rounding),
                _ => arith::fma(wide(a), wide(b), input(mode, c), mode.rounding),
            };
            wrap(mode, result).to_bits()
        }),
        FloatOp::Test { class, p, a, wide } => {
            let mut bits = 0;
            for lane in 0..WARP {
                let category = match wide {
                    Some(wide) => f64::from_bits(regs.get::<u64>(wide)[lane]).classify(),
                    None => f32::from_bits(regs.get::<u32>(a)[lane]).classify(),
                };
                bits |= u32::from(is_class(class, category)) << lane;
            }
            regs.set_pred(p, mask, bits);
            Outcome::Next
        }
        FloatOp::ScaleFp4 { d, a, b } => map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| {
            crate::numerics::convert::mul_e4m3x4_e2m1x4_e4m3x4(a as u16, b)
        }),
    }
}

/// [`wrap`] for a result that rounding may have moved up to the smallest normal number.
#[inline(always)]
fn wrap_tiny(mode: Mode, x: f32, exact: impl FnOnce() -> bool) -> f32 {
    wrap(mode, if mode.ftz { arith::flush_exactly(x, exact) } else { x })
}

fn is_class(class: Class, category: std::num::FpCategory) -> bool {
    use std::num::FpCategory as F;
    match class {
        Class::Finite => !matches!(category, F::Nan | F::Infinite),
        Class::Infinite => category == F::Infinite,
        Class::Number => category != F::Nan,
        Class::NotANumber => category == F::Nan,
        // Zero counts, as recorded on the device.
        Class::Normal => matches!(category, F::Normal | F::Zero),
        Class::Subnormal => category == F::Subnormal,
    }
}

#[inline(always)]
fn on32(regs: &mut Regs, mask: u32, mode: Mode, d: R32, (a, b): (R32, R32), f: impl Fn(f32, f32) -> f32) -> Outcome {
    map2::<u32, u32, u32>(regs, mask, d, a, b, |a, b| wrap(mode, f(input(mode, a), input(mode, b))).to_bits())
}

/// Runs `f` with the modifiers of the frequent cases known to the compiler.
macro_rules! with_mode {
    ($mode:expr, |$known:ident| $body:expr) => {
        match $mode {
            Mode { rounding: Rounding::NearestEven, ftz: false, sat: false } => {
                const $known: Mode = Mode { rounding: Rounding::NearestEven, ftz: false, sat: false };
                $body
            }
            Mode { rounding: Rounding::NearestEven, ftz: true, sat: false } => {
                const $known: Mode = Mode { rounding: Rounding::NearestEven, ftz: true, sat: false };
                $body
            }
            other => {
                #[allow(non_snake_case)]
                let $known = other;
                $body
            }
        }
    };
}

fn binary32(regs: &mut Regs, mask: u32, op: Binary, mode: Mode, d: R32, ab: (R32, R32)) -> Outcome {
    match op {
        Binary::Add => with_mode!(mode, |M| on32(regs, mask, M, d, ab, |a, b| arith::add(a, b, M.rounding))),
        Binary::Sub => with_mode!(mode, |M| on32(regs, mask, M, d, ab, |a, b| arith::add(a, -b, M.rounding))),
        Binary::Mul => with_mode!(mode, |M| map2::<u32, u32, u32>(regs, mask, d, ab.0, ab.1, |a, b| mul32(M, a, b))),
        Binary::Div => map2::<u32, u32, u32>(regs, mask, d, ab.0, ab.1, |a, b| {
            let (a, b) = (input(mode, a), input(mode, b));
            wrap_tiny(mode, arith::div(a, b, mode.rounding), || arith::quotient_is_subnormal(a, b)).to_bits()
        }),
        Binary::DivApprox => on32(regs, mask, mode, d, ab, |a, b| Approximation::default().div(a, b, mode.ftz)),
        Binary::DivFull => on32(regs, mask, mode, d, ab, |a, b| Approximation::default().div_full(a, b, mode.ftz)),
        Binary::CopySign => map2::<u32, u32, u32>(regs, mask, d, ab.0, ab.1, |a, b| a & 0x8000_0000 | b & 0x7fff_ffff),
    }
}

fn fma32(regs: &mut Regs, mask: u32, mode: Mode, d: R32, abc: (R32, R32, R32)) -> Outcome {
    with_mode!(mode, |M| map3::<u32, u32, u32, u32>(regs, mask, d, abc, |a, b, c| fma32_one(M, a, b, c)))
}

#[inline(always)]
fn mul32(mode: Mode, a: u32, b: u32) -> u32 {
    let (a, b) = (input(mode, a), input(mode, b));
    wrap_tiny(mode, arith::mul(a, b, mode.rounding), || arith::product_is_subnormal(a, b)).to_bits()
}

#[inline(always)]
fn fma32_one(mode: Mode, a: u32, b: u32, c: u32) -> u32 {
    let (a, b, c) = (input(mode, a), input(mode, b), input(mode, c));
    wrap_tiny(mode, arith::fma(a, b, c, mode.rounding), || arith::fma_is_subnormal(a, b, c)).to_bits()
}

#[inline(always)]
fn pair(x: u64, y: u64, f: impl Fn(u32, u32) -> u32) -> u64 {
    u64::from(f(x as u32, y as u32)) | u64::from(f((x >> 32) as u32, (y >> 32) as u32)) << 32
}

fn packed32(regs: &mut Regs, mask: u32, op: Binary, mode: Mode, d: R64, (a, b): (R64, R64)) -> Outcome {
    macro_rules! run {
        ($f:expr) => {
            with_mode!(mode, |M| map2::<u64, u64, u64>(regs, mask, d, a, b, |x, y| pair(x, y, |x, y| {
                wrap(M, $f(input(M, x), input(M, y), M.rounding)).to_bits()
            })))
        };
    }
    match op {
        Binary::Add => run!(arith::add),
        Binary::Sub => run!(|x: f32, y: f32, rounding| arith::add(x, -y, rounding)),
        _ => with_mode!(mode, |M| map2::<u64, u64, u64>(regs, mask, d, a, b, |x, y| pair(x, y, |x, y| mul32(M, x, y)))),
    }
}

fn packed_fma32(regs: &mut Regs, mask: u32, mode: Mode, d: R64, abc: (R64, R64, R64)) -> Outcome {
    with_mode!(mode, |M| map3::<u64, u64, u64, u64>(regs, mask, d, abc, |a, b, c| {
        let one = |shift: u32| {
            let part = |v: u64| (v >> shift) as u32;
            u64::from(fma32_one(M, part(a), part(b), part(c))) << shift
        };
        one(0) | one(32)
    }))
}

fn unary32(regs: &mut Regs, mask: u32, approx: Approximation, op: Unary, mode: Mode, d: R32, a: R32) -> Outcome {
    let ftz = mode.ftz;
    macro_rules! run {
        ($f:expr) => {
            map1::<u32, u32>(regs, mask, d, a, |bits| {
                let f: fn(Approximation, f32, bool) -> f32 = $f;
                f(approx, f32::from_bits(bits), ftz).to_bits()
            })
        };
    }
    match op {
        Unary::Abs => {
            map1::<u32, u32>(regs, mask, d, a, |bits| arith::canonical(input(mode, bits & 0x7fff_ffff)).to_bits())
        }
        Unary::Neg => {
            map1::<u32, u32>(regs, mask, d, a, |bits| arith::canonical(input(mode, bits ^ 0x8000_0000)).to_bits())
        }
        Unary::Rcp => map1::<u32, u32>(regs, mask, d, a, |bits| {
            wrap(mode, arith::div(1.0, input(mode, bits), mode.rounding)).to_bits()
        }),
        Unary::Sqrt => map1::<u32, u32>(regs, mask, d, a, |bits| {
            wrap(mode, arith::sqrt(input(mode, bits), mode.rounding)).to_bits()
        }),
        Unary::RcpApprox => run!(|f, x, ftz| f.rcp(x, ftz)),
        Unary::Rsqrt => run!(|f, x, ftz| f.rsqrt(x, ftz)),
        Unary::SqrtApprox => run!(|f, x, ftz| f.sqrt(x, ftz)),
        Unary::Ex2 => run!(|f, x, ftz| f.ex2(x, ftz)),
        Unary::Lg2 => run!(|f, x, ftz| f.lg2(x, ftz)),
        Unary::Sin => run!(|f, x, ftz| f.sin(x, ftz)),
        Unary::Cos => run!(|f, x, ftz| f.cos(x, ftz)),
        Unary::Tanh => run!(|f, x, _| f.tanh(x)),
    }
}

fn unary64(op: Unary, mode: Mode, bits: u64) -> u64 {
    let x = f64::from_bits(bits);
    match op {
        // Additions of zero in hardware: a NaN keeps its sign.
        Unary::Abs | Unary::Neg if x.is_nan() => arith::quiet_f64(bits),
        Unary::Abs => bits & !(1 << 63),
        Unary::Neg => bits ^ 1 << 63,
        Unary::Sqrt => arith::sqrt_f64(x, mode.rounding).to_bits(),
        // The forms `.approx.ftz` keep the upper 20 fraction bits; the operand's subnormals are zero.
        Unary::RcpApprox | Unary::Rsqrt if mode.ftz => {
            let flushed = if x.is_subnormal() { 0.0f64.copysign(x) } else { x };
            let root = if op == Unary::Rsqrt { flushed.sqrt() } else { flushed };
            arith::canonical_f64(1.0 / root).to_bits() & !0xffff_ffff
        }
        Unary::Rsqrt => arith::canonical_f64(1.0 / x.sqrt()).to_bits(),
        _ => arith::div_f64(1.0, x, mode.rounding).to_bits(),
    }
}

#[inline(always)]
fn half(op: HalfOp, kind: HalfType, approximation: Approximation, [a, b, c]: [u16; 3]) -> u16 {
    let signed = |ftz: bool, code: u16| {
        if kind.format().is_nan(code.into()) {
            0x7fff
        } else if ftz {
            kind.flush(code)
        } else {
            code
        }
    };
    match op {
        HalfOp::Add(how) => kind.add(a, b, how),
        HalfOp::Sub(how) => kind.sub(a, b, how),
        HalfOp::Mul(how) => kind.mul(a, b, how),
        HalfOp::Fma(how) => kind.fma(a, b, c, how),
        HalfOp::MinMax(how, false) => arith::min_max_half(kind, a, b, how),
        HalfOp::MinMax(how, true) => arith::min_max_half(kind, arith::min_max_half(kind, a, b, how), c, how),
        HalfOp::Abs(ftz) => signed(ftz, a & 0x7fff),
        HalfOp::Neg(ftz) => signed(ftz, a ^ 0x8000),
        HalfOp::Ex2 => approximation.ex2_half(kind, a),
        HalfOp::Tanh => approximation.tanh_half(kind, a),
    }
}
