//! Shapes, inputs, bytes and operations of NVFP4 pre-attention.

use std::fmt;

use anyhow::{Context, ensure};
use bakewell::cuda::CudaRuntime;
use bakewell::nvfp4_pre_attention::{Decision, Nvfp4PreAttention, Nvfp4PreAttentionArgs, Plan};
use bakewell::{Buffer, DType, Device, Result, Runtime, Stream, nvfp4};
use bakewell_conformance::call::{Buffers, TensorSpec, Views};
use bakewell_conformance::nvfp4_pre_attention::call::{args, tensors};
use bakewell_conformance::nvfp4_pre_attention::judged::live_bytes;
use bakewell_conformance::nvfp4_pre_attention::{Inputs, sampled};
use bakewell_conformance::random::Random;
use bakewell_conformance::{HostTensor, Judged};
use serde::Deserialize;

use super::clocks::Clocks;
use super::cublas::{Cublas, Product};
use super::measure::copy_noise;
use super::record::{Peer, PeerOutcome};

/// Seed and count of the random numbers; the tensors are filled with copies of them.
const SEED: u64 = 29;
const NOISE: usize = 1 << 22;
/// Products in a graph: their operands are larger than the L2, so that one set of them serves.
const PEER_CALLS: usize = 4;

/// A problem; what is not named has the values of the model that the operation was made for.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct Shape(Nvfp4PreAttention);

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problem = &self.0;
        write!(f, "M{} H{} A{} P{} ", problem.tokens, problem.hidden, problem.heads, problem.destinations)?;
        f.write_str(problem.out_format.name())
    }
}

/// The shapes of a file's text, or the model at three lengths.
///
/// # Errors
/// What is wrong with the text or a shape.
pub(super) fn shapes(text: Option<&str>) -> anyhow::Result<Vec<Shape>> {
    let shapes: Vec<Shape> = match text {
        Some(text) => serde_json::from_str(text).context("shapes")?,
        None => [6096, 16_736, 33_472]
            .map(|tokens| Shape(Nvfp4PreAttention { tokens, ..Nvfp4PreAttention::default() }))
            .to_vec(),
    };
    for shape in &shapes {
        shape.0.validate()?;
        ensure!(!shape.0.is_empty(), "shapes: {shape} has nothing to time");
    }
    Ok(shapes)
}

/// Normal numbers, and the same quantised: codes and scales have the bits that a model's have.
pub(super) struct Noise {
    words: Buffer,
    codes: Buffer,
    scales: Buffer,
    global_scale: f32,
}

impl super::measure::Shape for Shape {
    type Problem = Nvfp4PreAttention;
    type Noise = Noise;

    fn problem(&self) -> Nvfp4PreAttention {
        self.0.clone()
    }

    fn lengths(&self) -> Vec<i32> {
        Vec::new()
    }

    fn live_bytes(&self) -> u64 {
        live_bytes(&self.0)
    }

    fn flops(&self) -> Option<u64> {
        Some(2 * self.0.tokens * self.0.columns() * self.0.hidden)
    }

    fn tensors(&self) -> Vec<TensorSpec> {
        tensors(&self.0)
    }

    fn noise(&self, device: &Device) -> Result<Noise> {
        let normal = Random::new(SEED).normal(NOISE);
        let values: Vec<f32> = normal.iter().map(|&value| value as f32).collect();
        let global_scale = nvfp4::global_scale(values.iter().fold(0f32, |largest, value| largest.max(value.abs())));
        let quantised = nvfp4::quantise(&values, NOISE, global_scale)?;
        Ok(Noise {
            words: HostTensor::rounded(DType::Bf16, &[NOISE as u64], &normal)?.upload(device)?,
            codes: device.upload(&quantised.codes)?,
            scales: device.upload(&quantised.scales)?,
            global_scale,
        })
    }

    /// Another place in the noise for each tensor and set, table rows in turn.
    fn fill(&self, runtime: &CudaRuntime, set: &Buffers, noise: &Noise, index: u64) -> Result<()> {
        let problem = &self.0;
        for (place, spec) in (index * 16..).zip(tensors(problem).into_iter().filter(|spec| !spec.output)) {
            let tensor = set.get(spec.name)?;
            match (spec.name, spec.dtype) {
                ("adaln_index", _) => {
                    let rows: Vec<i32> = (0..problem.tokens).map(|token| (token % problem.table_rows) as i32).collect();
                    tensor.write(0, &HostTensor::of_i32(&[problem.tokens], &rows).bytes)?;
                }
                ("w_global_scale", _) => tensor.write(0, &noise.global_scale.to_le_bytes())?,
                // Largest magnitudes of a modulated state and of normalised results, and decode scales like theirs.
                ("x_global_scale", _) => tensor.write(0, &nvfp4::global_scale(24.0).to_le_bytes())?,
                ("out_global_scale", _) => tensor.write(0, &nvfp4::global_scale(18.0).to_le_bytes())?,
                ("qkv_scales", _) => tensor.write(0, &HostTensor::of(&[3], &[0.04f32, 0.04, 0.3]).bytes)?,
                ("qkv_weight_q", _) => copy_noise(runtime, tensor, &noise.codes, place)?,
                ("qkv_weight_sf", _) => copy_noise(runtime, tensor, &noise.scales, place)?,
                _ => copy_noise(runtime, tensor, &noise.words, place)?,
            }
        }
        Ok(())
    }

    fn args<'a>(&self, views: &Views<'a>) -> Result<Nvfp4PreAttentionArgs<'a>> {
        args(views)
    }

    /// The reference takes minutes for a whole shape: some tokens of it, with all heads, are compared instead.
    fn check(&self, plan: &Plan, set: &Buffers) -> anyhow::Result<String> {
        let tokens = sampled::tokens(&self.0);
        let inputs = sampled::inputs(&Inputs::of(self.0.clone(), |name| set.download(name))?, &tokens);
        let outputs = sampled::outputs(&self.0, |name| set.download(name), &tokens)?;
        let verdict = inputs.judge(&outputs, &inputs.expected()?, plan.device())?;
        match verdict.failure {
            Some(failure) => anyhow::bail!("tokens {tokens:?}: {failure}"),
            None => Ok(format!("tokens {tokens:?} against the reference: {}", verdict.summary)),
        }
    }

    /// The product alone, of bf16 operands as long.
    fn peers(&self, clocks: &Clocks, noise: &Noise) -> anyhow::Result<Vec<Peer>> {
        let cublas = match Cublas::open(&clocks.runtime) {
            Ok(cublas) => cublas,
            Err(absent) => {
                let outcome = PeerOutcome::Absent { absent: format!("{absent:#}") };
                return Ok(vec![Peer { name: "cuBLAS".to_owned(), outcome }]);
            }
        };
        let product = Product::new(&clocks.runtime, [self.0.tokens, self.0.columns(), self.0.hidden])?;
        for (place, operand) in (0..).zip(product.operands()) {
            copy_noise(&clocks.runtime, operand, &noise.words, place)?;
        }
        clocks.runtime.synchronize(Stream::DEFAULT)?;
        let enqueue = |stream: Stream| cublas.enqueue(&product, stream);
        enqueue(clocks.stream.stream())?;
        clocks.runtime.synchronize(clocks.stream.stream())?;
        let outcome = PeerOutcome::Timed {
            cold_us: clocks.cold(enqueue)?,
            rotating_us: clocks.rotating(PEER_CALLS, |_, stream| enqueue(stream))?,
        };
        Ok(vec![Peer { name: format!("{}, the bf16 product alone,", cublas.name()), outcome }])
    }

    fn geometry(decision: &Decision) -> Vec<(&'static str, u32)> {
        let launches = decision.launches.iter();
        launches
            .flat_map(|launches| [("norm CTAs", launches.norm.grid[0]), ("GEMM CTAs", launches.gemm.grid[0])])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use bakewell::nvfp4_pre_attention::OutputFormat;

    use super::super::measure::Shape as _;
    use super::*;

    /// The sums of the operation's two kernels at 33472 tokens.
    #[test]
    fn bytes_and_operations_are_those_of_the_formulas() {
        let shape = &shapes(None).unwrap()[2];
        assert_eq!(shape.to_string(), "M33472 H5376 A56 P1 nvfp4");
        assert_eq!(shape.flops(), Some(2 * 33_472 * 21_504 * 5376));
        let activation = 33_472 * 2688 + 33_536 * 336;
        let norm = 33_472 * 10_752 + activation;
        let gemm = activation + 21_504 * (2688 + 336) + 2 * 33_472 * 96 + 33_472 * 21_504 / 16 * 9;
        assert_eq!(shape.live_bytes(), norm + gemm);
        let e4m3 = Shape(Nvfp4PreAttention { out_format: OutputFormat::E4m3, ..shape.0.clone() });
        assert_eq!(e4m3.live_bytes() - shape.live_bytes(), 33_472 * 21_504 / 16 * 7);
    }

    #[test]
    fn shapes_of_a_file_are_checked() {
        let error = |text: &str| format!("{:#}", shapes(Some(text)).unwrap_err());
        assert!(error(r#"[{"tokens": 0}]"#).contains("nothing to time"));
        assert!(error(r#"[{"hidden": 100}]"#).contains("hidden"));
        assert!(error(r#"[{"batch": 1}]"#).contains("unknown field"));
    }
}
