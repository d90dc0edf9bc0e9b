//! The 128-byte tensor-map record of the emulator (ISA notes, sections 1.4 to 1.6).
//!
//! Bytes 0x00..0x40 use the field positions that `tensormap.replace` writes, so device-side modification works bit for
//! bit. Bytes 0x40.. hold a mark and a checksum of the fields. A record made on the device from zeroed memory has
//! neither and is accepted; anything else without the mark, such as a record of the driver, is refused.

use bakewell_core::tensor_map::{Interleave, L2Promotion, MapType, OobFill, Swizzle, TensorMap, TensorMapRequest};

use super::swizzle::Pattern;

/// First eight bytes after the fields.
const MARK: u64 = u64::from_le_bytes(*b"BKWLTMAP");

/// A decoded record: what a copy needs, dimension 0 innermost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Map {
    /// Element type.
    pub element: MapType,
    /// Dimensions, 1 to 5.
    pub rank: usize,
    /// Global address in bytes.
    pub address: u64,
    /// Sizes in elements; 1 past the rank.
    pub dims: [u64; 5],
    /// Strides in bytes of dimensions 1..5; index 0 is unused.
    pub strides: [u64; 5],
    /// Box in elements; 1 past the rank.
    pub box_dims: [u32; 5],
    /// Steps between moved elements; 1 past the rank, and for dimension 0, where the step has no effect.
    pub element_strides: [u32; 5],
    /// Interleave code: 0 none, 1 16 bytes, 2 32 bytes.
    pub interleave: u32,
    /// Shared-memory swizzle.
    pub pattern: Pattern,
    /// Whether elements outside the tensor are NaN instead of zero.
    pub fill_nan: bool,
}

/// Why a record cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The record was not made by the emulator, nor on the device from zeroed memory.
    #[error("tensor map: the 128 bytes are not a record of this emulator (first words {first:#018x} {second:#018x})")]
    Foreign {
        /// Bytes 0..8.
        first: u64,
        /// Bytes 8..16.
        second: u64,
    },
    /// The fields changed after encoding by something other than `tensormap.replace`.
    #[error("tensor map: fields were overwritten after encoding")]
    Overwritten,
    /// A field holds a code without meaning.
    #[error("tensor map: {field} has the undefined code {code}")]
    Code {
        /// Field of the record.
        field: &'static str,
        /// Its value.
        code: u64,
    },
    /// A combination that no source establishes or that this emulator does not model.
    #[error("tensor map: {0}")]
    Refused(String),
}

/// Element types by device code, the numbering of `tensormap.replace.elemtype`.
const DEVICE_TYPES: [Option<MapType>; 16] = [
    Some(MapType::U8),
    Some(MapType::U16),
    Some(MapType::U32),
    Some(MapType::I32),
    Some(MapType::U64),
    Some(MapType::I64),
    Some(MapType::F16),
    Some(MapType::F32),
    Some(MapType::F32Ftz),
    Some(MapType::F64),
    Some(MapType::Bf16),
    Some(MapType::Tf32),
    Some(MapType::Tf32Ftz),
    Some(MapType::U4x16Align8),
    Some(MapType::U4x16Align16),
    Some(MapType::U6x16Align16),
];

/// A field that `tensormap.replace` can change. Values are the operands of the instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// Bytes, 64 bits.
    GlobalAddress,
    /// The operand is rank - 1.
    Rank,
    /// Box size of dimension `0..5` in elements.
    BoxDim(usize),
    /// Size of dimension `0..5` in elements.
    GlobalDim(usize),
    /// Stride of dimension `1..5` in bytes, ordinal `0..4`.
    GlobalStride(usize),
    /// Element stride of dimension `0..5`.
    ElementStride(usize),
    /// Device code of the element type.
    ElementType,
    /// 0 none, 1 16 bytes, 2 32 bytes.
    Interleave,
    /// 0 none, 1 32 bytes, 2 64 bytes, 3 128 bytes, 4 96 bytes.
    SwizzleMode,
    /// 0 16 bytes, 1 32 bytes, 2 32 bytes with 8-byte flip, 3 64 bytes.
    SwizzleAtomicity,
    /// 0 zeros, 1 NaN.
    FillMode,
}

/// The record as bytes, with bit-field access. Fields never cross an 8-byte word.
struct Words([u64; 16]);

impl Words {
    fn get(&self, byte: usize, low: u32, bits: u32) -> u64 {
        let at = (byte % 8) as u32 * 8 + low;
        (self.0[byte / 8] >> at) & (u64::MAX >> (64 - bits))
    }

    fn set(&mut self, byte: usize, low: u32, bits: u32, value: u64) {
        let at = (byte % 8) as u32 * 8 + low;
        let mask = (u64::MAX >> (64 - bits)) << at;
        let word = &mut self.0[byte / 8];
        *word = *word & !mask | (value << at) & mask;
    }

    fn load(bytes: &[u8; 128]) -> Self {
        let mut words = [0; 16];
        for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*chunk);
        }
        Self(words)
    }

    /// FNV-1a over the field words, never zero.
    fn checksum(&self) -> u64 {
        let hash = self.0[..8].iter().fold(0xcbf2_9ce4_8422_2325u64, |h, w| (h ^ w).wrapping_mul(0x100_0000_01b3));
        hash | 1
    }
}

/// Encodes a validated request (`TensorMapRequest::validate`) as a record of this emulator.
pub fn encode(request: &TensorMapRequest) -> TensorMap {
    let mut words = Words([0; 16]);
    let device_type =
        DEVICE_TYPES.iter().position(|&t| t == Some(request.dtype)).expect("every element type has a device code");
    let rank = request.dims.len();
    let mut fields = vec![
        (Field::GlobalAddress, request.address),
        (Field::Rank, rank as u64 - 1),
        (Field::ElementType, device_type as u64),
        (Field::Interleave, request.interleave as u64),
        (Field::FillMode, u64::from(request.oob_fill == OobFill::Nan)),
    ];
    let (mode, atomicity) = match request.swizzle {
        Swizzle::None => (0, 0),
        Swizzle::B32 => (1, 0),
        Swizzle::B64 => (2, 0),
        Swizzle::B128 => (3, 0),
        Swizzle::B128Atom32 => (3, 1),
        Swizzle::B128Atom32Flip8 => (3, 2),
        Swizzle::B128Atom64 => (3, 3),
    };
    fields.extend([(Field::SwizzleMode, mode), (Field::SwizzleAtomicity, atomicity)]);
    for i in 0..rank {
        fields.push((Field::GlobalDim(i), request.dims[i]));
        fields.push((Field::BoxDim(i), u64::from(request.box_dims[i])));
        fields.push((Field::ElementStride(i), u64::from(request.element_strides[i])));
    }
    for (i, &stride) in request.strides.iter().enumerate() {
        fields.push((Field::GlobalStride(i), stride));
    }
    for (field, value) in fields {
        write(&mut words, field, value);
    }
    words.0[8] = MARK;
    words.0[9] = words.checksum();
    words.0[10] = match request.l2_promotion {
        L2Promotion::None => 0,
        L2Promotion::B64 => 1,
        L2Promotion::B128 => 2,
        L2Promotion::B256 => 3,
    };
    TensorMap(words.0)
}

fn write(words: &mut Words, field: Field, value: u64) {
    match field {
        Field::GlobalAddress => {
            words.set(0x00, 0, 64, value);
            words.set(0x08, 21, 1, 0);
        }
        Field::Rank => words.set(0x08, 4, 3, value),
        Field::BoxDim(0) => words.set(0x34, 24, 8, value.wrapping_sub(1)),
        Field::BoxDim(i) => words.set(0x38, 8 * (i as u32 - 1), 8, value.wrapping_sub(1)),
        Field::GlobalDim(i) => words.set(0x20 + 4 * i, 0, 32, value.wrapping_sub(1)),
        Field::GlobalStride(i) => {
            words.set(0x0c + 4 * i, 0, 32, value >> 4);
            words.set(0x1c, 4 * i as u32, 4, value >> 36);
        }
        Field::ElementStride(i) => words.set(0x34, 3 * i as u32, 3, value.wrapping_sub(1)),
        Field::ElementType => {
            // tf32 is the f32 code with a conversion flag; the sub-byte codes close the gap it leaves.
            let (code, tf32) = match value {
                11 => (7, 1),
                12 => (8, 1),
                13..=15 => (value - 2, 0),
                _ => (value, 0),
            };
            words.set(0x08, 7, 4, code);
            words.set(0x08, 16, 1, tf32);
        }
        Field::Interleave => words.set(0x08, 11, 2, value),
        Field::SwizzleMode => {
            words.set(0x08, 13, 2, if value == 4 { 0 } else { value });
            words.set(0x08, 22, 1, u64::from(value == 4));
        }
        Field::SwizzleAtomicity => words.set(0x08, 19, 2, value),
        Field::FillMode => words.set(0x08, 15, 1, value),
    }
}

/// `tensormap.replace` of one field of the record in `bytes`.
///
/// # Errors
/// [`MapError::Code`] for an ordinal or value that the field cannot hold.
pub fn replace(bytes: &mut [u8; 128], field: Field, value: u64) -> Result<(), MapError> {
    let (name, limit) = match field {
        Field::GlobalAddress => ("global_address", u64::MAX),
        Field::Rank => ("rank", 4),
        Field::BoxDim(_) => ("box_dim", 256),
        Field::GlobalDim(_) => ("global_dim", 1 << 32),
        Field::GlobalStride(_) => ("global_stride", (1 << 40) - 1),
        Field::ElementStride(_) => ("element_stride", 8),
        Field::ElementType => ("elemtype", 15),
        Field::Interleave => ("interleave_layout", 2),
        Field::SwizzleMode => ("swizzle_mode", 4),
        Field::SwizzleAtomicity => ("swizzle_atomicity", 3),
        Field::FillMode => ("fill_mode", 1),
    };
    let (ordinal_limit, ordinal) = match field {
        Field::BoxDim(i) | Field::GlobalDim(i) | Field::ElementStride(i) => (5, i),
        Field::GlobalStride(i) => (4, i),
        _ => (1, 0),
    };
    if ordinal >= ordinal_limit {
        return Err(MapError::Code { field: name, code: ordinal as u64 });
    }
    if value > limit {
        return Err(MapError::Code { field: name, code: value });
    }
    let mut words = Words::load(bytes);
    write(&mut words, field, value);
    if words.0[8] == MARK {
        words.0[9] = words.checksum();
    }
    bytes.copy_from_slice(&TensorMap(words.0).to_bytes());
    Ok(())
}

/// Decodes a record made by [`encode`] or on the device from zeroed memory.
///
/// # Errors
/// [`MapError`]: foreign or overwritten records, undefined codes.
pub fn decode(bytes: &[u8; 128]) -> Result<Map, MapError> {
    let words = Words::load(bytes);
    if words.0[8] == MARK {
        if words.0[9] != words.checksum() {
            return Err(MapError::Overwritten);
        }
    } else if words.0[8..].iter().any(|&word| word != 0) {
        return Err(MapError::Foreign { first: words.0[0], second: words.0[1] });
    }
    let rank = words.get(0x08, 4, 3) as usize + 1;
    if rank > 5 {
        return Err(MapError::Code { field: "rank", code: rank as u64 - 1 });
    }
    let mut map = Map {
        element: element(&words)?,
        rank,
        address: words.get(0x00, 0, 64),
        dims: [1; 5],
        strides: [0; 5],
        box_dims: [1; 5],
        element_strides: [1; 5],
        interleave: words.get(0x08, 11, 2) as u32,
        pattern: pattern(&words)?,
        fill_nan: words.get(0x08, 15, 1) == 1,
    };
    for i in 0..rank {
        map.dims[i] = words.get(0x20 + 4 * i, 0, 32) + 1;
        map.box_dims[i] =
            1 + if i == 0 { words.get(0x34, 24, 8) } else { words.get(0x38, 8 * (i as u32 - 1), 8) } as u32;
        if i > 0 {
            map.element_strides[i] = 1 + words.get(0x34, 3 * i as u32, 3) as u32;
            let (low, high) = (words.get(0x0c + 4 * (i - 1), 0, 32), words.get(0x1c, 4 * (i as u32 - 1), 4));
            map.strides[i] = (high << 32 | low) << 4;
        }
    }
    Ok(map)
}

fn element(words: &Words) -> Result<MapType, MapError> {
    let (code, tf32) = (words.get(0x08, 7, 4), words.get(0x08, 16, 1));
    let device = match (code, tf32) {
        (7, 1) => 11,
        (8, 1) => 12,
        (0..=10, 0) => code,
        (11..=13, 0) => code + 2,
        _ => return Err(MapError::Code { field: "elemtype", code: tf32 << 4 | code }),
    };
    DEVICE_TYPES[device as usize].ok_or(MapError::Code { field: "elemtype", code })
}

fn pattern(words: &Words) -> Result<Pattern, MapError> {
    let (mode, atomicity, wide) = (words.get(0x08, 13, 2), words.get(0x08, 19, 2), words.get(0x08, 22, 1));
    Ok(match (wide, mode, atomicity) {
        (1, 0, 0) => Pattern::B96,
        (0, 0, 0) => Pattern::None,
        (0, 1, 0) => Pattern::B32,
        (0, 2, 0) => Pattern::B64,
        (0, 3, 0) => Pattern::B128,
        (0, 3, 1) => Pattern::B128Atom32,
        (0, 3, 2) => Pattern::B128Atom32Flip8,
        (0, 3, 3) => Pattern::B128Atom64,
        _ => return Err(MapError::Code { field: "swizzle", code: wide << 4 | atomicity << 2 | mode }),
    })
}

/// Code of an interleave that copies of this emulator accept.
pub const NO_INTERLEAVE: u32 = Interleave::None as u32;

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> TensorMapRequest {
        TensorMapRequest {
            element_strides: vec![1, 2, 8],
            oob_fill: OobFill::Nan,
            ..TensorMapRequest::tiled(
                MapType::Bf16,
                0x7f12_3456_7890,
                &[1 << 32, 1000, 7],
                &[0xff_1234_5670, 0x10],
                &[64, 256, 3],
                Swizzle::B128Atom64,
            )
        }
    }

    #[test]
    fn round_trip() {
        let map = decode(&encode(&request()).to_bytes()).unwrap();
        let expected = Map {
            element: MapType::Bf16,
            rank: 3,
            address: 0x7f12_3456_7890,
            dims: [1 << 32, 1000, 7, 1, 1],
            strides: [0, 0xff_1234_5670, 0x10, 0, 0],
            box_dims: [64, 256, 3, 1, 1],
            element_strides: [1, 2, 8, 1, 1],
            interleave: 0,
            pattern: Pattern::B128Atom64,
            fill_nan: true,
        };
        assert_eq!(map, expected);
        for dtype in DEVICE_TYPES.into_iter().flatten() {
            let encoded = encode(&TensorMapRequest { dtype, ..request() }).to_bytes();
            assert_eq!(decode(&encoded).unwrap().element, dtype);
        }
    }

    /// Field positions of the ISA notes, read directly from the bytes.
    #[test]
    fn field_positions() {
        let bytes = encode(&request()).to_bytes();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(word(0x08), 2 << 4 | 10 << 7 | 3 << 13 | 1 << 15 | 3 << 19, "bf16 is device code 10");
        assert_eq!(word(0x0c), 0xf123_4567);
        assert_eq!(word(0x10), 1);
        assert_eq!(word(0x1c), 0xf);
        assert_eq!([word(0x20), word(0x24), word(0x28)], [0xffff_ffff, 999, 6]);
        assert_eq!(word(0x34), 1 << 3 | 7 << 6 | 63 << 24);
        assert_eq!(word(0x38), 255 | 2 << 8);
    }

    /// The sequence compilers emit: zeroed memory, then these fields only.
    #[test]
    fn device_made_record() {
        let mut bytes = [0; 128];
        let fields = [
            (Field::GlobalAddress, 0x1000),
            (Field::Rank, 1),
            (Field::BoxDim(0), 64),
            (Field::BoxDim(1), 128),
            (Field::GlobalDim(0), 512),
            (Field::GlobalDim(1), 300),
            (Field::GlobalStride(0), 1024),
            (Field::ElementStride(0), 1),
            (Field::ElementStride(1), 1),
            (Field::ElementType, 6),
            (Field::SwizzleMode, 3),
        ];
        for (field, value) in fields {
            replace(&mut bytes, field, value).unwrap();
        }
        let strides = [1024];
        let host =
            encode(&TensorMapRequest::tiled(MapType::F16, 0x1000, &[512, 300], &strides, &[64, 128], Swizzle::B128));
        assert_eq!(decode(&bytes), decode(&host.to_bytes()));
        assert_eq!(bytes[..0x40], host.to_bytes()[..0x40]);
    }

    #[test]
    fn foreign_overwritten_and_undefined_records() {
        let mut bytes = encode(&request()).to_bytes();
        bytes[0] ^= 1;
        assert_eq!(decode(&bytes), Err(MapError::Overwritten));
        replace(&mut bytes, Field::BoxDim(2), 9).unwrap();
        assert_eq!(decode(&bytes).unwrap().box_dims[2], 9);
        let mut foreign = [0; 128];
        foreign[0x50] = 1;
        assert!(matches!(decode(&foreign), Err(MapError::Foreign { .. })));
        let mut wrong = [0; 128];
        replace(&mut wrong, Field::SwizzleMode, 1).unwrap();
        replace(&mut wrong, Field::SwizzleAtomicity, 1).unwrap();
        assert!(matches!(decode(&wrong), Err(MapError::Code { field: "swizzle", .. })));
        assert!(replace(&mut wrong, Field::Rank, 5).is_err());
        assert!(replace(&mut wrong, Field::GlobalStride(4), 16).is_err());
    }
}
