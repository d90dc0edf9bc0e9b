//! The scans on tensor memory.

use bakewell::Arch;
use bakewell::emulator::CompletionPolicy;
use bakewell::schedule::gdn::Engine;

use super::backward::{self, Known, adjoint_on};
use super::forward::{cases, emulated};
use super::inputs::Case;
use super::wgmma::scan;

const ARCHITECTURES: [Arch; 4] = [Arch::Sm100, Arch::Sm103, Arch::Sm107, Arch::Sm110];

#[test]
fn scans_give_outputs_and_states() {
    for (seed, case) in cases().iter().enumerate() {
        let arch = ARCHITECTURES[seed % ARCHITECTURES.len()];
        scan(Engine::Tcgen05, &emulated(arch, seed as u64, CompletionPolicy::Random), case);
    }
}

/// More chunks than any ring holds, with work that completes at once and as late as may be.
#[test]
fn scans_go_round_their_rings() {
    let case = Case { lengths: &[390], l2norm: true, h0: true, packed: true, ..Case::default() };
    scan(Engine::Tcgen05, &emulated(Arch::Sm100, 1, CompletionPolicy::Eager), &case);
    scan(Engine::Tcgen05, &emulated(Arch::Sm103, 2, CompletionPolicy::Lazy), &case);
}

#[test]
fn scans_start_at_segments() {
    let case = Case { lengths: &[65, 0, 200], h0: true, l2norm: true, segment_chunks: Some(2), ..Case::default() };
    for (arch, policy) in ARCHITECTURES.into_iter().zip([CompletionPolicy::Lazy, CompletionPolicy::Random].repeat(2)) {
        scan(Engine::Tcgen05, &emulated(arch, 3, policy), &case);
    }
}

#[test]
fn adjoints_give_the_gradient_of_every_state() {
    for (seed, (case, dht)) in backward::cases().iter().enumerate() {
        let arch = ARCHITECTURES[seed % ARCHITECTURES.len()];
        adjoint_on(Engine::Tcgen05, &emulated(arch, seed as u64, CompletionPolicy::Random), &Known::new(case, *dht));
    }
}

/// Round the rings, and from segment to segment.
#[test]
fn adjoints_of_many_chunks() {
    let long = Case { lengths: &[390], l2norm: true, packed: true, ..Case::default() };
    let cut = Case { lengths: &[65, 0, 260], h0: true, l2norm: true, segment_chunks: Some(2), ..Case::default() };
    for known in [Known::new(&long, true), Known::new(&cut, true)] {
        for (arch, policy) in ARCHITECTURES.into_iter().zip([CompletionPolicy::Eager, CompletionPolicy::Lazy].repeat(2))
        {
            adjoint_on(Engine::Tcgen05, &emulated(arch, 1, policy), &known);
        }
    }
}
