//! The pure planner: from problem, architecture and SM count to pack, splits, geometry and workspace.

use std::fmt;

use bakewell_core::program::program_name;
use bakewell_core::route::{Considered, Facts, Route};
use bakewell_core::schedule::Schedule as _;
use bakewell_core::schedule::nvfp4_context::{
    BLOCK_KEYS, Choice, Engine, Family, HEAD_DIM, Nvfp4Context as Schedule, TILE_BYTES, facts,
};
use bakewell_core::{Arch, Architecture, DType, Error, LaunchConfig, Operation, Result};

use super::Nvfp4Context;
use crate::plan::{check_sm_count, count, describe};
use crate::workspace::WorkspaceLayout;

/// What a plan is: everything about a launch but the tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Architecture of the program.
    pub arch: Arch,
    /// Schedule of the program.
    pub schedule: &'static Schedule,
    /// Packs of query heads of one request; groups where the kernel decodes.
    pub units_per_request: u32,
    /// The same of all requests.
    pub units: u32,
    /// Tiles along the queries of the longest request.
    pub m_blocks: u32,
    /// CTAs that share a tile's keys.
    pub splits: u32,
    /// Tiles times splits.
    pub work_items: u32,
    /// The launch before, which expands the cache into the workspace.
    pub expansion: Option<Expansion>,
    /// Geometry; `None` for an empty problem, which launches nothing.
    pub launch: Option<LaunchConfig>,
    /// The launch after, which merges split tiles.
    pub merge: Option<Merge>,
    /// `expanded` where a launch expands the cache; `partial_out`, `partial_max` and `partial_sum` where splits merge
    /// through global memory, `completed` where the last CTA of a tile merges them.
    pub workspace: WorkspaceLayout,
    /// Tensors that a launch would copy. This operation copies none.
    pub copies: Vec<String>,
}

/// A launch that expands the blocks of keys of every request, each once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expansion {
    /// Schedule of its program.
    pub schedule: &'static Schedule,
    /// Blocks of keys of the longest request, at least one.
    pub key_blocks: u32,
    /// Geometry.
    pub launch: LaunchConfig,
}

/// A launch that merges split tiles, a warp for each row of the output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Merge {
    /// Schedule of its program.
    pub schedule: &'static Schedule,
    /// Geometry.
    pub launch: LaunchConfig,
}

impl Decision {
    /// Name of the program: `sm103/nvfp4_context-paged_k8_g8`.
    pub fn program(&self) -> String {
        program_name(self.arch, Operation::Nvfp4Context, &self.schedule.variant())
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut details = match self.schedule.family() {
            Family::Paged | Family::Expanded => format!("pack {}, splits {}", self.schedule.pack, self.splits),
            Family::Decode => format!("splits {}", self.splits),
        };
        let name = |schedule: &Schedule| program_name(self.arch, Operation::Nvfp4Context, &schedule.variant());
        let mut programs = self.program();
        if let Some(Expansion { schedule, launch, .. }) = &self.expansion {
            programs = format!("{}: {launch}; {programs}", name(schedule));
        }
        if let Some(Merge { schedule, launch }) = &self.merge {
            details = format!("{details}, then {}: {launch}", name(schedule));
        }
        describe(f, &programs, self.launch.as_ref(), details, &self.workspace, &self.copies)
    }
}

/// Plans a problem for a device with `sm_count` SMs of an architecture. Pure: equal arguments give equal decisions.
///
/// # Errors
/// [`Error::Argument`] for a problem that breaks the contract or overflows the kernels' 32-bit counts,
/// [`Error::NoProgram`] when the architecture has none.
pub fn decide(problem: &Nvfp4Context, architecture: &'static Architecture, sm_count: u32) -> Result<Decision> {
    problem.validate()?;
    check_sm_count(sm_count)?;
    let (choice, first) = route(problem, architecture)?;
    match first.family() {
        Family::Paged | Family::Expanded => tiled(problem, architecture, choice, sm_count),
        Family::Decode => decode(problem, architecture, first, choice, sm_count),
    }
}

/// Asks every row of the route table. The first without an objection is taken.
///
/// # Errors
/// As [`decide()`], except [`Error::NoProgram`].
pub fn consider(problem: &Nvfp4Context, architecture: &'static Architecture, sm_count: u32) -> Result<Vec<Considered>> {
    problem.validate()?;
    check_sm_count(sm_count)?;
    let facts = facts(problem)?;
    let considered = |route: &'static Route<Choice>| Considered {
        table: "attention",
        when: route.when,
        schedule: route.then.schedule,
        details: String::new(),
        objection: verdict(problem, architecture, &facts, route).err(),
    };
    Ok(architecture.nvfp4_context.routes.iter().map(considered).collect())
}

/// The first schedule of a row's name, or why the row does not serve the problem.
fn verdict(
    problem: &Nvfp4Context,
    architecture: &'static Architecture,
    facts: &Facts,
    route: &Route<Choice>,
) -> Result<&'static Schedule, String> {
    if let Some(bound) = route.objection(facts) {
        return Err(format!("needs {bound}"));
    }
    let name = route.then.schedule;
    let mut schedules = architecture.nvfp4_context.schedules.iter();
    let schedule = schedules.find(|schedule| schedule.name == name).ok_or_else(|| format!("{name} is not compiled"))?;
    let elsewhere = problem.family.is_some_and(|family| family != schedule.family())
        || problem.schedule.as_ref().is_some_and(|pinned| pinned != name);
    if elsewhere { Err(format!("the problem is pinned to {}", pins(problem))) } else { Ok(schedule) }
}

/// What a problem is pinned to, in words.
fn pins(problem: &Nvfp4Context) -> String {
    let family = problem.family.map(|family| format!("{family:?}").to_lowercase());
    let schedule = problem.schedule.as_ref().map_or(String::new(), |name| format!(" and the schedule {name}"));
    format!("{} family{schedule}", family.as_deref().unwrap_or("any"))
}

fn facts(problem: &Nvfp4Context) -> Result<Facts> {
    let heads = problem.batch.saturating_mul(problem.kv_heads);
    Ok(Facts(vec![
        (facts::QUERY_ROWS, query_rows(problem)?),
        (facts::ALL_ROWS, heads.saturating_mul(query_rows(problem)?)),
        (facts::KV_HEADS, problem.kv_heads),
        (facts::MAX_KEYS, problem.max_kv_len),
        (facts::EXPANDED_BYTES, heads.saturating_mul(longest_blocks(problem)).saturating_mul(EXPANDED_BLOCK)),
    ]))
}

fn query_rows(problem: &Nvfp4Context) -> Result<u64> {
    Ok(problem.max_q_len.saturating_mul(problem.group_size()?))
}

/// The first row of the route table that serves the problem, and the first schedule of its name.
fn route(problem: &Nvfp4Context, architecture: &'static Architecture) -> Result<(Choice, &'static Schedule)> {
    let facts = facts(problem)?;
    let serves = |route: &Route<Choice>| Some((route.then, verdict(problem, architecture, &facts, route).ok()?));
    let rows = query_rows(problem)?;
    let routes = architecture.nvfp4_context.routes;
    routes
        .iter()
        .find_map(serves)
        .ok_or_else(|| no_program(architecture, &format!("{} for {rows} query rows", pins(problem))))
}

/// Tiles of query rows, dealt to as many CTAs as there are SMs.
fn tiled(
    problem: &Nvfp4Context,
    architecture: &'static Architecture,
    choice: Choice,
    sm_count: u32,
) -> Result<Decision> {
    let arch = architecture.arch;
    let table = &architecture.nvfp4_context;
    let find = |pack: u64, split: bool| {
        let mut named = table.schedules.iter().filter(|schedule| schedule.name == choice.schedule);
        named.find(|schedule| u64::from(schedule.pack) == pack && schedule.split == split)
    };
    let single = find(1, false).ok_or_else(|| no_program(architecture, "pack 1"))?;
    let packed = find(problem.group_size()?, false);
    let rows_tiles = problem.max_q_len.div_ceil(single.tile_tokens().into());
    let tiles = problem.batch.saturating_mul(problem.q_heads).saturating_mul(rows_tiles);
    let several_each = (u64::from(sm_count) + 1..=MOST_TILES.into()).contains(&tiles);
    let packs = |packed: &&Schedule| match packed.family() {
        Family::Expanded if several_each => ends_sooner(problem, packed, single, sm_count),
        _ => packs_better(problem, packed, single),
    };
    let unsplit = packed.filter(packs).unwrap_or(single);

    let m_blocks = tile_count("max_q_len", problem.max_q_len.div_ceil(unsplit.tile_tokens().into()))?;
    let units_per_request = tile_count("q_heads", problem.q_heads / u64::from(unsplit.pack))?;
    let units = tile_count("batch", problem.batch.saturating_mul(units_per_request.into()))?;
    let tiles = tile_count("batch", u64::from(units) * u64::from(m_blocks))?;
    // A device has pairs of SMs for the pairs of CTAs; one CTA or cluster works off the rest.
    let walkers = (sm_count / unsplit.cluster()).max(1);
    let splits = problem.num_splits.unwrap_or_else(|| splits(&choice, tiles, problem.max_kv_len, walkers));
    let work_items = tile_count("num_splits", u64::from(tiles).saturating_mul(splits.into()))?;
    let schedule = match splits {
        1 => unsplit,
        _ => find(unsplit.pack.into(), true).ok_or_else(|| no_program(architecture, "split keys"))?,
    };
    let expansion = match schedule.family() {
        Family::Expanded => Some(expansion(problem, architecture)?),
        _ => None,
    };
    let merge = match splits {
        2.. if schedule.merges_by_launch() => Some(merge(problem, architecture)?),
        _ => None,
    };
    let partials = match merge {
        Some(_) => [problem.total_q, problem.q_heads, splits.into()],
        None => [tiles.into(), splits.into(), u64::from(schedule.query_halves() * schedule.half_rows())],
    };
    finish(
        problem,
        Decision {
            arch,
            schedule,
            units_per_request,
            units,
            m_blocks,
            splits,
            work_items,
            expansion,
            launch: Some(LaunchConfig {
                grid: [work_items.min(walkers), schedule.cluster(), 1],
                cluster: [1, schedule.cluster(), 1],
                block: schedule.threads(),
                dynamic_shared_bytes: schedule.dynamic_shared_bytes(),
                programmatic_serialization: false,
            }),
            merge,
            workspace: WorkspaceLayout::default(),
            copies: Vec::new(),
        },
        (splits > 1).then_some(&partials),
    )
}

/// Bytes of a block of keys of one head as expanded tiles of K and V.
const EXPANDED_BLOCK: u64 = 2 * TILE_BYTES as u64;

/// Blocks of keys of the longest request. A request without keys has one, of zeros.
fn longest_blocks(problem: &Nvfp4Context) -> u64 {
    problem.max_kv_len.div_ceil(BLOCK_KEYS.into()).max(1)
}

/// Grid: a CTA for each block of keys of each head of each request.
fn expansion(problem: &Nvfp4Context, architecture: &'static Architecture) -> Result<Expansion> {
    let mut schedules = architecture.nvfp4_context.schedules.iter();
    let schedule = schedules
        .find(|schedule| matches!(schedule.engine, Engine::Expand(_)))
        .ok_or_else(|| no_program(architecture, "expansion of the cache"))?;
    let key_blocks = tile_count("max_kv_len", longest_blocks(problem))?;
    let heads = problem.batch.saturating_mul(problem.kv_heads);
    let ctas = tile_count("max_kv_len", heads.saturating_mul(key_blocks.into()))?;
    Ok(Expansion {
        schedule,
        key_blocks,
        launch: LaunchConfig {
            grid: [ctas, 1, 1],
            cluster: [1, 1, 1],
            block: schedule.threads(),
            dynamic_shared_bytes: schedule.dynamic_shared_bytes(),
            programmatic_serialization: false,
        },
    })
}

/// Grid: a warp for each row of the output.
fn merge(problem: &Nvfp4Context, architecture: &'static Architecture) -> Result<Merge> {
    let mut schedules = architecture.nvfp4_context.schedules.iter();
    let schedule = schedules
        .find(|schedule| matches!(schedule.engine, Engine::Merge))
        .ok_or_else(|| no_program(architecture, "merge of split keys"))?;
    let rows = problem.total_q.saturating_mul(problem.q_heads);
    let ctas = tile_count("total_q", rows.div_ceil(u64::from(schedule.threads() / 32)))?;
    Ok(Merge {
        schedule,
        launch: LaunchConfig {
            grid: [ctas, 1, 1],
            cluster: [1, 1, 1],
            block: schedule.threads(),
            dynamic_shared_bytes: schedule.dynamic_shared_bytes(),
            programmatic_serialization: false,
        },
    })
}

/// Grid `[batch, splits, kv_heads]`: a unit is a request and a KV head with its whole group.
fn decode(
    problem: &Nvfp4Context,
    architecture: &'static Architecture,
    schedule: &'static Schedule,
    choice: Choice,
    sm_count: u32,
) -> Result<Decision> {
    let Engine::Decode(engine) = schedule.engine else {
        return Err(no_program(architecture, "a decode kernel"));
    };
    // Bounded by the route.
    let units_per_request = tile_count("kv_heads", problem.kv_heads)?;
    let batch = tile_count("batch", problem.batch)?;
    let units = tile_count("batch", problem.batch.saturating_mul(units_per_request.into()))?;
    let ctas = sm_count.saturating_mul(engine.min_ctas_per_sm);
    let splits = problem.num_splits.unwrap_or_else(|| decode_splits(&choice, units, problem.max_kv_len, ctas));
    let cluster = decode_cluster(splits);
    let work_items = tile_count("num_splits", u64::from(units).saturating_mul(splits.into()))?;
    let rows = [units.into(), engine.columns.into(), u64::from(splits / cluster)];
    finish(
        problem,
        Decision {
            arch: architecture.arch,
            schedule,
            units_per_request,
            units,
            m_blocks: 1,
            splits,
            work_items,
            expansion: None,
            launch: Some(LaunchConfig {
                grid: [batch, splits, units_per_request],
                cluster: [1, cluster, 1],
                block: schedule.threads(),
                dynamic_shared_bytes: schedule.dynamic_shared_bytes(),
                programmatic_serialization: engine.pdl,
            }),
            merge: None,
            workspace: WorkspaceLayout::default(),
            copies: Vec::new(),
        },
        (splits > cluster).then_some(&rows),
    )
}

/// Checks the geometry, adds a workspace for expanded tiles and one for partial results of shape `rows`, or drops all
/// that an empty problem does not need.
fn finish(problem: &Nvfp4Context, mut decision: Decision, partials: Option<&[u64; 3]>) -> Result<Decision> {
    if problem.is_empty() {
        (decision.launch, decision.expansion, decision.merge) = (None, None, None);
    }
    if let Some(Expansion { key_blocks, launch, .. }) = &decision.expansion {
        launch.validate(decision.arch)?;
        let shape = [problem.batch, problem.kv_heads, u64::from(*key_blocks), EXPANDED_BLOCK];
        decision.workspace.push("expanded", DType::U8, &shape)?;
    }
    if let Some(launch) = &decision.launch {
        launch.validate(decision.arch)?;
        if let Some(rows) = partials {
            let layout = &mut decision.workspace;
            layout.push("partial_out", DType::F32, &[rows[0], rows[1], rows[2], HEAD_DIM.into()])?;
            layout.push("partial_max", DType::F32, rows)?;
            layout.push("partial_sum", DType::F32, rows)?;
            match &decision.merge {
                Some(merge) => merge.launch.validate(decision.arch)?,
                // A counter for each tile.
                None => layout.push("completed", DType::U32, &rows[..1])?,
            }
        }
    }
    Ok(decision)
}

/// Whether a tile of packed heads does less work than tiles of single heads. Ties go to the single.
fn packs_better(problem: &Nvfp4Context, packed: &Schedule, single: &Schedule) -> bool {
    let blocks = |schedule: &Schedule| key_blocks(problem.max_q_len, problem.max_kv_len, schedule.tile_tokens().into());
    packed.pack > 1 && i128::from(problem.kv_heads) * blocks(packed) < i128::from(problem.q_heads) * blocks(single)
}

/// Key blocks that the tiles of `tile_tokens` query tokens of one request and head visit together. A tile that sees
/// nothing counts as it falls out, zero or negative.
fn key_blocks(queries: u64, keys: u64, tile_tokens: u64) -> i128 {
    visited(queries, keys, tile_tokens).map(|(_, blocks)| blocks).sum()
}

/// Of each tile its query tokens, and the key blocks that it visits.
fn visited(queries: u64, keys: u64, tile_tokens: u64) -> impl Iterator<Item = (i128, i128)> {
    let (queries, keys, tile) = (i128::from(queries), i128::from(keys), i128::from(tile_tokens));
    let block = i128::from(BLOCK_KEYS);
    (0..(queries + tile - 1) / tile).map(move |m| {
        let tokens = tile.min(queries - m * tile);
        (tokens, (keys.min((m + 1) * tile + keys - queries) + block - 1).div_euclid(block))
    })
}

/// Whether CTAs of packed heads are done before those of single heads, each of which has several tiles: the fullest CTA
/// works off its tiles, each for the mean of what its blocks take. A block counts as a half more than the tile has.
/// Ties go to the single.
fn ends_sooner(problem: &Nvfp4Context, packed: &Schedule, single: &Schedule, sm_count: u32) -> bool {
    // Time of all tiles, tiles of the fullest CTA, tiles.
    let costs = |schedule: &Schedule| {
        let (per_half, ctas) = (i128::from(schedule.tokens_per_half()), i128::from(sm_count));
        let times = visited(problem.max_q_len, problem.max_kv_len, schedule.tile_tokens().into())
            .map(|(tokens, blocks)| ((tokens + per_half - 1) / per_half + 1) * blocks.max(1));
        let (count, time) = times.fold((0, 0), |(count, sum), time| (count + 1, sum + time));
        let units = i128::from(problem.batch) * i128::from(problem.q_heads / u64::from(schedule.pack));
        let tiles = units * count;
        (units * time, (tiles + ctas - 1) / ctas, tiles)
    };
    let ((packed_time, packed_rounds, packed_tiles), (time, rounds, tiles)) = (costs(packed), costs(single));
    packed.pack > 1 && packed_time * packed_rounds * tiles < time * rounds * packed_tiles
}

/// Splits that fill the SMs, none shorter than the choice allows.
fn splits(choice: &Choice, tiles: u32, max_kv_len: u64, sm_count: u32) -> u32 {
    let blocks = max_kv_len.div_ceil(BLOCK_KEYS.into());
    let idle = sm_count / tiles.max(1);
    let longest = (blocks / u64::from(choice.min_blocks)).min(u64::from(Nvfp4Context::MAX_SPLITS));
    // At most MAX_SPLITS, so it fits.
    idle.min(longest as u32).max(1)
}

/// Most CTAs of a decode cluster, the portable size.
const DECODE_CLUSTER: u32 = 8;

/// Fewest blocks of keys per split where splits merge through global memory.
const DECODE_GLOBAL_BLOCKS: u64 = 8;

/// Splits that fill the device: a power of two, which one cluster merges; or a multiple of the cluster, where splits
/// are long enough to pay for a merge through global memory.
fn decode_splits(choice: &Choice, units: u32, max_kv_len: u64, ctas: u32) -> u32 {
    let blocks = max_kv_len.div_ceil(BLOCK_KEYS.into());
    let idle = ctas / units.max(1);
    let at_least = |length: u64| (blocks / length).min(u64::from(Nvfp4Context::MAX_SPLITS)) as u32;
    let global = idle.min(at_least(DECODE_GLOBAL_BLOCKS)) / DECODE_CLUSTER * DECODE_CLUSTER;
    if global > DECODE_CLUSTER {
        return global;
    }
    let most = idle.min(at_least(choice.min_blocks.into())).clamp(1, DECODE_CLUSTER);
    1 << most.ilog2()
}

/// CTAs of a cluster: a power of two that divides the splits.
fn decode_cluster(splits: u32) -> u32 {
    (1 << splits.trailing_zeros()).min(DECODE_CLUSTER)
}

/// Kernels hold a tile's number in a signed 32-bit integer.
const MOST_TILES: u32 = LaunchConfig::MAX_GRID[0];

/// A count of tiles.
fn tile_count(argument: &'static str, value: u64) -> Result<u32> {
    count(argument, value, MOST_TILES, "tiles")
}

fn no_program(architecture: &Architecture, wanted: &str) -> Error {
    let available = architecture.nvfp4_context.schedules.iter().map(|schedule| schedule.variant());
    Error::no_program(Operation::Nvfp4Context, architecture.arch, wanted, available)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_blocks_count_what_the_mask_leaves() {
        // 512 queries over 512 keys in tiles of 256: blocks 2 + 4.
        assert_eq!(key_blocks(512, 512, 256), 6);
        // One query over 4096 keys: all 32 blocks.
        assert_eq!(key_blocks(1, 4096, 256), 32);
        assert_eq!(visited(5, 200, 3).collect::<Vec<_>>(), [(3, 2), (2, 2)]);
        // 300 queries over 10 keys in tiles of 128: bounds -162, -34 and 10 give blocks -1, 0 and 1.
        assert_eq!(key_blocks(300, 10, 128), 0);
    }

    /// By the model of [`ends_sooner`]: a full last round outweighs rows that stay empty.
    #[test]
    fn packs_that_fill_the_last_round_end_sooner() {
        let sooner = |batch, max_q_len, max_kv_len| {
            let problem = Nvfp4Context { batch, q_heads: 64, kv_heads: 8, max_q_len, max_kv_len, ..Default::default() };
            let packed = Schedule { pack: 8, ..Schedule::EXPANDED_THREE };
            ends_sooner(&problem, &packed, &Schedule::EXPANDED_THREE, 132)
        };
        assert!(!sooner(4, 512, 4096));
        for (batch, queries, keys) in [(8, 1024, 1024), (16, 64, 1024), (8, 128, 4096)] {
            assert!(sooner(batch, queries, keys), "{batch}x{queries}x{keys}");
        }
    }

    #[test]
    fn decode_splits_are_clusters_or_long() {
        let choice = Choice { schedule: "decode", min_blocks: 1 };
        let splits = |units, keys| decode_splits(&choice, units, keys, 264);
        assert_eq!(splits(16, 4096), 8, "sixteen would have two blocks each, too few for global memory");
        assert_eq!(splits(8, 131_072), 32, "264 / 8 units, a multiple of the cluster");
        assert_eq!(splits(8, 16), 1);
        assert_eq!(splits(8, 700), 4, "a power of two below six blocks");
        assert_eq!(splits(1024, 4096), 1);
        assert_eq!(splits(1, 1 << 20), 64);
        assert_eq!([1, 2, 3, 6, 8, 12, 16, 64].map(decode_cluster), [1, 2, 1, 2, 8, 4, 8, 8]);
    }

    #[test]
    fn splits_fill_idle_sms_and_stay_long() {
        let choice = Choice { schedule: "paged", min_blocks: 2 };
        assert_eq!(splits(&choice, 8, 4096, 132), 16, "32 blocks make 16 splits of two");
        assert_eq!(splits(&choice, 16, 32_768, 132), 8, "132 / 16 tiles");
        assert_eq!(splits(&choice, 132, 32_768, 132), 1);
        assert_eq!(splits(&choice, 1, 16, 132), 1);
        assert_eq!(splits(&choice, 1, 1 << 20, 132), 64);
    }
}
