//! Dimensions of one element: their strides mean nothing.

use bakewell::gdn::{Gdn, Input, Sequences};
use bakewell::{Device, Stream};
use bakewell_tests::runs::{STRIDES_OF_ONE, equal};
use half::bf16;

use super::on_some_engines;
use super::tensors::{Tensors, problem};

/// Gates and offsets among them are rewritten: these hold any number.
const INPUTS: [&str; 7] = ["q", "k", "v", "beta", "h0", "do", "dht"];
const OUTPUTS: [&str; 8] = ["o", "ht", "dq", "dk", "dv", "dg", "dbeta", "dh0"];

/// Everything that both calls write.
fn outputs(device: &Device, problem: &Gdn, stride_of_one: Option<u64>) -> bakewell::Result<Vec<Vec<u8>>> {
    let mut tensors = Tensors::on(device, problem);
    tensors.stride_of_one = stride_of_one;
    for (salt, name) in INPUTS.into_iter().enumerate() {
        // Words of either half are numbers of either type, below one in size.
        let number = |i: u64| bf16::from_f32(((i * 37 + salt as u64 * 11) % 23) as f32 / 23.0 - 0.4);
        let buffer = tensors.buffer(name);
        buffer.write(0, &(0..buffer.bytes() / 2).flat_map(|i| number(i).to_le_bytes()).collect::<Vec<_>>())?;
    }
    let gates = tensors.buffer("g");
    gates.write(0, &(0..gates.bytes() / 4).flat_map(|_| (-0.5f32).to_le_bytes()).collect::<Vec<_>>())?;
    tensors.buffer("cu_seqlens").write(0, &[0i32, 1].map(i32::to_le_bytes).concat())?;
    for name in OUTPUTS {
        tensors.buffer(name).fill(0xFF)?;
    }
    tensors.forward.launch(Stream::DEFAULT, tensors.forward_args())?;
    tensors.backward.launch(Stream::DEFAULT, tensors.backward_args())?;
    device.synchronize(Stream::DEFAULT)?;
    OUTPUTS.into_iter().map(|name| tensors.buffer(name).read()).collect()
}

/// One token with one head, its sequence known to the host and not, read in place and copied.
#[test]
fn strides_of_one_do_not_matter() {
    let single = Gdn { tokens: 1, heads: 1, value_heads: 1, ..problem() };
    let copies = vec![Input::Q, Input::K, Input::V, Input::G, Input::Beta, Input::Do];
    let problems = [
        Gdn { sequences: Sequences::Offsets(vec![0, 1]), ..single.clone() },
        Gdn { sequences: Sequences::Device(1), copies, ..single },
    ];
    on_some_engines(|device| {
        for problem in &problems {
            let wanted = outputs(device, problem, None).map_err(|error| error.to_string())?;
            for stride in STRIDES_OF_ONE {
                let got = outputs(device, problem, Some(stride)).map_err(|error| error.to_string())?;
                equal(&format!("stride {stride}"), &wanted, &got)?;
            }
        }
        Ok(())
    });
}
