//! Element types as PTX writes them.

/// Register banks of a warp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bank {
    /// One bit per lane.
    Pred,
    /// 8, 16 and 32-bit values, zero-extended.
    W32,
    /// 64-bit values.
    W64,
    /// 128-bit values.
    W128,
}

macro_rules! types {
    ($($name:ident $word:literal $bytes:literal),* $(,)?) => {
        /// An element type.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Type {
            $(#[doc = concat!("`.", $word, "`")] $name,)*
        }

        impl Type {
            /// The type named by a modifier, `f32`.
            pub fn parse(word: &str) -> Option<Type> {
                Some(match word { $($word => Type::$name,)* _ => return None })
            }

            /// The word without the dot.
            pub fn word(self) -> &'static str {
                match self { $(Type::$name => $word,)* }
            }

            /// Bytes in memory and in a register.
            pub fn bytes(self) -> u32 {
                match self { $(Type::$name => $bytes,)* }
            }
        }
    };
}

types! {
    Pred "pred" 1,
    B8 "b8" 1, B16 "b16" 2, B32 "b32" 4, B64 "b64" 8, B128 "b128" 16,
    U8 "u8" 1, U16 "u16" 2, U32 "u32" 4, U64 "u64" 8,
    S8 "s8" 1, S16 "s16" 2, S32 "s32" 4, S64 "s64" 8,
    F16 "f16" 2, F16x2 "f16x2" 4, Bf16 "bf16" 2, Bf16x2 "bf16x2" 4,
    F32 "f32" 4, F32x2 "f32x2" 8, F64 "f64" 8, Tf32 "tf32" 4,
    U16x2 "u16x2" 4, S16x2 "s16x2" 4,
    E4m3 "e4m3" 1, E5m2 "e5m2" 1, E3m2 "e3m2" 1, E2m3 "e2m3" 1, E2m1 "e2m1" 1, Ue8m0 "ue8m0" 1, Ue4m3 "ue4m3" 1,
    E4m3x2 "e4m3x2" 2, E5m2x2 "e5m2x2" 2, E3m2x2 "e3m2x2" 2, E2m3x2 "e2m3x2" 2, E2m1x2 "e2m1x2" 1,
    Ue8m0x2 "ue8m0x2" 2, S2f6x2 "s2f6x2" 2, Ue5m3x2 "ue5m3x2" 2,
    E4m3x4 "e4m3x4" 4, E5m2x4 "e5m2x4" 4, E3m2x4 "e3m2x4" 4, E2m3x4 "e2m3x4" 4, E2m1x4 "e2m1x4" 2,
}

impl Type {
    /// The bank whose registers hold the type.
    pub fn bank(self) -> Bank {
        match (self, self.bytes()) {
            (Type::Pred, _) => Bank::Pred,
            (_, 1..=4) => Bank::W32,
            (_, 8) => Bank::W64,
            _ => Bank::W128,
        }
    }

    /// `.s8` to `.s64`.
    pub fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    /// A floating-point type of one element.
    pub fn is_float(self) -> bool {
        matches!(self, Type::F16 | Type::Bf16 | Type::F32 | Type::F64)
    }

    /// Bits in memory and in a register.
    pub fn bits(self) -> u32 {
        self.bytes() * 8
    }
}
