//! The registers of one warp, one bank per width, 32 lanes side by side.

/// Lanes of a warp.
pub const WARP: usize = 32;

/// Index of a predicate register: one bit per lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct P(pub u32);
/// Index of a 32-bit register; narrower values are zero-extended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct R32(pub u32);
/// Index of a 64-bit register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct R64(pub u32);
/// Index of a 128-bit register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct R128(pub u32);

/// A register of any bank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reg {
    /// Predicate.
    P(P),
    /// 32 bits or fewer.
    R32(R32),
    /// 64 bits.
    R64(R64),
    /// 128 bits.
    R128(R128),
}

/// How many registers each bank has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegCounts {
    /// Predicates.
    pub pred: u32,
    /// 32-bit registers.
    pub w32: u32,
    /// 64-bit registers.
    pub w64: u32,
    /// 128-bit registers.
    pub w128: u32,
}

/// Register values of the 32 lanes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Regs {
    /// Predicates, bit per lane.
    pub pred: Vec<u32>,
    /// 32-bit registers.
    pub w32: Vec<[u32; WARP]>,
    /// 64-bit registers.
    pub w64: Vec<[u64; WARP]>,
    /// 128-bit registers.
    pub w128: Vec<[u128; WARP]>,
}

/// A value that lives in one bank.
pub trait Word: Copy + Default {
    /// The index type of the bank.
    type Index: Copy;
    /// The 32 lanes of a register.
    fn get(regs: &Regs, index: Self::Index) -> &[Self; WARP];
    /// The 32 lanes of a register, to write.
    fn get_mut(regs: &mut Regs, index: Self::Index) -> &mut [Self; WARP];
}

macro_rules! word {
    ($ty:ty, $index:ident, $bank:ident) => {
        impl Word for $ty {
            type Index = $index;
            #[inline(always)]
            fn get(regs: &Regs, index: $index) -> &[Self; WARP] {
                &regs.$bank[index.0 as usize]
            }
            #[inline(always)]
            fn get_mut(regs: &mut Regs, index: $index) -> &mut [Self; WARP] {
                &mut regs.$bank[index.0 as usize]
            }
        }
    };
}
word!(u32, R32, w32);
word!(u64, R64, w64);
word!(u128, R128, w128);

impl Regs {
    /// Registers of value 0.
    pub fn new(counts: RegCounts) -> Regs {
        Regs {
            pred: vec![0; counts.pred as usize],
            w32: vec![[0; WARP]; counts.w32 as usize],
            w64: vec![[0; WARP]; counts.w64 as usize],
            w128: vec![[0; WARP]; counts.w128 as usize],
        }
    }

    /// The lanes of a register.
    #[inline(always)]
    pub fn get<W: Word>(&self, index: W::Index) -> &[W; WARP] {
        W::get(self, index)
    }

    /// The lanes of a register, to write.
    #[inline(always)]
    pub fn get_mut<W: Word>(&mut self, index: W::Index) -> &mut [W; WARP] {
        W::get_mut(self, index)
    }

    /// Writes the lanes of `mask`.
    #[inline(always)]
    pub fn set<W: Word>(&mut self, index: W::Index, mask: u32, values: &[W; WARP]) {
        let target = W::get_mut(self, index);
        if mask == u32::MAX {
            *target = *values;
        } else {
            for (lane, (t, v)) in target.iter_mut().zip(values).enumerate() {
                *t = if mask >> lane & 1 != 0 { *v } else { *t };
            }
        }
    }

    /// Writes one lane.
    #[inline]
    pub fn set_lane<W: Word>(&mut self, index: W::Index, lane: usize, value: W) {
        W::get_mut(self, index)[lane] = value;
    }

    /// Writes the predicate bits of `mask`.
    #[inline(always)]
    pub fn set_pred(&mut self, index: P, mask: u32, bits: u32) {
        let target = &mut self.pred[index.0 as usize];
        *target = *target & !mask | bits & mask;
    }

    /// A lane of any register but a predicate, zero-extended to 128 bits.
    #[inline]
    pub fn lane_bits(&self, reg: Reg, lane: usize) -> u128 {
        match reg {
            Reg::P(p) => (self.pred[p.0 as usize] >> lane & 1).into(),
            Reg::R32(r) => self.w32[r.0 as usize][lane].into(),
            Reg::R64(r) => self.w64[r.0 as usize][lane].into(),
            Reg::R128(r) => self.w128[r.0 as usize][lane],
        }
    }

    /// Writes a lane of any register, truncating.
    #[inline]
    pub fn set_lane_bits(&mut self, reg: Reg, lane: usize, bits: u128) {
        match reg {
            Reg::P(p) => self.set_pred(p, 1 << lane, (bits as u32 & 1) << lane),
            Reg::R32(r) => self.w32[r.0 as usize][lane] = bits as u32,
            Reg::R64(r) => self.w64[r.0 as usize][lane] = bits as u64,
            Reg::R128(r) => self.w128[r.0 as usize][lane] = bits,
        }
    }

    /// A 32- or 64-bit register widened to 64 bits per lane, as addresses are.
    #[inline]
    pub fn wide(&self, reg: Reg) -> [u64; WARP] {
        match reg {
            Reg::R64(r) => self.w64[r.0 as usize],
            Reg::R32(r) => self.w32[r.0 as usize].map(u64::from),
            other => std::array::from_fn(|lane| self.lane_bits(other, lane) as u64),
        }
    }
}
