//! The one table of instruction forms.
//!
//! Each family file in [`crate::exec`] holds its rows beside their semantics; this module joins them. The parser's
//! validity check, the coverage report and the documentation are derived from it.
//!
//! A row's `form` is the mnemonic followed by groups of modifiers: `word` is required, `(a|b)` requires one of them,
//! `{a|b}` allows one of them, `*` allows any others. The modifiers of an instruction match a row when every one of
//! them is taken by a group and every required group took one; modifiers go to the first free group that names them, so
//! the order of groups matters only where two groups share a word (`cvt` destination before source).

use std::collections::HashMap;
use std::sync::LazyLock;

use super::{Target, TargetWord, Words};
use crate::decode::{DecodeFn, Refusal};
use crate::parse::ast::Instruction;

/// What happens with an instruction of this form.
#[derive(Clone, Copy)]
pub enum Handler {
    /// Decoded by this function, executed by its family.
    Decode(DecodeFn),
    /// Known, not implemented.
    Missing,
    /// Never executed: its meaning is uncertain, or out of scope. The reason is told.
    Refused(&'static str),
}

/// One instruction form.
#[derive(Clone, Copy)]
pub struct Row {
    /// Mnemonic and modifier groups.
    pub form: &'static str,
    /// Operand shape: names for documentation, `{, c}` optional.
    pub operands: &'static str,
    /// Least `.version`, 80 for 8.0.
    pub ptx: u16,
    /// Targets that have it: bits of [`Target::bit`].
    pub targets: u8,
    /// Which `.target` words of theirs do.
    pub words: Words,
    /// What decodes it.
    pub handler: Handler,
    /// Section of the PTX ISA or of the project's ISA documents.
    pub section: &'static str,
}

/// Every target.
pub const ALL: u8 = 0b11111;
/// Every target with tensor memory: sm_100, 103, 107, 110.
pub const BLACKWELL: u8 = 0b11110;
/// sm_90a alone.
pub const HOPPER: u8 = 0b00001;
/// The family of sm_100: 100, 103, 107.
pub const FAMILY_100: u8 = 0b01110;

impl Row {
    /// A row available everywhere since PTX 8.0.
    pub const fn new(form: &'static str, operands: &'static str, decode: DecodeFn, section: &'static str) -> Row {
        Row { form, operands, ptx: 80, targets: ALL, words: Words::Plain, handler: Handler::Decode(decode), section }
    }

    /// The same row for `targets` only, since PTX version `ptx`.
    pub const fn on(mut self, targets: u8, ptx: u16) -> Row {
        self.targets = targets;
        self.ptx = ptx;
        self
    }

    /// The same row for `.target` words of this kind only.
    pub const fn needs(mut self, words: Words) -> Row {
        self.words = words;
        self
    }

    /// A known form without a handler.
    pub const fn missing(form: &'static str, operands: &'static str, section: &'static str) -> Row {
        Row { form, operands, ptx: 80, targets: ALL, words: Words::Plain, handler: Handler::Missing, section }
    }

    /// A form that is refused, with the reason.
    pub const fn refused(
        form: &'static str,
        operands: &'static str,
        reason: &'static str,
        section: &'static str,
    ) -> Row {
        Row { form, operands, ptx: 80, targets: ALL, words: Words::Plain, handler: Handler::Refused(reason), section }
    }

    /// Least and most operands.
    fn operand_count(&self) -> (usize, usize) {
        let count = |text: &str| {
            // Brackets group operands: commas inside them do not count.
            let mut depth = 0;
            let mut commas = 0;
            for c in text.chars() {
                match c {
                    '[' | '<' | '(' => depth += 1,
                    ']' | '>' | ')' => depth -= 1,
                    ',' if depth == 0 => commas += 1,
                    _ => {}
                }
            }
            commas
        };
        if self.operands.is_empty() {
            return (0, 0);
        }
        let required: String = {
            let mut depth = 0;
            self.operands
                .chars()
                .filter(|&c| match c {
                    '{' => {
                        depth += 1;
                        false
                    }
                    '}' => {
                        depth -= 1;
                        false
                    }
                    _ => depth == 0,
                })
                .collect()
        };
        let all: String = self.operands.chars().filter(|c| !"{}".contains(*c)).collect();
        let least = if required.trim().is_empty() { 0 } else { 1 + count(&required) };
        (least, 1 + count(&all))
    }
}

/// A group of modifiers.
struct Group {
    required: bool,
    words: Vec<&'static str>,
}

/// A row with its form taken apart.
pub struct Form {
    /// The row.
    pub row: &'static Row,
    /// First word of the form.
    pub mnemonic: &'static str,
    groups: Vec<Group>,
    /// `*`
    any: bool,
    least: usize,
    most: usize,
}

impl Form {
    fn new(row: &'static Row) -> Form {
        let mut words = row.form.split_whitespace();
        let mnemonic = words.next().unwrap_or("");
        let any = row.form.ends_with(" *");
        let groups = words
            .filter(|word| *word != "*")
            .map(|word| {
                let required = !word.starts_with('{');
                let inner = word.trim_matches(['{', '}', '(', ')']);
                Group { required, words: inner.split('|').collect() }
            })
            .collect();
        let (least, most) = row.operand_count();
        Form { row, mnemonic, groups, any, least, most }
    }

    /// Whether `modifiers` are those of this form.
    fn matches(&self, modifiers: &[String]) -> bool {
        if modifiers.len() > self.groups.len() && !self.any {
            return false;
        }
        let mut taken = vec![false; self.groups.len()];
        for modifier in modifiers {
            let free = self
                .groups
                .iter()
                .enumerate()
                .position(|(i, group)| !taken[i] && group.words.iter().any(|w| w == modifier));
            match free {
                Some(index) => taken[index] = true,
                None if self.any => {}
                None => return false,
            }
        }
        self.groups.iter().zip(&taken).all(|(group, &t)| t || !group.required)
    }
}

/// All forms by mnemonic.
pub struct Table {
    forms: HashMap<&'static str, Vec<Form>>,
}

/// The table, built on first use.
pub static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut forms: HashMap<&'static str, Vec<Form>> = HashMap::new();
    for rows in crate::exec::ROWS {
        for row in *rows {
            let form = Form::new(row);
            forms.entry(form.mnemonic).or_default().push(form);
        }
    }
    Table { forms }
});

impl Table {
    /// Every row, by mnemonic.
    pub fn rows(&self) -> Vec<&'static Row> {
        let mut names: Vec<_> = self.forms.keys().copied().collect();
        names.sort_unstable();
        names.into_iter().flat_map(|name| self.forms[name].iter().map(|form| form.row)).collect()
    }

    /// The decoder of an instruction on `target`, in a module of the `.target` word `word` and `.version` `ptx`.
    ///
    /// # Errors
    /// Says whether the mnemonic, the modifiers, the operand count, the target, its word or the handler is the reason.
    pub fn find(
        &self,
        instruction: &Instruction,
        target: Target,
        word: TargetWord,
        ptx: u16,
    ) -> Result<DecodeFn, Refusal> {
        let Some(forms) = self.forms.get(instruction.mnemonic.as_str()) else {
            return Err(Refusal::Missing(format!("no row for {} in the instruction table", instruction.mnemonic)));
        };
        let mut reason = None;
        let count = instruction.operands.len();
        for form in forms.iter().filter(|form| form.matches(&instruction.modifiers)) {
            if count < form.least || count > form.most {
                reason.get_or_insert(Refusal::Missing(format!("expected operands {}, got {count}", form.row.operands)));
            } else if form.row.targets & target.bit() == 0 {
                reason = Some(Refusal::Refused(format!("{target} does not have {}", instruction.opcode())));
            } else if let Err(refusal) =
                expect_word(word, target, (form.row.targets, form.row.words), || instruction.opcode())
            {
                reason = Some(refusal);
            } else if form.row.ptx > ptx {
                reason = Some(Refusal::Refused(format!(
                    "needs .version {}.{}, the module has {}.{}",
                    form.row.ptx / 10,
                    form.row.ptx % 10,
                    ptx / 10,
                    ptx % 10
                )));
            } else {
                return match form.row.handler {
                    Handler::Decode(decode) => Ok(decode),
                    Handler::Missing => Err(Refusal::Missing(format!("{} has no handler", form.row.form))),
                    Handler::Refused(why) => Err(Refusal::Refused(why.to_string())),
                };
            }
        }
        Err(reason.unwrap_or_else(|| {
            Refusal::Missing(format!("no row for {} in the instruction table", instruction.opcode()))
        }))
    }
}

/// Refuses what the `.target` word of a module does not have, although its device has it.
///
/// # Errors
/// Names the word that is needed.
pub fn expect_word(
    word: TargetWord,
    target: Target,
    (targets, words): (u8, Words),
    what: impl FnOnce() -> String,
) -> Result<(), Refusal> {
    if word.has(targets, words) {
        return Ok(());
    }
    Err(Refusal::Refused(match TargetWord::that_has(target, targets, words) {
        Some(needed) => format!("{} needs .target {needed}, the module has {word}", what()),
        None => format!("{target} does not have {}", what()),
    }))
}
