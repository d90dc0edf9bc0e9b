//! Stages of a forward.

use bakewell::emulator::CompletionPolicy;
use bakewell::schedule::gdn::prepare::value_heads;
use bakewell::schedule::gdn::{Engine, Gdn, Segment, Stage};
use bakewell::{Arch, Device};
use bakewell_conformance::random::Random;
use bakewell_reference::gdn::{Gdn as Problem, recurrence};
use bakewell_tests::emulated::device;
use half::bf16;

use super::check;
use super::inputs::{CHUNK, Case, DIM, Gates, Inputs};
use super::model::{Forward, SegmentMap, transposed};
use super::staged::{Maps, Staged, to_f32, values};

/// A device with every check on.
pub(super) fn emulated(arch: Arch, seed: u64, policy: CompletionPolicy) -> Device {
    device(arch, |options| (options.seed, options.policy) = (seed, policy))
}

/// The cases that a stage is tested with on sm90; what they have in common is told by [`Case::default`].
pub(super) fn cases() -> Vec<Case> {
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
    let group = (case.value_heads / case.heads) as u32;
    let staged = Staged::new(device, &inputs).unwrap();
    let of_group = staged.schedules_on(Engine::Wgmma, Stage::Prepare);
    let of_group = of_group.filter(|schedule| group.is_multiple_of(value_heads(schedule)));
    for schedule in staged.schedules(Stage::Prepare).chain(of_group) {
        // Nothing of another program counts.
        let staged = Staged::new(device, &inputs).unwrap();
        let what = |tensor: &str| format!("{device} {} {tensor} of {case:?}", schedule.name);
        staged.prepare(schedule).unwrap_or_else(|error| panic!("{}: {error}", what("launch")));
        // Eight sums on tensor cores, each cut at 2^-23, half of which the root leaves, and an approximate root: 2^-22.
        check(&what("rk"), &values::<f32>(&staged.rk), &model.rk, 1e-6, 1e-6);
        // Without the norm nothing reads q.
        check(&what("rq"), &values::<f32>(&staged.rq), &model.rq, 1e-6, 1e-6);
        // Six additions in f32.
        check(&what("gate"), &values::<f32>(&staged.gate), &model.gate, 6e-7, 6e-7);
        let a = values::<bf16>(&staged.a);
        let (a, padding) = a.split_at(model.a.len());
        // Rounded to bf16, 2^-9; products of split operands stay below 1.8e-4 of the largest.
        check(&what("a"), a, &model.a, 3e-3, 4e-3);
        let fade = values::<f32>(&staged.fade);
        let (fade, unwritten) = fade.split_at(model.fade.len());
        check(&what("fade"), fade, &model.fade, 6e-7, 6e-7);
        assert!(unwritten.iter().all(|value| value.is_nan()), "{}", what("padding"));
        for (a, matrix) in a.chunks_exact(CHUNK * CHUNK).zip(model.a.chunks_exact(CHUNK * CHUNK)) {
            let exact = |i: usize| i / CHUNK <= i % CHUNK;
            assert!((0..CHUNK * CHUNK).filter(|&i| exact(i)).all(|i| a[i] == matrix[i]), "{}", what("triangle"));
        }
        assert!(padding.iter().all(|value| value.is_nan()), "{}", what("padding"));
    }
}

/// Groups that are one CTA, or two: of three heads, and of four.
fn groups() -> Vec<Case> {
    let base = Case { l2norm: true, h0: true, ..Case::default() };
    vec![
        Case { heads: 2, value_heads: 6, lengths: &[1, 0, 63, 65], packed: true, beta_bf16: true, ..base.clone() },
        Case { value_heads: 6, lengths: &[70], beta_max: 2.0, gates: Gates::Slow, ..base.clone() },
        Case { heads: 2, value_heads: 8, lengths: &[64, 17], packed: true, gates: Gates::Strong, ..base.clone() },
        Case { value_heads: 8, lengths: &[33], l2norm: false, gates: Gates::Cliff, ..base },
    ]
}

#[test]
fn prepare_gives_norms_gates_and_inverses() {
    for (seed, case) in cases().iter().chain(&groups()).enumerate() {
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

/// States before the first chunk of every segment that is not its sequence's first; NaN elsewhere.
pub(super) fn starts(inputs: &Inputs, model: &Forward) -> Vec<f64> {
    let states = inputs.case.value_heads * DIM * DIM;
    let of_segment = |segment: &Segment| match segment.index {
        0 => vec![f64::NAN; states],
        _ => model.h[segment.first_chunk as usize * states..][..states].to_vec(),
    };
    inputs.segments().0.iter().flat_map(of_segment).collect()
}

/// The programs of `scan` and `states` that `takes` names, whole sequences or from given start states: values, and the
/// same bits from all.
fn scan(device: &Device, case: &Case, takes: impl Fn(&Gdn) -> bool) {
    let inputs = Inputs::new(case);
    let model = Forward::of(&inputs);
    let staged = Staged::new(device, &inputs).unwrap();
    staged.prepare_from(&model).unwrap();
    let start = device.upload(&to_f32(&starts(&inputs, &model))).unwrap();
    let mut first = None;
    let schedules = staged.schedules(Stage::Scan).chain(staged.schedules(Stage::States));
    for schedule in schedules.filter(|schedule| takes(schedule)) {
        let what = |tensor: &str| format!("{device} {} {tensor} of {case:?}", schedule.name);
        let scanned = staged.scan(schedule, Some(&start)).unwrap_or_else(|error| panic!("{}: {error}", what("launch")));
        // Limits of section 3.5 of the specification; v_new is bounded as its gradient is, h as the final state is.
        let h = values::<bf16>(&scanned.h);
        let (h, padding) = h.split_at(model.h.len());
        check(&what("v_new"), &values::<bf16>(&scanned.v_new), &model.v_new, 0.011, 0.03);
        check(&what("h"), h, &model.h, 0.006, 0.03);
        check(&what("ht"), &values::<f32>(&scanned.ht), &model.ht, 0.006, 0.03);
        assert!(padding.iter().all(|value| value.is_nan()), "{}", what("padding"));
        let states = [&scanned.v_new, &scanned.h, &scanned.ht].map(|buffer| buffer.read().unwrap());
        let o = scanned.o.read().unwrap();
        if schedule.stage == Stage::Scan {
            check(&what("o"), &values::<bf16>(&scanned.o), &model.o, 0.010, 0.03);
        } else {
            assert!(o.iter().all(|&byte| byte == 0xFF), "{}", what("o is not written"));
        }
        let (same_states, same_o) = first.get_or_insert_with(|| (states.clone(), o.clone()));
        assert!(*same_states == states, "{}", what("states differ from the first program's"));
        assert!(schedule.stage == Stage::States || *same_o == o, "{}", what("output differs from the first program's"));
        if schedule.stage == Stage::Scan && case.segment_chunks.is_none() {
            let alone = staged.scan_output(schedule).unwrap().read().unwrap();
            assert!(alone == o, "{}", what("output differs without a tape"));
        }
    }
}

#[test]
fn scans_give_outputs_and_states() {
    for (seed, case) in cases().iter().enumerate() {
        let device = emulated(Arch::Sm90, seed as u64, CompletionPolicy::Random);
        scan(&device, case, |schedule| ["scan_v64", "states_v64"].contains(&schedule.name));
    }
}

#[test]
fn every_scan_gives_the_same_bits() {
    let case = Case { lengths: &[80], value_heads: 2, l2norm: true, h0: true, ..Case::default() };
    scan(&emulated(Arch::Sm90, 2, CompletionPolicy::Lazy), &case, |_| true);
}

#[test]
fn scans_start_at_segments() {
    let case = Case { lengths: &[65, 0, 200], h0: true, l2norm: true, segment_chunks: Some(2), ..Case::default() };
    scan(&emulated(Arch::Sm90, 3, CompletionPolicy::Lazy), &case, |schedule| schedule.name != "scan_v64");
}

#[test]
fn scans_are_the_same_on_every_architecture() {
    let case = Case { lengths: &[1, 66], l2norm: true, h0: true, packed: true, ..Case::default() };
    for arch in Arch::ALL {
        scan(&emulated(arch, 1, CompletionPolicy::Eager), &case, |_| true);
    }
}

/// `M` where `wanted`, and untouched where not.
fn check_map(what: &str, got: &[f64], want: &[f64], wanted: bool) {
    if wanted {
        check(what, got, want, 0.006, 0.03);
    } else {
        assert!(got.iter().all(|value| value.is_nan()), "{what} is written");
    }
}

/// The maps of segments: every one that a composition may ask for, and no other.
#[test]
fn pre_scans_give_the_maps_of_segments() {
    let case =
        Case { lengths: &[30, 0, 200], l2norm: true, gates: Gates::Slow, segment_chunks: Some(2), ..Case::default() };
    let inputs = Inputs::new(&case);
    let model = Forward::of(&inputs);
    let (segments, sequences) = inputs.segments();
    let device = emulated(Arch::Sm90, 4, CompletionPolicy::Random);
    let staged = Staged::new(&device, &inputs).unwrap();
    staged.prepare_from(&model).unwrap();
    let programs = staged.schedules(Stage::States).chain(staged.schedules_on(Engine::Wgmma, Stage::PreScan));
    for schedule in programs {
        for (m_of_first, m_of_last) in [(false, false), (true, true)] {
            let maps = staged.pre_scan(schedule, m_of_first, m_of_last, None).unwrap();
            let (h, m) = (values::<f32>(&maps.h), values::<f32>(&maps.m));
            for (index, segment) in segments.iter().enumerate() {
                let what = |map: &str| format!("{} {map} of segment {index}", schedule.name);
                let range = index * DIM * DIM..(index + 1) * DIM * DIM;
                if segment.sequence < 0 {
                    assert!(
                        h[range.clone()].iter().chain(&m[range]).all(|value| value.is_nan()),
                        "{}",
                        what("padding")
                    );
                    continue;
                }
                let count = sequences[segment.sequence as usize].segments;
                let (is_first, is_last) = (segment.index == 0, segment.index + 1 == count);
                let map = SegmentMap::of(&inputs, &model, segment, 0);
                check_map(&what("H"), &h[range.clone()], &map.h, !is_last);
                let wanted = count > 1 && (!is_first || m_of_first) && (!is_last || m_of_last);
                check_map(&what("M"), &m[range], &map.m, wanted);
            }
        }
    }
}

/// Composition of maps of random numbers: each direction, with a state at the boundary and from zero.
#[test]
fn compose_gives_the_states_between_segments() {
    // Sequences of 3, 1 and 2 segments.
    let case = Case { lengths: &[150, 10, 70], value_heads: 2, h0: true, segment_chunks: Some(1), ..Case::default() };
    let inputs = Inputs::new(&case);
    let (segments, sequences) = inputs.segments();
    let (states, matrix) = (case.value_heads * DIM * DIM, DIM * DIM);
    let round =
        |values: Vec<f64>, gain: f64| -> Vec<f64> { values.iter().map(|x| f64::from((x * gain) as f32)).collect() };
    let mut random = Random::new(9);
    let added = round(random.normal(segments.len() * states), 1.0);
    // Rows of about unit length.
    let maps = round(random.normal(segments.len() * states), (DIM as f64).sqrt().recip());
    for (arch, adjoint, from_zero, forgets) in [
        (Arch::Sm90, false, false, false),
        (Arch::Sm90, true, false, false),
        (Arch::Sm90, false, true, false),
        (Arch::Sm110, true, true, false),
        (Arch::Sm90, false, false, true),
        (Arch::Sm90, true, true, true),
    ] {
        let device = emulated(arch, 5, CompletionPolicy::Random);
        let staged = Staged::new(&device, &inputs).unwrap();
        let schedule = staged.schedules(Stage::Compose).next().unwrap();
        let mut want = vec![f64::NAN; segments.len() * states];
        let mut known = maps.clone();
        // Every other map is zero, and not there.
        let zero = |index: usize, head: usize| forgets && (index + head) % 2 == 1;
        for (index, sequence) in sequences.iter().enumerate() {
            let order = sequence.first_segment as usize..(sequence.first_segment + sequence.segments) as usize;
            let order: Vec<usize> = if adjoint { order.rev().collect() } else { order.collect() };
            for head in 0..case.value_heads {
                let at = |index: usize| {
                    (index * case.value_heads + head) * matrix..(index * case.value_heads + head + 1) * matrix
                };
                let boundary = &inputs.h0.as_ref().unwrap()[at(index)];
                let mut state = if from_zero { vec![0.0; matrix] } else { transposed(boundary) };
                for pair in order.windows(2) {
                    if zero(pair[0], head) {
                        state.fill(0.0);
                        known[at(pair[0])].fill(f64::NAN);
                    }
                    let m = if adjoint { transposed(&maps[at(pair[0])]) } else { maps[at(pair[0])].to_vec() };
                    state = SegmentMap { h: added[at(pair[0])].to_vec(), m }.apply(&state);
                    want[at(pair[1])].copy_from_slice(&state);
                }
                if from_zero {
                    // The pre-scan leaves this map unwritten.
                    known[at(order[0])].fill(f64::NAN);
                }
            }
        }
        let units = (0..segments.len()).flat_map(|index| (0..case.value_heads).map(move |head| (index, head)));
        let carries: Vec<u8> = units.flat_map(|(index, head)| u32::from(!zero(index, head)).to_le_bytes()).collect();
        let maps = Maps {
            h: device.upload(&to_f32(&added)).unwrap(),
            m: device.upload(&to_f32(&known)).unwrap(),
            carries: forgets.then(|| device.upload(&carries).unwrap()),
        };
        let boundary = staged.h0.as_ref().filter(|_| !from_zero);
        let start = staged.compose(schedule, boundary, &maps, adjoint).unwrap();
        // Three products of 8 bits keep 2^-16 of each factor.
        let what = format!("{device} adjoint {adjoint} from zero {from_zero} forgets {forgets}");
        check(&what, &values::<f32>(&start), &want, 2e-5, 3e-5);
    }
}

/// A sequence in segments: maps, composition, and the scan from there, against the whole sequence.
#[test]
fn segments_give_the_sequence() {
    for (seed, h0) in [(1, true), (2, false)] {
        let case = Case {
            lengths: &[200, 40],
            l2norm: true,
            h0,
            gates: Gates::Slow,
            beta_max: 2.0,
            segment_chunks: Some(1),
            seed,
            ..Case::default()
        };
        let inputs = Inputs::new(&case);
        let model = Forward::of(&inputs);
        let device = emulated(Arch::Sm90, seed, CompletionPolicy::Random);
        let staged = Staged::new(&device, &inputs).unwrap();
        let program = |stage| staged.schedules(stage).next().unwrap();
        staged.prepare(program(Stage::Prepare)).unwrap();
        let maps = staged.pre_scan(program(Stage::States), h0, false, None).unwrap();
        let start = staged.compose(program(Stage::Compose), staged.h0.as_ref(), &maps, false).unwrap();
        let scanned = staged.scan(program(Stage::Scan), Some(&start)).unwrap();
        check(&format!("o of {case:?}"), &values::<bf16>(&scanned.o), &model.o, 0.010, 0.03);
        check(&format!("ht of {case:?}"), &values::<f32>(&scanned.ht), &model.ht, 0.006, 0.03);
    }
}

/// Every case and every program on a GPU, if there is one.
#[cfg(feature = "cuda")]
#[test]
fn stages_on_a_gpu() {
    match Device::cuda(0) {
        Ok(device) => {
            for case in cases() {
                prepare(&device, &case);
                scan(&device, &case, |_| true);
            }
            groups().iter().for_each(|case| prepare(&device, case));
        }
        Err(error) => println!("skipped cuda:0: {error}"),
    }
}

/// The maps of the model compose to its states: what the pre-scan is held against is right.
#[test]
fn maps_of_segments_compose() {
    let case = Case {
        lengths: &[200],
        l2norm: true,
        h0: true,
        gates: Gates::Slow,
        segment_chunks: Some(2),
        ..Case::default()
    };
    let inputs = Inputs::new(&case);
    let model = Forward::of(&inputs);
    let mut state = transposed(inputs.h0.as_ref().unwrap());
    for segment in &inputs.segments().0[..2] {
        check("start", &model.h[segment.first_chunk as usize * DIM * DIM..][..DIM * DIM], &state, 1e-12, 1e-12);
        state = SegmentMap::of(&inputs, &model, segment, 0).apply(&state);
    }
    check("end", &model.ht, &transposed(&state), 1e-12, 1e-12);
}
