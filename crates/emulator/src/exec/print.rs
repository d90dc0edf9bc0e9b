//! `vprintf` and `__assertfail`: text out of the emulated program.

use crate::exec::lanes;
use crate::finding::Kind;
use crate::machine::{Cluster, Outcome, Warp};
use crate::memory::{AccessError, Space, resolve_generic};

/// Longest text read or kept.
const MOST: usize = 1 << 20;

/// A zero-terminated string at a generic address.
fn text_at(machine: &Cluster, warp: &Warp, lane: usize, address: u64) -> Result<String, AccessError> {
    let mut bytes = Vec::new();
    while bytes.len() < 4096 {
        let mut byte = [0];
        read(machine, warp, lane, address + bytes.len() as u64, &mut byte)?;
        if byte[0] == 0 {
            break;
        }
        bytes.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn read(machine: &Cluster, warp: &Warp, lane: usize, address: u64, out: &mut [u8]) -> Result<(), AccessError> {
    match resolve_generic(address) {
        (Space::Local, at) => warp.local.read(lane, at, out, false),
        (Space::Shared, at) => {
            let bytes = machine.ctas[warp.cta as usize].shared.peek(at as u32 & 0x00ff_ffff, out.len())?;
            out.copy_from_slice(bytes);
            Ok(())
        }
        (_, at) => machine.global.read_as(at, out, false),
    }
}

fn local_u64(warp: &Warp, lane: usize, offset: u32) -> Result<u64, AccessError> {
    let mut bytes = [0; 8];
    warp.local.read(lane, offset.into(), &mut bytes, false)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Appends the formatted text of each lane to the launch's output.
pub(super) fn print(machine: &mut Cluster, warp: &mut Warp, mask: u32, format: u32, arguments: u32) -> Outcome {
    for lane in lanes(mask) {
        let text = local_u64(warp, lane, format).and_then(|at| text_at(machine, warp, lane, at)).and_then(|text| {
            let start = local_u64(warp, lane, arguments)?;
            expand(machine, warp, lane, &text, start)
        });
        match text {
            Ok(text) if machine.output.len() + text.len() < MOST => machine.output.push_str(&text),
            Ok(_) => {}
            Err(error) => return Outcome::Fault(machine.access_fault(error, warp, 1 << lane)),
        }
    }
    Outcome::Next
}

/// Expands `%` conversions; arguments lie one after the other with their own alignment.
fn expand(machine: &Cluster, warp: &Warp, lane: usize, format: &str, start: u64) -> Result<String, AccessError> {
    let mut out = String::new();
    let mut at = 0u64;
    let mut next = |bytes: u64| -> Result<u64, AccessError> {
        at = at.next_multiple_of(bytes);
        let mut data = [0; 8];
        read(machine, warp, lane, start + at, &mut data[..bytes as usize])?;
        at += bytes;
        Ok(u64::from_le_bytes(data))
    };
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut flags = String::new();
        while let Some(&f) = chars.peek() {
            if f.is_ascii_digit() || "+-# .".contains(f) {
                flags.push(f);
                chars.next();
            } else {
                break;
            }
        }
        let mut wide = false;
        while let Some(&f) = chars.peek() {
            if "lhzjtL".contains(f) {
                wide |= f == 'l' || f == 'z' || f == 'j';
                chars.next();
            } else {
                break;
            }
        }
        let size = if wide { 8 } else { 4 };
        let text = match chars.next() {
            Some('%') => "%".to_string(),
            Some('d' | 'i') if wide => (next(8)? as i64).to_string(),
            Some('d' | 'i') => (next(4)? as u32 as i32).to_string(),
            Some('u') => next(size)?.to_string(),
            Some('x') => format!("{:x}", next(size)?),
            Some('X') => format!("{:X}", next(size)?),
            Some('o') => format!("{:o}", next(size)?),
            Some('p') => format!("{:#x}", next(8)?),
            Some('c') => char::from(next(4)? as u8).to_string(),
            Some('s') => {
                let address = next(8)?;
                text_at(machine, warp, lane, address)?
            }
            Some('f' | 'F') => format!("{:.*}", precision(&flags), f64::from_bits(next(8)?)),
            Some('e' | 'E') => format!("{:.*e}", precision(&flags), f64::from_bits(next(8)?)),
            Some('g' | 'G' | 'a' | 'A') => format!("{}", f64::from_bits(next(8)?)),
            Some(other) => other.to_string(),
            None => String::new(),
        };
        pad(&mut out, &flags, &text);
    }
    Ok(out)
}

fn precision(flags: &str) -> usize {
    flags.split_once('.').map_or(6, |(_, digits)| digits.parse().unwrap_or(0usize).min(64))
}

fn pad(out: &mut String, flags: &str, text: &str) {
    let before = flags.split('.').next().unwrap_or("");
    let left = before.contains('-');
    let digits = before.trim_start_matches(|c: char| !c.is_ascii_digit());
    let zero = digits.starts_with('0') && !left;
    let width = digits.parse().unwrap_or(0usize).min(256);
    let fill = width.saturating_sub(text.chars().count());
    if left {
        out.push_str(text);
        out.extend(std::iter::repeat_n(' ', fill));
    } else if zero {
        let (sign, rest) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
        out.push_str(sign);
        out.extend(std::iter::repeat_n('0', fill));
        out.push_str(rest);
    } else {
        out.extend(std::iter::repeat_n(' ', fill));
        out.push_str(text);
    }
}

/// A device assertion failed.
pub(super) fn assert_fail(
    machine: &mut Cluster,
    warp: &mut Warp,
    mask: u32,
    message: u32,
    file: u32,
    line: u32,
) -> Outcome {
    let lane = mask.trailing_zeros() as usize;
    let text =
        |offset: u32| local_u64(warp, lane, offset).and_then(|at| text_at(machine, warp, lane, at)).unwrap_or_default();
    let mut bytes = [0; 4];
    let number = match warp.local.read(lane, line.into(), &mut bytes, false) {
        Ok(()) => u32::from_le_bytes(bytes),
        Err(_) => 0,
    };
    let message = format!("{}:{number}: assertion failed: {}", text(file), text(message));
    machine.fault(Kind::Trap, warp, mask, message)
}
