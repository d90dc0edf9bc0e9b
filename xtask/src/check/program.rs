//! Is one compiled program fit to ship: resources, budgets, opcodes, parameters, and the text of its PTX.

use bakewell_core::program::ProgramRecord;
use bakewell_core::schedule::Budgets;

use super::addresses;
use crate::resources::CubinFacts;
use crate::workspace::Unit;

/// Everything that is wrong with a program, given its schedule, its record, and what its own bytes say.
pub(crate) fn findings(unit: &Unit, record: &ProgramRecord, cubin: &CubinFacts, ptx: &str) -> Vec<String> {
    [
        no_local_memory(record),
        recorded_resources(record, cubin),
        budgets(unit, record, cubin),
        shared_memory(unit, cubin),
        opcodes(unit, record),
        parameters(unit, record, cubin, ptx),
        text(unit, ptx),
        addresses::findings(ptx),
    ]
    .concat()
}

/// No spills and no stack frame: the kernels hold everything in registers by design.
pub(crate) fn no_local_memory(record: &ProgramRecord) -> Vec<String> {
    let resources = &record.resources;
    let sizes = [
        ("stack frame", resources.stack_bytes),
        ("spill stores", resources.spill_store_bytes),
        ("spill loads", resources.spill_load_bytes),
    ];
    let mut found: Vec<String> = sizes
        .into_iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(what, bytes)| format!("{bytes} bytes of {what}; none are allowed"))
        .collect();
    for (opcode, count) in &resources.opcodes {
        if opcode.starts_with("LDL") || opcode.starts_with("STL") {
            found.push(format!("{count} {opcode}: local memory is not allowed"));
        }
    }
    found
}

/// The manifest repeats what the cubin says.
pub(crate) fn recorded_resources(record: &ProgramRecord, cubin: &CubinFacts) -> Vec<String> {
    let resources = &record.resources;
    [
        ("registers", resources.registers, cubin.registers),
        ("stack_bytes", resources.stack_bytes, cubin.stack_bytes),
        ("static_shared_bytes", resources.static_shared_bytes, cubin.static_shared_bytes),
        ("code_bytes", resources.code_bytes, cubin.code_bytes),
    ]
    .into_iter()
    .filter(|(_, recorded, compiled)| recorded != compiled)
    .map(|(name, recorded, compiled)| format!("{name}: the manifest says {recorded}, the cubin {compiled}"))
    .collect()
}

/// Budgets computed from the schedule, recorded in the manifest and reported by the program are the same.
pub(crate) fn budgets(unit: &Unit, record: &ProgramRecord, cubin: &CubinFacts) -> Vec<String> {
    let rows = |budgets: &Budgets| {
        [
            ("threads", budgets.threads),
            ("dynamic_shared_bytes", budgets.dynamic_shared_bytes),
            ("barrier_bytes", budgets.barrier_bytes),
            ("tmem_columns", budgets.tmem_columns),
        ]
    };
    let scheduled = rows(&unit.budgets);
    let mut found = Vec::new();
    for (who, others) in [("manifest", rows(&record.budgets)), ("compiled program", rows(&cubin.budgets))] {
        for ((name, scheduled), (_, other)) in scheduled.iter().zip(others) {
            if *scheduled != other {
                found.push(format!("budget {name}: the schedule gives {scheduled}, the {who} {other}"));
            }
        }
    }
    if cubin.max_threads != unit.budgets.threads {
        found.push(format!(
            "launch bounds: the schedule gives {} threads, the cubin {}",
            unit.budgets.threads, cubin.max_threads
        ));
    }
    found
}

/// Static and dynamic shared memory fit a CTA of the architecture.
pub(crate) fn shared_memory(unit: &Unit, cubin: &CubinFacts) -> Vec<String> {
    let limit = unit.arch.limits().shared_bytes_per_cta;
    let total = unit.budgets.dynamic_shared_bytes + cubin.static_shared_bytes;
    let too_much = format!("{total} bytes of shared memory; a CTA of {} has {limit}", unit.arch);
    (total > limit).then_some(too_much).into_iter().collect()
}

/// Every required opcode occurs in the SASS.
pub(crate) fn opcodes(unit: &Unit, record: &ProgramRecord) -> Vec<String> {
    let present = |required: &str| record.resources.opcodes.keys().any(|opcode| opcode.starts_with(required));
    unit.required_opcodes
        .iter()
        .filter(|required| !present(required))
        .map(|required| format!("the SASS has no {required}, which the schedule requires"))
        .collect()
}

/// The parameter block of the host is that of the program.
pub(crate) fn parameters(unit: &Unit, record: &ProgramRecord, cubin: &CubinFacts, ptx: &str) -> Vec<String> {
    let mut found = Vec::new();
    let abi = unit.params.abi_hash();
    if record.abi != abi {
        found.push(format!(
            "parameter layout: the host's has hash {}, the program was built for {}",
            abi.short(),
            record.abi.short()
        ));
    }
    // The program counts from the start of its constant bank, where a block may wait for its alignment.
    let padding = cubin.parameter_bytes.wrapping_sub(unit.params.size());
    if padding >= unit.params.align() {
        found.push(format!(
            "parameter block: the host writes {} bytes, the program takes {}",
            unit.params.size(),
            cubin.parameter_bytes
        ));
    }
    if record.entry != unit.entry || !ptx.contains(&format!(".visible .entry {}(", unit.entry)) {
        found.push(format!("the PTX has no entry {}, which the schedule names", unit.entry));
    }
    found
}

/// What must not stand in the PTX.
pub(crate) fn text(unit: &Unit, ptx: &str) -> Vec<String> {
    let mut found = Vec::new();
    let target = format!(".target {}", unit.arch.target());
    if !ptx.lines().any(|line| line.trim_end() == target) {
        found.push(format!("the PTX has no line `{target}`"));
    }
    let forbidden = [
        ("%smid", "results must not depend on the multiprocessor"),
        (".file", "source locations differ between machines"),
        (
            "_INTERNAL_",
            "names of internal linkage contain a hash of this machine's path; give the variable external linkage",
        ),
    ];
    for (word, reason) in forbidden {
        if let Some((index, line)) = ptx.lines().enumerate().find(|(_, line)| line.contains(word)) {
            found.push(format!("`{word}` in line {} of the PTX (`{}`): {reason}", index + 1, line.trim()));
        }
    }
    found
}
