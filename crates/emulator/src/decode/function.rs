//! A kernel with the functions it calls: layout, statements, labels.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::module::declaration_error;
use super::{Callee, Decoder, Demands, Formal, Globals, Guard, ParamInfo, Program, Refusal, Symbol, size_of};
use crate::error::{Error, Result};
use crate::exec::Op;
use crate::exec::control::ControlOp;
use crate::isa::table::TABLE;
use crate::isa::{Target, Type};
use crate::machine::RegCounts;
use crate::parse::ast::{Address, Function, Instruction, Module, Operand, Space, Statement, Variable};

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
        let known: Vec<_> = module.functions.iter().filter(|f| f.entry).map(|f| f.name.as_str()).collect();
        return Err(Error::launch("kernel", format!("one of {known:?}"), name));
    };
    let reached = Reached::from(module, entry)?;
    let mut decoder = Decoder {
        target,
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
        guard: Guard::None,
        line: entry.line,
        after: Vec::new(),
        carry: None,
    };
    let mut unit = Unit { module, decoder: &mut decoder, shared: 0, dynamic_align: 16, reached: &reached, refusals };
    unit.module_scope()?;
    let (params, param_bytes) = unit.entry_params(entry)?;
    unit.declare_callees()?;
    unit.body(entry)?;
    unit.decoder.emit(Op::Control(ControlOp::Exit));
    for function in reached.functions.iter().copied() {
        unit.callee(function)?;
    }
    let (shared, dynamic_align) = (unit.shared, unit.dynamic_align);
    finish(module, entry, decoder, params, param_bytes, shared, dynamic_align)
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
}

impl<'m> Reached<'m> {
    fn from(module: &'m Module, entry: &'m Function) -> Result<Reached<'m>> {
        let defined: HashMap<&str, &Function> =
            module.functions.iter().filter(|f| !f.entry && f.body.is_some()).map(|f| (f.name.as_str(), f)).collect();
        let mut reached = Reached { names: HashSet::new(), functions: Vec::new() };
        let mut graph: HashMap<&str, Vec<&str>> = HashMap::new();
        let mut queue = vec![entry];
        while let Some(function) = queue.pop() {
            let mut names = HashSet::new();
            collect_names(function.body.as_deref().unwrap_or(&[]), &mut names);
            for name in &names {
                if let Some(callee) = defined.get(name) {
                    graph.entry(function.name.as_str()).or_default().push(name);
                    if !reached.functions.iter().any(|f| f.name == callee.name) {
                        reached.functions.push(callee);
                        queue.push(callee);
                    }
                }
            }
            reached.names.extend(names);
        }
        for function in &reached.functions {
            if calls_itself(&graph, &function.name) {
                return Err(Error::Refused {
                    line: function.line,
                    text: function.name.clone(),
                    reason: "recursive functions are not supported".to_string(),
                });
            }
        }
        Ok(reached)
    }
}

fn calls_itself(graph: &HashMap<&str, Vec<&str>>, name: &str) -> bool {
    let mut seen = HashSet::new();
    let mut queue: Vec<&str> = graph.get(name).cloned().unwrap_or_default();
    while let Some(next) = queue.pop() {
        if next == name {
            return true;
        }
        if seen.insert(next) {
            queue.extend(graph.get(next).into_iter().flatten());
        }
    }
    false
}

/// Every name in the operands of a body.
fn collect_names<'m>(body: &'m [Statement], names: &mut HashSet<&'m str>) {
    for statement in body {
        match statement {
            Statement::Instruction(instruction) => {
                instruction.operands.iter().for_each(|item| collect_operand(item, names));
            }
            Statement::Block(inner) => collect_names(inner, names),
            _ => {}
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
        for function in &self.reached.functions {
            let label = self.decoder.new_label();
            let params = self.formals(&function.params)?;
            let returns = self.formals(&function.returns)?;
            self.decoder.callees.insert(function.name.clone(), Callee { label, params, returns });
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
                Ok(Formal::Local(self.decoder.local(bytes as u32, align), bytes as u32))
            })
            .collect()
    }

    fn callee(&mut self, function: &'m Function) -> Result<()> {
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
        self.body(function)?;
        self.decoder.guard = Guard::None;
        self.decoder.emit(Op::Control(ControlOp::Return));
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
            Space::Local | Space::Param => {
                if bytes > 1 << 24 {
                    return self.error(variable.line, format!("expected at most 16 MiB, got {bytes}"));
                }
                let offset = self.decoder.local(bytes as u32, align);
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
        let decoded = self.guarded(instruction);
        match decoded {
            Ok(op) => {
                self.decoder.emit(op);
                for op in std::mem::take(&mut self.decoder.after) {
                    self.decoder.emit(op);
                }
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
        let decode = TABLE.find(instruction, self.decoder.target, self.decoder.ptx)?;
        decode(self.decoder, instruction)
    }
}

/// The type words of an instruction, in order.
pub(crate) fn types(instruction: &Instruction) -> Vec<Type> {
    instruction.modifiers.iter().filter_map(|m| Type::parse(m)).collect()
}
