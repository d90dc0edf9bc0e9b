//! On the emulator: orders of warps and of asynchronous work, SM counts, the bytes that layouts move, more CTAs than a
//! grid's other dimensions hold, and which programs the cases reach.

use std::collections::BTreeSet;

use bakewell::emulator::EmulatedRuntime;
use bakewell::emulator::trace::Path;
use bakewell::gdn::{Pins, Sequences};
use bakewell::schedule::Schedule;
use bakewell::schedule::gdn::Engine;
use bakewell::{Arch, Device};
use bakewell_conformance::Judged;
use bakewell_conformance::gdn::inputs::OUTPUTS;
use bakewell_conformance::gdn::repeated::{Repeated, borders, few, problem};
use bakewell_conformance::gdn::{Case, Inputs, Place, run};
use bakewell_tests::cases;
use bakewell_tests::emulated::{ORDERS, device, every_order_gives_the_same};

use super::{equal, goldens, outputs};

/// A full chunk and a short one, a group of two, states; cut where `segment_chunks` says.
fn small(segment_chunks: u32) -> Inputs {
    let case = Case {
        lengths: vec![70, 3],
        initial_state: true,
        final_state: true,
        final_state_gradient: true,
        pins: Pins { segment_chunks: Some(segment_chunks), ..Pins::default() },
        ..Case::default()
    };
    case.inputs().unwrap()
}

/// The plans differ, in value columns and walks of the tail; the bits do not.
#[test]
fn the_number_of_sms_does_not_matter() {
    let inputs = small(0);
    let all = outputs(&device(Arch::Sm90, |_| ()), &inputs, Place::Contiguous).unwrap();
    for sm_count in [1, 3, 8] {
        let few = device(Arch::Sm90, |options| options.sm_count = sm_count);
        equal(&format!("{sm_count} SMs"), &all, &outputs(&few, &inputs, Place::Contiguous).unwrap()).unwrap();
    }
}

#[test]
fn every_seed_gives_the_same_bytes() {
    for (arch, segment_chunks) in [(Arch::Sm90, 0), (Arch::Sm90, 1), (Arch::Sm100, 0), (Arch::Sm100, 1)] {
        let inputs = small(segment_chunks);
        let what = format!("segments of {segment_chunks} chunks");
        every_order_gives_the_same(&what, arch, arch.typical_sm_count(), &ORDERS[..4], |device| {
            outputs(device, &inputs, Place::Contiguous)
        });
    }
}

/// Packed rows move as many bytes on every path as contiguous tensors: nothing is copied.
#[test]
fn packed_rows_are_read_in_place() {
    let inputs = small(0);
    for arch in [Arch::Sm90, Arch::Sm100] {
        let moved = |place| {
            let runtime = EmulatedRuntime::new(arch);
            outputs(&Device::with_runtime(runtime.clone()).unwrap(), &inputs, place).unwrap();
            let counters = runtime.take_report().counters;
            Path::ALL.map(|path| counters.bytes(path))
        };
        let (contiguous, packed, copied) = (moved(Place::Contiguous), moved(Place::Packed), moved(Place::Copied));
        assert_eq!(contiguous, packed);
        let stored = Path::GlobalStore as usize;
        // Each of 73 tokens: q, k, do and v, of the backward again; g once, beta twice.
        let rows = 73 * (2 * (256 + 256 + 512) + 512 + 8 + 2 * 8);
        assert_eq!(copied[stored] - contiguous[stored], rows, "a copy writes every byte once");
    }
}

/// 683 sequences with 48 heads, each in two parts, are 65,568 CTAs of a scan. All but two of the sequences are empty,
/// and without them the outputs are the same.
#[test]
fn many_sequences_with_many_heads() {
    let pins = Pins { engine: Some(Engine::Registers), value_columns: Some(64), ..Pins::default() };
    let case = Case { lengths: vec![3, 2], heads: 16, value_heads: 48, training: false, pins, ..Case::default() };
    let few = case.inputs().unwrap();
    let mut many = few.clone();
    let offsets: Vec<u64> = [vec![0], vec![3; 682], vec![5]].concat();
    many.offsets = Some(offsets.clone());
    many.problem.sequences = Sequences::Offsets(offsets);
    assert_eq!(many.problem.sequence_count(), 683);
    let device = device(Arch::Sm90, |_| ());
    let [few, many] = [few, many].map(|inputs| outputs(&device, &inputs, Place::Contiguous).unwrap());
    equal("with 681 empty sequences", &few, &many).unwrap();
}

/// What is verified at scale on a GPU, small: sequences that repeat a few give their bytes, and other bytes are seen.
#[test]
fn sequences_that_repeat_give_the_bytes_of_the_few() {
    let device = device(Arch::Sm90, |_| ());
    let inputs = few(1, 3, 70).unwrap();
    let wanted = run(&device, &inputs).unwrap().outputs;
    let (sequences, every) = (5, [0, 1, 2, 3, 4]);
    let call = Repeated::run(&device, &inputs, sequences).unwrap();
    assert_eq!(call.difference(&wanted, &every).unwrap(), None);
    for name in OUTPUTS {
        let mut other = wanted.clone();
        let bytes = &mut other.get_mut(name).unwrap().bytes;
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        let difference = call.difference(&other, &every).unwrap().unwrap();
        assert!(difference.starts_with(&format!("{name} of sequence 2: another byte at ")), "{difference}");
        assert_eq!(call.difference(&other, &[0, 1, 3, 4]).unwrap(), None);
    }
    assert_eq!(borders(&problem(&inputs, sequences)), [0, 4]);
}

/// Every program that ships is run by a case of `bakewell verify`, and has evidence from there.
#[test]
fn every_program_is_run_by_a_case() {
    let generated = cases::<Vec<Case>>("gdn").into_iter().map(|case| case.inputs().unwrap());
    let all: Vec<Inputs> = goldens().into_iter().map(|golden| golden.inputs).chain(generated).collect();
    for arch in Arch::ALL {
        let device = device(arch, |_| ());
        let planned = all.iter().flat_map(|inputs| inputs.plan(&device).unwrap().schedules);
        let run: BTreeSet<String> = planned.map(|schedule| schedule.variant()).collect();
        let architecture = bakewell::architectures::find(arch).expect("compiled in").architecture;
        let shipped = architecture.gdn.schedules.iter().map(Schedule::variant).collect::<BTreeSet<_>>();
        assert_eq!(run, shipped, "{arch}");
    }
}
