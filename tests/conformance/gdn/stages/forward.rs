//! Stages of a forward.

use bakewell::emulator::{CompletionPolicy, Options, Target};
use bakewell::schedule::gdn::Stage;
use bakewell::{Arch, Device};
use bakewell_reference::gdn::{Gdn as Problem, recurrence};
use half::bf16;

use super::check;
use super::inputs::{CHUNK, Case, DIM, Gates, Inputs};
use super::model::Forward;
use super::staged::{Staged, values};

/// A device with every check on.
fn emulated(arch: Arch, seed: u64, policy: CompletionPolicy) -> Device {
    let target = Target::parse(arch.target()).expect("every architecture is a target");
    let mut options = Options { seed, policy, ..Options::new(target) };
    options.checks.read_fences = true;
    Device::emulated_with(arch, options).unwrap()
}

/// The cases that a stage is tested with on sm90; what they have in common is told by [`Case::default`].
fn cases() -> Vec<Case> {
    vec![
        Case { lengths: &[64], ..Case::default() },
        Case { lengths: &[1, 0, 63, 65], h0: true, l2norm: true, packed: true, ..Case::default() },
        Case {
            heads: 2,
            value_heads: 4,
            lengths: &[70, 17],
            l2norm: true,
            beta_bf16: true,
            packed: true,
            ..Case::default()
        },
        Case {
            value_heads: 3,
            lengths: &[100],
            l2norm: true,
            beta_max: 2.0,
            gates: Gates::Zero,
            h0: true,
            ..Case::default()
        },
        Case { lengths: &[130], gates: Gates::Strong, h0: true, l2norm: true, scale: 1.0, ..Case::default() },
        Case { lengths: &[129], gates: Gates::Cliff, value_heads: 2, ..Case::default() },
        Case { lengths: &[200], gates: Gates::Slow, l2norm: true, beta_max: 2.0, ..Case::default() },
    ]
}

/// The chunkwise model is the recurrence: what the stages are held against is right.
#[test]
fn the_model_is_the_recurrence() {
    for case in cases() {
        let inputs = Inputs::new(&case);
        let model = Forward::of(&inputs);
        let compact = |tensor: &[f64]| -> Vec<f64> {
            let rows = tensor.chunks_exact(tensor.len() / inputs.rows).enumerate();
            rows.filter(|(row, _)| inputs.is_inside(*row)).flat_map(|(_, row)| row.to_vec()).collect()
        };
        let mut offsets = vec![0];
        offsets.extend(case.lengths.iter().scan(0, |sum, length| {
            *sum += length;
            Some(*sum)
        }));
        let [q, k, v, g, beta] = [&inputs.q, &inputs.k, &inputs.v, &inputs.g, &inputs.beta].map(|x| compact(x));
        let problem = Problem {
            heads: case.heads,
            value_heads: case.value_heads,
            head_dim: DIM,
            scale: f64::from(case.scale),
            l2norm: case.l2norm,
            offsets: &offsets,
            q: &q,
            k: &k,
            v: &v,
            g: &g,
            beta: &beta,
            h0: inputs.h0.as_deref(),
        };
        let reference = recurrence(&problem).unwrap();
        check(&format!("{case:?} o"), &compact(&model.o), &reference.o, 1e-12, 1e-12);
        check(&format!("{case:?} ht"), &model.ht, &reference.ht, 1e-12, 1e-12);
    }
}

fn prepare(device: &Device, case: &Case) {
    let inputs = Inputs::new(case);
    let model = Forward::of(&inputs);
    let staged = Staged::new(device, &inputs).unwrap();
    for schedule in staged.schedules(Stage::Prepare) {
        let what = |tensor: &str| format!("{device} {} {tensor} of {case:?}", schedule.name);
        staged.prepare(schedule).unwrap_or_else(|error| panic!("{}: {error}", what("launch")));
        // A sum of 128 squares and an approximate root: 2^-24 (log2(128) + 2) and 2^-22.
        check(&what("rk"), &values::<f32>(&staged.rk), &model.rk, 1e-6, 1e-6);
        // Without the norm nothing reads q.
        check(&what("rq"), &values::<f32>(&staged.rq), &model.rq, 1e-6, 1e-6);
        // Six additions in f32.
        check(&what("gate"), &values::<f32>(&staged.gate), &model.gate, 6e-7, 6e-7);
        let a = values::<bf16>(&staged.a);
        let (a, padding) = a.split_at(model.a.len());
        // Rounded to bf16, 2^-9; products of split operands stay below 1.8e-4 of the largest.
        check(&what("a"), a, &model.a, 3e-3, 4e-3);
        for (a, matrix) in a.chunks_exact(CHUNK * CHUNK).zip(model.a.chunks_exact(CHUNK * CHUNK)) {
            let exact = |i: usize| i / CHUNK <= i % CHUNK;
            assert!((0..CHUNK * CHUNK).filter(|&i| exact(i)).all(|i| a[i] == matrix[i]), "{}", what("triangle"));
        }
        assert!(padding.iter().all(|value| value.is_nan()), "{}", what("padding"));
    }
}

#[test]
fn prepare_gives_norms_gates_and_inverses() {
    for (seed, case) in cases().iter().enumerate() {
        prepare(&emulated(Arch::Sm90, seed as u64, CompletionPolicy::Random), case);
    }
}

#[test]
fn prepare_is_the_same_on_every_architecture() {
    let case = Case { value_heads: 2, lengths: &[1, 66], l2norm: true, ..Case::default() };
    for arch in Arch::ALL {
        prepare(&emulated(arch, 1, CompletionPolicy::Lazy), &case);
        prepare(&emulated(arch, 2, CompletionPolicy::Eager), &case);
    }
}
