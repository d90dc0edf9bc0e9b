//! Plans are pure, respect every limit, and choose schedules that are compiled.

use bakewell::Arch;
use bakewell::nvfp4_pre_attention::{Decision, Nvfp4PreAttention, OutputFormat, consider, decide};
use bakewell::route::Bound;
use bakewell::schedule::nvfp4_pre_attention::{Tables, facts};
use bakewell_tests::plans::{self, SM_COUNTS, architectures, planned_or_refused, size};
use proptest::prelude::*;

/// One SM is too few for a cluster of the Hopper GEMM.
fn sm_counts() -> &'static [u32] {
    &SM_COUNTS[1..]
}

fn problems() -> Vec<Nvfp4PreAttention> {
    let mut problems = Vec::new();
    for tokens in [1, 63, 128, 129, 4184, 6096, 33_472, 109_952, 1_597_829] {
        for (hidden, heads) in [(256, 2), (320, 4), (5376, 56), (768, 8)] {
            for (destinations, rope_dim) in [(1, 96), (2, 96), (4, 64), (8, 16)] {
                for out_format in [OutputFormat::Nvfp4, OutputFormat::E4m3] {
                    if heads % destinations == 0 {
                        let base = Nvfp4PreAttention::default();
                        problems.push(Nvfp4PreAttention {
                            tokens,
                            hidden,
                            heads,
                            destinations,
                            rope_dim,
                            out_format,
                            ..base
                        });
                    }
                }
            }
        }
    }
    problems
}

fn every_plan(check: impl FnMut(&Nvfp4PreAttention, u32, &Decision)) {
    plans::every_plan(&problems(), sm_counts(), check);
}

#[test]
fn equal_questions_get_equal_answers() {
    plans::equal_questions_get_equal_answers(&problems(), sm_counts());
    // What a kernel reads at run time changes nothing.
    let problem = Nvfp4PreAttention::default();
    let more = Nvfp4PreAttention { debug: true, eps: 1.0, table_rows: 1, ..problem.clone() };
    for architecture in architectures() {
        assert_eq!(decide(&problem, architecture, 132).unwrap(), decide(&more, architecture, 132).unwrap());
    }
}

#[test]
fn launches_are_what_the_contract_says() {
    every_plan(|problem, sm_count, decision| {
        let what = format!("{problem:?} on {} with {sm_count} SMs: {decision}", decision.arch);
        let launches = decision.launches.expect("not empty");
        for launch in [launches.norm, launches.gemm] {
            launch.validate(decision.arch).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(launch.dynamic_shared_bytes <= decision.arch.limits().shared_bytes_per_cta, "{what}");
        }
        // Two rows a CTA, and those that round them up to whole scale tiles: enough CTAs for every destination's
        // padding.
        assert_eq!(u64::from(launches.norm.grid[0]) * 2, problem.tokens.next_multiple_of(128), "{what}");
        assert!(u64::from(launches.norm.grid[0]) >= problem.destinations, "{what}");
        let gemm = decision.gemm.schedule();
        assert_eq!(launches.gemm.block, gemm.budgets().threads, "{what}");
        assert!(gemm.variant().ends_with(problem.out_format.name()), "{what}");
        assert_eq!(decision.norm.hidden == 5376, problem.hidden == 5376, "{what}");
        if decision.arch == Arch::Sm90 {
            let image = problem.tokens.next_multiple_of(128) * problem.hidden * 2;
            assert_eq!(decision.workspace.bytes, image, "{what}");
            assert!(launches.gemm.grid[0] <= sm_count, "{what}");
        } else {
            assert_eq!(decision.workspace.bytes, 0, "{what}");
        }
    });
}

/// The first row of each table without an objection is the one taken, and every row before it says what it needs.
#[test]
fn rows_that_are_not_taken_say_why() {
    for architecture in architectures() {
        for problem in problems() {
            let decision = decide(&problem, architecture, 132).unwrap();
            let considered = consider(&problem, architecture, 132).unwrap();
            let gemm = decision.gemm.schedule().variant();
            let wanted = [("norm", decision.norm.name), ("GEMM", gemm.rsplit_once('_').unwrap().0)];
            for (table, name) in wanted {
                let mut rows = considered.iter().filter(|row| row.table == table);
                let taken = rows.find(|row| row.objection.is_none()).unwrap();
                assert_eq!(taken.schedule, name, "{problem:?} on {}", architecture.arch);
            }
            let objections = considered.iter().filter_map(|row| row.objection.as_ref());
            assert!(objections.clone().all(|objection| objection.starts_with("needs ")));
            if architecture.arch == Arch::Sm103 && problem.rope_dim != 96 {
                assert!(objections.clone().any(|objection| objection == "needs rope_dim = 96"));
            }
        }
    }
}

#[test]
fn tables_are_closed() {
    for architecture in architectures() {
        let Tables { norm, tcgen05, wgmma, .. } = &architecture.nvfp4_pre_attention;
        let arch = architecture.arch;
        for route in norm.routes {
            assert!(norm.schedules.iter().any(|s| s.name == route.then.schedule), "{arch}: {}", route.then.schedule);
        }
        let gemms: Vec<_> = tcgen05.schedules.iter().map(|s| (s.name, s.output)).collect();
        let gemms = [gemms, wgmma.schedules.iter().map(|s| (s.name, s.output)).collect()].concat();
        for route in tcgen05.routes.iter().chain(wgmma.routes) {
            let formats: &[OutputFormat] = match route.when.contains(&Bound::equal(facts::ROW_BYTES, 64)) {
                true => &[OutputFormat::Nvfp4],
                false => &[OutputFormat::Nvfp4, OutputFormat::E4m3],
            };
            for &output in formats {
                let named = |&&(name, format): &&(&str, OutputFormat)| (name, format) == (route.then.schedule, output);
                assert_eq!(gemms.iter().filter(named).count(), 1, "{arch}: {}", route.then.schedule);
            }
        }
    }
}

#[test]
fn a_plan_says_what_it_will_do() {
    let hopper = bakewell::architectures::find(Arch::Sm90).unwrap().architecture;
    let decision = decide(&Nvfp4PreAttention::default(), hopper, 132).unwrap();
    assert_eq!(
        decision.to_string(),
        "sm90/nvfp4_pre_attention-norm_h5376: grid 3072x1x1, cluster 1, block 128, 1040 shared bytes; \
         sm90/nvfp4_pre_attention-gemm_k6_nvfp4: grid 132x1x1, cluster 2, block 384, 214016 shared bytes, two launches, \
         workspace 66060288 bytes, no copies"
    );
}

proptest! {
    /// No problem makes the planner panic or overflow; what it accepts fits the limits.
    #[test]
    fn any_problem_is_planned_or_refused(
        (tokens, table_rows) in (size(), size()),
        hidden in prop_oneof![(4u64..300).prop_map(|sets| 64 * sets), size()],
        heads in prop_oneof![(1u64..100).prop_map(|pairs| 2 * pairs), size()],
        (destinations, rope_dim) in (0u64..9, (0u64..10).prop_map(|blocks| 16 * blocks)),
        e4m3 in any::<bool>(),
        sm_count in any::<u32>(),
    ) {
        let problem = Nvfp4PreAttention {
            tokens, hidden, heads, destinations, rope_dim, table_rows,
            out_format: if e4m3 { OutputFormat::E4m3 } else { OutputFormat::Nvfp4 },
            ..Nvfp4PreAttention::default()
        };
        for decision in planned_or_refused(&problem, sm_count)? {
            prop_assert_eq!(decision.launches.is_none(), problem.is_empty());
            for launch in decision.launches.iter().flat_map(|launches| [launches.norm, launches.gemm]) {
                prop_assert!(launch.validate(decision.arch).is_ok());
            }
        }
    }
}
