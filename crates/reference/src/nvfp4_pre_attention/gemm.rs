//! The second stage's product, in f64, and which of its words any order of addition gives.

use half::bf16;

use super::HEAD_DIM;
use super::quantise::decode_row;

/// Words of the product and what is known about them.
#[derive(Clone, Debug, PartialEq)]
pub struct Gemm {
    /// `[tokens, columns]`, before `alpha`.
    pub sums: Vec<f64>,
    /// `[tokens, columns]`: `bf16(f32(f32(sum) * alpha))`.
    pub words: Vec<bf16>,
    /// `[tokens, columns / 128]`: whether f32 addition in any order gives each of the 128 words.
    pub determined: Vec<bool>,
}

/// Factor of the accumulators: `1 / (gx * gw)`, each operation rounded to f32.
pub fn alpha(x_global_scale: f32, w_global_scale: f32) -> f32 {
    1.0 / (x_global_scale * w_global_scale)
}

/// `rows` x `columns` of an operand: codes, and scales without padding.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// Packed codes, `[rows, hidden / 2]`.
    pub codes: &'a [u8],
    /// E4M3 `[rows, hidden / 16]`.
    pub scales: &'a [u8],
}

/// A decoded row, and the lowest set bit of its elements (infinite without any).
struct Row {
    values: Vec<f64>,
    unit: f64,
}

impl Operand<'_> {
    fn rows(&self, hidden: usize) -> Vec<Row> {
        let rows = self.codes.chunks_exact(hidden / 2).zip(self.scales.chunks_exact(hidden / super::GROUP));
        rows.map(|(codes, scales)| {
            let values = decode_row(codes, scales);
            let unit = values.iter().filter(|value| **value != 0.0).map(|&value| lowest_bit(value));
            Row { unit: unit.fold(f64::INFINITY, f64::min), values }
        })
        .collect()
    }
}

/// The product of activation and weight rows.
pub fn gemm(activation: Operand<'_>, weight: Operand<'_>, hidden: usize, alpha: f32) -> Gemm {
    let (tokens, columns) = (activation.rows(hidden), weight.rows(hidden));
    let mut out = Gemm { sums: Vec::new(), words: Vec::new(), determined: Vec::new() };
    for token in &tokens {
        for head in columns.chunks_exact(HEAD_DIM) {
            let mut determined = true;
            for column in head {
                let products = || token.values.iter().zip(&column.values).map(|(a, b)| a * b);
                let sum: f64 = products().sum();
                let magnitude: f64 = products().map(f64::abs).sum();
                // Every partial sum is a multiple of the product of the units, of at most 24 bits: no f32 addition
                // rounds.
                determined &= magnitude == 0.0 || magnitude <= 2f64.powi(24) * token.unit * column.unit;
                out.sums.push(sum);
                out.words.push(bf16::from_f32(sum as f32 * alpha));
            }
            out.determined.push(determined);
        }
    }
    out
}

/// Value of the lowest set bit of a finite number other than zero.
fn lowest_bit(value: f64) -> f64 {
    let bits = value.to_bits();
    // Decoded elements are far from the subnormals of f64.
    let (exponent, fraction) = ((bits >> 52 & 0x7FF) as i32 - 1075, bits & ((1 << 52) - 1) | 1 << 52);
    2f64.powi(exponent + fraction.trailing_zeros() as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_bit_of_a_number() {
        for (value, bit) in [(1.0, 1.0), (-12.0, 4.0), (0.75, 0.25), (2f64.powi(-10), 2f64.powi(-10)), (180.0, 4.0)] {
            assert_eq!(lowest_bit(value), bit);
        }
    }

    /// One element of the activation against weights of one, in two blocks.
    fn run(codes: [u8; 2], scales: [u8; 2], weight_scales: [u8; 2]) -> Gemm {
        let block = |code| [code, 0, 0, 0, 0, 0, 0, 0];
        let activation = Operand { codes: &[block(codes[0]), block(codes[1])].concat(), scales: &scales };
        let weight_scales = weight_scales.repeat(HEAD_DIM);
        gemm(activation, Operand { codes: &[0x22; 16 * HEAD_DIM], scales: &weight_scales }, 32, 0.5)
    }

    #[test]
    fn a_row_is_determined_while_its_sums_fit_24_bits() {
        let (smallest, one, largest) = (0x01, 0x38, 0x7E);
        let small = run([0x07, 0x01], [one, one], [one, one]);
        assert_eq!((small.sums[0], small.words[5].to_f32(), small.determined[0]), (6.5, 3.25, true));
        // 6 x 448 against 2^-10: 22 bits apart in the activation alone, 39 with as much in the weight.
        assert!(run([0x07, 0x01], [largest, smallest], [one, one]).determined[0]);
        assert!(!run([0x07, 0x01], [largest, smallest], [largest, smallest]).determined[0]);
        let zero = run([0, 0], [largest, smallest], [one, one]);
        assert_eq!((zero.sums[0], zero.determined[0]), (0.0, true), "nothing to add is determined");
    }
}
