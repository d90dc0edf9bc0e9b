//! Renders a schedule as C++: `schedule.cuh`, and the translation unit `program.cu` that asserts the parameter layout.

use std::fmt::Write;

use bakewell_core::params::{ParamKind, ParamLayout};
use bakewell_core::schedule::{Fact, FactValue};

use crate::workspace::Unit;

/// Name of the rendered schedule; kernels include it by this name.
pub(crate) const SCHEDULE_HEADER: &str = "schedule.cuh";
/// Name of the rendered translation unit.
pub(crate) const TRANSLATION_UNIT: &str = "program.cu";

/// The rendered files of a unit by name.
pub(crate) fn files(unit: &Unit) -> [(&'static str, String); 2] {
    [(SCHEDULE_HEADER, schedule(unit)), (TRANSLATION_UNIT, translation_unit(unit))]
}

/// `struct Schedule`: the facts, then the budgets that are not facts already.
fn schedule(unit: &Unit) -> String {
    let budgets = &unit.budgets;
    let derived = [
        ("threads", budgets.threads),
        ("dynamic_shared_bytes", budgets.dynamic_shared_bytes),
        ("barrier_bytes", budgets.barrier_bytes),
        ("tmem_columns", budgets.tmem_columns),
    ];
    let derived = derived
        .into_iter()
        .filter(|(name, _)| unit.facts.iter().all(|fact| fact.name != *name))
        .map(|(name, value)| Fact::int(name, value));

    let mut text = format!(
        "// Rendered by `cargo xtask build` from the schedule {}. Never edited.\n\
         #pragma once\n\n\
         #include \"device/schedule_types.cuh\"\n\n\
         namespace bakewell {{\n\n\
         struct Schedule {{\n",
        unit.name()
    );
    for fact in unit.facts.iter().cloned().chain(derived) {
        let (kind, value) = match fact.value {
            FactValue::Int(value) => ("int", value.to_string()),
            FactValue::Bool(value) => ("bool", value.to_string()),
            FactValue::Enum(kind, value) => (kind, format!("{kind}::{value}")),
        };
        let _ = writeln!(text, "    static constexpr {kind} {} = {value};", fact.name);
    }
    text.push_str("};\n\n} // namespace bakewell\n");
    text
}

/// Symbol in the compiled program: what the kernel itself says about its budgets, four 32-bit words.
pub(crate) const BUDGET_SYMBOL: &str = "bakewell_budgets";

/// The kernel, the asserts that its `Params` is the block the host writes, and its own account of its budgets.
fn translation_unit(unit: &Unit) -> String {
    format!(
        "// Rendered by `cargo xtask build`. Never edited.\n\
         #include \"schedule.cuh\"\n\n\
         #include \"{}\"\n\n\
         #include <cstddef>\n\
         #include <cstdint>\n\n\
         {}\n{}",
        unit.source,
        parameter_asserts(&unit.params),
        budget_report()
    )
}

/// Sizes as the kernel's own types give them, for `cargo xtask check` to compare with the schedule's.
///
/// `SharedMap` is the whole dynamic shared memory; a map with barriers has a member constant `barrier_bytes`, a kernel
/// with tensor memory a `TmemMap` with `columns`, which it inherits into its `SharedMap` as `tmem_columns`.
fn budget_report() -> String {
    format!(
        "template <class Map> constexpr uint32_t bakewell_barrier_bytes() {{\n    \
             if constexpr (requires {{ Map::barrier_bytes; }}) {{\n        return Map::barrier_bytes;\n    }}\n    \
             return 0;\n}}\n\
         template <class Map> constexpr uint32_t bakewell_tmem_columns() {{\n    \
             if constexpr (requires {{ Map::tmem_columns; }}) {{\n        return Map::tmem_columns;\n    }}\n    \
             return 0;\n}}\n\
         extern \"C\" __device__ const uint32_t {BUDGET_SYMBOL}[] = {{\n    \
             bakewell::Schedule::threads,\n    \
             sizeof(bakewell::SharedMap),\n    \
             bakewell_barrier_bytes<bakewell::SharedMap>(),\n    \
             bakewell_tmem_columns<bakewell::SharedMap>(),\n}};\n"
    )
}

fn parameter_asserts(layout: &ParamLayout) -> String {
    let mut text = String::new();
    for (index, field) in layout.fields.iter().enumerate() {
        let offset = layout.offset(index);
        let name = field.name;
        let _ = writeln!(text, "static_assert(offsetof(bakewell::Params, {name}) == {offset});");
        let _ = writeln!(text, "static_assert(sizeof(bakewell::Params::{name}) == {});", field.kind.bytes());
        if let Some(kind) = cpp_type(field.kind) {
            let _ = writeln!(text, "static_assert(bakewell_same<decltype(bakewell::Params::{name}), {kind}>);");
        }
    }
    let _ = writeln!(text, "static_assert(sizeof(bakewell::Params) == {});", layout.size());
    let _ = writeln!(text, "static_assert(alignof(bakewell::Params) == {});", layout.align());
    let same = "template <class A, class B> inline constexpr bool bakewell_same = false;\n\
                template <class A> inline constexpr bool bakewell_same<A, A> = true;\n\n";
    format!("{same}{text}")
}

/// The one C++ type of a scalar kind; a pointer may point to anything.
fn cpp_type(kind: ParamKind) -> Option<&'static str> {
    match kind {
        ParamKind::U64 => Some("uint64_t"),
        ParamKind::U32 => Some("uint32_t"),
        ParamKind::I32 => Some("int32_t"),
        ParamKind::F32 => Some("float"),
        ParamKind::Pointer | ParamKind::TensorMap => None,
    }
}

#[cfg(test)]
mod tests {
    use bakewell_core::params::ParamField;
    use bakewell_core::schedule::Budgets;
    use bakewell_core::{Arch, Operation};

    use super::*;

    fn unit() -> Unit {
        Unit {
            arch: Arch::Sm103,
            operation: Operation::GqaDecode,
            variant: "long_s6".into(),
            source: "gqa_decode/long.cu",
            entry: "gqa_decode_long",
            facts: vec![Fact::choice("element", "Element", "bf16"), Fact::int("threads", 384), Fact::bool("pdl", true)],
            budgets: Budgets { threads: 384, dynamic_shared_bytes: 4096, barrier_bytes: 96, tmem_columns: 0 },
            params: ParamLayout {
                fields: &[
                    ParamField { name: "q", kind: ParamKind::Pointer },
                    ParamField { name: "splits", kind: ParamKind::U32 },
                ],
            },
            required_opcodes: &[],
        }
    }

    #[test]
    fn a_schedule_renders_facts_then_budgets_without_repeating_one() {
        insta::assert_snapshot!(schedule(&unit()));
    }

    #[test]
    fn the_translation_unit_asserts_every_offset_size_and_scalar_type() {
        insta::assert_snapshot!(translation_unit(&unit()));
    }
}
