//! The values that parameter blocks are made of. A field has one name in every stage.

use std::collections::BTreeMap;

use bakewell_core::params::{ParamBlock, ParamKind, ParamLayout};
use bakewell_core::schedule::gdn::{Chunk, Segment, wgmma};
use bakewell_core::tensor_map::TensorMapRequest;
use bakewell_core::{DType, Error, Result, TensorView};

use super::decide::{Decision, Role, Step};
use super::inputs::Rows;
use super::{Gdn, Input, Tape};
use crate::binder::Binder;

/// One value.
#[derive(Clone, Copy, Debug)]
enum Value {
    Pointer(u64),
    U64(u64),
    U32(u32),
    F32(f32),
}

/// Values by field name.
#[derive(Clone, Debug)]
pub(super) struct Values(BTreeMap<&'static str, Value>);

/// Every region of tape and workspace that a stage may point to.
const REGIONS: [&str; 11] = ["rq", "rk", "gate", "a", "v_new", "h", "m", "carries", "fade", "start", "dh"];

impl Values {
    /// What is the same for every stage of a call: sizes, options, tables, tape and workspace.
    pub(super) fn new(
        problem: &Gdn,
        decision: &Decision,
        tape: Option<&Tape<'_>>,
        binder: &mut Binder<'_>,
    ) -> Result<Values> {
        let mut values = Values(BTreeMap::new());
        let tape = tape.map_or(0, |tape| tape.view().address());
        for name in REGIONS {
            let on_tape = decision.tape.address(name, tape);
            values.point(name, if on_tape != 0 { on_tape } else { binder.region(name) });
        }
        values.point("segment_state", binder.region("segment_state"));
        values.tables(decision, binder)?;
        let division = &decision.division;
        // All below 2^31 by the limits of a problem.
        for (name, count) in [
            ("chunk_count", division.chunks),
            ("segment_count", division.segments),
            ("sequence_count", division.sequences),
            ("segment_chunks", division.segment_chunks),
            ("tokens", problem.total_tokens()),
            ("heads", problem.heads),
            ("value_heads", problem.value_heads),
        ] {
            values.number(name, count as u32);
        }
        values.number("beta_bf16", u32::from(problem.beta == DType::Bf16));
        values.number("l2norm", u32::from(problem.l2norm));
        values.0.insert("scale", Value::F32(problem.output_scale()));
        values.0.insert("forget", Value::F32(-(problem.pins.forget_after() as f32) * std::f32::consts::LOG2_E));
        Ok(values)
    }

    /// Uploads the tables, or points to where a launch will build them.
    fn tables(&mut self, decision: &Decision, binder: &mut Binder<'_>) -> Result<()> {
        let Some(tables) = &decision.division.tables else {
            for name in ["chunks", "segments", "sequences"] {
                self.point(name, binder.region(name));
            }
            return Ok(());
        };
        let content = [tables.chunk_bytes(), tables.segment_bytes(), tables.sequence_bytes()].concat();
        let address = binder.upload(&content)?.address();
        let segments = address + tables.chunks.len() as u64 * Chunk::BYTES;
        self.point("chunks", address);
        self.point("segments", segments);
        self.point("sequences", segments + tables.segments.len() as u64 * Segment::BYTES);
        Ok(())
    }

    /// Sets a pointer; 0 is the kernels' null.
    pub(super) fn point(&mut self, name: &'static str, address: u64) {
        self.0.insert(name, Value::Pointer(address));
    }

    /// Sets the pointer of a tensor, null without one.
    pub(super) fn tensor(&mut self, name: &'static str, view: Option<&TensorView<'_>>) {
        self.point(name, view.map_or(0, TensorView::address));
    }

    /// Sets an unsigned 32-bit number.
    pub(super) fn number(&mut self, name: &'static str, value: u32) {
        self.0.insert(name, Value::U32(value));
    }

    /// Sets pointers and strides of inputs.
    pub(super) fn inputs<'a>(
        &mut self,
        problem: &Gdn,
        inputs: &[Input],
        view: impl Fn(Input) -> Option<TensorView<'a>>,
        binder: &mut Binder<'_>,
    ) -> Result<()> {
        inputs.iter().try_for_each(|&input| self.input(problem, input, view(input).as_ref(), binder))
    }

    /// Sets pointer and strides of an input. One that is absent is zero at every token.
    fn input(
        &mut self,
        problem: &Gdn,
        input: Input,
        view: Option<&TensorView<'_>>,
        binder: &mut Binder<'_>,
    ) -> Result<()> {
        let [name, token_stride, head_stride] = match input {
            Input::Q => ["q", "q_token_stride", "q_head_stride"],
            Input::K => ["k", "k_token_stride", "k_head_stride"],
            Input::V => ["v", "v_token_stride", "v_head_stride"],
            Input::G => ["g", "g_token_stride", "g_head_stride"],
            Input::Beta => ["beta", "beta_token_stride", "beta_head_stride"],
            Input::Do => ["grad_o", "grad_o_token_stride", "grad_o_head_stride"],
        };
        let rows = match view {
            Some(view) => problem.rows(input, view, binder.region(input.region())),
            None => {
                let (dtype, shape) = problem.input(input);
                let zeros = vec![0; (shape[2] * dtype.bytes()) as usize];
                Rows { address: binder.upload(&zeros)?.address(), token_stride: 0, head_stride: 1 }
            }
        };
        self.point(name, rows.address);
        self.0.insert(token_stride, Value::U64(rows.token_stride));
        self.0.insert(head_stride, Value::U64(rows.head_stride));
        Ok(())
    }

    /// The same with these pointers null.
    pub(super) fn without(&self, names: &[&'static str]) -> Values {
        let mut values = self.clone();
        names.iter().for_each(|name| values.point(name, 0));
        values
    }

    fn address(&self, name: &str) -> u64 {
        if let Some(Value::Pointer(address)) = self.0.get(name) { *address } else { 0 }
    }

    fn size(&self, name: &str) -> u64 {
        match self.0.get(name) {
            Some(Value::U64(size)) => *size,
            Some(Value::U32(size)) => (*size).into(),
            _ => 0,
        }
    }

    /// The tensor map of a field of the scans that have them, and the tensor it is of. A tensor that the call does
    /// not have gets a map that no copy uses: its address, which a map must have, is that of the inverses.
    fn map(&self, field: &'static str) -> Option<(&'static str, TensorMapRequest)> {
        let tensor = field.strip_suffix("_map")?;
        let address = if self.address(tensor) == 0 { self.address("a") } else { self.address(tensor) };
        let matrices = self.size("chunk_count") * self.size("value_heads");
        let (tokens, value_heads) = (self.size("tokens"), self.size("value_heads"));
        let strided = |heads, panels| {
            let stride = |of| self.size(&format!("{tensor}_{of}_stride"));
            wgmma::heads_request(address, tokens, heads, stride("token"), stride("head"), panels)
        };
        let request = match tensor {
            "q" | "k" => strided(self.size("heads"), 2),
            "v" | "grad_o" => strided(value_heads, 1),
            "o" | "v_new" | "dv" => wgmma::heads_request(address, tokens, value_heads, value_heads * 128, 128, 1),
            "a" => wgmma::inverse_request(address, matrices),
            "h" | "dh" => wgmma::states_request(address, matrices),
            _ => return None,
        };
        Some((tensor, request))
    }

    /// The bytes of a parameter block.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a field that has no value, or that of a tensor map.
    pub(super) fn block(&self, layout: ParamLayout, binder: &Binder<'_>) -> Result<Vec<u8>> {
        let mut block = ParamBlock::new(layout);
        for field in layout.fields {
            if field.kind == ParamKind::TensorMap
                && let Some((tensor, request)) = self.map(field.name)
            {
                block.tensor_map(field.name, &binder.tensor_map(tensor, &request)?)?;
                continue;
            }
            match (field.kind, self.0.get(field.name)) {
                (ParamKind::Pointer, Some(&Value::Pointer(address))) => block.pointer(field.name, address)?,
                (ParamKind::U64, Some(&Value::U64(value))) => block.u64(field.name, value)?,
                (ParamKind::U32, Some(&Value::U32(value))) => block.u32(field.name, value)?,
                (ParamKind::F32, Some(&Value::F32(value))) => block.f32(field.name, value)?,
                _ => return Err(Error::Parameter { field: field.name.to_owned(), what: "has no value of its type" }),
            };
        }
        block.finish()
    }
}

/// Adds the launch of a step whose block these values fill.
pub(super) fn launch(step: &Step, values: &Values, binder: &mut Binder<'_>) -> Result<()> {
    let layout = bakewell_core::schedule::Schedule::params(step.schedule);
    let block = values.block(layout, binder)?;
    binder.launch(step.schedule, step.config, block)
}

/// The values of a step that both calls have alike: copies and tables have some of their own.
pub(super) fn shared<'a>(
    problem: &Gdn,
    step: &Step,
    values: &Values,
    view: impl Fn(Input) -> Option<TensorView<'a>>,
    cu_seqlens: Option<&TensorView<'a>>,
    binder: &Binder<'_>,
) -> Values {
    let mut values = values.clone();
    match step.role {
        Role::Copy(input) => {
            if let Some(view) = view(input) {
                copy(problem, input, &view, binder.region(input.region()), &mut values);
            }
        }
        Role::Tables => {
            values.tensor("cu_seqlens", cu_seqlens);
            values.number("cu_seqlens_i64", u32::from(cu_seqlens.is_some_and(|view| view.dtype() == DType::I64)));
        }
        _ => {}
    }
    values
}

/// A copy moves units: 16 bytes where the tensor allows it, else elements.
fn copy(problem: &Gdn, input: Input, view: &TensorView<'_>, to: u64, values: &mut Values) {
    let (dtype, shape) = problem.input(input);
    let element = dtype.bytes();
    // A gate's heads are its rows' elements.
    let (heads, row) = if shape.len() == 4 { (shape[2], shape[3]) } else { (1, shape[2]) };
    let strides = view.strides();
    let (head_stride, element_stride) = if shape.len() == 4 { (strides[2], strides[3]) } else { (0, strides[2]) };
    let aligned = |bytes: u64| bytes.is_multiple_of(16);
    let vectors = element_stride == 1
        && [view.address(), row * element].into_iter().all(aligned)
        && [strides[0], strides[1], head_stride].into_iter().all(|stride| aligned(stride * element));
    let unit = if vectors { 16 } else { element };
    values.point("source", view.address());
    values.point("target", to);
    for (name, stride) in [("batch_stride", strides[0]), ("token_stride", strides[1]), ("head_stride", head_stride)] {
        values.0.insert(name, Value::U64(stride * element));
    }
    values.0.insert("unit_stride", Value::U64(if vectors { 16 } else { element_stride * element }));
    values.number("row_tokens", problem.tokens as u32);
    values.number("row_heads", heads as u32);
    values.number("units", (row * element / unit) as u32);
    values.number("unit_bytes", unit as u32);
}
