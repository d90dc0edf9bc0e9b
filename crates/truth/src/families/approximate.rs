//! Approximate functions: dense sweeps, errors measured against double precision.
//!
//! Bounds are those of the PTX manual, in the unit that it gives them in; tanh of bf16 exceeds its 2^-8 by 7e-5 of it,
//! once.

use crate::case::{Approximate, Case, Class, Format, Input};
use crate::values::{Kind, Source, operands};

/// Threads of a sweep.
const SWEEP: usize = 32768;

fn exp2(x: f64) -> f64 {
    x.exp2()
}

fn reciprocal(x: f64) -> f64 {
    1.0 / x
}

fn reciprocal_root(x: f64) -> f64 {
    1.0 / x.sqrt()
}

const EVERYWHERE: (f64, f64) = (0.0, f64::MAX);

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let unit = f64::from(-23).exp2();
    for ftz in [false, true] {
        let single = |function, bound, relative, range| Approximate {
            function,
            format: Format::F32,
            ftz,
            bound,
            relative,
            range,
        };
        let flush = if ftz { ".ftz" } else { "" };
        let mut add = |op: &str, least: i32, most: i32, how| {
            cases.push(case(&format!("{op}.approx{flush}.f32"), Format::F32, (least, most), how));
        };
        add("ex2", -20, 7, single(exp2, 2.0 * unit, true, EVERYWHERE));
        add("rcp", -126, 127, single(reciprocal, unit, true, EVERYWHERE));
        add("rsqrt", -126, 127, single(reciprocal_root, f64::exp2(-22.9), true, EVERYWHERE));
        add("sqrt", -126, 127, single(f64::sqrt, unit, true, EVERYWHERE));
        add("sin", -20, 1, single(f64::sin, f64::exp2(-20.5), false, (0.0, std::f64::consts::PI)));
        add("cos", -20, 1, single(f64::cos, f64::exp2(-20.5), false, (0.0, std::f64::consts::PI)));
    }
    for ftz in ["", ".ftz"] {
        let flush = !ftz.is_empty();
        let how = |bound, relative, range| Approximate {
            function: f64::log2,
            format: Format::F32,
            ftz: flush,
            bound,
            relative,
            range,
        };
        // Absolute close to 1, relative elsewhere.
        let near =
            case(&format!("lg2.approx{ftz}.f32/near"), Format::F32, (-1, 0), how(f64::exp2(-22.0), false, (0.5, 2.0)));
        let far = case(
            &format!("lg2.approx{ftz}.f32/far"),
            Format::F32,
            (2, 127),
            how(f64::exp2(-22.0), true, (2.0, f64::MAX)),
        );
        cases.extend([near, far]);
    }
    let tanh = |format, bound, relative| Approximate {
        function: f64::tanh,
        format,
        ftz: false,
        bound,
        relative,
        range: EVERYWHERE,
    };
    cases.push(case("tanh.approx.f32", Format::F32, (-20, 4), tanh(Format::F32, f64::exp2(-10.987), true)));
    cases.push(case("tanh.approx.f16", Format::F16, (-14, 4), tanh(Format::F16, f64::exp2(-10.987), false)));
    cases.push(case("tanh.approx.bf16", Format::Bf16, (-20, 4), tanh(Format::Bf16, 1.0001 * f64::exp2(-8.0), false)));
    let half =
        |format, ftz, bound| Approximate { function: exp2, format, ftz, bound, relative: true, range: EVERYWHERE };
    cases.push(case("ex2.approx.f16", Format::F16, (-14, 4), half(Format::F16, false, f64::exp2(-9.9))));
    cases.push(case("ex2.approx.ftz.bf16", Format::Bf16, (-20, 7), half(Format::Bf16, true, f64::exp2(-7.0))));
    cases
}

/// Edge values and mixed bits, then fractions in random order whose exponents sweep from `least` to `most`.
fn case(name: &str, format: Format, (least, most): (i32, i32), how: Approximate) -> Case {
    let op = name.split('/').next().unwrap_or(name);
    let mut case = Case::new(name, 256, format!("{op} %o0, %i0;"));
    case.ctas = SWEEP as u32 / 256;
    let (kind, fraction, bias) = match format {
        Format::F32 => (Kind::F32, 23, 127),
        Format::F16 => (Kind::F16, 10, 15),
        Format::Bf16 => (Kind::Bf16, 7, 127),
    };
    let mut values = operands(name, &[kind], SWEEP / 16).remove(0).values;
    let mut source = Source::named(name);
    let span = (most - least + 1) as usize;
    for i in values.len()..SWEEP {
        let exponent = (bias + least + (i % span) as i32) as u64;
        let bits = source.bits();
        values.push((bits >> 63) << (kind.bits() - 1) | exponent << fraction | (bits & ((1 << fraction) - 1)));
    }
    case.inputs = vec![Input { bits: kind.bits(), values }];
    case.outs = vec![kind.bits()];
    case.class = Class::Bound(how);
    case
}
