//! Launches described in JSON, for programs that nobody here wrote: `bakewell emulate --launch L.json`.
//!
//! ```json
//! {"grid": [64], "block": [128], "cluster": [2, 1, 1], "dynamic_shared": 65536,
//!  "params": [{"tensor": "x"}, {"tensor": "y", "poison": "f32", "shape": [4, 128], "out": true}, {"i32": 128}]}
//! ```
//!
//! | parameter | bytes |
//! |---|---|
//! | `{"tensor": NAME}` | address of a buffer: of the input file, or filled by `"zeros"` or `"poison"`: TYPE with `"shape"`; `"out": true` keeps it; `"offset"`: bytes to add |
//! | `{"u32": 7}`, `i8` to `u64`, `f16`, `bf16`, `f32`, `f64` | the scalar |
//! | `{"bytes": "00ff"}` | these bytes |
//! | `{"tensor_map": {"tensor", "dtype", "dims", "strides", "box", "element_strides", "swizzle", "interleave", "oob"}}` | the 128-byte record by value; with `"in": "global"` the address of a record in global memory |
//! | `{"struct": [..], "align": n}` | the fields at their natural alignment |
//!
//! `"max_instructions": n` ends the launch when a cluster has executed so many warp instructions: a loop may have no
//! end.
//!
//! `dims`, `box` and `element_strides` start with the innermost dimension, and `strides` are the bytes of dimensions 1
//! and up, as for `cuTensorMapEncodeTiled`. Poisoned buffers hold 0xff bytes and count as unwritten: reading them is a
//! finding.

use std::collections::BTreeMap;

use bakewell_core::Arch;
use bakewell_core::tensor_map::{Interleave, L2Promotion, MapType, OobFill, Swizzle, TensorMapRequest};
use serde::Deserialize;

use crate::decode::Program;
use crate::emulator::{Emulator, Launch};
use crate::error::{Error, Result};
use crate::isa::Target;
use crate::layout::tensor_map;

/// A tensor of a file: element type, shape and little-endian bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileTensor {
    /// Element type in the spelling of [`type_bytes`].
    pub dtype: String,
    /// Sizes in elements.
    pub shape: Vec<u64>,
    /// Elements.
    pub bytes: Vec<u8>,
}

/// Size of an element in bytes; `None` for an unknown name. Names are those of safetensors in either case, and the
/// short ones of Bakewell: `f32`, `bf16`, `e4m3`, `F8_E4M3`, `u8`.
pub fn type_bytes(name: &str) -> Option<u64> {
    Some(match name.to_ascii_lowercase().as_str() {
        "bool" | "u8" | "i8" | "e4m3" | "e5m2" | "f8_e4m3" | "f8_e5m2" | "f8_e8m0" | "ue8m0" => 1,
        "f16" | "bf16" | "u16" | "i16" => 2,
        "f32" | "u32" | "i32" => 4,
        "f64" | "u64" | "i64" => 8,
        _ => return None,
    })
}

/// One to three sizes, or one number.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Sizes {
    One(u32),
    Many(Vec<u32>),
}

impl Sizes {
    fn three(&self, argument: &str) -> Result<[u32; 3]> {
        let given = match self {
            Sizes::One(x) => std::slice::from_ref(x),
            Sizes::Many(sizes) => sizes,
        };
        match *given {
            [x] => Ok([x, 1, 1]),
            [x, y] => Ok([x, y, 1]),
            [x, y, z] => Ok([x, y, z]),
            _ => Err(Error::launch(argument, "one to three sizes", format!("{given:?}"))),
        }
    }
}

/// A launch as the file describes it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchFile {
    grid: Sizes,
    block: Sizes,
    #[serde(default)]
    cluster: Option<Sizes>,
    #[serde(default, alias = "dynamic_shared_bytes", alias = "shared", alias = "shared_bytes")]
    dynamic_shared: u32,
    #[serde(default)]
    max_instructions: Option<u64>,
    params: Vec<Param>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
enum Param {
    Tensor(TensorParam),
    Map {
        tensor_map: Box<MapParam>,
        #[serde(default, rename = "in")]
        place: Option<String>,
    },
    Struct {
        #[serde(rename = "struct")]
        fields: Vec<Param>,
        #[serde(default)]
        align: Option<usize>,
    },
    Bytes {
        bytes: String,
    },
    Scalar(BTreeMap<String, serde_json::Value>),
}

/// A buffer; also that of a tensor map.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct TensorParam {
    tensor: String,
    #[serde(default)]
    zeros: Option<String>,
    #[serde(default)]
    poison: Option<String>,
    #[serde(default)]
    shape: Option<Vec<u64>>,
    #[serde(default)]
    out: bool,
    #[serde(default)]
    offset: u64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct MapParam {
    #[serde(flatten)]
    tensor: TensorParam,
    dtype: String,
    dims: Vec<u64>,
    #[serde(default)]
    strides: Vec<u64>,
    #[serde(rename = "box")]
    box_dims: Vec<u32>,
    #[serde(default)]
    element_strides: Option<Vec<u32>>,
    #[serde(default)]
    swizzle: Option<serde_json::Value>,
    #[serde(default)]
    interleave: Option<serde_json::Value>,
    #[serde(default)]
    oob: Option<String>,
}

/// A launch whose buffers lie in the memory of an emulator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// Sizes.
    pub launch: Launch,
    /// The parameter block.
    pub params: Vec<u8>,
    buffers: BTreeMap<String, Buffer>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Buffer {
    address: u64,
    bytes: u64,
    dtype: String,
    shape: Vec<u64>,
    out: bool,
}

impl LaunchFile {
    /// Reads the JSON text.
    ///
    /// # Errors
    /// What is wrong and where.
    pub fn parse(text: &str) -> Result<LaunchFile> {
        serde_json::from_str(text).map_err(|error| Error::launch("launch file", "the documented form", error))
    }

    /// Most warp instructions of a cluster, where the file says so: [`Options::instruction_limit`](crate::Options).
    pub fn max_instructions(&self) -> Option<u64> {
        self.max_instructions
    }

    /// Allocates and fills the buffers, encodes tensor maps, and lays the parameters out as `program` declares them.
    ///
    /// # Errors
    /// Unknown tensors and types, sizes that do not fit, a wrong number of parameters: the parameter is named.
    pub fn bind(&self, device: &Emulator, program: &Program, inputs: &BTreeMap<String, FileTensor>) -> Result<Bound> {
        if self.params.len() != program.params.len() {
            let names: Vec<&str> = program.params.iter().map(|p| p.name.as_str()).collect();
            let expected = format!("{} parameters ({})", names.len(), names.join(", "));
            return Err(Error::launch("params", expected, self.params.len()));
        }
        let launch = Launch {
            overlaps: false,
            grid: self.grid.three("grid")?,
            block: self.block.three("block")?,
            cluster: self.cluster.as_ref().map(|sizes| sizes.three("cluster")).transpose()?,
            dynamic_shared: self.dynamic_shared,
        };
        let mut binder = Binder { device, inputs, buffers: BTreeMap::new(), maps: 0 };
        // Buffers that are described come first, so that mentions before the description find them.
        for param in &self.params {
            binder.describe(param)?;
        }
        let mut params = vec![0; program.param_bytes as usize];
        for (given, formal) in self.params.iter().zip(&program.params) {
            let (bytes, _) = binder.encode(given).map_err(|error| name_it(error, &formal.name))?;
            if bytes.len() != formal.size as usize {
                return Err(Error::launch(&formal.name, format!("{} bytes", formal.size), bytes.len()));
            }
            params[formal.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        Ok(Bound { launch, params, buffers: binder.buffers })
    }
}

impl Bound {
    /// Reads back the buffers that are outputs.
    ///
    /// # Errors
    /// Not for buffers of a live emulator.
    pub fn outputs(&self, device: &Emulator) -> Result<BTreeMap<String, FileTensor>> {
        let outs = self.buffers.iter().filter(|(_, buffer)| buffer.out);
        outs.map(|(name, buffer)| {
            let bytes = device.read(buffer.address, buffer.bytes as usize)?;
            Ok((name.clone(), FileTensor { dtype: buffer.dtype.clone(), shape: buffer.shape.clone(), bytes }))
        })
        .collect()
    }
}

/// Puts the kernel's name of a parameter before what is wrong with it.
fn name_it(error: Error, formal: &str) -> Error {
    match error {
        Error::Launch { argument, expected, given } => {
            Error::Launch { argument: format!("{formal}: {argument}"), expected, given }
        }
        other => other,
    }
}

struct Binder<'a> {
    device: &'a Emulator,
    inputs: &'a BTreeMap<String, FileTensor>,
    buffers: BTreeMap<String, Buffer>,
    maps: u32,
}

impl Binder<'_> {
    /// Makes the buffers that a parameter describes.
    fn describe(&mut self, param: &Param) -> Result<()> {
        match param {
            Param::Tensor(tensor) if tensor.zeros.is_some() || tensor.poison.is_some() => {
                self.address(tensor).map(drop)
            }
            Param::Map { tensor_map, .. } => self.describe(&Param::Tensor(tensor_map.tensor.clone())),
            Param::Struct { fields, .. } => fields.iter().try_for_each(|field| self.describe(field)),
            _ => Ok(()),
        }
    }

    /// The address of a tensor, allocated on first mention.
    fn address(&mut self, param: &TensorParam) -> Result<u64> {
        let name = &param.tensor;
        if let Some(buffer) = self.buffers.get_mut(name) {
            buffer.out |= param.out;
            return Ok(buffer.address + param.offset);
        }
        let fill = param.zeros.as_ref().map(|dtype| (dtype, 0u8)).or(param.poison.as_ref().map(|dtype| (dtype, 0xff)));
        let buffer = match fill {
            Some((dtype, fill)) => {
                let Some(shape) = param.shape.clone() else {
                    return Err(Error::launch(name, "a shape beside the type", "none"));
                };
                let width = type_bytes(dtype)
                    .ok_or_else(|| Error::launch(name, "an element type such as f32, bf16, e4m3 or u8", dtype))?;
                let bytes = shape.iter().try_fold(width, |n, &d| n.checked_mul(d)).filter(|n| *n < 1 << 38);
                let bytes = bytes.ok_or_else(|| Error::launch(name, "at most 256 GiB", format!("{shape:?}")))?;
                let address = self.device.allocate(name, bytes.max(1))?;
                self.device.write(address, &vec![fill; bytes as usize])?;
                if fill != 0 {
                    self.device.forget(address, bytes);
                }
                Buffer { address, bytes, dtype: dtype.clone(), shape, out: param.out }
            }
            None => {
                let tensor = self.inputs.get(name).ok_or_else(|| {
                    let known: Vec<&str> = self.inputs.keys().map(String::as_str).collect();
                    let expected = format!("a tensor of the input file ({}) or zeros or poison", known.join(", "));
                    Error::launch("tensor", expected, name)
                })?;
                let bytes = tensor.bytes.len() as u64;
                let address = self.device.allocate(name, bytes.max(1))?;
                self.device.write(address, &tensor.bytes)?;
                Buffer { address, bytes, dtype: tensor.dtype.clone(), shape: tensor.shape.clone(), out: param.out }
            }
        };
        let address = buffer.address + param.offset;
        self.buffers.insert(name.clone(), buffer);
        Ok(address)
    }

    /// The bytes of a parameter and its alignment.
    fn encode(&mut self, param: &Param) -> Result<(Vec<u8>, usize)> {
        match param {
            Param::Tensor(tensor) => Ok((self.address(tensor)?.to_le_bytes().to_vec(), 8)),
            Param::Map { tensor_map, place } => {
                let record = self.record(tensor_map)?;
                match place.as_deref() {
                    None | Some("param") => Ok((record.to_vec(), 64)),
                    Some("global") => {
                        self.maps += 1;
                        let address = self.device.allocate(&format!("tensor map {}", self.maps), 128)?;
                        self.device.write(address, &record)?;
                        Ok((address.to_le_bytes().to_vec(), 8))
                    }
                    Some(other) => Err(Error::launch("in", "param or global", other)),
                }
            }
            Param::Struct { fields, align } => {
                let mut bytes = Vec::new();
                let mut most = 1;
                for field in fields {
                    let (data, natural) = self.encode(field)?;
                    most = most.max(natural);
                    bytes.resize(bytes.len().next_multiple_of(natural), 0);
                    bytes.extend(data);
                }
                let align = align.unwrap_or(most).clamp(1, 4096);
                bytes.resize(bytes.len().next_multiple_of(align), 0);
                Ok((bytes, align))
            }
            Param::Bytes { bytes } => Ok((hex(bytes)?, 1)),
            Param::Scalar(fields) => {
                let data = match fields.iter().next() {
                    Some((kind, value)) if fields.len() == 1 => scalar(kind, value)?,
                    _ => {
                        let keys: Vec<&str> = fields.keys().map(String::as_str).collect();
                        return Err(Error::launch("parameter", "one of the documented forms", keys.join(", ")));
                    }
                };
                let align = data.len();
                Ok((data, align))
            }
        }
    }

    fn record(&mut self, map: &MapParam) -> Result<[u8; 128]> {
        let address = self.address(&map.tensor)?;
        let rank = map.dims.len();
        let request = TensorMapRequest {
            dtype: map_type(&map.dtype)?,
            address,
            dims: map.dims.clone(),
            strides: map.strides.clone(),
            box_dims: map.box_dims.clone(),
            element_strides: map.element_strides.clone().unwrap_or_else(|| vec![1; rank]),
            interleave: match word(&map.interleave).as_str() {
                "none" | "0" => Interleave::None,
                "16b" | "16" => Interleave::B16,
                "32b" | "32" => Interleave::B32,
                other => return Err(Error::launch("interleave", "none, 16B or 32B", other)),
            },
            swizzle: match word(&map.swizzle).as_str() {
                "none" | "0" => Swizzle::None,
                "32b" | "32" => Swizzle::B32,
                "64b" | "64" => Swizzle::B64,
                "128b" | "128" => Swizzle::B128,
                "128b_atom_32b" => Swizzle::B128Atom32,
                "128b_atom_32b_flip_8b" => Swizzle::B128Atom32Flip8,
                "128b_atom_64b" => Swizzle::B128Atom64,
                other => {
                    let expected = "none, 32B, 64B, 128B, 128B_ATOM_32B, 128B_ATOM_32B_FLIP_8B or 128B_ATOM_64B";
                    return Err(Error::launch("swizzle", expected, other));
                }
            },
            l2_promotion: L2Promotion::None,
            oob_fill: match map.oob.as_deref().unwrap_or("zeros").to_ascii_lowercase().as_str() {
                "zeros" | "zero" | "none" => OobFill::Zeros,
                "nan" => OobFill::Nan,
                other => return Err(Error::launch("oob", "zeros or nan", other)),
            },
        };
        request
            .validate("tensor_map", arch(self.device.target))
            .map_err(|error| Error::launch("tensor_map", "what cuTensorMapEncodeTiled accepts", error))?;
        Ok(tensor_map::encode(&request).to_bytes())
    }
}

/// A word that JSON may also give as a number.
fn word(value: &Option<serde_json::Value>) -> String {
    match value {
        None | Some(serde_json::Value::Null) => "none".to_string(),
        Some(serde_json::Value::String(text)) => text.to_ascii_lowercase(),
        Some(other) => other.to_string(),
    }
}

fn arch(target: Target) -> Arch {
    match target {
        Target::Sm90 => Arch::Sm90,
        Target::Sm100 => Arch::Sm100,
        Target::Sm103 => Arch::Sm103,
        Target::Sm107 => Arch::Sm107,
        Target::Sm110 => Arch::Sm110,
    }
}

fn map_type(name: &str) -> Result<MapType> {
    Ok(match name.to_ascii_lowercase().as_str() {
        "u8" | "i8" | "bool" | "e4m3" | "e5m2" | "f8_e4m3" | "f8_e5m2" => MapType::U8,
        "u16" | "i16" => MapType::U16,
        "u32" => MapType::U32,
        "i32" => MapType::I32,
        "u64" => MapType::U64,
        "i64" => MapType::I64,
        "f16" => MapType::F16,
        "f32" => MapType::F32,
        "f64" => MapType::F64,
        "bf16" => MapType::Bf16,
        "f32_ftz" => MapType::F32Ftz,
        "tf32" => MapType::Tf32,
        "tf32_ftz" => MapType::Tf32Ftz,
        "u4x16_align8" | "16u4_align8b" => MapType::U4x16Align8,
        "u4x16_align16" | "16u4_align16b" => MapType::U4x16Align16,
        "u6x16_align16" | "16u6_align16b" => MapType::U6x16Align16,
        other => return Err(Error::launch("dtype", "an element type of tensor maps", other)),
    })
}

fn hex(text: &str) -> Result<Vec<u8>> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace() && *b != b'_').collect();
    let digits = digits.strip_prefix(b"0x").unwrap_or(&digits);
    let pairs = digits.chunks(2).map(|pair| {
        let text = std::str::from_utf8(pair).ok().filter(|_| pair.len() == 2)?;
        u8::from_str_radix(text, 16).ok()
    });
    pairs.collect::<Option<_>>().ok_or_else(|| Error::launch("bytes", "pairs of hexadecimal digits", text))
}

fn scalar(kind: &str, value: &serde_json::Value) -> Result<Vec<u8>> {
    let wrong = || Error::launch(kind, "a number that the type holds", value);
    let float = || match value {
        serde_json::Value::String(text) => text.parse::<f64>().map_err(|_| wrong()),
        other => other.as_f64().ok_or_else(wrong),
    };
    let (bytes, signed) = match kind {
        "u8" | "bool" => (1, false),
        "u16" => (2, false),
        "u32" => (4, false),
        "u64" => (8, false),
        "i8" => (1, true),
        "i16" => (2, true),
        "i32" => (4, true),
        "i64" => (8, true),
        "f16" => return Ok(half::f16::from_f64(float()?).to_le_bytes().to_vec()),
        "bf16" => return Ok(half::bf16::from_f64(float()?).to_le_bytes().to_vec()),
        "f32" => return Ok((float()? as f32).to_le_bytes().to_vec()),
        "f64" => return Ok(float()?.to_le_bytes().to_vec()),
        other => return Err(Error::launch("parameter", "tensor, tensor_map, struct, bytes or a scalar type", other)),
    };
    let number: i128 = match value {
        serde_json::Value::Bool(truth) => i128::from(*truth),
        other => other.as_u64().map(i128::from).or(other.as_i64().map(i128::from)).ok_or_else(wrong)?,
    };
    let bits = 8 * bytes as u32;
    let (least, most) = if signed { (-(1i128 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1i128 << bits) - 1) };
    if number < least || number > most {
        return Err(wrong());
    }
    Ok(number.to_le_bytes()[..bytes].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulator::Module;
    use crate::options::Options;

    fn bind(params: &str, json: &str) -> Result<(Emulator, Bound)> {
        let text = format!(".version 9.2\n.target sm_100a\n.address_size 64\n.visible .entry k({params}) {{ ret; }}");
        let module = Module::parse(&text)?;
        let device = Emulator::new(Target::Sm100, Options::new(Target::Sm100));
        let loaded = device.load(&module)?;
        let program = loaded.kernel("k")?;
        let x = FileTensor { dtype: "F32".into(), shape: vec![4], bytes: (1..=16).collect() };
        let bound = LaunchFile::parse(json)?.bind(&device, &program, &BTreeMap::from([("x".to_string(), x)]))?;
        Ok((device, bound))
    }

    #[test]
    fn every_form_lands_at_its_offset() {
        let formals = ".param .u64 x, .param .u32 n, .param .align 64 .b8 map[128], .param .u64 far, .param .align 16 .b8 s[32], .param .f32 f";
        let map = r#"{"tensor": "x", "dtype": "f32", "dims": [4], "box": [4], "swizzle": "none"}"#;
        let json = format!(
            r#"{{"grid": [3, 2], "block": 64, "cluster": [1], "dynamic_shared": 512, "params": [
                {{"tensor": "x"}}, {{"u32": 4294967295}}, {{"tensor_map": {map}}}, {{"tensor_map": {map}, "in": "global"}},
                {{"struct": [{{"i8": -1}}, {{"i32": -2}}, {{"tensor": "y", "poison": "bf16", "shape": [3], "out": true}}, {{"bytes": "0a0B"}}], "align": 16}},
                {{"f32": 1.5}}]}}"#
        );
        let (device, bound) = bind(formals, &json).unwrap();
        assert_eq!((bound.launch.grid, bound.launch.block), ([3, 2, 1], [64, 1, 1]));
        assert_eq!((bound.launch.cluster, bound.launch.dynamic_shared), (Some([1, 1, 1]), 512));
        let word = |at: usize| u64::from_le_bytes(bound.params[at..][..8].try_into().unwrap());
        assert_eq!(device.read(word(0), 8).unwrap(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bound.params[8..12], [0xff; 4]);
        let record: [u8; 128] = bound.params[64..192].try_into().unwrap();
        let decoded = tensor_map::decode(&record).unwrap();
        assert_eq!((decoded.address, decoded.rank, decoded.dims[0]), (word(0), 1, 4));
        assert_eq!(device.read(word(192), 128).unwrap(), record);
        assert_eq!(bound.params[208], 0xff);
        assert_eq!(bound.params[212..216], (-2i32).to_le_bytes());
        assert_eq!(bound.params[224..226], [0x0a, 0x0b]);
        assert_eq!(bound.params[240..244], 1.5f32.to_le_bytes());
        let outputs = bound.outputs(&device).unwrap();
        assert_eq!(outputs["y"].bytes, [0xff; 6]);
        assert!(!device.is_initialised(word(216), 1), "poisoned bytes count as unwritten");
        assert_eq!(outputs.len(), 1);
    }

    #[test]
    fn mistakes_are_named() {
        let error = |params: &str, given: &str| {
            let json = format!(r#"{{"grid": [1], "block": [32], "params": [{given}]}}"#);
            bind(params, &json).map(|_| ()).unwrap_err().to_string()
        };
        assert_eq!(error(".param .u64 x", ""), "params: expected 1 parameters (x), got 0");
        assert_eq!(error(".param .u64 x", r#"{"u32": 1}"#), "x: expected 8 bytes, got 4");
        assert!(
            error(".param .u64 p", r#"{"tensor": "z"}"#)
                .starts_with("p: tensor: expected a tensor of the input file (x)")
        );
        assert!(error(".param .u32 p", r#"{"u32": -1}"#).contains("u32"));
        assert!(error(".param .u32 p", r#"{"q32": 1}"#).contains("got q32"));
        assert!(error(".param .u64 p", r#"{"tensor": "y", "zeros": "f33", "shape": [1]}"#).contains("f33"));
        let map = r#"{"tensor_map": {"tensor": "x", "dtype": "f32", "dims": [2], "box": [512]}}"#;
        assert!(error(".param .align 64 .b8 p[128]", map).contains("tensor_map"), "the driver's rules hold");
    }
}
