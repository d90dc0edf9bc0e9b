//! Calls: arguments, recursion, functions chosen at run time, and the stack of a thread (`alloca`).
//!
//! A function has its registers and `.param` variables at fixed places. A call that may come back to its own function
//! before it returns saves the caller's before and restores them afterwards. A call through a register is decoded as a
//! chain of guarded calls, one for each function of that shape whose address the program takes.

use crate::decode::{Callee, Decoder, Formal, FrameRange, Guard, Refusal, Symbol};
use crate::exec::compare::{CompareOp, Join, Relation};
use crate::exec::control::ControlOp;
use crate::exec::moves::MoveOp;
use crate::exec::{Op, lanes};
use crate::finding::Kind;
use crate::isa::Type;
use crate::isa::table::Row;
use crate::machine::{Cluster, Outcome, R64, Reg, SavedFrame, Warp};
use crate::parse::ast::{Instruction, Operand};

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::new("call {uni}", "a{, b, c, d}", decode_call, "9.7.12.5"),
    Row::new("alloca {b64|u64}", "d, size{, align}", decode_alloca, "9.7.15.3"),
    Row::new("stacksave {b64|u64}", "d", decode_stack, "9.7.15.1"),
    Row::new("stackrestore {b64|u64}", "a", decode_stack, "9.7.15.2"),
];

/// Bytes of a thread's stack, which `alloca` takes from.
pub const STACK_BYTES: u32 = 16 << 10;
/// Saved frames of a warp beyond which a recursion counts as endless.
const DEEPEST: usize = 4096;

/// A decoded operation of the family.
#[derive(Debug, Clone)]
pub enum CallOp {
    /// Copies local bytes between a call's and a function's parameters.
    CopyLocal {
        /// From this offset.
        from: u32,
        /// To this offset.
        to: u32,
        /// Bytes.
        bytes: u32,
    },
    /// Saves the frame of the calling function.
    Save {
        /// Index in the program's frames.
        frame: u32,
    },
    /// Restores it, results of the call excepted.
    Restore {
        /// Index in the program's frames.
        frame: u32,
        /// Results in registers.
        registers: Box<[Reg]>,
        /// Results in local memory: offset and bytes.
        locals: Box<[(u32, u32)]>,
    },
    /// Checks that a register holds the address of one of these functions.
    Known {
        /// The register.
        target: R64,
        /// Addresses.
        functions: Box<[u64]>,
    },
    /// `alloca`
    Alloca {
        /// Local offset of the new bytes.
        d: R64,
        /// Bytes.
        size: R64,
        /// Alignment, bytes.
        align: u32,
    },
    /// `stacksave`: bytes in use.
    StackSave {
        /// Written.
        d: R64,
    },
    /// `stackrestore`
    StackRestore {
        /// Bytes in use from now on.
        a: R64,
    },
    /// `vprintf(format, arguments)`: parameters in local memory.
    Print {
        /// Local offset of the format pointer.
        format: u32,
        /// Local offset of the argument pointer.
        arguments: u32,
    },
    /// `__assertfail`: parameters in local memory.
    AssertFail {
        /// Local offset of the message pointer.
        message: u32,
        /// Local offset of the file pointer.
        file: u32,
        /// Local offset of the line.
        line: u32,
    },
}

/// `call (results), name, (arguments), prototype;` in its shorter forms too.
fn decode_call(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let mut rest = instruction.operands.as_slice();
    let mut results: &[Operand] = &[];
    if let [Operand::List(items), tail @ ..] = rest {
        results = items;
        rest = tail;
    }
    let [Operand::Name(name), tail @ ..] = rest else {
        return Refusal::invalid("expected the name of a function");
    };
    let arguments: &[Operand] = match tail.first() {
        Some(Operand::List(items)) => items,
        _ => &[],
    };
    if decoder.register(name).is_some() {
        return through_register(decoder, &rest[0], arguments, results);
    }
    let Some(callee) = decoder.callees.get(name).cloned() else {
        return of_system(decoder, name, arguments, results);
    };
    if callee.params.len() != arguments.len() || callee.returns.len() != results.len() {
        return Refusal::invalid(format!(
            "{name}: expected {} arguments and {} results",
            callee.params.len(),
            callee.returns.len()
        ));
    }
    let (call, after) = direct(decoder, &callee, arguments, results)?;
    after.into_iter().for_each(|op| decoder.emit_after(op));
    Ok(call)
}

/// Emits what precedes a call of `callee`; the call itself and what follows it.
fn direct(
    decoder: &mut Decoder<'_>,
    callee: &Callee,
    arguments: &[Operand],
    results: &[Operand],
) -> Result<(Op, Vec<Op>), Refusal> {
    let frame = decoder.frame.filter(|frame| callee.comes_back_to.contains(frame));
    if let Some(frame) = frame {
        decoder.emit(Op::Call(CallOp::Save { frame }));
    }
    for (formal, argument) in callee.params.iter().zip(arguments) {
        let op = pass(decoder, *formal, argument, true)?;
        decoder.emit(op);
    }
    let mut after = Vec::new();
    for (formal, result) in callee.returns.iter().zip(results) {
        after.push(pass(decoder, *formal, result, false)?);
    }
    if let Some(frame) = frame {
        let (mut registers, mut locals) = (Vec::new(), Vec::new());
        for result in results {
            match result {
                Operand::Name(name) => match decoder.lookup(name) {
                    Some(&Symbol::Local(offset, bytes)) => locals.push((offset, bytes)),
                    _ => registers.extend(decoder.register(name).map(|(reg, _)| reg)),
                },
                _ => return Refusal::invalid("expected a .param variable or a register as result"),
            }
        }
        after.push(Op::Call(CallOp::Restore { frame, registers: registers.into(), locals: locals.into() }));
    }
    Ok((Op::Control(ControlOp::Call { target: callee.label.0 }), after))
}

/// Guarded calls of every function whose address is taken and whose parameters fit.
fn through_register(
    decoder: &mut Decoder<'_>,
    target: &Operand,
    arguments: &[Operand],
    results: &[Operand],
) -> Result<Op, Refusal> {
    let target = decoder.src64(target)?;
    let fits = |callee: &&Callee| {
        callee.address.is_some() && callee.params.len() == arguments.len() && callee.returns.len() == results.len()
    };
    let mut callees: Vec<Callee> = decoder.callees.values().filter(fits).cloned().collect();
    callees.sort_by_key(|callee| callee.address);
    let guard = decoder.guard;
    let mut functions = Vec::new();
    for callee in callees {
        let Some(address) = callee.address else { continue };
        let chosen = decoder.fresh_pred();
        let (on, negated) = match guard {
            Guard::None => (decoder.constant_pred(true), false),
            Guard::If(p) => (p, false),
            Guard::Unless(p) => (p, true),
        };
        decoder.guard = Guard::None;
        let b = Reg::R64(decoder.constant64(address));
        decoder.emit(Op::Compare(CompareOp::Integer {
            p: (chosen, None),
            a: Reg::R64(target),
            b,
            ty: Type::U64,
            relation: Relation::Eq,
            join: (Join::And, on, negated),
        }));
        decoder.guard = Guard::If(chosen);
        let start = decoder.instrs.len();
        match direct(decoder, &callee, arguments, results) {
            Ok((call, after)) => {
                decoder.emit(call);
                after.into_iter().for_each(|op| decoder.emit(op));
                functions.push(address);
            }
            // Parameters of other sizes: not a function of this shape.
            Err(_) => decoder.forget_from(start),
        }
        decoder.guard = guard;
    }
    Ok(Op::Call(CallOp::Known { target, functions: functions.into() }))
}

/// A call of what the CUDA runtime provides.
fn of_system(decoder: &mut Decoder<'_>, name: &str, arguments: &[Operand], results: &[Operand]) -> Result<Op, Refusal> {
    let place = |index: usize| match arguments.get(index) {
        Some(Operand::Name(argument)) => match decoder.lookup(argument) {
            Some(Symbol::Local(offset, _)) => Ok(*offset),
            _ => Refusal::invalid(format!("{argument} is not a .param variable")),
        },
        _ => Refusal::invalid(format!("{name}: expected an argument {index}")),
    };
    match name {
        "vprintf" => {
            let print = CallOp::Print { format: place(0)?, arguments: place(1)? };
            let result = match results.first() {
                Some(Operand::Name(result)) => decoder.lookup(result).cloned(),
                _ => None,
            };
            if let Some(Symbol::Local(offset, _)) = result {
                let zero = decoder.constant32(0);
                decoder.emit(super::memory::store_local(offset, Reg::R32(zero), Type::B32));
            }
            Ok(Op::Call(print))
        }
        "__assertfail" => Ok(Op::Call(CallOp::AssertFail { message: place(0)?, file: place(1)?, line: place(2)? })),
        _ => Refusal::missing(format!("{name} is declared but has no body")),
    }
}

/// One parameter of a call, to the function or back.
fn pass(decoder: &mut Decoder<'_>, formal: Formal, actual: &Operand, forward: bool) -> Result<Op, Refusal> {
    match (formal, actual) {
        (Formal::Local(place, bytes), Operand::Name(name)) => match decoder.lookup(name).cloned() {
            Some(Symbol::Local(offset, size)) if size == bytes => {
                let (from, to) = if forward { (offset, place) } else { (place, offset) };
                Ok(Op::Call(CallOp::CopyLocal { from, to, bytes }))
            }
            Some(Symbol::Local(_, size)) => Refusal::invalid(format!("{name}: expected {bytes} bytes, got {size}")),
            _ => {
                let (reg, ty) = decoder.src_any(actual, Type::B32)?;
                if forward {
                    Ok(super::memory::store_local(place, reg, ty))
                } else {
                    Ok(super::memory::load_local(place, reg, ty))
                }
            }
        },
        (Formal::Local(place, bytes), literal) if forward => {
            let ty = match bytes {
                1 => Type::B8,
                2 => Type::B16,
                8 => Type::B64,
                _ => Type::B32,
            };
            let reg = decoder.src(literal, ty)?;
            Ok(super::memory::store_local(place, reg, ty))
        }
        (Formal::Register(reg, ty), actual) => {
            if forward {
                let a = decoder.src(actual, ty)?;
                Ok(Op::Move(MoveOp::Copy { d: reg, a }))
            } else {
                let d = decoder.dst(actual, ty)?;
                Ok(Op::Move(MoveOp::Copy { d, a: reg }))
            }
        }
        _ => Refusal::invalid("expected a .param variable or a register as argument"),
    }
}

fn decode_alloca(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let d = decoder.dst64(&instruction.operands[0])?;
    let size = decoder.src64(&instruction.operands[1])?;
    let align = instruction.operands.get(2).map_or(Ok(8), |operand| decoder.immediate(operand))?;
    match u32::try_from(align) {
        Ok(align) if align.is_power_of_two() && align <= 256 => Ok(Op::Call(CallOp::Alloca { d, size, align })),
        _ => Refusal::invalid(format!("expected an alignment of 1 to 256 bytes, a power of two, got {align}")),
    }
}

fn decode_stack(decoder: &mut Decoder<'_>, instruction: &Instruction) -> Result<Op, Refusal> {
    let operand = &instruction.operands[0];
    Ok(Op::Call(if instruction.mnemonic == "stacksave" {
        CallOp::StackSave { d: decoder.dst64(operand)? }
    } else {
        CallOp::StackRestore { a: decoder.src64(operand)? }
    }))
}

/// Executes an operation of the family.
pub fn execute(machine: &mut Cluster, warp: &mut Warp, mask: u32, op: &CallOp) -> Outcome {
    match *op {
        CallOp::CopyLocal { from, to, bytes } => {
            let mut data = vec![0; bytes as usize];
            for lane in lanes(mask) {
                let copied = warp
                    .local
                    .read(lane, from.into(), &mut data, false)
                    .and_then(|()| warp.local.write(lane, to.into(), &data));
                if let Err(error) = copied {
                    return Outcome::Fault(machine.access_fault(error, warp, 1 << lane));
                }
            }
        }
        CallOp::Save { frame } => {
            if warp.frames.len() >= DEEPEST {
                return machine.fault(Kind::Trap, warp, mask, format!("a recursion deeper than {DEEPEST} calls"));
            }
            let program = machine.program.clone();
            let saved = SavedFrame::of(warp, mask, &program.frames[frame as usize]);
            warp.frames.push(saved);
        }
        CallOp::Restore { frame, ref registers, ref locals } => {
            let program = machine.program.clone();
            let ranges = &program.frames[frame as usize];
            for lane in lanes(mask) {
                restore(warp, lane, ranges, registers, locals);
            }
            while warp.frames.last().is_some_and(|saved| saved.mask == 0) {
                warp.frames.pop();
            }
        }
        CallOp::Known { target, ref functions } => {
            let targets = *warp.regs.get::<u64>(target);
            if let Some(lane) = lanes(mask).find(|&lane| !functions.contains(&targets[lane])) {
                let message = format!("call of {:#x}, which is no function of this shape", targets[lane]);
                return machine.fault(Kind::Trap, warp, 1 << lane, message);
            }
        }
        CallOp::Alloca { d, size, align } => {
            let sizes = *warp.regs.get::<u64>(size);
            let start = u64::from(machine.program.local_bytes - STACK_BYTES);
            for lane in lanes(mask) {
                let used = u64::from(warp.stack_used[lane]).next_multiple_of(align.into());
                let end = used.saturating_add(sizes[lane]);
                if end > u64::from(STACK_BYTES) {
                    let message = format!(
                        "alloca of {} bytes, {} of {STACK_BYTES} are left",
                        sizes[lane],
                        STACK_BYTES - used as u32
                    );
                    return machine.fault(Kind::OutOfBounds, warp, 1 << lane, message);
                }
                warp.stack_used[lane] = end as u32;
                warp.regs.set_lane::<u64>(d, lane, start + used);
            }
        }
        CallOp::StackSave { d } => {
            let used = warp.stack_used.map(u64::from);
            warp.regs.set::<u64>(d, mask, &used);
        }
        CallOp::StackRestore { a } => {
            let used = *warp.regs.get::<u64>(a);
            for lane in lanes(mask) {
                warp.stack_used[lane] = used[lane].min(STACK_BYTES.into()) as u32;
            }
        }
        CallOp::Print { format, arguments } => return super::print::print(machine, warp, mask, format, arguments),
        CallOp::AssertFail { message, file, line } => {
            return super::print::assert_fail(machine, warp, mask, message, file, line);
        }
    }
    Outcome::Next
}

/// Restores a lane's newest saved frame, results excepted.
fn restore(warp: &mut Warp, lane: usize, ranges: &[FrameRange], registers: &[Reg], locals: &[(u32, u32)]) {
    let Some(index) = warp.frames.iter().rposition(|saved| saved.mask >> lane & 1 != 0) else {
        return;
    };
    let kept: Vec<u128> = registers.iter().map(|&reg| warp.regs.lane_bits(reg, lane)).collect();
    let bytes: Vec<Vec<u8>> = locals.iter().map(|&(at, bytes)| warp.local.peek(lane, at, bytes).to_vec()).collect();
    let mut saved = std::mem::take(&mut warp.frames[index]);
    saved.restore(warp, lane, ranges);
    warp.frames[index] = saved;
    for (&reg, bits) in registers.iter().zip(kept) {
        warp.regs.set_lane_bits(reg, lane, bits);
    }
    for (&(at, _), bytes) in locals.iter().zip(&bytes) {
        warp.local.poke(lane, at, bytes);
    }
}

#[cfg(test)]
mod tests {
    use crate::emulator::{Emulator, Launch, Module};
    use crate::isa::Target;
    use crate::options::Options;

    /// Runs the entry `k(.param .u64 out)` on one warp: findings and a word for each lane.
    fn run(text: &str) -> (Vec<String>, Vec<u32>) {
        let device = Emulator::new(Target::Sm90, Options::new(Target::Sm90));
        let module = Module::parse(&format!(".version 8.4 .target sm_90a .address_size 64\n{text}")).unwrap();
        let out = device.allocate("out", 128).unwrap();
        let loaded = device.load(&module).unwrap();
        let report = device.launch(&loaded, "k", Launch::linear(1, 32), &out.to_le_bytes()).unwrap();
        let words = device.read(out, 128).unwrap();
        let words = words.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        (report.findings.iter().map(ToString::to_string).collect(), words)
    }

    const ENTRY: &str = ".visible .entry k(.param .u64 out) {
        .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .pred %p<4>;
        mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [out]; mad.wide.u32 %rd1, %r0, 4, %rd0;";

    #[test]
    fn functions_recurse_as_deep_as_each_lane_needs() {
        let fib = ".func (.param .b32 r) fib(.param .b32 n) {
            .reg .b32 %r<8>; .reg .pred %p;
            ld.param.b32 %r0, [n]; st.param.b32 [r], %r0; setp.lt.u32 %p, %r0, 2; @%p bra DONE;
            sub.u32 %r1, %r0, 1; sub.u32 %r2, %r0, 2;
            { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call.uni (b), fib, (a); ld.param.b32 %r3, [b]; }
            { .param .b32 a; .param .b32 b; st.param.b32 [a], %r2; call.uni (b), fib, (a); ld.param.b32 %r4, [b]; }
            add.u32 %r5, %r3, %r4; st.param.b32 [r], %r5; DONE: ret; }";
        let entry = format!(
            "{ENTRY} and.b32 %r1, %r0, 7; {{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), fib, (a); ld.param.b32 %r2, [b]; }}
             st.global.u32 [%rd1], %r2; ret; }}"
        );
        let (findings, words) = run(&format!("{fib}\n{entry}"));
        assert!(findings.is_empty(), "{findings:?}");
        for (lane, &word) in words.iter().enumerate() {
            assert_eq!(word, [0, 1, 1, 2, 3, 5, 8, 13][lane % 8]);
        }
        let endless = ".func f(.reg .b32 %a) { call f, (%a); ret; }";
        let (findings, _) = run(&format!("{endless}\n{ENTRY} call f, (%r0); ret; }}"));
        assert!(findings[0].contains("a recursion deeper than 4096 calls"), "{findings:?}");
    }

    #[test]
    fn recursion_with_arrays_is_refused() {
        let text = format!(
            ".version 8.4 .target sm_90a .address_size 64
             .func f(.reg .b32 %a) {{ .local .b32 x[4]; call f, (%a); ret; }} {ENTRY} call f, (%r0); ret; }}"
        );
        let error = Module::parse(&text).unwrap().unsupported(Target::Sm90)[0].to_string();
        assert!(error.contains("a recursive function with a .local variable"), "{error}");
    }

    #[test]
    fn each_lane_calls_the_function_of_its_register() {
        let functions = ".func (.param .b32 r) plus(.param .b32 a, .param .b32 b) {
                .reg .b32 %r<4>; ld.param.b32 %r0, [a]; ld.param.b32 %r1, [b]; add.u32 %r2, %r0, %r1; st.param.b32 [r], %r2; ret; }
            .func (.param .b32 r) times(.param .b32 a, .param .b32 b) {
                .reg .b32 %r<4>; ld.param.b32 %r0, [a]; ld.param.b32 %r1, [b]; mul.lo.u32 %r2, %r0, %r1; st.param.b32 [r], %r2; ret; }
            .func (.param .b32 r) other(.param .b64 a, .param .b32 b) { st.param.b32 [r], 1; ret; }
            .global .align 8 .u64 table[3] = {plus, times, other};";
        let entry = |index: &str| {
            format!(
                "{ENTRY} {index} mov.u64 %rd2, table; mad.wide.u32 %rd3, %r1, 8, %rd2; ld.global.u64 %rd4, [%rd3]; setp.lt.u32 %p0, %r0, 30;
                 mov.u32 %r3, 7;
                 {{ .param .b32 a; .param .b32 b; .param .b32 c; st.param.b32 [a], %r0; st.param.b32 [b], 5;
                   proto: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _);
                   @%p0 call (c), %rd4, (a, b), proto; @%p0 ld.param.b32 %r3, [c]; }}
                 st.global.u32 [%rd1], %r3; ret; }}"
            )
        };
        let (findings, words) = run(&format!("{functions}\n{}", entry("and.b32 %r1, %r0, 1;")));
        assert!(findings.is_empty(), "{findings:?}");
        for (lane, &word) in (0..).zip(&words) {
            let expected = if lane >= 30 {
                7
            } else if lane % 2 == 0 {
                lane + 5
            } else {
                lane * 5
            };
            assert_eq!(word, expected, "lane {lane}");
        }
        let (findings, _) = run(&format!("{functions}\n{}", entry("mov.u32 %r1, 2;")));
        assert!(findings[0].contains("which is no function of this shape"), "{findings:?}");
    }

    #[test]
    fn aliases_are_functions() {
        let text = format!(
            ".func (.reg .b32 %d) twice(.reg .b32 %a) {{ add.u32 %d, %a, %a; ret; }}
             .func (.reg .b32 %d) double(.reg .b32 %x); .alias double, twice;
             {ENTRY} call (%r1), double, (%r0); st.global.u32 [%rd1], %r1; ret; }}"
        );
        let (findings, words) = run(&text);
        assert!(findings.is_empty(), "{findings:?}");
        assert!((0..).zip(&words).all(|(lane, &word)| word == 2 * lane));
    }

    #[test]
    fn stacks_grow_shrink_and_end() {
        // f takes lane + 1 words of its own stack and sums them; g restores by hand; both leave the stack as it was.
        let functions = ".func (.reg .b32 %sum) f(.reg .b32 %n) {
                .reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .pred %p;
                mul.wide.u32 %rd0, %n, 4; alloca.u64 %rd1, %rd0, 16; mov.u32 %r0, 0; mov.u32 %sum, 0;
                FILL: setp.ge.u32 %p, %r0, %n; @%p bra READ; mad.wide.u32 %rd2, %r0, 4, %rd1; st.local.u32 [%rd2], %r0; add.u32 %r0, %r0, 1; bra FILL;
                READ: setp.eq.u32 %p, %r0, 0; @%p bra DONE; sub.u32 %r0, %r0, 1; mad.wide.u32 %rd2, %r0, 4, %rd1; cvta.local.u64 %rd3, %rd2;
                ld.u32 %r1, [%rd3]; add.u32 %sum, %sum, %r1; bra READ; DONE: ret; }";
        let entry = format!(
            "{ENTRY} stacksave.u64 %rd2; add.u32 %r1, %r0, 1; call (%r2), f, (%r1); mov.u64 %rd5, 8; alloca.u64 %rd3, %rd5; stackrestore.u64 %rd2;
             stacksave.u64 %rd4; setp.ne.u64 %p0, %rd2, %rd4; @%p0 mov.u32 %r2, -1; st.global.u32 [%rd1], %r2; ret; }}"
        );
        let (findings, words) = run(&format!("{functions}\n{entry}"));
        assert!(findings.is_empty(), "{findings:?}");
        assert!((0..).zip(&words).all(|(lane, &word)| word == lane * (lane + 1) / 2), "{words:?}");
        let (findings, _) = run(&format!("{ENTRY} mov.u64 %rd2, 16385; alloca.u64 %rd3, %rd2; ret; }}"));
        assert!(findings[0].contains("alloca of 16385 bytes, 16384 of 16384 are left"), "{findings:?}");
    }
}
