//! Shapes, inputs and bytes of NVFP4 paged-context attention.

use std::fmt;

use anyhow::{Context, ensure};
use bakewell::cuda::CudaRuntime;
use bakewell::nvfp4_context::{Nvfp4Context, Nvfp4ContextArgs, Plan, Scale};
use bakewell::schedule::Schedule as _;
use bakewell::{Bound, Buffer, DType, Device, Operation, Result, Stream};
use bakewell_conformance::HostTensor;
use bakewell_conformance::nvfp4_context::{Gates, Inputs, Outputs, inputs::decode, judge};
use bakewell_conformance::random::Random;
use serde::Deserialize;

use super::clocks::Clocks;
use super::record::Row;

/// Live bytes that the inputs of a graph exceed together: more than four times the L2.
const ROTATION_BYTES: u64 = 256 << 20;
/// Most sets of inputs.
const MOST_SETS: u64 = 1024;
/// Fewest calls in a graph.
const FEWEST_CALLS: usize = 8;
const SEED: u64 = 23;
/// Bytes of noise that tensors are filled with copies of.
const NOISE: usize = 4 << 20;
/// Products of a query and a key up to which the output is compared with the reference, which is slow.
const CHECKED_PRODUCTS: u64 = 1 << 20;

/// `batch` requests of `q_len` tokens over `kv_len` keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shape {
    batch: u64,
    q_len: u64,
    kv_len: u64,
    q_heads: u64,
    kv_heads: u64,
    #[serde(default)]
    num_splits: Option<u32>,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { batch, q_len, kv_len, q_heads, kv_heads, num_splits } = self;
        write!(f, "{batch}x{q_len}x{kv_len} Hq{q_heads} Hkv{kv_heads}")?;
        num_splits.map_or(Ok(()), |splits| write!(f, " splits {splits}"))
    }
}

/// The shapes of a file's text, or those of the published tables.
///
/// # Errors
/// What is wrong with the text or a shape.
pub(crate) fn shapes(text: Option<&str>) -> anyhow::Result<Vec<Shape>> {
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
        .map(|(batch, q_len, kv_len, q_heads)| Shape { batch, q_len, kv_len, q_heads, kv_heads: 8, num_splits: None })
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
            ..Nvfp4Context::default()
        }
    }

    /// Bytes that any kernel must move: packed keys and values with their scales, queries, outputs, page ids.
    fn live_bytes(&self) -> u64 {
        let problem = self.problem();
        let cache = self.batch * self.kv_len * self.kv_heads * 2 * (64 + 8);
        cache + 2 * problem.total_q * self.q_heads * 128 + 4 * self.batch * self.kv_len.div_ceil(16)
    }
}

/// The tensors of one call.
struct Set {
    q: Buffer,
    k_packed: Buffer,
    v_packed: Buffer,
    k_scale: Buffer,
    v_scale: Buffer,
    page_table: Buffer,
    seq_lens_kv: Buffer,
    cu_seqlens_q: Buffer,
    out: Buffer,
}

/// Bytes that inputs are filled with: random codes, E4M3 near 1, scales around 2^-3.
struct Noise {
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

fn fill(runtime: &CudaRuntime, tensor: &Buffer, noise: &Buffer, place: u64) -> Result<()> {
    let mut offset = place * 4096 % (noise.bytes() / 2);
    let mut done = 0;
    while done < tensor.bytes() {
        let part = (noise.bytes() - offset).min(tensor.bytes() - done);
        runtime.copy_async(tensor.address() + done, noise.address() + offset, part, Stream::DEFAULT)?;
        (done, offset) = (done + part, 0);
    }
    Ok(())
}

impl Set {
    /// Inputs from another place in the noise for each set, pages dealt in random order; the output holds NaN.
    fn new(device: &Device, runtime: &CudaRuntime, shape: &Shape, noise: &Noise, index: u64) -> Result<Set> {
        let problem = shape.problem();
        let count = |shape: &[u64]| shape.iter().product::<u64>();
        let mut order: Vec<i32> = (0..problem.num_pages as i32).collect();
        let mut random = Random::new(SEED + index);
        for i in (1..order.len()).rev() {
            order.swap(i, (random.bits() % (i as u64 + 1)) as usize);
        }
        let offsets: Vec<i32> = (0..=shape.batch).map(|request| (request * shape.q_len) as i32).collect();
        let integers = |values: &[i32]| device.upload(&HostTensor::of_i32(&[values.len() as u64], values).bytes);
        let set = Set {
            q: device.buffer(count(&problem.q_shape()))?,
            k_packed: device.buffer(count(&problem.packed_shape()))?,
            v_packed: device.buffer(count(&problem.packed_shape()))?,
            k_scale: device.buffer(count(&problem.scale_shape()))?,
            v_scale: device.buffer(count(&problem.scale_shape()))?,
            page_table: integers(&order)?,
            seq_lens_kv: integers(&vec![shape.kv_len as i32; shape.batch as usize])?,
            cu_seqlens_q: integers(&offsets)?,
            out: device.buffer(count(&problem.q_shape()))?,
        };
        set.out.fill(0xFF)?;
        for (i, (tensor, noise)) in [
            (&set.q, &noise.queries),
            (&set.k_packed, &noise.codes),
            (&set.v_packed, &noise.codes),
            (&set.k_scale, &noise.scales),
            (&set.v_scale, &noise.scales),
        ]
        .into_iter()
        .enumerate()
        {
            fill(runtime, tensor, noise, index * 5 + i as u64)?;
        }
        Ok(set)
    }

    fn bind<'a>(&'a self, plan: &Plan) -> Result<Bound<'a>> {
        let problem = plan.problem();
        plan.bind(Nvfp4ContextArgs {
            q: self.q.view(DType::U8, &problem.q_shape())?,
            k_packed: self.k_packed.view(DType::U8, &problem.packed_shape())?,
            v_packed: self.v_packed.view(DType::U8, &problem.packed_shape())?,
            k_scale: self.k_scale.view(DType::U8, &problem.scale_shape())?,
            v_scale: self.v_scale.view(DType::U8, &problem.scale_shape())?,
            page_table: self.page_table.view(DType::I32, &problem.page_table_shape())?,
            seq_lens_kv: self.seq_lens_kv.view(DType::I32, &problem.seq_lens_kv_shape())?,
            cu_seqlens_q: self.cu_seqlens_q.view(DType::I32, &problem.cu_seqlens_q_shape())?,
            out: self.out.view(DType::U8, &problem.q_shape())?,
            lse: None,
            sinks: None,
            bmm1_scale: Scale::Host(BMM1_SCALE),
            bmm2_scale: Scale::Host(BMM2_SCALE),
            workspace: None,
        })
    }

    /// The same tensors on the host.
    fn inputs(&self, problem: &Nvfp4Context) -> Result<Inputs> {
        let get = |buffer: &Buffer, dtype, shape: &[u64]| HostTensor::download(buffer, dtype, shape);
        Ok(Inputs {
            q: get(&self.q, DType::U8, &problem.q_shape())?,
            k_packed: get(&self.k_packed, DType::U8, &problem.packed_shape())?,
            v_packed: get(&self.v_packed, DType::U8, &problem.packed_shape())?,
            k_scale: get(&self.k_scale, DType::U8, &problem.scale_shape())?,
            v_scale: get(&self.v_scale, DType::U8, &problem.scale_shape())?,
            page_table: get(&self.page_table, DType::I32, &problem.page_table_shape())?,
            seq_lens_kv: get(&self.seq_lens_kv, DType::I32, &problem.seq_lens_kv_shape())?,
            cu_seqlens_q: get(&self.cu_seqlens_q, DType::I32, &problem.cu_seqlens_q_shape())?,
            sinks: None,
            bmm1_scale: BMM1_SCALE,
            bmm2_scale: BMM2_SCALE,
            problem: problem.clone(),
        })
    }
}

/// Logits that differ by several units, so that a few keys dominate, and outputs well inside E4M3.
const BMM1_SCALE: f32 = 0.4;
const BMM2_SCALE: f32 = 0.9;

/// Times one shape, after its output was found right.
pub(crate) fn measure(device: &Device, clocks: &Clocks, shape: &Shape) -> anyhow::Result<Row> {
    let problem = shape.problem();
    let plan = device.plan(&problem)?;
    let bytes = shape.live_bytes();
    let sets = (ROTATION_BYTES / bytes.max(1) + 1).clamp(2, MOST_SETS);
    let noise = Noise::new(device)?;
    let sets =
        (0..sets).map(|index| Set::new(device, &clocks.runtime, shape, &noise, index)).collect::<Result<Vec<_>>>()?;
    device.synchronize(Stream::DEFAULT)?;
    let bound = sets.iter().map(|set| set.bind(&plan)).collect::<Result<Vec<_>>>()?;
    bound[0].launch(clocks.stream.stream())?;
    device.synchronize(clocks.stream.stream())?;
    let decision = plan.decision().context("a GPU plan has a program")?;
    let checked = check(device, &problem, &sets[0], decision.splits).with_context(|| shape.to_string())?;

    let cold = clocks.cold(|stream| bound[0].launch(stream))?;
    let calls = bound.len().max(FEWEST_CALLS);
    let rotating = clocks.rotating(calls, |call, stream| bound[call % bound.len()].launch(stream))?;
    let host = clocks.host(|stream| bound[0].launch(stream))?;
    let program = device.library()?.context("a GPU has programs")?;
    let program = program.program(Operation::Nvfp4Context, &decision.schedule.variant())?;
    Ok(Row {
        shape: shape.to_string(),
        problem: serde_json::to_value(&problem)?,
        lengths: vec![shape.kv_len as i32; shape.batch as usize],
        program: decision.program(),
        sha256: program.record.cubin.sha256.to_string(),
        splits: decision.splits,
        cluster: 1,
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
fn check(device: &Device, problem: &Nvfp4Context, set: &Set, splits: u32) -> anyhow::Result<String> {
    let out = HostTensor::download(&set.out, DType::U8, &problem.q_shape())?;
    ensure!(decode(&out.bytes).iter().all(|value| value.is_finite()), "the output has NaN");
    if problem.total_q * problem.q_heads * problem.max_kv_len > CHECKED_PRODUCTS {
        return Ok("no NaN".to_owned());
    }
    let inputs = set.inputs(problem)?;
    let outputs = Outputs { out, lse: None };
    let judgement = judge(&inputs, &outputs, &inputs.expected()?, Gates::of(device.arch(), splits))?;
    match judgement.failure {
        Some(failure) => anyhow::bail!("out: {failure}"),
        None => Ok(format!("cosine {:.6} to the reference", judgement.cosine)),
    }
}

#[cfg(test)]
mod tests {
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
