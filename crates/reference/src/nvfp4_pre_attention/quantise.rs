//! Blocks of 16 values as E2M1 codes with one E4M3 scale, and where the scale bytes lie.

use super::GROUP;
use crate::small_float::{e2m1_from_f64, e2m1_to_f64, e4m3_from_f64, e4m3_to_f64};

/// The nearest f32 to a sixth; six times it rounds to 1.
const SIXTH: f32 = 1.0 / 6.0;

/// Packed codes (8 bytes, low nibble first) and E4M3 scale of one block. `global_scale` is an encode scale.
///
/// ```text
/// scale = e4m3(global * (max|h| * 1/6))      code = e2m1(h * min(1 / (value(scale) * (1 / global)), FLT_MAX))
/// ```
///
/// Every operation is rounded to f32, nearest even.
pub fn quantise_block(values: &[f32], global_scale: f32) -> ([u8; GROUP / 2], u8) {
    let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    let scale = e4m3_from_f64((global_scale * (largest * SIXTH)).into());
    let inverse = (1.0 / (e4m3_to_f64(scale) as f32 * (1.0 / global_scale))).min(f32::MAX);
    let code = |value: f32| e2m1_from_f64((value * inverse).into());
    let mut packed = [0; GROUP / 2];
    for (byte, pair) in packed.iter_mut().zip(values.chunks_exact(2)) {
        *byte = code(pair[0]) | code(pair[1]) << 4;
    }
    (packed, scale)
}

/// Codes and scales of a row of whole blocks.
pub(super) fn quantise_row(values: &[f32], global_scale: f32) -> (Vec<u8>, Vec<u8>) {
    let blocks: Vec<_> = values.chunks_exact(GROUP).map(|block| quantise_block(block, global_scale)).collect();
    (blocks.iter().flat_map(|(codes, _)| *codes).collect(), blocks.iter().map(|(_, scale)| *scale).collect())
}

/// Values of a row as the GEMM multiplies them: code times block scale, without the global one.
pub(super) fn decode_row(codes: &[u8], scales: &[u8]) -> Vec<f64> {
    let values = codes.iter().flat_map(|byte| [e2m1_to_f64(byte & 0xF), e2m1_to_f64(byte >> 4)]);
    values.enumerate().map(|(i, value)| value * e4m3_to_f64(scales[i / GROUP])).collect()
}

/// Offset of the scale of a row's block in tiles of 128 rows x 4 blocks; `sets` tiles make up a row.
pub fn scale_offset(row: usize, block: usize, sets: usize) -> usize {
    let tile = row / 128 * sets + block / 4;
    tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4
}

/// Scales `[rows][blocks]` to their tiles; padding is zero.
pub fn swizzle_scales(linear: &[u8], blocks: usize) -> Vec<u8> {
    let sets = blocks.div_ceil(4);
    let rows = linear.len() / blocks;
    let mut tiles = vec![0; rows.div_ceil(128) * sets * 512];
    for (i, &scale) in linear.iter().enumerate() {
        tiles[scale_offset(i / blocks, i % blocks, sets)] = scale;
    }
    tiles
}

/// Scales out of their tiles, padding left out.
pub fn unswizzle_scales(tiles: &[u8], rows: usize, blocks: usize) -> Vec<u8> {
    let sets = blocks.div_ceil(4);
    (0..rows * blocks).map(|i| tiles[scale_offset(i / blocks, i % blocks, sets)]).collect()
}
