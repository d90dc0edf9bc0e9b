//! Shapes, inputs and bytes of grouped-query decode attention.

use std::fmt;

use anyhow::{Context, ensure};
use bakewell::cuda::CudaRuntime;
use bakewell::gqa_decode::{GqaDecode, GqaDecodeArgs, Plan};
use bakewell::schedule::Schedule as _;
use bakewell::{Bound, Buffer, DType, Device, Operation, Result, Stream};
use bakewell_conformance::random::Random;
use bakewell_conformance::{HostTensor, gqa_decode as conformance};
use serde::Deserialize;

use super::clocks::Clocks;
use super::record::Row;

/// Live bytes that the inputs of a graph exceed together: more than four times the L2.
const ROTATION_BYTES: u64 = 256 << 20;
/// Most sets of inputs, and memory that they may take.
const MOST_SETS: u64 = 1024;
const MOST_BYTES: u64 = 40 << 30;
/// Fewest calls in a graph.
const FEWEST_CALLS: usize = 16;
/// Seed and count of the random numbers; the cache is filled with copies of them.
const SEED: u64 = 17;
const NOISE: usize = 1 << 22;
/// Keys up to which the output is compared with the reference, which is slow.
const CHECKED_KEYS: u64 = 8192;

/// A problem and the lengths of its requests.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shape {
    problem: GqaDecode,
    /// One per request, or a single one for all.
    lengths: Vec<i32>,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (problem, lengths) = (&self.problem, &self.lengths);
        write!(f, "B{} cap {} ", problem.batch, problem.capacity)?;
        if lengths.iter().all(|length| Some(length) == lengths.first()) {
            write!(f, "len {}", lengths.first().copied().unwrap_or(0))?;
        } else {
            write!(f, "lens {lengths:?}")?;
        }
        let (seed, group) = (GqaDecode::default(), problem.query_heads / problem.kv_heads.max(1));
        if (problem.query_heads, problem.kv_heads) != (seed.query_heads, seed.kv_heads) {
            write!(f, " heads {}/{} (group {group})", problem.query_heads, problem.kv_heads)?;
        }
        if problem.head_dim != seed.head_dim {
            write!(f, " D {}", problem.head_dim)?;
        }
        if problem.dtype != seed.dtype {
            write!(f, " {}", problem.dtype)?;
        }
        problem.num_splits.map_or(Ok(()), |splits| write!(f, " splits {splits}"))
    }
}

/// The shapes of a file's text, or those of the published tables.
///
/// # Errors
/// What is wrong with the text or a shape.
pub(crate) fn shapes(text: Option<&str>) -> anyhow::Result<Vec<Shape>> {
    let Some(text) = text else {
        let shape = |batch, capacity, lengths: &[i32]| Shape {
            problem: GqaDecode { batch, capacity, ..GqaDecode::default() },
            lengths: if lengths.len() == 1 { vec![lengths[0]; batch as usize] } else { lengths.to_vec() },
        };
        return Ok(vec![
            shape(1, 64, &[1]),
            shape(4, 256, &[64, 127, 191, 256]),
            shape(1, 1024, &[1024]),
            shape(1, 4096, &[3968]),
            shape(8, 8192, &[8192]),
            shape(32, 8192, &[8192]),
            shape(64, 2048, &[2048]),
            shape(1, 131_072, &[131_072]),
        ]);
    };
    let mut shapes: Vec<Shape> = serde_json::from_str(text).context("shapes")?;
    for shape in &mut shapes {
        shape.problem.validate()?;
        let (batch, capacity) = (shape.problem.batch, shape.problem.capacity);
        if shape.lengths.len() == 1 {
            shape.lengths = vec![shape.lengths[0]; batch as usize];
        }
        ensure!(batch > 0, "shapes: a batch of 0 has nothing to time");
        ensure!(shape.lengths.len() as u64 == batch, "shapes: expected {batch} lengths, got {}", shape.lengths.len());
        let outside =
            shape.lengths.iter().find(|&&length| u64::try_from(length).map_or(true, |length| length > capacity));
        ensure!(outside.is_none(), "shapes: expected lengths in 0..={capacity}, got {outside:?}");
    }
    Ok(shapes)
}

/// Bytes that any kernel must move: live keys and values, queries, lengths, outputs.
pub(crate) fn live_bytes(problem: &GqaDecode, lengths: &[i32]) -> u64 {
    let keys: u64 = lengths.iter().map(|&length| u64::try_from(length).unwrap_or(0)).sum();
    let cache = 2 * keys * problem.kv_heads * problem.head_dim;
    let rows = problem.batch * problem.query_heads;
    let lse = if problem.lse { rows * 4 } else { 0 };
    (cache + 2 * rows * problem.head_dim) * problem.dtype.bytes() + problem.batch * 4 + lse
}

/// The tensors of one call.
struct Set {
    q: Buffer,
    kv: Buffer,
    sequence_lengths: Buffer,
    out: Buffer,
    lse: Option<Buffer>,
}

impl Set {
    /// Inputs filled from `noise`, from another place in it for each set; the output holds NaN.
    fn new(device: &Device, runtime: &CudaRuntime, shape: &Shape, noise: &Buffer, index: u64) -> Result<Set> {
        let problem = &shape.problem;
        let bytes = |shape: &[u64]| shape.iter().product::<u64>() * problem.dtype.bytes();
        let (q_bytes, kv_bytes) = (bytes(&problem.q_shape()), bytes(&problem.kv_shape()));
        let set = Set {
            q: device.buffer(q_bytes)?,
            kv: device.buffer(kv_bytes)?,
            sequence_lengths: device.upload(&HostTensor::of_i32(&[problem.batch], &shape.lengths).bytes)?,
            out: device.buffer(q_bytes)?,
            lse: problem.lse.then(|| device.buffer(problem.batch * problem.query_heads * 4)).transpose()?,
        };
        set.out.fill(0xFF)?;
        for (i, tensor) in [&set.q, &set.kv].into_iter().enumerate() {
            // Rows of different sets differ: each starts elsewhere in the noise.
            let mut offset = (index * 2 + i as u64) * 4096 % (noise.bytes() / 2);
            let mut done = 0;
            while done < tensor.bytes() {
                let part = (noise.bytes() - offset).min(tensor.bytes() - done);
                runtime.copy_async(tensor.address() + done, noise.address() + offset, part, Stream::DEFAULT)?;
                (done, offset) = (done + part, 0);
            }
        }
        Ok(set)
    }

    fn bind<'a>(&'a self, plan: &Plan) -> Result<Bound<'a>> {
        let problem = plan.problem();
        plan.bind(GqaDecodeArgs {
            q: self.q.view(problem.dtype, &problem.q_shape())?,
            kv: self.kv.view(problem.dtype, &problem.kv_shape())?,
            sequence_lengths: self.sequence_lengths.view(DType::I32, &problem.sequence_lengths_shape())?,
            out: self.out.view(problem.dtype, &problem.q_shape())?,
            lse: self.lse.as_ref().map(|lse| lse.view(DType::F32, &problem.lse_shape())).transpose()?,
            workspace: None,
        })
    }
}

/// Times one shape, after its output was found right.
pub(crate) fn measure(device: &Device, clocks: &Clocks, shape: &Shape) -> anyhow::Result<Row> {
    let problem = &shape.problem;
    let plan = device.plan(problem)?;
    let bytes = live_bytes(problem, &shape.lengths);
    let held = problem.kv_shape().iter().product::<u64>() * problem.dtype.bytes();
    let sets = (ROTATION_BYTES / bytes.max(1) + 1).clamp(2, MOST_SETS).min((MOST_BYTES / held.max(1)).max(2));
    let noise: Vec<f64> = Random::new(SEED).normal(NOISE);
    let noise = HostTensor::rounded(problem.dtype, &[NOISE as u64], &noise)?.upload(device)?;
    let sets =
        (0..sets).map(|index| Set::new(device, &clocks.runtime, shape, &noise, index)).collect::<Result<Vec<_>>>()?;
    device.synchronize(Stream::DEFAULT)?;
    let bound = sets.iter().map(|set| set.bind(&plan)).collect::<Result<Vec<_>>>()?;
    bound[0].launch(clocks.stream.stream())?;
    device.synchronize(clocks.stream.stream())?;
    let checked = check(problem, shape, &sets[0]).with_context(|| shape.to_string())?;

    let cold = clocks.cold(|stream| bound[0].launch(stream))?;
    let calls = bound.len().max(FEWEST_CALLS);
    let rotating = clocks.rotating(calls, |call, stream| bound[call % bound.len()].launch(stream))?;
    let host = clocks.host(|stream| bound[0].launch(stream))?;
    let decision = plan.decision().context("a GPU plan has a program")?;
    let program = device.library()?.context("a GPU has programs")?;
    let program = program.program(Operation::GqaDecode, &decision.schedule.variant())?;
    Ok(Row {
        shape: shape.to_string(),
        problem: serde_json::to_value(problem)?,
        lengths: shape.lengths.clone(),
        program: decision.program(),
        sha256: program.record.cubin.sha256.to_string(),
        splits: decision.splits,
        cluster: decision.cluster,
        bytes,
        sets: bound.len(),
        calls_per_graph: calls,
        checked,
        cold_us: cold,
        rotating_us: rotating,
        host_us: host,
    })
}

/// Compares the output with the reference where that takes no longer than the rest, and says what was done.
fn check(problem: &GqaDecode, shape: &Shape, set: &Set) -> anyhow::Result<String> {
    let out = HostTensor::download(&set.out, problem.dtype, &problem.q_shape())?;
    let values = out.to_f64()?;
    ensure!(values.iter().all(|value| value.is_finite()), "the output has values that are not finite");
    if problem.batch * problem.capacity > CHECKED_KEYS {
        return Ok("finite".to_owned());
    }
    let inputs = conformance::Inputs {
        problem: problem.clone(),
        q: HostTensor::download(&set.q, problem.dtype, &problem.q_shape())?,
        kv: HostTensor::download(&set.kv, problem.dtype, &problem.kv_shape())?,
        sequence_lengths: HostTensor::of_i32(&[problem.batch], &shape.lengths),
    };
    let comparison = bakewell_conformance::compare::compare(&out.shape, &values, &inputs.expected()?.out)?;
    let verdict = comparison.verdict(&conformance::out_tolerance(problem.dtype));
    verdict.map_err(|reason| anyhow::anyhow!("out: {reason}"))?;
    Ok(format!("relative L2 {:.2e} against the reference", comparison.relative_l2))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use bakewell_cuda::mock::{FakeDevice, RecordingDriver};

    use super::*;

    /// Bytes of the published table, in megabytes.
    #[test]
    fn default_shapes_move_the_bytes_of_the_published_table() {
        let published = [0.02, 2.68, 4.21, 16.27, 268.57, 1074.27, 537.92, 536.89];
        let shapes = shapes(None).unwrap();
        assert_eq!(shapes.len(), published.len());
        for (shape, megabytes) in shapes.iter().zip(published) {
            let bytes = live_bytes(&shape.problem, &shape.lengths) as f64 / 1e6;
            assert!((bytes - megabytes).abs() <= 0.006, "{shape}: {bytes} for {megabytes}");
        }
    }

    /// A shape of empty requests on a recording driver whose kernels write `value` to the output.
    fn measure_on_recorder(value: u8) -> anyhow::Result<(Row, Arc<RecordingDriver>)> {
        let driver = RecordingDriver::new(&[FakeDevice::new((10, 0), 148)]);
        let runtime = CudaRuntime::with_driver(driver.clone(), 0)?;
        let shape = shapes(Some(r#"[{"problem": {"capacity": 1}, "lengths": [0]}]"#))?.remove(0);
        driver.set_kernel(Box::new(move |launch| {
            // `out` is the fourth pointer of the parameter block; the kernels of the ceilings have fewer.
            let out = launch.params.get(24..32).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
            out.map(|out| (out, vec![value; 32 * 128 * 2])).into_iter().collect()
        }));
        let device = Device::with_runtime(runtime.clone())?;
        let row = measure(&device, &Clocks::new(&runtime)?, &shape)?;
        Ok((row, driver))
    }

    #[test]
    fn a_right_output_is_timed_over_distinct_inputs() {
        let (row, driver) = measure_on_recorder(0).unwrap();
        assert_eq!((row.sets as u64, row.calls_per_graph as u64), (MOST_SETS, MOST_SETS));
        assert_eq!(row.cold_us.median, 250.0, "the recorder's events are 0.25 ms apart");
        assert_eq!(row.rotating_us.median, 250.0 / MOST_SETS as f64);
        let launches = driver.launches();
        let outputs = launches.iter().filter(|launch| launch.params.len() > 32).map(|launch| &launch.params[24..32]);
        assert_eq!(outputs.collect::<BTreeSet<_>>().len() as u64, MOST_SETS, "every set has its own output");
    }

    #[test]
    fn a_wrong_output_is_never_timed() {
        let error = measure_on_recorder(0x3C).err().unwrap();
        assert!(format!("{error:#}").contains("B1 cap 1 len 0: out: absolute error"), "{error:#}");
        let error = measure_on_recorder(0xFF).err().unwrap();
        assert!(format!("{error:#}").contains("not finite"), "{error:#}");
    }

    #[test]
    fn shapes_of_a_file_are_checked() {
        let list = |entry: &str| shapes(Some(&format!("[{entry}]"))).map_err(|error| format!("{error:#}"));
        let fine = list(r#"{"problem": {"batch": 3, "capacity": 8}, "lengths": [5]}"#).unwrap();
        assert_eq!((fine[0].lengths.clone(), fine[0].to_string()), (vec![5; 3], "B3 cap 8 len 5".to_owned()));
        for (entry, part) in [
            (r#"{"problem": {"batch": 3}, "lengths": [5, 6]}"#, "expected 3 lengths, got 2"),
            (r#"{"problem": {"capacity": 8}, "lengths": [9]}"#, "0..=8"),
            (r#"{"problem": {"capacity": 8}, "lengths": [-1]}"#, "0..=8"),
            (r#"{"problem": {"batch": 0}, "lengths": []}"#, "batch of 0"),
            (r#"{"problem": {"heads": 8}, "lengths": [1]}"#, "unknown field `heads`"),
            (r#"{"problem": {"q_scale": -1.0}, "lengths": [1]}"#, "q_scale"),
        ] {
            let text = list(entry).unwrap_err();
            assert!(text.contains(part), "{text}");
        }
    }
}
