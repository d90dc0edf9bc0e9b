//! Shuffles, votes, matches, reductions and elections, with full and partial masks.

use crate::case::{Case, Input};
use crate::values::Source;

/// Lanes that take part.
const MASKS: [u32; 6] = [u32::MAX, 1, 0x8000_0000, 0x0000_ffff, 0xaaaa_aaaa, 0x0f3c_8421];

/// Lanes of `mask` run `body`; the results of the others are 0x77.
fn masked(name: &str, mask: u32, outs: usize, body: &str) -> Case {
    let full = format!(
        "mov.b32 %r50, {mask:#x}; shr.u32 %r51, %r50, %lane; and.b32 %r51, %r51, 1; setp.eq.u32 %p9, %r51, 0;\n{}\n@%p9 bra DONE;\n{}\nDONE:",
        (0..outs).map(|i| format!("mov.b32 %o{i}, 0x77;")).collect::<String>(),
        body.replace("MASK", "%r50"),
    );
    let mut case = Case::new(format!("{name}/{mask:#x}"), 32, full);
    case.ctas = 4;
    let mut source = Source::named(&case.name);
    let mut values = |modulus: u64| Input {
        bits: 32,
        values: (0..128)
            .map(|_| if modulus == 0 { source.bits() & 0xffff_ffff } else { source.below(modulus) })
            .collect(),
    };
    case.inputs = vec![values(0), values(3), values(40)];
    case.outs = vec![32; outs];
    case
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for mask in MASKS {
        for mode in ["up", "down", "bfly", "idx"] {
            for clamp in [0x1f, 0, 0x181f, 0x1c0f, 0x1007, 0x10] {
                let body = format!(
                    "shfl.sync.{mode}.b32 %o0|%p0, %i0, %r40, {clamp:#x}, MASK; selp.u32 %o1, 1, 0, %p0; mov.b32 %r40, 3; shfl.sync.{mode}.b32 %o2, %i0, 3, {clamp:#x}, MASK;"
                );
                // A lane outside the mask as source is undefined: only whole warps read arbitrary ones.
                if mask == u32::MAX {
                    let body = body.replace("%r40, ", "%i2, ").replace("mov.b32 %i2, 3; ", "");
                    cases.push(masked(&format!("shfl.sync.{mode}.b32/{clamp:#x}"), mask, 3, &body));
                }
            }
        }
        for op in ["all", "any", "uni"] {
            let body = format!(
                "setp.ne.u32 %p1, %i1, 0; vote.sync.{op}.pred %p2, %p1, MASK; selp.u32 %o0, 1, 0, %p2; setp.lt.u32 %p1, %lane, 32; vote.sync.{op}.pred %p2, !%p1, MASK; selp.u32 %o1, 1, 0, %p2;"
            );
            cases.push(masked(&format!("vote.sync.{op}.pred"), mask, 2, &body));
        }
        cases.push(masked(
            "vote.sync.ballot.b32",
            mask,
            1,
            "setp.ne.u32 %p1, %i1, 0; vote.sync.ballot.b32 %o0, %p1, MASK;",
        ));
        cases.push(masked(
            "match.sync",
            mask,
            5,
            "match.any.sync.b32 %o0, %i1, MASK; match.all.sync.b32 %o1|%p2, %i1, MASK; selp.u32 %o2, 1, 0, %p2; mov.b32 %r41, 9; match.all.sync.b32 %o3|%p3, %r41, MASK; cvt.u64.u32 %rd1, %i1; shl.b64 %rd1, %rd1, 33; match.any.sync.b64 %o4, %rd1, MASK;",
        ));
        for op in ["add.u32", "add.s32", "min.u32", "min.s32", "max.u32", "max.s32", "and.b32", "or.b32", "xor.b32"] {
            cases.push(masked(&format!("redux.sync.{op}"), mask, 1, &format!("redux.sync.{op} %o0, %i0, MASK;")));
        }
        cases.push(masked("elect.sync", mask, 2, "elect.sync %o0|%p1, MASK; selp.u32 %o1, 1, 0, %p1;"));
        cases.push(masked("activemask.b32", mask, 1, "activemask.b32 %o0;"));
    }
    cases
}
