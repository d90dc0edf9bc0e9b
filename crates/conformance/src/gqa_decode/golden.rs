//! Inputs with an output that was computed independently of any kernel.

use std::path::{Path, PathBuf};

use bakewell::{Error, Result};

use super::{Expected, Inputs};
use crate::TensorFile;

/// A golden: inputs and the output computed in float64, independently of any kernel.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Name of the case.
    pub name: String,
    /// Inputs.
    pub inputs: Inputs,
    /// Output.
    pub expected: Expected,
}

impl Golden {
    /// A golden from its file.
    ///
    /// # Errors
    /// [`Error::Argument`] for what is missing.
    pub fn from_file(name: &str, file: &TensorFile) -> Result<Golden> {
        let inputs = Inputs::from_file(file)?;
        let expected = Expected { out: file.tensor("out_f32")?.to_f64()?, lse: None };
        Ok(Golden { name: name.to_owned(), inputs, expected })
    }

    /// Every `.safetensors` file of a folder, by name.
    ///
    /// # Errors
    /// [`Error::Argument`] for a folder without any, or a file that is no golden.
    pub fn load_all(folder: &Path) -> Result<Vec<Golden>> {
        let missing = |what: String| Error::value("cases", "a folder of .safetensors files", what);
        let entries = std::fs::read_dir(folder).map_err(|error| missing(format!("{}: {error}", folder.display())))?;
        let mut paths: Vec<PathBuf> = entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
            .collect();
        paths.sort();
        if paths.is_empty() {
            return Err(missing(format!("{} without any", folder.display())));
        }
        let load = |path: PathBuf| {
            let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            Golden::from_file(&name, &TensorFile::load(&path)?)
        };
        paths.into_iter().map(load).collect()
    }
}
