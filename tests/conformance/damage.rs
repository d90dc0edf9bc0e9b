//! Damaged copies of shipped programs, on wgmma and on tensor memory.

use bakewell::Arch;
use bakewell::gdn::Pins;
use bakewell::nvfp4_pre_attention::{Nvfp4PreAttention, OutputFormat};
use bakewell_conformance::gdn::{Case, Place};
use bakewell_conformance::nvfp4_context::Spec;
use bakewell_conformance::nvfp4_pre_attention::Inputs;
use bakewell_tests::damage::{Kind, Subject};
use bakewell_tests::runs::outputs;

use crate::{gdn, nvfp4_context};

type Unseen = &'static [(Kind, usize, &'static str)];

/// Two tiles on one CTA, so that everything is used again; more rows than one half of a tile has.
fn context(arch: Arch, program: &str, unseen: Unseen) {
    let spec = Spec { q_heads: 4, kv_heads: 1, q_lens: vec![40, 3], kv_lens: vec![1000, 300], sinks: false };
    let inputs = nvfp4_context::generated(&spec, Some(1));
    let run = |device: &_| outputs(device, &inputs);
    Subject { arch, program, sm_count: 1, run: &run, unseen }.every_damage_is_found();
}

#[test]
fn nvfp4_context_on_tensor_memory() {
    let unseen = &[(
        Kind::Fence,
        2,
        "a tcgen05.fence::before_thread_sync of the same threads follows before they hand over tensor memory",
    )];
    context(Arch::Sm100, "sm100/nvfp4_context-paged_k2_g4", unseen);
}

#[test]
fn nvfp4_context_on_wgmma() {
    context(Arch::Sm90, "sm90/nvfp4_context-paged_k7_g4", &[]);
}

/// Stages of the GEMM's ring are used again.
fn pre_attention(arch: Arch, program: &str, unseen: Unseen) {
    let problem = Nvfp4PreAttention {
        tokens: 140,
        hidden: 2560,
        heads: 2,
        out_format: OutputFormat::Nvfp4,
        table_rows: 3,
        ..Nvfp4PreAttention::default()
    };
    let inputs = Inputs::generate(&problem, 3);
    let run = |device: &_| outputs(device, &inputs);
    Subject { arch, program, sm_count: 2, run: &run, unseen }.every_damage_is_found();
}

#[test]
fn nvfp4_pre_attention_on_wgmma() {
    pre_attention(Arch::Sm90, "sm90/nvfp4_pre_attention-gemm_k6_nvfp4", &[]);
}

/// Two sequences, the longer one cut into two segments.
fn gated_delta(arch: Arch, program: &str, unseen: Unseen) {
    let case = Case {
        lengths: vec![330, 70],
        initial_state: true,
        final_state: true,
        final_state_gradient: true,
        pins: Pins { segment_chunks: Some(3), ..Pins::default() },
        ..Case::default()
    };
    let inputs = case.inputs().unwrap();
    let run = |device: &_| gdn::outputs(device, &inputs, Place::Contiguous);
    Subject { arch, program, sm_count: 2, run: &run, unseen }.every_damage_is_found();
}

#[test]
fn gdn_on_tensor_memory() {
    let unseen = &[
        (Kind::Fence, 3, "one before the deallocation, which is no access; two not known"),
        (Kind::Phase, 1, "the first wait of the thread of the products is covered by its next one"),
        (Kind::Wait, 1, "the same wait"),
        (Kind::Barrier, 2, "not known"),
    ];
    gated_delta(Arch::Sm100, "sm100/gdn-tcgen05_states", unseen);
}

#[test]
fn gdn_on_wgmma() {
    let unseen = &[
        (Kind::Arrival, 1, "not known"),
        (Kind::Wait, 1, "not known, of a cp.async.bulk.wait_group.read"),
        (Kind::Swizzle, 1, "the products of a short chunk's tail are of zeros"),
    ];
    gated_delta(Arch::Sm90, "sm90/gdn-wgmma_states", unseen);
}
