//! Operands: registers, constants, addresses, vectors, labels.

use super::{Decoder, Label, Refusal, Symbol};
use crate::exec::{Op, moves::MoveOp};
use crate::isa::{Bank, Type};
use crate::machine::{P, R32, R64, R128, Reg};
use crate::parse::ast::{Address, Operand};

/// A memory operand: an optional register plus a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addr {
    /// Register added, 32 or 64 bits.
    pub base: Option<Reg>,
    /// Constant added.
    pub offset: i64,
}

macro_rules! special_registers {
    ($($name:ident $word:literal),* $(,)?) => {
        /// Special registers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum SpecialRegister {
            $(#[doc = concat!("`", $word, "`")] $name,)*
        }

        impl SpecialRegister {
            /// The register of a name, `%tid.x`.
            pub fn parse(word: &str) -> Option<SpecialRegister> {
                Some(match word { $($word => SpecialRegister::$name,)* _ => return None })
            }
        }
    };
}

special_registers! {
    TidX "%tid.x", TidY "%tid.y", TidZ "%tid.z",
    NtidX "%ntid.x", NtidY "%ntid.y", NtidZ "%ntid.z",
    CtaidX "%ctaid.x", CtaidY "%ctaid.y", CtaidZ "%ctaid.z",
    NctaidX "%nctaid.x", NctaidY "%nctaid.y", NctaidZ "%nctaid.z",
    Laneid "%laneid", Warpid "%warpid", Nwarpid "%nwarpid", Smid "%smid", Nsmid "%nsmid", Gridid "%gridid",
    ClusteridX "%clusterid.x", ClusteridY "%clusterid.y", ClusteridZ "%clusterid.z",
    NclusteridX "%nclusterid.x", NclusteridY "%nclusterid.y", NclusteridZ "%nclusterid.z",
    ClusterCtaidX "%cluster_ctaid.x", ClusterCtaidY "%cluster_ctaid.y", ClusterCtaidZ "%cluster_ctaid.z",
    ClusterNctaidX "%cluster_nctaid.x", ClusterNctaidY "%cluster_nctaid.y", ClusterNctaidZ "%cluster_nctaid.z",
    ClusterCtarank "%cluster_ctarank", ClusterNctarank "%cluster_nctarank", IsExplicitCluster "%is_explicit_cluster",
    LanemaskEq "%lanemask_eq", LanemaskLe "%lanemask_le", LanemaskLt "%lanemask_lt", LanemaskGe "%lanemask_ge", LanemaskGt "%lanemask_gt",
    Clock "%clock", ClockHi "%clock_hi", Clock64 "%clock64", Globaltimer "%globaltimer", GlobaltimerLo "%globaltimer_lo", GlobaltimerHi "%globaltimer_hi",
    DynamicSmemSize "%dynamic_smem_size", TotalSmemSize "%total_smem_size", AggrSmemSize "%aggr_smem_size",
    GridWorkspaceHigh "%envreg1", GridWorkspaceLow "%envreg2", CurrentGraphExec "%current_graph_exec",
    ReservedSmemBegin "%reserved_smem_offset_begin", ReservedSmemEnd "%reserved_smem_offset_end", ReservedSmemCap "%reserved_smem_offset_cap",
}

impl SpecialRegister {
    /// 64-bit registers.
    pub fn is_wide(self) -> bool {
        matches!(
            self,
            SpecialRegister::Clock64
                | SpecialRegister::Globaltimer
                | SpecialRegister::Gridid
                | SpecialRegister::CurrentGraphExec
        )
    }
}

/// The bits of an integer literal in a type, when they fit.
fn integer_bits(value: i128, bytes: u32) -> Option<u128> {
    let bits = bytes * 8;
    if bits == 128 {
        return Some(value as u128);
    }
    let least = -(1i128 << (bits - 1));
    let most = (1i128 << bits) - 1;
    (least..=most).contains(&value).then_some(value as u128 & ((1u128 << bits) - 1))
}

impl Decoder<'_> {
    /// A register by name.
    pub(crate) fn register(&self, name: &str) -> Option<(Reg, Type)> {
        let found = self.find_register(name);
        if let Some((Reg::R32(reg), _)) = found {
            self.named.borrow_mut().all.push(reg);
        }
        found
    }

    fn note_written(&self, reg: Reg) {
        if let Reg::R32(reg) = reg {
            self.named.borrow_mut().written.push(reg);
        }
    }

    fn find_register(&self, name: &str) -> Option<(Reg, Type)> {
        match self.lookup(name) {
            Some(Symbol::Register(reg, ty)) => return Some((*reg, *ty)),
            Some(_) => return None,
            None => {}
        }
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        // `%r12` with `.reg .b32 %r<20>`, and `%r12` with `.reg .b32 %r1<5>`: try every split.
        for cut in (name.len() - digits)..name.len() {
            let number = &name[cut..];
            if number.len() > 1 && number.starts_with('0') {
                continue;
            }
            let Ok(number) = number.parse::<u32>() else {
                continue;
            };
            for scope in self.scopes.iter().rev() {
                if let Some(Symbol::Registers { first, count, ty }) = scope.get(&name[..cut])
                    && number < *count
                {
                    return Some((register_of(*ty, first + number), *ty));
                }
            }
        }
        None
    }

    /// A source or destination register that must exist.
    fn expect_register(&self, name: &str) -> Result<(Reg, Type), Refusal> {
        self.register(name).map_or_else(|| Refusal::invalid(format!("{name} is not declared as a register")), Ok)
    }

    /// A predicate to read and whether it is negated.
    pub fn pred(&mut self, operand: &Operand) -> Result<(P, bool), Refusal> {
        match operand {
            Operand::Name(name) => match self.expect_register(name)? {
                (Reg::P(p), _) => Ok((p, false)),
                (_, ty) => Refusal::invalid(format!("expected a predicate, got {name} (.{})", ty.word())),
            },
            Operand::Not(name) => {
                let (p, _) = self.pred(&Operand::Name(name.clone()))?;
                Ok((p, true))
            }
            Operand::Integer(value) => Ok((self.constant_pred(*value != 0), false)),
            other => Refusal::invalid(format!("expected a predicate, got {other:?}")),
        }
    }

    /// A predicate to write.
    pub fn dst_pred(&mut self, operand: &Operand) -> Result<P, Refusal> {
        match operand {
            Operand::Sink => Ok(self.fresh_pred()),
            _ => match self.pred(operand)? {
                (p, false) if self.constant_predicates.iter().all(|c| *c != Some(p)) => Ok(p),
                _ => Refusal::invalid("expected a predicate register to write"),
            },
        }
    }

    /// A register to write whose bank is that of `ty`.
    pub fn dst(&mut self, operand: &Operand, ty: Type) -> Result<Reg, Refusal> {
        match operand {
            Operand::Sink => Ok(self.fresh(ty)),
            Operand::Name(name) => {
                let (reg, declared) = self.expect_register(name)?;
                if declared.bank() != ty.bank() {
                    return Refusal::invalid(format!(
                        "expected a register for .{}, got {name} (.{})",
                        ty.word(),
                        declared.word()
                    ));
                }
                self.note_written(reg);
                Ok(reg)
            }
            other => Refusal::invalid(format!("expected a register to write, got {other:?}")),
        }
    }

    /// A register to write that may be wider than `ty` (loads and conversions).
    pub fn dst_any(&mut self, operand: &Operand, ty: Type) -> Result<(Reg, Type), Refusal> {
        match operand {
            Operand::Name(name) => {
                let (reg, declared) = self.expect_register(name)?;
                if declared.bytes() < ty.bytes() || declared == Type::Pred {
                    return Refusal::invalid(format!(
                        "expected a register of at least {} bytes, got {name} (.{})",
                        ty.bytes(),
                        declared.word()
                    ));
                }
                self.note_written(reg);
                Ok((reg, declared))
            }
            _ => Ok((self.dst(operand, ty)?, ty)),
        }
    }

    /// A 32-bit register to write.
    pub fn dst32(&mut self, operand: &Operand) -> Result<R32, Refusal> {
        match self.dst(operand, Type::B32)? {
            Reg::R32(r) => Ok(r),
            other => Refusal::invalid(format!("expected a 32-bit register, got {other:?}")),
        }
    }

    /// A 64-bit register to write.
    pub fn dst64(&mut self, operand: &Operand) -> Result<R64, Refusal> {
        match self.dst(operand, Type::B64)? {
            Reg::R64(r) => Ok(r),
            other => Refusal::invalid(format!("expected a 64-bit register, got {other:?}")),
        }
    }

    /// A value to read in the bank of `ty`: register, literal, special register or address of a symbol.
    pub fn src(&mut self, operand: &Operand, ty: Type) -> Result<Reg, Refusal> {
        if let Operand::Name(name) = operand
            && let Some((reg, declared)) = self.register(name)
        {
            if declared.bank() != ty.bank() {
                return Refusal::invalid(format!(
                    "expected a register for .{}, got {name} (.{})",
                    ty.word(),
                    declared.word()
                ));
            }
            return Ok(reg);
        }
        self.src_any(operand, ty).map(|(reg, _)| reg)
    }

    /// A value to read that may be in a wider register than `ty` (stores and conversions), and its type.
    pub fn src_any(&mut self, operand: &Operand, ty: Type) -> Result<(Reg, Type), Refusal> {
        match operand {
            Operand::Name(name) => {
                if let Some((reg, declared)) = self.register(name) {
                    if declared.bytes() < ty.bytes() && ty != Type::Pred {
                        return Refusal::invalid(format!(
                            "expected a register of at least {} bytes, got {name} (.{})",
                            ty.bytes(),
                            declared.word()
                        ));
                    }
                    return Ok((reg, declared));
                }
                if let Some(special) = SpecialRegister::parse(name) {
                    return self.special(special, ty);
                }
                if name == "WARP_SZ" {
                    return self.src_any(&Operand::Integer(32), ty);
                }
                self.symbol_address(name, 0, ty)
            }
            Operand::SymbolOffset(name, offset) => self.symbol_address(name, *offset, ty),
            Operand::Integer(value) => {
                if ty.bank() == Bank::Pred {
                    return Ok((Reg::P(self.constant_pred(*value != 0)), ty));
                }
                let float = match ty {
                    Type::F32 => Some(u128::from((*value as f32).to_bits())),
                    Type::F64 => Some(u128::from((*value as f64).to_bits())),
                    _ => None,
                };
                let bits = float.or_else(|| integer_bits(*value, ty.bytes()));
                let Some(bits) = bits else {
                    return Refusal::invalid(format!("{value} does not fit .{}", ty.word()));
                };
                Ok((self.constant(bits, ty), ty))
            }
            Operand::Float32(bits) => match ty {
                Type::F64 => {
                    let wide = f64::from(f32::from_bits(*bits)).to_bits();
                    Ok((Reg::R64(self.constant64(wide)), ty))
                }
                _ if ty.bank() == Bank::W32 && ty.bytes() == 4 => Ok((Reg::R32(self.constant32(*bits)), ty)),
                _ => Refusal::invalid(format!("a 32-bit float literal does not fit .{}", ty.word())),
            },
            Operand::Float64(bits) => match ty {
                Type::F32 => {
                    let narrow = (f64::from_bits(*bits) as f32).to_bits();
                    Ok((Reg::R32(self.constant32(narrow)), ty))
                }
                _ if ty.bank() == Bank::W64 => Ok((Reg::R64(self.constant64(*bits)), ty)),
                _ => Refusal::invalid(format!("a 64-bit float literal does not fit .{}", ty.word())),
            },
            Operand::Vector(parts) => {
                let reg = crate::exec::moves::pack(self, parts, ty)?;
                Ok((reg, ty))
            }
            Operand::Sink => Ok((self.constant(0, ty), ty)),
            other => Refusal::invalid(format!("expected a value, got {other:?}")),
        }
    }

    /// A 32-bit value to read.
    pub fn src32(&mut self, operand: &Operand) -> Result<R32, Refusal> {
        match self.src(operand, Type::B32)? {
            Reg::R32(r) => Ok(r),
            other => Refusal::invalid(format!("expected a 32-bit value, got {other:?}")),
        }
    }

    /// A 64-bit value to read.
    pub fn src64(&mut self, operand: &Operand) -> Result<R64, Refusal> {
        match self.src(operand, Type::B64)? {
            Reg::R64(r) => Ok(r),
            other => Refusal::invalid(format!("expected a 64-bit value, got {other:?}")),
        }
    }

    /// A 128-bit value to read.
    pub fn src128(&mut self, operand: &Operand) -> Result<R128, Refusal> {
        match self.src(operand, Type::B128)? {
            Reg::R128(r) => Ok(r),
            other => Refusal::invalid(format!("expected a 128-bit value, got {other:?}")),
        }
    }

    /// An integer literal.
    pub fn immediate(&self, operand: &Operand) -> Result<i64, Refusal> {
        match operand {
            Operand::Integer(value) => {
                i64::try_from(*value).or_else(|_| Refusal::invalid(format!("{value} is out of range")))
            }
            other => Refusal::invalid(format!("expected an integer literal, got {other:?}")),
        }
    }

    /// The elements of `{a, b}`, or the operand alone.
    pub fn elements<'o>(&self, operand: &'o Operand) -> &'o [Operand] {
        match operand {
            Operand::Vector(items) => items,
            other => std::slice::from_ref(other),
        }
    }

    /// The two halves of `d|p`; the second is `None` when it is not written.
    pub fn pair<'o>(&self, operand: &'o Operand) -> (&'o Operand, Option<&'o Operand>) {
        match operand {
            Operand::Pair(first, second) => (first, Some(second)),
            other => (other, None),
        }
    }

    /// A memory operand `[base + offset]`, anything else inside the brackets being an error.
    pub fn address(&mut self, operand: &Operand) -> Result<Addr, Refusal> {
        let Operand::Address(address) = operand else {
            return Refusal::invalid(format!("expected an address in brackets, got {operand:?}"));
        };
        if !address.rest.is_empty() {
            return Refusal::invalid("expected one base and offset inside the brackets");
        }
        self.base(address)
    }

    /// The base and offset of a memory operand, what follows inside the brackets being left to the caller.
    pub fn base(&mut self, address: &Address) -> Result<Addr, Refusal> {
        let Some(name) = &address.base else {
            return Ok(Addr { base: None, offset: address.offset });
        };
        if let Some((reg, ty)) = self.register(name) {
            if !matches!(reg, Reg::R32(_) | Reg::R64(_)) || ty.bytes() < 4 {
                return Refusal::invalid(format!("expected a 32- or 64-bit address, got {name} (.{})", ty.word()));
            }
            if matches!(reg, Reg::R32(_)) {
                expect_near(address.offset)?;
            }
            return Ok(Addr { base: Some(reg), offset: address.offset });
        }
        let offset = address.offset;
        match self.lookup(name).cloned() {
            Some(Symbol::Global(at)) => Ok(Addr { base: None, offset: at as i64 + offset }),
            Some(Symbol::Param(at) | Symbol::Local(at, _)) => Ok(Addr { base: None, offset: i64::from(at) + offset }),
            Some(Symbol::Shared(_) | Symbol::SharedDynamic) => {
                expect_near(offset)?;
                let (reg, _) = self.symbol_address(name, 0, Type::U32)?;
                Ok(Addr { base: Some(reg), offset })
            }
            _ => Refusal::invalid(format!("{name} is not declared")),
        }
    }

    /// Whether the base of a memory operand names an entry parameter.
    pub(crate) fn is_entry_param(&self, operand: &Operand) -> bool {
        match operand {
            Operand::Address(Address { base: Some(name), .. }) => {
                matches!(self.lookup(name), Some(Symbol::Param(_)))
            }
            _ => false,
        }
    }

    /// A label to jump to. The operation holds its number until the whole program is decoded.
    pub(crate) fn label(&self, operand: &Operand) -> Result<Label, Refusal> {
        match operand {
            Operand::Name(name) => match self.lookup(name) {
                Some(Symbol::Code(label)) => Ok(*label),
                _ => Refusal::invalid(format!("{name} is not a label")),
            },
            other => Refusal::invalid(format!("expected a label, got {other:?}")),
        }
    }

    fn constant(&mut self, bits: u128, ty: Type) -> Reg {
        match ty.bank() {
            Bank::Pred => Reg::P(self.constant_pred(bits != 0)),
            Bank::W32 => Reg::R32(self.constant32(bits as u32)),
            Bank::W64 => Reg::R64(self.constant64(bits as u64)),
            Bank::W128 => Reg::R128(self.constant128(bits)),
        }
    }

    fn special(&mut self, special: SpecialRegister, ty: Type) -> Result<(Reg, Type), Refusal> {
        let natural = if special.is_wide() { Type::U64 } else { Type::U32 };
        let reg = self.fresh(natural);
        self.emit(Op::Move(MoveOp::Special { d: reg, special }));
        self.fit(reg, natural, ty)
    }

    /// A value of 4 or 8 bytes in the bank of `ty`.
    fn fit(&mut self, reg: Reg, natural: Type, ty: Type) -> Result<(Reg, Type), Refusal> {
        if natural.bank() == ty.bank() {
            return Ok((reg, natural));
        }
        let out = self.fresh(ty);
        self.emit(Op::Move(MoveOp::Resize { d: out, a: reg }));
        Ok((out, ty))
    }

    /// The address of a symbol as a value: 32 bits in its space's window, 64 bits in the space.
    fn symbol_address(&mut self, name: &str, offset: i64, ty: Type) -> Result<(Reg, Type), Refusal> {
        let Some(symbol) = self.lookup(name).cloned() else {
            return Refusal::invalid(format!("{name} is not declared"));
        };
        let dynamic = matches!(symbol, Symbol::SharedDynamic);
        match symbol {
            Symbol::Global(at) => Ok((self.constant(u128::from(at.wrapping_add_signed(offset)), Type::U64), Type::U64)),
            Symbol::Param(at) | Symbol::Local(at, _) => {
                let at = i64::from(at) + offset;
                Ok((self.constant(at as u64 as u128 & mask_of(ty), ty), ty))
            }
            Symbol::Shared(_) | Symbol::SharedDynamic => {
                let at = if let Symbol::Shared(at) = symbol { at } else { 0 };
                let reg = self.fresh32();
                self.emit(Op::Move(MoveOp::SharedAddress { d: reg, offset: at.wrapping_add(offset as u32), dynamic }));
                self.fit(Reg::R32(reg), Type::U32, ty)
            }
            Symbol::Code(_) | Symbol::Targets(_) => {
                Refusal::missing(format!("the address of the function or label {name} as a value"))
            }
            Symbol::Register(..) | Symbol::Registers { .. } => Refusal::invalid(format!("{name} is not a value")),
        }
    }
}

/// Addresses of 32 bits wrap; an offset beyond that, negative or not, is no offset but a mistake.
fn expect_near(offset: i64) -> Result<(), Refusal> {
    if (i64::from(i32::MIN)..=i64::from(u32::MAX)).contains(&offset) {
        return Ok(());
    }
    Refusal::invalid(format!("expected an offset that fits the 32 bits of the address, got {offset}"))
}

fn mask_of(ty: Type) -> u128 {
    if ty.bytes() >= 16 { u128::MAX } else { (1u128 << ty.bits()) - 1 }
}

/// The register of number `index` in the bank of `ty`.
pub(crate) fn register_of(ty: Type, index: u32) -> Reg {
    match ty.bank() {
        Bank::Pred => Reg::P(P(index)),
        Bank::W32 => Reg::R32(R32(index)),
        Bank::W64 => Reg::R64(R64(index)),
        Bank::W128 => Reg::R128(R128(index)),
    }
}
