//! What must not change a bit: layout, order, neighbours, where offsets are known, what is made again.

use bakewell::gdn::{Pins, Sequences};
use bakewell::{Device, Stream};
use bakewell_conformance::gdn::{Case, Gate, Inputs, Place, Staged};
use bakewell_conformance::{HostTensor, Outputs};

use super::{equal, on_some_engines, outputs, verify};

/// Two key heads, a group of two, chunk edges, an empty sequence, states everywhere.
fn mixed() -> Inputs {
    let case = Case {
        lengths: vec![65, 0, 3, 5],
        heads: 2,
        value_heads: 4,
        initial_state: true,
        final_state: true,
        final_state_gradient: true,
        gates: vec![Gate::Mild, Gate::Slow, Gate::Strong],
        ..Case::default()
    };
    case.inputs().unwrap()
}

/// One of three chunks and a short one, cut.
fn cut() -> Inputs {
    let case = Case {
        lengths: vec![5, 140],
        value_heads: 1,
        initial_state: true,
        final_state: true,
        final_state_gradient: true,
        gates: vec![Gate::Slow],
        pins: Pins { segment_chunks: Some(1), ..Pins::default() },
        ..Case::default()
    };
    case.inputs().unwrap()
}

fn pinned(inputs: &Inputs, change: impl Fn(&mut Pins)) -> Inputs {
    let mut inputs = inputs.clone();
    change(&mut inputs.problem.pins);
    inputs
}

#[test]
fn layouts_do_not_matter() {
    let inputs = mixed();
    on_some_engines(|device| {
        let first = outputs(device, &inputs, Place::Contiguous)?;
        for place in [Place::Packed, Place::Gapped, Place::Copied] {
            equal(&format!("{place:?}"), &first, &outputs(device, &inputs, place)?)?;
        }
        Ok(())
    });
}

/// Whole and cut: the other order, states made again, every compiled number of value columns, another SM count.
#[test]
fn pins_that_change_no_bits() {
    on_some_engines(|device| {
        for inputs in [mixed(), cut()] {
            let inputs = pinned(&inputs, |pins| {
                pins.segment_chunks.get_or_insert(0);
            });
            let first = outputs(device, &inputs, Place::Contiguous)?;
            let again = |what: &str, change: &dyn Fn(&mut Pins)| {
                equal(what, &first, &outputs(device, &pinned(&inputs, change), Place::Contiguous)?)
            };
            again("the same again", &|_| ())?;
            again("the caller's order", &|pins| pins.longest_first = false)?;
            again("states made again", &|pins| pins.save_state = false)?;
            for columns in [32, 64, 128] {
                again(&format!("{columns} value columns"), &|pins| pins.value_columns = Some(columns))?;
            }
        }
        Ok(())
    });
}

#[test]
fn offsets_on_the_device_give_the_bits_of_those_on_the_host() {
    on_some_engines(|device| {
        for inputs in [mixed(), cut()] {
            let inputs = pinned(&inputs, |pins| {
                pins.segment_chunks.get_or_insert(0);
            });
            let first = outputs(device, &inputs, Place::Contiguous)?;
            let on_device = outputs(device, &inputs.clone().with_device_offsets(), Place::Contiguous)?;
            equal("offsets on the device", &first, &on_device)?;
        }
        Ok(())
    });
}

/// What a captured graph does: the binding stays, offsets on the device change.
#[test]
fn offsets_may_change_between_launches_of_a_binding() {
    let inputs = pinned(&mixed(), |pins| pins.segment_chunks = Some(1)).with_device_offsets();
    on_some_engines(|device| {
        let text = |error: bakewell::Error| error.to_string();
        let placed = Inputs { place: Place::Packed, ..inputs.clone() };
        let staged = Staged::new(device, &placed).map_err(text)?;
        let bound = staged.bind().map_err(text)?;
        let launch = || bound.iter().try_for_each(|bound| bound.launch(Stream::DEFAULT)).map_err(text);
        launch()?;
        for offsets in [[0, 0, 0, 0, 73], [0, 64, 70, 70, 73]] {
            staged.set_offsets(&offsets).map_err(text)?;
            staged.poison().map_err(text)?;
            launch()?;
            let mut anew = inputs.clone();
            anew.offsets = Some(offsets.to_vec());
            anew.problem.sequences = Sequences::Offsets(offsets.to_vec());
            let fresh = outputs(device, &anew, Place::Contiguous)?;
            equal(&format!("{offsets:?}"), &fresh, &staged.outputs().map_err(text)?)?;
        }
        Ok(())
    });
}

/// The rows of a sequence in every output.
fn sequence(inputs: &Inputs, outputs: &Outputs, sequence: usize) -> Vec<(&'static str, Vec<u8>)> {
    let offsets = inputs.offsets.as_ref().unwrap();
    let tokens = offsets[sequence] as usize..offsets[sequence + 1] as usize;
    let rows = outputs.0.iter().map(|(name, tensor)| {
        let by_state = matches!(*name, "ht" | "dh0");
        let count = if by_state { offsets.len() - 1 } else { inputs.problem.tokens as usize };
        let row = tensor.bytes.len() / count;
        let range = if by_state { sequence..sequence + 1 } else { tokens.clone() };
        (*name, tensor.bytes[range.start * row..range.end * row].to_vec())
    });
    rows.collect()
}

/// The sequence alone, as a problem of its own.
fn alone(inputs: &Inputs, sequence: usize) -> Inputs {
    let offsets = inputs.offsets.as_ref().unwrap();
    let tokens = offsets[sequence]..offsets[sequence + 1];
    let cut = |tensor: &HostTensor, dimension: usize, range: std::ops::Range<u64>| {
        let row = tensor.bytes.len() as u64 / tensor.shape[dimension];
        let mut shape = tensor.shape.clone();
        shape[dimension] = range.end - range.start;
        let bytes = tensor.bytes[(range.start * row) as usize..(range.end * row) as usize].to_vec();
        HostTensor { bytes, shape, ..tensor.clone() }
    };
    let rows = |tensor: &HostTensor| cut(tensor, 1, tokens.clone());
    let state = |tensor: &Option<HostTensor>| {
        tensor.as_ref().map(|tensor| cut(tensor, 0, sequence as u64..sequence as u64 + 1))
    };
    let mut alone = inputs.clone();
    (alone.q, alone.k, alone.v) = (rows(&inputs.q), rows(&inputs.k), rows(&inputs.v));
    (alone.g, alone.beta, alone.d_o) = (rows(&inputs.g), rows(&inputs.beta), inputs.d_o.as_ref().map(rows));
    (alone.h0, alone.dht) = (state(&inputs.h0), state(&inputs.dht));
    alone.problem.tokens = tokens.end - tokens.start;
    alone.offsets = Some(vec![0, alone.problem.tokens]);
    alone.problem.sequences = Sequences::Offsets(vec![0, alone.problem.tokens]);
    alone
}

#[test]
fn neighbours_do_not_matter() {
    let inputs = mixed();
    on_some_engines(|device| {
        let together = outputs(device, &inputs, Place::Contiguous)?;
        for i in [0, 2, 3] {
            let single = alone(&inputs, i);
            let apart = outputs(device, &single, Place::Contiguous)?;
            if sequence(&inputs, &together, i) != sequence(&single, &apart, 0) {
                return Err(format!("sequence {i} alone has other bits"));
            }
        }
        Ok(())
    });
}

/// NaN and infinities in everything of one sequence stay there.
#[test]
fn another_sequences_nan_does_not_leak() {
    let clean = mixed();
    let mut foul = clean.clone();
    // Sequence 2: tokens 65 to 67, between two others in the same memory.
    for tensor in [&mut foul.q, &mut foul.k, &mut foul.v, &mut foul.g, &mut foul.beta] {
        poison_rows(tensor);
    }
    foul.d_o.iter_mut().for_each(poison_rows);
    for state in [&mut foul.h0, &mut foul.dht].into_iter().flatten() {
        let row = state.bytes.len() / 4;
        state.bytes[2 * row..3 * row].fill(0xFF);
    }
    on_some_engines(|device| {
        let (before, after) = (outputs(device, &clean, Place::Packed)?, outputs(device, &foul, Place::Packed)?);
        for i in [0, 1, 3] {
            if sequence(&clean, &before, i) != sequence(&foul, &after, i) {
                return Err(format!("sequence {i} sees the NaN of another"));
            }
        }
        Ok(())
    });
}

fn poison_rows(tensor: &mut HostTensor) {
    let row = tensor.bytes.len() / tensor.shape[1] as usize;
    tensor.bytes[65 * row..68 * row].fill(0xFF);
}

/// A sequence in two calls, the state carried forward and its gradient back: at a chunk's edge the same bits.
#[test]
fn a_sequence_in_two_calls_is_the_sequence() {
    let case = Case {
        lengths: vec![100],
        value_heads: 1,
        initial_state: true,
        final_state: true,
        final_state_gradient: true,
        gates: vec![Gate::Slow],
        pins: Pins { segment_chunks: Some(0), ..Pins::default() },
        ..Case::default()
    };
    let whole = case.inputs().unwrap();
    on_some_engines(|device| {
        if device.runtime().is_none() {
            println!("skipped {device}: its states are f64, and f32 between calls");
            return Ok(());
        }
        let at_once = outputs(device, &whole, Place::Contiguous)?;
        let mut halves = whole.clone();
        halves.offsets = Some(vec![0, 64, 100]);
        let (mut first, mut second) = (alone_of(&halves, &whole, 0), alone_of(&halves, &whole, 1));
        second.h0 = Some(forward_state(device, &first)?);
        let of_second = outputs(device, &second, Place::Contiguous)?;
        first.dht = Some(of_second["dh0"].clone());
        let of_first = outputs(device, &first, Place::Contiguous)?;
        equal_bytes("final state", &at_once["ht"].bytes, &of_second["ht"].bytes)?;
        equal_bytes("gradient of the start state", &at_once["dh0"].bytes, &of_first["dh0"].bytes)?;
        for name in ["o", "dq", "dk", "dv", "dg", "dbeta"] {
            let joined = [of_first[name].bytes.clone(), of_second[name].bytes.clone()].concat();
            equal_bytes(name, &at_once[name].bytes, &joined)?;
        }
        Ok(())
    });
}

/// A part of one sequence, with the whole one's states for now.
fn alone_of(parts: &Inputs, whole: &Inputs, part: usize) -> Inputs {
    let mut stateless = parts.clone();
    (stateless.h0, stateless.dht) = (None, None);
    let mut alone = alone(&stateless, part);
    (alone.h0, alone.dht) = (whole.h0.clone(), whole.dht.clone());
    alone
}

fn forward_state(device: &Device, inputs: &Inputs) -> Result<HostTensor, String> {
    Ok(outputs(device, inputs, Place::Contiguous)?["ht"].clone())
}

fn equal_bytes(what: &str, a: &[u8], b: &[u8]) -> Result<(), String> {
    if a == b { Ok(()) } else { Err(format!("{what}: other bits")) }
}

/// No gates are gates of zero, byte for byte.
#[test]
fn no_gates_are_gates_of_zero() {
    let case = Case { lengths: vec![70, 5], gates: vec![Gate::Zero], initial_state: true, ..Case::default() };
    let zero = case.inputs().unwrap();
    let mut none = zero.clone();
    none.problem.gate = false;
    on_some_engines(|device| {
        let mut gated = outputs(device, &zero, Place::Contiguous)?;
        gated.0.retain(|(name, _)| *name != "dg");
        equal("no gates", &gated, &outputs(device, &none, Place::Contiguous)?)
    });
}

/// Other segments round elsewhere, and stay within the limits.
#[test]
fn other_segments_are_as_good() {
    let inputs = cut();
    let expected = inputs.expected().unwrap();
    on_some_engines(|device| {
        for segment_chunks in [0, 2] {
            let inputs = pinned(&inputs, |pins| pins.segment_chunks = Some(segment_chunks));
            verify(device, &inputs, &expected).map_err(|failure| format!("{segment_chunks} chunks: {failure}"))?;
        }
        Ok(())
    });
}

/// Values four times as large, states too, and an output and its gradient a quarter of it: powers of two pass through
/// every rounding, so that what they cancel in has the same bits. Without the norm, rows of keys and queries likewise.
#[test]
fn powers_of_two_cancel() {
    let scaled = |tensor: &HostTensor, factor: f64| {
        let values: Vec<f64> = tensor.to_f64().unwrap().into_iter().map(|value| value * factor).collect();
        HostTensor::rounded(tensor.dtype, &tensor.shape, &values).unwrap()
    };
    for (l2norm, inputs) in [(true, mixed()), (false, mixed()), (true, cut())] {
        let mut inputs = inputs;
        inputs.problem.l2norm = l2norm;
        let scale = inputs.problem.output_scale();
        let mut larger = inputs.clone();
        larger.v = scaled(&inputs.v, 4.0);
        larger.h0 = inputs.h0.as_ref().map(|h0| scaled(h0, 4.0));
        larger.dht = inputs.dht.as_ref().map(|dht| scaled(dht, 0.25));
        larger.problem.scale = Some(scale * 0.25);
        let query = if l2norm { 1.0 } else { 0.5 };
        larger.q = scaled(&inputs.q, query);
        larger.problem.scale = larger.problem.scale.map(|scale| scale / query as f32);
        on_some_engines(|device| {
            let (first, second) =
                (outputs(device, &inputs, Place::Contiguous)?, outputs(device, &larger, Place::Contiguous)?);
            for (name, tensor) in &first.0 {
                let factor = match *name {
                    "ht" => 4.0,
                    "dv" | "dh0" => 0.25,
                    "dq" => 1.0 / query,
                    _ => 1.0,
                };
                // Not by bits: a zero may change its sign with nothing else.
                let wanted: Vec<f64> = tensor.to_f64().unwrap().into_iter().map(|value| value * factor).collect();
                if second[name].to_f64().unwrap() != wanted {
                    return Err(format!("{name} differs, l2norm {l2norm}"));
                }
            }
            Ok(())
        });
    }
}

/// Two calls whose launches take turns, as on two streams: neither touches what the other works with.
#[test]
fn calls_beside_each_other_keep_their_bits() {
    let pair = [mixed(), cut()];
    on_some_engines(|device| {
        if device.runtime().is_none() {
            println!("skipped {device}: it has no launches");
            return Ok(());
        }
        let alone: Vec<Outputs> =
            pair.iter().map(|inputs| outputs(device, inputs, Place::Contiguous)).collect::<Result<_, _>>()?;
        let staged = pair.each_ref().map(|inputs| Staged::new(device, inputs).unwrap());
        let bound = staged.each_ref().map(|staged| staged.bind().unwrap());
        let launches = staged.each_ref().map(|staged| {
            let backward = staged.backward_plan().and_then(|plan| plan.decision());
            [staged.forward_plan().decision(), backward].map(|decision| decision.map_or(0, |plan| plan.steps.len()))
        });
        for pass in 0..2 {
            for launch in 0..launches[0][pass].max(launches[1][pass]) {
                for call in (0..2).filter(|&call| launch < launches[call][pass]) {
                    bound[call][pass].launch_kernel(launch, Stream::DEFAULT).unwrap();
                }
            }
        }
        device.synchronize(Stream::DEFAULT).unwrap();
        for (alone, staged) in alone.iter().zip(&staged) {
            equal("beside another", alone, &staged.outputs().unwrap())?;
        }
        Ok(())
    });
}
