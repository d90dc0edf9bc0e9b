//! `cargo xtask tidy`: rules about the text of the repository that no compiler checks.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use bakewell_core::schedule::gqa_decode::MOST_EARLY_TILES;

use crate::docs;
use crate::workspace::Workspace;

/// Most lines of what people write. A file of one subject has some 600; the widest kernel has most.
const MAX_LINES: usize = 800;

/// Most columns of a comment in Rust, as rustfmt has it for code. It leaves comments alone.
const MAX_COLUMNS: usize = 120;

/// Tables that `cargo xtask` writes, as long as they come out.
const GENERATED: [&str; 2] = ["docs/programs.md", "src/programs.rs"];

/// Words that mark unfinished work.
const MARKERS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Constants of a kernel's header that `bakewell_core` states too, and that no schedule renders: header, name, value.
const STATED_TWICE: [(&str, &str, u32); 1] = [("kernels/gqa_decode/params.cuh", "most_early_tiles", MOST_EARLY_TILES)];

/// Runs every rule and prints each finding.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut findings = Vec::new();
    let files = files(workspace)?;
    for path in &files {
        let Ok(text) = std::fs::read_to_string(workspace.root.join(path)) else { continue };
        findings.extend(file_findings(path, &text));
        if path.extension().is_some_and(|extension| extension == "md") {
            findings.extend(broken_links(workspace, path, &text));
        }
    }
    findings.extend(pages_without_entry(workspace, &files)?);
    for (path, name, value) in STATED_TWICE {
        let text = std::fs::read_to_string(workspace.root.join(path)).unwrap_or_default();
        findings.extend(differing_constant(path, &text, name, value));
    }
    for (path, expected) in docs::generated(workspace)? {
        if std::fs::read_to_string(&path).unwrap_or_default() != expected {
            findings.push(format!("{} is not current; run `cargo xtask docs`", path.display()));
        }
    }
    for finding in &findings {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} findings", findings.len());
    }
    println!("{} files tidy", files.len());
    Ok(())
}

/// Sources and documents, relative to the root.
fn files(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders: Vec<PathBuf> = ["crates", "kernels", "xtask", "tests", "docs", ".ci"].map(PathBuf::from).into();
    for entry in std::fs::read_dir(&workspace.root)? {
        let name = PathBuf::from(entry?.file_name());
        if workspace.root.join(&name).is_file() {
            files.push(name);
        }
    }
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(workspace.root.join(&folder)) else { continue };
        for entry in entries {
            let path = folder.join(entry?.file_name());
            if workspace.root.join(&path).is_dir() {
                folders.push(path);
            } else {
                files.push(path);
            }
        }
    }
    let written_by_people = |path: &PathBuf| {
        let extension = path.extension().unwrap_or_default().to_string_lossy().into_owned();
        ["rs", "cu", "cuh", "md", "toml", "sh", "py"].contains(&&*extension) || path.starts_with(".ci")
    };
    files.retain(written_by_people);
    files.sort();
    Ok(files)
}

/// A header that does not give a constant the value that it has in Rust.
fn differing_constant(path: &str, text: &str, name: &str, value: u32) -> Option<String> {
    let expected = format!("constexpr int {name} = {value};");
    (!text.lines().any(|line| line == expected))
        .then(|| format!("{path}: expected `{expected}`, as in `bakewell_core`"))
}

/// Rules that look at one file.
fn file_findings(path: &Path, text: &str) -> Vec<String> {
    let shown = path.display();
    let mut findings = Vec::new();
    let lines = text.lines().count();
    if lines > MAX_LINES && !GENERATED.iter().any(|name| path.ends_with(name)) {
        findings.push(format!("{shown}: {lines} lines; at most {MAX_LINES}"));
    }
    for (index, line) in text.lines().enumerate() {
        let marker = MARKERS.iter().find(|marker| has_word(line, marker));
        if let Some(marker) = marker {
            findings.push(format!("{shown}:{}: {marker} marks unfinished work", index + 1));
        }
    }
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("rs") => {
            if !text.starts_with("//!") {
                findings.push(format!("{shown}: the first line does not say what the module is about (`//!`)"));
            }
            findings.extend(unexplained_unsafe(path, text));
            findings.extend(wide_comments(path, text));
        }
        Some("cu" | "cuh") if !text.starts_with("//") => {
            findings.push(format!("{shown}: the first line does not say what the file is about (`//`)"));
        }
        _ => {}
    }
    findings
}

/// Comments of more columns than code has. Rows of tables, what is fenced, and links cannot be broken.
fn wide_comments(path: &Path, text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let comment = line.trim_start();
        let said = comment.trim_start_matches(['/', '!']).trim_start();
        if !comment.starts_with("//") {
            fenced = false;
            continue;
        }
        fenced ^= said.starts_with("```");
        let columns = line.chars().count();
        if columns > MAX_COLUMNS && !fenced && !said.contains('|') && !said.contains("](") && said.contains(' ') {
            let shown = path.display();
            findings.push(format!("{shown}:{}: a comment of {columns} columns; at most {MAX_COLUMNS}", index + 1));
        }
    }
    findings
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|letter: char| !letter.is_alphanumeric()).any(|part| part == word)
}

/// Every unsafe block has a SAFETY note directly above or on its line, every unsafe function a `# Safety` section.
fn unexplained_unsafe(path: &Path, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut findings = Vec::new();
    for (index, line) in lines.iter().enumerate().filter(|(_, line)| !line.starts_with("//")) {
        let comments =
            || lines[..index].iter().rev().take_while(|line| line.starts_with("//") || line.starts_with("#["));
        // A statement may begin a few lines above its unsafe block.
        let note_above = || lines[index.saturating_sub(6)..=index].iter().any(|line| line.contains("SAFETY:"));
        if (line.contains("unsafe {") || line.contains("unsafe impl")) && !line.contains('"') && !note_above() {
            findings.push(format!("{}:{}: unsafe without a SAFETY note", path.display(), index + 1));
        }
        // An implementation of a trait's unsafe method inherits the trait's documentation.
        let declares = line.starts_with("pub") && line.contains(concat!("un", "safe fn "));
        if declares && !comments().any(|line| line.contains("# Safety") || line.contains("SAFETY:")) {
            findings.push(format!("{}:{}: unsafe fn without a `# Safety` section", path.display(), index + 1));
        }
    }
    findings
}

/// Relative links of a document whose target is not there.
fn broken_links(workspace: &Workspace, path: &Path, text: &str) -> Vec<String> {
    let folder = workspace.root.join(path.parent().unwrap_or(Path::new("")));
    link_targets(text)
        .filter(|target| !target.contains("://") && !target.starts_with(['#', '<']))
        .filter(|target| !folder.join(target.split('#').next().unwrap_or_default()).exists())
        .map(|target| format!("{}: broken link to {target}", path.display()))
        .collect()
}

fn link_targets(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

/// Pages of the guide and the design notes that `docs/SUMMARY.md` does not list.
fn pages_without_entry(workspace: &Workspace, files: &[PathBuf]) -> Result<Vec<String>> {
    let summary = std::fs::read_to_string(workspace.root.join("docs/SUMMARY.md")).unwrap_or_default();
    let listed: Vec<&str> = link_targets(&summary).collect();
    let pages = files.iter().filter_map(|path| path.strip_prefix("docs").ok());
    Ok(pages
        .map(|page| page.to_string_lossy().replace('\\', "/"))
        .filter(|page| page.ends_with(".md") && page != "SUMMARY.md" && !listed.contains(&page.as_str()))
        .map(|page| format!("docs/SUMMARY.md does not list {page}"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        file_findings(Path::new(path), text)
    }

    #[test]
    fn markers_are_found_as_words_with_their_line() {
        let marker = MARKERS[0];
        assert_eq!(
            findings("a.md", &format!("fine\n// {marker}: later\n")),
            [format!("a.md:2: {marker} marks unfinished work")]
        );
        assert!(findings("a.md", &format!("{marker}S are not {}\n", marker.to_lowercase())).is_empty());
    }

    #[test]
    fn a_file_says_first_what_it_is_about() {
        assert_eq!(findings("a.rs", "use std::fmt;\n").len(), 1);
        assert_eq!(findings("a.cuh", "#pragma once\n").len(), 1);
        assert!(findings("a.rs", "//! Subject.\n").is_empty());
        assert!(findings("a.toml", "[package]\n").is_empty());
    }

    #[test]
    fn a_constant_stated_twice_has_one_value() {
        let text = "constexpr int most = 15;\n";
        assert_eq!(differing_constant("a.cuh", text, "most", 15), None);
        assert!(differing_constant("a.cuh", text, "most", 16).is_some());
        assert!(differing_constant("a.cuh", "", "most", 15).is_some());
    }

    #[test]
    fn long_files_are_refused() {
        assert!(findings("a.md", &"x\n".repeat(MAX_LINES)).is_empty());
        assert_eq!(findings("a.md", &"x\n".repeat(MAX_LINES + 1)).len(), 1);
    }

    #[test]
    fn wide_comments_are_refused_but_for_tables_and_code() {
        let long = "word ".repeat(24);
        assert!(findings("a.rs", &format!("//! {}\n", &long[..116])).is_empty());
        let wide = format!("//! A.\n    // {long}\n");
        assert_eq!(findings("a.rs", &wide), ["a.rs:2: a comment of 127 columns; at most 120"]);
        for kept in [format!("/// | {long} |"), format!("/// ```\n/// {long}\n/// ```"), "x".repeat(130)] {
            assert!(findings("a.rs", &format!("//! A.\n{kept}\n")).is_empty(), "{kept}");
        }
    }

    #[test]
    fn unsafe_needs_its_reason() {
        let block = concat!("//! A.\nfn f() {\n    un", "safe { g() }\n}\n");
        assert_eq!(findings("a.rs", block).len(), 1);
        let noted = concat!("//! A.\nfn f() {\n    // SAFETY: checked above.\n    un", "safe { g() }\n}\n");
        assert!(findings("a.rs", noted).is_empty());
        let function = concat!("//! A.\n/// Text.\npub un", "safe fn f() {}\n");
        assert_eq!(findings("a.rs", function).len(), 1);
        let documented = concat!("//! A.\n/// Text.\n///\n/// # Safety\n/// Never.\npub un", "safe fn f() {}\n");
        assert!(findings("a.rs", documented).is_empty());
    }

    #[test]
    fn relative_links_must_lead_somewhere() {
        let workspace = Workspace::here();
        let text = "[a](xtask/src/tidy.rs) [b](https://example.com/x) [c](#part) [d](nowhere.md#part)";
        let found = broken_links(&workspace, Path::new("README.md"), text);
        assert_eq!(found, ["README.md: broken link to nowhere.md#part"]);
    }
}
