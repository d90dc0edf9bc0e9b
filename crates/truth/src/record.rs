//! Record files, digests, comparison.
//!
//! A file holds one family: lines that begin with `#` say where it was recorded; every other line is a case.
//!
//! ```text
//! exact NAME FINGERPRINT LENGTH HEAD DIGEST..
//! observed NAME FINGERPRINT LENGTH HEAD DIGEST..
//! bound NAME FINGERPRINT LARGEST-ERROR AT SAMPLES
//! refused NAME REASON
//! ```
//!
//! HEAD is the first [`HEAD`] bytes in hexadecimal and each DIGEST covers [`BLOCK`] bytes. SAMPLES are the results of
//! every
//! [`STEP`]-th thread, and the largest error is that of all threads.

use std::fmt::Write;

use anyhow::{Context, Result, bail, ensure};
use half::{bf16, f16};

use crate::case::{Approximate, Case, Class, Format};

/// Bytes stored as they are.
pub const HEAD: usize = 192;
/// Bytes under one digest.
pub const BLOCK: usize = 2048;
/// Threads between two samples.
pub const STEP: usize = 64;

/// FNV-1a over the parts.
pub fn digest(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.iter());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The line of a case.
pub fn line(case: &Case, output: &Result<Vec<u8>>) -> String {
    let mut line = String::new();
    match (output, &case.class) {
        (Err(error), _) => {
            let reason = format!("{error:#}").replace('\n', " ");
            let _ = write!(line, "refused {} {reason}", case.name);
        }
        (Ok(bytes), Class::Exact | Class::Observed | Class::Illegal) => {
            let class = if matches!(case.class, Class::Exact) { "exact" } else { "observed" };
            let _ = write!(line, "{class} {} {:016x} {} ", case.name, case.fingerprint(), bytes.len());
            for byte in bytes.iter().take(HEAD) {
                let _ = write!(line, "{byte:02x}");
            }
            for block in bytes.chunks(BLOCK) {
                let _ = write!(line, " {:016x}", digest(&[block]));
            }
        }
        (Ok(bytes), Class::Bound(approximate)) => {
            let (error, at) = approximate.largest_error(case, bytes);
            let _ = write!(line, "bound {} {:016x} {error:e} {at:e} ", case.name, case.fingerprint());
            for sample in approximate.results(bytes).iter().step_by(STEP) {
                let _ = write!(line, "{sample:x},");
            }
        }
    }
    line
}

/// What a replay found.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// The same bits.
    Equal,
    /// Within the bound: the device's largest error over the sweep, and that of these results.
    Within {
        /// Of the device.
        device: f64,
        /// Of the results compared.
        here: f64,
        /// Allowed.
        bound: f64,
    },
}

/// Compares results with the line of their case.
///
/// # Errors
/// The case is another one than was recorded, or the first difference.
pub fn compare(case: &Case, output: &[u8], line: &str) -> Result<Verdict> {
    let mut words = line.split(' ');
    let (class, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    ensure!(name == case.name, "the record is of {name:?}");
    ensure!(class != "refused", "the device refused: {line}");
    let mut word = || words.next().context("the record is cut off");
    let fingerprint = u64::from_str_radix(word()?, 16)?;
    ensure!(fingerprint == case.fingerprint(), "the case changed after it was recorded: record it again");
    match &case.class {
        Class::Exact => {
            ensure!(class == "exact", "recorded as {class}");
            let length: usize = word()?.parse()?;
            ensure!(length == output.len(), "{} bytes, recorded {length}", output.len());
            let head = word()?;
            for (i, byte) in output.iter().enumerate().take(HEAD) {
                let recorded = u8::from_str_radix(head.get(2 * i..2 * i + 2).context("the record is cut off")?, 16)?;
                ensure!(*byte == recorded, "byte {i}: {byte:#04x}, the device gave {recorded:#04x}");
            }
            for (i, block) in output.chunks(BLOCK).enumerate() {
                let recorded = u64::from_str_radix(word()?, 16)?;
                ensure!(digest(&[block]) == recorded, "bytes {} to {} differ", i * BLOCK, i * BLOCK + block.len());
            }
            Ok(Verdict::Equal)
        }
        Class::Observed | Class::Illegal => bail!("results of this case are not compared"),
        Class::Bound(approximate) => {
            ensure!(class == "bound", "recorded as {class}");
            let device: f64 = word()?.parse()?;
            let at: f64 = word()?.parse()?;
            let bound = approximate.bound;
            ensure!(device <= bound, "the device's error {device:e} at {at:e} is above the bound {bound:e}");
            let (here, where_) = approximate.largest_error(case, output);
            ensure!(here <= bound, "error {here:e} at {where_:e} is above the bound {bound:e}");
            let results = approximate.results(output);
            for (i, sample) in word()?.split(',').filter(|s| !s.is_empty()).enumerate() {
                let recorded = u32::from_str_radix(sample, 16)?;
                let operand = case.inputs[0].values[i * STEP] as u32;
                approximate.close(operand, results[i * STEP], recorded)?;
            }
            Ok(Verdict::Within { device, here, bound })
        }
    }
}

impl Format {
    fn value(self, code: u32) -> f64 {
        match self {
            Format::F32 => f32::from_bits(code).into(),
            Format::F16 => f16::from_bits(code as u16).into(),
            Format::Bf16 => bf16::from_bits(code as u16).into(),
        }
    }

    fn least_normal(self) -> f64 {
        match self {
            Format::F32 | Format::Bf16 => f32::MIN_POSITIVE.into(),
            Format::F16 => f16::MIN_POSITIVE.into(),
        }
    }
}

impl Approximate {
    fn results(&self, bytes: &[u8]) -> Vec<u32> {
        match self.format {
            Format::F32 => bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect(),
            _ => bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b).into()).collect(),
        }
    }

    /// Error of one result, where the bound applies: operands in range, normal true values.
    fn error(&self, operand: u32, result: u32) -> Option<f64> {
        let x = self.format.value(operand);
        let (y, truth) = (self.format.value(result), (self.function)(x));
        let flushed = self.ftz && x.abs() < self.format.least_normal();
        let inside = !flushed && x.abs() >= self.range.0 && x.abs() <= self.range.1;
        if !inside || !truth.is_finite() || !y.is_finite() || truth.abs() < self.format.least_normal() {
            return None;
        }
        Some(if self.relative { ((y - truth) / truth).abs() } else { (y - truth).abs() })
    }

    fn largest_error(&self, case: &Case, bytes: &[u8]) -> (f64, f64) {
        let operands = case.inputs[0].values.iter().map(|&x| x as u32);
        let errors =
            operands.zip(self.results(bytes)).filter_map(|(x, y)| Some((self.error(x, y)?, self.format.value(x))));
        errors.fold((0.0, 0.0), |most, next| if next.0 > most.0 { next } else { most })
    }

    /// Two results of one operand: equal where one is special, else each within the bound of the truth. Nothing is
    /// promised for finite operands above the range.
    fn close(&self, operand: u32, here: u32, device: u32) -> Result<()> {
        let x = self.format.value(operand);
        if self.error(operand, device).is_some() && self.error(operand, here).is_some() {
            return Ok(());
        }
        let (a, b) = (self.format.value(here), self.format.value(device));
        let special = |y: f64| !y.is_finite() || y == 0.0;
        let promised = !x.is_finite() || x.abs() <= self.range.1;
        if promised && (special(a) || special(b)) && here != device {
            bail!("operand {x:e} ({operand:#x}): {here:#x}, the device gave {device:#x}");
        }
        Ok(())
    }
}
