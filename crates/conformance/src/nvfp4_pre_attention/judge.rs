//! How far outputs may be from what is expected: not at all, but for head rows whose sums depend on their order.

use bakewell::error::Property;
use bakewell::nvfp4_pre_attention::{Nvfp4PreAttention, OutputFormat};
use bakewell::schedule::nvfp4_pre_attention::KINDS;
use bakewell::{Error, Result, nvfp4};

use super::{Expected, Inputs};
use crate::staged::Outputs;

/// Share of the bytes of undetermined rows that may differ, by one code each.
///
/// An f32 sum in another order moves a bf16 word in about 1 of 10^4 cases, and a code less often. A model with outlier
/// channels (H = 5376, 98 304 bytes) has none that differ when added in steps of 16 to 96 or with 24-bit truncation,
/// and 469 with the 14-bit accumulator that 8-bit products would have: that is what the limit must catch.
const UNDETERMINED_SHARE: f64 = 1e-4;

/// Results as numbers, without the output's global scale; in their own order.
pub(super) fn values(problem: &Nvfp4PreAttention, out_q: &[u8], out_sf: Option<&[u8]>) -> Vec<f64> {
    Rows { problem, out_q, out_sf }.values()
}

/// The outcome of a comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judgement {
    /// Bytes of undetermined rows: results and their scales.
    pub undetermined: usize,
    /// How many of them differ.
    pub differing: usize,
    /// What is wrong, with its place.
    pub failure: Option<String>,
}

/// Compares outputs with what is expected. Intermediates are compared where they were asked for.
///
/// # Errors
/// [`Error::Argument`] for an output that is missing.
pub fn judge(inputs: &Inputs, outputs: &Outputs, expected: &Expected) -> Result<Judgement> {
    let need = |name| {
        let missing = || Error::argument(name, Property::Presence, "an output", "none");
        outputs.get(name).map(|tensor| &tensor.bytes[..]).ok_or_else(missing)
    };
    let problem = &inputs.problem;
    let nvfp4 = problem.out_format == OutputFormat::Nvfp4;
    let got = Rows { problem, out_q: need("out_q")?, out_sf: nvfp4.then(|| need("out_sf")).transpose()? };
    let want = Rows { problem, out_q: &expected.out_q, out_sf: got.out_sf.map(|_| &expected.out_sf[..]) };
    let exact = exact(need("activation_q")?, need("activation_sf")?, outputs, expected);
    let (mut judgement, rows) = match exact.and_then(|()| got.same_sizes(&want)) {
        Ok(()) => got.compare(&want, &expected.determined),
        failure => (Judgement::default(), failure),
    };
    let allowed = (judgement.undetermined as f64 * UNDETERMINED_SHARE) as usize;
    let too_many = (judgement.differing > allowed).then(|| {
        format!(
            "{} of {} bytes of undetermined rows differ, {allowed} may",
            judgement.differing, judgement.undetermined
        )
    });
    judgement.failure = rows.err().or(too_many);
    Ok(judgement)
}

/// What must be equal in every byte, but for the words of undetermined rows.
fn exact(activation_q: &[u8], activation_sf: &[u8], outputs: &Outputs, expected: &Expected) -> Result<(), String> {
    equal("activation_q", activation_q, &expected.activation_q)?;
    equal("activation_sf", activation_sf, &expected.activation_sf)?;
    if let Some(adaln) = outputs.get("debug_adaln_bf16") {
        equal("debug_adaln_bf16", &adaln.bytes, &expected.adaln)?;
    }
    for (kind, name, want) in [(0, "debug_q_bf16", &expected.q), (1, "debug_k_bf16", &expected.k)] {
        if let Some(got) = outputs.get(name) {
            determined_words(name, kind, &got.bytes, want, &expected.determined)?;
        }
    }
    Ok(())
}

/// A head row in the order of the results.
struct Row {
    token: usize,
    head: usize,
    kind: usize,
}

impl Row {
    fn of(problem: &Nvfp4PreAttention, index: usize) -> Row {
        let (kinds, local_heads) = (KINDS as usize, (problem.heads / problem.destinations) as usize);
        let (tokens, local_head) = (problem.tokens as usize, index / kinds % local_heads);
        let (token, destination) = (index / kinds / local_heads % tokens, index / kinds / local_heads / tokens);
        Row { token, head: destination * local_heads + local_head, kind: index % kinds }
    }

    /// Its number in `[tokens, heads, 3]`.
    fn index(&self, problem: &Nvfp4PreAttention) -> usize {
        (self.token * problem.heads as usize + self.head) * KINDS as usize + self.kind
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "token {}, head {}, {}", self.token, self.head, ["Q", "K", "V"][self.kind])
    }
}

/// Results by row, in their own order.
struct Rows<'a> {
    problem: &'a Nvfp4PreAttention,
    out_q: &'a [u8],
    out_sf: Option<&'a [u8]>,
}

const ROW_GROUPS: usize = 8;

impl Rows<'_> {
    fn same_sizes(&self, other: &Rows<'_>) -> Result<(), String> {
        let sizes = |rows: &Rows<'_>| (rows.out_q.len(), rows.out_sf.map(<[u8]>::len));
        match sizes(self) == sizes(other) {
            true => Ok(()),
            false => Err(format!("results of {:?} bytes, expected {:?}", sizes(self), sizes(other))),
        }
    }

    /// Compares row by row: counts in undetermined rows, a failure anywhere else.
    fn compare(&self, other: &Rows<'_>, determined: &[bool]) -> (Judgement, Result<(), String>) {
        let mut judgement = Judgement::default();
        for index in 0..determined.len() {
            let row = Row::of(self.problem, index);
            let (codes, scales) = (self.codes(index), self.scales(index));
            let outcome = if determined[row.index(self.problem)] {
                equal(&format!("out_q of {row}"), codes, other.codes(index))
                    .and_then(|()| equal(&format!("out_sf of {row}"), &scales, &other.scales(index)))
            } else {
                judgement.undetermined += codes.len() + scales.len();
                let differing = self.differences(other, index).map_err(|what| format!("{row}: {what}"));
                differing.map(|differing| judgement.differing += differing)
            };
            if outcome.is_err() {
                return (judgement, outcome);
            }
        }
        (judgement, self.padding())
    }

    fn codes(&self, index: usize) -> &[u8] {
        let bytes = self.problem.out_format.row_bytes() as usize;
        &self.out_q[index * bytes..][..bytes]
    }

    fn scales(&self, index: usize) -> Vec<u8> {
        let Some(out_sf) = self.out_sf else { return Vec::new() };
        let rows = self.problem.rows_per_destination() as usize;
        let destination = &out_sf[index / rows * self.problem.out_scales_shape()[1] as usize..];
        (0..ROW_GROUPS).map(|group| destination[nvfp4::scale_offset(index % rows, group, ROW_GROUPS)]).collect()
    }

    fn values(&self) -> Vec<f64> {
        let rows = 0..self.out_q.len() / self.problem.out_format.row_bytes() as usize;
        rows.flat_map(|index| match self.problem.out_format {
            OutputFormat::E4m3 => self.codes(index).iter().map(|&code| nvfp4::decode_e4m3(code).into()).collect(),
            OutputFormat::Nvfp4 => {
                let (codes, scales) = (self.codes(index), self.scales(index));
                let nibbles = codes.iter().flat_map(|byte| [byte & 0xF, byte >> 4]).enumerate();
                nibbles
                    .map(|(i, code)| f64::from(nvfp4::decode_e2m1(code) * nvfp4::decode_e4m3(scales[i / nvfp4::BLOCK])))
                    .collect::<Vec<f64>>()
            }
        })
        .collect()
    }

    /// Bytes of a row that differ.
    fn differences(&self, other: &Rows<'_>, index: usize) -> Result<usize, String> {
        let near_nibbles = |a: u8, b: u8| near(a & 0xF, b & 0xF, 8) && near(a >> 4, b >> 4, 8);
        let near_codes = |a: u8, b: u8| match self.problem.out_format {
            OutputFormat::Nvfp4 => near_nibbles(a, b),
            OutputFormat::E4m3 => near(a, b, 0x80),
        };
        let (a, b) = (self.codes(index), other.codes(index));
        let (a_scales, b_scales) = (self.scales(index), other.scales(index));
        let codes = a.iter().zip(b).filter(|(a, b)| a != b);
        let scales = a_scales.iter().zip(&b_scales).filter(|(a, b)| a != b);
        let far = codes.clone().find(|&(&a, &b)| !near_codes(a, b));
        match far.or_else(|| scales.clone().find(|&(&a, &b)| !near(a, b, 0x80))) {
            Some((a, b)) => Err(format!("a byte {a:#04x} where {b:#04x} is expected")),
            None => Ok(codes.count() + scales.count()),
        }
    }

    /// Rows that only round a destination's rows up to whole tiles have zero scales.
    fn padding(&self) -> Result<(), String> {
        let Some(out_sf) = self.out_sf else { return Ok(()) };
        let rows = self.problem.rows_per_destination() as usize;
        let bytes = self.problem.out_scales_shape()[1] as usize;
        for (destination, tiles) in out_sf.chunks_exact(bytes).enumerate() {
            for row in rows..bytes / ROW_GROUPS {
                if (0..ROW_GROUPS).any(|group| tiles[nvfp4::scale_offset(row, group, ROW_GROUPS)] != 0) {
                    return Err(format!("out_sf: padding row {row} of destination {destination} is not zero"));
                }
            }
        }
        Ok(())
    }
}

/// Whether two sign-magnitude codes are the same or neighbours.
fn near(a: u8, b: u8, sign: u8) -> bool {
    let order = |code: u8| if code & sign == 0 { i16::from(code) } else { -i16::from(code & (sign - 1)) };
    (order(a) - order(b)).abs() <= 1
}

fn equal(what: &str, got: &[u8], want: &[u8]) -> Result<(), String> {
    if got.len() != want.len() {
        return Err(format!("{what}: {} bytes, expected {}", got.len(), want.len()));
    }
    let different = got.iter().zip(want).enumerate().filter(|(_, (got, want))| got != want);
    match different.clone().next() {
        Some((at, (got, want))) => {
            let count = different.count();
            Err(format!("{what}: {count} bytes differ, the first at {at}: {got:#04x} where {want:#04x} is expected"))
        }
        None => Ok(()),
    }
}

/// Words of the determined rows of one kind.
fn determined_words(name: &str, kind: usize, got: &[u8], want: &[u8], determined: &[bool]) -> Result<(), String> {
    const ROW_BYTES: usize = 256;
    if got.len() != want.len() {
        return Err(format!("{name}: {} bytes, expected {}", got.len(), want.len()));
    }
    let rows = got.chunks_exact(ROW_BYTES).zip(want.chunks_exact(ROW_BYTES)).enumerate();
    rows.filter(|(row, _)| determined[row * KINDS as usize + kind])
        .try_for_each(|(row, (got, want))| equal(&format!("{name} row {row}"), got, want))
}
