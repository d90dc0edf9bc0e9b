//! `cargo xtask docs`: the generated parts of the documentation.
//!
//! The README's support table and `docs/programs.md` are functions of manifests and evidence; `tidy` compares.

use std::path::PathBuf;

use anyhow::{Context, Result};
use bakewell_core::Operation;
use bakewell_core::program::{Evidence, file_stem};

use crate::artifacts;
use crate::support::{self, Shipped};
use crate::workspace::Workspace;

const BEGIN: &str = "<!-- support table, written by `cargo xtask docs` -->\n";
const END: &str = "<!-- end of the support table -->\n";

/// Writes every generated part.
pub(crate) fn write(workspace: &Workspace) -> Result<()> {
    for (path, text) in generated(workspace)? {
        artifacts::write_if_changed(&path, text.as_bytes())?;
    }
    Ok(())
}

/// Files that have generated parts, as they should be.
pub(crate) fn generated(workspace: &Workspace) -> Result<Vec<(PathBuf, String)>> {
    let shipped = support::shipped(workspace)?;
    let readme = workspace.root.join("README.md");
    let text = std::fs::read_to_string(&readme).context("cannot read README.md")?;
    let text = replace_table(&text, &support_table(&shipped)).context("README.md has no support table markers")?;
    Ok(vec![(readme, text), (workspace.root.join("docs/programs.md"), programs_page(&shipped))])
}

fn replace_table(text: &str, table: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{table}{END}{after}"))
}

/// A row per operation and architecture: how many programs, and how many of them are proven how far.
fn support_table(shipped: &[Shipped]) -> String {
    let mut text = String::from("| operation | architecture | programs | evidence |\n|---|---|---|---|\n");
    for operation in Operation::ALL {
        for shipped in shipped {
            let evidence: Vec<Evidence> =
                shipped.programs(operation).map(|program| shipped.evidence(program)).collect();
            if !evidence.is_empty() {
                let arch = shipped.manifest.arch;
                text += &format!("| `{operation}` | {arch} | {} | {} |\n", evidence.len(), counted(&evidence));
            }
        }
    }
    text
}

/// `20 run on NVIDIA H200, 4 compiled only`, best first.
fn counted(evidence: &[Evidence]) -> String {
    let mut kinds = evidence.to_vec();
    kinds.sort();
    kinds.dedup();
    let count = |kind: &Evidence| evidence.iter().filter(|other| *other == kind).count();
    kinds.iter().rev().map(|kind| format!("{} {kind}", count(kind))).collect::<Vec<_>>().join("; ")
}

fn programs_page(shipped: &[Shipped]) -> String {
    let mut text = String::from(
        "# Programs\n\n\
         Written by `cargo xtask docs` from the manifests. Sizes in bytes. A program is a PTX text and the cubin \
         assembled from exactly that text; the digest is that of the cubin.\n",
    );
    for shipped in shipped {
        text += &format!(
            "\n## {}\n\n\
             | program | registers | dynamic shared | barriers | tensor-memory columns | code | cubin | evidence |\n\
             |---|---|---|---|---|---|---|---|\n",
            shipped.manifest.arch
        );
        for program in &shipped.manifest.programs {
            let (budgets, resources) = (&program.budgets, &program.resources);
            text += &format!(
                "| `{}` | {} | {} | {} | {} | {} | `{}` | {} |\n",
                file_stem(program.operation, &program.variant),
                resources.registers,
                budgets.dynamic_shared_bytes,
                budgets.barrier_bytes,
                budgets.tmem_columns,
                resources.code_bytes,
                program.cubin.sha256.short(),
                shipped.evidence(program),
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_is_counted_best_first() {
        let hardware = || Evidence::Hardware { device: "NVIDIA H200".into(), driver: "580".into(), date: "d".into() };
        let evidence = [Evidence::CompiledOnly, hardware(), Evidence::Emulator { seeds: 4 }, hardware()];
        assert_eq!(
            counted(&evidence),
            "2 run on NVIDIA H200 (driver 580, d); 1 run on the emulator (4 seeds); 1 compiled only"
        );
    }

    #[test]
    fn only_the_text_between_the_markers_is_replaced() {
        let text = format!("before\n{BEGIN}old\n{END}after\n");
        assert_eq!(replace_table(&text, "new\n").unwrap(), format!("before\n{BEGIN}new\n{END}after\n"));
        assert!(replace_table("no markers", "new\n").is_none());
    }
}
