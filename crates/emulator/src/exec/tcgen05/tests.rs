//! Matrices are placed by the formulas of the ISA notes written out here, and results compared with a plain product.
#![allow(clippy::needless_range_loop)] // rows and columns index results and expectations alike

mod accesses;
mod errors;
mod pairs;
mod pipeline;

mod products;

use crate::async_engine::CompletionPolicy;
use crate::emulator::Report;
use crate::exec::wgmma::tests::{Cta, Placement, TILE, value};
use crate::isa::Target;

/// Allocates 512 columns (`%t20` is the address), runs `work`, loads, frees. `%p0` is thread 0, `%p2` warp 0, `%p3`
/// true, `%p4` false, `%t22` the address of the partition of the warp.
fn around(work: &str, epilogue: &str) -> String {
    format!(
        ".shared .align 4 .b32 slot;
         setp.lt.u32 %p2, %tid, 32; setp.eq.u32 %p0, %tid, 0; setp.ge.u32 %p3, %tid, 0; setp.lt.u32 %p4, %tid, 0;
         @%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 512;
         bar.sync 0;
         ld.shared.b32 %t20, [slot]; and.b32 %t21, %tid, 96; mul.lo.u32 %t21, %t21, 65536; add.u32 %t22, %t20, %t21;
         {work}
         bar.sync 0;
         {epilogue}
         tcgen05.wait::ld.sync.aligned;
         bar.sync 0;
         @%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %t20, 512;"
    )
}

fn list(prefix: &str, n: usize) -> String {
    let names: Vec<_> = (0..n).map(|i| format!("%{prefix}{i}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// Asynchronous work is done by the next barrier: these tests have no mbarrier.
fn run(cta: &Cta<'_>, body: &str) -> (Report, Vec<Vec<u32>>) {
    cta.run(body, |options| options.policy = CompletionPolicy::Eager)
}

fn clean(cta: &Cta<'_>, body: &str) -> Vec<Vec<u32>> {
    let (report, out) = run(cta, body);
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    out
}

fn cta(target: Target, image: &[u8], outs: usize) -> Cta<'_> {
    Cta { target, threads: 128, image, inputs: &[], outs }
}

/// Descriptor of an operand at byte `start` of the image.
fn descriptor(p: Placement, start: usize) -> u64 {
    let layout: u64 = match p.width {
        128 => 2,
        64 => 4,
        32 => 6,
        _ => 0,
    };
    layout << 61 | 1 << 46 | (p.stride as u64 >> 4) << 32 | (p.leading as u64 >> 4) << 16 | (TILE + start as u64) >> 4
}

fn k_major(width: usize, stride: usize) -> Placement {
    Placement { width, k_major: true, leading: 128, stride }
}

/// How elements lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Code {
    F16,
    Bf16,
    Tf32,
    E4m3,
    E5m2,
    S8,
    /// 16 nibbles in the low half of a 16-byte unit.
    PaddedE2m1,
    /// 16 six-bit values in the low 12 bytes of a unit.
    PaddedE3m2,
    /// Two to a byte, even k low.
    DenseE2m1,
}

impl Code {
    fn bits(self, x: f64) -> u32 {
        let sign = |bit: u32| if x < 0.0 { 1 << bit } else { 0 };
        let at = x.abs() as usize;
        match self {
            Self::F16 => u32::from(half::f16::from_f64(x).to_bits()),
            Self::Bf16 => u32::from(half::bf16::from_f64(x).to_bits()),
            Self::Tf32 => (x as f32).to_bits(),
            Self::E4m3 => [0x00, 0x38, 0x40, 0x44][at] | sign(7),
            Self::E5m2 => [0x00, 0x3c, 0x40, 0x42][at] | sign(7),
            Self::S8 => x as i8 as u8 as u32,
            Self::PaddedE2m1 | Self::DenseE2m1 => [0, 2, 4, 5][at] | sign(3),
            // Bias 3, two fraction bits: 1 = 3 << 2, 2 = 4 << 2, 3 = 1.5 * 2.
            Self::PaddedE3m2 => [0, 12, 16, 18][at] | sign(5),
        }
    }

    /// Ors element (`mn`, `k`) into the image.
    fn put(self, image: &mut Vec<u8>, start: usize, p: Placement, (mn, k): (usize, usize), x: f64) {
        let code = u128::from(self.bits(x));
        let (at, shift) = match self {
            Self::F16 | Self::Bf16 => (p.at(mn, k, 2), 0),
            Self::Tf32 => (p.at(mn, k, 4), 0),
            Self::E4m3 | Self::E5m2 | Self::S8 => (p.at(mn, k, 1), 0),
            Self::PaddedE2m1 => (p.at(mn, k / 16 * 16, 1), 4 * (k % 16)),
            Self::PaddedE3m2 => (p.at(mn, k / 16 * 16, 1), 6 * (k % 16)),
            Self::DenseE2m1 => (p.at(mn, k / 2, 1), 4 * (k % 2)),
        };
        let bytes = (code << shift).to_le_bytes();
        if image.len() < start + at + 16 {
            image.resize(start + at + 16, 0);
        }
        for (target, byte) in image[start + at..].iter_mut().zip(bytes) {
            *target |= byte;
        }
    }
}

/// Rows of an operand.
fn place(image: &mut Vec<u8>, start: usize, p: Placement, code: Code, (rows, k, seed): (usize, usize, usize)) {
    for mn in 0..rows {
        for t in 0..k {
            code.put(image, start, p, (mn, t), value(seed, mn, t));
        }
    }
}
