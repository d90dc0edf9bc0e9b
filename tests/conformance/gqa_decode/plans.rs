//! Plans are pure, cover everything once, and respect every limit.

use bakewell::gqa_decode::{Decision, GqaDecode, consider, decide};
use bakewell::schedule::Schedule;
use bakewell::schedule::gqa_decode::{MOST_EARLY_TILES, REQUESTABLE_SPLITS};
use bakewell::workspace::WORKSPACE_ALIGNMENT;
use bakewell::{Arch, DType, Error};
use bakewell_tests::plans::{self, SM_COUNTS, architectures, planned_or_refused, size};
use proptest::prelude::*;

fn problems() -> Vec<GqaDecode> {
    let mut problems = Vec::new();
    for batch in [1, 2, 3, 4, 8, 32, 64, 1000, 70_000] {
        for capacity in [1, 63, 64, 65, 96, 127, 128, 129, 256, 1000, 1024, 4096, 8192, 131_072] {
            for num_splits in [None].into_iter().chain(REQUESTABLE_SPLITS.map(Some)) {
                problems.push(GqaDecode { batch, capacity, num_splits, ..GqaDecode::default() });
            }
        }
    }
    problems
}

fn every_plan(check: impl FnMut(&GqaDecode, u32, &Decision)) {
    plans::every_plan(&problems(), &SM_COUNTS, check);
}

#[test]
fn equal_questions_get_equal_answers() {
    plans::equal_questions_get_equal_answers(&problems(), &SM_COUNTS);
    // What a device adds, the tensors and the log-sum-exp, changes nothing.
    let problem = GqaDecode { capacity: 4096, ..GqaDecode::default() };
    let scaled = GqaDecode { lse: true, q_scale: 3.0, ..problem.clone() };
    for architecture in architectures() {
        assert_eq!(decide(&problem, architecture, 132).unwrap(), decide(&scaled, architecture, 132).unwrap());
    }
}

/// Every key of every (request, KV head) belongs to exactly one CTA, for lengths up to the capacity.
#[test]
fn every_key_is_covered_exactly_once() {
    every_plan(|problem, sm_count, decision| {
        let launch = decision.launch.expect("the batch is not empty");
        assert_eq!(launch.grid[0], u32::try_from(problem.batch).unwrap());
        assert_eq!(launch.grid[1], decision.splits);
        assert_eq!(launch.grid[2], 8, "KV heads");
        for length in [0, 1, problem.capacity / 3, problem.capacity - 1, problem.capacity] {
            let mut ranges: Vec<_> = (0..decision.splits)
                .flat_map(|split| decision.schedule.key_ranges(split, decision.splits, length))
                .collect();
            ranges.sort_by_key(|range| range.start);
            let mut next = 0;
            for keys in ranges {
                assert_eq!(keys.start, next, "{problem:?}, {sm_count} SMs, length {length}");
                next = keys.end;
            }
            assert_eq!(next, length, "{problem:?}, {sm_count} SMs");
        }
    });
}

#[test]
fn limits_of_the_architecture_are_respected() {
    every_plan(|problem, sm_count, decision| {
        let what = format!("{problem:?} on {} with {sm_count} SMs: {decision}", decision.arch);
        let (limits, launch) = (decision.arch.limits(), decision.launch.unwrap());
        launch.validate(decision.arch).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(launch.dynamic_shared_bytes <= limits.shared_bytes_per_cta, "{what}");
        assert_eq!(launch.cluster, [1, decision.cluster, 1], "{what}");
        assert!(decision.early_tiles <= MOST_EARLY_TILES, "{what}");
        assert!(decision.cluster.is_power_of_two() && decision.splits.is_multiple_of(decision.cluster), "{what}");
        if let Some(requested) = problem.num_splits {
            assert_eq!(decision.splits, requested, "{what}");
        }
    });
}

/// The contract: partials of `splits / cluster` clusters, and a counter per request and KV head.
#[test]
fn the_workspace_is_what_the_contract_says() {
    every_plan(|problem, _, decision| {
        let partials = u64::from(decision.splits / decision.cluster);
        if partials == 1 {
            assert_eq!(decision.workspace.bytes, 0);
            return;
        }
        let region = |name| decision.workspace.region(name).expect("the region");
        let rows = problem.batch * 32;
        assert_eq!(region("partial_out").shape.as_slice(), [problem.batch, 32, partials, 128]);
        assert_eq!(region("partial_out").bytes, rows * partials * 128 * 4);
        assert_eq!(region("partial_max").bytes, rows * partials * 4);
        assert_eq!(region("partial_sum").bytes, rows * partials * 4);
        assert_eq!((region("completed").dtype, region("completed").bytes), (DType::U32, problem.batch * 8 * 4));
        let mut end = 0;
        for region in &decision.workspace.regions {
            assert!(region.offset >= end && region.offset.is_multiple_of(WORKSPACE_ALIGNMENT));
            end = region.offset + region.bytes;
        }
        assert!(decision.workspace.bytes >= end);
    });
}

#[test]
fn a_device_without_sms_is_refused() {
    for architecture in architectures() {
        let error = decide(&GqaDecode::default(), architecture, 0).unwrap_err();
        assert!(matches!(error, Error::Argument { argument: "sm_count", .. }), "{error}");
    }
}

#[test]
fn an_empty_batch_launches_nothing_and_needs_nothing() {
    for architecture in architectures() {
        for capacity in [0, 64, 4096] {
            let problem = GqaDecode { batch: 0, capacity, num_splits: Some(4), ..GqaDecode::default() };
            let decision = decide(&problem, architecture, 132).unwrap();
            assert_eq!((decision.launch, decision.workspace.bytes), (None, 0));
        }
    }
}

#[test]
fn a_shape_without_a_program_is_refused_with_the_list() {
    let problem = GqaDecode { query_heads: 40, ..GqaDecode::default() };
    for architecture in architectures() {
        let text = decide(&problem, architecture, 132).unwrap_err().to_string();
        let arch = architecture.arch;
        assert!(
            text.starts_with(&format!("gqa_decode on {arch}: no program for group_size 5, head_dim 128, f16")),
            "{text}"
        );
        assert!(text.contains("group_size 4, head_dim 128, f16"), "{text}");
    }
}

#[test]
fn every_row_of_a_route_table_says_why_it_does_not_serve() {
    let problem = GqaDecode { capacity: 4096, ..GqaDecode::default() };
    for architecture in architectures() {
        let considered = consider(&problem, architecture, 132).unwrap();
        assert_eq!(considered.len(), architecture.gqa_decode.routes.len());
        let chosen = considered.iter().find(|row| row.objection.is_none()).expect("one serves");
        assert_eq!(chosen.schedule, decide(&problem, architecture, 132).unwrap().schedule.name);
        assert!(considered.iter().filter_map(|row| row.objection.as_ref()).all(|reason| !reason.is_empty()));
    }
}

/// Route tables name schedules that exist; every schedule is compiled once; every shape is served at every capacity.
#[test]
fn tables_are_closed() {
    for architecture in architectures() {
        let table = &architecture.gqa_decode;
        for route in table.routes {
            assert!(table.schedules.iter().any(|s| s.name == route.then.schedule), "{}", route.then.schedule);
        }
        let mut names: Vec<String> = table.schedules.iter().map(Schedule::variant).collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "{}: a variant twice", architecture.arch);
        for schedule in table.schedules {
            for capacity in [1, 64, 128, 129, 100_000] {
                let problem = GqaDecode {
                    capacity,
                    query_heads: u64::from(schedule.group_size),
                    kv_heads: 1,
                    head_dim: u64::from(schedule.head_dim),
                    dtype: schedule.element.dtype(),
                    ..GqaDecode::default()
                };
                decide(&problem, architecture, 132).unwrap_or_else(|error| panic!("{problem:?}: {error}"));
            }
        }
    }
}

/// The shapes of the contract: the seed's everywhere, groups 1, 4, 8 with heads of 64 and 128 in both types on two.
#[test]
fn promised_shapes_are_served() {
    for architecture in architectures() {
        let full = matches!(architecture.arch, Arch::Sm90 | Arch::Sm110);
        for (group, head_dim, dtype) in [1, 4, 8]
            .into_iter()
            .flat_map(|group| [64, 128].map(|dim| (group, dim)))
            .flat_map(|(group, dim)| [DType::F16, DType::Bf16].map(|dtype| (group, dim, dtype)))
        {
            let seed = (group, head_dim, dtype) == (4, 128, DType::F16);
            let problem = GqaDecode { query_heads: 8 * group, head_dim, dtype, ..GqaDecode::default() };
            let served = decide(&problem, architecture, 132).is_ok();
            assert!(served || !(full || seed), "{}: {problem:?}", architecture.arch);
        }
    }
}

proptest! {
    /// No problem makes the planner panic or overflow; what it accepts fits the limits.
    #[test]
    fn any_problem_is_planned_or_refused(
        batch in size(),
        capacity in size(),
        (kv_heads, group) in (size(), prop_oneof![Just(1u64), Just(4), Just(8), size()]),
        head_dim in prop_oneof![Just(64u64), Just(128), size()],
        num_splits in prop_oneof![Just(None), (0u32..20).prop_map(Some)],
        q_scale in any::<f32>(),
        sm_count in any::<u32>(),
    ) {
        let query_heads = kv_heads.saturating_mul(group);
        let problem = GqaDecode { batch, capacity, query_heads, kv_heads, head_dim, num_splits, q_scale, ..GqaDecode::default() };
        for decision in planned_or_refused(&problem, sm_count)? {
            prop_assert_eq!(decision.launch.is_none(), batch == 0);
            if let Some(launch) = decision.launch {
                prop_assert!(launch.validate(decision.arch).is_ok());
                prop_assert_eq!(launch.ctas(), batch * kv_heads * u64::from(decision.splits));
            }
        }
    }
}
