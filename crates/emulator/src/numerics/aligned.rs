//! The aligned sums of [`super::dot`] without a branch: the same bits several times as fast, for finite operands of up to 12
//! significant bits, which is every format that they are used with.
//!
//! A product has up to 24 significant bits. Adding 2^52 times a 25th bit below the last one that is kept shifts it to where that
//! bit has a fixed place, and cuts nothing that could reach it; masking the 25 bits cuts the product, subtracting gives it back.

use super::dot::{LANES, Output, Shape, panels as pack, shorten, truncate};

/// Bias of stored exponents. Zero is 0, so that products with it are below all others.
const BIAS: i32 = 2000;
/// Below this a sum of two stored exponents is that of a zero.
const NONE: u16 = 3000;
/// Bits of a product below the last one that is kept.
const BELOW: u32 = 25;

/// Scratch memory, reused between calls.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// B in panels of [`LANES`] columns, k outermost, zero-padded.
    panels: Vec<f64>,
    /// Exponents of their elements.
    exponents: Vec<u16>,
    /// Elements of A.
    factors: Vec<Factor>,
}

/// An element of A.
#[derive(Debug)]
struct Factor {
    value: f64,
    /// Its place in the row.
    k: u16,
    exponent: u16,
}

/// Exponent of a format's number: subnormals have that of the smallest normal one.
#[inline(always)]
fn exponent(x: f64, least: i32) -> u16 {
    let exponent = (x.to_bits() >> 52 & 0x7ff) as i32 - 1023;
    if x == 0.0 { 0 } else { (exponent.max(least) + BIAS) as u16 }
}

/// Whether all elements are finite and have at most 12 significant bits.
fn is_short(x: &[f64]) -> bool {
    let (mut largest, mut bits) = (0, 0);
    for x in x {
        largest = largest.max(x.to_bits() << 1);
        bits |= x.to_bits();
    }
    largest < f64::INFINITY.to_bits() << 1 && bits << 23 == 0
}

/// Adds the product to `d` as [`super::dot::accumulate`] does; says whether the operands allow it, and otherwise changes nothing.
/// `general` computes the output at a row and column where C is not finite.
pub(super) fn accumulate(
    (a, b): (&[f64], &[f64]),
    d: &mut [f32],
    Shape { m, n, k }: Shape,
    (fraction, least, output): (u32, [i32; 2], Output),
    Scratch { panels, exponents, factors }: &mut Scratch,
    general: impl Fn(usize, usize, f32) -> f32,
) -> bool {
    let (a, b) = (&a[..m * k], &b[..n * k]);
    if k == 0 || !is_short(a) || !is_short(b) {
        return false;
    }
    pack::<LANES>(b, k, panels);
    exponents.clear();
    exponents.extend(panels.iter().map(|&y| exponent(y, least[1])));
    factors.clear();
    for row in a.chunks_exact(k) {
        factors.extend(row.iter().zip(0..).map(|(&value, k)| Factor { value, k, exponent: exponent(value, least[0]) }));
    }
    for (i, (row, outputs)) in factors.chunks_exact(k).zip(d.chunks_exact_mut(n)).enumerate() {
        let panels = panels.chunks_exact(LANES * k).zip(exponents.chunks_exact(LANES * k));
        for ((j, outputs), (panel, exponents)) in outputs.chunks_mut(LANES).enumerate().zip(panels) {
            let (panel, exponents) = (panel.as_chunks().0, exponents.as_chunks().0);
            let mut c = [0.0; LANES];
            c[..outputs.len()].copy_from_slice(outputs);
            let largest = largest(&c, row, exponents);
            let results = results(&sums(&c, row, panel, (&largest, fraction)), (fraction, output));
            for (lane, output) in outputs.iter_mut().enumerate() {
                *output = if !c[lane].is_finite() {
                    general(i, LANES * j + lane, c[lane])
                } else if largest[lane] < NONE {
                    // The sign of a sum of zeros.
                    row.iter().zip(panel).fold(c[lane], |sum, (x, columns)| sum + (x.value * columns[lane]) as f32)
                } else {
                    results[lane]
                };
            }
        }
    }
    true
}

/// Twice biased exponents that the addends of each output are aligned to.
#[inline(always)]
fn largest(c: &[f32; LANES], row: &[Factor], panel: &[[u16; LANES]]) -> [u16; LANES] {
    let mut largest = c.map(|c| {
        let biased = (c.to_bits() >> 23 & 0xff) as i32;
        if c == 0.0 { 0 } else { (biased.max(1) - 127 + 2 * BIAS) as u16 }
    });
    for x in row.iter().filter(|x| x.exponent != 0) {
        for (largest, y) in largest.iter_mut().zip(&panel[usize::from(x.k)]) {
            *largest = (*largest).max(x.exponent.wrapping_add(*y));
        }
    }
    largest
}

/// Exact sums of the addends, each cut at `fraction` bits below the largest exponent.
#[inline(always)]
fn sums(
    c: &[f32; LANES],
    row: &[Factor],
    panel: &[[f64; LANES]],
    (largest, fraction): (&[u16; LANES], u32),
) -> [f64; LANES] {
    const KEEP: u64 = u64::MAX << BELOW;
    // The unit that a sum with it keeps is BELOW bits below the last bit of an addend. Without an exponent it does not matter.
    let bias = (1023 + 52 - 2 * BIAS - (fraction + BELOW) as i32) as u32;
    let shift = largest.map(|e| f64::from_bits(u64::from(u32::from(e.max(NONE)).wrapping_add(bias)) << 52));
    let cut = |x: f64, shift: f64| {
        let shift = shift.copysign(x);
        f64::from_bits((x + shift).to_bits() & KEEP) - shift
    };
    let mut sums = [0.0; LANES];
    for j in 0..LANES {
        sums[j] += cut(f64::from(c[j]), shift[j]);
    }
    for x in row.iter().filter(|x| x.exponent != 0) {
        let columns = &panel[usize::from(x.k)];
        for j in 0..LANES {
            sums[j] += cut(x.value * columns[j], shift[j]);
        }
    }
    sums
}

/// Sums cut or rounded to the output's format.
#[inline(always)]
fn results(sums: &[f64; LANES], (fraction, output): (u32, Output)) -> [f32; LANES] {
    /// Magnitudes that an `f32` holds normally and that do not round to infinity.
    const ORDINARY: std::ops::Range<f64> = f32::MIN_POSITIVE as f64..(1u128 << 127) as f64;
    if output == Output::F16 {
        return sums.map(|x| output.nearest(x));
    }
    let keep = u64::MAX << (29 + 23u32.saturating_sub(fraction));
    let mut results = [0.0; LANES];
    let mut ordinary = true;
    for j in 0..LANES {
        let cut = f64::from_bits(sums[j].to_bits() & keep);
        ordinary &= (cut == 0.0) | (cut.abs() >= ORDINARY.start) & (cut.abs() < ORDINARY.end);
        results[j] = cut as f32;
    }
    if ordinary { results } else { sums.map(|x| shorten(truncate(x), fraction.into())) }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::dot::aligned_products;
    use super::*;
    use crate::numerics::format::{decode_bf16, decode_f16, decode_tf32};
    use crate::rng::Rng;

    fn below(rng: &mut Rng, bound: u32) -> u32 {
        rng.below(bound.into()) as u32
    }

    /// Elements of a format; about one in eight is zero, and exponents spread over `spread` binades below the largest.
    fn tile(rng: &mut Rng, len: usize, kind: usize, spread: u32) -> Vec<f64> {
        let mut element = || {
            let (sign, fraction, e) = (below(rng, 2), below(rng, 1 << 10), below(rng, spread));
            if below(rng, 8) == 0 {
                return if sign == 0 { 0.0 } else { -0.0 };
            }
            match kind {
                0 => decode_f16((sign << 15 | 30u32.saturating_sub(e) << 10 | fraction) as u16).into(),
                1 => decode_bf16((sign << 15 | 140u32.saturating_sub(e) << 7 | fraction & 0x7f) as u16).into(),
                2 => decode_tf32(sign << 31 | 250u32.saturating_sub(e) << 23 | fraction << 13).into(),
                _ => f64::from(f32::from_bits(sign << 31 | 120u32.saturating_sub(e) << 23 | (fraction & 7) << 20)),
            }
        };
        (0..len).map(|_| element()).collect()
    }

    /// Every output of both ways is the same in every bit: C far above, near and far below the products, subnormal, zero, not
    /// finite; products that cancel, overflow and fall below the smallest number.
    #[test]
    fn the_same_bits_as_the_general_way() {
        let rng = &mut Rng::new(7, 0);
        let (mut taken, outside) = (0, Cell::new(0));
        for round in 0..4000 {
            let kind = below(rng, 4) as usize;
            let spread = [2, 6, 16, 40, 90][below(rng, 5) as usize];
            let shape = Shape {
                m: 1 + below(rng, 3) as usize,
                n: 1 + below(rng, 20) as usize,
                k: [4, 8, 16, 32, 33][below(rng, 5) as usize],
            };
            let Shape { m, n, k } = shape;
            let (mut a, b) = (tile(rng, m * k, kind, spread), tile(rng, n * k, kind, spread));
            if round % 16 == 0 {
                a.fill(-0.0);
            }
            let top = (f64::from(f32::MAX) as f32)
                .min((a.iter().chain(&b).fold(0.0f64, |x, y| x.max(y.abs())).powi(2)) as f32);
            let mut c = || match below(rng, 12) {
                0 => 0.0,
                1 => -0.0,
                2 => f32::from_bits(below(rng, 1 << 23)),
                3 => f32::from_bits(0x7f00_0000 + below(rng, 1 << 24)),
                4 => f32::from_bits(rng.draw() as u32),
                _ => {
                    f32::from_bits(
                        (top.to_bits() & 0xff80_0000).saturating_sub(below(rng, 40) << 23) | below(rng, 1 << 23),
                    ) * [1.0, -1.0][below(rng, 2) as usize]
                }
            };
            let c: Vec<f32> = (0..m * n).map(|_| c()).collect();
            let least = [[-14; 2], [-126; 2], [-6, -14]][below(rng, 3) as usize];
            for (fraction, output) in [(25, Output::F32), (13, Output::F32), (25, Output::F16)] {
                let (mut fast, mut slow) = (c.clone(), c.clone());
                let how = (fraction, least, output);
                aligned_products(&a, &b, &mut slow, shape, how, &mut Vec::new());
                let general = |i: usize, j: usize, _| {
                    outside.set(outside.get() + 1);
                    slow[i * n + j]
                };
                if accumulate((&a, &b), &mut fast, shape, how, &mut Scratch::default(), general) {
                    taken += 1;
                    for (at, (fast, slow)) in fast.iter().zip(&slow).enumerate() {
                        assert_eq!(
                            fast.to_bits(),
                            slow.to_bits(),
                            "{at}: {fast:e} {slow:e}, C {:e}, {how:?} {shape:?}",
                            c[at]
                        );
                    }
                }
            }
        }
        assert!(taken > 8000 && outside.get() > 1000, "{taken} {}", outside.get());
    }
}
