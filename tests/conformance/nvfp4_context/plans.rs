//! Plans are pure, cover every tile once, and respect every limit.

use bakewell::nvfp4_context::{Decision, Family, Nvfp4Context, consider, decide};
use bakewell::schedule::Schedule;
use bakewell::schedule::nvfp4_context::{Engine, PACKS};
use bakewell::{Arch, DType, Error};
use bakewell_tests::plans::{self, SM_COUNTS, architectures, planned_or_refused, size};
use proptest::prelude::*;

fn problems() -> Vec<Nvfp4Context> {
    let mut problems = Vec::new();
    for batch in [1, 2, 7, 128] {
        for (max_q_len, max_kv_len) in [(1, 16), (1, 4096), (32, 32_768), (511, 2048), (512, 4096), (300, 10), (1, 0)] {
            for (q_heads, kv_heads) in [(8, 8), (32, 4), (32, 8), (9, 3), (16, 1)] {
                for num_splits in [None, Some(1), Some(3)] {
                    problems.push(Nvfp4Context {
                        family: Some(Family::Paged),
                        batch,
                        total_q: batch * max_q_len,
                        q_heads,
                        kv_heads,
                        max_pages: 2048,
                        max_q_len,
                        max_kv_len,
                        num_splits,
                        ..Nvfp4Context::default()
                    });
                }
            }
        }
    }
    problems
}

/// Plans of the paged family.
fn every_plan(check: impl FnMut(&Nvfp4Context, u32, &Decision)) {
    plans::every_plan(&problems(), &SM_COUNTS, check);
}

#[test]
fn equal_questions_get_equal_answers() {
    plans::equal_questions_get_equal_answers(&problems(), &SM_COUNTS);
    // What a device adds changes nothing.
    let problem = Nvfp4Context { family: Some(Family::Paged), ..Nvfp4Context::default() };
    let more = Nvfp4Context { lse: true, sinks: true, num_pages: 1 << 20, ..problem.clone() };
    for architecture in architectures() {
        assert_eq!(decide(&problem, architecture, 132).unwrap(), decide(&more, architecture, 132).unwrap());
    }
}

/// The kernels' walk: round `r` deals work item `r * grid + cta` forth and, every other round, back.
fn dealt(work_items: u32, grid: u32) -> Vec<u32> {
    let rounds = work_items.div_ceil(grid);
    let item = |round: u32, cta: u32| round * grid + if round.is_multiple_of(2) { cta } else { grid - 1 - cta };
    let all = (0..grid).flat_map(|cta| (0..rounds).map(move |round| item(round, cta)));
    all.filter(|&item| item < work_items).collect()
}

/// Every (request, pack of heads, tile of tokens, split) is one work item, and every item is dealt to one CTA.
#[test]
fn every_tile_is_covered_exactly_once() {
    every_plan(|problem, sm_count, decision| {
        let what = format!("{problem:?} on {} with {sm_count} SMs: {decision}", decision.arch);
        let schedule = decision.schedule;
        let launch = decision.launch.expect("not empty");
        // A cluster works off one tile after another, as a CTA alone does.
        let cluster = schedule.cluster();
        assert!(cluster * launch.grid[0] <= sm_count.max(cluster), "{what}");
        assert_eq!((launch.grid[1..].to_vec(), launch.cluster), (vec![cluster, 1], [1, cluster, 1]), "{what}");
        assert_eq!(u64::from(decision.units_per_request * schedule.pack), problem.q_heads, "{what}");
        assert_eq!(u64::from(decision.units), problem.batch * u64::from(decision.units_per_request), "{what}");
        // Heads of a pack share a KV head.
        assert!((problem.q_heads / problem.kv_heads).is_multiple_of(schedule.pack.into()), "{what}");
        let tokens = u64::from(schedule.tile_tokens());
        assert!(u64::from(decision.m_blocks) * tokens >= problem.max_q_len, "{what}");
        assert!(u64::from(decision.m_blocks - 1) * tokens < problem.max_q_len, "{what}");
        assert_eq!(decision.work_items, decision.units * decision.m_blocks * decision.splits, "{what}");
        assert_eq!(schedule.split, decision.splits > 1, "{what}");
        let mut items = dealt(decision.work_items, launch.grid[0]);
        items.sort_unstable();
        assert!(items.into_iter().eq(0..decision.work_items), "{what}");
    });
}

/// Splits of a tile, from the last block down: `share` blocks each, the rest empty.
#[test]
fn splits_cover_every_block_once() {
    for splits in 1..=Nvfp4Context::MAX_SPLITS {
        for blocks in [1, 2, 3, 31, 32, 63, 64, 65, 256, 1000] {
            let share = u32::div_ceil(blocks, splits);
            let mut next = blocks;
            for split in 0..splits {
                let end = blocks.saturating_sub(split * share);
                assert_eq!(end, next);
                next = end.saturating_sub(share);
            }
            assert_eq!(next, 0, "{blocks} blocks, {splits} splits");
        }
    }
}

#[test]
fn limits_and_workspace_are_what_the_contract_says() {
    every_plan(|problem, sm_count, decision| {
        let what = format!("{problem:?} on {} with {sm_count} SMs: {decision}", decision.arch);
        let (limits, launch) = (decision.arch.limits(), decision.launch.unwrap());
        launch.validate(decision.arch).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(launch.dynamic_shared_bytes <= limits.shared_bytes_per_cta, "{what}");
        if let Some(requested) = problem.num_splits {
            assert_eq!(decision.splits, requested, "{what}");
        } else if decision.splits > 1 {
            assert!(decision.work_items <= sm_count, "splits only fill idle SMs: {what}");
        }
        if decision.splits == 1 {
            assert_eq!(decision.workspace.bytes, 0, "{what}");
            return;
        }
        let region = |name| decision.workspace.region(name).expect("the region");
        let rows = match decision.merge {
            // Rows of the output, a warp of the merge each.
            Some(merge) => {
                let rows = problem.total_q * problem.q_heads;
                assert_eq!(merge.launch.grid.map(u64::from), [rows.div_ceil(8), 1, 1], "{what}");
                assert!(merge.launch.block == 256 && what.contains("nvfp4_context-merge"), "{what}");
                assert!(decision.workspace.region("completed").is_none(), "{what}");
                rows
            }
            // Rows of whole tiles, and a counter for each tile.
            None => {
                let tiles = u64::from(decision.units * decision.m_blocks);
                assert_eq!((region("completed").dtype, region("completed").bytes), (DType::U32, tiles * 4), "{what}");
                tiles * 2 * u64::from(decision.schedule.half_rows())
            }
        };
        assert_eq!(decision.merge.is_some(), decision.arch == Arch::Sm90, "{what}");
        let rows = rows * u64::from(decision.splits);
        assert_eq!(region("partial_out").bytes, rows * 128 * 4, "{what}");
        assert_eq!(region("partial_max").bytes, rows * 4, "{what}");
        assert_eq!(region("partial_sum").bytes, rows * 4, "{what}");
    });
}

/// Few queries take the pack of the whole group, ties and groups without a program take single heads.
#[test]
fn packs_follow_the_work() {
    for architecture in architectures() {
        let pack = |q_heads, kv_heads, max_q_len, max_kv_len| {
            let problem = Nvfp4Context {
                q_heads,
                kv_heads,
                max_q_len,
                max_kv_len,
                total_q: max_q_len,
                max_pages: 4096,
                family: Some(Family::Paged),
                ..Nvfp4Context::default()
            };
            decide(&problem, architecture, 148).unwrap().schedule.pack
        };
        for group in PACKS {
            assert_eq!(pack(u64::from(group) * 2, 2, 1, 4096), group, "one query");
        }
        assert_eq!(pack(6, 2, 1, 4096), 1, "groups of three have no program");
        assert_eq!(pack(8, 2, 64, 256), 4);
        assert_eq!(pack(16, 1, 9, 200), 16);
        // Without keys nobody does work, and a tie goes to the single heads.
        assert_eq!(pack(32, 4, 1, 0), 1);
    }
}

/// Up to 16 query rows decode on sm90, in one wave or less where keys are split, and the merge is either all in a
/// cluster or has a workspace.
#[test]
fn few_query_rows_decode() {
    let sm90 = architectures().find(|architecture| architecture.arch == Arch::Sm90).unwrap();
    let mut decoded = 0;
    for sm_count in SM_COUNTS {
        for pinned in problems() {
            let problem = Nvfp4Context { family: None, ..pinned };
            let decision = decide(&problem, sm90, sm_count).unwrap();
            let what = format!("{problem:?} with {sm_count} SMs: {decision}");
            let rows = problem.max_q_len * problem.group_size().unwrap();
            let Engine::Decode(engine) = decision.schedule.engine else {
                assert!(rows > 16, "{what}");
                continue;
            };
            decoded += 1;
            assert!(rows <= engine.columns.into() && (rows > 8) == (engine.columns == 16), "{what}");
            let launch = decision.launch.unwrap();
            launch.validate(Arch::Sm90).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(launch.grid.map(u64::from), [problem.batch, decision.splits.into(), problem.kv_heads], "{what}");
            assert_eq!(decision.units, launch.grid[0] * launch.grid[2], "{what}");
            assert!(launch.cluster[1] <= 8 && decision.splits.is_multiple_of(launch.cluster[1]), "{what}");
            match problem.num_splits {
                Some(requested) => assert_eq!(decision.splits, requested, "{what}"),
                None if decision.splits == 1 => {}
                None => {
                    assert!(decision.work_items <= sm_count * engine.min_ctas_per_sm, "{what}");
                    let blocks = problem.max_kv_len.div_ceil(128) / u64::from(decision.splits);
                    assert!(blocks >= if decision.splits > 8 { 8 } else { 1 }, "{what}");
                }
            }
            let clusters = u64::from(decision.splits / launch.cluster[1]);
            if clusters == 1 {
                assert_eq!(decision.workspace.bytes, 0, "{what}");
                continue;
            }
            let rows = u64::from(decision.units) * u64::from(engine.columns) * clusters;
            let region = |name| decision.workspace.region(name).expect("the region").bytes;
            let sizes = ["partial_out", "partial_max", "partial_sum", "completed"].map(region);
            assert_eq!(sizes, [rows * 512, rows * 4, rows * 4, u64::from(decision.units) * 4], "{what}");
        }
    }
    assert!(decoded > 0);
}

/// Many query rows over many keys expand the cache on sm90: a CTA for each block of each head of each request, and a
/// workspace of their tiles, which stays below a GiB unless the family is pinned.
#[test]
fn many_query_rows_expand_the_cache() {
    let sm90 = architectures().find(|architecture| architecture.arch == Arch::Sm90).unwrap();
    let mut expanded = 0;
    for pinned in problems() {
        for family in [None, Some(Family::Expanded)] {
            let problem = Nvfp4Context { family, ..pinned.clone() };
            let decision = decide(&problem, sm90, 132).unwrap();
            let what = format!("{problem:?}: {decision}");
            let blocks = problem.max_kv_len.div_ceil(128).max(1);
            let bytes = problem.batch * problem.kv_heads * blocks * 2 * 128 * 128;
            let rows = problem.max_q_len * problem.group_size().unwrap();
            let keys = problem.max_kv_len;
            let many = (rows >= 512 && keys >= 512) || (rows > 256 && keys >= 32_768);
            let wanted = family.is_some() || (many && bytes <= 1 << 30);
            assert_eq!(decision.schedule.family() == Family::Expanded, wanted, "{what}");
            // A third half where the device is full without splits, which it has more of.
            let full = problem.batch * problem.kv_heads * rows > 128 * 132;
            let three = decision.schedule.query_halves() == 3;
            assert_eq!(three, rows >= 512 && keys >= 512 && full && bytes <= 1 << 30, "{what}");
            let Some(expansion) = decision.expansion else {
                assert!(!wanted, "{what}");
                continue;
            };
            expanded += 1;
            expansion.launch.validate(Arch::Sm90).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(u64::from(expansion.key_blocks), blocks, "{what}");
            let ctas = problem.batch * problem.kv_heads * blocks;
            assert_eq!(expansion.launch.grid.map(u64::from), [ctas, 1, 1], "{what}");
            assert_eq!(decision.workspace.region("expanded").unwrap().bytes, bytes, "{what}");
            assert_eq!(decision.merge.is_some(), decision.splits > 1, "{what}");
            assert!(what.contains("sm90/nvfp4_context-dequantise"), "{what}");
        }
    }
    assert!(expanded > 0);
}

/// The first row of the route table without an objection is the plan's; the others say why not.
#[test]
fn every_row_that_is_not_taken_says_why() {
    let mut taken = 0;
    for problem in problems().into_iter().filter(|problem| problem.num_splits.is_none()) {
        for (family, schedule) in
            [(None, None), (Some(Family::Paged), None), (Some(Family::Decode), None), (None, Some("paged_k2"))]
        {
            let problem = Nvfp4Context { family, schedule: schedule.map(str::to_owned), ..problem.clone() };
            for architecture in architectures() {
                let rows = consider(&problem, architecture, 132).unwrap();
                let first = rows.iter().find(|row| row.objection.is_none()).map(|row| row.schedule);
                match decide(&problem, architecture, 132) {
                    Ok(decision) => assert_eq!(first, Some(decision.schedule.name), "{problem:?}"),
                    Err(error) => assert!(matches!(error, Error::NoProgram { .. }) && first.is_none(), "{error}"),
                }
                let pinned = rows.iter().filter_map(|row| row.objection.as_ref()).all(|objection| {
                    objection.starts_with("needs ")
                        || (objection.starts_with("the problem is pinned to ")
                            && (family.is_some() || schedule.is_some()))
                });
                assert!(pinned, "{rows:?}");
                taken += usize::from(schedule.is_some() && first.is_some());
            }
        }
    }
    assert!(taken > 0, "the pin is kept where there is such a schedule");
}

/// A pinned family is taken or refused by name.
#[test]
fn a_pinned_family_is_kept() {
    for architecture in architectures() {
        let many = Nvfp4Context { max_q_len: 5, total_q: 5, family: Some(Family::Decode), ..Nvfp4Context::default() };
        let error = decide(&many, architecture, 132).unwrap_err();
        assert!(
            matches!(error, Error::NoProgram { .. }) && error.to_string().contains("decode family for 20 query rows"),
            "{error}"
        );
        if architecture.arch != Arch::Sm90 {
            let error = decide(&Nvfp4Context { family: Some(Family::Expanded), ..many.clone() }, architecture, 132);
            assert!(error.unwrap_err().to_string().contains("expanded family for 20 query rows"));
        }
        let paged = Nvfp4Context { family: Some(Family::Paged), ..Nvfp4Context::default() };
        assert_eq!(decide(&paged, architecture, 132).unwrap().schedule.family(), Family::Paged);
    }
}

#[test]
fn tables_are_closed() {
    for architecture in architectures() {
        let table = &architecture.nvfp4_context;
        let mut names: Vec<String> = table.schedules.iter().map(Schedule::variant).collect();
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "{}: a variant twice", architecture.arch);
        for route in table.routes {
            assert!(table.schedules.iter().any(|s| s.name == route.then.schedule), "{}", route.then.schedule);
        }
        let compiled = |pack, split| table.schedules.iter().any(|s| (s.pack, s.split) == (pack, split));
        for pack in PACKS {
            assert!(compiled(pack, false) && compiled(pack, true), "{}: pack {pack}, both ways", architecture.arch);
        }
    }
}

proptest! {
    /// No problem makes the planner panic or overflow; what it accepts fits the limits.
    #[test]
    fn any_problem_is_planned_or_refused(
        (batch, total_q) in (size(), size()),
        (kv_heads, group) in (size(), prop_oneof![Just(1u64), Just(4), Just(8), size()]),
        (max_q_len, max_kv_len) in (0u64..100_000, size()),
        max_pages in size(),
        num_splits in prop_oneof![Just(None), (0u32..80).prop_map(Some)],
        sm_count in any::<u32>(),
    ) {
        let q_heads = kv_heads.saturating_mul(group);
        let problem = Nvfp4Context {
            batch, total_q, q_heads, kv_heads, max_q_len, max_kv_len, max_pages, num_splits, ..Nvfp4Context::default()
        };
        for decision in planned_or_refused(&problem, sm_count)? {
            prop_assert_eq!(decision.launch.is_none(), problem.is_empty());
            if let Some(launch) = decision.launch {
                prop_assert!(launch.validate(decision.arch).is_ok());
                let persistent = decision.schedule.family() != Family::Decode;
                prop_assert!(!persistent || launch.grid[0] <= sm_count);
            }
        }
    }
}
