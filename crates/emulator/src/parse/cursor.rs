//! A byte cursor over PTX text: blanks, comments, words, numbers.

use crate::error::{Error, Result};

/// Position in the text; knows its line.
pub(super) struct Cursor<'a> {
    text: &'a [u8],
    position: usize,
    pub(super) line: u32,
    /// Position and line of a comment that never ends.
    unended: Option<(usize, u32)>,
}

/// Letters that may stand in a name after the first.
pub(super) fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte == b'%' || byte >= 0x80
}

/// A numeric literal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Number {
    Integer(i128),
    Float32(u32),
    Float64(u64),
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Cursor { text: text.as_bytes(), position: 0, line: 1, unended: None }
    }

    /// An error at the current line, or about the comment that swallowed the rest of the text.
    pub(super) fn error<T>(&self, reason: impl Into<String>) -> Result<T> {
        match self.unended {
            Some((position, line)) => self.error_at(position, line, "the comment that begins here never ends"),
            None => self.error_at(self.position, self.line, reason),
        }
    }

    /// Refuses text with a NUL byte: readers of strings would end there.
    pub(super) fn refuse_nul(&self) -> Result<()> {
        let Some(position) = self.text.iter().position(|&byte| byte == 0) else {
            return Ok(());
        };
        let before = self.text[..position].iter().filter(|&&byte| byte == b'\n').count();
        self.error_at(position, before as u32 + 1, "expected text, found a NUL byte")
    }

    /// Nothing is left; an error when that is so because a comment never ends.
    pub(super) fn finish(&self) -> Result<()> {
        if self.unended.is_some() { self.error("") } else { Ok(()) }
    }

    fn error_at<T>(&self, position: usize, line: u32, reason: impl Into<String>) -> Result<T> {
        let start = self.text[..position.min(self.text.len())].iter().rposition(|&b| b == b'\n').map_or(0, |p| p + 1);
        let end = self.text[start..].iter().position(|&b| b == b'\n').map_or(self.text.len(), |p| start + p);
        let mut text = String::from_utf8_lossy(&self.text[start..end]).trim().to_string();
        if text.len() > 200 {
            text = text.chars().take(200).collect();
        }
        Err(Error::Parse { line, text, reason: reason.into() })
    }

    /// Skips blanks and comments.
    pub(super) fn skip(&mut self) {
        while let Some(&byte) = self.text.get(self.position) {
            if byte == b'\n' {
                self.line += 1;
                self.position += 1;
            } else if byte.is_ascii_whitespace() {
                self.position += 1;
            } else if self.text[self.position..].starts_with(b"//") {
                self.skip_line();
            } else if self.text[self.position..].starts_with(b"/*") {
                self.skip_comment();
            } else {
                break;
            }
        }
    }

    fn skip_comment(&mut self) {
        let (start, line) = (self.position, self.line);
        self.position += 2;
        while !self.text[self.position..].starts_with(b"*/") {
            if self.position == self.text.len() {
                self.unended = Some((start, line));
                return;
            }
            self.bump();
        }
        self.position += 2;
    }

    /// Moves to the end of the line.
    pub(super) fn skip_line(&mut self) {
        while self.position < self.text.len() && self.text[self.position] != b'\n' {
            self.position += 1;
        }
    }

    /// Moves to the end of the line of a directive; its strings must end there.
    pub(super) fn skip_directive(&mut self) -> Result<()> {
        let start = self.position;
        self.skip_line();
        let mut quoted = false;
        let mut rest = &self.text[start..self.position];
        while let [byte, behind @ ..] = rest {
            rest = match byte {
                b'\\' if quoted => behind.get(1..).unwrap_or(&[]),
                b'/' if !quoted && behind.first() == Some(&b'/') => break,
                _ => behind,
            };
            quoted ^= *byte == b'"';
        }
        if quoted { self.error("the string has no end on its line") } else { Ok(()) }
    }

    /// The next byte after blanks, not consumed.
    pub(super) fn peek(&mut self) -> Option<u8> {
        self.skip();
        self.text.get(self.position).copied()
    }

    /// The byte at `offset` from here, blanks not skipped.
    pub(super) fn raw(&self, offset: usize) -> Option<u8> {
        self.text.get(self.position + offset).copied()
    }

    /// Consumes one byte.
    pub(super) fn bump(&mut self) {
        if self.raw(0) == Some(b'\n') {
            self.line += 1;
        }
        self.position = (self.position + 1).min(self.text.len());
    }

    /// Consumes `byte` when it comes next.
    pub(super) fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        if found {
            self.position += 1;
        }
        found
    }

    /// Consumes `byte` or fails.
    pub(super) fn expect(&mut self, byte: u8) -> Result<()> {
        if self.eat(byte) {
            return Ok(());
        }
        let found = self.describe();
        self.error(format!("expected '{}', found {found}", byte as char))
    }

    /// The next byte in words.
    pub(super) fn describe(&mut self) -> String {
        match self.peek() {
            Some(byte) => format!("'{}'", byte.escape_ascii()),
            None => "the end of the text".to_string(),
        }
    }

    /// Consumes a run of name letters without skipping blanks first; may be empty.
    pub(super) fn run(&mut self) -> String {
        let start = self.position;
        while self.position < self.text.len() && is_name(self.text[self.position]) {
            self.position += 1;
        }
        String::from_utf8_lossy(&self.text[start..self.position]).into_owned()
    }

    /// A name, or an error.
    pub(super) fn name(&mut self) -> Result<String> {
        self.skip();
        let word = self.run();
        if word.is_empty() || word.as_bytes()[0].is_ascii_digit() {
            let found = self.describe();
            return self.error(format!("expected a name, found {found}{word}"));
        }
        Ok(word)
    }

    /// `.word` with its `::` parts, the dot already consumed.
    pub(super) fn dotted(&mut self) -> Result<String> {
        let mut word = self.run();
        while self.raw(0) == Some(b':') && self.raw(1) == Some(b':') {
            self.position += 2;
            word.push_str("::");
            word.push_str(&self.run());
        }
        if word.is_empty() {
            return self.error("expected a word after '.'");
        }
        Ok(word)
    }

    /// Whether a number starts here (sign included).
    pub(super) fn at_number(&mut self) -> bool {
        match self.peek() {
            Some(b) if b.is_ascii_digit() => true,
            Some(b'-' | b'+') => {
                let mut ahead = 1;
                while matches!(self.raw(ahead), Some(b' ' | b'\t')) {
                    ahead += 1;
                }
                self.raw(ahead).is_some_and(|b| b.is_ascii_digit())
            }
            _ => false,
        }
    }

    /// A signed numeric literal.
    pub(super) fn number(&mut self) -> Result<Number> {
        let negative = self.peek() == Some(b'-');
        if negative || self.raw(0) == Some(b'+') {
            self.position += 1;
        }
        self.skip();
        let mut word = self.run();
        if self.raw(0) == Some(b'.')
            && self.raw(1).is_some_and(|b| b.is_ascii_digit())
            && word.bytes().all(|b| b.is_ascii_digit())
            && !word.is_empty()
        {
            self.position += 1;
            word.push('.');
            word.push_str(&self.run());
            if word.ends_with(['e', 'E']) && matches!(self.raw(0), Some(b'-' | b'+')) {
                word.push(self.text[self.position] as char);
                self.position += 1;
                word.push_str(&self.run());
            }
            let Ok(value) = word.parse::<f64>() else {
                return self.error(format!("not a number: {word}"));
            };
            let value = if negative { -value } else { value };
            return Ok(Number::Float64(value.to_bits()));
        }
        let lower = word.to_ascii_lowercase();
        if let Some(hex) = lower.strip_prefix("0f").filter(|h| h.len() == 8) {
            let Ok(bits) = u32::from_str_radix(hex, 16) else {
                return self.error(format!("not a number: {word}"));
            };
            return Ok(Number::Float32(bits ^ if negative { 1 << 31 } else { 0 }));
        }
        if let Some(hex) = lower.strip_prefix("0d").filter(|h| h.len() == 16) {
            let Ok(bits) = u64::from_str_radix(hex, 16) else {
                return self.error(format!("not a number: {word}"));
            };
            return Ok(Number::Float64(bits ^ if negative { 1 << 63 } else { 0 }));
        }
        let digits = lower.trim_end_matches('u');
        let parsed = if let Some(hex) = digits.strip_prefix("0x") {
            u128::from_str_radix(hex, 16)
        } else if let Some(binary) = digits.strip_prefix("0b") {
            u128::from_str_radix(binary, 2)
        } else if digits.len() > 1 && digits.starts_with('0') {
            u128::from_str_radix(digits, 8)
        } else {
            digits.parse::<u128>()
        };
        match parsed {
            Ok(value) if value <= i128::MAX as u128 => {
                let value = value as i128;
                Ok(Number::Integer(if negative { -value } else { value }))
            }
            _ => self.error(format!("not a number: {word}")),
        }
    }

    /// A signed integer literal.
    pub(super) fn integer(&mut self) -> Result<i128> {
        if !self.at_number() {
            let found = self.describe();
            return self.error(format!("expected an integer, found {found}"));
        }
        match self.number()? {
            Number::Integer(value) => Ok(value),
            _ => self.error("expected an integer, found a float"),
        }
    }

    /// A `"quoted"` string with C escapes.
    pub(super) fn string(&mut self) -> Result<Vec<u8>> {
        self.expect(b'"')?;
        let mut bytes = Vec::new();
        loop {
            match self.raw(0) {
                None => return self.error("unterminated string"),
                Some(b'"') => {
                    self.bump();
                    return Ok(bytes);
                }
                Some(b'\\') => {
                    self.bump();
                    bytes.push(match self.raw(0) {
                        Some(b'n') => b'\n',
                        Some(b't') => b'\t',
                        Some(b'0') => 0,
                        Some(other) => other,
                        None => return self.error("unterminated string"),
                    });
                    self.bump();
                }
                Some(byte) => {
                    bytes.push(byte);
                    self.bump();
                }
            }
        }
    }

    /// Skips to the `}` that closes an already opened `{`.
    pub(super) fn skip_braces(&mut self) -> Result<()> {
        let mut depth = 1;
        while depth > 0 {
            match self.peek() {
                None => return self.error("expected '}', found the end of the text"),
                Some(b'{') => depth += 1,
                Some(b'}') => depth -= 1,
                _ => {}
            }
            self.bump();
        }
        Ok(())
    }
}
