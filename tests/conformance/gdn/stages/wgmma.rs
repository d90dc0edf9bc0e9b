//! The scans on Hopper's warpgroup products.

use bakewell::emulator::CompletionPolicy;
use bakewell::schedule::gdn::{Engine, Stage};
use bakewell::{Arch, Buffer, Device};
use half::bf16;

use super::check;
use super::forward::{cases, emulated, starts};
use super::inputs::{CHUNK, Case, DIM, Inputs};
use super::model::{Forward, SegmentMap};
use super::staged::{Staged, to_f32, values};

fn untouched(buffer: &Buffer) -> bool {
    buffer.read().unwrap().iter().all(|&byte| byte == 0xFF)
}

/// Every program of the forward on an engine: values, nothing written that is not asked for, and the same bits from
/// all.
pub(super) fn scan(engine: Engine, device: &Device, case: &Case) {
    let inputs = Inputs::new(case);
    let model = Forward::of(&inputs);
    let staged = Staged::new(device, &inputs).unwrap();
    staged.prepare_from(&model).unwrap();
    let start = device.upload(&to_f32(&starts(&inputs, &model))).unwrap();
    let of_stage = |stage| staged.schedules_on(engine, stage);
    let programs: Vec<_> = of_stage(Stage::Scan).chain(of_stage(Stage::States)).collect();
    let splits = if engine == Engine::Wgmma { 2 } else { 1 };
    assert_eq!(programs.len(), 2 * splits, "with and without states, a head and half a head per CTA");
    let (mut outputs, mut states) = (None, None);
    for schedule in programs {
        let what = |tensor: &str| format!("{device} {} {tensor} of {case:?}", schedule.name);
        let scanned = staged.scan(schedule, Some(&start)).unwrap_or_else(|error| panic!("{}: {error}", what("launch")));
        // Limits of section 3.5 of the specification; v_new is bounded as its gradient is, h as the final state is.
        check(&what("o"), &values::<bf16>(&scanned.o), &model.o, 0.010, 0.03);
        check(&what("ht"), &values::<f32>(&scanned.ht), &model.ht, 0.006, 0.03);
        let output = [&scanned.o, &scanned.ht].map(|buffer| buffer.read().unwrap());
        assert!(*outputs.get_or_insert_with(|| output.clone()) == output, "{}", what("output differs"));
        if schedule.stage == Stage::Scan {
            assert!(untouched(&scanned.v_new) && untouched(&scanned.h), "{}", what("states are written"));
            continue;
        }
        let h = values::<bf16>(&scanned.h);
        let (h, padding) = h.split_at(model.h.len());
        check(&what("v_new"), &values::<bf16>(&scanned.v_new), &model.v_new, 0.011, 0.03);
        check(&what("h"), h, &model.h, 0.006, 0.03);
        assert!(padding.iter().all(|value| value.is_nan()), "{}", what("padding"));
        let tape = [&scanned.v_new, &scanned.h].map(|buffer| buffer.read().unwrap());
        assert!(*states.get_or_insert_with(|| tape.clone()) == tape, "{}", what("states differ"));

        let again = staged.scan_with(schedule, Some(&start), false).unwrap();
        assert!(untouched(&again.o), "{}", what("o is not written"));
        let again = [&again.v_new, &again.h].map(|buffer| buffer.read().unwrap());
        assert!(again == tape, "{}", what("states differ without an output"));
    }
}

#[test]
fn scans_give_outputs_and_states() {
    for (seed, case) in cases().iter().enumerate() {
        scan(Engine::Wgmma, &emulated(Arch::Sm90, seed as u64, CompletionPolicy::Random), case);
    }
}

/// More chunks than any ring holds, with work that completes at once and as late as may be.
#[test]
fn scans_go_round_their_rings() {
    let case = Case { lengths: &[390], l2norm: true, h0: true, packed: true, ..Case::default() };
    scan(Engine::Wgmma, &emulated(Arch::Sm90, 1, CompletionPolicy::Eager), &case);
    scan(Engine::Wgmma, &emulated(Arch::Sm90, 2, CompletionPolicy::Lazy), &case);
}

/// Chunks before those that are remembered are not read: a matrix of NaN there does not matter. M is not there, and
/// said so.
#[test]
fn pre_scans_pass_over_what_is_forgotten() {
    let case = Case { lengths: &[400], l2norm: true, segment_chunks: Some(4), value_heads: 2, ..Case::default() };
    let inputs = Inputs::new(&case);
    let mut model = Forward::of(&inputs);
    let (segment, heads) = (inputs.segments().0[0], case.value_heads);
    assert_eq!((segment.first_chunk, segment.chunks), (0, 3));
    let fades: f64 = [1, 2].iter().map(|chunk| model.fade[chunk * heads]).sum();
    let wanted = SegmentMap::of(&inputs, &model, &segment, 0);
    // Of the first chunk and head; the other head has no bound there and remembers everything.
    model.a[..CHUNK * CHUNK].fill(f64::NAN);
    model.fade[1..].iter_mut().step_by(heads).for_each(|fade| *fade = f64::INFINITY);
    let device = emulated(Arch::Sm90, 2, CompletionPolicy::Random);
    let staged = Staged::new(&device, &inputs).unwrap();
    staged.prepare_from(&model).unwrap();
    for schedule in staged.schedules_on(Engine::Wgmma, Stage::PreScan) {
        let maps = staged.pre_scan(schedule, true, true, Some(0.9 * fades as f32)).unwrap();
        let (h, m) = (values::<f32>(&maps.h), values::<f32>(&maps.m));
        check("H", &h[..DIM * DIM], &wanted.h, 0.006, 0.03);
        assert!(m[..DIM * DIM].iter().all(|value| value.is_nan()), "M is written");
        let other = SegmentMap::of(&inputs, &model, &segment, 1);
        check("H of the other head", &h[DIM * DIM..2 * DIM * DIM], &other.h, 0.006, 0.03);
        check("M of the other head", &m[DIM * DIM..2 * DIM * DIM], &other.m, 0.006, 0.03);
        let carries = maps.carries.unwrap().read().unwrap();
        assert_eq!(carries[..8], [0, 0, 0, 0, 1, 0, 0, 0]);

        let all = staged.pre_scan(schedule, true, true, Some(10.0 * fades as f32)).unwrap();
        assert!(values::<f32>(&all.h)[..DIM * DIM].iter().any(|value| value.is_nan()));
        assert_eq!(all.carries.unwrap().read().unwrap()[..4], [1, 0, 0, 0]);
    }
}

#[test]
fn scans_start_at_segments() {
    let case = Case { lengths: &[65, 0, 200], h0: true, l2norm: true, segment_chunks: Some(2), ..Case::default() };
    scan(Engine::Wgmma, &emulated(Arch::Sm90, 3, CompletionPolicy::Lazy), &case);
}
