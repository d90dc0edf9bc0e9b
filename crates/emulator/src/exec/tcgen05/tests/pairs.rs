//! cta_group::2: two CTAs of a cluster, each with half of A and half of B, get their rows of D.

use super::*;
use crate::emulator::{Emulator, Launch, Module};
use crate::exec::wgmma::tests::TILE;
use crate::options::Options;

const B_START: usize = 16384;
const N: usize = 64;

/// Shared memory of the CTA of rank `rank`: its rows of A (`m / 2`) and its columns of B (`N / 2`).
fn image(m: usize, rank: usize) -> Vec<u8> {
    let p = k_major(32, 256);
    let mut image = Vec::new();
    for row in 0..m / 2 {
        for k in 0..16 {
            Code::F16.put(&mut image, 0, p, (row, k), value(1, row + rank * m / 2, k));
        }
    }
    image.resize(B_START, 0);
    for column in 0..N / 2 {
        for k in 0..16 {
            Code::F16.put(&mut image, B_START, p, (column, k), value(2, column + rank * N / 2, k));
        }
    }
    image.resize(24576, 0);
    image
}

/// D of both CTAs as `[rank][thread][column]`, `columns` of them.
fn run_pair(m: usize, columns: usize, descriptor: u32) -> Vec<Vec<Vec<f32>>> {
    let template = cta(Target::Sm100, &[0; 24576], columns);
    let p = k_major(32, 256);
    let body = format!(
        ".shared .align 4 .b32 slot; .reg .b32 %rank;
         mov.u32 %rank, %cluster_ctarank; add.u32 %t40, %rank, %tid;
         setp.lt.u32 %p2, %tid, 32; setp.eq.u32 %p0, %t40, 0; setp.lt.u32 %p4, %tid, 0; setp.eq.u32 %p5, %rank, 0;
         and.pred %p0, %p0, %p5;
         @%p2 tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [slot], 64;
         bar.sync 0; ld.shared.b32 %t20, [slot]; and.b32 %t21, %tid, 96; mul.lo.u32 %t21, %t21, 65536; add.u32 %t22, %t20, %t21;
         mov.b64 %w0, {:#x}; mov.b64 %w1, {:#x}; mov.b32 %t25, {descriptor:#x};
         @%p0 tcgen05.mma.cta_group::2.kind::f16 [%t20], %w0, %w1, %t25, %p4;
         bar.sync 0;
         @%p2 tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
         bar.sync 0;
         tcgen05.ld.sync.aligned.32x32b.x{columns}.b32 {}, [%t22]; tcgen05.wait::ld.sync.aligned; bar.sync 0;
         @%p2 tcgen05.dealloc.cta_group::2.sync.aligned.b32 %t20, 64;",
        super::descriptor(p, 0),
        super::descriptor(p, B_START),
        list("o", columns),
    );
    // Each CTA reads its image and writes its results at its own place.
    let text = template.text(&body);
    let text = text
        .replace("ld.param.u64 %g0, [image];", "mov.u32 %t50, %cluster_ctarank; mul.wide.u32 %g5, %t50, 24576; ld.param.u64 %g0, [image]; add.u64 %g0, %g0, %g5;")
        .replace("ld.param.u64 %g0, [out];", &format!("mul.wide.u32 %g5, %rank, {}; ld.param.u64 %g0, [out]; add.u64 %g0, %g0, %g5;", columns * 512));
    assert!(TILE == 0x400 && text.contains("%g5, %rank"));
    let mut options = Options::new(Target::Sm100);
    options.policy = CompletionPolicy::Eager;
    options.checks.order = false;
    let device = Emulator::new(Target::Sm100, options);
    let data: Vec<u8> = (0..2).flat_map(|rank| image(m, rank)).collect();
    let buffers = [data, vec![0; 16], vec![0; 2 * columns * 512]];
    let addresses: Vec<u64> = buffers
        .iter()
        .zip(["image", "in", "out"])
        .map(|(data, name)| {
            let address = device.allocate(name, data.len() as u64).unwrap();
            device.write(address, data).unwrap();
            address
        })
        .collect();
    let params: Vec<u8> = addresses.iter().flat_map(|a| a.to_le_bytes()).collect();
    let loaded = device.load(&Module::parse(&text).unwrap()).unwrap();
    let launch = Launch { cluster: Some([2, 1, 1]), ..Launch::linear(2, 128) };
    let report = device.launch(&loaded, "k", launch, &params).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let bytes = device.read(addresses[2], buffers[2].len()).unwrap();
    let word = |i: usize| f32::from_le_bytes(std::array::from_fn(|b| bytes[4 * i + b]));
    let cell = |rank: usize, tid: usize, column: usize| word((rank * columns + column) * 128 + tid);
    (0..2).map(|r| (0..128).map(|t| (0..columns).map(|c| cell(r, t, c)).collect()).collect()).collect()
}

fn expected(row: usize, column: usize) -> f32 {
    (0..16).map(|t| value(1, row, t) * value(2, column, t)).sum::<f64>() as f32
}

#[test]
fn two_hundred_fifty_six_rows() {
    let d = run_pair(256, N, 16 << 24 | 8 << 17 | 0x10);
    for (rank, rows) in d.iter().enumerate() {
        for (lane, row) in rows.iter().enumerate() {
            for (column, &x) in row.iter().enumerate() {
                assert_eq!(x, expected(128 * rank + lane, column), "rank {rank} lane {lane} column {column}");
            }
        }
    }
}

#[test]
fn a_hundred_and_twenty_eight_rows_fold_n_over_the_lanes() {
    let d = run_pair(128, N / 2, 8 << 24 | 8 << 17 | 0x10);
    for (rank, rows) in d.iter().enumerate() {
        for (lane, row) in rows.iter().enumerate() {
            for (column, &x) in row.iter().enumerate() {
                let (m, n) = (64 * rank + lane % 64, column + lane / 64 * N / 2);
                assert_eq!(x, expected(m, n), "rank {rank} lane {lane} column {column}");
            }
        }
    }
}
