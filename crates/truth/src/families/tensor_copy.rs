//! Bulk and tensor copies: swizzles, bounds, element strides, fills, stores, reductions.

use bakewell_core::tensor_map::{Interleave, L2Promotion, MapType, OobFill, Swizzle, TensorMapRequest};

use crate::case::{Case, Class, Place};
use crate::values::{Element, Source};

/// Bytes of shared memory that are filled before a copy and given back after it.
const TILE: usize = 8192;

/// A barrier, the tile filled with 0xee, everybody in step. `%r2` is the barrier and `%r3` the tile.
const START: &str = "setp.eq.u32 %p1, %thread, 0; mov.u32 %r2, bar; mov.u32 %r3, tile; @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
    mov.u32 %r10, 0xeeeeeeee; shl.b32 %r11, %thread, 4; add.u32 %r12, %r3, %r11; mov.u32 %r13, 0;
    FILL: st.shared.v4.b32 [%r12], {%r10, %r10, %r10, %r10}; add.u32 %r12, %r12, 2048; add.u32 %r13, %r13, 1; setp.lt.u32 %p3, %r13, 4; @%p3 bra FILL;
    fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta; barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;";

/// Waits for the barrier, though not for ever: a wrong count of bytes is to show in the results. Gives the tile back.
const FINISH: &str = "mov.u32 %r20, 0; WAIT: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p2, [%r2], 0; add.u32 %r20, %r20, 1; setp.lt.u32 %p3, %r20, 20000; not.pred %p2, %p2; and.pred %p2, %p2, %p3; @%p2 bra WAIT;
    add.u32 %r12, %r3, %r11; mul.wide.u32 %rd9, %rank, 8192; add.u64 %rd9, %rd9, %dump; cvt.u64.u32 %rd8, %r11; add.u64 %rd9, %rd9, %rd8; mov.u32 %r13, 0;
    GIVE: ld.shared.v4.b32 {%r16, %r17, %r18, %r19}, [%r12]; st.global.v4.b32 [%rd9], {%r16, %r17, %r18, %r19};
    add.u32 %r12, %r12, 2048; add.u64 %rd9, %rd9, 2048; add.u32 %r13, %r13, 1; setp.lt.u32 %p3, %r13, 4; @%p3 bra GIVE;
    barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;";

/// Copies the data of the tile's size into the tile, everybody in step. `%r3` is the tile.
const LOADED: &str = "setp.eq.u32 %p1, %thread, 0; mov.u32 %r3, tile; shl.b32 %r11, %thread, 4; add.u32 %r12, %r3, %r11; cvt.u64.u32 %rd8, %r11; add.u64 %rd9, %data, %rd8; mov.u32 %r13, 0;
    FILL: ld.global.v4.b32 {%r16, %r17, %r18, %r19}, [%rd9]; st.shared.v4.b32 [%r12], {%r16, %r17, %r18, %r19};
    add.u32 %r12, %r12, 2048; add.u64 %rd9, %rd9, 2048; add.u32 %r13, %r13, 1; setp.lt.u32 %p3, %r13, 4; @%p3 bra FILL;
    fence.proxy.async.shared::cta; bar.sync 0;";

/// Ends a bulk group of thread 0.
const STORED: &str = "@%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0;";

fn base(name: String, body: String) -> Case {
    let mut case = Case::new(name, 128, body);
    case.variables = format!(".shared .align 1024 .b8 tile[{TILE}]; .shared .align 8 .b64 bar;\n");
    case.data = Source::named(&case.name).bytes(64 * 1024);
    case.dump = TILE;
    case
}

fn map(dtype: MapType, dims: &[u64], strides: &[u64], box_dims: &[u32], swizzle: Swizzle) -> TensorMapRequest {
    TensorMapRequest {
        dtype,
        address: 0,
        dims: dims.to_vec(),
        strides: strides.to_vec(),
        box_dims: box_dims.to_vec(),
        element_strides: vec![1; dims.len()],
        interleave: Interleave::None,
        swizzle,
        l2_promotion: L2Promotion::None,
        oob_fill: OobFill::Zeros,
    }
}

fn coordinates(at: &[i32]) -> String {
    let list: Vec<String> = at.iter().map(i32::to_string).collect();
    format!("{{{}}}", list.join(", "))
}

/// A load of `bytes` bytes to `offset` of the tile.
fn load(name: String, map: TensorMapRequest, at: &[i32], offset: u32) -> Case {
    let bytes = map.inner_box_bytes() * map.moved_rows();
    let body = format!(
        "{START}
         add.u32 %r4, %r3, {offset};
         @%p1 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r2], {bytes};
         @%p1 cp.async.bulk.tensor.{}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r4], [%map, {}], [%r2];
         {FINISH}",
        map.dims.len(),
        coordinates(at)
    );
    let mut case = base(name, body);
    case.map = Some((Place::Data, map));
    case
}

/// A store or reduction of the tile to a tensor over the output buffer.
fn store(name: String, op: &str, map: TensorMapRequest, at: &[i32]) -> Case {
    let rank = map.dims.len();
    let body = format!(
        "{LOADED}\n@%p1 {} [%map, {}], [%r3]; {STORED}",
        op.replace("RANK", &format!("{rank}d")),
        coordinates(at)
    );
    let mut case = base(name, body);
    case.map = Some((Place::Dump, map));
    case
}

/// A store, for [`store`].
const STORE: &str = "cp.async.bulk.tensor.RANK.global.shared::cta.tile.bulk_group";

const SWIZZLES: [(Swizzle, u32); 4] =
    [(Swizzle::None, 24), (Swizzle::B32, 16), (Swizzle::B64, 32), (Swizzle::B128, 64)];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (swizzle, inner) in SWIZZLES {
        let tensor = map(MapType::F16, &[100, 60], &[208], &[inner, 16], swizzle);
        for at in [[0, 0], [88, 50], [-8, -2], [200, 0], [16, 59], [-64, 3], [i32::MIN, 0], [0, i32::MAX]] {
            cases.push(load(format!("load/{swizzle:?}/{}_{}", at[0], at[1]), tensor.clone(), &at, 0));
        }
        for offset in [128, 256, 512, 896] {
            cases.push(load(format!("load/{swizzle:?}/offset-{offset}"), tensor.clone(), &[8, 5], offset));
        }
        let small = map(MapType::F16, &[50, 30], &[128], &[inner, 16], swizzle);
        for at in [[0, 0], [40, 20], [-8, -2], [104, 0]] {
            let mut case = store(format!("store/{swizzle:?}/{}_{}", at[0], at[1]), STORE, small.clone(), &at);
            // Stores before the tensor are an illegal instruction, unlike loads.
            case.class = if at[0] < 0 { Class::Illegal } else { Class::Exact };
            cases.push(case);
        }
    }
    narrow(&mut cases);
    misaligned(&mut cases);
    types(&mut cases);
    ranks(&mut cases);
    strides(&mut cases);
    reductions(&mut cases);
    bulk(&mut cases);
    multicast(&mut cases);
    cases
}

/// Boxes narrower than the span of the swizzle, which the emulator refuses.
fn narrow(cases: &mut Vec<Case>) {
    for (swizzle, inner) in [
        (Swizzle::B128, 8),
        (Swizzle::B128, 16),
        (Swizzle::B128, 24),
        (Swizzle::B128, 32),
        (Swizzle::B128, 56),
        (Swizzle::B64, 8),
        (Swizzle::B64, 16),
        (Swizzle::B64, 24),
        (Swizzle::B32, 8),
    ] {
        let tensor = map(MapType::F16, &[100, 60], &[208], &[inner, 16], swizzle);
        let mut case = load(format!("load/narrow-{swizzle:?}-{inner}"), tensor, &[8, 5], 0);
        case.class = Class::Observed;
        cases.push(case);
    }
}

/// Boxes that begin between two multiples of 16 bytes of a row: an illegal instruction.
fn misaligned(cases: &mut Vec<Case>) {
    let halves = map(MapType::F16, &[100, 60], &[208], &[24, 16], Swizzle::None);
    let bytes = map(MapType::U8, &[200, 60], &[208], &[48, 16], Swizzle::None);
    let words = map(MapType::F32, &[50, 60], &[208], &[12, 16], Swizzle::None);
    for mut case in [
        load("misaligned/load/f16".into(), halves.clone(), &[4, 5], 0),
        load("misaligned/load/before".into(), halves, &[-3, 0], 0),
        load("misaligned/load/u8".into(), bytes, &[8, 0], 0),
        load("misaligned/load/f32".into(), words, &[10, 0], 0),
        store(
            "misaligned/store".into(),
            STORE,
            map(MapType::F16, &[50, 30], &[128], &[24, 16], Swizzle::None),
            &[4, 0],
        ),
    ] {
        case.class = Class::Illegal;
        cases.push(case);
    }
}

/// Every element type, zero and NaN fill; the types that convert read floats of every kind.
fn types(cases: &mut Vec<Case>) {
    use MapType::*;
    for dtype in [U8, U16, U32, I32, U64, I64, F16, F32, F64, Bf16, F32Ftz, Tf32, Tf32Ftz] {
        let width = dtype.bits() / 8;
        for fill in [OobFill::Zeros, OobFill::Nan] {
            if fill == OobFill::Nan && !dtype.is_float() {
                continue;
            }
            let inner = (64 / width) as u32;
            let mut tensor = map(dtype, &[40, 20], &[(40 * width).next_multiple_of(16)], &[inner, 8], Swizzle::None);
            tensor.oob_fill = fill;
            let first = ((40 - i32::try_from(inner).unwrap_or(0) / 2) * width as i32 + 15) / 16 * 16 / width as i32;
            let mut case = load(format!("load/{dtype:?}/{fill:?}"), tensor, &[first, 15], 0);
            if dtype.is_float() && width == 4 {
                let edges = crate::values::operands("floats", &[crate::values::Kind::F32], 16384);
                case.data = edges[0].values.iter().flat_map(|x| (*x as u32).to_le_bytes()).collect();
                for x in [0, 12] {
                    let mut next = case.clone();
                    next.name = format!("{}/at-{x}", case.name);
                    next.body = next.body.replace(&format!("{{{first}, 15}}"), &format!("{{{x}, {x}}}"));
                    cases.push(next);
                }
            }
            cases.push(case);
        }
    }
}

fn ranks(cases: &mut Vec<Case>) {
    let (dims, strides, sizes) = ([40, 6, 5, 4, 3], [96, 608, 3072, 12288], [16, 3, 2, 2, 2]);
    for rank in 1..=5 {
        let tensor = map(MapType::U16, &dims[..rank], &strides[..rank - 1], &sizes[..rank], Swizzle::None);
        for (name, at) in [("inside", [8, 1, 1, 0, 0]), ("across", [32, 4, 4, 3, 2]), ("before", [-8, -1, -1, -1, -1])]
        {
            cases.push(load(format!("load/{rank}d/{name}"), tensor.clone(), &at[..rank], 0));
        }
        let mut small = tensor.clone();
        small.strides = [96, 288, 576, 1152][..rank - 1].to_vec();
        small.dims = [40, 3, 2, 2, 3][..rank].to_vec();
        cases.push(store(format!("store/{rank}d"), STORE, small, &[32, 1, 0, 0, 0][..rank]));
    }
}

fn strides(cases: &mut Vec<Case>) {
    for (inner, outer) in [(1, 2), (1, 3), (2, 1), (2, 2), (4, 1)] {
        let mut tensor = map(MapType::U16, &[100, 60], &[208], &[32 * inner, 12], Swizzle::None);
        tensor.element_strides = vec![inner, outer];
        for at in [[0, 0], [8, 3], [80, 55], [-8, -2]] {
            cases.push(load(format!("load/step-{inner}-{outer}/{}_{}", at[0], at[1]), tensor.clone(), &at, 0));
        }
    }
}

fn reductions(cases: &mut Vec<Case>) {
    use MapType::*;
    for (dtype, ops) in [
        (U32, &["add", "min", "max", "inc", "dec", "and", "or", "xor"][..]),
        (I32, &["add", "min", "max"]),
        (U64, &["add", "min", "max", "and"]),
        (F16, &["add", "min", "max"]),
        (Bf16, &["add", "min", "max"]),
        (F32, &["add"]),
    ] {
        for op in ops {
            let width = dtype.bits() / 8;
            let tensor =
                map(dtype, &[30, 20], &[(30 * width).next_multiple_of(16)], &[(64 / width) as u32, 16], Swizzle::None);
            let text = format!("cp.reduce.async.bulk.tensor.RANK.global.shared::cta.{op}.tile.bulk_group");
            let mut case = store(format!("reduce.tensor/{dtype:?}/{op}"), &text, tensor, &[24, 3]);
            let element = match dtype {
                F16 => Some(Element::F16),
                Bf16 => Some(Element::Bf16),
                F32 => Some(Element::F32),
                _ => None,
            };
            // Floating-point values near those of the buffer, whose bytes are all alike.
            if let Some(element) = element {
                let mut source = Source::named(&case.name);
                let mut draw = || match element {
                    Element::F16 => element.draw(&mut source, 6),
                    _ => element.draw(&mut source, 30),
                };
                case.data =
                    (0..TILE / width as usize).flat_map(|_| draw().to_le_bytes()[..width as usize].to_vec()).collect();
            }
            cases.push(case);
        }
    }
}

fn bulk(cases: &mut Vec<Case>) {
    for bytes in [16, 48, 1024, 8192] {
        let body = format!(
            "{START} @%p1 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r2], {bytes};
             @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%data], {bytes}, [%r2]; {FINISH}"
        );
        cases.push(base(format!("bulk.load/{bytes}"), body));
        let body =
            format!("{LOADED} @%p1 cp.async.bulk.global.shared::cta.bulk_group [%dump], [%r3], {bytes}; {STORED}");
        cases.push(base(format!("bulk.store/{bytes}"), body));
    }
    for op in [
        "add.u32",
        "add.s32",
        "add.u64",
        "min.u32",
        "max.s32",
        "inc.u32",
        "dec.u32",
        "and.b32",
        "or.b64",
        "xor.b32",
        "add.f32",
        "add.f64",
        "add.noftz.f16",
        "add.noftz.bf16",
        "min.f16",
        "max.bf16",
        "min.s64",
        "max.u64",
    ] {
        let body = format!(
            "{LOADED} @%p1 cp.reduce.async.bulk.global.shared::cta.bulk_group.{op} [%dump], [%r3], 4096; {STORED}"
        );
        cases.push(base(format!("bulk.reduce/{op}"), body));
    }
}

fn multicast(cases: &mut Vec<Case>) {
    for mask in [1, 2, 5, 15] {
        let body = format!(
            "{START}
             mov.u32 %r5, {mask}; shr.u32 %r5, %r5, %rank; and.b32 %r5, %r5, 1; setp.eq.u32 %p5, %r5, 0; mov.b16 %h0, {mask};
             not.pred %p6, %p5; and.pred %p6, %p6, %p1; setp.eq.u32 %p7, %rank, 1; and.pred %p7, %p7, %p1;
             @%p6 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r2], 2048;
             @%p7 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%r3], [%map, {{80, 3}}], [%r2], %h0;
             setp.eq.u32 %p8, %thread, %thread; and.pred %p9, %p5, %p1; @%p9 mbarrier.arrive.release.cta.shared::cta.b64 _, [%r2];
             {FINISH}"
        );
        let mut case = base(format!("multicast/{mask:#x}"), body);
        case.map = Some((Place::Data, map(MapType::F16, &[100, 60], &[208], &[64, 16], Swizzle::B128)));
        (case.ctas, case.cluster, case.dump) = (4, 4, 4 * TILE);
        cases.push(case);
    }
}
