//! Wrong results, as a kernel with a wrong index, sign or factor would give: the limits must notice.

use bakewell::gdn::Sequences;
use bakewell::{Arch, Device};
use bakewell_conformance::gdn::{Case, Expected, Gate, Inputs, judge, run};
use bakewell_conformance::{HostTensor, Outputs};

fn inputs() -> Inputs {
    let case = Case {
        lengths: vec![40, 70],
        initial_state: true,
        final_state: true,
        final_state_gradient: true,
        gates: vec![Gate::Mild, Gate::Strong],
        ..Case::default()
    };
    case.inputs().unwrap()
}

/// What the reference makes of inputs, rounded as outputs are.
fn made(inputs: &Inputs) -> Outputs {
    run(&Device::reference().unwrap(), inputs).unwrap().outputs
}

/// Whether the limits of a device with programs accept outputs for the right inputs.
fn accepts(right: &Inputs, expected: &Expected, outputs: &Outputs) -> bool {
    judge(right, outputs, expected, Some(Arch::Sm90)).unwrap().failure.is_none()
}

fn scaled(outputs: &mut Outputs, name: &'static str, factor: f64) {
    let tensor = &outputs[name];
    let values: Vec<f64> = tensor.to_f64().unwrap().into_iter().map(|x| x * factor).collect();
    *outputs.get_mut(name).unwrap() = HostTensor::rounded(tensor.dtype, &tensor.shape, &values).unwrap();
}

#[test]
fn wrong_outputs_are_refused() {
    let right = inputs();
    let (expected, made) = (right.expected().unwrap(), made(&right));
    let accepts_changed = |change: &dyn Fn(&mut Outputs)| {
        let mut outputs = made.clone();
        change(&mut outputs);
        accepts(&right, &expected, &outputs)
    };
    assert!(accepts_changed(&|_| ()), "the right ones are accepted");
    for name in ["o", "ht", "dq", "dk", "dv", "dg", "dbeta", "dh0"] {
        assert!(!accepts_changed(&|outputs| scaled(outputs, name, 1.02)), "{name} off by 2 %");
        assert!(!accepts_changed(&|outputs| outputs.get_mut(name).unwrap().bytes.fill(0xFF)), "{name} not written");
        assert!(!accepts_changed(&|outputs| outputs.0.retain(|(there, _)| *there != name)), "{name} missing");
    }
    // The strong head's gate gradients are far smaller than the weak head's: only the judgement per head sees them.
    let wrong_head = |outputs: &mut Outputs| {
        let dg = outputs.get_mut("dg").unwrap();
        dg.bytes.chunks_exact_mut(8).for_each(|heads| heads[4..].fill(0));
    };
    assert!(!accepts_changed(&wrong_head), "dg of the second head");
}

#[test]
fn wrong_readings_of_the_inputs_are_refused() {
    let right = inputs();
    let expected = right.expected().unwrap();
    let boundary = |i: &mut Inputs| {
        i.offsets = Some(vec![0, 41, 110]);
        i.problem.sequences = Sequences::Offsets(vec![0, 41, 110]);
    };
    let changes: [(&str, Change<'_>); 8] = [
        ("scale off by 2 %", &|i| i.problem.scale = Some(0.0902)),
        ("queries of another token", &|i| i.q.bytes.rotate_left(256)),
        ("values of another head", &|i| i.v.bytes.rotate_left(256)),
        ("gates of another head", &|i| i.g.bytes.rotate_left(4)),
        ("write strengths of another head", &|i| i.beta.bytes.rotate_left(4)),
        ("no norm", &|i| i.problem.l2norm = false),
        ("a token in another sequence", &boundary),
        ("values before keys in the start state", &|i| transpose(&mut i.h0.as_mut().unwrap().bytes)),
    ];
    for (what, change) in changes {
        let mut wrong = right.clone();
        change(&mut wrong);
        assert!(!accepts(&right, &expected, &made(&wrong)), "{what}");
    }
}

type Change<'c> = &'c dyn Fn(&mut Inputs);

/// Swaps keys and values of every state.
fn transpose(states: &mut [u8]) {
    for state in states.chunks_exact_mut(128 * 128 * 4) {
        let natural = state.to_vec();
        for (row, column) in (0..128).flat_map(|row| (0..128).map(move |column| (row, column))) {
            let (from, to) = ((column * 128 + row) * 4, (row * 128 + column) * 4);
            state[to..to + 4].copy_from_slice(&natural[from..from + 4]);
        }
    }
}
