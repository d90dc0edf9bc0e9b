//! wmma: matrix loads, stores and products of one warp, decoded as ordinary accesses and products of `mma.sync`.
//!
//! Which lane holds which element of a wmma fragment is unspecified. Here fragments are those of `mma.sync` put side by
//! side: blocks of 16 rows (8 where the matrix has 8) for A, of 8 columns for B, and of both for C and D, rows
//! outermost. 16-bit operands A and B of `f16` take more registers than they have elements, as the ISA demands; the
//! surplus repeats.

use crate::check::Order;
use crate::decode::{Addr, Decoder, Refusal};
use crate::exec::memory::{AccessOp, MemoryOp, space_of};
use crate::exec::mma::{self, Kind};
use crate::exec::moves::MoveOp;
use crate::exec::{Op, lanes};
use crate::isa::Type;
use crate::isa::table::Row;
use crate::layout::fragment;
use crate::machine::{Cluster, Outcome, R32, R64, Reg, WARP, Warp};
use crate::parse::ast::{Instruction, Operand};

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new(
        "wmma load (a|b|c) sync aligned (row|col) (m16n16k16|m8n32k16|m32n8k16|m16n16k8|m8n8k4|m8n8k32|m8n8k128) {global|shared|shared::cta} (f16|bf16|tf32|f32|f64|s8|u8|s4|u4|b1|s32)",
        "d, [a]{, stride}",
        decode_load,
        "9.7.14.4.3",
    ),
    Row::new(
        "wmma store d sync aligned (row|col) (m16n16k16|m8n32k16|m32n8k16|m16n16k8|m8n8k4|m8n8k32|m8n8k128) {global|shared|shared::cta} (f16|f32|f64|s32)",
        "[a], d{, stride}",
        decode_store,
        "9.7.14.4.4",
    ),
    Row::new(
        "wmma mma sync aligned (row|col) (row|col) (m16n16k16|m8n32k16|m32n8k16) (f16|f32) (f16|f32)",
        "d, a, b, c",
        decode_mma,
        "9.7.14.4.5",
    ),
    Row::new(
        "wmma mma sync aligned (row|col) (row|col) (m16n16k16|m8n32k16|m32n8k16|m16n16k8) f32 (bf16|tf32) (bf16|tf32) f32",
        "d, a, b, c",
        decode_mma,
        "9.7.14.4.5",
    ),
    Row::new(
        "wmma mma sync aligned (row|col) (row|col) (m16n16k16|m8n32k16|m32n8k16|m8n8k32) s32 (s8|u8|s4|u4) (s8|u8|s4|u4) s32 {satfinite}",
        "d, a, b, c",
        decode_mma,
        "9.7.14.4.5",
    ),
    Row::new(
        "wmma mma sync aligned (row|col) (row|col) m8n8k4 {rn} f64 f64 f64 f64",
        "d, a, b, c",
        decode_mma,
        "9.7.14.4.5",
    ),
    Row::new(
        "wmma mma (xor|and) popc sync aligned row col m8n8k128 s32 b1 b1 s32",
        "d, a, b, c",
        decode_mma,
        "9.7.14.4.5",
    ),
];

/// The address of a fragment's element in each lane.
#[derive(Debug, Clone)]
pub struct AddressOp {
    d: R64,
    /// Of the matrix.
    base: Reg,
    offset: i64,
    /// Elements from one row of memory to the next.
    stride: R32,
    /// Row of memory and place in it, by lane.
    places: [(u32, u32); WARP],
    /// Bits of an element.
    bits: u32,
}

/// M, N and K.
#[derive(Clone, Copy)]
struct Shape {
    m: u32,
    n: u32,
    k: u32,
}

impl Shape {
    fn of(instruction: &Instruction) -> Result<Shape, Refusal> {
        let parse = |word: &String| {
            let (m, rest) = word.strip_prefix('m')?.split_once('n')?;
            let (n, k) = rest.split_once('k')?;
            Some(Shape { m: m.parse().ok()?, n: n.parse().ok()?, k: k.parse().ok()? })
        };
        instruction.modifiers.iter().find_map(parse).map_or_else(|| Refusal::invalid("expected a shape"), Ok)
    }

    /// Rows of a block of `mma.sync`.
    fn rows(self) -> u32 {
        self.m.min(16)
    }
}

/// Which operand a fragment is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    A,
    B,
    /// C or D.
    C,
}

/// A fragment: its operand, shape and element size.
#[derive(Clone, Copy)]
struct Fragment {
    part: Part,
    shape: Shape,
    bits: u32,
}

impl Fragment {
    /// Elements in one register.
    fn per_register(self) -> u32 {
        if self.bits == 64 { 1 } else { 32 / self.bits }
    }

    /// Registers that hold all elements once.
    fn registers(self) -> u32 {
        let Shape { m, n, k } = self.shape;
        let elements = match self.part {
            Part::A => m * k,
            Part::B => k * n,
            Part::C => m * n,
        };
        elements / 32 / self.per_register()
    }

    /// Registers of the operand: more for A and B of f16.
    fn operands(self, ty: &str) -> u32 {
        if ty == "f16" && self.part != Part::C { 8 } else { self.registers() }
    }

    /// Row and column of an element of a lane.
    fn position(self, lane: u32, register: u32, element: u32) -> (u32, u32) {
        let Shape { n, k, .. } = self.shape;
        let (rows, e) = (self.shape.rows(), fragment::elements_per_register(self.bits));
        match self.part {
            Part::A => {
                let per_block = k / (4 * e) * (rows / 8);
                let place = if rows == 8 { fragment::a8 } else { fragment::a };
                let (row, column) = place(self.bits, lane, register % per_block, element);
                (row + register / per_block * rows, column)
            }
            Part::B => {
                let per_block = k / (4 * e);
                let (row, column) = fragment::b(self.bits, lane, register % per_block, element);
                (row, column + register / per_block * 8)
            }
            Part::C => {
                let per_block = rows / 4 / e;
                let (block, i) = (register / per_block, register % per_block * e + element);
                let (row, column) = fragment::c(lane, i);
                (row + block / (n / 8) * rows, column + block % (n / 8) * 8)
            }
        }
    }
}

/// Type word of the elements: the last one.
fn type_word(instruction: &Instruction) -> &str {
    instruction.modifiers.last().map_or("", String::as_str)
}

fn bits_of(word: &str) -> u32 {
    match word {
        "f16" | "bf16" => 16,
        "f64" => 64,
        "s8" | "u8" => 8,
        "s4" | "u4" => 4,
        "b1" => 1,
        _ => 32,
    }
}

fn decode_load(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let part = if instruction.has("a") {
        Part::A
    } else if instruction.has("b") {
        Part::B
    } else {
        Part::C
    };
    let o = &instruction.operands;
    transfer(decoder, instruction, part, (&o[0], &o[1], o.get(2)), true)
}

fn decode_store(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let o = &instruction.operands;
    transfer(decoder, instruction, Part::C, (&o[1], &o[0], o.get(2)), false)
}

/// One access for each register whose elements lie side by side in memory, otherwise one for each element.
fn transfer(
    decoder: &mut Decoder<'_>,
    instruction: &Instruction,
    part: Part,
    (operand, address, stride): (&Operand, &Operand, Option<&Operand>),
    load: bool,
) -> Result<Op, Refusal> {
    let shape = Shape::of(instruction)?;
    let word = type_word(instruction);
    let fragment = Fragment { part, shape, bits: bits_of(word) };
    let row_major = instruction.has("row");
    // Elements of a register follow each other along k, or along a row of C and D.
    let contiguous = fragment.per_register() == 1 || row_major == (part != Part::B);
    if !contiguous && fragment.bits < 8 {
        return Refusal::invalid("elements below a byte need rows of A and columns of B that are contiguous");
    }
    let Addr { base, offset } = decoder.address(address)?;
    let base = base.unwrap_or_else(|| Reg::R64(decoder.constant64(0)));
    let stride = match stride {
        Some(operand) => decoder.src32(operand)?,
        None => {
            let (rows, columns) = match part {
                Part::A => (shape.m, shape.k),
                Part::B => (shape.k, shape.n),
                Part::C => (shape.m, shape.n),
            };
            decoder.constant32(if row_major { columns } else { rows })
        }
    };
    let elements = decoder.elements(operand);
    if elements.len() != fragment.operands(word) as usize {
        return Refusal::invalid(format!("expected {} registers, got {}", fragment.operands(word), elements.len()));
    }
    let whole = if fragment.bits == 64 { Type::B64 } else { Type::B32 };
    let (accesses, ty) = if contiguous {
        (1, whole)
    } else {
        (fragment.per_register(), if fragment.bits == 16 { Type::B16 } else { Type::B8 })
    };
    let mut ops = Vec::new();
    for (register, element) in (0..).zip(elements) {
        let register = register % fragment.registers();
        let reg = if load { decoder.dst(element, whole)? } else { decoder.src(element, whole)? };
        let parts: Vec<Reg> =
            if contiguous { vec![reg] } else { (0..accesses).map(|_| Reg::R32(decoder.fresh32())).collect() };
        if !load && !contiguous {
            let parts = parts.iter().map(|&part| Some(part)).collect();
            ops.push(Op::Move(MoveOp::Unpack { parts, a: reg, bits: fragment.bits }));
        }
        for (index, &part) in (0..).zip(&parts) {
            let d = decoder.fresh64();
            let places = std::array::from_fn(|lane| {
                let (row, column) = fragment.position(lane as u32, register, index);
                if row_major { (row, column) } else { (column, row) }
            });
            ops.push(Op::Wmma(Box::new(AddressOp { d, base, offset, stride, places, bits: fragment.bits })));
            let access = AccessOp {
                space: space_of(instruction),
                address: Addr { base: Some(Reg::R64(d)), offset: 0 },
                ty,
                regs: Box::new([part]),
                order: Order::Weak,
                spins: false,
            };
            ops.push(Op::Memory(if load { MemoryOp::Load } else { MemoryOp::Store }(Box::new(access))));
        }
        if load && !contiguous {
            ops.push(Op::Move(MoveOp::Pack { d: reg, parts: parts.into(), bits: fragment.bits }));
        }
    }
    last_of(decoder, ops)
}

/// Emits all but the last.
fn last_of(decoder: &mut Decoder<'_>, mut ops: Vec<Op>) -> Result<Op, Refusal> {
    let Some(last) = ops.pop() else {
        return Refusal::invalid("expected registers");
    };
    ops.into_iter().for_each(|op| decoder.emit(op));
    Ok(last)
}

/// Products of blocks. A D that shares registers with the operands of a later block is written last.
fn decode_mma(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let shape = Shape::of(instruction)?;
    let words: Vec<&str> = {
        let is_type = |word: &&str| Kind::parse(word).is_some() || matches!(*word, "f32" | "s32");
        instruction.modifiers.iter().map(String::as_str).filter(is_type).collect()
    };
    let [d_word, a_word, b_word, c_word] = match words[..] {
        // Two types are those of D and C.
        [d, c] => [d, "f16", "f16", c],
        [d, a, b, c] => [d, a, b, c],
        _ => return Refusal::invalid("expected the element types of D, A, B and C"),
    };
    let fragment = |part, word| Fragment { part, shape, bits: bits_of(word) };
    let (a, b) = (fragment(Part::A, a_word), fragment(Part::B, b_word));
    let (c, d) = (fragment(Part::C, c_word), fragment(Part::C, d_word));
    let o = &instruction.operands;
    let registers = |operand: &Operand, fragment: Fragment, word: &str| -> Result<Vec<Operand>, Refusal> {
        let elements = decoder.elements(operand);
        if elements.len() != fragment.operands(word) as usize {
            return Refusal::invalid(format!("expected {} registers, got {}", fragment.operands(word), elements.len()));
        }
        Ok(elements[..fragment.registers() as usize].to_vec())
    };
    let d_registers = registers(&o[0], d, d_word)?;
    let (a_registers, b_registers) = (registers(&o[1], a, a_word)?, registers(&o[2], b, b_word)?);
    let c_registers = registers(&o[3], c, c_word)?;
    let (row_blocks, column_blocks) = (shape.m / shape.rows(), shape.n / 8);
    let blocks = row_blocks * column_blocks;
    let part = |registers: &[Operand], of: u32, index: u32| -> Operand {
        let each = registers.len() / of as usize;
        Operand::Vector(registers[index as usize * each..][..each].to_vec())
    };
    let mut ops = Vec::new();
    let mut copies = Vec::new();
    for block in 0..blocks {
        let (row, column) = (block / column_blocks, block % column_blocks);
        let mut op = mma::decode_block(
            decoder,
            instruction,
            (shape.rows(), shape.k),
            [d_word, a_word, b_word, c_word],
            [
                &part(&d_registers, blocks, block),
                &part(&a_registers, row_blocks, row),
                &part(&b_registers, column_blocks, column),
                &part(&c_registers, blocks, block),
            ],
        )?;
        copies.extend(op.redirect(decoder));
        ops.push(Op::Mma(Box::new(op)));
    }
    ops.extend(copies);
    last_of(decoder, ops)
}

/// Computes the addresses.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &AddressOp) -> Outcome {
    if let Some(outcome) = machine.require_aligned(warp, mask) {
        return outcome;
    }
    let base = warp.regs.wide(op.base);
    let stride = *warp.regs.get::<u32>(op.stride);
    for lane in lanes(mask) {
        let (row, place) = op.places[lane];
        let bits = (u64::from(row) * u64::from(stride[lane]) + u64::from(place)) * u64::from(op.bits);
        warp.regs.set_lane::<u64>(op.d, lane, base[lane].wrapping_add_signed(op.offset).wrapping_add(bits / 8));
    }
    Outcome::Next
}

#[cfg(test)]
mod tests {
    use crate::emulator::{Emulator, Launch, Module};
    use crate::isa::Target;
    use crate::options::Options;
    use half::f16;

    /// One warp loads A, B and C, multiplies, stores D: the bytes of D.
    fn run(declarations: &str, body: &str, [a, b, c]: [&[u8]; 3], bytes: usize) -> Vec<u8> {
        let text = format!(
            ".version 8.4 .target sm_90a .address_size 64
             .visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d) {{ .reg .b64 %rd<4>; {declarations}
             ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [b]; ld.param.u64 %rd2, [c]; ld.param.u64 %rd3, [d]; {body} ret; }}"
        );
        let device = Emulator::new(Target::Sm90, Options::new(Target::Sm90));
        let module = Module::parse(&text).unwrap();
        let mut params = Vec::new();
        for (name, data) in [("a", a), ("b", b), ("c", c)] {
            let at = device.allocate(name, data.len() as u64).unwrap();
            device.write(at, data).unwrap();
            params.extend(at.to_le_bytes());
        }
        let d = device.allocate("d", bytes as u64).unwrap();
        params.extend(d.to_le_bytes());
        let loaded = device.load(&module).unwrap();
        let report = device.launch(&loaded, "k", Launch::linear(1, 32), &params).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        assert!(device.is_initialised(d, bytes as u64));
        device.read(d, bytes).unwrap()
    }

    fn list(prefix: &str, count: usize) -> String {
        let names: Vec<_> = (0..count).map(|i| format!("{prefix}{i}")).collect();
        format!("{{{}}}", names.join(", "))
    }

    fn value(seed: usize, row: usize, column: usize) -> i32 {
        ((row * 7 + column * 3 + seed * 5 + row * column) % 7) as i32 - 3
    }

    /// D = A B + C.
    fn product(i: usize, j: usize, k: usize) -> i32 {
        (0..k).map(|t| value(1, i, t) * value(2, t, j)).sum::<i32>() + value(3, i, j)
    }

    /// A matrix in memory, rows or columns contiguous with `stride`.
    fn matrix(
        seed: usize,
        (rows, columns): (usize, usize),
        row_major: bool,
        stride: usize,
        code: impl Fn(i32) -> Vec<u8>,
    ) -> Vec<u8> {
        let (outer, inner) = if row_major { (rows, columns) } else { (columns, rows) };
        let mut bytes = Vec::new();
        for o in 0..outer {
            for i in 0..stride {
                let (row, column) = if row_major { (o, i) } else { (i, o) };
                bytes.extend(if i < inner { code(value(seed, row, column)) } else { code(0) });
            }
        }
        bytes
    }

    #[test]
    fn f16_in_every_shape_and_layout() {
        let half = |x: i32| f16::from_f32(x as f32).to_le_bytes().to_vec();
        let single = |x: i32| (x as f32).to_le_bytes().to_vec();
        for (m, n) in [(16, 16), (8, 32), (32, 8)] {
            for (a_row, b_row) in [(true, false), (false, true), (true, true)] {
                let layout = |row: bool| if row { "row" } else { "col" };
                let (la, lb, shape) = (layout(a_row), layout(b_row), format!("m{m}n{n}k16"));
                let body = format!(
                    "wmma.load.a.sync.aligned.{la}.{shape}.global.f16 {a}, [%rd0], 40; wmma.load.b.sync.aligned.{lb}.{shape}.global.f16 {b}, [%rd1], 40;
                     wmma.load.c.sync.aligned.col.{shape}.global.f32 {c}, [%rd2], 36;
                     wmma.mma.sync.aligned.{la}.{lb}.{shape}.f32.f32 {c}, {a}, {b}, {c}; wmma.store.d.sync.aligned.row.{shape}.global.f32 [%rd3], {c};",
                    a = list("%a", 8),
                    b = list("%b", 8),
                    c = list("%f", 8)
                );
                let declarations = ".reg .b32 %a<8>; .reg .b32 %b<8>; .reg .f32 %f<8>;";
                let a = matrix(1, (m, 16), a_row, 40, half);
                let b = matrix(2, (16, n), b_row, 40, half);
                let c = matrix(3, (m, n), false, 36, single);
                let d = run(declarations, &body, [&a, &b, &c], m * n * 4);
                for (at, word) in d.as_chunks::<4>().0.iter().enumerate() {
                    assert_eq!(f32::from_le_bytes(*word), product(at / n, at % n, 16) as f32, "{shape} {la} {lb} {at}");
                }
            }
        }
    }

    #[test]
    fn f16_results_bytes_and_doubles() {
        let half = |x: i32| f16::from_f32(x as f32).to_le_bytes().to_vec();
        let body = format!(
            "wmma.load.a.sync.aligned.row.m16n16k16.f16 {a}, [%rd0]; wmma.load.b.sync.aligned.col.m16n16k16.f16 {b}, [%rd1];
             wmma.load.c.sync.aligned.row.m16n16k16.f16 {c}, [%rd2]; wmma.mma.sync.aligned.row.col.m16n16k16.f16.f16 {d}, {a}, {b}, {c};
             wmma.store.d.sync.aligned.col.m16n16k16.f16 [%rd3], {d};",
            a = list("%a", 8),
            b = list("%b", 8),
            c = list("%c", 4),
            d = list("%d", 4)
        );
        let declarations = ".reg .b32 %a<8>; .reg .b32 %b<8>; .reg .b32 %c<4>; .reg .b32 %d<4>;";
        let inputs = [
            matrix(1, (16, 16), true, 16, half),
            matrix(2, (16, 16), false, 16, half),
            matrix(3, (16, 16), true, 16, half),
        ];
        let d = run(declarations, &body, [&inputs[0], &inputs[1], &inputs[2]], 512);
        for (at, word) in d.as_chunks::<2>().0.iter().enumerate() {
            assert_eq!(f16::from_le_bytes(*word).to_f32(), product(at % 16, at / 16, 16) as f32);
        }

        let byte = |x: i32| vec![x as u8];
        let word = |x: i32| x.to_le_bytes().to_vec();
        let body = format!(
            "wmma.load.a.sync.aligned.row.m8n32k16.global.s8 {{%a0}}, [%rd0]; wmma.load.b.sync.aligned.row.m8n32k16.global.s8 {b}, [%rd1];
             wmma.load.c.sync.aligned.row.m8n32k16.global.s32 {c}, [%rd2]; wmma.mma.sync.aligned.row.row.m8n32k16.s32.s8.s8.s32 {c}, {{%a0}}, {b}, {c};
             wmma.store.d.sync.aligned.row.m8n32k16.global.s32 [%rd3], {c};",
            b = list("%b", 4),
            c = list("%c", 8)
        );
        let declarations = ".reg .b32 %a<1>; .reg .b32 %b<4>; .reg .b32 %c<8>;";
        let inputs = [
            matrix(1, (8, 16), true, 16, byte),
            matrix(2, (16, 32), true, 32, byte),
            matrix(3, (8, 32), true, 32, word),
        ];
        let d = run(declarations, &body, [&inputs[0], &inputs[1], &inputs[2]], 1024);
        for (at, word) in d.as_chunks::<4>().0.iter().enumerate() {
            assert_eq!(i32::from_le_bytes(*word), product(at / 32, at % 32, 16));
        }

        let double = |x: i32| f64::from(x).to_le_bytes().to_vec();
        let body = "wmma.load.a.sync.aligned.row.m8n8k4.f64 {%a}, [%rd0]; wmma.load.b.sync.aligned.col.m8n8k4.f64 {%b}, [%rd1];
            wmma.load.c.sync.aligned.row.m8n8k4.f64 {%c, %d}, [%rd2]; wmma.mma.sync.aligned.row.col.m8n8k4.rn.f64.f64.f64.f64 {%c, %d}, {%a}, {%b}, {%c, %d};
            wmma.store.d.sync.aligned.row.m8n8k4.f64 [%rd3], {%c, %d};";
        let inputs = [
            matrix(1, (8, 4), true, 4, double),
            matrix(2, (4, 8), false, 4, double),
            matrix(3, (8, 8), true, 8, double),
        ];
        let d = run(".reg .f64 %a, %b, %c, %d;", body, [&inputs[0], &inputs[1], &inputs[2]], 512);
        for (at, word) in d.as_chunks::<8>().0.iter().enumerate() {
            assert_eq!(f64::from_le_bytes(*word), f64::from(product(at / 8, at % 8, 4)));
        }
    }
}
