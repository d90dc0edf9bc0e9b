//! One kernel per form; the expected bytes come from loops over elements.

use bakewell_core::tensor_map::{MapType, OobFill, Swizzle, TensorMapRequest};

use crate::async_engine::CompletionPolicy;
use crate::exec::async_testing::Case;
use crate::isa::Target;
use crate::layout::tensor_map::{decode, encode};

/// Makes a record from the addresses of input and output.
type Record = fn(u64, u64) -> [u8; 128];

fn record(request: &TensorMapRequest) -> [u8; 128] {
    request.validate("t", bakewell_core::Arch::Sm100).unwrap();
    encode(request).to_bytes()
}

/// f16, 100 x 60 elements in rows of 208 bytes.
fn request(address: u64, inner: u32, swizzle: Swizzle) -> TensorMapRequest {
    TensorMapRequest::tiled(MapType::F16, address, &[100, 60], &[208], &[inner, 16], swizzle)
}

/// Thread 0 initialises `bars[0]` for `bytes`, the tile is filled with 0xee.
fn start(bytes: u32, body: &str) -> String {
    format!(
        "setp.eq.u32 %p1, %r0, 0; mov.u32 %r2, bars; mov.u32 %r3, tile; mov.b64 %rd4, map; cvta.param.u64 %rd4, %rd4;
         @%p1 mbarrier.init.shared::cta.b64 [%r2], 1; mov.u32 %r10, 0xeeeeeeee; shl.b32 %r11, %r0, 4; add.u32 %r12, %r3, %r11; mov.u32 %r13, 0;
         FILL: st.shared.v4.u32 [%r12], {{%r10, %r10, %r10, %r10}}; add.u32 %r12, %r12, 512; add.u32 %r13, %r13, 1; setp.lt.u32 %p3, %r13, 16; @%p3 bra FILL;
         fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta; barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
         @%p1 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r2], {bytes};
         {body}
         barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
    )
}

/// Waits for the barrier, then copies 8 KiB of the tile to the output of the CTA.
const DUMP: &str = "WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r2], 0; @!%p2 bra WAIT;
    add.u32 %r12, %r3, %r11; mad.lo.u32 %r14, %r1, 8192, %r11; cvt.u64.u32 %rd9, %r14; add.u64 %rd9, %rd1, %rd9; mov.u32 %r13, 0;
    DUMP: ld.shared.v4.u32 {%r16, %r17, %r18, %r19}, [%r12]; st.global.v4.u32 [%rd9], {%r16, %r17, %r18, %r19};
    add.u32 %r12, %r12, 512; add.u64 %rd9, %rd9, 512; add.u32 %r13, %r13, 1; setp.lt.u32 %p3, %r13, 16; @%p3 bra DUMP;";

/// The tile as the naive loop fills it: `place` is the swizzle on the absolute address, whose low bits are those of the
/// offset.
fn expected(input: &[u8], inner: i64, (x, y): (i64, i64), fill: [u8; 2], place: impl Fn(u32) -> u32) -> Vec<u8> {
    let mut tile = vec![0xee; 8192];
    for row in 0..16 {
        for column in 0..inner {
            let at = place((row * inner + column) as u32 * 2) as usize;
            let (gx, gy) = (x + column, y + row);
            let inside = (0..100).contains(&gx) && (0..60).contains(&gy);
            let from = (gy * 208 + gx * 2) as usize;
            tile[at..at + 2].copy_from_slice(if inside { &input[from..from + 2] } else { &fill });
        }
    }
    tile
}

fn swizzled(request: &TensorMapRequest) -> impl Fn(u32) -> u32 + use<> {
    let map = decode(&record(request)).unwrap();
    move |at| map.pattern.apply(at)
}

#[test]
fn loads_of_every_swizzle() {
    let maps: [(Swizzle, u32, Record); 7] = [
        (Swizzle::None, 24, |a, _| record(&request(a, 24, Swizzle::None))),
        (Swizzle::B32, 16, |a, _| record(&request(a, 16, Swizzle::B32))),
        (Swizzle::B64, 32, |a, _| record(&request(a, 32, Swizzle::B64))),
        (Swizzle::B128, 64, |a, _| record(&request(a, 64, Swizzle::B128))),
        (Swizzle::B128Atom32, 64, |a, _| record(&request(a, 64, Swizzle::B128Atom32))),
        (Swizzle::B128Atom32Flip8, 64, |a, _| record(&request(a, 64, Swizzle::B128Atom32Flip8))),
        (Swizzle::B128Atom64, 64, |a, _| record(&request(a, 64, Swizzle::B128Atom64))),
    ];
    for (swizzle, inner, map) in maps {
        for (x, y) in [(0, 0), (88, 50), (-8, -2), (200, 0)] {
            let body = start(
                inner * 32,
                &format!(
                    "@%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r3], [%rd4, {{{x}, {y}}}], [%r2]; {DUMP}"
                ),
            );
            let case = Case { map: Some(map), ..Case::new(&body) };
            let place = swizzled(&request(0x1000, inner, swizzle));
            let tile = expected(&case.input, inner.into(), (x, y), [0; 2], place);
            assert!(case.output()[..8192] == tile, "{swizzle:?} at {x}, {y}");
        }
    }
}

#[test]
fn nan_fill_multicast_and_pairs() {
    let map: Record = |a, _| record(&TensorMapRequest { oob_fill: OobFill::Nan, ..request(a, 64, Swizzle::B128) });
    let place = swizzled(&request(0x1000, 64, Swizzle::B128));
    let body = start(
        2048,
        &format!(
            "setp.eq.u32 %p4, %r1, 1; and.pred %p4, %p4, %p1; mov.b16 %h0, 5;
             setp.eq.u32 %p5, %r1, 1; @%p5 bra OVER;
             OVER: @%p4 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r3], [%rd4, {{80, 3}}], [%r2], %h0;
             @%p5 bra LAST; {DUMP} LAST: and.pred %p6, %p4, %p4;"
        ),
    )
    .replace("@%p1 mbarrier.arrive.expect_tx", "setp.ne.u32 %p7, %r1, 1; and.pred %p7, %p7, %p1; @%p7 mbarrier.arrive.expect_tx");
    let case = Case { map: Some(map), ctas: 3, cluster: 3, ..Case::new(&body) };
    let tile = expected(&case.input, 64, (80, 3), [0xf7, 0x7f], &place);
    let output = case.output();
    assert!(output[..8192] == tile && output[16384..24576] == tile);
    assert!(output[8192..16384].iter().all(|&b| b == 0xcd), "rank 1 is not in the mask");
    // Both CTAs of a pair signal the barrier of the even one.
    let body = start(
        4096,
        &format!(
            "and.b32 %r20, %r2, 0xFEFFFFF8; mad.lo.u32 %r21, %r1, 16, 0;
             @%p1 cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd4, {{0, %r21}}], [%r20];
             setp.ne.u32 %p5, %r1, 0; @%p5 bra LAST;
             W2: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r2], 0; @!%p2 bra W2;
             LAST: barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; {}",
            DUMP.split_once("bra WAIT;").unwrap().1
        ),
    )
    .replace("@%p1 mbarrier.arrive.expect_tx", "setp.eq.u32 %p7, %r1, 0; and.pred %p7, %p7, %p1; @%p7 mbarrier.arrive.expect_tx");
    let case = Case { map: Some(map), ctas: 2, cluster: 2, ..Case::new(&body) };
    let output = case.output();
    for rank in 0..2 {
        let tile = expected(&case.input, 64, (0, 16 * rank), [0; 2], &place);
        assert!(output[rank as usize * 8192..][..8192] == tile, "rank {rank}");
    }
}

/// Boxes of one row.
fn row_record(address: u64) -> [u8; 128] {
    record(&TensorMapRequest::tiled(MapType::F16, address, &[100, 60], &[208], &[64, 1], Swizzle::B128))
}

#[test]
fn gather_and_scatter() {
    let rows = [7, 59, 60, 0];
    let place = swizzled(&request(0x1000, 64, Swizzle::B128));
    let body = start(
        512,
        &format!(
            "@%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes [%r3], [%rd4, {{8, 7, 59, 60, 0}}], [%r2]; {DUMP}"
        ),
    );
    let case = Case { map: Some(|a, _| row_record(a)), ..Case::new(&body) };
    let output = case.output();
    let mut tile = vec![0xee; 8192];
    for (i, row) in rows.into_iter().enumerate() {
        for column in 0..64 {
            let at = place((i * 64 + column) as u32 * 2) as usize;
            let from = row * 208 + (8 + column) * 2;
            let value: &[u8] = if row < 60 { &case.input[from..from + 2] } else { &[0; 2] };
            tile[at..at + 2].copy_from_slice(value);
        }
    }
    assert!(output[..8192] == tile);
    let body =
        store("cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%rd4, {8, 7, 59, 60, 0}], [%r3];");
    let case = Case { map: Some(|_, b| row_record(b)), ..Case::new(&body) };
    let mut out = vec![0xcd; 65536];
    for (i, row) in rows.into_iter().enumerate().filter(|(_, row)| *row < 60) {
        for column in 0..64 {
            let at = place((i * 64 + column) as u32 * 2) as usize;
            out[row * 208 + (8 + column) * 2..][..2].copy_from_slice(&tile_bytes()[at..at + 2]);
        }
    }
    assert!(case.output() == out);
}

/// What [`store`] puts in the tile: each word is its offset.
fn tile_bytes() -> Vec<u8> {
    (0..2048u32).flat_map(|i| (i * 4).to_le_bytes()).collect()
}

/// Threads fill the tile; thread 0 stores it.
fn store(instruction: &str) -> String {
    start(
        0,
        &format!(
            "mov.u32 %r13, 0; shl.b32 %r11, %r0, 2;
             PUT: add.u32 %r12, %r3, %r11; st.shared.u32 [%r12], %r11; add.u32 %r11, %r11, 128; add.u32 %r13, %r13, 1; setp.lt.u32 %p3, %r13, 64; @%p3 bra PUT;
             fence.proxy.async.shared::cta; bar.sync 0;
             @%p1 {instruction} @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group.read 0; @%p1 cp.async.bulk.wait_group 0;"
        ),
    )
}

#[test]
fn stores_and_reductions_clip_at_the_edges() {
    let map: Record = |_, b| record(&request(b, 64, Swizzle::B128));
    let place = swizzled(&request(0x1000, 64, Swizzle::B128));
    for add in [false, true] {
        let form = if add {
            "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"
        } else {
            "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
        };
        let body = store(&format!("{form} [%rd4, {{48, 50}}], [%r3];"));
        let case = Case { map: Some(map), ..Case::new(&body) };
        let mut out = vec![0xcd; 65536];
        for row in 0..10 {
            // Of 100 columns 52 are left, and four of the padding complete 16 bytes.
            for column in 0..56 {
                let at = place((row * 64 + column) as u32 * 2) as usize;
                let mut value = [tile_bytes()[at], tile_bytes()[at + 1]];
                if add {
                    let kind = crate::numerics::arith::HalfType::F16;
                    value = kind.add(0xcdcd, u16::from_le_bytes(value), Default::default()).to_le_bytes();
                }
                out[(50 + row) * 208 + (48 + column) * 2..][..2].copy_from_slice(&value);
            }
        }
        assert!(case.output() == out, "add {add}");
    }
}

#[test]
fn five_dimensions_with_element_strides() {
    let map: Record = |a, _| {
        record(&TensorMapRequest {
            element_strides: vec![1, 2, 1, 1, 3],
            ..TensorMapRequest::tiled(
                MapType::U32,
                a,
                &[8, 6, 4, 3, 5],
                &[32, 192, 768, 2304],
                &[4, 4, 2, 1, 4],
                Swizzle::None,
            )
        })
    };
    let body = start(
        128,
        &format!(
            "@%p1 cp.async.bulk.tensor.5d.shared::cta.global.mbarrier::complete_tx::bytes [%r3], [%rd4, {{4, 3, 3, 1, 0}}], [%r2]; {DUMP}"
        ),
    );
    let case = Case { map: Some(map), ..Case::new(&body) };
    let mut tile = vec![0xee; 8192];
    let mut at = 0;
    for k4 in 0..2 {
        for k2 in 0..2 {
            for k1 in 0..2 {
                for k0 in 0..4 {
                    let g = [4 + k0, 3 + 2 * k1, 3 + k2, 1, 3 * k4];
                    let inside = g[1] < 6 && g[2] < 4;
                    let from = g[0] * 4 + g[1] * 32 + g[2] * 192 + g[3] * 768 + g[4] * 2304;
                    tile[at..at + 4].copy_from_slice(if inside { &case.input[from..from + 4] } else { &[0; 4] });
                    at += 4;
                }
            }
        }
    }
    assert!(case.output()[..8192] == tile);
}

#[test]
fn boxes_begin_at_16_bytes_and_stores_inside() {
    let tile: Record = |_, b| record(&request(b, 64, Swizzle::B128));
    let load = start(
        2048,
        &format!(
            "@%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r3], [%rd4, {{4, 0}}], [%r2]; {DUMP}"
        ),
    );
    let put =
        |at: &str| store(&format!("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd4, {at}], [%r3];"));
    for (body, text) in [
        (load, "a multiple of 16 bytes"),
        (put("{-4, 0}"), "a multiple of 16 bytes"),
        (put("{-8, 0}"), "negative coordinate"),
        (put("{0, -1}"), "negative coordinate"),
    ] {
        for target in [Target::Sm90, Target::Sm100] {
            let case = Case { map: Some(tile), target, ..Case::new(&body) };
            let (report, _) = case.run(CompletionPolicy::Eager, 0);
            let [found] = report.findings.as_slice() else { panic!("one finding, got {:?}", report.findings) };
            assert!(found.message.contains(text), "{found}");
            assert_eq!(found.warning, target != Target::Sm90, "{found}");
        }
    }
}

#[test]
fn broken_rules() {
    let map: Record = |a, _| record(&request(a, 64, Swizzle::B128));
    let load = |form: &str, operands: &str| {
        start(
            2048,
            &format!(
                "@%p1 cp.async.bulk.tensor.{form}.shared::cta.global.mbarrier::complete_tx::bytes {operands}; {DUMP}"
            ),
        )
    };
    let cases: [(String, Record, &str); 7] = [
        (load("2d", "[%r3 + 64], [%rd4, {0, 0}], [%r2]"), map, "not a multiple of 128"),
        (load("2d", "[%r3 + 128], [%rd4, {0, 0}], [%r2]"), map, "after which the swizzle repeats"),
        (load("3d", "[%r3], [%rd4, {0, 0, 0}], [%r2]"), map, "has rank 2"),
        (load("2d", "[%r3], [%rd4, {0, 0}], [%r2]"), |_, _| [7; 128], "not a record"),
        (
            load("2d", "[%r3], [%rd4, {0, 0}], [%r2]"),
            |a, _| record(&request(a, 32, Swizzle::B128)),
            "only boxes as wide",
        ),
        (load("2d", "[%r3], [%rd4, {0, 0}], [%r2]"), |a, _| record(&request(a + 65520, 64, Swizzle::B128)), "input"),
        (load("2d", "[%r3 + 32640], [%rd4, {0, 0}], [%r2]"), map, "shared offset"),
    ];
    for (body, map, text) in cases {
        Case { map: Some(map), ..Case::new(&body) }.finds(text);
    }
    // The map is the third parameter, at 64.
    let body = load("2d", "[%r3], [%rd4, {0, 0}], [%r2]").replace("cvta.param.u64 %rd4, %rd4;", "");
    let text = "no tensor map can be at the generic address 0x40; if that is the place of a parameter, cvta.param";
    Case { map: Some(map), ..Case::new(&body) }.finds(text);
}

/// A record in global memory is written anew for a second copy, which needs a wait for the first one.
#[test]
fn a_record_changes_behind_a_wait() {
    const WAIT: &str = "WAITED: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], %r24; @!%p2 bra WAITED;";
    const ARM: &str = "@%p5 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 2048;";
    let body = |bytes: u32, wait: &str, arm: &str| {
        start(
            bytes,
            &format!(
                "add.u32 %r20, %r3, 16384; shl.b32 %r21, %r0, 2; add.u32 %r22, %r20, %r21; cvt.u64.u32 %rd10, %r21; add.u64 %rd10, %rd4, %rd10;
                 ld.b32 %r23, [%rd10]; st.shared.b32 [%r22], %r23; add.u64 %rd11, %rd1, 32768; mov.b64 %rd12, %rd0; mov.b32 %r24, 0;
                 PASS: bar.warp.sync -1; @%p1 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r20], %rd12; bar.warp.sync -1;
                 tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd11], [%r20], 128;
                 fence.proxy.tensormap::generic.acquire.gpu [%rd11], 128;
                 @%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r3], [%rd11, {{0, 0}}], [%r2]; {wait}
                 add.u64 %rd12, %rd12, 3328; add.u32 %r24, %r24, 1; setp.eq.u32 %p4, %r24, 1; and.pred %p5, %p4, %p1;
                 {arm} @%p4 bra PASS; {}",
                DUMP.replace("[%r2], 0;", "[%r2], 1;")
            ),
        )
    };
    let map: Record = |a, _| record(&request(a, 64, Swizzle::B128));
    let text = body(2048, WAIT, ARM);
    let case = Case { map: Some(map), ..Case::new(&text) };
    let tile = expected(&case.input, 64, (0, 16), [0; 2], swizzled(&request(0x1000, 64, Swizzle::B128)));
    assert!(case.output()[..8192] == tile, "rows 16 and on");
    let text = body(4096, "", "");
    Case { map: Some(map), ..Case::new(&text) }.finds("does not come behind a wait for its reads");
}
