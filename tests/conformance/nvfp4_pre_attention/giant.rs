//! Modulation tables of more than 2^32 elements, of which a few rows are touched: places must be 64-bit.

use bakewell::nvfp4_pre_attention::Nvfp4PreAttention;
use bakewell::{Device, Result, Stream};
use bakewell_conformance::call::Buffers;
use bakewell_conformance::nvfp4_pre_attention::Inputs;
use bakewell_conformance::{CallInputs, HostTensor};
use bakewell_tests::on_every_engine;
use bakewell_tests::runs::{equal, outputs};

use super::small;

const HIDDEN: u64 = 256;

/// The last row below, and the first past, byte 2^31, byte 2^32 (element 2^31), and element 2^32.
const ROWS: [u64; 6] = [(1 << 22) - 1, 1 << 22, (1 << 23) - 1, 1 << 23, (1 << 24) - 1, 1 << 24];

/// The activation with the rows of `few` in those places of large tables.
fn run(device: &Device, few: &Inputs) -> Result<[HostTensor; 2]> {
    let problem = Nvfp4PreAttention { table_rows: ROWS[5] + 1, ..few.problem.clone() };
    let large = Inputs { problem, ..few.clone() };
    let buffers = Buffers::new(device, large.specs(), |_| 0)?;
    for spec in large.specs().iter().filter(|spec| !spec.output) {
        let (buffer, tensor) = (buffers.get(spec.name)?, few.tensor(spec.name).unwrap());
        match spec.name {
            "adaln_scale" | "adaln_shift" => {
                for (row, bytes) in ROWS.into_iter().zip(tensor.bytes.chunks_exact(2 * HIDDEN as usize)) {
                    buffer.write(row * 2 * HIDDEN, bytes)?;
                }
            }
            "adaln_index" => {
                let moved: Vec<i32> = tensor.to_i32()?.iter().map(|&row| ROWS[row as usize] as i32).collect();
                buffer.write(0, &HostTensor::of_i32(&[6], &moved).bytes)?;
            }
            _ => buffer.write(0, &tensor.bytes)?,
        }
    }
    device.plan(&large.problem)?.launch(Stream::DEFAULT, large.args(&buffers.views()?)?)?;
    device.synchronize(Stream::DEFAULT)?;
    Ok([buffers.download("activation_q")?, buffers.download("out_q")?])
}

#[test]
fn table_rows_past_32_bits_are_the_right_ones() {
    let problem = Nvfp4PreAttention { hidden: HIDDEN, table_rows: 6, debug: false, ..small(6, 1) };
    let few = Inputs { adaln_index: HostTensor::of_i32(&[6], &[3, 0, 5, 1, 4, 2]), ..Inputs::generate(&problem, 17) };
    on_every_engine(|device| {
        if device.runtime().is_none() {
            println!("skipped {device}: its buffers are not sparse");
            return Ok(());
        }
        let [activation, out] = run(device, &few).map_err(|error| error.to_string())?;
        let near = outputs(device, &few)?;
        equal("activation", &near["activation_q"].bytes, &activation.bytes)?;
        equal("results", &near["out_q"].bytes, &out.bytes)
    });
}
