//! Calls of any size whose tokens repeat a few, compared byte for byte with what the few give.
//!
//! The reference takes a second for a token of the model's size. A token's results depend on its own inputs and on the
//! weights only, so a call on tokens that repeat needs it for the few alone, and every byte of the call is checked.

use std::ops::Range;

use bakewell::error::Property;
use bakewell::nvfp4_pre_attention::Nvfp4PreAttention;
use bakewell::schedule::nvfp4_pre_attention::KINDS;
use bakewell::{DType, Device, Error, Result, Stream, nvfp4};
use half::bf16;

use super::Inputs;
use super::call::{args, tensors};
use crate::HostTensor;
use crate::call::{Buffers, CallInputs, TensorSpec};
use crate::random::Random;
use crate::staged::Outputs;

/// Tokens that are repeated: coprime to all tiles, so that every place of a tile sees each of them.
const FEW: u64 = 15;
/// Table rows; the tokens take turns with a row outside the tables.
const TABLE_ROWS: u64 = 4;
/// Scale tiles have so many rows; windows begin at whole ones.
const TILE_ROWS: u64 = 128;
/// Bytes behind each output that must stay as they are, and what outputs and they hold before the launch.
const GUARD_BYTES: u64 = 256;
const POISON: u8 = 0xFF;
/// Copies of the few that are uploaded at once.
const COPIES: u64 = 64;

/// A few tokens of a problem for one destination: hidden states, tables and rotations as [`Inputs::generate`] makes
/// them, weights of random codes whose block scales are 1/2 and 1.
///
/// # Panics
/// For a problem that breaks the contract.
pub fn few(problem: &Nvfp4PreAttention, seed: u64) -> Inputs {
    let problem = Nvfp4PreAttention { tokens: FEW, table_rows: TABLE_ROWS, destinations: 1, ..problem.clone() };
    // The weights of so many heads would take long.
    let two_heads = Inputs::generate(&Nvfp4PreAttention { heads: 2, ..problem.clone() }, seed);
    let mut random = Random::new(seed);
    let mut bytes = |shape: &[u64], byte: fn(u8) -> u8| {
        let count = shape.iter().product::<u64>() as usize;
        let words = std::iter::repeat_with(|| random.bits().to_le_bytes());
        let bytes = words.take(count.div_ceil(8)).flatten().take(count).map(byte).collect();
        HostTensor { dtype: DType::U8, shape: shape.to_vec(), bytes }
    };
    let index: Vec<i32> = (0..FEW).map(|token| if token % 5 == 4 { -1 } else { (token % 5) as i32 }).collect();
    Inputs {
        adaln_index: HostTensor::of_i32(&[FEW], &index),
        qkv_weight_q: bytes(&problem.weight_shape(), |byte| byte),
        qkv_weight_sf: bytes(&problem.weight_scales_shape(), |byte| if byte & 1 == 0 { E4M3_HALF } else { E4M3_ONE }),
        w_global_scale: HostTensor::of(&[1], &[97.3f32]),
        problem,
        ..two_heads
    }
}

const E4M3_HALF: u8 = 0x30;
const E4M3_ONE: u8 = 0x38;

/// The same where nothing depends on an order of sums: modulation scales of -1, so that the activation is the shift,
/// and shifts that the format holds, with block scales of 2^6 and 2^7.
///
/// In units of the smallest code and scale an element of either operand is at most 24, so the sum of magnitudes of a
/// word is at most `576 * hidden`, and exact in f32 up to 2^24: every head row is determined.
///
/// # Errors
/// [`Error::Argument`] for more hidden elements than that.
///
/// # Panics
/// As [`few`].
pub fn exact(problem: &Nvfp4PreAttention, seed: u64) -> Result<Inputs> {
    if 576 * problem.hidden > 1 << 24 {
        return Err(Error::value("hidden", "at most 29127, so that sums are exact", problem.hidden));
    }
    let inputs = few(problem, seed);
    let mut random = Random::new(seed + 1);
    let shape = inputs.problem.table_shape();
    let block = |_| {
        let (largest, scale) = (random.bits() % 16, 1.0 + (random.bits() & 1) as f32);
        let mut code = |i| if i == largest { 7 } else { random.bits() as u8 };
        (0..16).map(|i| bf16::from_f32(scale * nvfp4::decode_e2m1(code(i)))).collect::<Vec<bf16>>()
    };
    let shifts: Vec<bf16> = (0..shape[0] * shape[1] / 16).flat_map(block).collect();
    Ok(Inputs {
        adaln_scale: HostTensor::of(&shape, &vec![bf16::NEG_ONE; shifts.len()]),
        adaln_shift: HostTensor::of(&shape, &shifts),
        x_global_scale: HostTensor::of(&[1], &[64f32]),
        ..inputs
    })
}

/// Tokens in windows: the first, the last, and those on both sides of byte and element 2^31 and 2^32 of every tensor,
/// with the other tokens of their scale tiles.
pub fn borders(problem: &Nvfp4PreAttention) -> Vec<Range<u64>> {
    let tokens = problem.tokens;
    let crossed = tensors(problem).into_iter().flat_map(|spec| {
        let token = |at: u64| (spec.bytes() > at).then(|| at / (spec.bytes() / tokens));
        let places = [1 << 31, 1 << 32].into_iter().flat_map(|count| [count, count * spec.dtype.bytes()]);
        places.filter_map(token).flat_map(|token| [token.saturating_sub(1), token]).collect::<Vec<_>>()
    });
    let mut tiles: Vec<u64> = crossed.chain([0, tokens.saturating_sub(1)]).map(|token| token / TILE_ROWS).collect();
    tiles.sort_unstable();
    tiles.dedup();
    tiles.into_iter().map(|tile| TILE_ROWS * tile..tokens.min(TILE_ROWS * (tile + 1))).collect()
}

/// A call that has run.
#[derive(Debug)]
pub struct Repeated {
    problem: Nvfp4PreAttention,
    device: Device,
    buffers: Buffers,
}

impl Repeated {
    /// Runs a call on `tokens` tokens that repeat the few, for some number of destinations; outputs are poisoned
    /// before.
    ///
    /// # Errors
    /// The plan's, the binding's or the device's.
    pub fn run(device: &Device, few: &Inputs, tokens: u64, destinations: u64) -> Result<Repeated> {
        let problem = Nvfp4PreAttention { tokens, destinations, ..few.problem.clone() };
        let spare = |spec: &TensorSpec| if spec.output { GUARD_BYTES } else { 0 };
        let buffers = Buffers::new(device, tensors(&problem), spare)?;
        for spec in tensors(&problem) {
            let buffer = buffers.get(spec.name)?;
            match (spec.name, few.tensor(spec.name)) {
                ("x" | "adaln_index" | "rope_cos_sin", Some(rows)) => {
                    let row_bytes = rows.bytes.len() as u64 / FEW;
                    let copies = rows.bytes.repeat(COPIES as usize);
                    for first in (0..tokens).step_by((FEW * COPIES) as usize) {
                        let count = (FEW * COPIES).min(tokens - first);
                        buffer.write(first * row_bytes, &copies[..(count * row_bytes) as usize])?;
                    }
                }
                (_, Some(tensor)) => buffer.write(0, &tensor.bytes)?,
                (_, None) => buffer.fill(POISON)?,
            }
        }
        device.plan(&problem)?.launch(Stream::DEFAULT, args(&buffers.views()?)?)?;
        device.synchronize(Stream::DEFAULT)?;
        Ok(Repeated { problem, device: device.clone(), buffers })
    }

    /// The problem of the whole call.
    pub fn problem(&self) -> &Nvfp4PreAttention {
        &self.problem
    }

    /// The first output, of some windows of tokens that begin at whole scale tiles, whose bytes are not those of the
    /// few; padding is zero, and nothing is written behind an output. `few` are the outputs of the few for one
    /// destination.
    ///
    /// # Errors
    /// The device's, or [`Error::Argument`] for an output that is missing.
    pub fn difference(&self, few: &Outputs, windows: &[Range<u64>]) -> Result<Option<String>> {
        for spec in tensors(&self.problem).into_iter().filter(|spec| spec.output) {
            let name = spec.name;
            let missing = || Error::argument(name, Property::Presence, "an output", "none");
            let few = few.get(name).ok_or_else(missing)?;
            for window in windows {
                for (at, wanted) in self.parts(name, &few.bytes, window)? {
                    if let Some(byte) = self.buffers.differing(&self.device, name, at, &wanted)? {
                        return Ok(Some(format!("{name} of tokens {window:?}: another byte at {byte}")));
                    }
                }
            }
            if let Some(byte) =
                self.buffers.differing(&self.device, name, spec.bytes(), &[POISON; GUARD_BYTES as usize])?
            {
                return Ok(Some(format!("{name}: a write behind its end, at byte {byte} of {}", spec.bytes())));
            }
        }
        Ok(None)
    }

    /// What an output has in a window: places, and the bytes from there on.
    fn parts(&self, name: &str, few: &[u8], window: &Range<u64>) -> Result<Vec<(u64, Vec<u8>)>> {
        let problem = &self.problem;
        let few_rows = (FEW * problem.heads * u64::from(KINDS)) as usize;
        let destination = |rows: &[u8], destination: u64, stride: u64| {
            let bytes = rows.len() as u64 / FEW / problem.destinations;
            (destination * stride + window.start * bytes, repeat(rows, destination * bytes, bytes, window))
        };
        let all = 0..problem.destinations;
        Ok(match name {
            "out_q" => {
                let stride = few.len() as u64 / FEW / problem.destinations * problem.tokens;
                all.map(|index| destination(few, index, stride)).collect()
            }
            "out_sf" => {
                let rows = nvfp4::unswizzle_scales(few, few_rows, ROW_GROUPS)?;
                let stride = problem.out_scales_shape()[1];
                let tiles = |index| {
                    let (at, rows) = destination(&rows, index, stride);
                    Ok((at, nvfp4::swizzle_scales(&rows, ROW_GROUPS)?))
                };
                all.map(tiles).collect::<Result<_>>()?
            }
            "activation_sf" => {
                let groups = problem.hidden / nvfp4::BLOCK as u64;
                let rows = nvfp4::unswizzle_scales(few, FEW as usize, groups as usize)?;
                let rows = repeat(&rows, 0, groups, window);
                vec![(window.start * groups, nvfp4::swizzle_scales(&rows, groups as usize)?)]
            }
            _ => {
                let bytes = few.len() as u64 / FEW;
                vec![(window.start * bytes, repeat(few, 0, bytes, window))]
            }
        })
    }
}

/// Scale bytes of a head row.
const ROW_GROUPS: usize = 8;

/// A part of each token's row, of the tokens of a window in turn.
fn repeat(few: &[u8], first: u64, bytes: u64, window: &Range<u64>) -> Vec<u8> {
    let row_bytes = few.len() as u64 / FEW;
    let mut rows = Vec::with_capacity(((window.end - window.start) * bytes) as usize);
    for token in window.clone() {
        let start = (token % FEW * row_bytes + first) as usize;
        rows.extend_from_slice(&few[start..start + bytes as usize]);
    }
    rows
}
