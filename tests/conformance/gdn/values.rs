//! Goldens and generated cases on every engine.

use bakewell_conformance::gdn::{Case, Gate, Keys, Limits, Place, Ratios, Write, judge};
use bakewell_tests::cases;

use super::{goldens, on_some_engines, outputs, verify};

/// The recurrence in f64 against outputs in f32 of another one: a rounding apart.
#[test]
fn the_reference_agrees_with_every_golden() {
    let goldens = goldens();
    assert_eq!(goldens.len(), 10);
    for golden in goldens {
        let expected = golden.inputs.expected().unwrap();
        for (name, want) in &golden.expected {
            let ratios = Ratios::of(&expected[name], want);
            assert!(ratios.max < 1e-6, "{}: {name} {ratios:?}", golden.name);
        }
    }
}

#[test]
fn every_golden_is_met() {
    let goldens = goldens();
    on_some_engines(|device| {
        for golden in &goldens {
            let judgement = verify(device, &golden.inputs, &golden.expected)
                .map_err(|failure| format!("{}: {failure}", golden.name))?;
            for (name, ratios) in judgement.ratios {
                println!("{device} {}: {name} rms {:.1e}, max {:.1e}", golden.name, ratios.rms, ratios.max);
            }
        }
        Ok(())
    });
}

/// Without a tape, as in inference: the same outputs.
#[test]
fn every_golden_is_met_without_a_tape() {
    let goldens = goldens();
    on_some_engines(|device| {
        for golden in &goldens {
            let mut inputs = golden.inputs.clone();
            (inputs.d_o, inputs.dht, inputs.problem.training) = (None, None, false);
            let mut expected = golden.expected.clone();
            expected.retain(|name, _| matches!(*name, "o" | "ht"));
            let judgement =
                verify(device, &inputs, &expected).map_err(|failure| format!("{}: {failure}", golden.name))?;
            for (name, ratios) in judgement.ratios {
                println!("{device} {}: {name} rms {:.1e}, max {:.1e}", golden.name, ratios.rms, ratios.max);
            }
        }
        Ok(())
    });
}

#[test]
fn every_generated_case_is_met() {
    let prepared: Vec<_> = cases::<Vec<Case>>("gdn")
        .into_iter()
        .map(|case| {
            let inputs = case.inputs().unwrap();
            let expected = inputs.expected().unwrap();
            (case.name, inputs, expected)
        })
        .collect();
    on_some_engines(|device| {
        for (name, inputs, expected) in &prepared {
            let judgement = verify(device, inputs, expected).map_err(|failure| format!("{name}: {failure}"))?;
            for (output, ratios) in judgement.ratios {
                println!("{device} {name}: {output} rms {:.1e}, max {:.1e}", ratios.rms, ratios.max);
            }
        }
        Ok(())
    });
}

/// One key again and again, written in full and never decaying: entries of the inverse are 1 and -1 in turn. Emulating
/// the kernels' roundings gives 1.5e-2 for `o` and 2.0e-2 for `dq` here, 1.5 and 2.4 times the limits, so three times
/// the limits. Without gates: each write replaces all of the state, and the gradient of a gate would be zero.
#[test]
fn the_worst_conditioned_inverse_stays_close() {
    let case = Case {
        lengths: vec![80],
        value_heads: 1,
        gates: vec![Gate::Zero],
        keys: Keys::Repeated,
        write: Write::One,
        ..Case::default()
    };
    let mut inputs = case.inputs().unwrap();
    inputs.problem.gate = false;
    let expected = inputs.expected().unwrap();
    on_some_engines(|device| {
        let outputs = outputs(device, &inputs, Place::Contiguous)?;
        let judgement = judge(&inputs, &outputs, &expected, device.arch()).unwrap();
        assert_eq!(judgement.ratios.len(), 5);
        for (name, ratios) in judgement.ratios {
            let limits = Limits::of(name, outputs[name].dtype, device.arch());
            if ratios.rms > 3.0 * limits.rms || ratios.max > 3.0 * limits.max {
                return Err(format!("{name}: {ratios:?}"));
            }
        }
        Ok(())
    });
}
