//! Layout of a kernel's parameter block: one by-value struct per kernel.
//!
//! The layout is written once, here, as a constant. `xtask build` renders it as
//! `static_assert(offsetof(...))` into the kernel's header, and [`ParamBlock`] writes the bytes.

use sha2::{Digest, Sha256};

use crate::program::Sha256Hex;
use crate::tensor_map::TensorMap;
use crate::{Error, Result};

/// Type of a parameter field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParamKind {
    /// 64-bit global address.
    Pointer,
    /// Unsigned 64-bit integer.
    U64,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
    /// IEEE binary32.
    F32,
    /// 128-byte tensor map, aligned to 64 bytes.
    TensorMap,
}

impl ParamKind {
    /// Size in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            ParamKind::Pointer | ParamKind::U64 => 8,
            ParamKind::U32 | ParamKind::I32 | ParamKind::F32 => 4,
            ParamKind::TensorMap => 128,
        }
    }

    /// Alignment in bytes.
    pub const fn align(self) -> u32 {
        match self {
            ParamKind::TensorMap => 64,
            _ => self.bytes(),
        }
    }
}

/// One field: its name in the kernel's `struct Params` and its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamField {
    /// Name, the same in Rust and CUDA.
    pub name: &'static str,
    /// Type.
    pub kind: ParamKind,
}

/// The fields of a parameter block in order. Offsets follow the C rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamLayout {
    /// Fields in order.
    pub fields: &'static [ParamField],
}

impl ParamLayout {
    /// Offset of field `index` in bytes.
    pub const fn offset(&self, index: usize) -> u32 {
        let mut offset = 0;
        let mut i = 0;
        loop {
            let kind = self.fields[i].kind;
            offset = round_up(offset, kind.align());
            if i == index {
                return offset;
            }
            offset += kind.bytes();
            i += 1;
        }
    }

    /// Size of the block in bytes, padded to its alignment.
    pub const fn size(&self) -> u32 {
        if self.fields.is_empty() {
            return 0;
        }
        let last = self.fields.len() - 1;
        round_up(self.offset(last) + self.fields[last].kind.bytes(), self.align())
    }

    /// Alignment of the block in bytes.
    pub const fn align(&self) -> u32 {
        let mut align = 1;
        let mut i = 0;
        while i < self.fields.len() {
            if self.fields[i].kind.align() > align {
                align = self.fields[i].kind.align();
            }
            i += 1;
        }
        align
    }

    /// Hash over names, types and offsets: equal hashes mean that a block fits the program.
    pub fn abi_hash(&self) -> Sha256Hex {
        let mut hash = Sha256::new();
        for (i, field) in self.fields.iter().enumerate() {
            hash.update(format!("{} {:?} {}\n", field.name, field.kind, self.offset(i)));
        }
        hash.update(format!("size {} align {}\n", self.size(), self.align()));
        Sha256Hex::of_digest(hash)
    }
}

const fn round_up(value: u32, multiple: u32) -> u32 {
    value.div_ceil(multiple) * multiple
}

/// The bytes of one parameter block, written field by field.
#[derive(Clone, Debug)]
pub struct ParamBlock {
    layout: ParamLayout,
    bytes: Vec<u8>,
    written: Vec<bool>,
}

impl ParamBlock {
    /// An unwritten block.
    pub fn new(layout: ParamLayout) -> ParamBlock {
        ParamBlock { layout, bytes: vec![0; layout.size() as usize], written: vec![false; layout.fields.len()] }
    }

    /// Writes a global address; 0 stands for an absent optional tensor.
    pub fn pointer(&mut self, name: &str, address: u64) -> Result<&mut Self> {
        self.put(name, ParamKind::Pointer, &address.to_le_bytes())
    }

    /// Writes an unsigned 64-bit integer.
    pub fn u64(&mut self, name: &str, value: u64) -> Result<&mut Self> {
        self.put(name, ParamKind::U64, &value.to_le_bytes())
    }

    /// Writes an unsigned 32-bit integer.
    pub fn u32(&mut self, name: &str, value: u32) -> Result<&mut Self> {
        self.put(name, ParamKind::U32, &value.to_le_bytes())
    }

    /// Writes a signed 32-bit integer.
    pub fn i32(&mut self, name: &str, value: i32) -> Result<&mut Self> {
        self.put(name, ParamKind::I32, &value.to_le_bytes())
    }

    /// Writes a binary32 number.
    pub fn f32(&mut self, name: &str, value: f32) -> Result<&mut Self> {
        self.put(name, ParamKind::F32, &value.to_le_bytes())
    }

    /// Writes a tensor map.
    pub fn tensor_map(&mut self, name: &str, map: &TensorMap) -> Result<&mut Self> {
        self.put(name, ParamKind::TensorMap, &map.to_bytes())
    }

    fn put(&mut self, name: &str, kind: ParamKind, bytes: &[u8]) -> Result<&mut Self> {
        let fault = |what| Error::Parameter { field: name.to_owned(), what };
        let index =
            self.layout.fields.iter().position(|field| field.name == name).ok_or_else(|| fault("no such field"))?;
        if self.layout.fields[index].kind != kind {
            return Err(fault("written with another type"));
        }
        let offset = self.layout.offset(index) as usize;
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.written[index] = true;
        Ok(self)
    }

    /// The finished bytes.
    ///
    /// # Errors
    /// [`Error::Parameter`] that names the first field never written.
    pub fn finish(&self) -> Result<Vec<u8>> {
        match self.written.iter().position(|written| !written) {
            Some(index) => {
                Err(Error::Parameter { field: self.layout.fields[index].name.to_owned(), what: "never written" })
            }
            None => Ok(self.bytes.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: ParamLayout = ParamLayout {
        fields: &[
            ParamField { name: "count", kind: ParamKind::U32 },
            ParamField { name: "q", kind: ParamKind::Pointer },
            ParamField { name: "scale", kind: ParamKind::F32 },
            ParamField { name: "map", kind: ParamKind::TensorMap },
        ],
    };

    #[test]
    fn offsets_follow_the_c_rules() {
        let offsets: Vec<u32> = (0..4).map(|i| LAYOUT.offset(i)).collect();
        assert_eq!(offsets, [0, 8, 16, 64]);
        assert_eq!((LAYOUT.size(), LAYOUT.align()), (192, 64));
    }

    #[test]
    fn blocks_hold_values_at_their_offsets_and_miss_nothing() {
        let mut block = ParamBlock::new(LAYOUT);
        block.u32("count", 7).unwrap().pointer("q", 0x1122_3344_5566).unwrap().f32("scale", 0.5).unwrap();
        assert_eq!(block.finish().unwrap_err().to_string(), "kernel parameter map: never written");
        block.tensor_map("map", &TensorMap([0x0102; 16])).unwrap();
        let bytes = block.finish().unwrap();
        assert_eq!(&bytes[0..4], &7u32.to_le_bytes());
        assert_eq!(&bytes[8..16], &0x1122_3344_5566u64.to_le_bytes());
        assert_eq!(&bytes[16..20], &0.5f32.to_le_bytes());
        assert_eq!(&bytes[64..66], &[2, 1]);
    }

    #[test]
    fn misuse_is_an_error() {
        let mut block = ParamBlock::new(LAYOUT);
        assert!(block.u32("q", 1).is_err());
        assert!(block.u32("nothing", 1).is_err());
    }

    #[test]
    fn abi_hash_changes_with_names_types_and_order() {
        let renamed = ParamLayout { fields: &[ParamField { name: "n", kind: ParamKind::U32 }] };
        let retyped = ParamLayout { fields: &[ParamField { name: "n", kind: ParamKind::I32 }] };
        assert_ne!(renamed.abi_hash(), retyped.abi_hash());
        assert_ne!(renamed.abi_hash(), LAYOUT.abi_hash());
    }
}
