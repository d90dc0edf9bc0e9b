//! The 32-bit instruction descriptor of `tcgen05.mma` (ISA notes, tcgen05 6), with every rule on it that needs no
//! machine state.

use crate::numerics::format;

/// `.kind` of a matrix instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `.kind::f16`: f16 or bf16 operands.
    F16,
    /// `.kind::tf32`.
    Tf32,
    /// `.kind::f8f6f4`.
    F8f6f4,
    /// `.kind::i8`.
    I8,
    /// `.kind::mxf8f6f4`, block scaled.
    Mxf8f6f4,
    /// `.kind::mxf4`, block scaled.
    Mxf4,
    /// `.kind::mxf4nvf4`, block scaled.
    Mxf4nvf4,
}

impl Kind {
    /// Whether operands carry block scales.
    pub const fn is_block_scaled(self) -> bool {
        matches!(self, Self::Mxf8f6f4 | Self::Mxf4 | Self::Mxf4nvf4)
    }

    /// Whether operands are dense pairs of 4-bit values.
    pub const fn is_packed_fp4(self) -> bool {
        matches!(self, Self::Mxf4 | Self::Mxf4nvf4)
    }

    /// Modifier as written in PTX.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Tf32 => "tf32",
            Self::F8f6f4 => "f8f6f4",
            Self::I8 => "i8",
            Self::Mxf8f6f4 => "mxf8f6f4",
            Self::Mxf4 => "mxf4",
            Self::Mxf4nvf4 => "mxf4nvf4",
        }
    }
}

/// Element type of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// TF32 in 32 bits.
    Tf32,
    /// FP8 E4M3.
    E4m3,
    /// FP8 E5M2.
    E5m2,
    /// FP6 E2M3.
    E2m3,
    /// FP6 E3M2.
    E3m2,
    /// FP4 E2M1.
    E2m1,
    /// Unsigned byte.
    U8,
    /// Signed byte.
    S8,
}

impl Element {
    /// Bits of the element itself.
    pub const fn bits(self) -> u32 {
        match self {
            Self::Tf32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::E4m3 | Self::E5m2 | Self::U8 | Self::S8 => 8,
            Self::E2m3 | Self::E3m2 => 6,
            Self::E2m1 => 4,
        }
    }

    /// Exponent of the smallest normal number; 0 for integers.
    pub const fn least_exponent(self) -> i32 {
        match self {
            Self::F16 => format::F16.min_exponent(),
            Self::Bf16 => format::BF16.min_exponent(),
            Self::Tf32 => format::TF32.min_exponent(),
            Self::E4m3 => format::E4M3.min_exponent(),
            Self::E5m2 => format::E5M2.min_exponent(),
            Self::E2m3 => format::E2M3.min_exponent(),
            Self::E3m2 => format::E3M2.min_exponent(),
            Self::E2m1 => format::E2M1.min_exponent(),
            Self::U8 | Self::S8 => 0,
        }
    }

    /// Value of the element in the low bits of `code`. Integers are exact.
    #[inline(always)]
    pub fn value(self, code: u32) -> f32 {
        match self {
            Self::F16 => format::decode_f16(code as u16),
            Self::Bf16 => format::decode_bf16(code as u16),
            Self::Tf32 => format::decode_tf32(code),
            Self::E4m3 => format::E4M3_VALUES[(code & 0xff) as usize],
            Self::E5m2 => format::E5M2_VALUES[(code & 0xff) as usize],
            Self::E2m3 => format::E2M3_VALUES[(code & 0x3f) as usize],
            Self::E3m2 => format::E3M2_VALUES[(code & 0x3f) as usize],
            Self::E2m1 => format::E2M1_VALUES[(code & 0xf) as usize],
            Self::U8 => f32::from(code as u8),
            Self::S8 => f32::from(code as i8),
        }
    }

    /// Values of elements that lie side by side from the lowest bit of four words on, as many as `out` takes.
    #[inline]
    pub fn unpack(self, unit: [u32; 4], out: &mut [f32]) {
        // Loops, since closures over arrays are not always inlined.
        #[inline(always)]
        fn each<const N: usize>(codes: [u32; N], out: &mut [f32], value: impl Fn(u32) -> f32) {
            match <&mut [f32; N]>::try_from(&mut *out) {
                Ok(out) => {
                    for i in 0..N {
                        out[i] = value(codes[i]);
                    }
                }
                Err(_) => out.iter_mut().zip(codes).for_each(|(out, code)| *out = value(code)),
            }
        }
        #[inline(always)]
        fn fields<const N: usize>(unit: [u32; 4]) -> [u32; N] {
            let (per, bits) = (N / 4, 128 / N as u32);
            let mut fields = [0; N];
            for i in 0..N {
                fields[i] = unit[i / per] >> (bits * (i % per) as u32) & (u32::MAX >> (32 - bits));
            }
            fields
        }
        match self {
            Self::F16 => each(fields::<8>(unit), out, format::decode_f16_field),
            Self::Bf16 => each(fields::<8>(unit), out, |code| format::decode_bf16(code as u16)),
            Self::Tf32 => each(unit, out, format::decode_tf32),
            Self::E4m3 => each(fields::<16>(unit), out, |code| format::E4M3_VALUES[code as usize]),
            Self::E5m2 => each(fields::<16>(unit), out, |code| format::E5M2_VALUES[code as usize]),
            Self::U8 => each(fields::<16>(unit), out, |code| code as f32),
            Self::S8 => each(fields::<16>(unit), out, |code| f32::from(code as i8)),
            Self::E2m1 => each(fields::<32>(unit), out, |code| format::E2M1_VALUES[code as usize]),
            Self::E2m3 | Self::E3m2 => {
                let packed = unit.iter().rev().fold(0, |packed, &word| packed << 32 | u128::from(word));
                out.iter_mut().zip((0..).step_by(6)).for_each(|(out, at)| *out = self.value((packed >> at) as u32));
            }
        }
    }
}

/// Accumulator type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accumulator {
    /// 16-bit float, one per 32-bit cell.
    F16,
    /// 32-bit float.
    F32,
    /// 32-bit integer.
    S32,
}

/// Type of the block scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleType {
    /// Powers of two.
    Ue8m0,
    /// E4M3 without sign.
    Ue4m3,
}

/// `.block16`, `.block32` or none; `.scale_vec::1X/2X/4X` name the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// No block scales.
    None,
    /// One scale per 16 elements.
    B16,
    /// One scale per 32 elements.
    B32,
}

impl Block {
    /// Elements per scale; 0 without scales.
    pub const fn elements(self) -> u32 {
        match self {
            Self::None => 0,
            Self::B16 => 16,
            Self::B32 => 32,
        }
    }
}

/// What the instruction text and the target say beside the descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    /// `.kind`.
    pub kind: Kind,
    /// CTAs of the group, 1 or 2.
    pub group: u32,
    /// `.ws`.
    pub weight_stationary: bool,
    /// A in tensor memory.
    pub a_in_tensor_memory: bool,
    /// Scale block of the text, the default of the kind filled in.
    pub block: Block,
    /// Whether the target has K = 96.
    pub has_k96: bool,
}

/// A decoded and checked descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    /// Rows of D, both CTAs together.
    pub m: u32,
    /// Columns of D, both CTAs together.
    pub n: u32,
    /// Terms of each product.
    pub k: u32,
    /// Type of A.
    pub a: Element,
    /// Type of B.
    pub b: Element,
    /// Type of D.
    pub d: Accumulator,
    /// A is negated.
    pub negate_a: bool,
    /// B is negated.
    pub negate_b: bool,
    /// A is MN-major.
    pub transpose_a: bool,
    /// B is MN-major.
    pub transpose_b: bool,
    /// Integer results saturate.
    pub saturate: bool,
    /// Scale type; `None` without block scales.
    pub scale: Option<ScaleType>,
    /// Byte selector of the first scale of A.
    pub scale_a_id: u32,
    /// Byte selector of the first scale of B.
    pub scale_b_id: u32,
}

/// Why a descriptor is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("instruction descriptor {descriptor:#010x} (kind::{}): {field}: expected {expected}, got {given}", .kind.name())]
pub struct DescriptorError {
    /// The descriptor.
    pub descriptor: u32,
    /// Kind of the instruction.
    pub kind: Kind,
    /// Field at fault, with its bits.
    pub field: &'static str,
    /// What is allowed.
    pub expected: String,
    /// What it holds.
    pub given: String,
}

struct Decoder {
    bits: u32,
    context: Context,
}

type Result<T> = std::result::Result<T, DescriptorError>;

impl Decoder {
    fn field(&self, high: u32, low: u32) -> u32 {
        (self.bits >> low) & (u32::MAX >> (31 - (high - low)))
    }

    fn flag(&self, bit: u32) -> bool {
        self.field(bit, bit) == 1
    }

    fn fail<T>(&self, field: &'static str, expected: impl Into<String>, given: impl ToString) -> Result<T> {
        let (expected, given) = (expected.into(), given.to_string());
        Err(DescriptorError { descriptor: self.bits, kind: self.context.kind, field, expected, given })
    }

    fn zero(&self, field: &'static str, high: u32, low: u32) -> Result<()> {
        match self.field(high, low) {
            0 => Ok(()),
            value => self.fail(field, "0", value),
        }
    }

    fn element(&self, name: &'static str, code: u32) -> Result<Element> {
        use Element::*;
        let element = match (self.context.kind, code) {
            (Kind::F16, 0) => F16,
            (Kind::F16, 1) => Bf16,
            (Kind::Tf32, 2) => Tf32,
            (Kind::F8f6f4 | Kind::Mxf8f6f4, 0) => E4m3,
            (Kind::F8f6f4 | Kind::Mxf8f6f4, 1) => E5m2,
            (Kind::F8f6f4 | Kind::Mxf8f6f4, 3) => E2m3,
            (Kind::F8f6f4 | Kind::Mxf8f6f4, 4) => E3m2,
            (Kind::F8f6f4 | Kind::Mxf8f6f4, 5) => E2m1,
            (Kind::Mxf4 | Kind::Mxf4nvf4, 1) => E2m1,
            (Kind::I8, 0) => U8,
            (Kind::I8, 1) => S8,
            _ => return self.fail(name, "a format code of the kind", code),
        };
        Ok(element)
    }

    fn sparse(&self) -> Result<()> {
        if self.flag(2) { self.fail("sparse [2]", "0: sparse operands are not modelled", 1) } else { Ok(()) }
    }

    fn plain(&self) -> Result<Instruction> {
        let kind = self.context.kind;
        self.sparse()?;
        self.zero("sparsity selector [1:0]", 1, 0)?;
        self.zero("reserved [6]", 6, 6)?;
        self.zero("reserved [23]", 23, 23)?;
        self.zero("reserved [29]", 29, 29)?;
        if !self.context.weight_stationary {
            self.zero("maximum shift [31:30]", 31, 30)?;
        }
        if kind != Kind::I8 {
            self.zero("saturate [3]", 3, 3)?;
        }
        let (a, b) =
            (self.element("A format [9:7]", self.field(9, 7))?, self.element("B format [12:10]", self.field(12, 10))?);
        if kind == Kind::F16 && a != b {
            return self.fail(
                "B format [12:10]",
                "the format of A: mixing f16 and bf16 is not established",
                format!("{a:?} and {b:?}"),
            );
        }
        let d = match (self.field(5, 4), kind) {
            (0, Kind::F16) if a == Element::F16 => Accumulator::F16,
            (0, Kind::F8f6f4) => Accumulator::F16,
            (1, Kind::F16 | Kind::Tf32 | Kind::F8f6f4) => Accumulator::F32,
            (2, Kind::I8) => Accumulator::S32,
            (code, _) => {
                return self.fail("D format [5:4]", "0 (f16), 1 (f32) or 2 (s32) as the kind and A allow", code);
            }
        };
        if kind == Kind::I8 {
            self.zero("negate [14:13]", 14, 13)?;
        }
        let k = match kind {
            Kind::F16 => 16,
            Kind::Tf32 => 8,
            _ => 32,
        };
        Ok(Instruction {
            m: self.field(28, 24) << 4,
            n: self.field(22, 17) << 3,
            k,
            a,
            b,
            d,
            negate_a: self.flag(13),
            negate_b: self.flag(14),
            transpose_a: self.flag(15),
            transpose_b: self.flag(16),
            saturate: self.flag(3),
            scale: None,
            scale_a_id: 0,
            scale_b_id: 0,
        })
    }

    fn scaled(&self) -> Result<Instruction> {
        let kind = self.context.kind;
        let packed = kind.is_packed_fp4();
        self.sparse()?;
        self.zero("reserved [1:0]", 1, 0)?;
        self.zero("reserved [3]", 3, 3)?;
        self.zero("reserved [6]", 6, 6)?;
        self.zero("reserved [26:24]", 26, 24)?;
        if packed {
            self.zero("reserved [12]", 12, 12)?;
            self.zero("transpose [16:15]", 16, 15)?;
        } else {
            self.zero("reserved [31]", 31, 31)?;
        }
        let b_code = if packed { self.field(11, 10) } else { self.field(12, 10) };
        let scale = if self.flag(23) { ScaleType::Ue8m0 } else { ScaleType::Ue4m3 };
        let allowed = match (kind, self.context.block) {
            (Kind::Mxf8f6f4 | Kind::Mxf4, Block::B32) | (Kind::Mxf4nvf4, Block::B32) => scale == ScaleType::Ue8m0,
            (Kind::Mxf4nvf4, Block::B16) => true,
            _ => return self.fail("scale block", "a block size of the kind", format!("{:?}", self.context.block)),
        };
        if !allowed {
            return self.fail("scale type [23]", "1 (ue8m0) for this kind and block", 0);
        }
        let k = match (packed, self.flag(31)) {
            (true, true) if !self.context.has_k96 => return self.fail("K [31]", "0: the target has no K = 96", 1),
            (true, true) if self.context.a_in_tensor_memory => {
                return self.fail("K [31]", "0: K = 96 with A in tensor memory is not established", 1);
            }
            (true, true) => 96,
            (true, false) => 64,
            _ => 32,
        };
        let instruction = Instruction {
            m: self.field(28, 27) << 7,
            n: self.field(22, 17) << 3,
            k,
            a: self.element("A format [9:7]", self.field(9, 7))?,
            b: self.element("B format", b_code)?,
            d: Accumulator::F32,
            negate_a: self.flag(13),
            negate_b: self.flag(14),
            transpose_a: self.flag(15),
            transpose_b: self.flag(16),
            saturate: false,
            scale: Some(scale),
            scale_a_id: self.field(30, 29),
            scale_b_id: self.field(5, 4),
        };
        let scales = k / self.context.block.elements();
        for (name, id) in [("SFA id [30:29]", instruction.scale_a_id), ("SFB id [5:4]", instruction.scale_b_id)] {
            let legal: &[u32] = match scales {
                1 | 3 => &[0, 1, 2, 3],
                2 | 6 => &[0, 2],
                _ => &[0],
            };
            if !legal.contains(&id) {
                return self.fail(name, format!("one of {legal:?} with {scales} scales per row"), id);
            }
        }
        Ok(instruction)
    }

    fn check(&self, i: &Instruction) -> Result<()> {
        let Context { kind, group, weight_stationary, a_in_tensor_memory, .. } = self.context;
        let rows: &[u32] = match (weight_stationary, group) {
            (true, _) => &[32, 64, 128],
            (false, 1) if kind.is_block_scaled() => &[128],
            (false, 1) => &[64, 128],
            (false, _) => &[128, 256],
        };
        if !rows.contains(&i.m) {
            return self.fail("M", format!("one of {rows:?}"), i.m);
        }
        let columns = match (weight_stationary, group) {
            (true, _) => [64, 128, 256].contains(&i.n),
            (false, 1) if kind == Kind::I8 => {
                i.n <= 256 && (matches!(i.n, 8 | 24) || (i.n.is_multiple_of(16) && i.n > 0))
            }
            (false, 1) => (8..=256).contains(&i.n),
            (false, _) => (16..=256).contains(&i.n) && i.n.is_multiple_of(16),
        };
        if !columns {
            return self.fail("N [22:17]", "a size of the kind, group and M (ISA notes, tcgen05 4.4)", i.n);
        }
        if i.transpose_a && a_in_tensor_memory {
            return self.fail("transpose A [15]", "0 with A in tensor memory", 1);
        }
        for (name, transposed, element) in
            [("transpose A [15]", i.transpose_a, i.a), ("transpose B [16]", i.transpose_b, i.b)]
        {
            if transposed && element.bits() < 8 {
                return self.fail(name, "0 for 4- and 6-bit types", 1);
            }
        }
        if i.transpose_b && i.b.bits() == 8 && !i.n.is_multiple_of(16 * group) {
            return self.fail("N [22:17]", format!("a multiple of {} with an MN-major 8-bit B", 16 * group), i.n);
        }
        if i.k == 96 && i.m != 128 * group {
            return self.fail("M", format!("{} with K = 96", 128 * group), i.m);
        }
        Ok(())
    }
}

/// Decodes and checks a descriptor.
///
/// # Errors
/// [`DescriptorError`] names the field: reserved bits, formats, accumulator, M, N, K of the target, transposition,
/// scale type and ids. Sparse operands and combinations that no source establishes are refused.
pub fn decode(descriptor: u32, context: Context) -> Result<Instruction> {
    let decoder = Decoder { bits: descriptor, context };
    let instruction = if context.kind.is_block_scaled() { decoder.scaled()? } else { decoder.plain()? };
    decoder.check(&instruction)?;
    Ok(instruction)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(kind: Kind) -> Context {
        let block = match kind {
            Kind::Mxf8f6f4 | Kind::Mxf4 => Block::B32,
            Kind::Mxf4nvf4 => Block::B16,
            _ => Block::None,
        };
        Context { kind, group: 1, weight_stationary: false, a_in_tensor_memory: false, block, has_k96: false }
    }

    fn shape(bits: u32, context: Context) -> (u32, u32, u32) {
        let i = decode(bits, context).unwrap();
        (i.m, i.n, i.k)
    }

    #[test]
    fn check_values() {
        let f16 = context(Kind::F16);
        let i = decode(0x0840_0490, f16).unwrap();
        assert_eq!((i.m, i.n, i.k, i.a, i.b, i.d), (128, 256, 16, Element::Bf16, Element::Bf16, Accumulator::F32));
        assert_eq!(shape(0x0820_0010, context(Kind::F8f6f4)), (128, 128, 32));
        assert_eq!(shape(0x08c0_0000, context(Kind::Mxf8f6f4)), (128, 256, 32));
        let nv = context(Kind::Mxf4nvf4);
        let i = decode(0x0840_0480, nv).unwrap();
        assert_eq!((i.m, i.n, i.k, i.scale), (128, 256, 64, Some(ScaleType::Ue4m3)));
        assert_eq!(shape(0x8840_0480, Context { has_k96: true, ..nv }), (128, 256, 96));
        assert_eq!(shape(0x1040_0480, Context { group: 2, ..nv }), (256, 256, 64));
    }

    #[test]
    fn values_met_in_compiler_output() {
        let f16 = context(Kind::F16);
        let i = decode(0x0821_0010, f16).unwrap();
        assert_eq!((i.m, i.n, i.transpose_b, i.d), (128, 128, true, Accumulator::F32));
        assert_eq!(decode(0x0820_0000, f16).unwrap().d, Accumulator::F16);
        assert_eq!(shape(0x0420_0010, f16), (64, 128, 16));
        let i = decode(0x0821_8490, f16).unwrap();
        assert_eq!((i.a, i.transpose_a, i.transpose_b), (Element::Bf16, true, true));
        assert_eq!(shape(0x1020_0010, Context { group: 2, ..f16 }), (256, 128, 16));
        assert_eq!(shape(0x0820_0910, context(Kind::Tf32)), (128, 128, 8));
        assert_eq!(decode(0x0820_0490, context(Kind::F8f6f4)).unwrap().a, Element::E5m2);
        let i = decode(0x0820_04a0, context(Kind::I8)).unwrap();
        assert_eq!((i.a, i.d), (Element::S8, Accumulator::S32));
        for (id, bits) in [0x08a0_1400u32, 0x28a0_1410, 0x48a0_1420, 0x68a0_1430].into_iter().enumerate() {
            let i = decode(bits, context(Kind::Mxf8f6f4)).unwrap();
            assert_eq!((i.a, i.b, i.n), (Element::E4m3, Element::E2m1, 128));
            assert_eq!((i.scale_a_id, i.scale_b_id), (id as u32, id as u32));
        }
        for (id, bits) in [(0, 0x08a0_0480u32), (2, 0x48a0_04a0)] {
            let i = decode(bits, context(Kind::Mxf4)).unwrap();
            assert_eq!((i.scale_a_id, i.scale_b_id, i.scale), (id, id, Some(ScaleType::Ue8m0)));
        }
        assert_eq!(shape(0x0820_0480, context(Kind::Mxf4nvf4)), (128, 128, 64));
    }

    /// One wrong descriptor per rule, and the field its error names.
    #[test]
    fn every_rule_refuses() {
        let f16 = context(Kind::F16);
        let cta2 = Context { group: 2, ..f16 };
        let f8 = context(Kind::F8f6f4);
        let i8 = context(Kind::I8);
        let mx8 = context(Kind::Mxf8f6f4);
        let nv = context(Kind::Mxf4nvf4);
        let tmem = Context { a_in_tensor_memory: true, ..f16 };
        let cases = [
            (0x0840_0494, f16, "sparse"),
            (0x0840_0491, f16, "sparsity"),
            (0x0840_0498, f16, "saturate"),
            (0x0840_04d0, f16, "reserved [6]"),
            (0x08c0_0490, f16, "reserved [23]"),
            (0x2840_0490, f16, "reserved [29]"),
            (0x4840_0490, f16, "maximum shift"),
            (0x0840_0090, f16, "B format"),
            (0x0840_0590, f16, "A format"),
            (0x0840_0480, f16, "D format"),
            (0x0840_04a0, f16, "D format"),
            (0x0640_0490, f16, "M"),
            (0x1040_0490, f16, "M"),
            (0x0440_0490, cta2, "M"),
            (0x0800_0490, f16, "N"),
            (0x0842_0490, f16, "N"),
            (0x0802_0490, cta2, "N"),
            (0x0840_8490, tmem, "transpose A"),
            (0x0820_0810, f8, "B format"),
            (0x0821_1410, f8, "transpose B"),
            (0x0823_0010, f8, "N"),
            (0x0820_24a0, i8, "negate"),
            (0x080a_04a0, i8, "N"),
            (0x0840_0000, mx8, "scale type"),
            (0x0cc0_0000, mx8, "reserved [26:24]"),
            (0x88c0_0000, mx8, "reserved [31]"),
            (0x0840_0490, nv, "SFB id"),
            (0x2840_0480, nv, "SFA id"),
            (0x8840_0480, nv, "K [31]"),
            (0x0840_8480, nv, "transpose"),
            (0x0840_0880, nv, "B format"),
            (0x0840_0480, context(Kind::Mxf4), "scale type"),
            (0x0040_0480, nv, "M"),
        ];
        for (bits, context, field) in cases {
            let error = decode(bits, context).unwrap_err();
            assert!(error.field.starts_with(field), "{bits:#x} {:?}: {error}", context.kind);
        }
        let k96_tmem = Context { has_k96: true, a_in_tensor_memory: true, ..nv };
        assert!(decode(0x8840_0480, k96_tmem).unwrap_err().field.starts_with("K"));
    }

    #[test]
    fn weight_stationary_shapes() {
        let ws = Context { weight_stationary: true, ..context(Kind::F16) };
        assert_eq!(shape(0x0220_0010, ws), (32, 128, 16));
        assert_eq!(shape(0xc410_0010, ws), (64, 64, 16));
        assert!(decode(0x0208_0010, ws).unwrap_err().field.starts_with("N"));
    }
}
