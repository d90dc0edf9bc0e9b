//! What should come out, from a file or the reference, and whether it did.

use std::time::Duration;

use bakewell::error::Property;
use bakewell::nvfp4_pre_attention::{Nvfp4PreAttention, OutputFormat};
use bakewell::schedule::nvfp4_pre_attention::KINDS;
use bakewell::{Device, Error, Operation, Result};
use bakewell_reference::Element;
use bakewell_reference::nvfp4_pre_attention::Stages;
use half::bf16;

use super::Inputs;
use super::judge::{judge, values};
use crate::TensorFile;
use crate::compare::compare;
use crate::judged::{Judged, Planned, Verdict};
use crate::staged::{Outputs, run};

/// What should come out. Rows are those of `[tokens, heads, 3]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    pub(super) activation_q: Vec<u8>,
    pub(super) activation_sf: Vec<u8>,
    pub(super) adaln: Vec<u8>,
    pub(super) q: Vec<u8>,
    pub(super) k: Vec<u8>,
    pub(super) out_q: Vec<u8>,
    pub(super) out_sf: Vec<u8>,
    pub(super) determined: Vec<bool>,
}

impl Expected {
    /// What the reference computed.
    pub fn of(stages: Stages) -> Expected {
        let Stages { norm, gemm, epilogue } = stages;
        Expected {
            activation_q: norm.codes,
            activation_sf: norm.tiles,
            adaln: bf16::to_bytes(&norm.modulated),
            q: bf16::to_bytes(&epilogue.q),
            k: bf16::to_bytes(&epilogue.k),
            out_q: epilogue.out,
            out_sf: epilogue.tiles,
            determined: gemm.determined,
        }
    }

    /// The results as numbers, without the output's global scale; in their own order.
    pub fn values(&self, problem: &Nvfp4PreAttention) -> Vec<f64> {
        values(problem, &self.out_q, (!self.out_sf.is_empty()).then_some(&self.out_sf[..]))
    }

    /// Rows whose words any order of addition gives, and all rows.
    pub fn determined_rows(&self) -> (usize, usize) {
        (self.determined.iter().filter(|&&determined| determined).count(), self.determined.len())
    }
}

impl Judged for Inputs {
    const OPERATION: Operation = Operation::Nvfp4PreAttention;
    type Expected = Expected;

    /// A file with the operation's tensors and, in the metadata, `P`, `heads`, `rope_dim`, `out_format` and `eps`.
    fn from_file(file: &TensorFile) -> Result<Inputs> {
        let matrix = |name| match file.tensor(name)?.shape[..] {
            [rows, columns] => Ok((rows, columns)),
            ref shape => Err(Error::argument(name, Property::Rank, "two dimensions", format!("{shape:?}"))),
        };
        let ((tokens, hidden), (table_rows, _)) = (matrix("x")?, matrix("adaln_scale")?);
        let missing = |name| Error::argument(name, Property::Presence, "in the file's metadata", "none");
        let number = |name| file.parameter(name)?.ok_or_else(|| missing(name));
        let out_format = match file.metadata.get("out_format").map(String::as_str) {
            Some("nvfp4") => OutputFormat::Nvfp4,
            Some("e4m3") => OutputFormat::E4m3,
            Some(other) => return Err(Error::value("out_format", "nvfp4 or e4m3", other)),
            None => return Err(missing("out_format")),
        };
        let problem = Nvfp4PreAttention {
            tokens,
            hidden,
            heads: number("heads")?,
            destinations: number("P")?,
            rope_dim: number("rope_dim")?,
            table_rows,
            out_format,
            eps: file.parameter("eps")?.ok_or_else(|| missing("eps"))?,
            debug: true,
            ..Nvfp4PreAttention::default()
        };
        Inputs::of(problem, |name| file.tensor(name).cloned())
    }

    /// The outputs and intermediates; without `row_determined` the file has none.
    fn golden(file: &TensorFile) -> Result<Option<Expected>> {
        if !file.tensors.contains_key("row_determined") {
            return Ok(None);
        }
        let problem = Inputs::from_file(file)?.problem;
        let rows = [problem.tokens, problem.heads, KINDS.into()];
        let bf16s = |name, shape: &[u64]| file.shaped(name, shape).map(|tensor| tensor.bytes.clone());
        Ok(Some(Expected {
            activation_q: file.codes("activation_q", &problem.activation_shape())?,
            activation_sf: file.codes("activation_sf", &problem.activation_scales_shape())?,
            adaln: bf16s("adaln_bf16", &problem.x_shape())?,
            q: bf16s("q_bf16", &problem.debug_shape())?,
            k: bf16s("k_bf16", &problem.debug_shape())?,
            out_q: file.codes("out_q", &problem.out_shape())?,
            out_sf: match problem.out_format {
                OutputFormat::Nvfp4 => file.codes("out_sf", &problem.out_scales_shape())?,
                OutputFormat::E4m3 => Vec::new(),
            },
            determined: file.codes("row_determined", &rows)?.into_iter().map(|row| row != 0).collect(),
        }))
    }

    fn expected(&self) -> Result<Expected> {
        Ok(Expected::of(self.stages()?))
    }

    fn complete(&self) -> Inputs {
        Inputs { problem: Nvfp4PreAttention { debug: true, ..self.problem.clone() }, ..self.clone() }
    }

    fn variations(&self) -> Vec<(&'static str, Inputs)> {
        let problem = Nvfp4PreAttention { debug: false, ..self.problem.clone() };
        vec![("without the intermediates", Inputs { problem, ..self.clone() })]
    }

    fn plan(&self, device: &Device) -> Result<Planned> {
        Ok(Planned::default().and(&device.plan(&self.problem)?))
    }

    fn run(&self, device: &Device) -> Result<(Outputs, Duration)> {
        run(device, self).map(|run| (run.outputs, run.time))
    }

    fn judge(&self, outputs: &Outputs, expected: &Expected, _: &Device) -> Result<Verdict> {
        let judgement = judge(self, outputs, expected)?;
        let (problem, bytes) = (&self.problem, |name| outputs.get(name).map(|tensor| &tensor.bytes[..]));
        let want = expected.values(problem);
        let got = values(problem, bytes("out_q").unwrap_or_default(), bytes("out_sf"));
        let (determined, rows) = expected.determined_rows();
        Ok(Verdict {
            comparison: compare(&[want.len() as u64 / problem.head_dim, problem.head_dim], &got, &want)?,
            summary: format!(
                "{determined} of {rows} head rows determined, {} of {} bytes of the others differ",
                judgement.differing, judgement.undetermined
            ),
            failure: judgement.failure,
        })
    }

    fn live_bytes(&self) -> Result<u64> {
        Ok(live_bytes(&self.problem))
    }
}

/// Bytes that any two kernels must move: the first reads hidden states and writes the activation; the second reads it,
/// the weight and the rotation, and writes the results.
pub fn live_bytes(problem: &Nvfp4PreAttention) -> u64 {
    let activation = problem.tokens * problem.hidden / 2 + problem.activation_scales_shape()[0];
    let weight = problem.columns() * (problem.hidden / 2 + problem.hidden / 16);
    let results = match problem.out_format {
        OutputFormat::Nvfp4 => problem.tokens * problem.columns() / 16 * 9,
        OutputFormat::E4m3 => problem.tokens * problem.columns(),
    };
    2 * problem.tokens * (problem.hidden + problem.rope_dim) + 2 * activation + weight + results
}
