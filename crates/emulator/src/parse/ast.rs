//! The syntax tree: grammar only, no meaning.

/// A parsed PTX file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Module {
    /// `.version major.minor`.
    pub version: (u32, u32),
    /// `.target` words, the architecture first.
    pub target: Vec<String>,
    /// Module-scope variables.
    pub variables: Vec<Variable>,
    /// Entries and functions, prototypes included.
    pub functions: Vec<Function>,
    /// The text, by line.
    pub lines: Vec<String>,
}

/// A state space as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// `.reg`
    Reg,
    /// `.param`
    Param,
    /// `.global`
    Global,
    /// `.const`
    Const,
    /// `.shared`
    Shared,
    /// `.local`
    Local,
}

/// A variable or parameter declaration.
#[derive(Debug, Clone, PartialEq)]
pub struct Variable {
    /// State space.
    pub space: Space,
    /// Alignment in bytes, 0 when not written.
    pub align: u32,
    /// Type word without the dot, `b8`.
    pub ty: String,
    /// Vector width, 1, 2 or 4.
    pub vector: u32,
    /// Name.
    pub name: String,
    /// Registers `%r<N>` declare N names.
    pub count: Option<u32>,
    /// Array dimensions; `None` for an unsized dimension.
    pub dims: Vec<Option<u64>>,
    /// Initialiser, flattened.
    pub init: Vec<Init>,
    /// `.extern`
    pub external: bool,
    /// Line in the text.
    pub line: u32,
}

/// One element of an initialiser.
#[derive(Debug, Clone, PartialEq)]
pub enum Init {
    /// An integer.
    Integer(i128),
    /// Bits of a float, as written in 32 or 64 bits.
    Float(f64),
    /// Exact bits of `0f` literals.
    Bits32(u32),
    /// Exact bits of `0d` literals.
    Bits64(u64),
    /// Address of a symbol plus an offset; `generic(symbol)` sets the flag.
    Symbol {
        /// Name of the symbol.
        name: String,
        /// Bytes added to the address.
        offset: i64,
        /// Written as `generic(name)`.
        generic: bool,
    },
}

/// `.entry` or `.func`.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// `.entry`, callable by a launch.
    pub entry: bool,
    /// Name.
    pub name: String,
    /// Return parameters of a `.func`.
    pub returns: Vec<Variable>,
    /// Parameters in order.
    pub params: Vec<Variable>,
    /// Performance directives: word without dot, and its numbers.
    pub directives: Vec<(String, Vec<u64>)>,
    /// `None` for a prototype.
    pub body: Option<Vec<Statement>>,
    /// Line in the text.
    pub line: u32,
}

/// A statement of a function body.
#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    /// `name:`
    Label(String),
    /// An instruction.
    Instruction(Instruction),
    /// `{ ... }`
    Block(Vec<Statement>),
    /// A declaration.
    Variable(Variable),
    /// `label: .branchtargets a, b;`
    BranchTargets(String, Vec<String>),
    /// `label: .callprototype ...;` or `.calltargets`, kept as text.
    CallPrototype(String),
}

/// `@p` or `@!p`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// Predicate register.
    pub register: String,
    /// `!`
    pub negated: bool,
}

/// An instruction as written.
#[derive(Debug, Clone, PartialEq)]
pub struct Instruction {
    /// `@p`, if any.
    pub guard: Option<Guard>,
    /// First word, `ld`.
    pub mnemonic: String,
    /// The words after it, without dots, in the order written.
    pub modifiers: Vec<String>,
    /// Operands in order.
    pub operands: Vec<Operand>,
    /// Line in the text, from 1.
    pub line: u32,
}

impl Instruction {
    /// Whether modifier `word` is present.
    pub fn has(&self, word: &str) -> bool {
        self.modifiers.iter().any(|m| m == word)
    }

    /// The value of the first modifier found in `choices`.
    pub fn choose<T: Copy>(&self, choices: &[(&str, T)]) -> Option<T> {
        self.modifiers.iter().find_map(|m| choices.iter().find(|c| c.0 == m).map(|c| c.1))
    }

    /// Mnemonic and modifiers, `ld.global.b32`.
    pub fn opcode(&self) -> String {
        let mut text = self.mnemonic.clone();
        for modifier in &self.modifiers {
            text.push('.');
            text.push_str(modifier);
        }
        text
    }
}

/// An operand as written.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// Register, special register (`%tid.x`), symbol or label.
    Name(String),
    /// `!p`
    Not(String),
    /// `-%r`, as a few instructions allow.
    Negated(String),
    /// Integer literal.
    Integer(i128),
    /// `0f3F800000`
    Float32(u32),
    /// `0d3FF0000000000000`, or a decimal float.
    Float64(u64),
    /// `{a, b}`
    Vector(Vec<Operand>),
    /// `[base + offset]` or `[base, {x, y}, ...]`
    Address(Address),
    /// `d|p`
    Pair(Box<Operand>, Box<Operand>),
    /// `_`
    Sink,
    /// `(a, b)` of a call.
    List(Vec<Operand>),
    /// `symbol + 4` outside brackets.
    SymbolOffset(String, i64),
}

/// A memory operand.
#[derive(Debug, Clone, PartialEq)]
pub struct Address {
    /// Register or symbol; `None` for a literal address.
    pub base: Option<String>,
    /// Bytes added to the base.
    pub offset: i64,
    /// What follows the base inside the brackets: coordinates and the like.
    pub rest: Vec<Operand>,
}
