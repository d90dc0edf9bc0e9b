//! Modulation tables and tensors of tokens of more than 2^32 elements, of which a few rows are touched: places must be
//! 64-bit.

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

/// Tokens before the last 70: whole groups of token tiles of every GEMM, near the most that a problem may have. The
/// last 70 are past 2^32 elements and bytes in every tensor of tokens, but for their table rows and the scales of
/// results, which cannot be.
#[cfg(feature = "emulator")]
const TOKENS_BEFORE: u64 = 170 * 1024 * 256;

/// The last tokens of very many, with only the clusters that work on them: the bytes of a few tokens alone.
#[cfg(feature = "emulator")]
#[test]
fn tokens_past_32_bits_are_the_right_ones() {
    use std::sync::Arc;

    use bakewell::Arch;
    use bakewell::nvfp4_pre_attention::OutputFormat;
    use bakewell_tests::emulated::device;

    for (arch, out_format) in [
        (Arch::Sm90, OutputFormat::Nvfp4),
        (Arch::Sm90, OutputFormat::E4m3),
        (Arch::Sm100, OutputFormat::Nvfp4),
        (Arch::Sm103, OutputFormat::Nvfp4),
        (Arch::Sm103, OutputFormat::E4m3),
    ] {
        // Three column tiles; scale factors of the activation in four gigabytes.
        let problem = Nvfp4PreAttention { hidden: 1600, out_format, ..small(70, 1) };
        let few = Inputs::generate(&problem, 29);
        // A row tile of norms is 64 CTAs, and the GEMM's last row of tiles three clusters.
        let first = |kernel: &str, clusters: u64| match kernel {
            "nvfp4_pre_attention_norm" => clusters.saturating_sub(64),
            "nvfp4_pre_attention_weight_image" => 0,
            _ => clusters.saturating_sub(3),
        };
        let device = device(arch, |options| {
            // As many as there are tiles, so that a cluster has one.
            options.sm_count = 1 << 22;
            options.first_cluster = Some(Arc::new(first));
        });
        let near = outputs(&device, &few).unwrap();
        let problem = Nvfp4PreAttention { tokens: TOKENS_BEFORE + 70, ..few.problem.clone() };
        let large = Inputs { problem, ..few.clone() };
        let buffers = Buffers::new(&device, large.specs(), |_| 0).unwrap();
        // Tokens are the outermost dimension that all these tensors have more of, 128 of them a tile where there are
        // tiles.
        let behind = |name: &str| buffers.get(name).unwrap().bytes() - near_bytes(&few, name);
        for spec in large.specs().iter().filter(|spec| !spec.output) {
            buffers.get(spec.name).unwrap().write(behind(spec.name), &few.tensor(spec.name).unwrap().bytes).unwrap();
        }
        for name in ["x", "rope_cos_sin", "activation_q", "activation_sf", "out_q", "debug_q_bf16"] {
            assert!(behind(name) > 1 << 32, "{name}");
        }
        let args = large.args(&buffers.views().unwrap()).unwrap();
        device.plan(&large.problem).unwrap().launch(Stream::DEFAULT, args).unwrap_or_else(|error| panic!("{error}"));
        for spec in few.specs().into_iter().filter(|spec| spec.output) {
            let mut far = vec![0; spec.bytes() as usize];
            let address = buffers.get(spec.name).unwrap().address() + behind(spec.name);
            device.memory().read(address, &mut far).unwrap();
            equal(&format!("{} on {arch}", spec.name), &near[spec.name].bytes, &far).unwrap();
        }
    }
}

/// Bytes of a tensor of the few tokens.
#[cfg(feature = "emulator")]
fn near_bytes(few: &Inputs, name: &str) -> u64 {
    few.specs().iter().find(|spec| spec.name == name).unwrap().bytes()
}
