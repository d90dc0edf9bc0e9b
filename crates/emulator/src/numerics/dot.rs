//! Matrix products of one instruction: reference and hardware accumulation models.
//!
//! A tile is `D[m][n] = C[m][n] + sum over k of A[m][k] * B[n][k]`, operands decoded to `f32` or, with their block
//! scales, to `f64` (both exact), accumulator `f32`. Models, with their sources in the ISA notes:
//!
//! | [`Accumulation`] | rule | used for |
//! |---|---|---|
//! | `Reference` | sum in `f64`, one rounding to nearest | default of every family |
//! | `Aligned`, 25 bits | align products and C to the largest exponent, cut below 25 fraction bits, add, cut to `f32` | Hopper 16-bit and tf32, tcgen05 |
//! | `Aligned`, 13 bits | the same with 13 bits, also in the result | Hopper FP8 wgmma |
//! | `Grouped(35)` | groups of 16 exact, then groups and C aligned with 35 fraction bits | tcgen05 mxf4, mxf4nvf4 |

use super::aligned;
pub use super::aligned::Factor;
use super::format::{F16, Narrow};

/// How one instruction sums its products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Accumulation {
    /// `f64` sum, one rounding to `f32`. FP8, FP6 and FP4 products without block scale are exact; otherwise the sum is
    /// within `(k + 1) * 2^-53 * sum |a b|` of the exact one before it is rounded.
    #[default]
    Reference,
    /// All products and the accumulator truncated at `fraction` bits below the largest exponent, the exact sum
    /// truncated to `f32`. The exponent of a product is the sum of the exponent fields of its factors, so that a
    /// product of two significands above 2 does not count as larger. With fewer bits than an `f32` has, results have no
    /// more. Confirmed bit for bit on Hopper.
    Aligned {
        /// Bits kept below the largest exponent.
        fraction: u32,
        /// Exponents of the smallest normal numbers of A's and B's formats: subnormals have the same.
        least: [i32; 2],
    },
    /// Sums of 16 products are exact, then aligned to the largest sum and truncated like [`Self::Aligned`].
    Grouped(u32),
}

/// Format that a sum is rounded to once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// `f32`: to nearest in the reference, truncated in the hardware models.
    #[default]
    F32,
    /// f16, to nearest even, stored as the `f32` of the same value.
    F16,
}

impl Output {
    #[inline(always)]
    pub(super) fn nearest(self, x: f64) -> f32 {
        match self {
            Self::F32 => super::arith::canonical(x as f32),
            Self::F16 => F16.decode(F16.narrow(x, Narrow::RN)),
        }
    }
}

/// Shape of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Rows of A and D.
    pub m: usize,
    /// Columns of D, rows of `b`.
    pub n: usize,
    /// Terms of each product.
    pub k: usize,
}

/// Products of one group that `Grouped` adds exactly.
const GROUP: usize = 16;
/// Rows and columns of the register block of the reference loop.
const BLOCK_M: usize = 4;
const BLOCK_N: usize = 4;

/// Adds the product of `a` (`m * k`, rows contiguous) and `b` (`n * k`, the columns of B contiguous) to `d` (`m * n`).
///
/// `d` holds C on entry (zeros where the instruction ignores it) and D afterwards, rounded to `output`. NaN results are
/// 0x7fffffff; infinities follow IEEE. `scratch` is reused between calls.
///
/// # Panics
/// When a slice is shorter than its shape says.
pub fn accumulate<T: Factor>(
    a: &[T],
    b: &[T],
    d: &mut [f32],
    shape: Shape,
    (how, output): (Accumulation, Output),
    scratch: &mut Scratch,
) {
    let Shape { m, n, k } = shape;
    assert!(a.len() >= m * k && b.len() >= n * k && d.len() >= m * n);
    let Scratch { panels, lanes, a: long_a, b: long_b } = scratch;
    let long = |x: &[T], long: &mut Vec<f64>| {
        long.clear();
        long.extend(x.iter().map(|&x| x.into()));
    };
    if let Accumulation::Aligned { fraction, least } = how {
        let how = (fraction, least, output);
        let one = |i: usize, j: usize, c| {
            let mut d = [c];
            let shape = Shape { m: 1, n: 1, k };
            let [row, column] =
                [&a[i * k..][..k], &b[j * k..][..k]].map(|x| Vec::from_iter(x.iter().map(|&x| x.into())));
            aligned_products(&row, &column, &mut d, shape, how, &mut Vec::new());
            d[0]
        };
        if aligned::accumulate((a, b), &mut d[..m * n], shape, how, lanes, one) {
            return;
        }
    }
    long(&a[..m * k], long_a);
    long(&b[..n * k], long_b);
    match how {
        Accumulation::Reference => reference(long_a, long_b, d, shape, output, panels),
        Accumulation::Aligned { fraction, least } => {
            aligned_products(long_a, long_b, d, shape, (fraction, least, output), panels);
        }
        Accumulation::Grouped(fraction) => grouped(long_a, long_b, d, shape, (fraction, output), panels),
    }
}

/// Memory of [`accumulate`], reused between calls.
#[derive(Debug, Default)]
pub struct Scratch {
    panels: Vec<f64>,
    a: Vec<f64>,
    b: Vec<f64>,
    lanes: aligned::Scratch,
}

/// Packs `b` into panels of `N` columns, k outermost, zero-padded, so that the inner loop reads it contiguously.
pub(super) fn panels<const N: usize>(b: &[f64], k: usize, scratch: &mut Vec<f64>) {
    scratch.clear();
    if k == 0 {
        return;
    }
    scratch.resize((b.len() / k).next_multiple_of(N) * k, 0.0);
    for (panel, columns) in scratch.chunks_exact_mut(N * k).zip(b.chunks(N * k)) {
        for (j, column) in columns.chunks_exact(k).enumerate() {
            for (slot, &value) in panel.as_chunks_mut::<N>().0.iter_mut().zip(column) {
                slot[j] = value;
            }
        }
    }
}

fn reference(a: &[f64], b: &[f64], d: &mut [f32], Shape { m, n, k }: Shape, output: Output, scratch: &mut Vec<f64>) {
    if k == 0 {
        return;
    }
    panels::<BLOCK_N>(&b[..n * k], k, scratch);
    for m0 in (0..m).step_by(BLOCK_M) {
        // Rows past the end repeat the last one and are not stored.
        let rows: [&[f64]; BLOCK_M] = std::array::from_fn(|i| {
            let row = (m0 + i).min(m - 1);
            &a[row * k..row * k + k]
        });
        for (panel, n0) in scratch.chunks_exact(BLOCK_N * k).zip((0..n).step_by(BLOCK_N)) {
            let sums = block(rows, panel);
            for (i, sums) in sums.iter().enumerate().take(m - m0) {
                let row = (m0 + i) * n;
                for (value, sum) in d[row + n0..row + n.min(n0 + BLOCK_N)].iter_mut().zip(sums) {
                    *value = output.nearest(f64::from(*value) + sum);
                }
            }
        }
    }
}

#[inline(always)]
fn block(rows: [&[f64]; BLOCK_M], panel: &[f64]) -> [[f64; BLOCK_N]; BLOCK_M] {
    let [r0, r1, r2, r3] = rows;
    let mut sums = [[0.0; BLOCK_N]; BLOCK_M];
    for ((((b, a0), a1), a2), a3) in panel.chunks_exact(BLOCK_N).zip(r0).zip(r1).zip(r2).zip(r3) {
        let b: [f64; BLOCK_N] = b.try_into().expect("chunks of BLOCK_N");
        for j in 0..BLOCK_N {
            sums[0][j] += a0 * b[j];
            sums[1][j] += a1 * b[j];
            sums[2][j] += a2 * b[j];
            sums[3][j] += a3 * b[j];
        }
    }
    sums
}

/// Outputs of one row that the hardware models compute together.
pub(super) const LANES: usize = 8;
type Columns = [f64; LANES];

/// Magnitude of the leading bit of a format's number, subnormals counted with the smallest normal one; 0 for 0.
#[inline(always)]
fn leading(x: f64, least: f64) -> f64 {
    let power = f64::from_bits(x.to_bits() & 0x7ff << 52);
    if x == 0.0 { 0.0 } else { power.max(least) }
}

pub(super) fn aligned_products(
    a: &[f64],
    b: &[f64],
    d: &mut [f32],
    Shape { m, n, k }: Shape,
    (fraction, least, output): (u32, [i32; 2], Output),
    scratch: &mut Vec<f64>,
) {
    panels::<LANES>(&b[..n * k], k, scratch);
    let [least_a, least_b] = least.map(|exponent| f64::from(exponent).exp2());
    let powers: Vec<f64> = scratch.iter().map(|&y| leading(y, least_b)).collect();
    let mut row_powers = vec![0.0; k];
    for i in 0..m {
        let row = &a[i * k..i * k + k];
        for (power, &x) in row_powers.iter_mut().zip(row) {
            *power = leading(x, least_a);
        }
        for n0 in (0..n).step_by(LANES) {
            let panel = scratch[n0 * k..(n0 + LANES) * k].as_chunks::<LANES>().0;
            let panel_powers = powers[n0 * k..(n0 + LANES) * k].as_chunks::<LANES>().0;
            let outputs = &mut d[i * n + n0..i * n + n.min(n0 + LANES)];
            let mut c = [0.0; LANES];
            for (c, &output) in c.iter_mut().zip(&*outputs) {
                *c = f64::from(output);
            }
            let mut largest = c.map(|c| leading(c, ACCUMULATOR_LEAST));
            for ((x, px), (columns, py)) in row.iter().zip(&row_powers).zip(panel.iter().zip(panel_powers)) {
                for j in 0..LANES {
                    // A zero factor makes the product of powers zero, also beside an infinity (NaN, which compares
                    // false).
                    let power = if *x == 0.0 || columns[j] == 0.0 { 0.0 } else { px * py[j] };
                    largest[j] = if power > largest[j] { power } else { largest[j] };
                }
            }
            let products = row.iter().zip(panel).map(|(x, columns)| columns.map(|y| x * y));
            let results = sum_aligned(products, c, largest, fraction, output);
            outputs.copy_from_slice(&results[..outputs.len()]);
        }
    }
}

/// Smallest normal `f32`.
const ACCUMULATOR_LEAST: f64 = f32::MIN_POSITIVE as f64;

/// Sums of [`GROUP`] products are exact, then one aligned addition per output.
fn grouped(
    a: &[f64],
    b: &[f64],
    d: &mut [f32],
    Shape { m, n, k }: Shape,
    (fraction, output): (u32, Output),
    scratch: &mut Vec<f64>,
) {
    panels::<LANES>(&b[..n * k], k, scratch);
    let mut sums: Vec<Columns> = Vec::with_capacity(k.div_ceil(GROUP));
    for i in 0..m {
        let row = &a[i * k..i * k + k];
        for n0 in (0..n).step_by(LANES) {
            let panel = scratch[n0 * k..(n0 + LANES) * k].as_chunks::<LANES>().0;
            let outputs = &mut d[i * n + n0..i * n + n.min(n0 + LANES)];
            let mut c = [0.0; LANES];
            for (c, &output) in c.iter_mut().zip(&*outputs) {
                *c = f64::from(output);
            }
            sums.clear();
            for (row, panel) in row.chunks(GROUP).zip(panel.chunks(GROUP)) {
                let mut sum = [0.0; LANES];
                for (x, columns) in row.iter().zip(panel) {
                    for (sum, y) in sum.iter_mut().zip(columns) {
                        *sum += x * y;
                    }
                }
                sums.push(sum);
            }
            // The comparison ignores a NaN.
            let mut largest = c.map(f64::abs);
            for sum in &sums {
                for j in 0..LANES {
                    largest[j] = if sum[j].abs() > largest[j] { sum[j].abs() } else { largest[j] };
                }
            }
            let results = sum_aligned(sums.iter().copied(), c, largest, fraction, output);
            outputs.copy_from_slice(&results[..outputs.len()]);
        }
    }
}

/// One fused addition per column: every term truncated toward zero at `fraction` bits below the binade of `largest`,
/// the exact sum truncated to `f32`.
#[inline(always)]
fn sum_aligned(
    terms: impl Iterator<Item = Columns> + Clone,
    c: Columns,
    largest: Columns,
    fraction: u32,
    output: Output,
) -> [f32; LANES] {
    // 2^(fraction - e) and its inverse, from the biased exponent. Products of f32-range operands stay far inside the
    // normal range of f64, so both exist wherever they are used.
    let biased = largest.map(|x| x.to_bits() >> 52);
    let fraction = u64::from(fraction);
    let scale = biased.map(|e| f64::from_bits((2046 + fraction).wrapping_sub(e) << 52));
    let unit = biased.map(|e| f64::from_bits(e.wrapping_sub(fraction) << 52));
    // Whole numbers below 2^(fraction + 2), at most a few hundred of them: exact in f64. The plain sum gives the
    // results that are not finite.
    let (mut sum, mut plain) = ([0.0; LANES], c);
    for term in terms {
        for j in 0..LANES {
            plain[j] += term[j];
            sum[j] += whole(term[j] * scale[j]);
        }
    }
    for j in 0..LANES {
        sum[j] += whole(c[j] * scale[j]);
    }
    let mut results = [0.0; LANES];
    for j in 0..LANES {
        let special = largest[j] == 0.0 || !largest[j].is_finite() || !plain[j].is_finite();
        results[j] = match output {
            _ if special => output.nearest(plain[j]),
            Output::F32 => shorten(truncate(sum[j] * unit[j]), fraction),
            Output::F16 => output.nearest(sum[j] * unit[j]),
        };
    }
    results
}

/// Truncation toward zero of a magnitude below 2^51, without branches.
#[inline(always)]
fn whole(x: f64) -> f64 {
    const SHIFT: f64 = 4503599627370496.0; // 2^52: adding it rounds to an integer
    let magnitude = x.abs();
    let nearest = (magnitude + SHIFT) - SHIFT;
    let down = if nearest > magnitude { nearest - 1.0 } else { nearest };
    down.copysign(x)
}

/// `f64` to `f32` toward zero; overflow gives infinity, as measured on the device.
#[inline(always)]
pub(super) fn truncate(x: f64) -> f32 {
    let nearest = x as f32;
    if nearest.is_finite() && f64::from(nearest).abs() > x.abs() {
        f32::from_bits(nearest.to_bits() - 1)
    } else {
        nearest
    }
}

/// Cuts an `f32` to `fraction` bits behind the leading one: adders that keep fewer bits than an `f32` give no more.
#[inline(always)]
pub(super) fn shorten(x: f32, fraction: u64) -> f32 {
    match 23u64.checked_sub(fraction) {
        Some(cut) if x.is_finite() => f32::from_bits(x.to_bits() & (u32::MAX << cut)),
        _ => x,
    }
}

/// Integer product into 32-bit accumulators, wrapping or saturating the exact sum.
///
/// # Panics
/// When a slice is shorter than its shape says.
pub fn accumulate_i32(a: &[i32], b: &[i32], d: &mut [i32], Shape { m, n, k }: Shape, saturate: bool) {
    for i in 0..m {
        for j in 0..n {
            let sum: i64 =
                a[i * k..][..k].iter().zip(&b[j * k..][..k]).map(|(x, y)| i64::from(*x) * i64::from(*y)).sum();
            let total = i64::from(d[i * n + j]) + sum;
            d[i * n + j] =
                if saturate { total.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32 } else { total as i32 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(terms: &[f64], c: f32, how: Accumulation) -> f32 {
        let ones = vec![1.0; terms.len()];
        let mut d = [c];
        accumulate(
            terms,
            &ones,
            &mut d,
            Shape { m: 1, n: 1, k: terms.len() },
            (how, Output::F32),
            &mut Scratch::default(),
        );
        d[0]
    }

    fn aligned(fraction: u32) -> Accumulation {
        Accumulation::Aligned { fraction, least: [-126; 2] }
    }

    fn p(e: i32) -> f64 {
        f64::from(e).exp2()
    }

    #[test]
    fn reference_matches_a_plain_product_on_odd_shapes() {
        for (m, n, k) in [(1, 1, 1), (5, 7, 3), (64, 24, 16), (16, 8, 32), (3, 2, 9)] {
            let a: Vec<f64> = (0..m * k).map(|i| f64::from((i * 37 % 19) as i32 - 9)).collect();
            let b: Vec<f64> = (0..n * k).map(|i| f64::from((i * 23 % 17) as i32 - 8)).collect();
            let c: Vec<f32> = (0..m * n).map(|i| (i % 5) as f32).collect();
            for how in [Accumulation::Reference, aligned(25), Accumulation::Grouped(35)] {
                let mut d = c.clone();
                accumulate(&a, &b, &mut d, Shape { m, n, k }, (how, Output::F32), &mut Scratch::default());
                for i in 0..m {
                    for j in 0..n {
                        let sum: f64 = (0..k).map(|t| a[i * k + t] * b[j * k + t]).sum();
                        assert_eq!(
                            f64::from(d[i * n + j]),
                            f64::from(c[i * n + j]) + sum,
                            "{how:?} {m}x{n}x{k} [{i}][{j}]"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn reference_rounds_the_exact_sum_once() {
        assert_eq!(one(&[p(-24), p(-40)], 1.0, Accumulation::Reference), 1.0 + p(-23) as f32);
        assert_eq!(one(&[p(-24)], 1.0, Accumulation::Reference), 1.0);
        assert_eq!(one(&[1e30, 1.0, -1e30], 0.5, Accumulation::Reference), 0.5, "1 is below the f64 unit of 1e30");
    }

    /// The measurements of the ISA notes, 11.1.
    #[test]
    fn hopper_fp8_model() {
        let how = aligned(13);
        assert_eq!(one(&[p(-13)], 1.0, how), 1.0 + p(-13) as f32);
        assert_eq!(one(&[p(-14)], 1.0, how), 1.0);
        assert_eq!(one(&[1.5 * p(-13)], 1.0, how), 1.0 + p(-13) as f32);
        assert_eq!(one(&[3.0625, p(-12)], 0.0, how), 3.0625 + p(-12) as f32);
        assert_eq!(one(&[3.0625, p(-13)], 0.0, how), 3.0625);
        assert_eq!(one(&[0.0], 1.0 + p(-14) as f32, how), 1.0);
        assert_eq!(one(&[1.0, 1.0 + p(-13)], 0.0, how), 2.0, "a result of exponent 1 has 13 bits, too");
        assert_eq!(one(&[p(-14); 31], 1.0, how), 1.0);
    }

    #[test]
    fn hopper_bf16_model() {
        let how = aligned(25);
        assert_eq!(one(&[p(-25); 4], 1.0, how), 1.0 + p(-23) as f32);
        assert_eq!(one(&[p(-26); 8], 1.0, how), 1.0);
        assert_eq!(one(&[1.5 * p(-23)], 1.0, how), 1.0 + p(-23) as f32);
        assert_eq!(one(&[-p(-25)], 1.0, how), 1.0 - p(-24) as f32);
        assert_eq!(one(&[p(-149)], 0.0, how).to_bits(), 1);
        assert_eq!(one(&[f64::NAN], 0.0, how).to_bits(), 0x7fff_ffff);
        assert_eq!(one(&[f64::INFINITY, f64::NEG_INFINITY], 0.0, how).to_bits(), 0x7fff_ffff);
        assert_eq!(one(&[p(127), p(127)], 0.0, how), f32::INFINITY);
    }

    /// 1.5 * 1.5 counts with exponent 0, so a term of 2^-25 survives beside it; as the sum of a product of exponent 1
    /// it would not.
    #[test]
    fn products_align_by_the_exponents_of_their_factors() {
        let mut d = [0.0];
        let shape = Shape { m: 1, n: 1, k: 3 };
        let (a, b) = ([1.5, p(-24), p(-25)], [1.5, 1.0, 1.0]);
        accumulate(&a, &b, &mut d, shape, (aligned(25), Output::F32), &mut Scratch::default());
        assert_eq!(d[0], 2.25, "cut to f32");
        let (a, b) = ([1.5, -p(-25), 0.0], [1.5, 1.0, 1.0]);
        d = [0.0];
        accumulate(&a, &b, &mut d, shape, (aligned(25), Output::F32), &mut Scratch::default());
        assert_eq!(d[0], 2.25 - p(-22) as f32, "the term was kept and moves the sum below 2.25");
    }

    #[test]
    fn grouped_model_adds_sixteen_exactly() {
        let mut terms = vec![0.0; 32];
        terms[0] = p(40);
        terms[1] = 1.0;
        terms[2] = -p(40);
        assert_eq!(one(&terms, 0.0, Accumulation::Grouped(35)), 1.0);
        terms.swap(2, 16); // the large terms now lie in different groups
        assert_eq!(one(&terms, 0.0, Accumulation::Grouped(35)), 0.0);
    }

    /// 2049 + 2^-20 is above the midpoint of 2048 and 2050, and an `f32` between would be exactly on it.
    #[test]
    fn half_output_rounds_once() {
        for how in [Accumulation::Reference, aligned(25)] {
            for (small, expected) in [(p(-13), 2050.0), (0.0, 2048.0), (-p(-13), 2048.0)] {
                let mut d = [2048.0];
                let shape = Shape { m: 1, n: 1, k: 2 };
                accumulate(&[1.0, small], &[1.0, 1.0], &mut d, shape, (how, Output::F16), &mut Scratch::default());
                assert_eq!(d[0], expected, "{how:?}");
            }
        }
    }

    #[test]
    fn integers_wrap_or_saturate() {
        let (a, b) = ([127; 4], [127; 4]);
        let mut d = [i32::MAX - 1];
        accumulate_i32(&a, &b, &mut d, Shape { m: 1, n: 1, k: 4 }, true);
        assert_eq!(d, [i32::MAX]);
        let mut d = [i32::MAX];
        accumulate_i32(&a, &b, &mut d, Shape { m: 1, n: 1, k: 4 }, false);
        assert_eq!(d, [i32::MAX.wrapping_add(4 * 127 * 127)]);
    }
}
