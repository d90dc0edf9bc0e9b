//! Inputs with an output that was computed independently of any kernel.

use std::path::Path;

use bakewell::Result;

use super::{Expected, Inputs};
use crate::TensorFile;
use crate::file::load_folder;

/// A golden: inputs and the outputs computed in float64, independently of any kernel.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Name of the case.
    pub name: String,
    /// Inputs.
    pub inputs: Inputs,
    /// Outputs.
    pub expected: Expected,
}

impl Golden {
    /// A golden from its file; `None` for one that is about dequantisation only.
    ///
    /// # Errors
    /// [`bakewell::Error::Argument`] for what is missing.
    pub fn from_file(name: &str, file: &TensorFile) -> Result<Option<Golden>> {
        if !file.tensors.contains_key("out_f64") {
            return Ok(None);
        }
        let expected = Expected {
            exact: file.tensor("out_f64")?.to_f64()?,
            model: file.tensor("out_model_e4m3")?.bytes.clone(),
            lse: file.tensor("lse")?.to_f64()?,
        };
        Ok(Some(Golden { name: name.to_owned(), inputs: Inputs::from_file(file)?, expected }))
    }

    /// Every golden of a folder with attention in it, by name.
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
