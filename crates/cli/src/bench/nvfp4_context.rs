//! Shapes, inputs and bytes of NVFP4 paged-context attention.

use std::fmt;

use anyhow::{Context, ensure};
use bakewell::cuda::CudaRuntime;
use bakewell::nvfp4_context::{Decision, Family, Nvfp4Context, Nvfp4ContextArgs, Plan};
use bakewell::{Buffer, Device, Result};
use bakewell_conformance::call::{Buffers, TensorSpec, Views};
use bakewell_conformance::nvfp4_context::call::{args, tensors};
use bakewell_conformance::nvfp4_context::judged::live_bytes;
use bakewell_conformance::nvfp4_context::{Inputs, ScaleOrigin};
use bakewell_conformance::random::Random;
use bakewell_conformance::{HostTensor, Judged, Outputs};
use serde::Deserialize;

use super::measure::copy_noise;

/// Seed of the random numbers.
const SEED: u64 = 23;
/// Bytes of noise that tensors are filled with copies of.
const NOISE: usize = 4 << 20;
/// Products of a query and a key up to which the output is compared with the reference, which is slow.
const CHECKED_PRODUCTS: u64 = 1 << 20;

/// `batch` requests of `q_len` tokens over `kv_len` keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Shape {
    batch: u64,
    q_len: u64,
    kv_len: u64,
    q_heads: u64,
    kv_heads: u64,
    #[serde(default)]
    num_splits: Option<u32>,
    #[serde(default)]
    family: Option<Family>,
    #[serde(default)]
    schedule: Option<String>,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { batch, q_len, kv_len, q_heads, kv_heads, num_splits, family, schedule } = self;
        write!(f, "{batch}x{q_len}x{kv_len} Hq{q_heads} Hkv{kv_heads}")?;
        family.map_or(Ok(()), |family| write!(f, " {}", format!("{family:?}").to_lowercase()))?;
        schedule.as_ref().map_or(Ok(()), |schedule| write!(f, " {schedule}"))?;
        num_splits.map_or(Ok(()), |splits| write!(f, " splits {splits}"))
    }
}

/// The shapes of a file's text, or those of the published tables.
///
/// # Errors
/// What is wrong with the text or a shape.
pub(super) fn shapes(text: Option<&str>) -> anyhow::Result<Vec<Shape>> {
    let shapes: Vec<Shape> = match text {
        Some(text) => serde_json::from_str(text).context("shapes")?,
        None => [
            (1, 1, 16, 64),
            (1, 16, 64, 64),
            (2, 1, 4096, 64),
            (1, 32, 32_768, 64),
            (4, 512, 4096, 64),
            (1, 2048, 32_768, 64),
            (8, 1024, 1024, 64),
            (128, 1, 4096, 32),
        ]
        .map(|(batch, q_len, kv_len, q_heads)| Shape {
            batch,
            q_len,
            kv_len,
            q_heads,
            kv_heads: 8,
            num_splits: None,
            family: None,
            schedule: None,
        })
        .to_vec(),
    };
    for shape in &shapes {
        ensure!(shape.batch > 0 && shape.q_len > 0, "shapes: {shape} has nothing to time");
        shape.problem().validate()?;
    }
    Ok(shapes)
}

impl Shape {
    fn problem(&self) -> Nvfp4Context {
        let pages = self.kv_len.div_ceil(16);
        Nvfp4Context {
            batch: self.batch,
            total_q: self.batch * self.q_len,
            q_heads: self.q_heads,
            kv_heads: self.kv_heads,
            num_pages: (self.batch * pages).max(1),
            max_pages: pages.max(1),
            max_q_len: self.q_len,
            max_kv_len: self.kv_len,
            num_splits: self.num_splits,
            family: self.family,
            schedule: self.schedule.clone(),
            ..Nvfp4Context::default()
        }
    }
}

/// What inputs are filled with: random codes, E4M3 near 1, scales around 2^-3.
pub(super) struct Noise {
    codes: Buffer,
    queries: Buffer,
    scales: Buffer,
}

impl Noise {
    fn new(device: &Device) -> Result<Noise> {
        let mut random = Random::new(SEED);
        let mut bytes = |of: &dyn Fn(u64) -> u8| -> Vec<u8> { (0..NOISE).map(|_| of(random.bits())).collect() };
        Ok(Noise {
            codes: device.upload(&bytes(&|bits| bits as u8))?,
            // Sign, exponents 2^-3 to 2^0, any mantissa.
            queries: device.upload(&bytes(&|bits| (bits as u8 & 0x80) | (0x20 + (bits >> 8) as u8 % 32)))?,
            scales: device.upload(&bytes(&|bits| 0x18 + (bits >> 8) as u8 % 24))?,
        })
    }
}

/// Logits that differ by several units, so that a few keys dominate, and outputs well inside E4M3.
const BMM1_SCALE: f32 = 0.4;
const BMM2_SCALE: f32 = 0.9;

impl super::measure::Shape for Shape {
    type Problem = Nvfp4Context;
    type Noise = Noise;

    fn problem(&self) -> Nvfp4Context {
        Shape::problem(self)
    }

    fn lengths(&self) -> Vec<i32> {
        vec![self.kv_len as i32; self.batch as usize]
    }

    fn live_bytes(&self) -> u64 {
        live_bytes(&self.problem(), self.batch * self.kv_len, self.batch * self.kv_len.div_ceil(16))
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        tensors(&self.problem())
    }

    fn noise(&self, device: &Device) -> Result<Noise> {
        Noise::new(device)
    }

    /// Another place in the noise for each set, pages dealt in random order.
    fn fill(&self, runtime: &CudaRuntime, set: &Buffers, noise: &Noise, index: u64) -> Result<()> {
        let mut order: Vec<i32> = (0..self.problem().num_pages as i32).collect();
        let mut random = Random::new(SEED + index);
        for i in (1..order.len()).rev() {
            order.swap(i, (random.bits() % (i as u64 + 1)) as usize);
        }
        let offsets: Vec<i32> = (0..=self.batch).map(|request| (request * self.q_len) as i32).collect();
        for (name, values) in [("page_table", order), ("seq_lens_kv", self.lengths()), ("cu_seqlens_q", offsets)] {
            set.get(name)?.write(0, &HostTensor::of_i32(&[values.len() as u64], &values).bytes)?;
        }
        for (i, (name, noise)) in [
            ("q", &noise.queries),
            ("k_packed", &noise.codes),
            ("v_packed", &noise.codes),
            ("k_scale", &noise.scales),
            ("v_scale", &noise.scales),
        ]
        .into_iter()
        .enumerate()
        {
            copy_noise(runtime, set.get(name)?, noise, index * 5 + i as u64)?;
        }
        Ok(())
    }

    fn args<'a>(&self, views: &Views<'a>) -> Result<Nvfp4ContextArgs<'a>> {
        args(views, BMM1_SCALE, BMM2_SCALE)
    }

    fn check(&self, plan: &Plan, set: &Buffers) -> anyhow::Result<String> {
        let (problem, out) = (self.problem(), set.download("out")?);
        ensure!(out.to_f64()?.iter().all(|value| value.is_finite()), "the output has NaN");
        if problem.total_q * problem.q_heads * problem.max_kv_len > CHECKED_PRODUCTS {
            return Ok("no NaN".to_owned());
        }
        let inputs = Inputs {
            q: set.download("q")?,
            k_packed: set.download("k_packed")?,
            v_packed: set.download("v_packed")?,
            k_scale: set.download("k_scale")?,
            v_scale: set.download("v_scale")?,
            page_table: set.download("page_table")?,
            seq_lens_kv: set.download("seq_lens_kv")?,
            cu_seqlens_q: set.download("cu_seqlens_q")?,
            sinks: None,
            bmm1_scale: BMM1_SCALE,
            bmm2_scale: BMM2_SCALE,
            scale_origin: ScaleOrigin::Host,
            problem,
        };
        let verdict = inputs.judge(&Outputs(vec![("out", out)]), &inputs.expected()?, plan.device())?;
        match verdict.failure {
            Some(failure) => anyhow::bail!("{failure}"),
            None => Ok(format!("against the reference: {}", verdict.summary)),
        }
    }

    fn geometry(decision: &Decision) -> Vec<(&'static str, u32)> {
        vec![("splits", decision.splits)]
    }
}

#[cfg(test)]
mod tests {
    use super::super::measure::Shape as _;
    use super::*;

    /// Bytes by hand: 4096 keys x 2 requests x 8 heads x 144, two rows of 64 x 128, 512 page ids.
    #[test]
    fn live_bytes_are_those_of_the_formula() {
        let shape = &shapes(None).unwrap()[2];
        assert_eq!((shape.to_string().as_str(), shape.live_bytes()), ("2x1x4096 Hq64 Hkv8", 9_437_184 + 32_768 + 2048));
    }

    #[test]
    fn shapes_of_a_file_are_checked() {
        let error = |text: &str| format!("{:#}", shapes(Some(text)).unwrap_err());
        assert!(error(r#"[{"batch":0,"q_len":1,"kv_len":1,"q_heads":8,"kv_heads":8}]"#).contains("nothing to time"));
        assert!(error(r#"[{"batch":1,"q_len":1,"kv_len":1,"q_heads":9,"kv_heads":8}]"#).contains("q_heads"));
        assert!(error(r#"[{"batch":1}]"#).contains("missing field"));
    }
}
