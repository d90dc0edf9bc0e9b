//! The scans on Hopper's warpgroup products.

use bakewell::emulator::CompletionPolicy;
use bakewell::schedule::gdn::{Engine, Stage};
use bakewell::{Arch, Buffer, Device};
use half::bf16;

use super::check;
use super::forward::{cases, emulated, starts};
use super::inputs::{Case, Inputs};
use super::model::Forward;
use super::staged::{Staged, to_f32, values};

fn untouched(buffer: &Buffer) -> bool {
    buffer.read().unwrap().iter().all(|&byte| byte == 0xFF)
}

/// Every program of the forward: values, nothing written that is not asked for, and the same bits from all.
fn scan(device: &Device, case: &Case) {
    let inputs = Inputs::new(case);
    let model = Forward::of(&inputs);
    let staged = Staged::new(device, &inputs).unwrap();
    staged.prepare_from(&model).unwrap();
    let start = device.upload(&to_f32(&starts(&inputs, &model))).unwrap();
    let of_stage = |stage| staged.schedules_on(Engine::Wgmma, stage);
    let programs: Vec<_> = of_stage(Stage::Scan).chain(of_stage(Stage::States)).collect();
    assert_eq!(programs.len(), 4, "with and without states, a head and half a head per CTA");
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
        scan(&emulated(Arch::Sm90, seed as u64, CompletionPolicy::Random), case);
    }
}

/// More chunks than any ring holds, with work that completes at once and as late as may be.
#[test]
fn scans_go_round_their_rings() {
    let case = Case { lengths: &[390], l2norm: true, h0: true, packed: true, ..Case::default() };
    scan(&emulated(Arch::Sm90, 1, CompletionPolicy::Eager), &case);
    scan(&emulated(Arch::Sm90, 2, CompletionPolicy::Lazy), &case);
}

#[test]
fn scans_start_at_segments() {
    let case = Case { lengths: &[65, 0, 200], h0: true, l2norm: true, segment_chunks: Some(2), ..Case::default() };
    scan(&emulated(Arch::Sm90, 3, CompletionPolicy::Lazy), &case);
}
