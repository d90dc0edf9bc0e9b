//! Damaged copies of shipped programs of every operation: on wgmma, on tensor memory, on mma.sync.

use bakewell::gdn::Pins;
use bakewell::gqa_decode::GqaDecode;
use bakewell::nvfp4_pre_attention::{Nvfp4PreAttention, OutputFormat};
use bakewell::{Arch, Stream, architectures};
use bakewell_conformance::Staged;
use bakewell_conformance::gdn::{Case, Place};
use bakewell_conformance::gqa_decode::{Distribution, Inputs as Decode};
use bakewell_conformance::nvfp4_context::{PAIRED, Spec};
use bakewell_conformance::nvfp4_pre_attention::{Inputs, tcgen05};
use bakewell_tests::damage::{Kind, Subject, Unseen};
use bakewell_tests::runs::outputs;

use crate::{gdn, nvfp4_context};

const fn unseen(kind: Kind, opcode: &'static str, count: usize, because: &'static str) -> Unseen {
    Unseen { kind, opcode, count, because }
}

/// Of the code for a tile that the keys do not fill.
const LAST_TILE: &str = "it is the last one, and nothing is loaded into the places of its values";

/// More keys than the ring of each CTA holds.
fn decode(arch: Arch, program: &str, problem: &GqaDecode, unseen: &[Unseen]) {
    let inputs = Decode::generate(problem, &[problem.capacity as i32 - 3], Distribution::Normal, 51).unwrap();
    // The second launch may begin before the first has ended.
    let twice = |device: &_| {
        let staged = Staged::new(device, &inputs)?;
        let bound = staged.bind()?;
        bound.launch(Stream::DEFAULT)?;
        bound.launch(Stream::DEFAULT)?;
        staged.outputs()
    };
    let run = |device: &_| twice(device).map_err(|error: bakewell::Error| error.to_string());
    Subject { arch, program, sm_count: 8, run: &run, open_phases: false, unseen }.every_damage_is_found();
}

fn one_head(capacity: u64, num_splits: Option<u32>) -> GqaDecode {
    GqaDecode { batch: 1, capacity, query_heads: 4, kv_heads: 1, num_splits, lse: true, ..GqaDecode::default() }
}

#[test]
fn gqa_decode_with_partials() {
    let unseen = &[
        unseen(Kind::Fence, "fence.proxy.async", 1, LAST_TILE),
        unseen(Kind::Arrival, "mbarrier.arrive", 1, LAST_TILE),
        unseen(Kind::Barrier, "barrier.cluster.wait", 1, "a cluster of one CTA waits for nobody"),
    ];
    decode(Arch::Sm90, "sm90/gqa_decode-long_k128_g4_d128_f16", &one_head(2000, Some(2)), unseen);
}

#[test]
fn gqa_decode_in_clusters() {
    let unseen = &[
        unseen(Kind::Fence, "fence.proxy.async", 1, LAST_TILE),
        unseen(Kind::Arrival, "mbarrier.arrive", 1, LAST_TILE),
    ];
    decode(Arch::Sm100, "sm100/gqa_decode-long_k128_w8_g4_d128_f16", &one_head(6700, None), unseen);
}

/// Two tiles on one CTA, so that everything is used again; more rows than one half of a tile has.
fn context(arch: Arch, program: &str, unseen: &[Unseen]) {
    context_by(None, 1, arch, program, unseen);
}

/// The same by a schedule, of so many CTAs to a cluster.
fn context_by(schedule: Option<&str>, ctas: u32, arch: Arch, program: &str, unseen: &[Unseen]) {
    let spec = Spec { q_heads: 4, kv_heads: 1, q_lens: vec![40, 3], kv_lens: vec![1000, 300], sinks: false };
    let mut inputs = nvfp4_context::generated(&spec, Some(1));
    inputs.problem.schedule = schedule.map(str::to_owned);
    let run = |device: &_| outputs(device, &inputs);
    Subject { arch, program, sm_count: ctas, run: &run, open_phases: false, unseen }.every_damage_is_found();
}

#[test]
fn nvfp4_context_on_pairs_of_ctas() {
    let unseen = &[unseen(
        Kind::Wait,
        "mbarrier.try_wait",
        1,
        "of the warp that loads, for a packed tile's place: the warps met behind the tile read from it, to copy what they made",
    )];
    context_by(Some(PAIRED), 2, Arch::Sm90, "sm90/nvfp4_context-paired_k3_g4", unseen);
}

#[test]
fn nvfp4_context_on_tensor_memory() {
    let unseen = &[unseen(
        Kind::Fence,
        "tcgen05.fence::before_thread_sync",
        1,
        "another one of the same threads follows before they hand over tensor memory",
    )];
    context(Arch::Sm100, "sm100/nvfp4_context-paged_k2_g4", unseen);
}

#[test]
fn nvfp4_context_on_wgmma() {
    let unseen = &[unseen(
        Kind::Wait,
        "mbarrier.try_wait",
        1,
        "of the place for the word that no tile follows; a tile of more pages than the rings hold had been read from it, and \
         loading those waited for that",
    )];
    context(Arch::Sm90, "sm90/nvfp4_context-paged_k7_g4", unseen);
}

/// Stages of the GEMM's ring are used again, and so are the answers of launch control.
fn projection(hidden: u64, heads: u64) -> Inputs {
    let problem = Nvfp4PreAttention {
        tokens: 140,
        hidden,
        heads,
        out_format: OutputFormat::Nvfp4,
        table_rows: 3,
        ..Nvfp4PreAttention::default()
    };
    Inputs::generate(&problem, 3)
}

#[test]
fn nvfp4_pre_attention_on_wgmma() {
    let inputs = projection(2560, 2);
    let run = |device: &_| outputs(device, &inputs);
    let program = "sm90/nvfp4_pre_attention-gemm_k6_nvfp4";
    let unseen = &[unseen(Kind::Wait, "griddepcontrol.wait", 1, "the plan asks for no overlap of its launches")];
    Subject { arch: Arch::Sm90, program, sm_count: 2, run: &run, open_phases: false, unseen }.every_damage_is_found();
}

/// Of the fence before the deallocation.
const FENCED: &str =
    "each warp executed one behind its last access to tensor memory, and deallocation asks for an order only";

/// What no program of the GEMM on tensor memory needs.
const GEMM: [Unseen; 2] = [
    unseen(Kind::Fence, "tcgen05.fence::before_thread_sync", 1, FENCED),
    unseen(Kind::Barrier, "bar.sync", 1, "a barrier of the whole cluster follows at once"),
];

/// The GEMM alone, fed the reference's activation.
fn projected(arch: Arch, schedule: &str, hidden: u64, unseen: &[Unseen]) {
    let inputs = projection(hidden, 6);
    let stages = inputs.stages().unwrap();
    let schedules = architectures::find(arch).unwrap().architecture.nvfp4_pre_attention.tcgen05.schedules;
    let named = schedules.iter().find(|known| known.name == schedule && tcgen05::serves(known, &inputs.problem));
    let named = named.unwrap();
    let run = |device: &_| tcgen05::run(device, named, &inputs, &stages).map_err(|error| error.to_string());
    let program = format!("{arch}/nvfp4_pre_attention-{schedule}_nvfp4");
    Subject { arch, program: &program, sm_count: 2, run: &run, open_phases: false, unseen }.every_damage_is_found();
}

#[test]
fn nvfp4_pre_attention_on_tensor_memory() {
    projected(Arch::Sm100, "gemm_rows_r96", 384, &GEMM);
}

#[test]
fn nvfp4_pre_attention_with_a_ring_of_scales() {
    let [deallocation, barrier] = GEMM;
    let read = unseen(
        Kind::Fence,
        "fence.proxy.async",
        1,
        "of the thread that loads: the next request waits for threads that fence behind what it read",
    );
    projected(Arch::Sm103, "gemm_sets_k96_separate", 768, &[deallocation, barrier, read]);
}

/// Two sequences, the longer one cut into two segments.
fn gated_delta(arch: Arch, program: &str, unseen: &[Unseen]) {
    let case = Case {
        lengths: vec![330, 70],
        value_heads: 1,
        initial_state: true,
        final_state: true,
        final_state_gradient: true,
        pins: Pins { segment_chunks: Some(3), ..Pins::default() },
        ..Case::default()
    };
    damaged_delta(arch, program, &case, unseen);
}

/// The scans on tensor memory hand the last chunk's places back to loads that do not come.
fn damaged_delta(arch: Arch, program: &str, case: &Case, unseen: &[Unseen]) {
    let inputs = case.inputs().unwrap();
    let run = |device: &_| gdn::outputs(device, &inputs, Place::Contiguous);
    Subject { arch, program, sm_count: 2, run: &run, open_phases: program.contains("tcgen05"), unseen }
        .every_damage_is_found();
}

/// A whole chunk and a short one.
#[test]
fn gdn_with_products_of_keys_shared() {
    let case = Case { lengths: vec![70], value_heads: 3, ..Case::default() };
    damaged_delta(Arch::Sm90, "sm90/gdn-prepare_g3", &case, &[]);
}

#[test]
fn gdn_on_tensor_memory() {
    let unseen = &[
        unseen(Kind::Fence, "fence.proxy.async", 1, "of a short chunk, the last one: nothing is loaded into its place"),
        unseen(Kind::Fence, "tcgen05.fence::before_thread_sync", 1, FENCED),
        unseen(
            Kind::Fence,
            "tcgen05.fence::after_thread_sync",
            1,
            "the row warps fenced after the output of the chunk before, which is committed behind the scores of this one",
        ),
        unseen(
            Kind::Phase,
            "mbarrier.try_wait",
            1,
            "the thread of the products waits for the factors of the chunk next",
        ),
        unseen(Kind::Wait, "mbarrier.try_wait", 1, "the same wait"),
        unseen(
            Kind::Barrier,
            "barrier.cta.sync",
            2,
            "the products wait for every row warp's arrival, and the row warps for the products, before they read what others wrote",
        ),
    ];
    gated_delta(Arch::Sm100, "sm100/gdn-tcgen05_states", unseen);
}

/// Of a wait for stores.
const FIRST_CHUNK: &str = "it is of the first chunk, and nothing was stored before";

#[test]
fn gdn_on_wgmma() {
    let unseen = &[
        unseen(
            Kind::Arrival,
            "mbarrier.arrive",
            1,
            "a place of values is given back, and the ring holds a whole segment",
        ),
        unseen(Kind::Wait, "cp.async.bulk.wait_group.read", 1, FIRST_CHUNK),
        unseen(Kind::Store, "cp.async.bulk.wait_group.read", 1, FIRST_CHUNK),
        unseen(Kind::Swizzle, "wgmma.mma_async", 1, "the products of a short chunk's tail are of zeros"),
    ];
    gated_delta(Arch::Sm90, "sm90/gdn-wgmma_states", unseen);
}
