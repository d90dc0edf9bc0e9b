//! Goldens: inputs, every intermediate, and outputs, computed independently of any kernel.

use std::path::Path;

use bakewell::error::Property;
use bakewell::schedule::nvfp4_pre_attention::OutputFormat;
use bakewell::{Error, Result};

use crate::file::load_folder;
use crate::{HostTensor, TensorFile};

/// A golden. Its tensors carry the names of the operation's arguments; intermediates have names of their own:
/// `norm_rstd`, `norm_bf16`, `adaln_bf16`, `alpha`, `qkv_bf16`, `qk_rstd`, `q_bf16`, `k_bf16`, and scales without
/// padding `activation_sf_linear`, `out_sf_linear`.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Name of the case.
    pub name: String,
    /// Tensors and scalar parameters.
    pub file: TensorFile,
}

impl Golden {
    /// Every golden of a folder, by name.
    ///
    /// # Errors
    /// [`Error::Argument`] for a folder without any.
    pub fn load_all(folder: &Path) -> Result<Vec<Golden>> {
        Ok(load_folder(folder)?.into_iter().map(|(name, file)| Golden { name, file }).collect())
    }

    /// A tensor that must be there.
    ///
    /// # Errors
    /// [`Error::Argument`] that names it.
    pub fn tensor(&self, name: &'static str) -> Result<&HostTensor> {
        self.file.tensor(name)
    }

    /// The output that it has.
    pub fn output(&self) -> OutputFormat {
        let e4m3 = self.file.metadata.get("out_format").is_some_and(|format| format == OutputFormat::E4m3.name());
        if e4m3 { OutputFormat::E4m3 } else { OutputFormat::Nvfp4 }
    }

    /// A number of the metadata that must be there: `P`, `heads`, `rope_dim`, `eps`.
    ///
    /// # Errors
    /// [`Error::Argument`] that names it.
    pub fn parameter<T: std::str::FromStr<Err: std::fmt::Display>>(&self, name: &'static str) -> Result<T> {
        let missing = || Error::argument(name, Property::Presence, "a number in the file's metadata", "none");
        self.file.parameter(name)?.ok_or_else(missing)
    }
}
