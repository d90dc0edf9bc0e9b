//! Tensors of a case on a device, and the launches of its stages.

use bakewell::schedule::Schedule;
use bakewell::schedule::gdn::{Gdn, Stage};
use bakewell::{Buffer, Device, LaunchConfig, Result, Stream};
use bakewell_conformance::HostTensor;
use bakewell_core::params::ParamBlock;
use bakewell_reference::Element;
use half::bf16;

use super::inputs::{CHUNK, DIM, Inputs};

/// Elements after each row of a packed buffer that belong to no tensor.
const ROW_GAP: usize = 24;

/// A bf16 tensor of heads somewhere in a buffer. Strides in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) address: u64,
    pub(super) token_stride: u64,
    pub(super) head_stride: u64,
}

/// A case on a device. Outputs hold NaN until a stage writes them.
pub(super) struct Staged<'a> {
    pub(super) device: &'a Device,
    pub(super) inputs: &'a Inputs,
    pub(super) q: Heads,
    pub(super) k: Heads,
    pub(super) g: Buffer,
    pub(super) beta: Buffer,
    pub(super) chunks: Buffer,
    pub(super) rq: Buffer,
    pub(super) rk: Buffer,
    pub(super) gate: Buffer,
    pub(super) a: Buffer,
    _rows: Vec<Buffer>,
}

impl<'a> Staged<'a> {
    pub(super) fn new(device: &'a Device, inputs: &'a Inputs) -> Result<Staged<'a>> {
        let case = &inputs.case;
        let (q, k, rows) = place_rows(device, inputs)?;
        let chunks = inputs.chunks();
        let upload = |bytes: Vec<u8>| device.upload(&bytes);
        let beta = if case.beta_bf16 { to_bf16(&inputs.beta) } else { to_f32(&inputs.beta) };
        let norms = (inputs.rows * case.heads * 4) as u64;
        Ok(Staged {
            device,
            inputs,
            q,
            k,
            g: upload(to_f32(&inputs.g))?,
            beta: upload(beta)?,
            chunks: upload(chunks.iter().flat_map(|chunk| chunk.to_bytes()).collect())?,
            rq: poisoned(device, norms)?,
            rk: poisoned(device, norms)?,
            gate: poisoned(device, (inputs.rows * case.value_heads * 4) as u64)?,
            a: poisoned(device, (chunks.len() * case.value_heads * CHUNK * CHUNK * 2) as u64)?,
            _rows: rows,
        })
    }

    /// The compiled schedules of a stage.
    pub(super) fn schedules(&self, stage: Stage) -> impl Iterator<Item = &'static Gdn> {
        let arch = self.device.arch().expect("a device with programs");
        let architecture = bakewell::architectures::find(arch).expect("compiled in").architecture;
        architecture.gdn.schedules.iter().filter(move |schedule| schedule.stage == stage)
    }

    pub(super) fn launch(&self, schedule: &Gdn, ctas: usize, block: &ParamBlock) -> Result<()> {
        let library = self.device.library()?.expect("a device with programs");
        let runtime = self.device.runtime().expect("a device with programs");
        let kernel = runtime.load(&library.program(schedule.operation(), &schedule.variant())?)?;
        let config = LaunchConfig {
            grid: [ctas as u32, 1, 1],
            cluster: [1; 3],
            block: schedule.threads,
            dynamic_shared_bytes: schedule.dynamic_shared_bytes(),
            programmatic_serialization: false,
        };
        runtime.launch(kernel, &config, &block.finish()?, Stream::DEFAULT)?;
        self.device.synchronize(Stream::DEFAULT)
    }

    pub(super) fn prepare(&self, schedule: &Gdn) -> Result<()> {
        let case = &self.inputs.case;
        let mut block = ParamBlock::new(schedule.params());
        block
            .pointer("q", self.q.address)?
            .pointer("k", self.k.address)?
            .pointer("g", self.g.address())?
            .pointer("beta", self.beta.address())?
            .pointer("chunks", self.chunks.address())?
            .pointer("rq", self.rq.address())?
            .pointer("rk", self.rk.address())?
            .pointer("gate", self.gate.address())?
            .pointer("a", self.a.address())?
            .u64("q_token_stride", self.q.token_stride)?
            .u64("q_head_stride", self.q.head_stride)?
            .u64("k_token_stride", self.k.token_stride)?
            .u64("k_head_stride", self.k.head_stride)?
            .u64("g_token_stride", case.value_heads as u64)?
            .u64("beta_token_stride", case.value_heads as u64)?
            .u32("heads", case.heads as u32)?
            .u32("value_heads", case.value_heads as u32)?
            .u32("beta_bf16", u32::from(case.beta_bf16))?
            .u32("l2norm", u32::from(case.l2norm))?;
        self.launch(schedule, self.inputs.chunks().len() * case.heads, &block)
    }
}

/// `q`, `k`, `v` in buffers of their own, or one after the other in the rows of one buffer with a gap of NaN.
fn place_rows(device: &Device, inputs: &Inputs) -> Result<(Heads, Heads, Vec<Buffer>)> {
    let case = &inputs.case;
    let (key_width, value_width) = (case.heads * DIM, case.value_heads * DIM);
    let at = |address: u64, width: usize| Heads { address, token_stride: width as u64, head_stride: DIM as u64 };
    if !case.packed {
        let upload = |values: &[f64]| device.upload(&to_bf16(values));
        let buffers = vec![upload(&inputs.q)?, upload(&inputs.k)?, upload(&inputs.v)?];
        let address = |i: usize| buffers[i].address();
        return Ok((at(address(0), key_width), at(address(1), key_width), buffers));
    }
    let width = 2 * key_width + value_width + ROW_GAP;
    let mut rows = vec![f64::NAN; inputs.rows * width];
    let parts = [(&inputs.q, 0, key_width), (&inputs.k, key_width, key_width), (&inputs.v, 2 * key_width, value_width)];
    for (values, offset, part) in parts {
        for (to, from) in rows.chunks_exact_mut(width).zip(values.chunks_exact(part)) {
            to[offset..offset + part].copy_from_slice(from);
        }
    }
    let buffer = device.upload(&to_bf16(&rows))?;
    let [q, k, _] = parts.map(|(_, offset, _)| at(buffer.address() + 2 * offset as u64, width));
    Ok((q, k, vec![buffer]))
}

/// A buffer of NaN.
pub(super) fn poisoned(device: &Device, bytes: u64) -> Result<Buffer> {
    let buffer = device.buffer(bytes)?;
    buffer.fill(0xFF)?;
    Ok(buffer)
}

pub(super) fn to_f32(values: &[f64]) -> Vec<u8> {
    f32::to_bytes(&values.iter().map(|&value| value as f32).collect::<Vec<_>>())
}

pub(super) fn to_bf16(values: &[f64]) -> Vec<u8> {
    bf16::to_bytes(&values.iter().map(|&value| bf16::from_f64(value)).collect::<Vec<_>>())
}

/// The content of a buffer of `T`.
pub(super) fn values<T: Element>(buffer: &Buffer) -> Vec<f64> {
    let elements = buffer.bytes() / T::DTYPE.bytes();
    HostTensor::download(buffer, T::DTYPE, &[elements]).and_then(|tensor| tensor.to_f64()).expect("a buffer of floats")
}
