//! Module-scope variables: sizes, initial bytes, addresses.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::isa::Type;
use crate::parse::ast::{Init, Module, Variable};

/// Addresses of global and constant variables, and of functions.
pub type Globals = HashMap<String, u64>;

/// Window of the addresses of functions: nothing can be read there.
const CODE_WINDOW: u64 = 0x0000_7f40_0000_0000;

/// Names and addresses of the functions of a module.
pub fn functions_of(module: &Module) -> impl Iterator<Item = (String, u64)> {
    let bodies = module.functions.iter().filter(|f| !f.entry && f.body.is_some());
    bodies.zip(1..).map(|(function, index)| (function.name.clone(), CODE_WINDOW | index << 4))
}

/// An error about a declaration.
pub(super) fn declaration_error(module: &Module, line: u32, reason: impl Into<String>) -> Error {
    Error::Parse {
        line,
        text: module.lines.get((line as usize).wrapping_sub(1)).map_or(String::new(), |text| text.trim().to_string()),
        reason: reason.into(),
    }
}

/// Element type, bytes and alignment of a variable. An unsized array has the size of its initialiser.
///
/// # Errors
/// Unknown types and sizes beyond 2^40 bytes.
pub fn size_of(module: &Module, variable: &Variable) -> Result<(Type, u64, u32)> {
    let Some(ty) = Type::parse(&variable.ty) else {
        return Err(declaration_error(module, variable.line, format!("unknown type .{}", variable.ty)));
    };
    let element = u64::from(ty.bytes()) * u64::from(variable.vector);
    let mut count: u64 = 1;
    for dim in &variable.dims {
        let dim = match dim {
            Some(dim) => *dim,
            None => variable.init.len() as u64,
        };
        count = count.saturating_mul(dim);
    }
    let bytes = element.saturating_mul(count);
    if bytes > 1 << 40 {
        return Err(declaration_error(module, variable.line, format!("expected at most 2^40 bytes, got {bytes}")));
    }
    let align = variable.align.max(element as u32).max(1);
    Ok((ty, bytes, align))
}

/// Initial bytes of a global or constant variable: the initialiser, then zeros.
///
/// # Errors
/// Values that do not fit the type, and unknown symbols.
pub fn initial_bytes(module: &Module, variable: &Variable, globals: &Globals) -> Result<Vec<u8>> {
    let (ty, size, _) = size_of(module, variable)?;
    let width = ty.bytes() as usize;
    let mut bytes = Vec::with_capacity(variable.init.len() * width);
    for item in &variable.init {
        let bits: u64 = match item {
            Init::Integer(value) => *value as u64,
            Init::Bits32(bits) => (*bits).into(),
            Init::Bits64(bits) => *bits,
            Init::Float(value) => value.to_bits(),
            Init::Symbol { name, offset, .. } => match globals.get(name) {
                Some(address) => address.wrapping_add_signed(*offset),
                None => {
                    return Err(declaration_error(
                        module,
                        variable.line,
                        format!("{name} is neither a global variable nor a function"),
                    ));
                }
            },
        };
        bytes.extend_from_slice(&bits.to_le_bytes()[..width.min(8)]);
        bytes.resize(bytes.len() + width.saturating_sub(8), 0);
    }
    if bytes.len() as u64 > size {
        return Err(declaration_error(
            module,
            variable.line,
            format!("{} bytes of initialiser for {size} bytes", bytes.len()),
        ));
    }
    Ok(bytes)
}
