//! Caches of more than 2^31 and 2^32 elements and bytes, of which a few rows are touched: offsets must be 64-bit.

use bakewell::gqa_decode::{GqaDecode, GqaDecodeArgs};
use bakewell::{DType, Device, Result, Stream};
use bakewell_conformance::HostTensor;
use bakewell_conformance::Judged;
use bakewell_conformance::gqa_decode::{Distribution, Inputs, out_tolerance};
use bakewell_tests::on_every_engine;

use super::check;

const LENGTHS: [i32; 2] = [70, 33];

/// Slots, so that the values of the second request lie past 2^31 elements and 2^32 bytes, and past 2^32 elements. A GPU
/// has memory for the first.
const CAPACITIES: [u64; 2] = [(1 << 19) + 64, (1 << 20) + 64];

/// The same live rows as in `small`, at the strides of `capacity` slots.
fn run(device: &Device, small: &Inputs, capacity: u64) -> Result<HostTensor> {
    let problem = GqaDecode { capacity, ..small.problem.clone() };
    let row_bytes = problem.head_dim * problem.dtype.bytes();
    let kv = device.buffer(problem.kv_shape().iter().product::<u64>() * problem.dtype.bytes())?;
    let planes_per_request = 2 * problem.kv_heads;
    for (plane, rows) in small.kv.bytes.chunks_exact((small.problem.capacity * row_bytes) as usize).enumerate() {
        let plane = plane as u64;
        let live = LENGTHS[(plane / planes_per_request) as usize] as usize * row_bytes as usize;
        kv.write(plane * capacity * row_bytes, &rows[..live])?;
    }
    let (q, lengths) = (small.q.upload(device)?, small.sequence_lengths.upload(device)?);
    let out = device.buffer(small.q.bytes.len() as u64)?;
    device.plan(&problem)?.launch(
        Stream::DEFAULT,
        GqaDecodeArgs {
            q: q.view(problem.dtype, &problem.q_shape())?,
            kv: kv.view(problem.dtype, &problem.kv_shape())?,
            sequence_lengths: lengths.view(DType::I32, &[2])?,
            out: out.view(problem.dtype, &problem.q_shape())?,
            lse: None,
            workspace: None,
        },
    )?;
    device.synchronize(Stream::DEFAULT)?;
    HostTensor::download(&out, problem.dtype, &problem.q_shape())
}

#[test]
fn offsets_past_32_bits_reach_the_right_rows() {
    let problem = GqaDecode { capacity: 96, num_splits: Some(2), ..GqaDecode::default() };
    let small = Inputs::generate(&problem, &LENGTHS, Distribution::Normal, 41).unwrap();
    let expected = small.expected().unwrap();
    let elements: [u64; 2] =
        CAPACITIES.map(|capacity| GqaDecode { batch: 2, capacity, ..problem.clone() }.kv_shape().iter().product());
    assert!(elements[0] > 1 << 31 && elements[1] > 1 << 32);
    on_every_engine(|device| {
        let capacities = match device.runtime().map(|runtime| runtime.name()) {
            Some(name) if name.starts_with("emulated") => &CAPACITIES[..],
            Some(_) => &CAPACITIES[..1],
            None => {
                println!("skipped {device}: its buffers are not sparse");
                return Ok(());
            }
        };
        for &capacity in capacities {
            let out = run(device, &small, capacity).map_err(|error| error.to_string())?;
            check(&out, &expected.out, &out_tolerance(problem.dtype))?;
        }
        Ok(())
    });
}
