//! NVFP4 on the host: quantisation of weights and activations, its reverse, and the layout of scale factors.
//!
//! 16 consecutive values of a row are a block: an E2M1 code each, two to a byte, low nibble first, and one E4M3 scale.
//! A tensor has one *encode* scale besides, normally [`global_scale`] of its largest magnitude:
//!
//! ```text
//! scale = e4m3(global * (max|h| * 1/6))      code = e2m1(h * min(1 / (value(scale) * (1 / global)), FLT_MAX))
//! h is about value(code) * value(scale) / global
//! ```
//!
//! Every operation is rounded to f32, nearest even: these are the bytes that the kernels write too. An all-zero block
//! has scale 0. So has one whose scale falls below the smallest E4M3 value: its codes are ±6, and decode to 0.
//!
//! ```
//! use bakewell::nvfp4;
//!
//! let weights: Vec<f32> = (0..64).map(|i| (i as f32 - 32.0) / 8.0).collect();
//! let global = nvfp4::global_scale(4.0);
//! let quantised = nvfp4::quantise(&weights, 32, global)?;
//! assert_eq!((quantised.codes.len(), quantised.scales.len()), (32, 4));
//! let decoded = nvfp4::dequantise(&quantised, 32, global)?;
//! assert_eq!((decoded[0], decoded[32]), (-4.0, 0.0));
//! let tiles = nvfp4::swizzle_scales(&quantised.scales, 2)?;
//! assert_eq!(tiles.len(), 512, "one tile of 128 rows and four blocks");
//! # Ok::<(), bakewell::Error>(())
//! ```

use bakewell_core::error::Property;
use bakewell_core::{Error, Result};

/// Values of a block.
pub const BLOCK: usize = 16;

const E4M3_MAX: f32 = 448.0;
const E2M1_MAX: f32 = 6.0;
const E4M3_MAX_CODE: u8 = 0x7E;
const E4M3_NAN_CODE: u8 = 0x7F;
/// `2^-6`, the smallest normal number of E4M3, and `2^9`, the reciprocal of its quantum below that.
const E4M3_SMALLEST_NORMAL: f32 = 0.015625;
const E4M3_SUBNORMAL_STEPS: f32 = 512.0;

const TILE_ROWS: usize = 128;
const TILE_BLOCKS: usize = 4;
const TILE_BYTES: usize = TILE_ROWS * TILE_BLOCKS;

/// Codes and scales of a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantised {
    /// `[rows, columns / 2]`.
    pub codes: Vec<u8>,
    /// `[rows, columns / 16]`, in the order of the blocks.
    pub scales: Vec<u8>,
}

/// The encode scale that maps this largest magnitude to the largest code with the largest scale: `448 * 6 / amax`.
pub fn global_scale(amax: f32) -> f32 {
    E4M3_MAX * E2M1_MAX / amax
}

/// Quantises a matrix of rows of `columns` values.
///
/// # Errors
/// [`Error::Argument`] about `columns` that is no multiple of 16, `values` that are no whole rows, or a `global_scale`
/// that is not positive and finite.
pub fn quantise(values: &[f32], columns: usize, global_scale: f32) -> Result<Quantised> {
    check_columns(columns)?;
    whole_rows("values", values.len(), columns)?;
    check_global_scale(global_scale)?;
    let blocks = values.chunks_exact(BLOCK).map(|block| quantise_block(block, global_scale));
    let (codes, scales): (Vec<_>, Vec<u8>) = blocks.unzip();
    Ok(Quantised { codes: codes.concat(), scales })
}

fn quantise_block(block: &[f32], global_scale: f32) -> ([u8; BLOCK / 2], u8) {
    const SIXTH: f32 = 1.0 / E2M1_MAX;
    let largest = block.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    let scale = encode_e4m3(global_scale * (largest * SIXTH));
    let inverse = (1.0 / (decode_e4m3(scale) * (1.0 / global_scale))).min(f32::MAX);
    let mut codes = [0; BLOCK / 2];
    for (byte, pair) in codes.iter_mut().zip(block.chunks_exact(2)) {
        *byte = encode_e2m1(pair[0] * inverse) | encode_e2m1(pair[1] * inverse) << 4;
    }
    (codes, scale)
}

/// The values that codes and scales stand for, rounded to f32.
///
/// # Errors
/// As [`quantise`], and [`Error::Argument`] about `scales` that do not fit the codes.
pub fn dequantise(quantised: &Quantised, columns: usize, global_scale: f32) -> Result<Vec<f32>> {
    check_columns(columns)?;
    whole_rows("codes", quantised.codes.len() * 2, columns)?;
    check_global_scale(global_scale)?;
    let expected = quantised.codes.len() * 2 / BLOCK;
    if quantised.scales.len() != expected {
        return Err(Error::argument("scales", Property::Size, format!("{expected} bytes"), quantised.scales.len()));
    }
    let values = quantised.codes.iter().flat_map(|byte| [decode_e2m1(byte & 0xF), decode_e2m1(byte >> 4)]);
    let scaled = values.enumerate().map(|(i, value)| value * decode_e4m3(quantised.scales[i / BLOCK]) / global_scale);
    Ok(scaled.collect())
}

/// Offset of the scale of a row's block, in bytes, in tiles of 128 rows x 4 blocks, of which `blocks / 4`, rounded up,
/// make up a row: the layout that block-scaled GEMMs read.
pub fn scale_offset(row: usize, block: usize, blocks: usize) -> usize {
    let tile = row / TILE_ROWS * blocks.div_ceil(TILE_BLOCKS) + block / TILE_BLOCKS;
    tile * TILE_BYTES + row % 32 * 16 + row % TILE_ROWS / 32 * TILE_BLOCKS + block % TILE_BLOCKS
}

/// Scales `[rows, blocks]` to their tiles. Padding is zero.
///
/// # Errors
/// [`Error::Argument`] about `scales` that are no whole rows.
pub fn swizzle_scales(scales: &[u8], blocks: usize) -> Result<Vec<u8>> {
    whole_rows("scales", scales.len(), blocks)?;
    let rows = scales.len() / blocks;
    let mut tiles = vec![0; tile_bytes(rows, blocks)];
    for (i, &scale) in scales.iter().enumerate() {
        tiles[scale_offset(i / blocks, i % blocks, blocks)] = scale;
    }
    Ok(tiles)
}

/// Scales `[rows, blocks]` out of their tiles.
///
/// # Errors
/// [`Error::Argument`] about `tiles` of another size.
pub fn unswizzle_scales(tiles: &[u8], rows: usize, blocks: usize) -> Result<Vec<u8>> {
    let expected = tile_bytes(rows, blocks);
    if tiles.len() != expected {
        return Err(Error::argument("tiles", Property::Size, format!("{expected} bytes"), tiles.len()));
    }
    Ok((0..rows * blocks).map(|i| tiles[scale_offset(i / blocks, i % blocks, blocks)]).collect())
}

fn tile_bytes(rows: usize, blocks: usize) -> usize {
    rows.div_ceil(TILE_ROWS) * blocks.div_ceil(TILE_BLOCKS) * TILE_BYTES
}

/// E4M3 byte of a value, nearest even, saturating at ±448. The sign of zero stays; NaN gives 0x7F.
pub fn encode_e4m3(value: f32) -> u8 {
    let magnitude = value.abs().min(E4M3_MAX);
    if value.is_nan() {
        return E4M3_NAN_CODE;
    }
    let code = if magnitude < E4M3_SMALLEST_NORMAL {
        // 8 steps are the smallest normal number, whose code is 8.
        (magnitude * E4M3_SUBNORMAL_STEPS).round_ties_even() as u8
    } else {
        // The bias goes from 127 to 7, the fraction from 23 bits to 3; a carry into the exponent is what rounding up
        // means.
        let bits = magnitude.to_bits() - (120 << 23);
        let half = (1 << 19) - 1 + (bits >> 20 & 1);
        ((bits + half) >> 20).min(E4M3_MAX_CODE.into()) as u8
    };
    code | sign(value) << 7
}

/// Value of an E4M3 byte.
pub fn decode_e4m3(byte: u8) -> f32 {
    let magnitude = match byte & 0x7F {
        E4M3_NAN_CODE => f32::NAN,
        code @ 0..8 => f32::from(code) / E4M3_SUBNORMAL_STEPS,
        code => f32::from_bits((u32::from(code) << 20) + (120 << 23)),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// E2M1 code of a value, nearest even, saturating at ±6. The sign of zero stays; NaN gives 7.
pub fn encode_e2m1(value: f32) -> u8 {
    let magnitude = value.abs().min(E2M1_MAX);
    // The quantum is 1/2 below 2, 1 below 4, then 2; a step of it is a step of the code.
    let code = if magnitude < 2.0 {
        (magnitude * 2.0).round_ties_even()
    } else if magnitude < 4.0 {
        magnitude.round_ties_even() + 2.0
    } else {
        (magnitude / 2.0).round_ties_even() + 4.0
    };
    code as u8 | sign(value) << 3
}

/// Value of an E2M1 code, the low four bits of `code`.
pub fn decode_e2m1(code: u8) -> f32 {
    const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let magnitude = MAGNITUDES[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

fn sign(value: f32) -> u8 {
    u8::from(value.is_sign_negative() && !value.is_nan())
}

fn check_columns(columns: usize) -> Result<()> {
    match columns > 0 && columns.is_multiple_of(BLOCK) {
        true => Ok(()),
        false => Err(Error::value("columns", format!("a positive multiple of {BLOCK}"), columns)),
    }
}

fn whole_rows(name: &'static str, elements: usize, columns: usize) -> Result<()> {
    match columns > 0 && elements.is_multiple_of(columns) {
        true => Ok(()),
        false => Err(Error::argument(name, Property::Size, format!("whole rows of {columns}"), elements)),
    }
}

fn check_global_scale(global_scale: f32) -> Result<()> {
    match global_scale.is_finite() && global_scale > 0.0 {
        true => Ok(()),
        false => Err(Error::value("global_scale", "a positive finite number", global_scale)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All codes, and between each two the midpoint and its neighbours, of a format whose positive codes are ordered.
    fn check_rounding(largest: u8, sign_bit: u8, encode: impl Fn(f32) -> u8, decode: impl Fn(u8) -> f32) {
        for code in 0..=largest {
            assert_eq!((encode(decode(code)), encode(decode(code | sign_bit))), (code, code | sign_bit));
        }
        for code in 0..largest {
            // One bit more than a code has, so exact.
            let midpoint = (decode(code) + decode(code + 1)) / 2.0;
            let even = code + code % 2;
            for (value, expected) in [(midpoint, even), (midpoint.next_down(), code), (midpoint.next_up(), code + 1)] {
                assert_eq!(encode(value), expected, "{value}");
                assert_eq!(encode(-value), expected | sign_bit, "-{value}");
            }
        }
        for (value, expected) in [(f32::MAX, largest), (f32::INFINITY, largest), (1e-30, 0), (f32::from_bits(1), 0)] {
            assert_eq!((encode(value), encode(-value)), (expected, expected | sign_bit));
        }
    }

    #[test]
    fn every_scale_and_every_midpoint() {
        check_rounding(0x7E, 0x80, encode_e4m3, decode_e4m3);
        assert_eq!((decode_e4m3(0x7E), decode_e4m3(0x01), decode_e4m3(0x38)), (448.0, 2f32.powi(-9), 1.0));
        assert!(decode_e4m3(0x7F).is_nan() && decode_e4m3(0xFF).is_nan());
        assert_eq!((encode_e4m3(f32::NAN), encode_e4m3(464.0), encode_e4m3(465.0)), (0x7F, 0x7E, 0x7E));
    }

    #[test]
    fn every_code_and_every_midpoint() {
        check_rounding(7, 8, encode_e2m1, decode_e2m1);
        assert_eq!(encode_e2m1(f32::NAN), 7);
    }

    #[cfg(feature = "reference")]
    #[test]
    fn both_formats_are_those_of_the_reference() {
        use bakewell_reference::small_float::{e2m1_from_f64, e2m1_to_f64, e4m3_from_f64, e4m3_to_f64};
        for byte in 0..=255u8 {
            let (value, expected) = (f64::from(decode_e4m3(byte)), e4m3_to_f64(byte));
            assert!(value == expected || (value.is_nan() && expected.is_nan()));
        }
        assert!((0..16).all(|code| f64::from(decode_e2m1(code)) == e2m1_to_f64(code)));
        // Every 65521st bit pattern, NaN left out.
        for value in (0..=u32::MAX).step_by(65_521).map(f32::from_bits).filter(|value| !value.is_nan()) {
            assert_eq!(encode_e4m3(value), e4m3_from_f64(value.into()), "{value}");
            assert_eq!(encode_e2m1(value), e2m1_from_f64(value.into()), "{value}");
        }
    }

    fn block(values: &[f32]) -> [f32; BLOCK] {
        let mut block = [0.0; BLOCK];
        block[..values.len()].copy_from_slice(values);
        block
    }

    #[test]
    fn corners_of_a_block() {
        let one = |values: &[f32], global| {
            let quantised = quantise(&block(values), BLOCK, global).unwrap();
            (quantised.codes[0], quantised.codes[1], quantised.scales[0])
        };
        assert_eq!(one(&[0.0, -0.0], 7.0), (0x80, 0x00, 0), "minus zero keeps its sign");
        // The scale is 6 * (1/6) = 1: values are codes.
        assert_eq!(one(&[6.0, 0.25, 2.5, -5.0], 1.0), (0x07, 0xE4, 0x38), "ties go to even codes");
        assert_eq!(one(&[6.0 * 2f32.powi(-10)], 1.0), (0x07, 0, 0), "an underflowed scale: 6, which decodes to 0");
        assert_eq!(
            one(&[6.0 * 1.01 * 2f32.powi(-10)], 1.0),
            (0x05, 0, 1),
            "more than half the smallest scale rounds to it, and 3.03 to 3"
        );
        assert_eq!(one(&[6e6, 448.0], 1.0), (0x27, 0, 0x7E), "both levels saturate");
        assert_eq!(one(&[f32::MAX], 1e30), (0x07, 0, 0x7E), "an infinite scale saturates like a large one");
    }

    #[test]
    fn quantisation_and_its_reverse_are_inverse_on_what_the_format_holds() {
        let codes: Vec<u8> = (0..=255).collect();
        let scales: Vec<u8> = (0..32).map(|i| 0x7E - 3 * i).collect();
        // Each block has a code of magnitude 6, so that its scale is that of its largest value.
        let codes: Vec<u8> = codes.chunks(8).flat_map(|block| [&[0xF7], &block[1..]].concat()).collect();
        let quantised = Quantised { codes, scales };
        for global in [1.0, 0.25, 2f32.powi(20)] {
            let values = dequantise(&quantised, 64, global).unwrap();
            assert_eq!(quantise(&values, 64, global).unwrap(), quantised);
        }
    }

    #[test]
    fn tiles_hold_every_scale_once_and_zeros_elsewhere() {
        for (rows, blocks) in [(1, 4), (33, 5), (128, 8), (130, 336)] {
            let linear: Vec<u8> = (0..rows * blocks).map(|i| (i % 251 + 1) as u8).collect();
            let tiles = swizzle_scales(&linear, blocks).unwrap();
            assert_eq!(tiles.len(), rows.div_ceil(128) * blocks.div_ceil(4) * 512);
            assert_eq!(tiles.iter().filter(|&&scale| scale != 0).count(), linear.len());
            assert_eq!(unswizzle_scales(&tiles, rows, blocks).unwrap(), linear);
        }
        // Row 33 is the second of the second quarter; a set of blocks is a tile, a row of tiles comes before the next
        // rows.
        assert_eq!((scale_offset(33, 0, 8), scale_offset(0, 5, 8), scale_offset(128, 0, 8)), (20, 513, 1024));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let argument = |result: Result<Vec<u8>>| match result {
            Err(Error::Argument { argument, .. }) => argument,
            other => panic!("{other:?}"),
        };
        let quantised = |values: &[f32], columns, global| quantise(values, columns, global).map(|q| q.codes);
        assert_eq!(argument(quantised(&[0.0; 32], 24, 1.0)), "columns");
        assert_eq!(argument(quantised(&[0.0; 32], 0, 1.0)), "columns");
        assert_eq!(argument(quantised(&[0.0; 40], 16, 1.0)), "values");
        for global in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            assert_eq!(argument(quantised(&[0.0; 16], 16, global)), "global_scale");
        }
        let short = Quantised { codes: vec![0; 16], scales: vec![0] };
        assert_eq!(argument(dequantise(&short, 16, 1.0).map(|_| Vec::new())), "scales");
        assert_eq!(argument(swizzle_scales(&[0; 5], 4)), "scales");
        assert_eq!(argument(unswizzle_scales(&[0; 511], 1, 4)), "tiles");
    }
}
