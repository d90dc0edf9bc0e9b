//! Tensors of a backward on a device, and the launches of its stages.

use bakewell::schedule::Schedule;
use bakewell::schedule::gdn::{Engine, Gdn};
use bakewell::{Buffer, Result};
use bakewell_core::params::ParamBlock;

use super::gradients::{Backward, Upstream};
use super::inputs::DIM;
use super::model::Forward;
use super::staged::{Heads, Staged, poisoned, to_bf16, to_f32};

/// What flows into a backward, on the device.
pub(super) struct Returned<'a> {
    staged: &'a Staged<'a>,
    grad_o: Heads,
    dht: Option<Buffer>,
    _rows: Buffer,
}

/// What the scan writes.
pub(super) struct Adjoint {
    pub(super) dv: Buffer,
    pub(super) dh: Buffer,
    pub(super) dh0: Buffer,
}

/// What a tail reads of a forward.
pub(super) struct Tape {
    v_new: Buffer,
    h: Buffer,
}

/// What a tail writes.
pub(super) struct Gradients {
    pub(super) dq: Buffer,
    pub(super) dk: Buffer,
    pub(super) dv: Buffer,
    pub(super) dg: Buffer,
    pub(super) dbeta: Buffer,
}

impl Gradients {
    /// dq, dk, dv, dg, dbeta.
    pub(super) fn bytes(&self) -> Vec<Vec<u8>> {
        let all = [&self.dq, &self.dk, &self.dv, &self.dg, &self.dbeta];
        all.map(|buffer| buffer.read().expect("a buffer of the device")).into()
    }
}

impl<'a> Returned<'a> {
    pub(super) fn new(staged: &'a Staged<'a>, upstream: &Upstream) -> Result<Returned<'a>> {
        let width = staged.inputs.case.value_heads * DIM;
        // Rows with a gap of NaN between them where the other tensors have one.
        let pitch = if staged.inputs.case.packed { width + 8 } else { width };
        let mut rows = vec![f64::NAN; staged.inputs.rows * pitch];
        for (to, from) in rows.chunks_exact_mut(pitch).zip(upstream.grad_o.chunks_exact(width)) {
            to[..width].copy_from_slice(from);
        }
        let rows = staged.device.upload(&to_bf16(&rows))?;
        let grad_o = Heads { address: rows.address(), token_stride: pitch as u64, head_stride: DIM as u64 };
        let dht = upstream.dht.as_ref().map(|dht| staged.device.upload(&to_f32(dht))).transpose()?;
        Ok(Returned { staged, grad_o, dht, _rows: rows })
    }

    /// The scan over every segment; `start` where sequences have several.
    pub(super) fn adjoint(&self, schedule: &Gdn, start: Option<&Buffer>) -> Result<Adjoint> {
        let case = &self.staged.inputs.case;
        let scanned = self.blank()?;
        let block = self.adjoint_block(schedule, start, &scanned)?;
        let ctas = self.staged.inputs.segments().0.len() * case.value_heads * schedule.value_splits() as usize;
        self.staged.launch(schedule, ctas, &block)?;
        Ok(scanned)
    }

    /// The parameters of that scan.
    pub(super) fn adjoint_block(
        &self,
        schedule: &Gdn,
        start: Option<&Buffer>,
        scanned: &Adjoint,
    ) -> Result<ParamBlock> {
        let mut block = self.block(schedule)?;
        self.adjoint_tables(&mut block)?;
        block
            .pointer("dht", self.dht.as_ref().map_or(0, Buffer::address))?
            .pointer("start", start.map_or(0, Buffer::address))?
            .pointer("dv", scanned.dv.address())?
            .pointer("dh", scanned.dh.address())?
            .pointer("dh0", scanned.dh0.address())?
            .pointer("segment_state", 0)?;
        if schedule.engine != Engine::Registers {
            let dv = self.staged.rows_of_values(&scanned.dv);
            self.staged.write_maps(&mut block, &[("grad_o", self.grad_o), ("dv", dv)], &[("dh", &scanned.dh)])?;
            self.staged.write_inverse_map(&mut block)?;
        }
        Ok(block)
    }

    /// The gradients of segments from zero; `forget`: exponent of two.
    pub(super) fn adjoint_pre_scan(&self, schedule: &Gdn, forget: Option<f32>) -> Result<Buffer> {
        let case = &self.staged.inputs.case;
        let segments = self.staged.inputs.segments().0.len();
        let g = poisoned(self.staged.device, (segments * case.value_heads * DIM * DIM * 4) as u64)?;
        let mut block = self.block(schedule)?;
        self.adjoint_tables(&mut block)?;
        for name in ["dht", "start", "dv", "dh", "dh0"] {
            block.pointer(name, 0)?;
        }
        block.pointer("segment_state", g.address())?;
        if let Some(forget) = forget {
            block.pointer("fade", self.staged.fade.address())?.f32("forget", forget)?;
        }
        self.staged.launch(schedule, segments * case.value_heads * schedule.value_splits() as usize, &block)?;
        Ok(g)
    }

    /// What the scan writes, from the model.
    pub(super) fn adjoint_from(&self, model: &Backward) -> Result<Adjoint> {
        let adjoint = self.blank()?;
        adjoint.dv.write(0, &to_bf16(&model.dvb))?;
        adjoint.dh.write(0, &to_bf16(&model.dh))?;
        Ok(adjoint)
    }

    /// What a forward keeps, from the model.
    pub(super) fn tape_from(&self, model: &Forward) -> Result<Tape> {
        let device = self.staged.device;
        Ok(Tape { v_new: device.upload(&to_bf16(&model.v_new))?, h: device.upload(&to_bf16(&model.h))? })
    }

    /// The tail in so many CTAs. It takes dVb and leaves dv in its place.
    pub(super) fn tail(&self, schedule: &Gdn, adjoint: Adjoint, tape: &Tape, ctas: usize) -> Result<Gradients> {
        let Adjoint { dv, dh, .. } = adjoint;
        let gradients = self.gradients(dv)?;
        let block = self.tail_block(schedule, &gradients, &dh, tape)?;
        self.staged.launch(schedule, ctas, &block)?;
        Ok(gradients)
    }

    /// What a tail writes, `dv` being dVb.
    pub(super) fn gradients(&self, dv: Buffer) -> Result<Gradients> {
        let inputs = self.staged.inputs;
        let case = &inputs.case;
        let blank = |count: usize, bytes: usize| poisoned(self.staged.device, (inputs.rows * count * bytes) as u64);
        Ok(Gradients {
            dq: blank(case.heads * DIM, 2)?,
            dk: blank(case.heads * DIM, 2)?,
            dv,
            dg: blank(case.value_heads, 4)?,
            dbeta: blank(case.value_heads, if case.beta_bf16 { 2 } else { 4 })?,
        })
    }

    /// The parameters of a tail.
    pub(super) fn tail_block(
        &self,
        schedule: &Gdn,
        gradients: &Gradients,
        dh: &Buffer,
        tape: &Tape,
    ) -> Result<ParamBlock> {
        let inputs = self.staged.inputs;
        let case = &inputs.case;
        let mut block = self.block(schedule)?;
        block
            .pointer("v", self.staged.v.address)?
            .u64("v_token_stride", self.staged.v.token_stride)?
            .u64("v_head_stride", self.staged.v.head_stride)?
            .pointer("chunks", self.staged.chunks.address())?
            .pointer("v_new", tape.v_new.address())?
            .pointer("h", tape.h.address())?
            .pointer("dh", dh.address())?
            .pointer("dq", gradients.dq.address())?
            .pointer("dk", gradients.dk.address())?
            .pointer("dv", gradients.dv.address())?
            .pointer("dg", gradients.dg.address())?
            .pointer("dbeta", gradients.dbeta.address())?
            .u32("chunk_count", inputs.chunks().len() as u32)?
            .u32("l2norm", u32::from(case.l2norm))?;
        if schedule.engine == Engine::Wgmma {
            let [v_new, dv] = [&tape.v_new, &gradients.dv].map(|buffer| self.staged.rows_of_values(buffer));
            let of_values = [("grad_o", self.grad_o), ("v_new", v_new), ("dv", dv)];
            self.staged.write_maps(&mut block, &of_values, &[("h", &tape.h), ("dh", dh)])?;
        }
        Ok(block)
    }

    fn blank(&self) -> Result<Adjoint> {
        let inputs = self.staged.inputs;
        let case = &inputs.case;
        let (device, states) = (self.staged.device, case.value_heads * DIM * DIM);
        Ok(Adjoint {
            dv: poisoned(device, (inputs.rows * case.value_heads * DIM * 2) as u64)?,
            dh: poisoned(device, (inputs.chunks().len() * states * 2) as u64)?,
            dh0: poisoned(device, (case.lengths.len() * states * 4) as u64)?,
        })
    }

    fn adjoint_tables(&self, block: &mut ParamBlock) -> Result<()> {
        block
            .pointer("a", self.staged.a.address())?
            .pointer("chunks", self.staged.chunks.address())?
            .pointer("segments", self.staged.segments.address())?
            .pointer("sequences", self.staged.sequences.address())?
            .pointer("fade", 0)?
            .f32("forget", 0.0)?;
        Ok(())
    }

    /// What both stages read.
    fn block(&self, schedule: &Gdn) -> Result<ParamBlock> {
        let staged = self.staged;
        let case = &staged.inputs.case;
        let mut block = ParamBlock::new(schedule.params());
        for (name, heads) in [("q", staged.q), ("k", staged.k), ("grad_o", self.grad_o)] {
            block
                .pointer(name, heads.address)?
                .u64(&format!("{name}_token_stride"), heads.token_stride)?
                .u64(&format!("{name}_head_stride"), heads.head_stride)?;
        }
        block
            .pointer("beta", staged.beta.address())?
            .pointer("rq", staged.rq.address())?
            .pointer("rk", staged.rk.address())?
            .pointer("gate", staged.gate.address())?
            .u64("beta_token_stride", case.value_heads as u64)?
            .u32("heads", case.heads as u32)?
            .u32("value_heads", case.value_heads as u32)?
            .u32("beta_bf16", u32::from(case.beta_bf16))?
            .f32("scale", case.scale)?;
        Ok(block)
    }
}
