//! Lines of PTX, as far as damaging them needs.

/// An instruction of a line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Statement<'a> {
    /// `@%p1 ` or nothing.
    pub(super) guard: &'a str,
    pub(super) opcode: &'a str,
    pub(super) operands: &'a str,
}

/// An address operand: `[register + offset, ...]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Address<'a> {
    /// Which operand.
    pub(super) operand: usize,
    pub(super) register: &'a str,
    pub(super) offset: i64,
}

impl<'a> Statement<'a> {
    pub(super) fn of(line: &'a str) -> Option<Statement<'a>> {
        let code = line.split("//").next()?.trim();
        let code = code.strip_suffix(';')?.trim_end();
        let (guard, rest) = match code.strip_prefix('@') {
            Some(rest) => code.split_at(rest.find(char::is_whitespace)? + 2),
            None => ("", code),
        };
        let rest = rest.trim_start();
        let (opcode, operands) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let plain =
            opcode.starts_with(|c: char| c.is_ascii_lowercase()) && !opcode.contains(':') || opcode.contains("::");
        plain.then(|| Statement { guard, opcode, operands: operands.trim() })
    }

    pub(super) fn starts(&self, prefixes: &[&str]) -> bool {
        prefixes.iter().any(|prefix| self.opcode.starts_with(prefix))
    }

    /// Operands outside brackets and braces.
    pub(super) fn operands(&self) -> Vec<&'a str> {
        let mut depth = 0;
        let separates = |c: char| {
            depth += i32::from(matches!(c, '[' | '{')) - i32::from(matches!(c, ']' | '}'));
            depth == 0 && c == ','
        };
        self.operands.split(separates).map(str::trim).collect()
    }

    /// The `n`th address operand, if it is based on a register.
    pub(super) fn address(&self, n: usize) -> Option<Address<'a>> {
        let operands = self.operands();
        let mut addresses = operands.iter().enumerate().filter(|(_, operand)| operand.starts_with('['));
        let (operand, text) = addresses.nth(n)?;
        let inner = text[1..].split([',', ']']).next()?;
        let (register, offset) = inner.split_once('+').unwrap_or((inner, "0"));
        let register = register.trim();
        register.starts_with('%').then_some(())?;
        Some(Address { operand, register, offset: offset.trim().parse().ok()? })
    }

    /// The instruction with what operand `n` is made of replaced by a register of type `ty` that `prepare` sets.
    pub(super) fn with(&self, n: usize, ty: &str, prepare: impl Fn(&str) -> String) -> Option<String> {
        let mut operands = self.operands();
        let Statement { guard, opcode, .. } = self;
        let old = *operands.get(n)?;
        let (before, inner, after) = match old.strip_prefix('[') {
            Some(rest) => ("[", rest.split([',', ']', '+']).next()?.trim(), &rest[rest.find([',', ']', '+'])?..]),
            None => ("", old, ""),
        };
        let new = format!("{before}damaged{after}");
        operands[n] = &new;
        let operands = operands.join(", ");
        Some(format!("{{ .reg .{ty} damaged; {} {guard}{opcode} {operands}; }}", prepare(inner)))
    }

    /// The instruction with `more` added to its last operand, a number.
    pub(super) fn with_count(&self, more: u32) -> Option<String> {
        let Statement { guard, opcode, operands } = self;
        let (before, last) = operands.split_at(operands.rfind(char::is_whitespace).unwrap_or(0));
        let count: u32 = last.trim().parse().ok()?;
        Some(format!("{guard}{opcode} {before} {};", count + more))
    }

    /// The last coordinate of a tensor copy replaced by one far outside.
    pub(super) fn outside(&self) -> Option<String> {
        let Statement { guard, opcode, operands } = self;
        let (before, after) = operands.split_at(operands.find("}]")?);
        let (first, last) = before.rsplit_once([',', '{'])?;
        let separator = &before[first.len()..=first.len()];
        let last = last.trim();
        Some(format!(
            "{{ .reg .b32 damaged; add.s32 damaged, {last}, 1048576; {guard}{opcode} {first}{separator}damaged{after}; }}"
        ))
    }
}
