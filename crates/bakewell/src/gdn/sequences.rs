//! Where sequences begin and end.

use bakewell_core::error::Property;
use bakewell_core::{Error, Result};
use serde::{Deserialize, Serialize};

/// How tokens are divided into sequences.
///
/// ```
/// use bakewell::gdn::Sequences;
///
/// let packed = Sequences::Offsets(vec![0, 3, 3, 10]);
/// assert_eq!(packed.count(1), 3);
/// assert_eq!(serde_json::to_string(&packed).unwrap(), r#"{"offsets":[0,3,3,10]}"#);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sequences {
    /// Every batch row is a sequence.
    #[default]
    Batch,
    /// One batch row holds sequences that begin at these tokens; the last entry is the end. A plan builds its tables
    /// from them and uploads them once; `cu_seqlens` is not read.
    Offsets(Vec<u64>),
    /// One batch row holds this many sequences; only the device knows where they begin. Every launch builds its tables
    /// from `cu_seqlens`, whose values are trusted.
    Device(u64),
}

impl Sequences {
    /// Number of sequences.
    pub fn count(&self, batch: u64) -> u64 {
        match self {
            Sequences::Batch => batch,
            Sequences::Offsets(offsets) => (offsets.len() as u64).saturating_sub(1),
            Sequences::Device(count) => *count,
        }
    }

    /// First token of each sequence, and the end; `None` where only the device knows.
    pub fn offsets(&self, batch: u64, tokens: u64) -> Option<Vec<u64>> {
        match self {
            Sequences::Batch => Some((0..=batch).map(|row| row * tokens).collect()),
            Sequences::Offsets(offsets) => Some(offsets.clone()),
            Sequences::Device(_) => None,
        }
    }

    /// Checks offsets and counts against the batch.
    pub(super) fn validate(&self, batch: u64, tokens: u64) -> Result<()> {
        let one_row = || match batch {
            1 => Ok(()),
            _ => Err(Error::value("batch", "1 for packed sequences", batch)),
        };
        match self {
            Sequences::Batch => count_fits(batch),
            Sequences::Offsets(offsets) => {
                one_row()?;
                if offsets.len() < 2 {
                    let expected = "at least 2 offsets";
                    return Err(Error::argument("cu_seqlens", Property::Shape, expected, offsets.len()));
                }
                count_fits(offsets.len() as u64 - 1)?;
                if offsets[0] != 0 {
                    return Err(Error::value("cu_seqlens", "a first offset of 0", offsets[0]));
                }
                if let Some(i) = (1..offsets.len()).find(|&i| offsets[i] < offsets[i - 1]) {
                    let expected = format!("offset {i} at least {}", offsets[i - 1]);
                    return Err(Error::value("cu_seqlens", expected, offsets[i]));
                }
                match offsets.last() {
                    Some(&last) if last != tokens => {
                        Err(Error::value("cu_seqlens", format!("a last offset of {tokens} tokens"), last))
                    }
                    _ => Ok(()),
                }
            }
            Sequences::Device(count) => {
                one_row()?;
                if *count == 0 {
                    return Err(Error::value("sequences", "at least 1", 0));
                }
                count_fits(*count)
            }
        }
    }
}

/// A plan lists its sequences: the limit keeps that list below a few tens of megabytes, empty sequences included.
fn count_fits(count: u64) -> Result<()> {
    if count < 1 << 20 {
        return Ok(());
    }
    Err(Error::argument("sequences", Property::Size, "fewer than 2^20", count))
}
