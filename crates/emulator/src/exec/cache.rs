//! Prefetches and cache policies: no effect on values, but for `discard`; what they point to is checked.

use super::memory::{self, MemorySpace};
use super::moves::MoveOp;
use super::{Op, lanes};
use crate::decode::{Addr, Decoder, Refusal};
use crate::finding::Kind;
use crate::isa::table::Row;
use crate::machine::{Cluster, Fault, Outcome, Reg, Warp};
use crate::memory::Space;
use crate::parse::ast::Instruction;

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new(
        "prefetch {global|local|const|param} {tensormap} {L1|L2|L2::evict_last|L2::evict_normal}",
        "[a]",
        decode_prefetch,
        "9.7.9.15",
    ),
    Row::new("prefetchu L1", "[a]", decode_prefetch, "9.7.9.15"),
    Row::new("applypriority {global} L2::evict_normal", "[a], size", decode_priority, "9.7.9.16"),
    Row::new("discard {global} L2", "[a], size", decode_discard, "9.7.9.17"),
    Row::new(
        "createpolicy (fractional|range) (L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged) {L2::evict_first|L2::evict_unchanged} {global} {b64}",
        "d{, a, b, c}",
        decode_policy,
        "9.7.9.18",
    ),
    Row::new("createpolicy cvt L2 b64", "d, a", decode_policy, "9.7.9.18"),
];

/// Bytes that `applypriority` and `discard` take, and the alignment that they ask for.
const LINE: u32 = 128;
/// Alignment of a tensor map.
const MAP_ALIGNMENT: u32 = 64;

/// A decoded instruction of the family.
#[derive(Debug, Clone)]
pub enum CacheOp {
    /// Only says what will be used: a wrong address is a warning.
    Hint {
        /// Address.
        address: Addr,
        /// Where.
        space: MemorySpace,
        /// What the address is a multiple of.
        alignment: u32,
    },
    /// `discard.L2`: the bytes become undefined.
    Discard {
        /// Address.
        address: Addr,
    },
}

fn hint(decoder: &mut Decoder<'_>, instruction: &Instruction, alignment: u32) -> Result<Op, Refusal> {
    let address = decoder.address(&instruction.operands[0])?;
    Ok(Op::Cache(CacheOp::Hint { address, space: memory::space_of(instruction), alignment }))
}

fn decode_prefetch(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    hint(decoder, instruction, if instruction.has("tensormap") { MAP_ALIGNMENT } else { 1 })
}

fn decode_priority(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    hint(decoder, instruction, LINE)
}

fn decode_discard(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let address = decoder.address(&instruction.operands[0])?;
    Ok(Op::Cache(CacheOp::Discard { address }))
}

/// Policies have no functional effect; the value only has to be there.
fn decode_policy(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let d = decoder.dst64(&instruction.operands[0])?;
    let a = decoder.constant64(0x1000_0000_0000_0000);
    Ok(Op::Move(MoveOp::Copy { d: Reg::R64(d), a: Reg::R64(a) }))
}

/// Executes an instruction of the family.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &CacheOp) -> Outcome {
    let result = match *op {
        CacheOp::Hint { address, space, alignment } => check_hint(machine, warp, mask, (address, space), alignment),
        CacheOp::Discard { address } => discard(machine, warp, mask, address),
    };
    result.map_or_else(Outcome::Fault, |()| Outcome::Next)
}

fn check_hint(
    machine: &mut Cluster,
    warp: &Warp,
    mask: u32,
    (address, space): (Addr, MemorySpace),
    alignment: u32,
) -> Result<(), Fault> {
    let mut at = memory::addresses(warp, address);
    let spaces = memory::resolve(machine, warp, mask, space, &mut at)?;
    for lane in lanes(mask) {
        let (kind, message) = if !at[lane].is_multiple_of(alignment.into()) {
            (Kind::Misaligned, format!("address {:#x} is not a multiple of {alignment}: no effect", at[lane]))
        } else if spaces[lane] == Space::Global && machine.global.find(at[lane]).is_none() {
            (Kind::OutOfBounds, format!("{}: no effect", machine.global.describe(at[lane], 1)))
        } else {
            continue;
        };
        let mut finding = machine.finding(kind, warp, 1 << lane, message);
        finding.warning = true;
        machine.report(*finding);
        break;
    }
    Ok(())
}

fn discard(machine: &mut Cluster, warp: &Warp, mask: u32, address: Addr) -> Result<(), Fault> {
    let at = memory::addresses(warp, address);
    memory::check_alignment(machine, warp, mask, &at, LINE)?;
    for lane in lanes(mask) {
        let place = machine.global.range(at[lane], LINE.into()).map(|_| ());
        place.map_err(|error| machine.access_fault(error, warp, 1 << lane))?;
        machine.global.forget(at[lane], LINE.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::finding::Kind;
    use crate::isa::Target;
    use crate::testing::run_on;

    /// What one warp finds that executes `body`, where `%rd1` is the address of its 256 bytes of output.
    fn found(body: &str) -> Vec<(Kind, bool, String)> {
        let body = format!("ld.param.u64 %rd1, [out]; st.global.u32 [%rd1], 1; {body} mov.u32 %o0, 0;");
        let ran = run_on(Target::Sm90, &body, (&[], &[]), (1, 0));
        ran.report.findings.into_iter().map(|f| (f.kind, f.warning, f.message)).collect()
    }

    #[track_caller]
    fn finds(body: &str, kind: Kind, warning: bool, words: &str) {
        let found = found(body);
        let told = found.iter().any(|f| (f.0, f.1) == (kind, warning) && f.2.contains(words));
        assert!(told, "{body}: {found:?}");
    }

    #[test]
    fn hints_inside_a_buffer_are_silent() {
        let inside = "prefetch.global.L2 [%rd1 + 255]; prefetch.L1 [%rd1]; applypriority.global.L2::evict_normal [%rd1 + 128], 128;";
        assert_eq!(found(inside), []);
    }

    #[test]
    fn hints_outside_are_warnings() {
        finds("prefetch.global.L2 [%rd1 + 256];", Kind::OutOfBounds, true, "0 bytes past the end of out");
        finds("prefetch.L2 [%rd1 + 300];", Kind::OutOfBounds, true, "44 bytes past the end of out");
        finds("prefetchu.L1 [%rd1 + 256];", Kind::OutOfBounds, true, "past the end of out");
        finds("prefetch.tensormap [%rd1 + 32];", Kind::Misaligned, true, "is not a multiple of 64");
        let aligned = "applypriority.global.L2::evict_normal [%rd1 + 64], 128;";
        finds(aligned, Kind::Misaligned, true, "is not a multiple of 128");
    }

    #[test]
    fn discarded_bytes_are_undefined() {
        finds("discard.global.L2 [%rd1], 128; ld.global.u32 %r1, [%rd1];", Kind::Uninitialised, false, "out + 0");
        finds("discard.global.L2 [%rd1 + 64], 128;", Kind::Misaligned, false, "is not a multiple of 128");
        finds("discard.global.L2 [%rd1 + 256], 128;", Kind::OutOfBounds, false, "past the end of out");
    }
}
