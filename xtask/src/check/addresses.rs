//! 32-bit products that feed a 64-bit address: offsets that wrap once a tensor is large enough.
//!
//! A scan of the shipped PTX. From every 64-bit register that a memory instruction dereferences it walks the
//! definitions back to each widening of a 32-bit value, and from there to the products (`mul.lo`, `mad.lo`, `shl`)
//! that made it. A product is reported unless the magnitudes of its factors, bounded from thread and block indices,
//! masks, shifts and constants, keep it below the width. Variables are taken to be non-negative, so a minimum is at
//! most either argument: a negative offset is another kind of fault. The walk ignores control flow: a register has all
//! its definitions at once. A value that depends on itself (a loop counter) is unbounded unless every ordering
//! comparison of it is with something bounded; then it is taken to stay within that, plus its step.

use std::collections::{BTreeMap, BTreeSet};

/// Any 32-bit value.
const UNBOUNDED: u64 = u32::MAX as u64;

/// Largest magnitude of a register of that name: compilers name 64-bit registers `%rd`.
fn width_limit(register: &str) -> u64 {
    if register.starts_with("%rd") { u64::MAX } else { UNBOUNDED }
}

/// Reports each offending product once, as the text of its instruction.
pub(crate) fn findings(ptx: &str) -> Vec<String> {
    let program = Program::parse(ptx);
    let mut walk = Walk { program: &program, bounds: BTreeMap::new(), seen: BTreeSet::new(), found: BTreeSet::new() };
    for instruction in &program.instructions {
        if ["shared", "param", "local", "const"].iter().any(|space| instruction.has(space)) && !instruction.has("bulk")
        {
            continue;
        }
        for address in instruction.operands.iter().filter_map(|operand| operand.strip_prefix('[')) {
            let base = address.split(['+', ']', ',']).next().unwrap_or_default().trim();
            // Shared and tensor memory have 32-bit addresses.
            if base.starts_with("%rd") {
                walk.wide(base);
            }
        }
    }
    walk.found
        .into_iter()
        .map(|text| format!("a 32-bit product feeds a 64-bit address and may wrap: `{text}`; widen before multiplying"))
        .collect()
}

struct Instruction {
    text: String,
    /// Mnemonic and modifiers.
    opcode: Vec<String>,
    operands: Vec<String>,
}

impl Instruction {
    fn has(&self, modifier: &str) -> bool {
        self.opcode.iter().any(|part| part.split("::").next() == Some(modifier))
    }

    fn is(&self, mnemonic: &str) -> bool {
        self.opcode[0] == mnemonic
    }

    fn source(&self, index: usize) -> &str {
        self.operands.get(1 + index).map_or("", String::as_str)
    }

    /// Registers that the instruction writes.
    fn destinations(&self) -> impl Iterator<Item = &str> {
        let writes = !["st", "red", "bar", "barrier", "bra", "ret", "mbarrier", "fence"].contains(&&*self.opcode[0]);
        let first = self.operands.first().filter(|_| writes).map_or("", String::as_str);
        first.trim_matches(['{', '}']).split([',', '|']).map(str::trim).filter(|name| name.starts_with('%'))
    }
}

struct Program {
    instructions: Vec<Instruction>,
    definitions: BTreeMap<String, Vec<usize>>,
    max_threads: u64,
}

impl Program {
    fn parse(ptx: &str) -> Program {
        let text: String =
            ptx.lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect();
        let max_threads = text
            .split_once(".maxntid")
            .map(|(_, rest)| rest.lines().next().unwrap_or_default())
            .map_or(1024, |sizes| sizes.split(',').filter_map(|size| size.trim().parse::<u64>().ok()).product());
        let instructions: Vec<Instruction> = text.split(';').filter_map(instruction).collect();
        let mut definitions: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, instruction) in instructions.iter().enumerate() {
            for register in instruction.destinations() {
                definitions.entry(register.to_owned()).or_default().push(index);
            }
        }
        Program { instructions, definitions, max_threads }
    }

    fn definitions(&self, register: &str) -> impl Iterator<Item = &Instruction> {
        self.definitions.get(register).into_iter().flatten().map(|&index| &self.instructions[index])
    }

    /// Ordering comparisons of a register.
    fn comparisons<'p>(&'p self, register: &'p str) -> impl Iterator<Item = &'p Instruction> {
        let ordering = |instruction: &Instruction| {
            instruction.is("setp") && ["lt", "le", "gt", "ge"].iter().any(|order| instruction.has(order))
        };
        self.instructions
            .iter()
            .filter(move |instruction| ordering(instruction) && instruction.operands[1..].iter().any(|o| o == register))
    }

    /// Largest value of a special register.
    fn special(&self, register: &str) -> Option<u64> {
        Some(match register {
            "%tid.x" | "%tid.y" | "%tid.z" => self.max_threads - 1,
            "%ntid.x" | "%ntid.y" | "%ntid.z" => self.max_threads,
            "%laneid" => 31,
            "%warpid" => 63,
            "%ctaid.x" | "%nctaid.x" | "%clusterid.x" | "%nclusterid.x" => i32::MAX as u64,
            "%ctaid.y" | "%ctaid.z" | "%nctaid.y" | "%nctaid.z" => u64::from(u16::MAX),
            "%cluster_ctarank" | "%cluster_ctaid.x" | "%cluster_ctaid.y" | "%cluster_ctaid.z" => 15,
            "%cluster_nctarank" | "%cluster_nctaid.x" | "%cluster_nctaid.y" | "%cluster_nctaid.z" => 16,
            _ => return None,
        })
    }
}

/// One statement; declarations, directives and labels give nothing.
fn instruction(statement: &str) -> Option<Instruction> {
    // Labels, scopes and directives without a semicolon stand on earlier lines.
    let line = statement.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    let line = line.trim_start_matches(['{', '}']).trim();
    let line = line.rsplit_once(": ").map_or(line, |(_, rest)| rest);
    let line = match line.strip_prefix('@') {
        Some(rest) => rest.split_once(char::is_whitespace)?.1.trim(),
        None => line,
    };
    if line.starts_with(['.', '$', '}']) || line.is_empty() {
        return None;
    }
    let (opcode, operands) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let opcode: Vec<String> = opcode.split('.').map(str::to_owned).collect();
    Some(Instruction { text: line.split_whitespace().collect::<Vec<_>>().join(" "), opcode, operands: split(operands) })
}

/// Splits at the commas outside brackets.
fn split(operands: &str) -> Vec<String> {
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for letter in operands.chars() {
        depth += i32::from(matches!(letter, '[' | '{' | '(')) - i32::from(matches!(letter, ']' | '}' | ')'));
        match parts.last_mut() {
            Some(part) if letter != ',' || depth > 0 => part.push(letter),
            _ => parts.push(String::new()),
        }
    }
    parts.into_iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

struct Walk<'p> {
    program: &'p Program,
    /// Magnitude of each 32-bit register; `None` while it is being found.
    bounds: BTreeMap<String, Option<u64>>,
    seen: BTreeSet<(String, u64)>,
    found: BTreeSet<String>,
}

impl<'p> Walk<'p> {
    /// A 64-bit register that is, or adds to, an address.
    fn wide(&mut self, register: &str) {
        if !register.starts_with('%') || !self.seen.insert((register.to_owned(), 0)) {
            return;
        }
        let program = self.program;
        for definition in program.definitions(register) {
            let signed = definition.has("s32");
            let limit = if signed { i32::MAX as u64 } else { UNBOUNDED };
            match definition.opcode[0].as_str() {
                "cvt" if definition.has("u32") || signed => self.narrow(definition.source(0), limit),
                "mul" | "mad" if definition.has("wide") => {
                    self.narrow(definition.source(0), limit);
                    self.narrow(definition.source(1), limit);
                    self.wide(definition.source(2));
                }
                "mov" if definition.source(0).starts_with('{') => {
                    let halves = definition.source(0).trim_matches(['{', '}']).split_once(',');
                    if let Some((low, high)) = halves
                        && self.bound(high.trim()) == 0
                    {
                        self.narrow(low.trim(), UNBOUNDED);
                    }
                }
                "mov" | "cvta" | "add" | "sub" | "mul" | "mad" | "shl" | "and" | "or" | "xor" | "selp" | "min"
                | "max" => {
                    for source in &definition.operands[1..] {
                        self.wide(source);
                    }
                }
                _ => {}
            }
        }
    }

    /// A 32-bit register that was widened: its products must stay within `limit`.
    fn narrow(&mut self, register: &str, limit: u64) {
        if !register.starts_with('%') || !self.seen.insert((register.to_owned(), limit)) {
            return;
        }
        let program = self.program;
        for definition in program.definitions(register) {
            match definition.opcode[0].as_str() {
                // A mask keeps low bits, which wrapping does not change.
                "and" if self.bound(definition.source(1)) < UNBOUNDED => {}
                // x / y * y, which is how a remainder is made, stays within x.
                "mul" if self.is_quotient_of(definition.source(0), definition.source(1)) => {
                    self.narrow(definition.source(0), limit);
                }
                // The high half of a product is all there is of it: it does not wrap.
                "mul" | "mad" | "shl" if !definition.has("hi") && self.product(definition) > limit => {
                    self.found.insert(definition.text.clone());
                }
                "add" | "sub" | "mad" | "mul" | "shl" | "shr" | "and" | "or" | "xor" | "mov" | "selp" | "min"
                | "max" | "div" | "rem" | "shfl" => {
                    for source in &definition.operands[1..] {
                        self.narrow(source, limit);
                    }
                }
                _ => {}
            }
        }
    }

    /// Whether every definition of a register divides by `divisor`.
    fn is_quotient_of(&self, register: &str, divisor: &str) -> bool {
        let mut definitions = self.program.definitions(register).peekable();
        definitions.peek().is_some()
            && definitions.all(|definition| definition.is("div") && definition.source(1) == divisor)
    }

    /// Magnitude of the product that a `mul`, `mad` or `shl` computes, before it wraps.
    fn product(&mut self, instruction: &Instruction) -> u64 {
        // A negative literal of an unsigned instruction stands for its bits.
        let literal = |operand: &str| match constant(operand) {
            Some(magnitude) if operand.starts_with('-') && instruction.has("u32") => Some((1 << 32) - magnitude),
            _ => None,
        };
        let [a, b] = [0, 1].map(|index| {
            let operand = instruction.source(index);
            literal(operand).unwrap_or_else(|| self.bound(operand))
        });
        if instruction.is("shl") {
            return a.saturating_mul(1u64.checked_shl(b.min(64) as u32).unwrap_or(u64::MAX));
        }
        let product = a.saturating_mul(b);
        if instruction.is("mad") { product.saturating_add(self.bound(instruction.source(2))) } else { product }
    }

    /// Magnitude of an operand.
    fn bound(&mut self, operand: &str) -> u64 {
        let limit = width_limit(operand);
        if let Some(value) = constant(operand).or_else(|| self.program.special(operand)) {
            return value.min(limit);
        }
        match self.bounds.get(operand) {
            Some(Some(known)) => return *known,
            Some(None) => return self.loop_bound(operand),
            None => {}
        }
        self.bounds.insert(operand.to_owned(), None);
        let program = self.program;
        let bounds = program.definitions(operand).map(|definition| self.result(definition)).collect::<Vec<_>>();
        let bound = bounds.into_iter().max().unwrap_or(limit).min(limit);
        self.bounds.insert(operand.to_owned(), Some(bound));
        bound
    }

    /// Magnitude of a register that depends on itself, from the comparisons that end its loop.
    fn loop_bound(&mut self, register: &str) -> u64 {
        let limit = width_limit(register);
        let program = self.program;
        let mut bound = None;
        for comparison in program.comparisons(register) {
            let other = comparison.operands[1..].iter().find(|operand| *operand != register);
            // A bound that depends on the register again is none.
            let other = match other.map(|other| (other, self.bounds.get(other))) {
                Some((other, known)) if known != Some(&None) => self.bound(other),
                _ => limit,
            };
            bound = bound.max(Some(other));
        }
        bound.unwrap_or(limit)
    }

    /// Magnitude of what an instruction writes.
    fn result(&mut self, instruction: &Instruction) -> u64 {
        let mut source = |index: usize| self.bound(instruction.source(index));
        match instruction.opcode[0].as_str() {
            "mov" if instruction.source(0).starts_with('{') => u64::MAX,
            "mov" | "shfl" => source(0),
            "cvt" if instruction.has("u16") || instruction.has("s16") => u64::from(u16::MAX),
            "cvt" if instruction.has("u8") || instruction.has("s8") => u64::from(u8::MAX),
            "cvt" if ["u32", "s32", "u64", "s64"].iter().any(|kind| instruction.has(kind)) => source(0),
            "ld" if instruction.has("b8") || instruction.has("u8") => u64::from(u8::MAX),
            "ld" if instruction.has("b16") || instruction.has("u16") => u64::from(u16::MAX),
            "add" | "sub" => source(0).saturating_add(source(1)),
            "mul" | "mad" | "shl" if !instruction.has("hi") => self.product(instruction),
            "shr" if instruction.has("u32") || instruction.has("u64") || source(0) <= i32::MAX as u64 => {
                source(0) >> source(1).min(63)
            }
            "and" => source(0).min(source(1)),
            "or" | "xor" => u64::MAX >> (source(0) | source(1)).leading_zeros().min(63),
            "selp" => source(0).max(source(1)),
            "min" => source(0).min(source(1)),
            "max" => source(0).max(source(1)),
            "div" => source(0) / constant(instruction.source(1)).unwrap_or(1).max(1),
            "rem" => source(0).min(source(1).saturating_sub(1)),
            // Inserts `len` bits of a at `pos` into b.
            "bfi" => {
                let (pos, len) = (source(2).min(63), source(3).min(63));
                source(1) | ((1u64 << len) - 1).checked_shl(pos as u32).unwrap_or(u64::MAX)
            }
            "clz" | "popc" => 64,
            _ => u64::MAX,
        }
    }
}

/// Magnitude of an integer literal.
fn constant(text: &str) -> Option<u64> {
    let digits = text.trim_start_matches('-').trim_end_matches('U');
    match digits.strip_prefix("0x") {
        Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16).ok(),
        None => digits.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(body: &str) -> Vec<String> {
        findings(&format!(
            ".visible .entry k(\n.param .u64 k_0\n)\n.maxntid 256\n{{\n.reg .b32 %r<9>;\n{body}\nret;\n}}\n"
        ))
    }

    #[test]
    fn a_product_of_unbounded_values_is_reported_through_additions_and_moves() {
        let found = scan(
            "ld.param.b32 %r1, [k_1];\nmov.u32 %r2, %ctaid.x;\nmul.lo.s32 %r3, %r1, %r2;\nadd.s32 %r4, %r3, 5;\n\
             mul.wide.s32 %rd1, %r4, 4;\nadd.s64 %rd2, %rd9, %rd1;\nld.global.f32 %f1, [%rd2+16];",
        );
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("mul.lo.s32 %r3, %r1, %r2"), "{found:?}");
    }

    /// Division by a constant is a wide product and a shift: the quotient times the divisor is no more than there was.
    #[test]
    fn quotients_by_constants_are_bounded() {
        let body = |factor: u32| {
            format!(
                "ld.param.b32 %r1, [k_1];\nmul.wide.u32 %rd3, %r1, -1431655765;\nshr.u64 %rd4, %rd3, 34;\n\
                 cvt.u32.u64 %r2, %rd4;\nmul.lo.s32 %r3, %r2, {factor};\nmul.wide.u32 %rd1, %r3, 4;\n\
                 add.s64 %rd2, %rd9, %rd1;\nld.global.f32 %f1, [%rd2];"
            )
        };
        assert_eq!(scan(&body(6)), Vec::<String>::new());
        assert_eq!(scan(&body(7)).len(), 1, "a sixth of anything times seven may wrap");
    }

    /// So is the high half of a product, which is how 32-bit registers divide; what it was made of may still have
    /// wrapped.
    #[test]
    fn high_halves_do_not_wrap() {
        let body = |first: &str| {
            format!(
                "ld.param.b32 %r1, [k_1];\n{first} %r2, %r1, %r1;\nmul.hi.u32 %r3, %r2, -858993459;\nshr.u32 %r4, %r3, 6;\n\
                 mul.wide.u32 %rd1, %r4, 4;\nadd.s64 %rd2, %rd9, %rd1;\nld.global.f32 %f1, [%rd2];"
            )
        };
        assert_eq!(scan(&body("min.u32")), Vec::<String>::new());
        assert_eq!(scan(&body("mul.lo.s32")).len(), 1, "the factor may have wrapped");
    }

    #[test]
    fn remainders_are_no_products() {
        let body = |divisor: &str| {
            format!(
                "ld.param.b32 %r1, [k_1];\nld.param.b32 %r2, [k_2];\ndiv.u32 %r3, %r1, %r2;\nmul.lo.s32 %r4, %r3, {divisor};\n\
                 sub.s32 %r5, %r1, %r4;\nmul.wide.u32 %rd1, %r5, 4;\nadd.s64 %rd2, %rd9, %rd1;\nld.global.f32 %f1, [%rd2];"
            )
        };
        assert_eq!(scan(&body("%r2")), Vec::<String>::new());
        assert_eq!(scan(&body("%r1")).len(), 1, "another factor is a product");
    }

    #[test]
    fn shifts_and_multiply_adds_are_products_and_bulk_copies_are_addresses() {
        let found = scan(
            "mov.u32 %r1, %ctaid.x;\nshl.b32 %r2, %r1, 9;\ncvt.u64.u32 %rd1, %r2;\nadd.s64 %rd2, %rd9, %rd1;\n\
             cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r7], [%rd2], %r8, [%r9];\n\
             mad.lo.s32 %r3, %r1, 640, %r2;\nmul.wide.u32 %rd3, %r3, 2;\nst.global.b16 [%rd3], %rs1;",
        );
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn widening_first_is_fine() {
        let found = scan(
            "ld.param.b32 %r1, [k_1];\nmov.u32 %r2, %ctaid.x;\nmul.wide.u32 %rd1, %r1, %r2;\nshl.b64 %rd2, %rd1, 9;\n\
             add.s64 %rd3, %rd9, %rd2;\nld.global.f32 %f1, [%rd3];",
        );
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn bounded_indices_may_be_multiplied_and_shared_addresses_are_no_concern() {
        let found = scan(
            "mov.u32 %r1, %tid.x;\nshl.b32 %r2, %r1, 9;\nand.b32 %r3, %r2, 4080;\ncvt.u64.u32 %rd1, %r3;\n\
             cvt.u64.u32 %rd4, %r2;\nadd.s64 %rd2, %rd1, %rd4;\nld.global.f32 %f1, [%rd2];\n\
             ld.param.b32 %r5, [k_1];\nmul.lo.s32 %r6, %r5, %r5;\nld.shared.f32 %f2, [%r6];",
        );
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_loop_counter_is_as_large_as_what_ends_the_loop() {
        let counting_to = |end: &str| {
            scan(&format!(
                "ld.param.b32 %r7, [k_1];\nmov.b32 %r1, 0;\n$L1:\nadd.s32 %r1, %r1, 1;\nshl.b32 %r2, %r1, 7;\n\
                 mul.wide.u32 %rd1, %r2, 256;\n@%p1 ld.global.f32 %f1, [%rd1];\nsetp.lt.s32 %p2, %r1, {end};\n\
                 @%p2 bra $L1;",
            ))
        };
        assert_eq!(counting_to("%r7").len(), 1);
        assert!(counting_to("64").is_empty());
        assert_eq!(counting_to("268435456").len(), 1, "128 * 2^28 wraps");
    }

    #[test]
    fn a_narrowed_value_keeps_its_bound() {
        let found = |mask: &str| {
            scan(&format!(
                "ld.param.b64 %rd5, [k_1];\nand.b64 %rd6, %rd5, {mask};\ncvt.u32.u64 %r1, %rd6;\n\
                 shl.b32 %r2, %r1, 1;\ncvt.u64.u32 %rd7, %r2;\nadd.s64 %rd8, %rd7, %rd5;\nld.global.f32 %f1, [%rd8];"
            ))
        };
        assert!(found("31").is_empty());
        assert_eq!(found("0xffffffff").len(), 1);
    }
}
