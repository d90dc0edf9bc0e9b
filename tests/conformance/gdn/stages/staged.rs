//! Tensors of a case on a device, and the launches of its stages.

use bakewell::schedule::Schedule;
use bakewell::schedule::gdn::{Engine, Gdn, Stage, prepare, wgmma};
use bakewell::{Buffer, Device, LaunchConfig, Result, Stream};
use bakewell_conformance::HostTensor;
use bakewell_core::params::ParamBlock;
use bakewell_reference::Element;
use half::bf16;

use super::inputs::{CHUNK, DIM, Inputs};
use super::model::Forward;

/// Elements after each row of a packed buffer that belong to no tensor.
const ROW_GAP: usize = 24;

/// A bf16 tensor of heads somewhere in a buffer. Strides in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) address: u64,
    pub(super) token_stride: u64,
    pub(super) head_stride: u64,
}

/// What a scan writes.
pub(super) struct Scanned {
    pub(super) o: Buffer,
    pub(super) v_new: Buffer,
    pub(super) h: Buffer,
    pub(super) ht: Buffer,
}

/// What a pre-scan gives: `S' = M S + H` of every segment; `carries` where it may forget.
pub(super) struct Maps {
    pub(super) h: Buffer,
    pub(super) m: Buffer,
    pub(super) carries: Option<Buffer>,
}

/// A case on a device. Outputs hold NaN until a stage writes them.
pub(super) struct Staged<'a> {
    pub(super) device: &'a Device,
    pub(super) inputs: &'a Inputs,
    pub(super) q: Heads,
    pub(super) k: Heads,
    pub(super) v: Heads,
    pub(super) g: Buffer,
    pub(super) beta: Buffer,
    pub(super) h0: Option<Buffer>,
    pub(super) chunks: Buffer,
    pub(super) segments: Buffer,
    pub(super) sequences: Buffer,
    pub(super) rq: Buffer,
    pub(super) rk: Buffer,
    pub(super) gate: Buffer,
    pub(super) fade: Buffer,
    pub(super) a: Buffer,
    _rows: Vec<Buffer>,
}

impl<'a> Staged<'a> {
    pub(super) fn new(device: &'a Device, inputs: &'a Inputs) -> Result<Staged<'a>> {
        let case = &inputs.case;
        let (q, k, v, rows) = place_rows(device, inputs)?;
        let (segments, sequences) = inputs.segments();
        let chunks = inputs.chunks();
        let upload = |bytes: Vec<u8>| device.upload(&bytes);
        let beta = if case.beta_bf16 { to_bf16(&inputs.beta) } else { to_f32(&inputs.beta) };
        let norms = (inputs.rows * case.heads * 4) as u64;
        Ok(Staged {
            device,
            inputs,
            q,
            k,
            v,
            g: upload(to_f32(&inputs.g))?,
            beta: upload(beta)?,
            h0: inputs.h0.as_ref().map(|h0| upload(to_f32(h0))).transpose()?,
            chunks: upload(chunks.iter().flat_map(|chunk| chunk.to_bytes()).collect())?,
            segments: upload(segments.iter().flat_map(|segment| segment.to_bytes()).collect())?,
            sequences: upload(sequences.iter().flat_map(|sequence| sequence.to_bytes()).collect())?,
            rq: poisoned(device, norms)?,
            rk: poisoned(device, norms)?,
            gate: poisoned(device, (inputs.rows * case.value_heads * 4) as u64)?,
            fade: poisoned(device, (chunks.len() * case.value_heads * 4) as u64)?,
            a: poisoned(device, (chunks.len() * case.value_heads * CHUNK * CHUNK * 2) as u64)?,
            _rows: rows,
        })
    }

    /// The compiled schedules of a stage on registers.
    pub(super) fn schedules(&self, stage: Stage) -> impl Iterator<Item = &'static Gdn> {
        self.schedules_on(Engine::Registers, stage)
    }

    /// The compiled schedules of a stage on an engine.
    pub(super) fn schedules_on(&self, engine: Engine, stage: Stage) -> impl Iterator<Item = &'static Gdn> {
        let arch = self.device.arch().expect("a device with programs");
        let architecture = bakewell::architectures::find(arch).expect("compiled in").architecture;
        let schedules = architecture.gdn.schedules.iter();
        schedules.filter(move |schedule| schedule.engine == engine && schedule.stage == stage)
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
            .pointer("g", self.g.address())?
            .pointer("beta", self.beta.address())?
            .pointer("chunks", self.chunks.address())?
            .pointer("rq", self.rq.address())?
            .pointer("rk", self.rk.address())?
            .pointer("gate", self.gate.address())?
            .pointer("fade", self.fade.address())?
            .u64("q_token_stride", self.q.token_stride)?
            .u64("q_head_stride", self.q.head_stride)?
            .u64("g_token_stride", case.value_heads as u64)?
            .u64("beta_token_stride", case.value_heads as u64)?
            .u32("heads", case.heads as u32)?
            .u32("value_heads", case.value_heads as u32)?
            .u32("beta_bf16", u32::from(case.beta_bf16))?
            .u32("l2norm", u32::from(case.l2norm))?;
        if schedule.engine == Engine::Wgmma {
            self.write_map_of_keys(&mut block, "k", self.k)?;
            self.write_inverse_map(&mut block)?;
        } else {
            block
                .pointer("k", self.k.address)?
                .pointer("a", self.a.address())?
                .u64("k_token_stride", self.k.token_stride)?
                .u64("k_head_stride", self.k.head_stride)?;
        }
        let ctas = self.inputs.chunks().len() * case.value_heads / prepare::value_heads(schedule) as usize;
        self.launch(schedule, ctas, &block)
    }

    /// What `prepare` writes, from the model: the other stages are tested on it.
    pub(super) fn prepare_from(&self, model: &Forward) -> Result<()> {
        self.rq.write(0, &to_f32(&model.rq))?;
        self.rk.write(0, &to_f32(&model.rk))?;
        self.gate.write(0, &to_f32(&model.gate))?;
        self.fade.write(0, &to_f32(&model.fade))?;
        self.a.write(0, &to_bf16(&model.a))
    }

    /// `scan` or `states` over every segment, with everything that it may write.
    pub(super) fn scan(&self, schedule: &Gdn, start: Option<&Buffer>) -> Result<Scanned> {
        self.scan_with(schedule, start, true)
    }

    /// The same with or without room for an output.
    pub(super) fn scan_with(&self, schedule: &Gdn, start: Option<&Buffer>, output: bool) -> Result<Scanned> {
        let scanned = self.scanned()?;
        let block = self.scan_block_with(schedule, start, &scanned, output)?;
        let ctas = self.inputs.segments().0.len() * self.inputs.case.value_heads * schedule.value_splits() as usize;
        self.launch(schedule, ctas, &block)?;
        Ok(scanned)
    }

    /// Room for everything that a scan may write.
    pub(super) fn scanned(&self) -> Result<Scanned> {
        let case = &self.inputs.case;
        let values = (self.inputs.rows * case.value_heads * DIM * 2) as u64;
        let states = case.value_heads * DIM * DIM;
        Ok(Scanned {
            o: poisoned(self.device, values)?,
            v_new: poisoned(self.device, values)?,
            h: poisoned(self.device, (self.inputs.chunks().len() * states * 2) as u64)?,
            ht: poisoned(self.device, (case.lengths.len() * states * 4) as u64)?,
        })
    }

    /// The block of a scan that writes all of it, an output or none.
    pub(super) fn scan_block_with(
        &self,
        schedule: &Gdn,
        start: Option<&Buffer>,
        scanned: &Scanned,
        output: bool,
    ) -> Result<ParamBlock> {
        let mut block = self.scan_block(schedule)?;
        block
            .pointer("h0", self.h0.as_ref().map_or(0, Buffer::address))?
            .pointer("start", start.map_or(0, Buffer::address))?
            .pointer("o", if output { scanned.o.address() } else { 0 })?
            .pointer("v_new", scanned.v_new.address())?
            .pointer("h", scanned.h.address())?
            .pointer("ht", scanned.ht.address())?
            .pointer("segment_state", 0)?
            .pointer("m", 0)?
            .u32("m_of_first", 0)?
            .u32("m_of_last", 0)?;
        if schedule.engine == Engine::Wgmma {
            block.pointer("fade", 0)?.pointer("carries", 0)?.f32("forget", 0.0)?;
        }
        if schedule.engine != Engine::Registers {
            let rows = |buffer| self.rows_of_values(buffer);
            let of_values = [("v", self.v), ("o", rows(&scanned.o)), ("v_new", rows(&scanned.v_new))];
            self.write_maps(&mut block, &of_values, &[("h", &scanned.h)])?;
            self.write_inverse_map(&mut block)?;
        }
        Ok(block)
    }

    /// The tensor maps of a stage: those of q and k, of tensors of value heads, and of states.
    pub(super) fn write_maps(
        &self,
        block: &mut ParamBlock,
        of_values: &[(&'static str, Heads)],
        of_states: &[(&'static str, &Buffer)],
    ) -> Result<()> {
        self.write_map_of_keys(block, "q", self.q)?;
        self.write_map_of_keys(block, "k", self.k)?;
        for &(name, at) in of_values {
            self.write_map_of_heads(block, name, at, self.inputs.case.value_heads, 1)?;
        }
        let runtime = self.device.runtime().expect("a device with programs");
        for &(name, states) in of_states {
            let request = wgmma::states_request(states.address(), self.matrices());
            block.tensor_map(&format!("{name}_map"), &runtime.encode_tensor_map(name, &request)?)?;
        }
        Ok(())
    }

    fn write_map_of_keys(&self, block: &mut ParamBlock, name: &'static str, at: Heads) -> Result<()> {
        self.write_map_of_heads(block, name, at, self.inputs.case.heads, 2)
    }

    fn write_map_of_heads(
        &self,
        block: &mut ParamBlock,
        name: &'static str,
        at: Heads,
        heads: usize,
        panels: u32,
    ) -> Result<()> {
        let runtime = self.device.runtime().expect("a device with programs");
        let (rows, heads) = (self.inputs.rows as u64, heads as u64);
        let request = wgmma::heads_request(at.address, rows, heads, at.token_stride, at.head_stride, panels);
        block.tensor_map(&format!("{name}_map"), &runtime.encode_tensor_map(name, &request)?)?;
        Ok(())
    }

    /// The tensor map of A.
    pub(super) fn write_inverse_map(&self, block: &mut ParamBlock) -> Result<()> {
        let runtime = self.device.runtime().expect("a device with programs");
        let inverses = wgmma::inverse_request(self.a.address(), self.matrices());
        block.tensor_map("a_map", &runtime.encode_tensor_map("a", &inverses)?)?;
        Ok(())
    }

    /// Contiguous rows of value heads.
    pub(super) fn rows_of_values(&self, buffer: &Buffer) -> Heads {
        let token_stride = (self.inputs.case.value_heads * DIM) as u64;
        Heads { address: buffer.address(), token_stride, head_stride: DIM as u64 }
    }

    /// Chunks times value heads.
    fn matrices(&self) -> u64 {
        (self.inputs.chunks().len() * self.inputs.case.value_heads) as u64
    }

    /// `scan` without a tape: nothing is asked for but the output.
    pub(super) fn scan_output(&self, schedule: &Gdn) -> Result<Buffer> {
        let case = &self.inputs.case;
        let o = poisoned(self.device, (self.inputs.rows * case.value_heads * DIM * 2) as u64)?;
        let mut block = self.scan_block(schedule)?;
        block.pointer("h0", self.h0.as_ref().map_or(0, Buffer::address))?.pointer("o", o.address())?;
        for name in ["start", "v_new", "h", "ht", "segment_state", "m"] {
            block.pointer(name, 0)?;
        }
        block.u32("m_of_first", 0)?.u32("m_of_last", 0)?;
        let ctas = self.inputs.segments().0.len() * case.value_heads * schedule.value_splits() as usize;
        self.launch(schedule, ctas, &block)?;
        Ok(o)
    }

    /// The maps of every segment; `forget`: exponent of two, on warpgroup products only.
    pub(super) fn pre_scan(
        &self,
        schedule: &Gdn,
        m_of_first: bool,
        m_of_last: bool,
        forget: Option<f32>,
    ) -> Result<Maps> {
        let case = &self.inputs.case;
        let (segments, _) = self.inputs.segments();
        let units = (segments.len() * case.value_heads * 4) as u64;
        let bytes = units * (DIM * DIM) as u64;
        let (h, m) = (poisoned(self.device, bytes)?, poisoned(self.device, bytes)?);
        let carries = forget.map(|_| poisoned(self.device, units)).transpose()?;
        let mut block = self.scan_block(schedule)?;
        for name in ["h0", "start", "o", "v_new", "h", "ht"] {
            block.pointer(name, 0)?;
        }
        block
            .pointer("segment_state", h.address())?
            .pointer("m", m.address())?
            .u32("m_of_first", u32::from(m_of_first))?
            .u32("m_of_last", u32::from(m_of_last))?;
        if schedule.engine == Engine::Wgmma {
            block
                .pointer("fade", forget.map_or(0, |_| self.fade.address()))?
                .pointer("carries", carries.as_ref().map_or(0, Buffer::address))?
                .f32("forget", forget.unwrap_or(0.0))?;
            // No copy uses the maps of what a pre-scan has not.
            self.write_maps(&mut block, &[("v", self.v), ("o", self.v), ("v_new", self.v)], &[("h", &self.a)])?;
            self.write_inverse_map(&mut block)?;
        }
        let ctas = segments.len() * case.value_heads * 2 * schedule.value_splits() as usize;
        self.launch(schedule, ctas, &block)?;
        Ok(Maps { h, m, carries })
    }

    /// The states at boundaries of segments, from maps; V-major.
    pub(super) fn compose(
        &self,
        schedule: &Gdn,
        boundary: Option<&Buffer>,
        maps: &Maps,
        adjoint: bool,
    ) -> Result<Buffer> {
        let case = &self.inputs.case;
        let start = poisoned(self.device, maps.h.bytes())?;
        let mut block = ParamBlock::new(schedule.params());
        block
            .pointer("segments", self.segments.address())?
            .pointer("sequences", self.sequences.address())?
            .pointer("boundary", boundary.map_or(0, Buffer::address))?
            .pointer("segment_state", maps.h.address())?
            .pointer("m", maps.m.address())?
            .pointer("carries", maps.carries.as_ref().map_or(0, Buffer::address))?
            .pointer("start", start.address())?
            .u32("value_heads", case.value_heads as u32)?
            .u32("adjoint", u32::from(adjoint))?;
        let segments = self.inputs.segments().0.len();
        self.launch(schedule, segments * case.value_heads * schedule.value_splits() as usize, &block)?;
        Ok(start)
    }

    /// What all uses of the scan share.
    fn scan_block(&self, schedule: &Gdn) -> Result<ParamBlock> {
        let case = &self.inputs.case;
        let mut block = ParamBlock::new(schedule.params());
        for (name, heads) in [("q", self.q), ("k", self.k), ("v", self.v)] {
            block
                .pointer(name, heads.address)?
                .u64(&format!("{name}_token_stride"), heads.token_stride)?
                .u64(&format!("{name}_head_stride"), heads.head_stride)?;
        }
        block
            .pointer("beta", self.beta.address())?
            .pointer("rq", self.rq.address())?
            .pointer("rk", self.rk.address())?
            .pointer("gate", self.gate.address())?
            .pointer("a", self.a.address())?
            .pointer("chunks", self.chunks.address())?
            .pointer("segments", self.segments.address())?
            .pointer("sequences", self.sequences.address())?
            .u64("beta_token_stride", case.value_heads as u64)?
            .u32("heads", case.heads as u32)?
            .u32("value_heads", case.value_heads as u32)?
            .u32("beta_bf16", u32::from(case.beta_bf16))?
            .f32("scale", case.scale)?;
        Ok(block)
    }
}

/// `q`, `k`, `v` in buffers of their own, or one after the other in the rows of one buffer with a gap of NaN.
fn place_rows(device: &Device, inputs: &Inputs) -> Result<(Heads, Heads, Heads, Vec<Buffer>)> {
    let case = &inputs.case;
    let (key_width, value_width) = (case.heads * DIM, case.value_heads * DIM);
    let at = |address: u64, width: usize| Heads { address, token_stride: width as u64, head_stride: DIM as u64 };
    if !case.packed {
        let upload = |values: &[f64]| device.upload(&to_bf16(values));
        let buffers = vec![upload(&inputs.q)?, upload(&inputs.k)?, upload(&inputs.v)?];
        let address = |i: usize| buffers[i].address();
        return Ok((at(address(0), key_width), at(address(1), key_width), at(address(2), value_width), buffers));
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
    let [q, k, v] = parts.map(|(_, offset, _)| at(buffer.address() + 2 * offset as u64, width));
    Ok((q, k, v, vec![buffer]))
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
