//! A kernel with the functions it calls: layout, statements, labels.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::module::declaration_error;
use super::{
    Callee, Decoder, Demands, Formal, FrameRange, Globals, Guard, ParamInfo, Program, Refusal, Symbol, size_of,
};
use crate::error::{Error, Result};
use crate::exec::Op;
use crate::exec::call::{CallOp, STACK_BYTES};
use crate::exec::control::ControlOp;
use crate::exec::{tcgen05, wgmma};
use crate::isa::table::TABLE;
use crate::isa::{Target, TargetWord, Type};
use crate::machine::RegCounts;
use crate::parse::ast::{Address, Function, Init, Instruction, Module, Operand, Space, Statement, Variable};

/// Decodes the entry `name` of a module for `target`.
///
/// # Errors
/// Undeclared names, operands of the wrong kind, forms without a handler, and forms that the target does not have.
pub fn decode_kernel(module: &Module, name: &str, globals: &Globals, target: Target) -> Result<Program> {
    decode(module, name, globals, target, None)
}

/// Every instruction of the entry `name` that cannot be decoded, with the reason.
pub fn survey_kernel(module: &Module, name: &str, globals: &Globals, target: Target) -> Vec<Error> {
    let mut refusals = Vec::new();
    if let Err(error) = decode(module, name, globals, target, Some(&mut refusals)) {
        refusals.push(error);
    }
    refusals
}

/// With `refusals`, instructions that cannot be decoded are collected there and left out.
fn decode(
    module: &Module,
    name: &str,
    globals: &Globals,
    target: Target,
    refusals: Option<&mut Vec<Error>>,
) -> Result<Program> {
    let Some(entry) = module.functions.iter().find(|f| f.entry && f.name == name && f.body.is_some()) else {
        let entries = module.functions.iter().filter(|f| f.entry && f.body.is_some());
        let known: Vec<_> = entries.map(|f| f.name.as_str()).collect();
        let expected = match known.is_empty() {
            true => "a module with an .entry and its body".to_string(),
            false => format!("one of {}", known.join(", ")),
        };
        return Err(Error::launch("kernel", expected, name));
    };
    let word = module.target.first().map_or("", String::as_str);
    let Some(word) = TargetWord::parse(word) else {
        return Err(Error::launch(
            "module",
            "a .target such as sm_90a or sm_100f",
            if word.is_empty() { "none" } else { word },
        ));
    };
    let reached = Reached::from(module, entry);
    let mut decoder = Decoder {
        target,
        word,
        ptx: (module.version.0.min(1000) * 10 + module.version.1) as u16,
        scopes: vec![HashMap::new()],
        globals,
        callees: HashMap::new(),
        instrs: Vec::new(),
        lines: Vec::new(),
        labels: Vec::new(),
        counts: RegCounts::default(),
        constants32: HashMap::new(),
        constants64: HashMap::new(),
        constants128: HashMap::new(),
        constant_predicates: [None; 2],
        local_bytes: 0,
        shared_names: HashMap::new(),
        named: Default::default(),
        named_by: Vec::new(),
        guard: Guard::None,
        line: entry.line,
        after: Vec::new(),
        carry: None,
        frame: None,
        stack_at_entry: None,
    };
    let frames = Vec::new();
    let mut unit =
        Unit { module, decoder: &mut decoder, shared: 0, dynamic_align: 16, reached: &reached, refusals, frames };
    unit.module_scope()?;
    let (params, param_bytes) = unit.entry_params(entry)?;
    unit.declare_callees()?;
    unit.body(entry)?;
    unit.decoder.emit(Op::Control(ControlOp::Exit));
    for (frame, function) in (0..).zip(reached.functions.iter().copied()) {
        unit.callee(function, frame)?;
    }
    let (shared, dynamic_align, frames) = (unit.shared, unit.dynamic_align, unit.frames);
    if reached.uses_stack {
        decoder.local_bytes = decoder.local_bytes.next_multiple_of(256) + STACK_BYTES;
    }
    let mut program = finish(module, entry, decoder, params, param_bytes, shared, dynamic_align)?;
    program.frames = frames;
    Ok(program)
}

/// Resolves labels and collects the program.
fn finish(
    module: &Module,
    entry: &Function,
    mut decoder: Decoder<'_>,
    params: Vec<ParamInfo>,
    param_bytes: u32,
    shared_static: u32,
    shared_dynamic_align: u32,
) -> Result<Program> {
    let labels = std::mem::take(&mut decoder.labels);
    for instr in &mut decoder.instrs {
        if let Op::Control(op) = &mut instr.op {
            op.resolve(|label| labels.get(label as usize).copied().flatten().unwrap_or(u32::MAX));
        }
    }
    let three = |numbers: &[u64]| -> [u32; 3] {
        std::array::from_fn(|i| numbers.get(i).map_or(1, |&n| n.min(u64::from(u32::MAX)) as u32))
    };
    let mut demands = Demands::default();
    for (word, numbers) in &entry.directives {
        let first = numbers.first().map(|&n| n as u32);
        match word.as_str() {
            "reqntid" => demands.block_exact = Some(three(numbers)),
            "maxntid" => demands.block_most = Some(three(numbers)),
            "reqnctapercluster" => demands.cluster_exact = Some(three(numbers)),
            "explicitcluster" => demands.cluster_explicit = true,
            "maxnreg" => demands.registers_most = first,
            "minnctapersm" => demands.ctas_per_sm_least = first,
            "maxclusterrank"
            | "noreturn"
            | "maxnctapersm"
            | "pragma"
            | "blocksareclusters"
            | "attribute"
            | "abi_preserve"
            | "abi_preserve_control" => {}
            other => {
                return Err(declaration_error(module, entry.line, format!("unknown directive .{other}")));
            }
        }
    }
    Ok(Program {
        name: entry.name.clone(),
        product_registers: wgmma::registers::shared_with_products(&decoder.instrs, &decoder.named_by),
        loaded_registers: tcgen05::registers::shared_with_loads(&decoder.instrs, &decoder.named_by),
        instrs: decoder.instrs,
        lines: decoder.lines,
        text: Arc::new(module.lines.clone()),
        registers: decoder.counts,
        constants32: decoder.constants32.into_iter().map(|(v, r)| (r, v)).collect(),
        constants64: decoder.constants64.into_iter().map(|(v, r)| (r, v)).collect(),
        constants128: decoder.constants128.into_iter().map(|(v, r)| (r, v)).collect(),
        constant_predicates: decoder.constant_predicates,
        shared_static,
        shared_dynamic_align,
        frames: Vec::new(),
        local_bytes: decoder.local_bytes,
        params,
        param_bytes,
        demands,
        shared_names: decoder.shared_names,
    })
}

/// Names and functions that an entry reaches.
struct Reached<'m> {
    names: HashSet<&'m str>,
    functions: Vec<&'m Function>,
    /// By function: those that it may call, directly or not.
    calls: Vec<HashSet<u32>>,
    /// Functions whose address is taken.
    pointed_to: HashSet<u32>,
    /// Whether `alloca` is used.
    uses_stack: bool,
}

impl<'m> Reached<'m> {
    fn from(module: &'m Module, entry: &'m Function) -> Reached<'m> {
        let defined: HashMap<&str, &Function> =
            module.functions.iter().filter(|f| !f.entry && f.body.is_some()).map(|f| (f.name.as_str(), f)).collect();
        let variables: HashMap<&str, &Variable> = module.variables.iter().map(|v| (v.name.as_str(), v)).collect();
        let mut names = HashSet::new();
        let mut functions: Vec<&Function> = Vec::new();
        let mut uses = vec![Uses::of(entry)];
        // Every name once: functions are followed, variables through the symbols that they start with.
        let mut queue: Vec<&str> = uses[0].called.union(&uses[0].others).copied().collect();
        let mut pointed_to: HashSet<&str> = uses[0].others.clone();
        while let Some(name) = queue.pop() {
            if !names.insert(name) {
                continue;
            }
            if let Some(function) = defined.get(name) {
                let found = Uses::of(function);
                queue.extend(found.called.union(&found.others));
                pointed_to.extend(&found.others);
                functions.push(function);
                uses.push(found);
            }
            if let Some(variable) = variables.get(name) {
                let symbols = variable.init.iter().filter_map(|item| match item {
                    Init::Symbol { name, .. } => Some(name.as_str()),
                    _ => None,
                });
                pointed_to.extend(symbols.clone());
                queue.extend(symbols);
            }
        }
        let index: HashMap<&str, u32> = functions.iter().map(|f| f.name.as_str()).zip(0..).collect();
        let pointed_to: HashSet<u32> = pointed_to.iter().filter_map(|name| index.get(name).copied()).collect();
        let direct: Vec<HashSet<u32>> = uses[1..]
            .iter()
            .map(|uses| {
                let called = uses.called.iter().filter_map(|name| index.get(name).copied());
                let pointed = if uses.calls_register { pointed_to.clone() } else { HashSet::new() };
                called.chain(pointed).collect()
            })
            .collect();
        let calls = (0..functions.len()).map(|from| closure(&direct, from)).collect();
        let uses_stack = uses.iter().any(|uses| uses.stack);
        Reached { names, functions, calls, pointed_to, uses_stack }
    }
}

/// Everything that can be reached from `from` in one step or more.
fn closure(direct: &[HashSet<u32>], from: usize) -> HashSet<u32> {
    let mut seen = HashSet::new();
    let mut queue: Vec<u32> = direct[from].iter().copied().collect();
    while let Some(next) = queue.pop() {
        if seen.insert(next) {
            queue.extend(&direct[next as usize]);
        }
    }
    seen
}

/// What a function's body names.
#[derive(Default)]
struct Uses<'m> {
    /// As the function of a call.
    called: HashSet<&'m str>,
    /// Anywhere else.
    others: HashSet<&'m str>,
    /// A call through a register.
    calls_register: bool,
    /// `alloca`
    stack: bool,
}

impl<'m> Uses<'m> {
    fn of(function: &'m Function) -> Uses<'m> {
        let mut uses = Uses::default();
        uses.collect(function.body.as_deref().unwrap_or(&[]));
        uses
    }

    fn collect(&mut self, body: &'m [Statement]) {
        for statement in body {
            match statement {
                Statement::Instruction(instruction) => {
                    self.stack |= instruction.mnemonic == "alloca";
                    let mut operands = instruction.operands.as_slice();
                    if instruction.mnemonic == "call" {
                        if let [Operand::List(_), rest @ ..] = operands {
                            operands = rest;
                        }
                        if let [Operand::Name(name), rest @ ..] = operands {
                            self.calls_register |= name.starts_with('%') || rest.len() > 1;
                            self.called.insert(name);
                            operands = rest;
                        }
                    }
                    operands.iter().for_each(|item| collect_operand(item, &mut self.others));
                }
                Statement::Block(inner) => self.collect(inner),
                _ => {}
            }
        }
    }
}

fn collect_operand<'m>(operand: &'m Operand, names: &mut HashSet<&'m str>) {
    match operand {
        Operand::Name(name) | Operand::SymbolOffset(name, _) => {
            names.insert(name);
        }
        Operand::Address(Address { base, rest, .. }) => {
            names.extend(base.as_deref());
            rest.iter().for_each(|item| collect_operand(item, names));
        }
        Operand::Vector(items) | Operand::List(items) => {
            items.iter().for_each(|item| collect_operand(item, names));
        }
        Operand::Pair(a, b) => {
            collect_operand(a, names);
            collect_operand(b, names);
        }
        _ => {}
    }
}

/// Decoding of one kernel: the decoder and the layout so far.
struct Unit<'m, 'd, 'g> {
    module: &'m Module,
    decoder: &'d mut Decoder<'g>,
    shared: u32,
    dynamic_align: u32,
    reached: &'d Reached<'m>,
    refusals: Option<&'d mut Vec<Error>>,
    /// Parameters and results of each function; then what its body declares.
    frames: Vec<[FrameRange; 2]>,
}

impl<'m> Unit<'m, '_, '_> {
    fn error<T>(&self, line: u32, reason: impl Into<String>) -> Result<T> {
        Err(declaration_error(self.module, line, reason))
    }

    fn declare(&mut self, name: &str, symbol: Symbol) {
        if let Some(scope) = self.decoder.scopes.last_mut() {
            scope.insert(name.to_string(), symbol);
        }
    }

    /// Module-scope variables: addresses of globals, and shared memory that the kernel uses.
    fn module_scope(&mut self) -> Result<()> {
        for variable in &self.module.variables {
            match variable.space {
                Space::Shared if self.reached.names.contains(variable.name.as_str()) => {
                    self.shared_variable(variable)?;
                }
                Space::Global | Space::Const => {
                    if let Some(&address) = self.decoder.globals.get(&variable.name) {
                        self.declare(&variable.name, Symbol::Global(address));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn shared_variable(&mut self, variable: &Variable) -> Result<()> {
        let (_, bytes, align) = size_of(self.module, variable)?;
        let unsized_array = variable.dims.iter().any(Option::is_none) || bytes == 0;
        if unsized_array {
            self.dynamic_align = self.dynamic_align.max(align);
            self.declare(&variable.name, Symbol::SharedDynamic);
            return Ok(());
        }
        if bytes > 1 << 20 {
            return self.error(variable.line, format!("expected at most 1 MiB of shared memory, got {bytes}"));
        }
        let start = crate::memory::SHARED_START;
        let offset = (start + self.shared).next_multiple_of(align);
        self.shared = offset + bytes as u32 - start;
        if self.shared > 1 << 20 {
            return self.error(variable.line, "expected at most 1 MiB of shared memory");
        }
        self.declare(&variable.name, Symbol::Shared(offset));
        self.decoder.shared_names.insert(variable.name.clone(), offset);
        Ok(())
    }

    fn entry_params(&mut self, entry: &Function) -> Result<(Vec<ParamInfo>, u32)> {
        let mut params = Vec::new();
        let mut end: u32 = 0;
        self.decoder.scopes.push(HashMap::new());
        for param in &entry.params {
            let (_, bytes, align) = size_of(self.module, param)?;
            let Ok(size) = u32::try_from(bytes) else {
                return self.error(param.line, "parameter too large");
            };
            let offset = end.next_multiple_of(align);
            end = offset.saturating_add(size);
            if end > 1 << 16 {
                return self.error(param.line, "expected at most 65536 bytes of parameters");
            }
            self.declare(&param.name, Symbol::Param(offset));
            params.push(ParamInfo { name: param.name.clone(), offset, size, align });
        }
        Ok((params, end))
    }

    /// Labels and parameter places of every function reached.
    fn declare_callees(&mut self) -> Result<()> {
        for (index, function) in (0..).zip(&self.reached.functions) {
            let label = self.decoder.new_label();
            let start = self.place();
            let params = self.formals(&function.params)?;
            let returns = self.formals(&function.returns)?;
            let formals = self.range_from(start);
            self.frames.push([formals.clone(), formals]);
            let address = self.decoder.globals.get(&function.name).copied();
            if let Some(address) = address {
                self.declare(&function.name, Symbol::Global(address));
            }
            let address = address.filter(|_| self.reached.pointed_to.contains(&index));
            let comes_back_to = self.reached.calls[index as usize].iter().copied().collect();
            let callee = Callee { label, params, returns, address, comes_back_to };
            self.decoder.callees.insert(function.name.clone(), callee);
        }
        Ok(())
    }

    fn formals(&mut self, variables: &[Variable]) -> Result<Vec<Formal>> {
        variables
            .iter()
            .map(|variable| {
                let (ty, bytes, align) = size_of(self.module, variable)?;
                if variable.space == Space::Reg {
                    return Ok(Formal::Register(self.decoder.fresh(ty), ty));
                }
                if bytes > 1 << 16 {
                    return self.error(variable.line, "parameter too large");
                }
                let offset = self.local(variable, bytes, align)?;
                Ok(Formal::Local(offset, bytes as u32))
            })
            .collect()
    }

    /// A place of a variable in the thread's own memory.
    fn local(&mut self, variable: &Variable, bytes: u64, align: u32) -> Result<u32> {
        match self.decoder.local(bytes, align) {
            Some(offset) => Ok(offset),
            None => self.error(variable.line, "expected at most 16 MiB of .local and .param memory of a thread"),
        }
    }

    /// Registers and local bytes handed out so far.
    fn place(&self) -> (RegCounts, u32) {
        (self.decoder.counts, self.decoder.local_bytes)
    }

    fn range_from(&self, (first, local): (RegCounts, u32)) -> FrameRange {
        FrameRange { first, end: self.decoder.counts, local: local..self.decoder.local_bytes }
    }

    fn callee(&mut self, function: &'m Function, frame: u32) -> Result<()> {
        let Some(callee) = self.decoder.callees.get(&function.name).cloned() else {
            return Ok(());
        };
        // The entry's parameters are out of scope in a function.
        self.decoder.scopes.truncate(1);
        self.decoder.scopes.push(HashMap::new());
        let formals = callee.params.iter().chain(&callee.returns);
        for (variable, formal) in function.params.iter().chain(&function.returns).zip(formals) {
            let symbol = match formal {
                Formal::Local(offset, bytes) => Symbol::Local(*offset, *bytes),
                Formal::Register(reg, ty) => Symbol::Register(*reg, *ty),
            };
            self.declare(&variable.name, symbol);
        }
        self.decoder.place(callee.label);
        self.decoder.frame = Some(frame);
        let start = self.place();
        if Uses::of(function).stack {
            let d = self.decoder.fresh64();
            self.decoder.guard = Guard::None;
            self.decoder.emit(Op::Call(CallOp::StackSave { d }));
            self.decoder.stack_at_entry = Some(d);
        }
        self.body(function)?;
        self.decoder.guard = Guard::None;
        if let Some(a) = self.decoder.stack_at_entry.take() {
            self.decoder.emit(Op::Call(CallOp::StackRestore { a }));
        }
        self.decoder.emit(Op::Control(ControlOp::Return));
        self.frames[frame as usize][1] = self.range_from(start);
        Ok(())
    }

    fn body(&mut self, function: &'m Function) -> Result<()> {
        self.block(function.body.as_deref().unwrap_or(&[]))
    }

    fn block(&mut self, statements: &'m [Statement]) -> Result<()> {
        self.decoder.scopes.push(HashMap::new());
        for statement in statements {
            match statement {
                Statement::Label(name) => {
                    let label = self.decoder.new_label();
                    self.declare(name, Symbol::Code(label));
                }
                Statement::BranchTargets(name, targets) => {
                    self.declare(name, Symbol::Targets(targets.clone()));
                }
                _ => {}
            }
        }
        for statement in statements {
            match statement {
                Statement::Label(name) => {
                    if let Some(Symbol::Code(label)) = self.decoder.lookup(name).cloned() {
                        self.decoder.place(label);
                    }
                }
                Statement::Block(inner) => self.block(inner)?,
                Statement::Variable(variable) => self.variable(variable)?,
                Statement::Instruction(instruction) => self.instruction(instruction)?,
                Statement::BranchTargets(..) | Statement::CallPrototype(_) => {}
            }
        }
        self.decoder.scopes.pop();
        Ok(())
    }

    fn variable(&mut self, variable: &Variable) -> Result<()> {
        let (ty, bytes, align) = size_of(self.module, variable)?;
        match variable.space {
            Space::Reg => {
                let counts = &mut self.decoder.counts;
                let bank = match ty.bank() {
                    crate::isa::Bank::Pred => &mut counts.pred,
                    crate::isa::Bank::W32 => &mut counts.w32,
                    crate::isa::Bank::W64 => &mut counts.w64,
                    crate::isa::Bank::W128 => &mut counts.w128,
                };
                let first = *bank;
                *bank += variable.count.unwrap_or(1);
                if *bank > 1 << 20 {
                    return self.error(variable.line, "expected at most 1048576 registers");
                }
                let symbol = match variable.count {
                    Some(count) => Symbol::Registers { first, count, ty },
                    None => Symbol::Register(super::operands::register_of(ty, first), ty),
                };
                self.declare(&variable.name, symbol);
            }
            Space::Shared => self.shared_variable(variable)?,
            Space::Local if self.decoder.frame.is_some_and(|f| self.reached.calls[f as usize].contains(&f)) => {
                return Err(Error::Refused {
                    line: variable.line,
                    text: variable.name.clone(),
                    reason:
                        "a recursive function with a .local variable: its address could not be told from the caller's"
                            .to_string(),
                });
            }
            Space::Local | Space::Param => {
                let offset = self.local(variable, bytes, align)?;
                self.declare(&variable.name, Symbol::Local(offset, bytes as u32));
            }
            Space::Global | Space::Const => {
                return self.error(variable.line, "expected .global and .const variables at module scope");
            }
        }
        Ok(())
    }

    fn instruction(&mut self, instruction: &'m Instruction) -> Result<()> {
        self.decoder.line = instruction.line;
        self.decoder.guard = Guard::None;
        let first = self.decoder.instrs.len() as u32;
        self.decoder.named.take();
        let decoded = self.guarded(instruction);
        match decoded {
            Ok(op) => {
                self.decoder.emit(op);
                for op in std::mem::take(&mut self.decoder.after) {
                    self.decoder.emit(op);
                }
                let named = self.decoder.named.take();
                self.decoder.named_by.push((first..self.decoder.instrs.len() as u32, named));
                Ok(())
            }
            Err(refusal) => {
                let line = instruction.line;
                let text =
                    self.module.lines.get(line as usize - 1).map_or(String::new(), |text| text.trim().to_string());
                let error = match refusal {
                    Refusal::Invalid(reason) => Error::Parse { line, text, reason },
                    Refusal::Missing(reason) => Error::Unsupported { line, text, reason },
                    Refusal::Refused(reason) => Error::Refused { line, text, reason },
                };
                match &mut self.refusals {
                    Some(refusals) => {
                        refusals.push(error);
                        Ok(())
                    }
                    None => Err(error),
                }
            }
        }
    }

    fn guarded(&mut self, instruction: &Instruction) -> std::result::Result<Op, Refusal> {
        if let Some(guard) = &instruction.guard {
            let (p, _) = self.decoder.pred(&Operand::Name(guard.register.clone()))?;
            self.decoder.guard = if guard.negated { Guard::Unless(p) } else { Guard::If(p) };
        }
        let decode = TABLE.find(instruction, self.decoder.target, self.decoder.word, self.decoder.ptx)?;
        decode(self.decoder, instruction)
    }
}

/// The type words of an instruction, in order.
pub(crate) fn types(instruction: &Instruction) -> Vec<Type> {
    instruction.modifiers.iter().filter_map(|m| Type::parse(m)).collect()
}
