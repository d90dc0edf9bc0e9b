//! A tape carries what it was made of: a call of a problem that makes another refuses it.

use bakewell::gdn::{BackwardArgs, Forward, ForwardArgs, Gdn, Input, Pins, Sequences};
use bakewell::schedule::gdn::Engine;
use bakewell::{Arch, DType, Device, Error};
use bakewell_tests::contract::recorder;

use super::tensors::{Tensors, problem};

/// Three chunks, cut where a pin says so, on a device that launches nothing.
fn long() -> Gdn {
    Gdn { tokens: 160, sequences: Sequences::Offsets(vec![0, 30, 160]), ..problem() }
}

fn pinned(problem: &Gdn, change: impl FnOnce(&mut Pins)) -> Gdn {
    let mut problem = problem.clone();
    change(&mut problem.pins);
    problem
}

/// Both calls of `wanted` bind the tape of `made`, or refuse it with this text.
#[track_caller]
fn bind(device: &Device, made: &Gdn, wanted: &Gdn) -> Result<(), String> {
    let (theirs, ours) = (Tensors::on(device, made), Tensors::on(device, wanted));
    let tape = theirs.forward_args().tape.unwrap();
    let refusal = |outcome: bakewell::Result<()>| match outcome {
        Ok(()) => None,
        Err(Error::Argument { argument: "tape", expected, given, .. }) => Some(format!("{expected} | {given}")),
        Err(other) => panic!("{other}"),
    };
    let forward = refusal(ours.forward.bind(ForwardArgs { tape: Some(tape), ..ours.forward_args() }).map(drop));
    let backward = refusal(ours.backward.bind(BackwardArgs { tape, ..ours.backward_args() }).map(drop));
    assert_eq!(forward, backward);
    backward.map_or(Ok(()), Err)
}

fn with_programs() -> Device {
    recorder(Arch::Sm90).0
}

/// On the reference too.
#[track_caller]
fn refused_of_the_problem(made: Gdn, wanted: Gdn, facts: &str) {
    for device in [Device::reference().unwrap(), with_programs()] {
        assert_eq!(bind(&device, &made, &wanted).unwrap_err(), facts, "{device}");
    }
}

#[track_caller]
fn refused_of_the_plan(made: Gdn, wanted: Gdn, facts: &str) {
    bind(&Device::reference().unwrap(), &made, &wanted).unwrap();
    assert_eq!(bind(&with_programs(), &made, &wanted).unwrap_err(), facts);
}

#[test]
fn facts_of_the_problem_are_compared_everywhere() {
    let other = |change: &dyn Fn(&mut Gdn)| {
        let mut other = problem();
        change(&mut other);
        other
    };
    let cases: [(Gdn, &str); 9] = [
        (other(&|other| other.l2norm = false), "a tape with l2norm true | l2norm false"),
        (other(&|other| other.final_state = false), "a tape with final_state true | final_state false"),
        (other(&|other| other.scale = Some(0.5)), "a tape with scale 0.088388346 | scale 0.5"),
        (other(&|other| other.beta = DType::Bf16), "a tape with beta f32 | beta bf16"),
        (other(&|other| other.value_heads = 2), "a tape with value_heads 4 | value_heads 2"),
        (other(&|other| other.heads = 4), "a tape with heads 2 | heads 4"),
        (other(&|other| other.pins.save_state = false), "a tape with save_state true | save_state false"),
        (other(&|other| other.gate = false), "a tape with gate true | gate false"),
        (other(&|other| other.initial_state = false), "a tape with initial_state true | initial_state false"),
    ];
    for (made, facts) in cases {
        refused_of_the_problem(made, problem(), facts);
    }
}

#[test]
fn sequences_are_compared_by_where_they_begin() {
    let with = |offsets: &[u64]| Gdn { sequences: Sequences::Offsets(offsets.to_vec()), ..problem() };
    let text = bind(&with_programs(), &with(&[0, 4, 7]), &with(&[0, 3, 7])).unwrap_err();
    assert_eq!(text.matches("offsets of digest").count(), 2, "{text}");
    assert!(!text.contains("tokens") && !text.contains("chunks"), "{text}");
    let text = bind(&with_programs(), &with(&[0, 3, 5, 7]), &with(&[0, 3, 7])).unwrap_err();
    assert!(text.starts_with("a tape with sequences 2, offsets") && text.contains("| sequences 3"), "{text}");
    // The same tokens and sequences of the same chunks, known to the host or to the device alone.
    let device = Gdn { sequences: Sequences::Device(2), ..problem() };
    assert!(bind(&with_programs(), &device, &problem()).unwrap_err().contains("offsets of digest 0"));
}

#[test]
fn facts_of_the_plan_are_compared_where_programs_run() {
    let cut = pinned(&long(), |pins| pins.segment_chunks = Some(1));
    refused_of_the_plan(
        pinned(&long(), |pins| pins.segment_chunks = Some(0)),
        cut.clone(),
        "a tape with segments 4, segment_chunks 1, longest_first true, forget_after 24 | \
         segments 2, segment_chunks 0, longest_first false, forget_after 0",
    );
    refused_of_the_plan(
        pinned(&cut, |pins| pins.longest_first = false),
        cut.clone(),
        "a tape with longest_first true | longest_first false",
    );
    refused_of_the_plan(
        pinned(&cut, |pins| pins.forget_after = Some(0)),
        cut.clone(),
        "a tape with forget_after 24 | forget_after 0",
    );
    refused_of_the_plan(
        pinned(&long(), |pins| (pins.engine, pins.segment_chunks) = (Some(Engine::Registers), Some(0))),
        pinned(&long(), |pins| (pins.engine, pins.segment_chunks) = (Some(Engine::Wgmma), Some(0))),
        "a tape with engine wgmma | engine registers",
    );
}

/// What leaves the tape as it is may differ.
#[test]
fn other_plans_of_the_same_tape_take_it() {
    let device = with_programs();
    let same = [
        pinned(&problem(), |pins| pins.value_columns = Some(32)),
        pinned(&problem(), |pins| pins.longest_first = false),
        pinned(&problem(), |pins| pins.forget_after = Some(3)),
        Gdn { scale: Some((1.0 / 128f64.sqrt()) as f32), ..problem() },
        Gdn { copies: vec![Input::Q], ..problem() },
    ];
    for made in same {
        bind(&device, &made, &problem()).unwrap();
    }
}

/// Not even a workspace is allocated for one that is refused, and inference has none.
#[test]
fn a_foreign_tape_is_refused_before_anything_happens() {
    let (device, recording) = recorder(Arch::Sm90);
    let theirs = Tensors::on(&device, &Gdn { l2norm: false, ..problem() });
    let ours = Tensors::on(&device, &problem());
    let args = BackwardArgs { tape: theirs.forward_args().tape.unwrap(), ..ours.backward_args() };
    recording.take_calls();
    ours.backward.bind(args).unwrap_err();
    assert_eq!(recording.take_calls(), []);
    let inference = Forward(Gdn { training: false, ..problem() });
    assert_eq!(device.plan(&inference).unwrap().tape_bytes(), 0);
}

/// The reference leaves nothing on a tape, so nobody else reads one of its.
#[test]
fn the_reference_and_programs_do_not_share_tapes() {
    let device = with_programs();
    let (theirs, ours) = (Tensors::new(&problem()), Tensors::on(&device, &problem()));
    // A tape of the reference over memory of the device, so that only what it carries differs.
    let memory = device.buffer(ours.forward.tape_bytes()).unwrap();
    let tape = theirs.forward.tape(memory.view(DType::U8, &[memory.bytes()]).unwrap()).unwrap();
    let error = ours.backward.bind(BackwardArgs { tape, ..ours.backward_args() }).unwrap_err().to_string();
    assert!(error.starts_with("tape: expected a tape with made by programs, engine"), "{error}");
    assert!(error.ends_with("got made by the reference"), "{error}");
}
