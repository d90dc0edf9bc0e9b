//! ldmatrix, stmatrix, movmatrix (ISA notes, async 5.6).
//!
//! Row addresses come from the lanes: row `r` of matrix `m` from lane `rows * m + r`. The accesses are weak and
//! generic-proxy; all lanes of the warp take part.

use crate::check::{Access, Bytes, Order, Proxy, Use};
use crate::decode::{Addr, Decoder, Refusal};
use crate::exec::memory::{self, MemorySpace};
use crate::exec::{Op, lanes};
use crate::isa::Words;
use crate::isa::table::{BLACKWELL, Row};
use crate::layout::matrix::{MatrixForm, RowPacking, transpose_m8n8};
use crate::machine::{Cluster, Fault, Outcome, R32, WARP, Warp};
use crate::memory::Space;
use crate::parse::ast::Instruction;
use crate::trace::Path;

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new(
        "ldmatrix sync aligned m8n8 (x1|x2|x4) {trans} {shared|shared::cta} b16",
        "d, [a]",
        decode_load,
        "async 5.6",
    ),
    Row::new("ldmatrix sync aligned m16n16 (x1|x2) trans {shared|shared::cta} b8", "d, [a]", decode_load, "async 5.6")
        .on(BLACKWELL, 86)
        .needs(Words::Family),
    Row::new(
        "ldmatrix sync aligned m16n16 (x1|x2) trans {shared|shared::cta} b8x16 (b4x16_p64|b6x16_p32)",
        "d, [a]",
        decode_load,
        "async 5.6",
    )
    .on(BLACKWELL, 86)
    .needs(Words::Family),
    Row::new(
        "ldmatrix sync aligned m8n16 (x1|x2|x4) {shared|shared::cta} b8x16 (b4x16_p64|b6x16_p32)",
        "d, [a]",
        decode_load,
        "async 5.6",
    )
    .on(BLACKWELL, 86)
    .needs(Words::Family),
    Row::refused(
        "ldmatrix sync aligned m8n16 (x1|x2|x4) {shared|shared::cta} s8 s4",
        "d, [a]",
        "the placement of the unpacked values is not established",
        "async 5.6",
    ),
    Row::new(
        "stmatrix sync aligned m8n8 (x1|x2|x4) {trans} {shared|shared::cta} b16",
        "[a], b",
        decode_store,
        "async 5.6",
    ),
    Row::new(
        "stmatrix sync aligned m16n8 (x1|x2|x4) trans {shared|shared::cta} b8",
        "[a], b",
        decode_store,
        "async 5.6",
    )
    .on(BLACKWELL, 86)
    .needs(Words::Family),
    Row::new("movmatrix sync aligned m8n8 trans b16", "d, a", decode_move, "async 5.6"),
];

/// Registers and addresses of a matrix access.
#[derive(Debug, Clone)]
pub struct MatrixAccess {
    /// Element map.
    form: MatrixForm,
    /// Packing of memory rows.
    packing: RowPacking,
    /// Registers, [`MatrixForm::registers`] for each matrix.
    regs: Box<[R32]>,
    /// Row addresses.
    address: Addr,
    /// Space.
    space: MemorySpace,
}

impl MatrixAccess {
    fn matrices(&self) -> usize {
        self.regs.len() / self.form.registers() as usize
    }

    /// Lanes whose addresses are used.
    fn lanes(&self) -> u32 {
        let count = self.form.rows() * self.matrices() as u32;
        u32::MAX >> (32 - count)
    }
}

/// A decoded instruction of the family.
#[derive(Debug, Clone)]
pub enum LdmatrixOp {
    /// `ldmatrix`
    Load(MatrixAccess),
    /// `stmatrix`
    Store(MatrixAccess),
    /// `movmatrix`
    Move {
        /// Destination.
        d: R32,
        /// Source.
        a: R32,
    },
}

fn access(decoder: &mut Decoder<'_>, instruction: &Instruction, load: bool) -> Result<MatrixAccess, Refusal> {
    let trans = instruction.has("trans");
    let form = match instruction.choose(&[("m8n8", 0), ("m16n16", 1), ("m16n8", 2), ("m8n16", 3)]) {
        Some(0) if trans => MatrixForm::M8N8Trans,
        Some(0) => MatrixForm::M8N8,
        Some(1) => MatrixForm::M16N16Trans,
        Some(2) => MatrixForm::M16N8Trans,
        _ => MatrixForm::M8N16,
    };
    let packing = instruction
        .choose(&[("b4x16_p64", RowPacking::Nibbles), ("b6x16_p32", RowPacking::SixBit)])
        .unwrap_or(RowPacking::Bytes);
    let matrices = instruction.choose(&[("x1", 1), ("x2", 2), ("x4", 4)]).unwrap_or(1);
    let (values, address) = if load { (0, 1) } else { (1, 0) };
    let elements = decoder.elements(&instruction.operands[values]);
    let wanted = matrices * form.registers() as usize;
    if elements.len() != wanted {
        return Refusal::invalid(format!("expected {wanted} registers, got {}", elements.len()));
    }
    let regs = elements.iter().map(|e| if load { decoder.dst32(e) } else { decoder.src32(e) });
    let regs = regs.collect::<Result<Box<[R32]>, _>>()?;
    let space = memory::space_of(instruction);
    Ok(MatrixAccess { form, packing, regs, address: decoder.address(&instruction.operands[address])?, space })
}

fn decode_load(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    Ok(Op::Ldmatrix(Box::new(LdmatrixOp::Load(access(decoder, instruction, true)?))))
}

fn decode_store(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    Ok(Op::Ldmatrix(Box::new(LdmatrixOp::Store(access(decoder, instruction, false)?))))
}

fn decode_move(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let (d, a) = (decoder.dst32(&instruction.operands[0])?, decoder.src32(&instruction.operands[1])?);
    Ok(Op::Ldmatrix(Box::new(LdmatrixOp::Move { d, a })))
}

/// Executes an instruction of the family.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &LdmatrixOp) -> Outcome {
    if let Some(outcome) = machine.require_aligned(warp, mask) {
        return outcome;
    }
    let result = match op {
        LdmatrixOp::Load(access) => load(machine, warp, access),
        LdmatrixOp::Store(access) => store(machine, warp, access),
        LdmatrixOp::Move { d, a } => {
            let moved = transpose_m8n8(warp.regs.get::<u32>(*a));
            warp.regs.set::<u32>(*d, mask, &moved);
            Ok(())
        }
    };
    match result {
        Ok(()) => Outcome::Next,
        Err(fault) => Outcome::Fault(fault),
    }
}

/// Checked shared addresses of the rows, one lane each.
fn row_addresses(machine: &mut Cluster, warp: &Warp, access: &MatrixAccess, usage: Use) -> Result<[u64; WARP], Fault> {
    let used = access.lanes();
    let mut addresses = memory::addresses(warp, access.address);
    let spaces = memory::resolve(machine, warp, used, access.space, &mut addresses)?;
    for lane in lanes(used) {
        if spaces[lane] != Space::Shared {
            let text = format!("address {:#x} is not in shared memory", addresses[lane]);
            let error = crate::memory::AccessError::OutOfBounds(text);
            return Err(machine.access_fault(error, warp, 1 << lane));
        }
    }
    memory::check_alignment(machine, warp, used, &addresses, 16)?;
    let width = access.packing.bytes() as u32;
    let (bytes, order, proxy) = (Bytes::Lanes(&addresses, width), Order::Weak, Proxy::Generic);
    machine.observe(warp, used, &Access { space: Space::Shared, usage, proxy, order, bytes, operation: 0 });
    let path = if usage == Use::Read { Path::SharedLoad } else { Path::SharedStore };
    machine.counters.add_bytes(path, u64::from(used.count_ones() * width));
    machine.counters.bank_conflicts += memory::bank_conflicts(used, &addresses, 16);
    Ok(addresses)
}

fn load(machine: &mut Cluster, warp: &mut Warp, access: &MatrixAccess) -> Result<(), Fault> {
    let addresses = row_addresses(machine, warp, access, Use::Read)?;
    let (rows, registers) = (access.form.rows() as usize, access.form.registers());
    let mut out = [[0; WARP]; 4];
    for matrix in 0..access.matrices() {
        let mut data = [[0; 16]; 16];
        for (r, row) in data.iter_mut().enumerate().take(rows) {
            let lane = matrix * rows + r;
            memory::read(machine, warp, lane, Space::Shared, addresses[lane], &mut row[..access.packing.bytes()])?;
            *row = access.packing.unpack(row);
        }
        for register in 0..registers {
            let target = &mut out[matrix * registers as usize + register as usize];
            *target = std::array::from_fn(|lane| access.form.load(&data, lane as u32, register));
        }
    }
    for (reg, values) in access.regs.iter().zip(&out) {
        warp.regs.set::<u32>(*reg, warp.live, values);
    }
    Ok(())
}

fn store(machine: &mut Cluster, warp: &mut Warp, access: &MatrixAccess) -> Result<(), Fault> {
    let addresses = row_addresses(machine, warp, access, Use::Write)?;
    let rows = access.form.rows() as usize;
    for (matrix, reg) in access.regs.iter().enumerate() {
        let mut data = [[0; 16]; 8];
        for (lane, &value) in (0..).zip(warp.regs.get::<u32>(*reg)) {
            access.form.store(&mut data, lane, 0, value);
        }
        for (r, row) in data.iter().enumerate() {
            let lane = matrix * rows + r;
            memory::write(machine, warp, lane, Space::Shared, addresses[lane], row)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::needless_range_loop)] // lanes and registers index results and expectations alike

    use crate::isa::Target;
    use crate::testing::{run_on, run32};

    const SHARED: &str = ".shared .align 128 .b8 tile[1024]; mov.u32 %r40, tile; add.u32 %r50, %r40, %r5;";

    /// Byte `i` of the first 512 of the tile is `i` modulo 256; `%r50` is the row address of the lane.
    fn filled() -> String {
        let mut text = format!("{SHARED} add.u32 %r42, %r40, %r4;\n");
        for block in 0..4 {
            text.push_str(&format!("st.shared.b32 [%r42 + {}], %r{block};\n", block * 128));
        }
        text + "bar.warp.sync -1;\n"
    }

    /// Words of the tile by block, then four and sixteen times the lane.
    fn inputs() -> [[u32; 32]; 6] {
        let word = |i: usize| (0..4).fold(0, |word, x| word | byte(4 * i + x) << (8 * x));
        std::array::from_fn(|r| {
            std::array::from_fn(|lane| match r {
                0..4 => word(r * 32 + lane),
                4 => 4 * lane as u32,
                _ => 16 * lane as u32,
            })
        })
    }

    fn byte(at: usize) -> u32 {
        (at % 256) as u32
    }

    #[test]
    fn m8n8_x4_plain_and_transposed() {
        let body = filled()
            + "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%o0, %o1, %o2, %o3}, [%r50];
               ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 {%o4, %o5}, [%r50];
               movmatrix.sync.aligned.m8n8.trans.b16 %o6, %o0;";
        let out = run32(&body, &inputs(), 7);
        let element =
            |m: usize, r: usize, c: usize| byte(m * 128 + r * 16 + 2 * c) | byte(m * 128 + r * 16 + 2 * c + 1) << 8;
        for t in 0..32 {
            for m in 0..4 {
                let expected = element(m, t / 4, 2 * (t % 4)) | element(m, t / 4, 2 * (t % 4) + 1) << 16;
                assert_eq!(out[m][t], expected, "matrix {m} lane {t}");
            }
            for m in 0..2 {
                let expected = element(m, 2 * (t % 4), t / 4) | element(m, 2 * (t % 4) + 1, t / 4) << 16;
                assert_eq!(out[4 + m][t], expected, "transposed matrix {m} lane {t}");
            }
            assert_eq!(out[6][t], out[4][t], "movmatrix transposes matrix 0");
        }
    }

    #[test]
    fn byte_matrices_and_unpacking() {
        let body = filled()
            + "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%o0, %o1}, [%r50];
               ldmatrix.sync.aligned.m8n16.x2.shared::cta.b8x16.b4x16_p64 {%o2, %o3}, [%r50];";
        let out = run32(&body, &inputs(), 4);
        for t in 0..32 {
            for r in 0..2 {
                let expected = (0..4).fold(0, |v, i| v | byte((4 * (t % 4) + i) * 16 + t / 4 + 8 * r) << (8 * i));
                assert_eq!(out[r][t], expected);
            }
            for m in 0..2 {
                let nibble = |k: usize| byte(m * 128 + (t / 4) * 16 + k / 2) >> (4 * (k % 2)) & 0xf;
                let expected = (0..4).fold(0, |v, i| v | nibble(4 * (t % 4) + i) << 2 << (8 * i));
                assert_eq!(out[2 + m][t], expected);
            }
        }
    }

    #[test]
    fn stores_are_the_inverse_of_loads() {
        let body = filled()
            + "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r51, %r52, %r53, %r54}, [%r50];
               add.u32 %r55, %r50, 512;
               stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%r55], {%r51, %r52, %r53, %r54};
               bar.warp.sync -1;
               ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%o0, %o1, %o2, %o3}, [%r55];
               sub.u32 %o4, %o0, %r51; sub.u32 %o5, %o3, %r54;
               stmatrix.sync.aligned.m16n8.x2.trans.shared.b8 [%r55], {%io_tid, %r40};
               bar.warp.sync -1;
               add.u32 %r56, %r40, %r4; ld.shared.b32 %o6, [%r56 + 512];";
        let out = run32(&body, &inputs(), 7);
        assert_eq!((out[4], out[5]), ([0; 32], [0; 32]));
        // Byte 0 of lane 8 (value 8) goes to memory row 0, column 2: the third byte of word 0. Byte 1 is zero: row 1.
        assert_eq!(out[6][0], 0x0c08_0400);
        assert_eq!(out[6][4], 0);
    }

    #[test]
    fn faults_and_availability() {
        let misaligned = filled() + "add.u32 %r50, %r40, 8; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%o0}, [%r50];";
        let ran = run_on(Target::Sm90, &misaligned, (&inputs(), &[]), (1, 0));
        assert_eq!(ran.report.findings[0].kind, crate::Kind::Misaligned);
        let unwritten = format!("{SHARED} ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%o0}}, [%r40];");
        let ran = run_on(Target::Sm90, &unwritten, (&inputs(), &[]), (1, 0));
        assert_eq!(ran.report.findings[0].kind, crate::Kind::Uninitialised);
        let divergent =
            filled() + "setp.lt.u32 %p0, %io_tid, 16; @%p0 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%o0}, [%r40];";
        let ran = run_on(Target::Sm90, &divergent, (&inputs(), &[]), (1, 0));
        assert_eq!(ran.report.findings[0].kind, crate::Kind::Divergence);
    }
}
