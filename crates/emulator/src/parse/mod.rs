//! PTX text to syntax tree. Knows grammar, not meaning; errors carry line, text and reason.

pub mod ast;
mod body;
mod cursor;

use crate::error::Result;
use ast::{Function, Init, Module, Space, Variable};
use cursor::{Cursor, Number};

/// Most nested scopes a function may have.
const MAX_DEPTH: u32 = 64;

/// Most bytes that a variable may be aligned to: more than any shared memory has.
const MOST_ALIGN: u32 = 1 << 20;

/// Parses PTX text. NUL bytes may stand behind its end, as in a string that a compiler terminated.
///
/// # Errors
/// [`crate::Error::Parse`] with the line, its text and what was expected.
pub fn parse(text: &str) -> Result<Module> {
    let text = text.trim_end_matches('\0');
    let mut parser = Parser { at: Cursor::new(text), aliases: Vec::new() };
    parser.at.refuse_nul()?;
    let mut module = Module { lines: text.lines().map(str::to_string).collect(), ..Module::default() };
    while parser.at.peek().is_some() {
        parser.item(&mut module)?;
    }
    parser.at.finish()?;
    parser.aliases(&mut module)?;
    Ok(module)
}

struct Parser<'a> {
    at: Cursor<'a>,
    /// `.alias`: new name, name of the function, line.
    aliases: Vec<(String, String, u32)>,
}

impl Parser<'_> {
    /// One module-level directive.
    fn item(&mut self, module: &mut Module) -> Result<()> {
        let mut external = false;
        if self.at.eat(b';') {
            return Ok(());
        }
        self.at.expect(b'.')?;
        let mut word = self.at.dotted()?;
        while matches!(word.as_str(), "visible" | "weak" | "extern" | "common") {
            external |= word == "extern";
            self.at.expect(b'.')?;
            word = self.at.dotted()?;
        }
        match word.as_str() {
            "version" => module.version = self.version()?,
            "target" => loop {
                module.target.push(self.at.name()?);
                if !self.at.eat(b',') {
                    break;
                }
            },
            "address_size" => {
                let bits = self.at.integer()?;
                if bits != 64 {
                    return self.at.error("expected .address_size 64");
                }
            }
            "file" | "loc" | "pragma" | "ident" => self.at.skip_directive()?,
            "alias" => {
                let line = self.at.line;
                let alias = self.at.name()?;
                self.at.expect(b',')?;
                let name = self.at.name()?;
                self.at.expect(b';')?;
                self.aliases.push((alias, name, line));
            }
            "section" => {
                while self.at.peek().is_some() && self.at.raw(0) != Some(b'{') {
                    self.at.bump();
                }
                if self.at.eat(b'{') {
                    self.at.skip_braces()?;
                }
            }
            "entry" | "func" => {
                let function = self.function(word == "entry")?;
                let twice = |known: &Function| known.name == function.name && known.body.is_some();
                if function.body.is_some() && module.functions.iter().any(twice) {
                    return self
                        .at
                        .error(format!("{} has two bodies, the second from line {} on", function.name, function.line));
                }
                module.functions.push(function);
            }
            "global" | "const" | "shared" | "local" | "param" | "reg" | "tex" => {
                let Some(space) = space_of(&word) else {
                    return self.at.error(format!("expected a variable of a known space, found .{word}"));
                };
                let variables = self.variables(space, external)?;
                self.at.expect(b';')?;
                module.variables.extend(variables);
            }
            other => return self.at.error(format!("expected a directive, found .{other}")),
        }
        Ok(())
    }

    /// Gives each alias, declared as a prototype, the body of its function.
    fn aliases(&mut self, module: &mut Module) -> Result<()> {
        for (alias, name, line) in std::mem::take(&mut self.aliases) {
            let Some(function) = module.functions.iter().find(|f| f.name == name && f.body.is_some()) else {
                self.at.line = line;
                return self.at.error(format!(".alias: expected a function with a body, got {name}"));
            };
            let function = Function { name: alias.clone(), ..function.clone() };
            module.functions.retain(|f| f.name != alias);
            module.functions.push(function);
        }
        Ok(())
    }

    /// `8.6`
    fn version(&mut self) -> Result<(u32, u32)> {
        self.at.skip();
        let major = self.at.run();
        let dot = self.at.raw(0) == Some(b'.');
        if dot {
            self.at.bump();
        }
        let minor = self.at.run();
        match (major.parse::<u16>(), minor.parse::<u16>()) {
            (Ok(major), Ok(minor)) if dot && minor < 10 => Ok((major.into(), minor.into())),
            _ => self.at.error(format!("expected a version, found {major}.{minor}")),
        }
    }

    fn small(&mut self) -> Result<u32> {
        let value = self.at.integer()?;
        u32::try_from(value).or_else(|_| self.at.error(format!("expected a small number, got {value}")))
    }

    /// The number behind `.align`.
    fn alignment(&mut self) -> Result<u32> {
        let align = self.small()?;
        if align.is_power_of_two() && align <= MOST_ALIGN {
            return Ok(align);
        }
        self.at.error(format!(".align: expected a power of two up to {MOST_ALIGN}, got {align}"))
    }

    /// `.entry name (params) directives { body }`, the keyword consumed.
    fn function(&mut self, entry: bool) -> Result<Function> {
        let line = self.at.line;
        let mut returns = Vec::new();
        let mut directives = Vec::new();
        while self.at.peek() == Some(b'.') {
            self.at.bump();
            directives.push(self.directive()?);
        }
        if !entry && self.at.peek() == Some(b'(') {
            returns = self.parameters()?;
        }
        let name = self.at.name()?;
        let params = if self.at.peek() == Some(b'(') { self.parameters()? } else { Vec::new() };
        while self.at.peek() == Some(b'.') {
            self.at.bump();
            directives.push(self.directive()?);
        }
        let body = if self.at.eat(b';') {
            None
        } else {
            self.at.expect(b'{')?;
            Some(self.block(0)?)
        };
        Ok(Function { entry, name, returns, params, directives, body, line })
    }

    /// A performance directive after its dot.
    fn directive(&mut self) -> Result<(String, Vec<u64>)> {
        let word = self.at.dotted()?;
        let mut numbers = Vec::new();
        if word == "pragma" {
            self.pragma()?;
            return Ok((word, numbers));
        }
        if word == "attribute" || word == "abi_preserve" {
            while self.at.peek().is_some() && !self.at.eat(b')') {
                self.at.bump();
            }
            return Ok((word, numbers));
        }
        while self.at.at_number() {
            let value = self.at.integer()?;
            let Ok(value) = u64::try_from(value) else {
                return self.at.error(format!(".{word}: expected a positive number, got {value}"));
            };
            numbers.push(value);
            if !self.at.eat(b',') {
                break;
            }
        }
        Ok((word, numbers))
    }

    /// Strings of a `.pragma` up to the semicolon.
    fn pragma(&mut self) -> Result<()> {
        self.at.string()?;
        while self.at.eat(b',') {
            self.at.string()?;
        }
        self.at.expect(b';')
    }

    /// `( .param .b64 a, .reg .b32 b )`
    fn parameters(&mut self) -> Result<Vec<Variable>> {
        self.at.expect(b'(')?;
        let mut params = Vec::new();
        while !self.at.eat(b')') {
            self.at.expect(b'.')?;
            let word = self.at.dotted()?;
            let Some(space) = space_of(&word) else {
                return self.at.error(format!("expected .param or .reg, found .{word}"));
            };
            let first = self.declaration(space, false)?;
            params.push(first);
            if !self.at.eat(b',') {
                self.at.expect(b')')?;
                break;
            }
        }
        Ok(params)
    }

    /// Declarations after the space word: one or several names of one type.
    fn variables(&mut self, space: Space, external: bool) -> Result<Vec<Variable>> {
        let first = self.declaration(space, external)?;
        let mut all = vec![first];
        while self.at.eat(b',') {
            let name = self.at.name()?;
            let mut next = Variable { name, ..all[0].clone() };
            self.declarator(&mut next)?;
            all.push(next);
        }
        Ok(all)
    }

    fn declaration(&mut self, space: Space, external: bool) -> Result<Variable> {
        let mut variable = Variable {
            space,
            align: 0,
            ty: String::new(),
            vector: 1,
            name: String::new(),
            count: None,
            dims: Vec::new(),
            init: Vec::new(),
            external,
            line: self.at.line,
        };
        while self.at.eat(b'.') {
            let word = self.at.dotted()?;
            match word.as_str() {
                "align" => variable.align = self.alignment()?,
                "v2" => variable.vector = 2,
                "v4" => variable.vector = 4,
                "ptr" | "global" | "const" | "shared" | "local" | "param" => {}
                "attribute" => {
                    while self.at.peek().is_some() && !self.at.eat(b')') {
                        self.at.bump();
                    }
                }
                _ => variable.ty = word,
            }
        }
        if variable.ty.is_empty() {
            return self.at.error("expected a type in the declaration");
        }
        variable.name = self.at.name()?;
        self.declarator(&mut variable)?;
        Ok(variable)
    }

    /// What follows a name: `<N>`, `[N]`, `= init`.
    fn declarator(&mut self, variable: &mut Variable) -> Result<()> {
        variable.count = None;
        variable.dims.clear();
        variable.init.clear();
        if self.at.eat(b'<') {
            let count = self.small()?;
            if count > 1 << 20 {
                return self.at.error(format!("expected at most 1048576 registers, got {count}"));
            }
            variable.count = Some(count);
            self.at.expect(b'>')?;
        }
        while self.at.eat(b'[') {
            if self.at.eat(b']') {
                variable.dims.push(None);
                continue;
            }
            let size = self.at.integer()?;
            let Ok(size) = u64::try_from(size) else {
                return self.at.error(format!("expected an array size, got {size}"));
            };
            variable.dims.push(Some(size));
            self.at.expect(b']')?;
        }
        if self.at.eat(b'=') {
            self.initialiser(&mut variable.init, 0)?;
        }
        Ok(())
    }

    fn initialiser(&mut self, out: &mut Vec<Init>, depth: u32) -> Result<()> {
        if depth > MAX_DEPTH {
            return self.at.error("expected fewer nested braces");
        }
        if self.at.eat(b'{') {
            while !self.at.eat(b'}') {
                self.initialiser(out, depth + 1)?;
                if !self.at.eat(b',') {
                    self.at.expect(b'}')?;
                    break;
                }
            }
            return Ok(());
        }
        if self.at.peek() == Some(b'"') {
            let bytes = self.at.string()?;
            out.extend(bytes.into_iter().map(|b| Init::Integer(b.into())));
            return Ok(());
        }
        if self.at.at_number() {
            out.push(match self.at.number()? {
                Number::Integer(value) => Init::Integer(value),
                Number::Float32(bits) => Init::Bits32(bits),
                Number::Float64(bits) => Init::Bits64(bits),
            });
            return Ok(());
        }
        let mut name = self.at.name()?;
        let generic = name == "generic";
        if generic {
            self.at.expect(b'(')?;
            name = self.at.name()?;
            self.at.expect(b')')?;
        }
        let offset = self.offset()?;
        out.push(Init::Symbol { name, offset, generic });
        Ok(())
    }

    /// `+4`, `+-4`, `-4` or nothing.
    fn offset(&mut self) -> Result<i64> {
        let mut total: i64 = 0;
        loop {
            let negative = match self.at.peek() {
                Some(b'+') => false,
                Some(b'-') => true,
                _ => return Ok(total),
            };
            self.at.bump();
            let value = self.at.integer()?;
            // Offsets above 2^63 are written for negative ones.
            let value = value as i64;
            total = total.wrapping_add(if negative { value.wrapping_neg() } else { value });
        }
    }
}

fn space_of(word: &str) -> Option<Space> {
    let base = word.split("::").next().unwrap_or(word);
    Some(match base {
        "reg" => Space::Reg,
        "param" => Space::Param,
        "global" => Space::Global,
        "const" => Space::Const,
        "shared" => Space::Shared,
        "local" => Space::Local,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
