//! Calls of many sequences that repeat a few, compared byte for byte with what the few give.
//!
//! The reference takes a minute for so many tokens and heads. What a sequence gives depends neither on its place nor on
//! its neighbours, so a call on sequences that repeat gives the bytes of the few, wherever its tensors pass 2^31
//! elements.

use bakewell::error::Property;
use bakewell::gdn::{Backward, BackwardArgs, Forward, ForwardArgs, Gdn, Pins, Sequences};
use bakewell::{DType, Device, Error, Result, Stream};

use super::inputs::{OUTPUTS, output_shape};
use super::{Case, Inputs};
use crate::HostTensor;
use crate::call::{Buffers, TensorSpec};
use crate::staged::Outputs;

/// Sequences that are repeated.
pub const FEW: u64 = 3;
/// Bytes behind each output that must stay as they are, and what outputs and they hold before the launch.
const GUARD_BYTES: u64 = 256;
const POISON: u8 = 0xFF;
/// Bytes that are uploaded at once, if the few have fewer.
const UPLOAD_BYTES: u64 = 64 << 20;

/// A few sequences of one length, with states at both ends and their gradients. No plan cuts them.
///
/// # Errors
/// None for the sizes of a valid problem.
pub fn few(heads: u64, value_heads: u64, length: u64) -> Result<Inputs> {
    Case {
        lengths: vec![length; FEW as usize],
        heads,
        value_heads,
        initial_state: true,
        final_state: true,
        final_state_gradient: true,
        pins: Pins { segment_chunks: Some(0), ..Pins::default() },
        ..Case::default()
    }
    .inputs()
}

/// The problem of so many sequences that repeat the few.
pub fn problem(few: &Inputs, sequences: u64) -> Gdn {
    let length = few.problem.tokens / FEW;
    Gdn {
        tokens: sequences * length,
        sequences: Sequences::Offsets((0..=sequences).map(|i| i * length).collect()),
        ..few.problem.clone()
    }
}

/// The first sequence, the last, and those on both sides of byte and element 2^31 and 2^32 of every tensor.
pub fn borders(problem: &Gdn) -> Vec<u64> {
    let sequences = problem.sequence_count();
    let crossed = tensors(problem).into_iter().flat_map(|spec| {
        let of_sequence = spec.bytes() / sequences;
        let places = [1 << 31, 1 << 32].into_iter().flat_map(|count: u64| [count, count * spec.dtype.bytes()]);
        let inside = places.filter(|&at| at < spec.bytes()).map(|at| at / of_sequence);
        inside.flat_map(|sequence| [sequence.saturating_sub(1), sequence]).collect::<Vec<_>>()
    });
    let mut borders: Vec<u64> = crossed.chain([0, sequences - 1]).collect();
    borders.sort_unstable();
    borders.dedup();
    borders
}

/// The tensors of both calls.
fn tensors(problem: &Gdn) -> Vec<TensorSpec> {
    let (q, v, gates, states) = (problem.q_shape(), problem.v_shape(), problem.gate_shape(), problem.state_shape());
    let mut specs = vec![
        TensorSpec::input("q", DType::Bf16, &q),
        TensorSpec::input("k", DType::Bf16, &q),
        TensorSpec::input("v", DType::Bf16, &v),
        TensorSpec::input("g", DType::F32, &gates),
        TensorSpec::input("beta", problem.beta, &gates),
        TensorSpec::input("h0", DType::F32, &states),
        TensorSpec::input("do", DType::Bf16, &v),
        TensorSpec::input("dht", DType::F32, &states),
    ];
    specs.extend(OUTPUTS.map(|name| {
        let dtype = match name {
            "o" | "dq" | "dk" | "dv" => DType::Bf16,
            "dbeta" => problem.beta,
            _ => DType::F32,
        };
        TensorSpec::output(name, dtype, &output_shape(problem, name))
    }));
    specs
}

fn input<'a>(inputs: &'a Inputs, name: &str) -> Option<&'a HostTensor> {
    match name {
        "q" => Some(&inputs.q),
        "k" => Some(&inputs.k),
        "v" => Some(&inputs.v),
        "g" => Some(&inputs.g),
        "beta" => Some(&inputs.beta),
        "h0" => inputs.h0.as_ref(),
        "do" => inputs.d_o.as_ref(),
        "dht" => inputs.dht.as_ref(),
        _ => None,
    }
}

/// Both calls, run.
#[derive(Debug)]
pub struct Repeated {
    problem: Gdn,
    device: Device,
    buffers: Buffers,
}

impl Repeated {
    /// Runs both calls on sequences that repeat the few; outputs are poisoned before.
    ///
    /// # Errors
    /// The plans', the bindings' or the device's.
    pub fn run(device: &Device, few: &Inputs, sequences: u64) -> Result<Repeated> {
        let problem = problem(few, sequences);
        let spare = |spec: &TensorSpec| if spec.output { GUARD_BYTES } else { 0 };
        let buffers = Buffers::new(device, tensors(&problem), spare)?;
        for spec in tensors(&problem) {
            let buffer = buffers.get(spec.name)?;
            let Some(tensor) = input(few, spec.name) else {
                buffer.fill(POISON)?;
                continue;
            };
            let round = tensor.bytes.len() as u64;
            let copies = tensor.bytes.repeat((UPLOAD_BYTES / round).max(1) as usize);
            for at in (0..spec.bytes()).step_by(copies.len()) {
                let count = (copies.len() as u64).min(spec.bytes() - at);
                buffer.write(at, &copies[..count as usize])?;
            }
        }
        let (forward, backward) = (device.plan(&Forward(problem.clone()))?, device.plan(&Backward(problem.clone()))?);
        let memory = device.buffer(forward.tape_bytes())?;
        let tape = forward.tape(memory.view(DType::U8, &[memory.bytes()])?)?;
        let views = buffers.views()?;
        let (q, k, v, g, beta) =
            (views.need("q")?, views.need("k")?, views.need("v")?, views.get("g"), views.need("beta")?);
        let h0 = views.get("h0");
        let (cu_seqlens, workspace) = (None, None);
        let (o, ht) = (views.need("o")?, views.get("ht"));
        let of_forward = ForwardArgs { q, k, v, g, beta, cu_seqlens, h0, o, ht, tape: Some(tape), workspace };
        forward.launch(Stream::DEFAULT, of_forward)?;
        let of_backward = BackwardArgs {
            q,
            k,
            v,
            g,
            beta,
            cu_seqlens,
            h0,
            tape,
            d_o: views.need("do")?,
            dht: views.get("dht"),
            dq: views.need("dq")?,
            dk: views.need("dk")?,
            dv: views.need("dv")?,
            dg: views.get("dg"),
            dbeta: views.need("dbeta")?,
            dh0: views.get("dh0"),
            workspace,
        };
        backward.launch(Stream::DEFAULT, of_backward)?;
        device.synchronize(Stream::DEFAULT)?;
        Ok(Repeated { problem, device: device.clone(), buffers })
    }

    /// The first output, of some sequences, whose bytes are not those that the few gave; nothing is written behind an
    /// output.
    ///
    /// # Errors
    /// The device's, or [`Error::Argument`] for an output that is missing.
    pub fn difference(&self, few: &Outputs, sequences: &[u64]) -> Result<Option<String>> {
        for spec in tensors(&self.problem).into_iter().filter(|spec| spec.output) {
            let name = spec.name;
            let missing = || Error::argument(name, Property::Presence, "an output", "none");
            let few = few.get(name).ok_or_else(missing)?;
            let count = few.bytes.len() / FEW as usize;
            for &sequence in sequences {
                let wanted = &few.bytes[(sequence % FEW) as usize * count..][..count];
                if let Some(byte) = self.buffers.differing(&self.device, name, sequence * count as u64, wanted)? {
                    return Ok(Some(format!("{name} of sequence {sequence}: another byte at {byte}")));
                }
            }
            if let Some(byte) =
                self.buffers.differing(&self.device, name, spec.bytes(), &[POISON; GUARD_BYTES as usize])?
            {
                return Ok(Some(format!("{name}: a write behind its end, at byte {byte} of {}", spec.bytes())));
            }
        }
        Ok(None)
    }
}
