//! Facts about this run that a record must hold: day, driver, commit, command.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use bakewell::cuda;

/// Today in UTC: `2026-11-29`.
pub(crate) fn date() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    civil(seconds / 86_400)
}

/// The day `days` after 1970-01-01 in the Gregorian calendar.
fn civil(days: u64) -> String {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut day) = (1970, days);
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    format!("{year:04}-{month:02}-{:02}", day + 1)
}

/// The driver: its own version where the system tells it, and the CUDA version that it serves.
pub(crate) fn driver() -> Option<String> {
    let (major, minor) = cuda::driver_version().ok()?;
    let module = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159  Release Build ...": the first word of dotted numbers.
    let is_version = |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    Some(match module.split_whitespace().find(is_version) {
        Some(version) => format!("{version} (CUDA {major}.{minor})"),
        None => format!("CUDA {major}.{minor}"),
    })
}

/// The commit of the checkout in the current directory, `-dirty` with changes; `None` outside one.
pub(crate) fn commit() -> Option<String> {
    let output = Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

/// The command as typed, program name first.
pub(crate) fn command() -> String {
    std::iter::once("bakewell".to_owned()).chain(std::env::args().skip(1)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        for (days, date) in [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (11_322, "2000-12-31"),
            (20_786, "2026-11-29"),
            (47_540, "2100-02-28"),
            (47_541, "2100-03-01"),
        ] {
            assert_eq!(civil(days), date);
        }
    }
}
