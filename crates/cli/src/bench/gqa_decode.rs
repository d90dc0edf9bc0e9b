//! Shapes, inputs and bytes of grouped-query decode attention.

use std::fmt;

use anyhow::{Context, ensure};
use bakewell::cuda::CudaRuntime;
use bakewell::gqa_decode::{Decision, GqaDecode, GqaDecodeArgs, Plan};
use bakewell::{Buffer, Device, Result};
use bakewell_conformance::call::{Buffers, TensorSpec, Views};
use bakewell_conformance::gqa_decode::Inputs;
use bakewell_conformance::gqa_decode::call::{args, tensors};
use bakewell_conformance::gqa_decode::judged::live_bytes;
use bakewell_conformance::random::Random;
use bakewell_conformance::{HostTensor, Judged, Outputs};
use serde::Deserialize;

use super::measure::copy_noise;

/// Seed and count of the random numbers; the cache is filled with copies of them.
const SEED: u64 = 17;
const NOISE: usize = 1 << 22;
/// Keys up to which the output is compared with the reference, which is slow.
const CHECKED_KEYS: u64 = 8192;

/// A problem and the lengths of its requests.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Shape {
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
pub(super) fn shapes(text: Option<&str>) -> anyhow::Result<Vec<Shape>> {
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

impl super::measure::Shape for Shape {
    type Problem = GqaDecode;
    type Noise = Buffer;

    fn problem(&self) -> GqaDecode {
        self.problem.clone()
    }

    fn lengths(&self) -> Vec<i32> {
        self.lengths.clone()
    }

    fn live_bytes(&self) -> u64 {
        live_bytes(&self.problem, &self.lengths)
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        tensors(&self.problem)
    }

    fn noise(&self, device: &Device) -> Result<Buffer> {
        HostTensor::rounded(self.problem.dtype, &[NOISE as u64], &Random::new(SEED).normal(NOISE))?.upload(device)
    }

    /// Rows of different sets differ: each starts elsewhere in the noise.
    fn fill(&self, runtime: &CudaRuntime, set: &Buffers, noise: &Buffer, index: u64) -> Result<()> {
        set.get("sequence_lengths")?.write(0, &HostTensor::of_i32(&[self.problem.batch], &self.lengths).bytes)?;
        for (i, name) in ["q", "kv"].into_iter().enumerate() {
            copy_noise(runtime, set.get(name)?, noise, index * 2 + i as u64)?;
        }
        Ok(())
    }

    fn args<'a>(&self, views: &Views<'a>) -> Result<GqaDecodeArgs<'a>> {
        args(views)
    }

    fn check(&self, plan: &Plan, set: &Buffers) -> anyhow::Result<String> {
        let (problem, out) = (&self.problem, set.download("out")?);
        let finite = out.to_f64()?.iter().all(|value| value.is_finite());
        ensure!(finite, "the output has values that are not finite");
        if problem.batch * problem.capacity > CHECKED_KEYS {
            return Ok("finite".to_owned());
        }
        let inputs = Inputs {
            problem: problem.clone(),
            q: set.download("q")?,
            kv: set.download("kv")?,
            sequence_lengths: set.download("sequence_lengths")?,
        };
        let verdict = inputs.judge(&Outputs(vec![("out", out)]), &inputs.expected()?, plan.device())?;
        match verdict.failure {
            Some(failure) => anyhow::bail!("{failure}"),
            None => Ok(format!("relative L2 {:.2e} against the reference", verdict.comparison.relative_l2)),
        }
    }

    fn geometry(decision: &Decision) -> Vec<(&'static str, u32)> {
        vec![("splits", decision.splits), ("cluster", decision.cluster), ("early_tiles", decision.early_tiles)]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use bakewell_cuda::mock::{FakeDevice, RecordingDriver};

    use super::super::clocks::Clocks;
    use super::super::measure::{MOST_SETS, measure};
    use super::super::record::Row;
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
