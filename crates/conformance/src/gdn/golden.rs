//! Inputs with outputs that were computed independently of any kernel.

use std::path::Path;

use bakewell::Result;

use super::inputs::OUTPUTS;
use super::{Expected, Inputs};
use crate::TensorFile;
use crate::file::load_folder;

/// A golden: inputs, and outputs and gradients computed in float64, token by token.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Name of the case.
    pub name: String,
    /// Inputs.
    pub inputs: Inputs,
    /// Outputs and gradients, rounded to f32.
    pub expected: Expected,
}

impl Golden {
    /// A golden from its file; `None` for one that holds no output.
    ///
    /// # Errors
    /// [`bakewell::Error::Argument`] for what is missing.
    pub fn from_file(name: &str, file: &TensorFile) -> Result<Option<Golden>> {
        let mut expected = Expected::new();
        for output in OUTPUTS {
            if let Some(tensor) = file.tensors.get(output) {
                expected.insert(output, tensor.to_f64()?);
            }
        }
        if expected.is_empty() {
            return Ok(None);
        }
        Ok(Some(Golden { name: name.to_owned(), inputs: Inputs::from_file(file)?, expected }))
    }

    /// Every golden of a folder, by name.
    ///
    /// # Errors
    /// [`bakewell::Error::Argument`] for a folder without any, or a file that is no golden.
    pub fn load_all(folder: &Path) -> Result<Vec<Golden>> {
        let mut goldens = Vec::new();
        for (name, file) in load_folder(folder)? {
            goldens.extend(Golden::from_file(&name, &file)?);
        }
        Ok(goldens)
    }
}
