//! What a compiled program needs, read from the program itself: the cubin's ELF sections, the assembler's report
//! and the opcodes of its SASS.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use bakewell_core::program::Resources;
use bakewell_core::schedule::Budgets;
use object::{Object, ObjectSection, ObjectSymbol};

use crate::render;

/// Bytes at the start of shared memory that the system keeps; the section of a kernel includes them.
const RESERVED_SHARED_BYTES: u64 = 1024;

/// SASS opcodes that say how a kernel works: matrix units, asynchronous copies, barriers, memory, special functions.
const OPCODE_FAMILIES: &[&str] = &[
    "ACQBULK",
    "ATOM",
    "BAR",
    "CCTL",
    "DMMA",
    "ERRBAR",
    "FENCE",
    "HGMMA",
    "HMMA",
    "IGMMA",
    "IMMA",
    "LDG",
    "LDL",
    "LDS",
    "LDT",
    "MEMBAR",
    "MUFU",
    "OMMA",
    "PREEXIT",
    "QGMMA",
    "QMMA",
    "RED",
    "STAS",
    "STG",
    "STL",
    "STS",
    "STT",
    "SYNCS",
    "UBLK",
    "UCGABAR",
    "USETMAXREG",
    "UTC",
    "UTMA",
    "WARPGROUP",
];

/// Resources, and the facts of a cubin that are compared with the schedule but not recorded twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Measured {
    pub(crate) resources: Resources,
    pub(crate) cubin: CubinFacts,
}

/// What the ELF sections of a cubin say about its kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CubinFacts {
    pub(crate) registers: u32,
    pub(crate) stack_bytes: u32,
    pub(crate) static_shared_bytes: u32,
    pub(crate) code_bytes: u32,
    pub(crate) parameter_bytes: u32,
    /// `__launch_bounds__`; 0 without.
    pub(crate) max_threads: u32,
    /// What the kernel says about itself, see [`render::BUDGET_SYMBOL`].
    pub(crate) budgets: Budgets,
}

/// Reads a cubin, the output of `ptxas -v` and of `cuobjdump -sass`.
pub(crate) fn measure(cubin: &[u8], entry: &str, report: &str, sass: &str) -> Result<Measured> {
    let cubin = cubin_facts(cubin, entry)?;
    let (spill_store_bytes, spill_load_bytes) = spills(report)?;
    let resources = Resources {
        registers: cubin.registers,
        stack_bytes: cubin.stack_bytes,
        spill_store_bytes,
        spill_load_bytes,
        static_shared_bytes: cubin.static_shared_bytes,
        code_bytes: cubin.code_bytes,
        opcodes: opcodes(sass),
    };
    Ok(Measured { resources, cubin })
}

/// Facts of the kernel `entry`.
pub(crate) fn cubin_facts(cubin: &[u8], entry: &str) -> Result<CubinFacts> {
    let file = object::read::elf::ElfFile64::<object::LittleEndian>::parse(cubin).context("not a cubin")?;
    let size = |name: String| file.section_by_name(&name).map(|section| section.size());
    let code = size(format!(".text.{entry}")).with_context(|| format!("the cubin has no kernel {entry}"))?;
    let symbol = file
        .symbols()
        .find(|symbol| symbol.name() == Ok(entry))
        .with_context(|| format!("the cubin has no symbol {entry}"))?
        .index();
    let shared = size(format!(".nv.shared.{entry}")).unwrap_or(0).saturating_sub(RESERVED_SHARED_BYTES);
    let mut facts = CubinFacts {
        code_bytes: code as u32,
        static_shared_bytes: shared as u32,
        budgets: reported_budgets(&file)?,
        ..CubinFacts::default()
    };
    let attributes = |name: &str| -> Result<Vec<Attribute>> {
        let section = file.section_by_name(name).with_context(|| format!("the cubin has no section {name}"))?;
        attributes(section.data()?).with_context(|| format!("section {name} is not understood"))
    };
    for attribute in attributes(".nv.info")? {
        let [of, value] = attribute.words[..] else { continue };
        if of as usize != symbol.0 {
            continue;
        }
        match attribute.id {
            Attribute::REGISTERS => facts.registers = value,
            Attribute::FRAME_BYTES | Attribute::MIN_STACK_BYTES => facts.stack_bytes = facts.stack_bytes.max(value),
            _ => {}
        }
    }
    for attribute in attributes(&format!(".nv.info.{entry}"))? {
        match (attribute.id, &attribute.words[..]) {
            (Attribute::MAX_THREADS, [x, y, z]) => facts.max_threads = x * y * z,
            (Attribute::PARAMETER_BYTES, [bytes]) => facts.parameter_bytes = *bytes,
            _ => {}
        }
    }
    Ok(facts)
}

fn reported_budgets(file: &object::read::elf::ElfFile64<'_, object::LittleEndian>) -> Result<Budgets> {
    let symbol = file
        .symbols()
        .find(|symbol| symbol.name() == Ok(render::BUDGET_SYMBOL))
        .with_context(|| format!("the cubin has no symbol {}", render::BUDGET_SYMBOL))?;
    let section = file.section_by_index(symbol.section_index().context("the budgets lie in no section")?)?;
    let bytes = section.data()?.get(symbol.address() as usize..).unwrap_or_default();
    let values: Vec<u32> = words(bytes).take(4).collect();
    let [threads, dynamic_shared_bytes, barrier_bytes, tmem_columns] = values[..] else {
        bail!("the symbol {} is not four words", render::BUDGET_SYMBOL);
    };
    Ok(Budgets { threads, dynamic_shared_bytes, barrier_bytes, tmem_columns })
}

/// A record of an `.nv.info` section: format byte, attribute byte, then a 16-bit value or the size of what follows.
struct Attribute {
    id: u8,
    words: Vec<u32>,
}

impl Attribute {
    const MAX_THREADS: u8 = 0x05;
    const FRAME_BYTES: u8 = 0x11;
    const MIN_STACK_BYTES: u8 = 0x12;
    const PARAMETER_BYTES: u8 = 0x19;
    const REGISTERS: u8 = 0x2f;
}

fn attributes(mut data: &[u8]) -> Result<Vec<Attribute>> {
    let mut found = Vec::new();
    while let [format, id, low, high, rest @ ..] = data {
        let value = u16::from_le_bytes([*low, *high]);
        let payload = if *format == 4 { usize::from(value) } else { 0 };
        if rest.len() < payload {
            bail!("an attribute of {payload} bytes does not fit");
        }
        let words = if *format == 4 { words(&rest[..payload]).collect() } else { vec![u32::from(value)] };
        found.push(Attribute { id: *id, words });
        data = &rest[payload..];
    }
    Ok(found)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// Bytes of spill stores and loads, added over the functions of a report.
fn spills(report: &str) -> Result<(u32, u32)> {
    let sum = |what: &str| -> Result<u32> {
        let mut sum = 0;
        for (before, _) in report.match_indices(what).map(|(at, _)| report.split_at(at)) {
            let number = before.trim_end().rsplit([' ', '\n']).next().unwrap_or_default();
            sum += number.parse::<u32>().with_context(|| format!("`{number} {what}` in the assembler's report"))?;
        }
        Ok(sum)
    };
    if !report.contains("bytes spill stores") {
        bail!("the assembler's report has no line on spills:\n{report}");
    }
    Ok((sum("bytes spill stores")?, sum("bytes spill loads")?))
}

/// How often each opcode of [`OPCODE_FAMILIES`] occurs, modifiers included.
fn opcodes(sass: &str) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for line in sass.lines() {
        // /*0090*/   @!P0 LDG.E R2, desc[UR6][R2.64] ;   /* encoding */
        let Some((_, text)) = line.trim_start().strip_prefix("/*").and_then(|rest| rest.split_once("*/")) else {
            continue;
        };
        let mut words = text.split_whitespace().filter(|word| !word.starts_with('@'));
        let Some(opcode) = words.next().map(|word| word.trim_end_matches(';')) else { continue };
        if OPCODE_FAMILIES.iter().any(|family| opcode.starts_with(family)) {
            *counts.entry(opcode.to_owned()).or_insert(0) += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spills_are_added_over_functions_and_a_silent_report_is_refused() {
        let report = "ptxas info    : Function properties for k\n    \
                      16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n    \
                      0 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads\n";
        assert_eq!(spills(report).unwrap(), (16, 8));
        assert!(spills("").is_err());
    }

    #[test]
    fn opcodes_are_counted_with_modifiers_and_predicates_are_skipped() {
        let sass = "        /*0000*/                   LDC R1, c[0x0][0x37c] ;   /* 0x0000df00ff017b82 */\n\
                    \t\t/* 0x000fe20000000800 */\n\
                    \t/*0090*/              @!P0 LDG.E.128 R2, desc[UR6][R2.64] ;   /* 0x06 */\n\
                    \t/*00a0*/                   LDG.E.128 R2, desc[UR6][R2.64] ;   /* 0x06 */\n\
                    \t/*00b0*/              @UP0 UBLKCP.S.G [UR4], [UR6], UR8 ;\n\
                    \t/*00c0*/                   ERRBAR;\n";
        let expected = [("ERRBAR", 1), ("LDG.E.128", 2), ("UBLKCP.S.G", 1)];
        assert_eq!(opcodes(sass), expected.map(|(name, count)| (name.to_owned(), count)).into());
    }

    #[test]
    fn attribute_records_are_walked_and_a_short_one_is_refused() {
        // REGCOUNT of symbol 11 is 13; then a 16-bit record: 16 bytes of parameters.
        let data = [0x04, 0x2f, 8, 0, 11, 0, 0, 0, 13, 0, 0, 0, 0x03, 0x19, 16, 0];
        let found = attributes(&data).unwrap();
        assert_eq!((found[0].id, &found[0].words[..]), (Attribute::REGISTERS, &[11, 13][..]));
        assert_eq!((found[1].id, &found[1].words[..]), (Attribute::PARAMETER_BYTES, &[16][..]));
        assert!(attributes(&data[..9]).is_err());
    }
}
