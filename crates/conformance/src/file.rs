//! Safetensors files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bakewell::error::Property;
use bakewell::{DType, Error, Result};
use safetensors::tensor::{Dtype as FileType, SafeTensors, TensorView as FileTensor};

use crate::HostTensor;

/// Named tensors and the scalar parameters beside them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorFile {
    /// Tensors by name.
    pub tensors: BTreeMap<String, HostTensor>,
    /// Text values by name.
    pub metadata: BTreeMap<String, String>,
}

impl TensorFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::Argument`] that says why it cannot be read.
    pub fn load(path: &Path) -> Result<TensorFile> {
        let unreadable = |error: &dyn std::fmt::Display| {
            Error::value("file", "a readable safetensors file", format!("{}: {error}", path.display()))
        };
        let bytes = fs::read(path).map_err(|error| unreadable(&error))?;
        TensorFile::parse(&bytes).map_err(|error| unreadable(&error))
    }

    /// Reads the bytes of a file.
    ///
    /// # Errors
    /// [`Error::Argument`] for bytes that are no safetensors file or hold an element type unknown here.
    pub fn parse(bytes: &[u8]) -> Result<TensorFile> {
        let malformed = |error: &dyn std::fmt::Display| Error::value("file", "the safetensors format", error);
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| malformed(&error))?;
        let content = SafeTensors::deserialize(bytes).map_err(|error| malformed(&error))?;
        let metadata = header.metadata().iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect();
        let tensors = content.iter().map(|(name, tensor)| {
            let shape = tensor.shape().iter().map(|&size| size as u64).collect();
            let dtype = from_file(tensor.dtype()).ok_or_else(|| {
                let given = format!("{:?} of tensor {name}", tensor.dtype());
                Error::argument("file", Property::DType, "an element type of Bakewell", given)
            })?;
            Ok((name.to_owned(), HostTensor { dtype, shape, bytes: tensor.data().to_vec() }))
        });
        Ok(TensorFile { tensors: tensors.collect::<Result<_>>()?, metadata })
    }

    /// Writes a file.
    ///
    /// # Errors
    /// [`Error::Argument`] that says why it cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let failed = |error: &dyn std::fmt::Display| {
            Error::value("file", "a writable path", format!("{}: {error}", path.display()))
        };
        let views = self.tensors.iter().map(|(name, tensor)| {
            let shape = tensor.shape.iter().map(|&size| size as usize).collect();
            FileTensor::new(to_file(tensor.dtype), shape, &tensor.bytes)
                .map(|view| (name.as_str(), view))
                .map_err(|error| failed(&error))
        });
        let views = views.collect::<Result<Vec<_>>>()?;
        let metadata = (!self.metadata.is_empty()).then(|| self.metadata.clone().into_iter().collect());
        let bytes = safetensors::serialize(views, metadata).map_err(|error| failed(&error))?;
        fs::write(path, bytes).map_err(|error| failed(&error))
    }

    /// A tensor that must be there.
    ///
    /// # Errors
    /// [`Error::Argument`] that names it and lists what is there.
    pub fn tensor(&self, name: &'static str) -> Result<&HostTensor> {
        self.tensors.get(name).ok_or_else(|| {
            let there: Vec<&str> = self.tensors.keys().map(String::as_str).collect();
            Error::argument(name, Property::Presence, "a tensor of this name in the file", there.join(", "))
        })
    }

    /// A number from the metadata; `None` when it is absent.
    ///
    /// # Errors
    /// [`Error::Argument`] when it does not parse.
    pub fn parameter<T: std::str::FromStr>(&self, name: &'static str) -> Result<Option<T>> {
        self.metadata
            .get(name)
            .map(|text| text.parse().map_err(|_| Error::value(name, "a number in the file's metadata", text)))
            .transpose()
    }
}

/// Every `.safetensors` file of a folder, by name.
///
/// # Errors
/// [`Error::Argument`] for a folder without any, or a file that cannot be read.
pub fn load_folder(folder: &Path) -> Result<Vec<(String, TensorFile)>> {
    let missing = |what: String| Error::value("cases", "a folder of .safetensors files", what);
    let entries = fs::read_dir(folder).map_err(|error| missing(format!("{}: {error}", folder.display())))?;
    let mut paths: Vec<_> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .collect();
    paths.sort();
    if paths.is_empty() {
        return Err(missing(format!("{} without any", folder.display())));
    }
    let load = |path: &std::path::PathBuf| {
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok((name, TensorFile::load(path)?))
    };
    paths.iter().map(load).collect()
}

fn from_file(dtype: FileType) -> Option<DType> {
    Some(match dtype {
        FileType::F16 => DType::F16,
        FileType::BF16 => DType::Bf16,
        FileType::F32 => DType::F32,
        FileType::F64 => DType::F64,
        FileType::F8_E4M3 => DType::E4m3,
        FileType::U8 => DType::U8,
        FileType::I32 => DType::I32,
        FileType::U32 => DType::U32,
        FileType::I64 => DType::I64,
        _ => return None,
    })
}

fn to_file(dtype: DType) -> FileType {
    match dtype {
        DType::F16 => FileType::F16,
        DType::Bf16 => FileType::BF16,
        DType::F32 => FileType::F32,
        DType::F64 => FileType::F64,
        DType::E4m3 => FileType::F8_E4M3,
        DType::U8 => FileType::U8,
        DType::I32 => FileType::I32,
        DType::U32 => FileType::U32,
        DType::I64 => FileType::I64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_round_trip() {
        let mut file = TensorFile::default();
        file.metadata.insert("q_scale".into(), "0.75".into());
        file.tensors.insert("lengths".into(), HostTensor::of_i32(&[2], &[7, -1]));
        file.tensors.insert("x".into(), HostTensor::rounded(DType::Bf16, &[1, 2], &[1.5, f64::NAN]).unwrap());
        let path = std::env::temp_dir().join(format!("bakewell-file-{}.safetensors", std::process::id()));
        file.save(&path).unwrap();
        let loaded = TensorFile::load(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(loaded, file);
        assert_eq!(loaded.parameter::<f32>("q_scale").unwrap(), Some(0.75));
        assert_eq!(loaded.tensor("lengths").unwrap().to_i32().unwrap(), [7, -1]);
    }

    #[test]
    fn what_is_missing_or_malformed_is_named() {
        assert!(TensorFile::load(Path::new("/nowhere.safetensors")).unwrap_err().to_string().contains("/nowhere"));
        assert!(TensorFile::parse(b"not a header").is_err());
        let mut file = TensorFile::default();
        file.metadata.insert("q_scale".into(), "fast".into());
        file.tensors.insert("x".into(), HostTensor::of_i32(&[1], &[1]));
        assert_eq!(file.tensor("kv").unwrap_err().to_string(), "kv: expected a tensor of this name in the file, got x");
        assert!(file.parameter::<f32>("q_scale").is_err());
    }
}
