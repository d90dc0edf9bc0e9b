//! The closure of a program: every file of ours that its bytes depend on, hashed.
//!
//! The same walk serves the build (is a program up to date?) and the check (were the shipped bytes made from
//! these sources?), and needs no compiler. Headers of the pinned toolchain are covered by its versions.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use bakewell_core::program::Sha256Hex;

use crate::render;
use crate::workspace::{Unit, Workspace};
use crate::{compile, toolchain};

/// Digest of every source, and one digest over all that decides the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Closure {
    /// By path from the workspace root; rendered files by their name.
    pub(crate) sources: BTreeMap<String, Sha256Hex>,
    /// Over flags, toolchain versions and the digests above.
    pub(crate) digest: Sha256Hex,
}

/// The closure of a unit.
pub(crate) fn closure(workspace: &Workspace, unit: &Unit) -> Result<Closure> {
    let mut walk = Walk { workspace, rendered: render::files(unit), sources: BTreeMap::new() };
    walk.visit_rendered(render::TRANSLATION_UNIT)?;
    let sources = walk.sources;

    let mut text = String::new();
    for flag in compile::flags(unit) {
        text += &format!("flag {flag}\n");
    }
    for (package, version) in toolchain::versions() {
        text += &format!("package {package} {version}\n");
    }
    for (path, digest) in &sources {
        text += &format!("source {path} {digest}\n");
    }
    Ok(Closure { sources, digest: Sha256Hex::of(text.as_bytes()) })
}

struct Walk<'w> {
    workspace: &'w Workspace,
    rendered: [(&'static str, String); 2],
    sources: BTreeMap<String, Sha256Hex>,
}

impl Walk<'_> {
    fn visit_rendered(&mut self, name: &str) -> Result<bool> {
        let Some((_, text)) = self.rendered.iter().find(|(file, _)| *file == name).cloned() else {
            return Ok(false);
        };
        if self.sources.insert(name.to_owned(), Sha256Hex::of(text.as_bytes())).is_none() {
            self.follow(&text, None)?;
        }
        Ok(true)
    }

    /// `path` is relative to the workspace root.
    fn visit(&mut self, path: &Path) -> Result<()> {
        let name = path.to_string_lossy().replace('\\', "/");
        if self.sources.contains_key(&name) {
            return Ok(());
        }
        let bytes = std::fs::read(self.workspace.root.join(path)).with_context(|| format!("cannot read {name}"))?;
        self.sources.insert(name, Sha256Hex::of(&bytes));
        self.follow(&String::from_utf8_lossy(&bytes), path.parent())
    }

    /// Follows quoted includes in the compiler's order: beside the file, then `-I` folders.
    fn follow(&mut self, text: &str, folder: Option<&Path>) -> Result<()> {
        for included in quoted_includes(text) {
            let beside = folder.map(|folder| normalise(&folder.join(included)));
            let below_kernels = normalise(&Path::new("kernels").join(included));
            let candidates = beside.into_iter().chain([below_kernels]);
            if let Some(path) = candidates.into_iter().find(|path| self.workspace.root.join(path).is_file()) {
                self.visit(&path)?;
            } else if !self.visit_rendered(included)? {
                bail!("#include \"{included}\" is found neither beside its file, below kernels/, nor rendered");
            }
        }
        Ok(())
    }
}

/// The names in `#include "..."` lines. A conditional include counts always: a closure may be too large, never too
/// small.
fn quoted_includes(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix('#')?.trim_start().strip_prefix("include")?;
        rest.trim_start().strip_prefix('"')?.split_once('"').map(|(name, _)| name)
    })
}

/// Resolves `.` and `..` by the path's text.
pub(crate) fn normalise(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                parts.pop();
            }
            other => parts.push(other),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_includes_are_found_in_every_spelling_and_system_headers_are_not() {
        let text = "#include \"a.cuh\"\n  #  include \"device/b.cuh\" // why\n#include <cuda/ptx>\n// #include \"c\"\n";
        assert_eq!(quoted_includes(text).collect::<Vec<_>>(), ["a.cuh", "device/b.cuh"]);
    }

    #[test]
    fn parent_folders_are_resolved() {
        assert_eq!(normalise(Path::new("kernels/gdn/../device/./ring.cuh")), Path::new("kernels/device/ring.cuh"));
    }
}
