//! Element-wise reductions of copies: `cp.reduce.async.bulk`, its tensor form, `red.async`.

use crate::isa::Type;
use crate::numerics::arith::{self, Half, HalfType, MinMax};
use crate::numerics::format::Rounding;
use crate::parse::ast::Instruction;

/// What is computed from the old value and the operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// Sum.
    Add,
    /// The smaller.
    Min,
    /// The larger.
    Max,
    /// `old >= operand ? 0 : old + 1`
    Inc,
    /// `old == 0 || old > operand ? operand : old - 1`
    Dec,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
}

impl Function {
    /// The function that an instruction names.
    pub fn of(instruction: &Instruction) -> Option<Function> {
        instruction.choose(&[
            ("add", Function::Add),
            ("min", Function::Min),
            ("max", Function::Max),
            ("inc", Function::Inc),
            ("dec", Function::Dec),
            ("and", Function::And),
            ("or", Function::Or),
            ("xor", Function::Xor),
        ])
    }
}

/// A reduction of elements of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reduction {
    /// Function.
    pub function: Function,
    /// Element type.
    pub ty: Type,
}

impl Reduction {
    /// Whether the function is defined for the type.
    pub fn is_defined(self) -> bool {
        use Type::{B32, B64, Bf16, F16, F32, F64, S32, S64, U32, U64};
        match self.function {
            Function::Add => matches!(self.ty, U32 | S32 | U64 | F32 | F64 | F16 | Bf16),
            Function::Min | Function::Max => matches!(self.ty, U32 | S32 | U64 | S64 | F16 | Bf16),
            Function::Inc | Function::Dec => self.ty == U32,
            Function::And | Function::Or | Function::Xor => matches!(self.ty, B32 | B64),
        }
    }

    /// The new value. `f32` sums flush subnormal inputs and results on global memory and keep them on shared memory.
    pub fn apply(self, old: u64, operand: u64, flush: bool) -> u64 {
        match self.ty {
            Type::F16 | Type::Bf16 => self.half(old as u16, operand as u16).into(),
            Type::F32 => {
                let value = |bits: u64| f32::from_bits(bits as u32);
                let input = |bits| if flush { arith::flush(value(bits)) } else { value(bits) };
                let sum = arith::add(input(old), input(operand), Rounding::NearestEven);
                u64::from(if flush { arith::flush(sum) } else { sum }.to_bits())
            }
            Type::F64 => arith::add_f64(f64::from_bits(old), f64::from_bits(operand), Rounding::NearestEven).to_bits(),
            _ => self.integer(old, operand),
        }
    }

    fn half(self, old: u16, operand: u16) -> u16 {
        let kind = if self.ty == Type::F16 { HalfType::F16 } else { HalfType::Bf16 };
        match self.function {
            Function::Add => kind.add(old, operand, Half::default()),
            function => {
                let how = MinMax { max: function == Function::Max, ..MinMax::default() };
                arith::min_max_half(kind, old, operand, how)
            }
        }
    }

    fn integer(self, old: u64, operand: u64) -> u64 {
        let signed = |x: u64| if self.ty == Type::S32 { i64::from(x as i32) } else { x as i64 };
        let is_signed = matches!(self.ty, Type::S32 | Type::S64);
        let less = if is_signed { signed(old) < signed(operand) } else { old < operand };
        let result = match self.function {
            Function::Add => old.wrapping_add(operand),
            Function::Min => {
                if less {
                    old
                } else {
                    operand
                }
            }
            Function::Max => {
                if less {
                    operand
                } else {
                    old
                }
            }
            Function::Inc => {
                if old >= operand {
                    0
                } else {
                    old + 1
                }
            }
            Function::Dec => {
                if old == 0 || old > operand {
                    operand
                } else {
                    old - 1
                }
            }
            Function::And => old & operand,
            Function::Or => old | operand,
            Function::Xor => old ^ operand,
        };
        if self.ty.bytes() == 4 { result & 0xffff_ffff } else { result }
    }

    /// Applies the reduction to little-endian elements in place.
    pub fn fold(self, old: &mut [u8], operand: &[u8], flush: bool) {
        let bytes = self.ty.bytes() as usize;
        for (old, operand) in old.chunks_exact_mut(bytes).zip(operand.chunks_exact(bytes)) {
            let result = self.apply(little(old), little(operand), flush);
            old.copy_from_slice(&result.to_le_bytes()[..bytes]);
        }
    }
}

fn little(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(wide)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(function: Function, ty: Type, old: u64, operand: u64) -> u64 {
        let reduction = Reduction { function, ty };
        assert!(reduction.is_defined());
        reduction.apply(old, operand, true)
    }

    #[test]
    fn integers() {
        let minus_one = 0xffff_ffff;
        assert_eq!(apply(Function::Add, Type::S32, minus_one, 3), 2);
        assert_eq!(apply(Function::Add, Type::U64, u64::MAX, 3), 2);
        assert_eq!(apply(Function::Min, Type::S32, minus_one, 3), minus_one);
        assert_eq!(apply(Function::Min, Type::U32, minus_one, 3), 3);
        assert_eq!(apply(Function::Max, Type::S64, u64::MAX, 3), 3);
        assert_eq!(apply(Function::Inc, Type::U32, 4, 4), 0);
        assert_eq!(apply(Function::Inc, Type::U32, 3, 4), 4);
        assert_eq!(apply(Function::Dec, Type::U32, 0, 4), 4);
        assert_eq!(apply(Function::Dec, Type::U32, 9, 4), 4);
        assert_eq!(apply(Function::Dec, Type::U32, 3, 4), 2);
        assert_eq!(apply(Function::And, Type::B32, 6, 3), 2);
        assert_eq!(apply(Function::Or, Type::B64, 6 << 40, 3), 6 << 40 | 3);
        assert_eq!(apply(Function::Xor, Type::B32, 6, 3), 5);
    }

    #[test]
    fn floats() {
        let bits = |x: f32| u64::from(x.to_bits());
        assert_eq!(apply(Function::Add, Type::F32, bits(1.5), bits(2.25)), bits(3.75));
        assert_eq!(apply(Function::Add, Type::F32, 1, 1), 0, "subnormals are flushed on global memory");
        assert_eq!(Reduction { function: Function::Add, ty: Type::F32 }.apply(1, 1, false), 2);
        assert_eq!(apply(Function::Add, Type::F64, 1.5f64.to_bits(), 2f64.to_bits()), 3.5f64.to_bits());
        assert_eq!(apply(Function::Add, Type::F16, 0x3c00, 0x0001), 0x3c00);
        assert_eq!(apply(Function::Add, Type::F16, 1, 1), 2, "f16 keeps subnormals");
        assert_eq!(apply(Function::Max, Type::Bf16, 0x3f80, 0xbf80), 0x3f80);
        assert!(!Reduction { function: Function::Min, ty: Type::F32 }.is_defined());
    }
}
