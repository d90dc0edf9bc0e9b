//! Stages of a backward.

use bakewell::emulator::CompletionPolicy;
use bakewell::schedule::gdn::{Engine, Stage};
use bakewell::{Arch, Buffer, Device};
use bakewell_reference::gdn::{Gdn as Problem, adjoint as reference_adjoint};
use half::bf16;

use super::forward::emulated;
use super::gradients::{Backward, Upstream, segment_gradient};
use super::inputs::{CHUNK, Case, DIM, Gates, Inputs};
use super::model::Forward;
use super::staged::{Staged, to_f32, values};
use super::staged_backward::{Gradients, Returned};
use super::{check, compact};

/// A case, with everything that is known about it.
pub(super) struct Known {
    pub(super) inputs: Inputs,
    pub(super) upstream: Upstream,
    pub(super) forward: Forward,
    pub(super) backward: Backward,
}

impl Known {
    pub(super) fn new(case: &Case, dht: bool) -> Known {
        Known::of(Inputs::new(case), dht)
    }

    fn of(inputs: Inputs, dht: bool) -> Known {
        let upstream = Upstream::new(&inputs, dht);
        let forward = Forward::of(&inputs);
        let backward = Backward::of(&inputs, &forward, &upstream);
        Known { inputs, upstream, forward, backward }
    }

    pub(super) fn returned<'a>(&self, staged: &'a Staged<'a>) -> Returned<'a> {
        staged.prepare_from(&self.forward).unwrap();
        Returned::new(staged, &self.upstream).unwrap()
    }
}

/// Cases of both stages, with or without a gradient of the final state.
pub(super) fn cases() -> Vec<(Case, bool)> {
    vec![
        (Case { lengths: &[64], ..Case::default() }, false),
        (Case { lengths: &[1, 0, 63, 65], h0: true, l2norm: true, packed: true, ..Case::default() }, true),
        (
            Case {
                heads: 2,
                value_heads: 4,
                lengths: &[70, 17],
                l2norm: true,
                beta_bf16: true,
                packed: true,
                ..Case::default()
            },
            false,
        ),
        (
            Case {
                value_heads: 3,
                lengths: &[100],
                l2norm: true,
                beta_max: 2.0,
                gates: Gates::Zero,
                h0: true,
                ..Case::default()
            },
            true,
        ),
        (Case { value_heads: 4, lengths: &[33], packed: true, ..Case::default() }, false),
        (Case { lengths: &[130], gates: Gates::Strong, h0: true, l2norm: true, scale: 1.0, ..Case::default() }, true),
        (Case { lengths: &[129], gates: Gates::Cliff, value_heads: 2, ..Case::default() }, true),
        (Case { lengths: &[200], gates: Gates::Slow, l2norm: true, beta_max: 2.0, ..Case::default() }, false),
    ]
}

/// The chunkwise backward is the adjoint of the recurrence: what the stages are held against is right.
#[test]
fn the_model_is_the_adjoint() {
    for (case, dht) in cases() {
        let Known { inputs, upstream, backward, .. } = Known::new(&case, dht);
        let mut offsets = vec![0];
        offsets.extend(case.lengths.iter().scan(0, |sum, length| {
            *sum += length;
            Some(*sum)
        }));
        let [q, k, v, g, beta] =
            [&inputs.q, &inputs.k, &inputs.v, &inputs.g, &inputs.beta].map(|x| compact(&inputs, x));
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
        let grad_o = compact(&inputs, &upstream.grad_o);
        let reference = reference_adjoint(&problem, &grad_o, upstream.dht.as_deref()).unwrap();
        let same = |name: &str, got: &[f64], want: &[f64]| {
            check(&format!("{case:?} {name}"), &compact(&inputs, got), want, 1e-11, 1e-11);
        };
        same("dq", &backward.dq, &reference.dq);
        same("dk", &backward.dk, &reference.dk);
        same("dv", &backward.dv, &reference.dv);
        same("dg", &backward.dg, &reference.dg);
        same("dbeta", &backward.dbeta, &reference.dbeta);
        check(&format!("{case:?} dh0"), &backward.dh0, &reference.dh0, 1e-11, 1e-11);
    }
}

/// Limits of the rms ratio: what bf16 operands cost (`specs/gdn.md`, 3.5), and of the largest error.
const LARGEST: f64 = 0.03;

/// Runs every program of the stage on registers and holds it against the model; all give the same bits.
fn adjoint(device: &Device, known: &Known) {
    adjoint_on(Engine::Registers, device, known);
}

/// The same of any engine.
pub(super) fn adjoint_on(engine: Engine, device: &Device, known: &Known) {
    let Known { inputs, backward, .. } = known;
    let staged = Staged::new(device, inputs).unwrap();
    let returned = known.returned(&staged);
    let start = known.segment_starts(device);
    let mut first: Option<[Vec<u8>; 3]> = None;
    for schedule in staged.schedules_on(engine, Stage::Adjoint) {
        let what = |tensor: &str| format!("{device} {} {tensor} of {:?}", schedule.name, inputs.case);
        let scanned =
            returned.adjoint(schedule, start.as_ref()).unwrap_or_else(|error| panic!("{}: {error}", what("launch")));
        check(&what("dVb"), &values::<bf16>(&scanned.dv), &backward.dvb, 0.011, LARGEST);
        let dh = values::<bf16>(&scanned.dh);
        let (dh, padding) = dh.split_at(backward.dh.len());
        check(&what("dh"), dh, &backward.dh, 0.006, LARGEST);
        assert!(padding.iter().all(|value| value.is_nan()), "{}", what("padding"));
        check(&what("dh0"), &values::<f32>(&scanned.dh0), &backward.dh0, 0.006, LARGEST);
        let bytes = [&scanned.dv, &scanned.dh, &scanned.dh0].map(|buffer| buffer.read().unwrap());
        assert!(*first.get_or_insert_with(|| bytes.clone()) == bytes, "{}", what("other bits than the first"));
    }
    assert!(first.is_some(), "no program of the stage");
}

impl Known {
    /// The gradient of the state after every segment, as a composition would give it.
    fn segment_starts(&self, device: &Device) -> Option<Buffer> {
        self.inputs.case.segment_chunks?;
        let value_heads = self.inputs.case.value_heads;
        let (segments, _) = self.inputs.segments();
        let mut start = vec![f64::NAN; segments.len() * value_heads * DIM * DIM];
        for (index, segment) in segments.iter().enumerate().filter(|(_, segment)| segment.chunks > 0) {
            let last = (segment.first_chunk + segment.chunks - 1) as usize;
            let states = value_heads * DIM * DIM;
            start[index * states..][..states].copy_from_slice(&self.backward.dh[last * states..][..states]);
        }
        Some(device.upload(&to_f32(&start)).unwrap())
    }
}

#[test]
fn adjoints_give_the_gradient_of_every_state() {
    for (seed, (case, dht)) in cases().iter().enumerate() {
        let policy = [CompletionPolicy::Random, CompletionPolicy::Lazy, CompletionPolicy::Eager][seed % 3];
        adjoint(&emulated(Arch::Sm90, seed as u64, policy), &Known::new(case, *dht));
    }
}

#[test]
fn adjoints_start_at_segments() {
    let case = Case { lengths: &[65, 0, 260], h0: true, l2norm: true, segment_chunks: Some(2), ..Case::default() };
    adjoint(&emulated(Arch::Sm90, 3, CompletionPolicy::Lazy), &Known::new(&case, true));
}

#[test]
fn adjoints_are_the_same_on_every_architecture() {
    let case = Case { value_heads: 2, lengths: &[1, 66], l2norm: true, h0: true, packed: true, ..Case::default() };
    let known = Known::new(&case, true);
    for arch in Arch::ALL {
        adjoint(&emulated(arch, 1, CompletionPolicy::Eager), &known);
    }
}

/// On Hopper's warpgroup products: the same cases, more chunks than any ring holds, and segments.
#[test]
fn adjoints_on_warpgroup_products() {
    for (seed, (case, dht)) in cases().iter().enumerate() {
        adjoint_on(
            Engine::Wgmma,
            &emulated(Arch::Sm90, seed as u64, CompletionPolicy::Random),
            &Known::new(case, *dht),
        );
    }
    let long = Case { lengths: &[390], l2norm: true, packed: true, ..Case::default() };
    adjoint_on(Engine::Wgmma, &emulated(Arch::Sm90, 1, CompletionPolicy::Eager), &Known::new(&long, true));
    let cut = Case { lengths: &[65, 0, 260], h0: true, l2norm: true, segment_chunks: Some(2), ..Case::default() };
    adjoint_on(Engine::Wgmma, &emulated(Arch::Sm90, 3, CompletionPolicy::Lazy), &Known::new(&cut, true));
}

/// The gradient of a segment from zero: of every segment that has one before it, and of no other.
#[test]
fn adjoint_pre_scans_give_the_gradient_of_segments() {
    let case =
        Case { lengths: &[30, 0, 200], l2norm: true, gates: Gates::Slow, segment_chunks: Some(2), ..Case::default() };
    let known = Known::new(&case, true);
    let Known { inputs, forward, upstream, .. } = &known;
    let device = emulated(Arch::Sm90, 4, CompletionPolicy::Random);
    let staged = Staged::new(&device, inputs).unwrap();
    let returned = known.returned(&staged);
    for schedule in staged.schedules(Stage::Adjoint) {
        let g = values::<f32>(&returned.adjoint_pre_scan(schedule, None).unwrap());
        for (segment, got) in inputs.segments().0.iter().zip(g.chunks_exact(DIM * DIM)) {
            let what = format!("{} G of {segment:?}", schedule.name);
            if segment.sequence < 0 || segment.index == 0 {
                assert!(got.iter().all(|value| value.is_nan()), "{what} is written");
            } else {
                check(&what, got, &segment_gradient(inputs, forward, upstream, segment, 0), 0.006, LARGEST);
            }
        }
    }
}

/// Chunks that forget what is before them are not read: rows of NaN there do not matter.
#[test]
fn adjoint_pre_scans_pass_over_what_is_forgotten() {
    let case = Case { lengths: &[400], l2norm: true, segment_chunks: Some(4), ..Case::default() };
    let mut known = Known::new(&case, false);
    let segment = known.inputs.segments().0[1];
    let last = segment.first_chunk as usize + segment.chunks as usize - 1;
    let fades: f64 = known.forward.fade[segment.first_chunk as usize..last].iter().sum();
    let wanted = segment_gradient(&known.inputs, &known.forward, &known.upstream, &segment, 0);
    known.upstream.grad_o[last * CHUNK * DIM] = f64::NAN;
    let device = emulated(Arch::Sm90, 1, CompletionPolicy::Random);
    let staged = Staged::new(&device, &known.inputs).unwrap();
    let returned = known.returned(&staged);
    for schedule in staged.schedules(Stage::Adjoint) {
        // What three chunks leave is forgotten, what two leave is not.
        let g = values::<f32>(&returned.adjoint_pre_scan(schedule, Some(0.9 * fades as f32)).unwrap());
        check(schedule.name, &g[DIM * DIM..2 * DIM * DIM], &wanted, 0.006, LARGEST);
        let g = values::<f32>(&returned.adjoint_pre_scan(schedule, Some(1.1 * fades as f32)).unwrap());
        assert!(g[DIM * DIM..2 * DIM * DIM].iter().any(|value| value.is_nan()), "{}", schedule.name);
    }
}

/// Holds gradients against the model.
fn check_gradients(what: &str, known: &Known, gradients: &Gradients) {
    let Known { inputs, backward, .. } = known;
    let case = &inputs.case;
    let what = |tensor: &str| format!("{what} {tensor} of {case:?}");
    check(&what("dq"), &values::<bf16>(&gradients.dq), &backward.dq, 0.008, LARGEST);
    check(&what("dk"), &values::<bf16>(&gradients.dk), &backward.dk, 0.009, LARGEST);
    check(&what("dv"), &values::<bf16>(&gradients.dv), &backward.dv, 0.011, LARGEST);
    let dbeta = if case.beta_bf16 { values::<bf16>(&gradients.dbeta) } else { values::<f32>(&gradients.dbeta) };
    check(&what("dbeta"), &dbeta, &backward.dbeta, 0.015, LARGEST);
    // Of each head by itself: where one decays strongly, its gradients are small.
    let dg = values::<f32>(&gradients.dg);
    for head in 0..case.value_heads {
        let of_head = |dg: &[f64]| -> Vec<f64> { dg.iter().skip(head).step_by(case.value_heads).copied().collect() };
        check(&what(&format!("dg[{head}]")), &of_head(&dg), &of_head(&backward.dg), 0.016, LARGEST);
    }
}

/// The tail of registers on what the model hands to it; `ctas` of it.
fn tail(device: &Device, known: &Known, ctas: usize) -> Vec<Vec<u8>> {
    tail_on(Engine::Registers, device, known, ctas)
}

/// The same of any engine.
fn tail_on(engine: Engine, device: &Device, known: &Known, ctas: usize) -> Vec<Vec<u8>> {
    let staged = Staged::new(device, &known.inputs).unwrap();
    let returned = known.returned(&staged);
    let schedule = staged.schedules_on(engine, Stage::Tail).next().expect("a program of the stage");
    let adjoint = returned.adjoint_from(&known.backward).unwrap();
    let tape = returned.tape_from(&known.forward).unwrap();
    let gradients = returned.tail(schedule, adjoint, &tape, ctas).unwrap_or_else(|error| panic!("{device}: {error}"));
    check_gradients(&format!("{device} {}", schedule.name), known, &gradients);
    gradients.bytes()
}

/// Of every case.
fn tails(engine: Engine) {
    for (seed, (case, dht)) in cases().iter().enumerate() {
        let policy = [CompletionPolicy::Lazy, CompletionPolicy::Eager, CompletionPolicy::Random][seed % 3];
        tail_on(engine, &emulated(Arch::Sm90, seed as u64, policy), &Known::new(case, *dht), 2);
    }
}

#[test]
fn tails_give_gradients() {
    tails(Engine::Registers);
}

#[test]
fn tails_on_warpgroup_products() {
    tails(Engine::Wgmma);
}

#[test]
fn tails_are_the_same_on_every_architecture() {
    let case = Case { value_heads: 2, lengths: &[1, 66], l2norm: true, h0: true, packed: true, ..Case::default() };
    let known = Known::new(&case, true);
    for arch in Arch::ALL {
        tail(&emulated(arch, 1, CompletionPolicy::Random), &known, 3);
    }
}

/// Who works on what, and when, changes no bit.
fn same_on_every_grid(engine: Engine) {
    let case = Case { heads: 2, value_heads: 4, lengths: &[70, 66], l2norm: true, ..Case::default() };
    let known = Known::new(&case, false);
    let once = tail_on(engine, &emulated(Arch::Sm90, 1, CompletionPolicy::Lazy), &known, 1);
    for (seed, ctas) in [(2, 3), (3, 8), (4, 100)] {
        let again = tail_on(engine, &emulated(Arch::Sm90, seed, CompletionPolicy::Random), &known, ctas);
        assert!(once == again, "{ctas} CTAs give other bits");
    }
}

#[test]
fn tails_do_not_depend_on_the_grid() {
    same_on_every_grid(Engine::Registers);
}

#[test]
fn tails_on_warpgroup_products_do_not_depend_on_the_grid() {
    same_on_every_grid(Engine::Wgmma);
}

/// Where beta vanishes nothing divides by it.
#[test]
fn gradients_of_vanishing_betas() {
    let case = Case { value_heads: 2, lengths: &[90], l2norm: true, h0: true, ..Case::default() };
    let mut inputs = Inputs::new(&case);
    for (row, betas) in inputs.beta.chunks_exact_mut(2).enumerate().take(90) {
        betas[0] = [0.0, 1e-20, 0.5, -0.0, 1.0][row % 5];
        betas[1] = 0.0;
    }
    let known = Known::of(inputs, true);
    for engine in [Engine::Registers, Engine::Wgmma] {
        let gradients = tail_on(engine, &emulated(Arch::Sm90, 1, CompletionPolicy::Random), &known, 2);
        let dv = &gradients[2];
        let of_zero = dv.chunks_exact(DIM * 2).skip(1).step_by(2).take(90);
        assert!(of_zero.flatten().all(|byte| byte & 0x7F == 0), "dv of a beta of zero is zero");
    }
}

/// Adjoint and tail one after the other, each program of the scan.
#[test]
fn backward_of_stages() {
    let case = Case {
        value_heads: 2,
        lengths: &[129, 5],
        h0: true,
        l2norm: true,
        gates: Gates::Slow,
        packed: true,
        seed: 7,
        ..Case::default()
    };
    let known = Known::new(&case, true);
    let device = emulated(Arch::Sm90, 5, CompletionPolicy::Random);
    let staged = Staged::new(&device, &known.inputs).unwrap();
    let returned = known.returned(&staged);
    let tape = returned.tape_from(&known.forward).unwrap();
    let tail = staged.schedules(Stage::Tail).next().expect("a program of the stage");
    for schedule in staged.schedules(Stage::Adjoint) {
        let scanned = returned.adjoint(schedule, None).unwrap();
        let gradients = returned.tail(tail, scanned, &tape, 4).unwrap();
        check_gradients(schedule.name, &known, &gradients);
    }
}
