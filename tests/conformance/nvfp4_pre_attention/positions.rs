//! Results that say where they belong: each block of V holds the number of its token, its head, its kind and its block.

use bakewell::nvfp4::{decode_e2m1, decode_e4m3, scale_offset};
use bakewell::nvfp4_pre_attention::{Nvfp4PreAttention, OutputFormat};
use bakewell_conformance::nvfp4_pre_attention::Inputs;
use bakewell_conformance::{HostTensor, Outputs};
use bakewell_tests::on_every_engine;
use bakewell_tests::runs::outputs;
use half::bf16;

use super::small;

/// The kind that passes through as it is.
const V: usize = 2;
/// Codes of 6, which makes the scale of a block, and of 1.
const SIX: u8 = 7;
const ONE: u8 = 2;

/// Octal digits of a number, the last one first.
fn digits<const N: usize>(number: usize) -> [u8; N] {
    std::array::from_fn(|i| (number >> (3 * i) & 7) as u8)
}

/// Codes of a block of V.
fn block(token: usize, head: usize, block: usize) -> [u8; 16] {
    let ([t0, t1, t2], [h0, h1]) = (digits(token), digits(head));
    [SIX, t0, t1, t2, h0, h1, V as u8, block as u8, 0, 0, 0, 0, 0, 0, 0, 0]
}

/// Each block of a token's shift holds 6, its digits, and at the end 1. Rows of V's weight pick the first four, and
/// multiply the last by digits of their own; where in the row, depends on the block. Scales of 4 and 2 that `alpha`
/// takes back.
fn inputs(problem: Nvfp4PreAttention) -> Inputs {
    let blocks = problem.hidden as usize / 16;
    let shift = |token: usize| {
        let [t0, t1, t2] = digits(token);
        let codes = [SIX, t0, t1, t2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ONE];
        codes.map(|code| bf16::from_f32(decode_e2m1(code))).repeat(blocks)
    };
    let shift: Vec<bf16> = (0..problem.tokens as usize).flat_map(shift).collect();
    let mut codes = vec![0; (problem.columns() * problem.hidden / 2) as usize];
    for (row, codes) in codes.chunks_mut(blocks * 8).enumerate().filter(|(row, _)| row / 128 % 3 == V) {
        let (head, dim) = (row / 384, row % 128);
        let (column, code) = match dim % 16 {
            column @ 0..4 => (column, ONE),
            element => (15, block(0, head, dim / 16)[element]),
        };
        codes[(16 * (dim / 16) + column) / 2] = code << (4 * (column % 2));
    }
    let one = |value: f32| HostTensor::of(&[1], &[value]);
    let base = Inputs::generate(&problem, 1);
    let weight_scales = vec![0x40; base.qkv_weight_sf.bytes.len()];
    Inputs {
        adaln_index: HostTensor::of_i32(&[problem.tokens], &(0..problem.tokens as i32).collect::<Vec<_>>()),
        adaln_scale: HostTensor::of(&problem.table_shape(), &vec![bf16::NEG_ONE; shift.len()]),
        adaln_shift: HostTensor::of(&problem.table_shape(), &shift),
        x_global_scale: one(4.0),
        qkv_weight_q: HostTensor { bytes: codes, ..base.qkv_weight_q.clone() },
        qkv_weight_sf: HostTensor { bytes: weight_scales, ..base.qkv_weight_sf.clone() },
        w_global_scale: one(2.0),
        out_global_scale: base.out_global_scale.as_ref().map(|_| one(2.0)),
        qkv_scales: base.qkv_scales.as_ref().map(|_| HostTensor::of(&[3], &[3f32, 5.0, 0.5])),
        ..base
    }
}

/// Values of a block of V, in the units of its codes.
fn values(problem: &Nvfp4PreAttention, outputs: &Outputs, [token, head, block]: [usize; 3]) -> Vec<f32> {
    let (tokens, local_heads) = (problem.tokens as usize, (problem.heads / problem.destinations) as usize);
    let (destination, local) = (head / local_heads, (token * local_heads + head % local_heads) * 3 + V);
    let row_bytes = problem.out_format.row_bytes() as usize;
    let row = (destination * tokens * local_heads * 3 + local) * row_bytes;
    let codes = &outputs["out_q"].bytes[row + block * row_bytes / 8..][..row_bytes / 8];
    match problem.out_format {
        OutputFormat::E4m3 => codes.iter().map(|&byte| decode_e4m3(byte) * 0.5).collect(),
        OutputFormat::Nvfp4 => {
            let tiles = destination * problem.out_scales_shape()[1] as usize;
            let scale = decode_e4m3(outputs["out_sf"].bytes[tiles + scale_offset(local, block, 8)]) / 2.0;
            let codes = codes.iter().flat_map(|byte| [byte & 0xF, byte >> 4]);
            codes.map(|code| decode_e2m1(code) * scale).collect()
        }
    }
}

#[test]
fn results_name_their_token_head_and_block() {
    for (out_format, destinations) in [(OutputFormat::Nvfp4, 4), (OutputFormat::E4m3, 2), (OutputFormat::Nvfp4, 1)] {
        let base = small(130, 1);
        let inputs = inputs(Nvfp4PreAttention { out_format, destinations, heads: 8, table_rows: base.tokens, ..base });
        on_every_engine(|device| {
            let outputs = outputs(device, &inputs)?;
            for (token, head, index) in (0..130).flat_map(|t| (0..8).flat_map(move |h| (0..8).map(move |b| (t, h, b))))
            {
                let wanted = block(token, head, index).map(decode_e2m1);
                let got = values(&inputs.problem, &outputs, [token, head, index]);
                if got != wanted {
                    return Err(format!("token {token}, head {head}, block {index}: {got:?}, expected {wanted:?}"));
                }
            }
            Ok(())
        });
    }
}
