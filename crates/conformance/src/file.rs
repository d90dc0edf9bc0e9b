//! Safetensors files.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use bakewell::error::Property;
use bakewell::{DType, Error, Result};
use safetensors::tensor::{Dtype as FileType, SafeTensors, TensorView as FileTensor};
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};

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
    /// Reads a file that some argument names.
    ///
    /// # Errors
    /// [`Error::Argument`] that says why it cannot be read.
    pub fn load(argument: &'static str, path: &Path) -> Result<TensorFile> {
        let unreadable = |error: String| {
            Error::value(argument, "a readable safetensors file", format!("{}: {error}", path.display()))
        };
        let bytes = fs::read(path).map_err(|error| unreadable(error.to_string()))?;
        TensorFile::parse(&bytes).map_err(unreadable)
    }

    /// The content, or what is wrong with it.
    fn parse(bytes: &[u8]) -> Result<TensorFile, String> {
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
        let content = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
        let metadata = header.metadata().iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect();
        let tensors = content.iter().map(|(name, tensor)| {
            let shape = tensor.shape().iter().map(|&size| size as u64).collect();
            let unknown = || format!("tensor {name} has the element type {:?}, unknown here", tensor.dtype());
            let dtype = from_file(tensor.dtype()).ok_or_else(unknown)?;
            Ok((name.to_owned(), HostTensor { dtype, shape, bytes: tensor.data().to_vec() }))
        });
        Ok(TensorFile { tensors: tensors.collect::<Result<_, String>>()?, metadata })
    }

    /// Writes a file that some argument names.
    ///
    /// # Errors
    /// [`Error::Argument`] that says why it cannot be written.
    pub fn save(&self, argument: &'static str, path: &Path) -> Result<()> {
        let failed =
            |error: &dyn Display| Error::value(argument, "a writable path", format!("{}: {error}", path.display()));
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
            let given = format!("a file with {}", if there.is_empty() { "none".to_owned() } else { there.join(", ") });
            Error::argument(name, Property::Presence, "a tensor of this name in the file", given)
        })
    }

    /// A tensor that must be there and have this shape.
    ///
    /// # Errors
    /// [`Error::Argument`] that names it.
    pub fn shaped(&self, name: &'static str, shape: &[u64]) -> Result<&HostTensor> {
        let tensor = self.tensor(name)?;
        if tensor.shape != shape {
            let given = format!("{:?}", tensor.shape);
            return Err(Error::argument(name, Property::Shape, format!("shape {shape:?}"), given));
        }
        Ok(tensor)
    }

    /// A tensor that must have this shape where it is there.
    ///
    /// # Errors
    /// [`Error::Argument`] that names it.
    pub fn optional(&self, name: &'static str, shape: &[u64]) -> Result<Option<&HostTensor>> {
        self.tensors.contains_key(name).then(|| self.shaped(name, shape)).transpose()
    }

    /// The numbers of a tensor that must be there and have this shape.
    ///
    /// # Errors
    /// [`Error::Argument`] that names it.
    pub fn numbers(&self, name: &'static str, shape: &[u64]) -> Result<Vec<f64>> {
        self.shaped(name, shape)?.to_f64().map_err(|error| about(name, error))
    }

    /// The elements of a tensor that must be there, have this shape and one byte per element.
    ///
    /// # Errors
    /// [`Error::Argument`] that names it.
    pub fn codes(&self, name: &'static str, shape: &[u64]) -> Result<Vec<u8>> {
        let tensor = self.shaped(name, shape)?;
        match tensor.dtype {
            DType::U8 | DType::E4m3 => Ok(tensor.bytes.clone()),
            other => Err(Error::argument(name, Property::DType, "u8 or e4m3", other)),
        }
    }

    /// The elements of an i32 tensor that must be there.
    ///
    /// # Errors
    /// [`Error::Argument`] that names it.
    pub fn integers(&self, name: &'static str) -> Result<Vec<i32>> {
        self.tensor(name)?.to_i32().map_err(|error| about(name, error))
    }

    /// A number from the metadata; `None` when it is absent.
    ///
    /// # Errors
    /// [`Error::Argument`] when it does not parse.
    pub fn parameter<T: FromStr<Err: Display>>(&self, name: &'static str) -> Result<Option<T>> {
        self.parsed(name, "a number in the file's metadata")
    }

    /// `true` or `false` from the metadata; `None` when it is absent.
    ///
    /// # Errors
    /// [`Error::Argument`] for any other text.
    pub fn flag(&self, name: &'static str) -> Result<Option<bool>> {
        self.parsed(name, "true or false in the file's metadata")
    }

    /// A word from the metadata that a type is spelt with; `None` when it is absent.
    ///
    /// # Errors
    /// [`Error::Argument`] for any other text, with the words that there are.
    pub fn word<T: DeserializeOwned>(&self, name: &'static str) -> Result<Option<T>> {
        let parse = |text: &String| {
            let word: StrDeserializer<'_, ValueError> = text.as_str().into_deserializer();
            let refused = |error| Error::value(name, "a word in the file's metadata", format!("{text:?} ({error})"));
            T::deserialize(word).map_err(refused)
        };
        self.metadata.get(name).map(parse).transpose()
    }

    fn parsed<T: FromStr<Err: Display>>(&self, name: &'static str, expected: &str) -> Result<Option<T>> {
        let parse =
            |text: &String| text.parse().map_err(|error| Error::value(name, expected, format!("{text:?} ({error})")));
        self.metadata.get(name).map(parse).transpose()
    }
}

/// The same error, about the tensor of this name.
fn about(name: &'static str, error: Error) -> Error {
    match error {
        Error::Argument { property, expected, given, .. } => Error::argument(name, property, expected, given),
        other => other,
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
        Ok((name, TensorFile::load("cases", path)?))
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
        file.save("output", &path).unwrap();
        let loaded = TensorFile::load("input", &path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(loaded, file);
        assert_eq!(loaded.parameter::<f32>("q_scale").unwrap(), Some(0.75));
        assert_eq!(loaded.tensor("lengths").unwrap().to_i32().unwrap(), [7, -1]);
    }

    #[test]
    fn what_is_missing_or_malformed_is_named() {
        let error = TensorFile::load("input", Path::new("/nowhere.safetensors")).unwrap_err().to_string();
        assert!(
            error.starts_with("input: expected a readable safetensors file, got /nowhere.safetensors: "),
            "{error}"
        );
        assert!(TensorFile::parse(b"not a header").is_err());
        let mut file = TensorFile::default();
        file.metadata.insert("q_scale".into(), "fast".into());
        file.tensors.insert("x".into(), HostTensor::of_i32(&[1], &[1]));
        assert_eq!(
            file.tensor("kv").unwrap_err().to_string(),
            "kv: expected a tensor of this name in the file, got a file with x"
        );
        let message = |error: Error| error.to_string();
        assert_eq!(
            message(file.parameter::<f32>("q_scale").unwrap_err()),
            "q_scale: expected a number in the file's metadata, got \"fast\" (invalid float literal)"
        );
        assert!(message(file.flag("q_scale").unwrap_err()).starts_with("q_scale: expected true or false"));
        assert_eq!(message(file.shaped("x", &[2]).unwrap_err()), "x: expected shape [2], got [1]");
        assert_eq!(file.optional("lse", &[1]).unwrap(), None);
        file.tensors.insert("x".into(), HostTensor { dtype: DType::U32, ..HostTensor::of_i32(&[1], &[1]) });
        assert_eq!(message(file.integers("x").unwrap_err()), "x: expected i32, got u32");
        assert_eq!(message(file.codes("x", &[1]).unwrap_err()), "x: expected u8 or e4m3, got u32");
        assert_eq!(message(file.numbers("x", &[1]).unwrap_err()), "x: expected a floating-point type or i32, got u32");
    }
}
