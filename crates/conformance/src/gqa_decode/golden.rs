//! Inputs with an output that was computed independently of any kernel.

use std::path::Path;

use bakewell::Result;

use super::{Expected, Inputs};
use crate::TensorFile;
use crate::file::load_folder;

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
    /// [`bakewell::Error::Argument`] for what is missing.
    pub fn from_file(name: &str, file: &TensorFile) -> Result<Golden> {
        let inputs = Inputs::from_file(file)?;
        let expected = Expected { out: file.tensor("out_f32")?.to_f64()?, lse: None };
        Ok(Golden { name: name.to_owned(), inputs, expected })
    }

    /// Every `.safetensors` file of a folder, by name.
    ///
    /// # Errors
    /// [`bakewell::Error::Argument`] for a folder without any, or a file that is no golden.
    pub fn load_all(folder: &Path) -> Result<Vec<Golden>> {
        let files = load_folder(folder)?;
        files.iter().map(|(name, file)| Golden::from_file(name, file)).collect()
    }
}
