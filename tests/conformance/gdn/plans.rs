//! Plans are pure, cover everything once, and respect every limit.

use bakewell::gdn::decide::{Decision, Pass, Role, consider, decide};
use bakewell::gdn::{Backward, Forward, Gdn, Input, Pins, Sequences};
use bakewell::schedule::Schedule;
use bakewell::schedule::gdn::{Engine, prepare};
use bakewell::workspace::{WORKSPACE_ALIGNMENT, WorkspaceLayout};
use bakewell::{Arch, Error};
use bakewell_tests::plans::{SM_COUNTS, architectures, planned_or_refused, size};
use proptest::prelude::*;

fn offsets(lengths: &[u64]) -> Vec<u64> {
    let mut offsets = vec![0];
    lengths.iter().for_each(|length| offsets.push(offsets[offsets.len() - 1] + length));
    offsets
}

fn packed(heads: u64, value_heads: u64, lengths: &[u64]) -> Gdn {
    let offsets = offsets(lengths);
    Gdn { tokens: offsets[lengths.len()], heads, value_heads, sequences: Sequences::Offsets(offsets), ..Gdn::default() }
}

fn problems() -> Vec<Gdn> {
    let mut problems = Vec::new();
    for (heads, value_heads) in [(1, 1), (2, 6), (16, 48)] {
        for lengths in [vec![1], vec![64], vec![0, 65, 0], vec![32_768], vec![4096; 64], vec![1, 63, 64, 65, 20_000]] {
            let problem = packed(heads, value_heads, &lengths);
            let device = Gdn { sequences: Sequences::Device(lengths.len() as u64), ..problem.clone() };
            let states = Gdn { initial_state: true, final_state: true, ..problem.clone() };
            let lean = Gdn { pins: Pins { save_state: false, ..Pins::default() }, ..states.clone() };
            let cut = Gdn { pins: Pins { segment_chunks: Some(3), ..lean.pins.clone() }, ..device.clone() };
            problems.extend([problem, device, states, lean, cut]);
        }
    }
    problems.push(Gdn { batch: 3, tokens: 1000, training: false, ..Gdn::default() });
    problems
}

fn every_plan(mut check: impl FnMut(&Gdn, u32, &Decision)) {
    for architecture in architectures() {
        for sm_count in SM_COUNTS {
            for problem in problems() {
                let passes =
                    if problem.training { [Pass::Forward, Pass::Backward].as_slice() } else { &[Pass::Forward] };
                for &pass in passes {
                    let decision = decide(&problem, pass, architecture, sm_count).unwrap_or_else(|error| {
                        panic!("{problem:?} on {} with {sm_count} SMs: {error}", architecture.arch)
                    });
                    check(&problem, sm_count, &decision);
                }
            }
        }
    }
}

#[test]
fn equal_questions_get_equal_answers() {
    let mut first = Vec::new();
    every_plan(|_, _, decision| first.push(decision.clone()));
    let mut again = first.iter();
    every_plan(|problem, sm_count, decision| assert_eq!(again.next(), Some(decision), "{problem:?}, {sm_count} SMs"));
}

/// Both calls divide a problem alike and agree about the tape.
#[test]
fn both_calls_have_one_division_and_one_tape() {
    let mut forward: Option<Decision> = None;
    every_plan(|problem, _, decision| match decision.pass {
        Pass::Forward => forward = problem.training.then(|| decision.clone()),
        Pass::Backward => {
            let forward = forward.take().unwrap();
            assert_eq!((&forward.division, &forward.tape), (&decision.division, &decision.tape));
            assert_eq!(forward.content, decision.content);
        }
    });
}

/// Grids have a CTA for every chunk and head, every segment, head and split; every limit of a launch holds.
#[test]
fn grids_cover_everything_once() {
    every_plan(|problem, sm_count, decision| {
        let division = &decision.division;
        for step in &decision.steps {
            step.config.validate(decision.arch).unwrap();
            let splits = u64::from(step.schedule.value_splits());
            let expected = match step.role {
                Role::Copy(_) => problem.total_tokens(),
                Role::Tables => 1,
                Role::Prepare => {
                    let heads = u64::from(prepare::value_heads(step.schedule));
                    assert!((problem.value_heads / problem.heads).is_multiple_of(heads), "{problem:?}");
                    division.chunks * problem.value_heads / heads
                }
                // Its CTAs take chunks in turn.
                Role::Tail => (division.chunks * problem.heads).min(sm_count.into()),
                Role::PreScan => 2 * division.segments * problem.value_heads * splits,
                _ => division.segments * problem.value_heads * splits,
            };
            assert_eq!(step.config.ctas(), expected, "{:?} of {problem:?}", step.role);
            assert_eq!(step.config.block, step.schedule.budgets().threads);
            assert_eq!(step.config.dynamic_shared_bytes, step.schedule.budgets().dynamic_shared_bytes);
        }
        let cut = decision.step(Role::PreScan).is_some() || decision.step(Role::AdjointPreScan).is_some();
        assert_eq!(cut, division.cut);
    });
}

/// Every chunk lies in one segment, every token in one chunk; tables that the device builds have room for any offsets.
#[test]
fn divisions_cover_every_token_once() {
    every_plan(|problem, _, decision| {
        let division = &decision.division;
        let Some(tables) = &division.tables else {
            let most = problem.tokens / 64 + problem.sequence_count();
            assert!(division.chunks == most && division.segments >= division.sequences);
            return;
        };
        let mut next = 0;
        for chunk in &tables.chunks {
            assert_eq!(u64::from(chunk.first_token), next);
            next += u64::from(chunk.tokens);
        }
        assert_eq!(next, problem.total_tokens());
        let mut seen = vec![false; tables.chunks.len()];
        for segment in &tables.segments {
            for chunk in segment.first_chunk..segment.first_chunk + segment.chunks {
                assert!(!std::mem::replace(&mut seen[chunk as usize], true));
            }
        }
        assert!(seen.iter().all(|&seen| seen));
        assert_eq!((tables.sequences.len() as u64, tables.chunks.len() as u64), (division.sequences, division.chunks));
    });
}

#[test]
fn regions_are_aligned_and_apart() {
    let check = |layout: &WorkspaceLayout| {
        let mut end = 0;
        for region in &layout.regions {
            assert!(region.offset >= end && region.offset.is_multiple_of(WORKSPACE_ALIGNMENT), "{}", region.name);
            end = region.offset + region.bytes;
        }
        assert!(layout.bytes >= end);
    };
    every_plan(|_, _, decision| {
        check(&decision.tape);
        check(&decision.workspace);
    });
}

/// Bytes of the tape by the table of its documentation, for one token in one chunk of one segment.
#[test]
fn tapes_have_the_size_that_their_documentation_says() {
    let architecture = architectures().next().unwrap();
    let tape = |problem: &Gdn| decide(problem, Pass::Forward, architecture, 132).unwrap().tape;
    let size =
        |layout: &WorkspaceLayout| layout.regions.iter().map(|region| (region.name, region.bytes)).collect::<Vec<_>>();
    let problem = packed(2, 4, &[1]);
    let always = vec![("rq", 8), ("rk", 8), ("gate", 16), ("a", 4 * 8192)];
    let states = vec![("v_new", 4 * 256), ("h", 4 * 32_768)];
    assert_eq!(size(&tape(&problem)), [always.clone(), states].concat());
    let lean = Gdn { pins: Pins { save_state: false, ..Pins::default() }, ..problem.clone() };
    assert_eq!(size(&tape(&lean)), always);
    assert_eq!(tape(&Gdn { training: false, ..problem }).bytes, 0);
    let cut =
        Gdn { pins: Pins { save_state: false, segment_chunks: Some(1), ..Pins::default() }, ..packed(1, 1, &[65]) };
    let exact = Gdn { pins: Pins { forget_after: Some(0), ..cut.pins.clone() }, ..cut.clone() };
    assert_eq!(size(&tape(&exact))[4..], [("m", 2 * 65_536), ("start", 2 * 65_536)]);
    let forgetful = [("m", 2 * 65_536), ("carries", 2 * 4), ("fade", 2 * 4), ("start", 2 * 65_536)];
    assert_eq!(size(&tape(&cut))[4..], forgetful);
}

/// Many short sequences with many heads do not fit the y dimension of a grid: they need not.
#[test]
fn many_sequences_with_many_heads() {
    for architecture in architectures() {
        let problem = packed(16, 48, &[70; 1366]);
        for pass in [Pass::Forward, Pass::Backward] {
            let decision = decide(&problem, pass, architecture, 132).unwrap();
            assert!(!decision.division.cut, "every SM is busy");
            let scan = decision.step(if pass == Pass::Forward { Role::Scan } else { Role::Adjoint }).unwrap();
            assert!(scan.config.grid[0] >= 1366 * 48 && scan.config.grid[1] == 1);
        }
    }
}

/// Long sequences on an idle device are cut, full devices are left alone.
#[test]
fn idle_devices_get_segments() {
    for architecture in architectures() {
        let cut = |value_heads: u64, lengths: &[u64], sm_count: u32| {
            let problem = packed(value_heads.min(16), value_heads, lengths);
            decide(&problem, Pass::Forward, architecture, sm_count).unwrap().division.cut
        };
        assert!(cut(1, &[65_536], 132), "one head on {}", architecture.arch);
        assert!(!cut(48, &[4096; 64], 132));
        assert!(!cut(1, &[65_536], 1));
        assert!(!cut(1, &[64], 132), "nothing to cut");
    }
}

/// The first row of the route table without an objection names the engine; the others say why not.
#[test]
fn every_row_that_is_not_taken_says_why() {
    for problem in problems() {
        for engine in [None, Some(Engine::Registers), Some(Engine::Wgmma)] {
            let problem = Gdn { pins: Pins { engine, ..problem.pins.clone() }, ..problem.clone() };
            for architecture in architectures() {
                let rows = consider(&problem, architecture, 132).unwrap();
                let first = rows.iter().find(|row| row.objection.is_none()).map(|row| row.schedule);
                match decide(&problem, Pass::Forward, architecture, 132) {
                    Ok(decision) => assert_eq!(first, Some(decision.engine.name())),
                    Err(error) => assert!(matches!(error, Error::NoProgram { .. }) && first.is_none(), "{error}"),
                }
                let why = if engine.is_some() { "the problem is pinned to " } else { "needs " };
                let objections = rows.iter().filter_map(|row| row.objection.as_ref());
                assert!(objections.into_iter().all(|objection| objection.starts_with(why)), "{rows:?}");
            }
        }
    }
}

#[test]
fn pins_decide() {
    for architecture in architectures() {
        let problem = packed(1, 2, &[10, 1000]);
        let with = |pins: Pins| decide(&Gdn { pins, ..problem.clone() }, Pass::Forward, architecture, 132).unwrap();
        let division = |segment_chunks| with(Pins { segment_chunks: Some(segment_chunks), ..Pins::default() }).division;
        assert_eq!((division(0).cut, division(0).segments), (false, 2));
        assert_eq!((division(4).cut, division(4).segments), (true, 5));
        assert!(!division(16).cut, "as long as the longest sequence");
        for columns in [32, 64, 128] {
            let scan = with(Pins { value_columns: Some(columns), ..Pins::default() });
            let scan = scan.step(Role::Scan).unwrap().schedule;
            let compiled =
                architecture.gdn.schedules.iter().any(|known| {
                    (known.stage, known.engine, known.value_columns) == (scan.stage, scan.engine, columns)
                });
            assert_eq!(scan.value_columns == columns, compiled, "{columns} on {}", architecture.arch);
        }
        let order = |longest_first| {
            let decision = with(Pins { longest_first, segment_chunks: Some(0), ..Pins::default() });
            decision.division.tables.unwrap().segments.iter().map(|segment| segment.sequence).collect::<Vec<_>>()
        };
        assert_eq!((order(true), order(false)), (vec![1, 0], vec![0, 1]));
    }
}

#[test]
fn copies_are_listed_and_nothing_else_is_copied() {
    for architecture in architectures() {
        let problem = packed(1, 2, &[100]);
        let plain = decide(&problem, Pass::Forward, architecture, 132).unwrap();
        assert!(plain.copies.is_empty() && plain.to_string().ends_with("no copies"), "{plain}");
        let copied = Gdn { copies: vec![Input::Q, Input::G, Input::Do], ..problem };
        let forward = decide(&copied, Pass::Forward, architecture, 132).unwrap();
        assert_eq!(forward.copies, ["q", "g"]);
        assert!(forward.to_string().ends_with("copies q, g"), "{forward}");
        assert_eq!(forward.workspace.region("copy_q").unwrap().bytes, 100 * 256);
        let backward = decide(&copied, Pass::Backward, architecture, 132).unwrap();
        assert_eq!(backward.copies, ["q", "do"]);
    }
}

/// No tokens: nothing is launched unless a state must be handed through.
#[test]
fn empty_problems_launch_nothing() {
    for architecture in architectures() {
        let empty = packed(1, 2, &[0, 0]);
        for pass in [Pass::Forward, Pass::Backward] {
            let decision = decide(&empty, pass, architecture, 132).unwrap();
            assert!(decision.steps.is_empty() && decision.workspace.bytes == 0, "{decision}");
            let states = Gdn { initial_state: true, final_state: true, ..empty.clone() };
            let decision = decide(&states, pass, architecture, 132).unwrap();
            let roles: Vec<Role> = decision.steps.iter().map(|step| step.role).collect();
            assert_eq!(roles, [if pass == Pass::Forward { Role::Scan } else { Role::Adjoint }]);
        }
        let none = Gdn { batch: 0, ..Gdn::default() };
        assert!(decide(&none, Pass::Forward, architecture, 132).unwrap().steps.is_empty());
    }
}

#[test]
fn what_no_program_serves_is_said() {
    let problem = packed(1, 2, &[100]);
    for architecture in architectures() {
        let error = decide(&problem, Pass::Forward, architecture, 0).unwrap_err();
        assert!(matches!(error, Error::Argument { argument: "sm_count", .. }), "{error}");
    }
    let wgmma = Gdn { pins: Pins { engine: Some(Engine::Wgmma), ..Pins::default() }, ..problem };
    let sm100 = architectures().find(|architecture| architecture.arch == Arch::Sm100).unwrap();
    let error = decide(&wgmma, Pass::Forward, sm100, 148).unwrap_err();
    assert!(matches!(error, Error::NoProgram { arch: Arch::Sm100, .. }), "{error}");
}

/// Counts of which a plan makes tables: few, or more than it takes.
fn listed() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..3000, (32u32..64).prop_map(|bit| 1u64 << bit), Just(u64::MAX)]
}

fn any_sequences() -> impl Strategy<Value = Sequences> {
    prop_oneof![
        Just(Sequences::Batch),
        listed().prop_map(Sequences::Device),
        prop::collection::vec(0u64..200, 0..6).prop_map(|lengths| Sequences::Offsets(offsets(&lengths))),
        prop::collection::vec(listed(), 0..4).prop_map(Sequences::Offsets),
    ]
}

proptest! {
    /// No problem makes the planner panic or overflow; what it accepts fits the limits.
    #[test]
    fn any_problem_is_planned_or_refused(
        (batch, tokens) in (prop_oneof![Just(1), listed()], listed()),
        (heads, group) in (size(), prop_oneof![Just(1u64), Just(3), size()]),
        sequences in any_sequences(),
        (initial_state, final_state, training, save_state) in any::<(bool, bool, bool, bool)>(),
        segment_chunks in prop_oneof![Just(None), any::<u32>().prop_map(Some)],
        sm_count in any::<u32>(),
    ) {
        let tokens = match &sequences {
            Sequences::Offsets(offsets) => offsets.last().copied().unwrap_or(tokens),
            _ => tokens,
        };
        let pins = Pins { segment_chunks, save_state, ..Pins::default() };
        let value_heads = heads.saturating_mul(group);
        let problem = Gdn {
            batch, tokens, heads, value_heads, sequences, initial_state, final_state, training, pins, ..Gdn::default()
        };
        let forward = planned_or_refused(&Forward(problem.clone()), sm_count)?;
        let backward = planned_or_refused(&Backward(problem), sm_count)?;
        for decision in forward.into_iter().chain(backward) {
            for step in &decision.steps {
                prop_assert!(step.config.validate(decision.arch).is_ok());
            }
        }
    }
}
