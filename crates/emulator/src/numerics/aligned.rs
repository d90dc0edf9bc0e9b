//! The aligned sums of [`super::dot`] in integers: the same bits many times as fast, for finite operands of up to 12
//! significant bits whose products are in the range of an `f32`, which is what every format has that they are used
//! with.
//!
//! Such a product has up to 24 significant bits. Times the power of two that makes the last bit to keep a one it is
//! exact, too, and the conversion to an integer cuts what is below. Sixteen of them are below 2^31 together.

use wide::{CmpGt as _, f32x8, i16x16, i32x8};

use super::dot::{Output, Shape, shorten, truncate};

/// Outputs of one row that are computed together.
const LANES: usize = 16;
/// Bits below the largest exponent for which every power of two is in range.
const FRACTIONS: std::ops::RangeInclusive<u32> = 2..=25;
/// Products whose sum fits into an `i32`: each is below 2^27.
const GROUP: usize = 16;

/// Exponent of a zero: sums with it are below all others.
const ZERO: i16 = -10000;

/// An element of an operand.
pub trait Factor: Copy + Into<f64> {
    /// The element, rounded.
    fn single(self) -> f32;
    /// Whether that is the element.
    fn is_single(self) -> bool;
}

impl Factor for f32 {
    #[inline(always)]
    fn single(self) -> f32 {
        self
    }

    #[inline(always)]
    fn is_single(self) -> bool {
        true
    }
}

impl Factor for f64 {
    #[inline(always)]
    fn single(self) -> f32 {
        self as f32
    }

    #[inline(always)]
    fn is_single(self) -> bool {
        f64::from(self as f32) == self
    }
}

/// Prepared operands B that are kept: the warps of a warpgroup use the same ones, one after the other, a few at a time.
const KEPT: usize = 16;

/// Scratch memory, reused between calls.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// At most [`KEPT`].
    columns: Vec<Columns>,
    /// The one that is replaced next.
    oldest: usize,
    /// Elements of A.
    rows: Vec<f32>,
    /// Their exponents.
    row_exponents: Vec<i16>,
}

/// B, prepared.
#[derive(Debug, Default)]
struct Columns {
    /// The elements as they were given, and what else the rest depends on.
    source: Vec<f32>,
    k: usize,
    least: i32,
    /// Panels of [`LANES`] columns, k outermost, zero-padded.
    panels: Vec<[f32; LANES]>,
    /// Exponents of their elements.
    exponents: Vec<[i16; LANES]>,
    /// Exponents of the smallest and the largest number.
    range: [i32; 2],
}

impl Columns {
    fn is<T: Factor>(&self, b: &[T], k: usize, least: i32) -> bool {
        (self.k, self.least, self.source.len()) == (k, least, b.len())
            && self.source.chunks(LANES).zip(b.chunks(LANES)).all(|(mine, theirs)| {
                mine.iter().zip(theirs).fold(0, |all, (x, y)| all | (x.to_bits() ^ y.single().to_bits())) == 0
            })
    }

    fn prepare<T: Factor>(&mut self, b: &[T], k: usize, least: i32, range: [i32; 2]) {
        (self.k, self.least, self.range) = (k, least, range);
        self.source.clear();
        self.source.extend(b.iter().map(|x| x.single()));
        pack(&self.source, k, &mut self.panels);
        self.exponents.resize(self.panels.len(), [0; LANES]);
        exponents(self.panels.as_flattened(), least, self.exponents.as_flattened_mut());
    }
}

/// The place of the prepared B; `None` where [`range`] has none.
fn find<T: Factor>(columns: &mut Vec<Columns>, oldest: &mut usize, b: &[T], k: usize, least: i32) -> Option<usize> {
    if !b.iter().all(|x| x.is_single()) {
        return None;
    }
    if let Some(at) = columns.iter().position(|columns| columns.is(b, k, least)) {
        return Some(at);
    }
    let range = range(b)?;
    let at = *oldest;
    if at == columns.len() {
        columns.push(Columns::default());
    }
    *oldest = (at + 1) % KEPT;
    columns[at].prepare(b, k, least, range);
    Some(at)
}

/// Stored exponent; 0 for zero and for what is below the normal numbers of `f32`.
#[inline(always)]
fn stored(x: f32) -> i16 {
    (x.to_bits() >> 23 & 0xff) as i16
}

/// Exponents of a format's numbers, which are zero or normal as `f32`: the format's subnormals have the least one.
#[inline(always)]
fn exponents(x: &[f32], least: i32, exponents: &mut [i16]) {
    let least = least as i16 + 127;
    for (exponent, &x) in exponents.iter_mut().zip(x) {
        let stored = stored(x);
        *exponent = if stored == 0 { ZERO } else { stored.max(least).wrapping_sub(127) };
    }
}

/// Exponents of the smallest number that is not zero and of the largest one; nothing where an element is not finite,
/// has more than 12 significant bits, or no place in an `f32`.
fn range<T: Factor>(x: &[T]) -> Option<[i32; 2]> {
    let (mut below_least, mut most, mut bits, mut exact) = (i32::MAX, 0, 0, true);
    for &x in x {
        exact &= x.is_single();
        let short = x.single().to_bits();
        bits |= short;
        let magnitude = (short & 0x7fff_ffff) as i32;
        most = most.max(magnitude);
        // One less than the number; the largest integer for zero.
        below_least = below_least.min((magnitude - 1) & i32::MAX);
    }
    let exponents = [below_least.saturating_add(1), most].map(|magnitude| (magnitude >> 23) - 127);
    (exact && bits & 0xfff == 0 && exponents[0] >= -126 && exponents[1] <= 127).then_some(exponents)
}

/// Packs the columns of B into panels, k outermost.
fn pack(b: &[f32], k: usize, panels: &mut Vec<[f32; LANES]>) {
    panels.clear();
    panels.resize((b.len() / k).div_ceil(LANES) * k, [0.0; LANES]);
    for (panel, columns) in panels.chunks_exact_mut(k).zip(b.chunks(LANES * k)) {
        for (j, column) in columns.chunks_exact(k).enumerate().take(LANES) {
            for (slot, &value) in panel.iter_mut().zip(column) {
                slot[j] = value;
            }
        }
    }
}

/// Adds the product to `d` as [`super::dot::accumulate`] does; says whether the operands allow it, and otherwise
/// changes nothing. `general` computes the output at a row and column where C is not finite or no addend comes near the
/// smallest number.
pub(super) fn accumulate<T: Factor>(
    (a, b): (&[T], &[T]),
    d: &mut [f32],
    Shape { m, n, k }: Shape,
    (fraction, least, output): (u32, [i32; 2], Output),
    Scratch { columns, oldest, rows, row_exponents }: &mut Scratch,
    general: impl Fn(usize, usize, f32) -> f32,
) -> bool {
    let (a, b) = (&a[..m * k], &b[..n * k]);
    if k == 0 || !FRACTIONS.contains(&fraction) {
        return false;
    }
    let (Some([least_a, most_a]), Some(at)) = (range(a), find(columns, oldest, b, k, least[1])) else { return false };
    let Columns { panels, exponents: panel_exponents, range: [least_b, most_b], .. } = &columns[at];
    if least_a + least_b < -126 || most_a + most_b > 126 {
        return false;
    }
    rows.clear();
    rows.extend(a.iter().map(|x| x.single()));
    row_exponents.resize(rows.len(), 0);
    exponents(rows, least[0], row_exponents);
    let rows = rows.chunks_exact(k).zip(row_exponents.chunks_exact(k));
    for (i, ((row, row_exponents), outputs)) in rows.zip(d.chunks_exact_mut(n)).enumerate() {
        let panels = panels.chunks_exact(k).zip(panel_exponents.chunks_exact(k));
        for (first, (outputs, (panel, exponents))) in (0..).step_by(LANES).zip(outputs.chunks_mut(LANES).zip(panels)) {
            // Lanes without an output have a C that is no special case.
            let mut c = [1.0; LANES];
            match <&[f32; LANES]>::try_from(&*outputs) {
                Ok(outputs) => c = *outputs,
                Err(_) => c[..outputs.len()].copy_from_slice(outputs),
            }
            let block = Block::new(c, row_exponents, exponents, fraction);
            if output == Output::F32
                && let Some(results) = block.truncated(row, panel)
            {
                match <&mut [f32; LANES]>::try_from(&mut *outputs) {
                    Ok(outputs) => *outputs = results,
                    Err(_) => outputs.copy_from_slice(&results[..outputs.len()]),
                }
                continue;
            }
            let results = block.results(row, panel, output);
            for (lane, output) in outputs.iter_mut().enumerate() {
                let products = row.iter().zip(panel).map(|(x, columns)| x * columns[lane]);
                *output = if block.has_scale(lane) {
                    results[lane]
                } else if *output == 0.0 && products.clone().all(|product| product == 0.0) {
                    // The sign of a sum of zeros.
                    products.fold(*output, |sum, product| sum + product)
                } else {
                    general(i, first + lane, *output)
                };
            }
        }
    }
    true
}

/// Outputs side by side, and what their addends are aligned to.
struct Block {
    c: [f32; LANES],
    fraction: i16,
    /// Exponents that the addends are aligned to.
    largest: [i16; LANES],
    /// The last bit to keep times this is 1.
    scale: [f32; LANES],
}

impl Block {
    #[inline(always)]
    fn new(c: [f32; LANES], row: &[i16], panel: &[[i16; LANES]], fraction: u32) -> Self {
        let fraction = fraction as i16;
        // Of products no exponent is below this one, so that it does no harm beside them that a zero has it.
        let mut largest = [0; LANES];
        for (largest, &c) in largest.iter_mut().zip(&c) {
            *largest = stored(c).max(1).wrapping_sub(127);
        }
        let mut largest = i16x16::new(largest);
        for (&x, columns) in row.iter().zip(panel) {
            largest = largest.max(i16x16::splat(x) + i16x16::new(*columns));
        }
        let biased = i16x16::splat(fraction + 127) - largest.max(i16x16::splat(Self::lowest(fraction)));
        let mut scale = [0.0; LANES];
        for (scale, biased) in scale.iter_mut().zip(biased.to_array()) {
            *scale = f32::from_bits((biased as u32) << 23);
        }
        Self { c, fraction, largest: largest.to_array(), scale }
    }

    /// The least exponent that has a scale.
    #[inline(always)]
    const fn lowest(fraction: i16) -> i16 {
        fraction - 127
    }

    /// Whether the way through integers has a result for an output.
    fn has_scale(&self, lane: usize) -> bool {
        self.c[lane].is_finite() && self.largest[lane] >= Self::lowest(self.fraction)
    }

    /// C cut at the last bit to keep, in units of that.
    #[inline(always)]
    fn whole_c(&self) -> [i32x8; 2] {
        let (c, scale) = (halves(&self.c), halves(&self.scale));
        [(c[0] * scale[0]).fast_trunc_int(), (c[1] * scale[1]).fast_trunc_int()]
    }

    /// The sum of at most [`GROUP`] products, likewise.
    #[inline(always)]
    fn group(&self, row: &[f32], panel: &[[f32; LANES]]) -> [i32x8; 2] {
        let scale = halves(&self.scale);
        let mut sums = [i32x8::ZERO; 2];
        for (&x, columns) in row.iter().zip(panel) {
            let (x, columns) = (f32x8::splat(x), halves(columns));
            for i in 0..2 {
                sums[i] += (x * columns[i] * scale[i]).fast_trunc_int();
            }
        }
        sums
    }

    /// The results cut to `f32`, where all of them are numbers of moderate size.
    #[inline(always)]
    fn truncated(&self, row: &[f32], panel: &[[f32; LANES]]) -> Option<[f32; LANES]> {
        /// Below it a result is far from infinity.
        const HIGHEST: i16 = 64;
        /// The sum of two groups and C is less than 2^31 by more than the conversion to `f32` adds.
        const ROOM: i32 = (1 << 30) - (1 << 27);
        if row.len() > 2 * GROUP {
            return None;
        }
        let mut ordinary = true;
        for largest in self.largest {
            ordinary &= (largest > Self::lowest(self.fraction)) & (largest < HIGHEST);
        }
        let mut sums = self.whole_c();
        for (row, panel) in row.chunks(GROUP).zip(panel.chunks(GROUP)) {
            let group = self.group(row, panel);
            for i in 0..2 {
                sums[i] += group[i];
                ordinary &= group[i].abs().cmp_gt(i32x8::splat(ROOM)).none();
            }
        }
        let mut units = [0.0; LANES];
        for (unit, largest) in units.iter_mut().zip(self.largest) {
            *unit = f32::from_bits((largest.wrapping_sub(self.fraction - 127) as u32) << 23);
        }
        let keep = u32::MAX << 23u32.saturating_sub(self.fraction as u32);
        let sums = flat(sums);
        let (mut magnitudes, mut results) = ([0; LANES], [0.0; LANES]);
        for j in 0..LANES {
            magnitudes[j] = sums[j].wrapping_abs();
            results[j] = magnitudes[j] as f32;
        }
        let [low, high] = halves(&results);
        let back = flat([low.fast_trunc_int(), high.fast_trunc_int()]);
        for j in 0..LANES {
            // One unit less where the conversion rounded up.
            let up = u32::from(back[j] > magnitudes[j]);
            let cut = f32::from_bits(results[j].to_bits().wrapping_sub(up) & keep) * units[j];
            results[j] = f32::from_bits(cut.to_bits() | sums[j] as u32 & 1 << 31);
        }
        ordinary.then_some(results)
    }

    /// The results cut or rounded to the output's format.
    fn results(&self, row: &[f32], panel: &[[f32; LANES]], output: Output) -> [f32; LANES] {
        let mut sums = [0.0; LANES];
        let groups = row.chunks(GROUP).zip(panel.chunks(GROUP)).map(|(row, panel)| self.group(row, panel));
        for group in std::iter::once(self.whole_c()).chain(groups) {
            for (sum, addend) in sums.iter_mut().zip(flat(group)) {
                *sum += f64::from(addend);
            }
        }
        let mut results = [0.0; LANES];
        for ((result, sum), largest) in results.iter_mut().zip(sums).zip(self.largest) {
            let exponent = i32::from(largest.max(Self::lowest(self.fraction)) - self.fraction);
            let sum = sum * f64::from_bits(((exponent + 1023) as u64) << 52);
            *result = match output {
                Output::F32 => shorten(truncate(sum), self.fraction as u64),
                Output::F16 => output.nearest(sum),
            };
        }
        results
    }
}

#[inline(always)]
fn flat([low, high]: [i32x8; 2]) -> [i32; LANES] {
    let mut flat = [0; LANES];
    flat[..8].copy_from_slice(low.as_array_ref());
    flat[8..].copy_from_slice(high.as_array_ref());
    flat
}

#[inline(always)]
fn halves(x: &[f32; LANES]) -> [f32x8; 2] {
    let [low, high] = x.as_chunks().0 else { return [f32x8::ZERO; 2] };
    [f32x8::new(*low), f32x8::new(*high)]
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

    /// Every output of both ways is the same in every bit: C far above, near and far below the products, subnormal,
    /// zero, not finite; products that cancel, overflow and fall below the smallest number.
    #[test]
    fn the_same_bits_as_the_general_way() {
        let rng = &mut Rng::new(7, 0);
        let (mut taken, outside) = (0, Cell::new(0));
        // Kept over all rounds: each B is used three times, and then must not be taken for another one.
        let mut scratch = Scratch::default();
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
                if accumulate((&a, &b), &mut fast, shape, how, &mut scratch, general) {
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
        assert!(taken > 7000 && outside.get() > 1000, "{taken} {}", outside.get());
    }
}
