//! Goldens, variations and verdicts.

use std::time::Duration;

use bakewell::gdn::{Backward, Forward, Sequences};
use bakewell::{Device, Operation, Result};

use super::inputs::{OUTPUTS, output_shape};
use super::limits::judge;
use super::{Expected, Inputs, Place, run};
use crate::compare::compare;
use crate::{Judged, Outputs, Planned, TensorFile, Verdict};

/// Chunks up to which no plan cuts a sequence by itself: a cut would cost more than it gains.
const NEVER_CUT: u64 = 8;

/// Elements of final states that are compared where nobody asked for them.
const MOST_STATE_ELEMENTS: u64 = 1 << 24;

impl Judged for Inputs {
    const OPERATION: Operation = Operation::Gdn;
    type Expected = Expected;

    fn from_file(file: &TensorFile) -> Result<Inputs> {
        Inputs::from_file(file)
    }

    fn golden(file: &TensorFile) -> Result<Option<Expected>> {
        let there: Vec<&str> = OUTPUTS.into_iter().filter(|&output| file.tensors.contains_key(output)).collect();
        if there.is_empty() {
            return Ok(None);
        }
        let problem = Inputs::from_file(file)?.problem;
        let numbers = |output| Ok((output, file.numbers(output, &output_shape(&problem, output))?));
        there.into_iter().map(numbers).collect::<Result<Expected>>().map(Some)
    }

    fn expected(&self) -> Result<Expected> {
        self.expected()
    }

    /// Final states too, unless they would be most of the work.
    fn complete(&self) -> Inputs {
        let mut inputs = self.clone();
        inputs.problem.final_state |= inputs.problem.state_shape().iter().product::<u64>() <= MOST_STATE_ELEMENTS;
        inputs
    }

    /// Every layout of the inputs, states made again, the caller's order, offsets that only the device knows.
    fn variations(&self) -> Vec<(&'static str, Inputs)> {
        let with = |change: &dyn Fn(&mut Inputs)| {
            let mut inputs = self.clone();
            change(&mut inputs);
            inputs
        };
        let mut variations = vec![
            ("packed rows", with(&|inputs| inputs.place = Place::Packed)),
            ("gaps between rows", with(&|inputs| inputs.place = Place::Gapped)),
            ("copies", with(&|inputs| inputs.place = Place::Copied)),
            ("states made again", with(&|inputs| inputs.problem.pins.save_state = false)),
            ("the caller's order", with(&|inputs| inputs.problem.pins.longest_first = false)),
        ];
        // The same segments, which a plan without lengths need not choose.
        let known = self.problem.pins.segment_chunks.is_some() || self.problem.tokens <= 64 * NEVER_CUT;
        if known && matches!(self.problem.sequences, Sequences::Offsets(_)) {
            let mut inputs = self.clone().with_device_offsets();
            inputs.problem.pins.segment_chunks.get_or_insert(0);
            variations.push(("offsets on the device", inputs));
        }
        variations
    }

    fn plan(&self, device: &Device) -> Result<Planned> {
        let problem = self.placed_problem();
        let planned = Planned::default().and(&device.plan(&Forward(problem.clone()))?);
        Ok(match self.d_o {
            Some(_) => planned.and(&device.plan(&Backward(problem))?),
            None => planned,
        })
    }

    fn run(&self, device: &Device) -> Result<(Outputs, Duration)> {
        let run = run(device, self)?;
        Ok((run.outputs, run.times.iter().sum()))
    }

    /// The comparison is that of the output or gradient with the largest ratio of root mean squares.
    fn judge(&self, outputs: &Outputs, expected: &Expected, device: &Device) -> Result<Verdict> {
        let judgement = judge(self, outputs, expected, device.arch())?;
        let worst = judgement.ratios.iter().max_by(|(_, a), (_, b)| a.rms.total_cmp(&b.rms));
        let comparison = match worst {
            Some((name, _)) => compare(&outputs[name].shape, &outputs[name].to_f64()?, &expected[name])?,
            None => compare(&[0], &[], &[])?,
        };
        let ratios = judgement.ratios.iter().map(|(name, ratios)| format!("{name} {:.1e}", ratios.rms));
        Ok(Verdict {
            comparison,
            summary: format!("ratios of root mean squares: {}", ratios.collect::<Vec<_>>().join(", ")),
            failure: judgement.failure,
        })
    }

    /// Inputs, outputs and, with `do`, gradients, each once.
    fn live_bytes(&self) -> Result<u64> {
        let problem = &self.problem;
        let bytes = |shape: &[u64], element: u64| shape.iter().product::<u64>() * element;
        let (keys, values) = (bytes(&problem.q_shape(), 2), bytes(&problem.v_shape(), 2));
        let gates = bytes(&problem.gate_shape(), 4 + problem.beta.bytes());
        let forward = 2 * keys + 2 * values + gates;
        Ok(if self.d_o.is_some() { 2 * (forward + keys) + 3 * values + gates } else { forward })
    }
}
