//! Statements and operands.

use std::collections::HashSet;

use super::ast::{Address, Guard, Instruction, Operand, Statement};
use super::cursor::{Number, is_name};
use super::{MAX_DEPTH, Parser, space_of};
use crate::error::Result;

impl Parser<'_> {
    /// Statements up to the closing brace, the opening one consumed.
    pub(super) fn block(&mut self, depth: u32) -> Result<Vec<Statement>> {
        if depth > MAX_DEPTH {
            return self.at.error(format!("expected at most {MAX_DEPTH} nested scopes"));
        }
        let mut statements = Vec::new();
        let mut names = HashSet::new();
        let mut named = 0;
        loop {
            self.expect_new(&statements[named..], &mut names)?;
            named = statements.len();
            match self.at.peek() {
                None => return self.at.error("expected '}', found the end of the text"),
                Some(b'}') => {
                    self.at.bump();
                    return Ok(statements);
                }
                Some(b'{') => {
                    self.at.bump();
                    let inner = self.block(depth + 1)?;
                    statements.push(Statement::Block(inner));
                }
                Some(b';') => self.at.bump(),
                Some(b'.') => {
                    self.at.bump();
                    self.body_directive(&mut statements)?;
                }
                Some(b'@') => {
                    self.at.bump();
                    let negated = self.at.eat(b'!');
                    let register = self.at.name()?;
                    let mnemonic = self.at.name()?;
                    let guard = Some(Guard { register, negated });
                    let instruction = self.instruction(guard, mnemonic)?;
                    statements.push(Statement::Instruction(instruction));
                }
                Some(_) => {
                    let word = self.at.name()?;
                    let label = self.at.peek() == Some(b':') && self.at.raw(1) != Some(b':');
                    if label {
                        self.at.bump();
                        self.after_label(word, &mut statements)?;
                    } else {
                        let instruction = self.instruction(None, word)?;
                        statements.push(Statement::Instruction(instruction));
                    }
                }
            }
        }
    }

    /// What statements declare must be new in their scope: labels, tables and variables share its names.
    fn expect_new(&self, statements: &[Statement], names: &mut HashSet<String>) -> Result<()> {
        for statement in statements {
            let name = match statement {
                Statement::Label(name) | Statement::BranchTargets(name, _) | Statement::CallPrototype(name) => {
                    name.clone()
                }
                Statement::Variable(variable) if variable.count.is_some() => format!("{}<", variable.name),
                Statement::Variable(variable) => variable.name.clone(),
                Statement::Instruction(_) | Statement::Block(_) => continue,
            };
            if let Some(twice) = names.replace(name) {
                return self.at.error(format!("{} is declared twice in one scope", twice.trim_end_matches('<')));
            }
        }
        Ok(())
    }

    /// A directive inside a body, the dot consumed.
    fn body_directive(&mut self, statements: &mut Vec<Statement>) -> Result<()> {
        let word = self.at.dotted()?;
        match word.as_str() {
            "loc" | "file" | "section" => self.at.skip_directive()?,
            "pragma" => self.pragma()?,
            _ => match space_of(&word) {
                Some(space) => {
                    let variables = self.variables(space, false)?;
                    self.at.expect(b';')?;
                    statements.extend(variables.into_iter().map(Statement::Variable));
                }
                None => return self.at.error(format!("expected a declaration, found .{word}")),
            },
        }
        Ok(())
    }

    /// A label, or the table that it names.
    fn after_label(&mut self, label: String, statements: &mut Vec<Statement>) -> Result<()> {
        if self.at.peek() != Some(b'.') || !self.at.raw(1).is_some_and(is_name) {
            statements.push(Statement::Label(label));
            return Ok(());
        }
        self.at.bump();
        let word = self.at.dotted()?;
        match word.as_str() {
            "branchtargets" => {
                let mut targets = Vec::new();
                loop {
                    targets.push(self.at.name()?);
                    if !self.at.eat(b',') {
                        break;
                    }
                }
                self.at.expect(b';')?;
                statements.push(Statement::BranchTargets(label, targets));
            }
            "callprototype" | "calltargets" => {
                while self.at.peek().is_some() && !self.at.eat(b';') {
                    self.at.bump();
                }
                statements.push(Statement::CallPrototype(label));
            }
            _ => {
                statements.push(Statement::Label(label));
                match space_of(&word) {
                    Some(space) => {
                        let variables = self.variables(space, false)?;
                        self.at.expect(b';')?;
                        statements.extend(variables.into_iter().map(Statement::Variable));
                    }
                    None if matches!(word.as_str(), "loc" | "file" | "section") => self.at.skip_directive()?,
                    None if word == "pragma" => self.pragma()?,
                    None => return self.at.error(format!("expected a statement, found .{word}")),
                }
            }
        }
        Ok(())
    }

    fn instruction(&mut self, guard: Option<Guard>, mnemonic: String) -> Result<Instruction> {
        let line = self.at.line;
        let mut modifiers = Vec::new();
        while self.at.raw(0) == Some(b'.') {
            self.at.bump();
            modifiers.push(self.at.dotted()?);
        }
        // `foo::bar` in the mnemonic does not occur; `a::b` belongs to modifiers.
        let mut operands = Vec::new();
        if !self.at.eat(b';') {
            loop {
                operands.push(self.operand(0)?);
                if self.at.eat(b',') {
                    continue;
                }
                self.at.expect(b';')?;
                break;
            }
        }
        Ok(Instruction { guard, mnemonic, modifiers, operands, line })
    }

    fn operand(&mut self, depth: u32) -> Result<Operand> {
        if depth > 8 {
            return self.at.error("expected fewer nested operands");
        }
        let first = self.simple_operand(depth)?;
        if self.at.eat(b'|') {
            let second = self.simple_operand(depth)?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    fn simple_operand(&mut self, depth: u32) -> Result<Operand> {
        match self.at.peek() {
            Some(b'{') => {
                self.at.bump();
                Ok(Operand::Vector(self.list(b'}', depth)?))
            }
            Some(b'(') => {
                self.at.bump();
                Ok(Operand::List(self.list(b')', depth)?))
            }
            Some(b'[') => {
                self.at.bump();
                self.address(depth)
            }
            Some(b'!') => {
                self.at.bump();
                Ok(Operand::Not(self.at.name()?))
            }
            Some(b'-') if !self.at.at_number() => {
                self.at.bump();
                Ok(Operand::Negated(self.at.name()?))
            }
            _ if self.at.at_number() => self.literal(),
            _ => {
                let mut name = self.at.name()?;
                if name == "_" {
                    return Ok(Operand::Sink);
                }
                while self.at.raw(0) == Some(b'.') && self.at.raw(1).is_some_and(is_name) {
                    self.at.bump();
                    name.push('.');
                    name.push_str(&self.at.run());
                }
                if matches!(self.at.peek(), Some(b'+' | b'-')) {
                    let offset = self.offset()?;
                    return Ok(Operand::SymbolOffset(name, offset));
                }
                Ok(Operand::Name(name))
            }
        }
    }

    /// A literal, or a sum of integer literals.
    fn literal(&mut self) -> Result<Operand> {
        match self.at.number()? {
            Number::Integer(value) => {
                let extra = self.offset()?;
                Ok(Operand::Integer(value.wrapping_add(extra.into())))
            }
            Number::Float32(bits) => Ok(Operand::Float32(bits)),
            Number::Float64(bits) => Ok(Operand::Float64(bits)),
        }
    }

    fn list(&mut self, close: u8, depth: u32) -> Result<Vec<Operand>> {
        let mut items = Vec::new();
        while !self.at.eat(close) {
            items.push(self.operand(depth + 1)?);
            if !self.at.eat(b',') {
                self.at.expect(close)?;
                break;
            }
        }
        Ok(items)
    }

    /// A memory operand after `[`.
    fn address(&mut self, depth: u32) -> Result<Operand> {
        let mut address = Address { base: None, offset: 0, rest: Vec::new() };
        if self.at.at_number() {
            address.offset = self.at.integer()? as i64;
        } else {
            let mut name = self.at.name()?;
            while self.at.raw(0) == Some(b'.') && self.at.raw(1).is_some_and(is_name) {
                self.at.bump();
                name.push('.');
                name.push_str(&self.at.run());
            }
            address.base = Some(name);
            address.offset = self.offset()?;
        }
        while self.at.eat(b',') {
            address.rest.push(self.operand(depth + 1)?);
        }
        self.at.expect(b']')?;
        // `[a].unified`: a promise about the address that nothing here depends on.
        if self.at.peek() == Some(b'.') {
            self.at.bump();
            let word = self.at.dotted()?;
            if word != "unified" {
                return self.at.error(format!("expected .unified behind the address, found .{word}"));
            }
        }
        Ok(Operand::Address(address))
    }
}
