//! What should come out, from a file or the reference, and whether it did.

use std::time::Duration;

use bakewell::error::Property;
use bakewell::gqa_decode::GqaDecode;
use bakewell::{Device, Error, Operation, Result};
use bakewell_reference::gqa_decode as reference;

use super::{Inputs, lse_tolerance, out_tolerance};
use crate::TensorFile;
use crate::compare::compare;
use crate::judged::{Judged, Planned, Verdict};
use crate::staged::{Outputs, run};

/// What should come out.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// `[batch, query_heads, head_dim]`.
    pub out: Vec<f64>,
    /// `[batch, query_heads]`, where known.
    pub lse: Option<Vec<f64>>,
}

/// Bytes that any kernel must move: live keys and values, queries, lengths, outputs.
pub fn live_bytes(problem: &GqaDecode, lengths: &[i32]) -> u64 {
    let keys: u64 = lengths.iter().map(|&length| u64::try_from(length).unwrap_or(0)).sum();
    let cache = 2 * keys * problem.kv_heads * problem.head_dim;
    let rows = problem.batch * problem.query_heads;
    let lse = if problem.lse { rows * 4 } else { 0 };
    (cache + 2 * rows * problem.head_dim) * problem.dtype.bytes() + problem.batch * 4 + lse
}

/// No program reads the lengths before it runs, and none checks them: a file's are checked where it is read.
fn check_lengths(lengths: &[i32], capacity: u64) -> Result<()> {
    let fits = |length: i32| u64::try_from(length).is_ok_and(|length| length <= capacity);
    match lengths.iter().position(|&length| !fits(length)) {
        None => Ok(()),
        Some(request) => {
            let expected = format!("0..={capacity} for request {request}");
            Err(Error::value("sequence_lengths", expected, lengths[request]))
        }
    }
}

impl Judged for Inputs {
    const OPERATION: Operation = Operation::GqaDecode;
    type Expected = Expected;

    /// A file with `q`, `kv`, `sequence_lengths`, each in `0..=capacity`, and, in the metadata, `q_scale` (1 if absent)
    /// and `num_splits` (the route decides if absent).
    fn from_file(file: &TensorFile) -> Result<Inputs> {
        let (q, kv) = (file.tensor("q")?.clone(), file.tensor("kv")?.clone());
        let sequence_lengths = file.tensor("sequence_lengths")?.clone();
        let rank =
            |name, expected, shape: &[u64]| Err(Error::argument(name, Property::Rank, expected, format!("{shape:?}")));
        let [batch, query_heads, head_dim] = q.shape[..] else {
            return rank("q", "[batch, query_heads, head_dim]", &q.shape);
        };
        let [_, _, kv_heads, capacity, _] = kv.shape[..] else {
            return rank("kv", "[batch, 2, kv_heads, capacity, head_dim]", &kv.shape);
        };
        // The sizes of `q` are taken as given: a cache that does not go with them is what the message should name.
        if kv.shape != [batch, 2, kv_heads, capacity, head_dim] || !query_heads.is_multiple_of(kv_heads) {
            let expected = format!(
                "shape [{batch}, 2, kv_heads, capacity, {head_dim}], kv_heads a divisor of the {query_heads} query heads"
            );
            return Err(Error::argument("kv", Property::Shape, expected, format!("{:?}", kv.shape)));
        }
        let problem = GqaDecode {
            batch,
            capacity,
            query_heads,
            kv_heads,
            head_dim,
            dtype: q.dtype,
            num_splits: file.parameter("num_splits")?,
            q_scale: file.parameter("q_scale")?.unwrap_or(1.0),
            ..GqaDecode::default()
        };
        problem.validate()?;
        check_lengths(&file.integers("sequence_lengths")?, capacity)?;
        Ok(Inputs { problem, q, kv, sequence_lengths })
    }

    /// `out_f32`; no log-sum-exp.
    fn golden(file: &TensorFile) -> Result<Option<Expected>> {
        if !file.tensors.contains_key("out_f32") {
            return Ok(None);
        }
        let out = file.numbers("out_f32", &file.tensor("q")?.shape)?;
        Ok(Some(Expected { out, lse: None }))
    }

    /// From the exact inputs, unrounded.
    fn expected(&self) -> Result<Expected> {
        let problem = reference::GqaDecode {
            batch: self.problem.batch as usize,
            capacity: self.problem.capacity as usize,
            query_heads: self.problem.query_heads as usize,
            kv_heads: self.problem.kv_heads as usize,
            head_dim: self.problem.head_dim as usize,
            q_scale: self.problem.q_scale,
        };
        let q = self.q.to_f64()?;
        let mut out = vec![0.0; q.len()];
        let mut lse = vec![0.0; problem.batch * problem.query_heads];
        let lengths = self.sequence_lengths.to_i32()?;
        reference::gqa_decode(&problem, &q, &self.kv.to_f64()?, &lengths, &mut out, Some(&mut lse))?;
        Ok(Expected { out, lse: Some(lse.into_iter().map(f64::from).collect()) })
    }

    fn complete(&self) -> Inputs {
        Inputs { problem: GqaDecode { lse: true, ..self.problem.clone() }, ..self.clone() }
    }

    fn variations(&self) -> Vec<(&'static str, Inputs)> {
        let problem = GqaDecode { lse: false, ..self.problem.clone() };
        vec![("without the log-sum-exp", Inputs { problem, ..self.clone() })]
    }

    fn plan(&self, device: &Device) -> Result<Planned> {
        Ok(Planned::default().and(&device.plan(&self.problem)?))
    }

    fn run(&self, device: &Device) -> Result<(Outputs, Duration)> {
        run(device, self).map(|run| (run.outputs, run.time))
    }

    fn judge(&self, outputs: &Outputs, expected: &Expected, _: &Device) -> Result<Verdict> {
        let out = &outputs["out"];
        let comparison = compare(&out.shape, &out.to_f64()?, &expected.out)?;
        let mut within =
            comparison.verdict(&out_tolerance(self.problem.dtype)).map_err(|reason| format!("out: {reason}"));
        if let (Ok(()), Some(lse), Some(expected)) = (&within, outputs.get("lse"), &expected.lse) {
            let lse = compare(&lse.shape, &lse.to_f64()?, expected)?;
            within = lse.verdict(&lse_tolerance(self)?).map_err(|reason| format!("lse: {reason}"));
        }
        Ok(Verdict { summary: comparison.to_string(), comparison, failure: within.err() })
    }

    fn live_bytes(&self) -> Result<u64> {
        Ok(live_bytes(&self.problem, &self.sequence_lengths.to_i32()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostTensor;
    use crate::gqa_decode::Distribution;

    fn file(change: impl FnOnce(&mut Inputs)) -> TensorFile {
        let problem = GqaDecode { capacity: 3, ..GqaDecode::default() };
        let mut inputs = Inputs::generate(&problem, &[2, 0], Distribution::Normal, 1).unwrap();
        change(&mut inputs);
        let mut file = TensorFile::default();
        file.tensors.insert("q".into(), inputs.q);
        file.tensors.insert("kv".into(), inputs.kv);
        file.tensors.insert("sequence_lengths".into(), inputs.sequence_lengths);
        file
    }

    fn message(change: impl FnOnce(&mut Inputs)) -> String {
        Inputs::from_file(&file(change)).unwrap_err().to_string()
    }

    #[test]
    fn lengths_of_a_file_lie_within_the_capacity() {
        let with = |lengths: [i32; 2]| file(|inputs| inputs.sequence_lengths = HostTensor::of_i32(&[2], &lengths));
        assert_eq!(Inputs::from_file(&with([0, 3])).unwrap().problem.capacity, 3);
        for (lengths, given) in [([0, 4], 4), ([3, -1], -1), ([0, i32::MAX], i32::MAX), ([0, i32::MIN], i32::MIN)] {
            let error = Inputs::from_file(&with(lengths)).unwrap_err().to_string();
            assert_eq!(error, format!("sequence_lengths: expected 0..=3 for request 1, got {given}"));
        }
    }

    #[test]
    fn parameters_of_a_file_are_those_of_the_problem() {
        let with = |name: &str, value: &str| {
            let mut file = file(|_| ());
            file.metadata.insert(name.to_owned(), value.to_owned());
            Inputs::from_file(&file).map(|inputs| inputs.problem).map_err(|error| error.to_string())
        };
        assert_eq!(with("num_splits", "4").unwrap().num_splits, Some(4));
        assert_eq!(with("q_scale", "0.5").unwrap().q_scale, 0.5);
        for (name, value, part) in [
            ("num_splits", "3", "num_splits: expected one of [1, 2, 4, 8, 10, 16], got 3"),
            ("num_splits", "-1", "num_splits: expected a number in the file's metadata, got \"-1\""),
            ("q_scale", "nan", "q_scale: expected a finite positive number, got NaN"),
        ] {
            let error = with(name, value).unwrap_err();
            assert!(error.starts_with(part), "{error}");
        }
    }

    #[test]
    fn a_cache_without_slots_is_named_before_the_lengths_that_it_cannot_hold() {
        let text = message(|inputs| (inputs.kv.shape[3], inputs.kv.bytes) = (0, Vec::new()));
        assert_eq!(text, "capacity: expected at least 1, got 0");
    }

    #[test]
    fn a_golden_has_the_shape_of_the_queries() {
        let mut file = file(|_| ());
        assert_eq!(Inputs::golden(&file).unwrap(), None);
        file.tensors.insert("out_f32".into(), HostTensor::of(&[2, 1], &[0f32; 2]));
        let error = Inputs::golden(&file).unwrap_err().to_string();
        assert_eq!(error, "out_f32: expected shape [2, 32, 128], got [2, 1]");
    }

    #[test]
    fn a_permuted_cache_is_named_and_not_what_follows_from_it() {
        let expected =
            "kv: expected shape [2, 2, kv_heads, capacity, 128], kv_heads a divisor of the 32 query heads, got ";
        for shape in [[2, 2, 3, 8, 128], [2, 8, 2, 3, 128], [2, 2, 8, 128, 3], [2, 2, 0, 3, 128], [1, 2, 16, 3, 128]] {
            let text = message(|inputs| inputs.kv.shape = shape.to_vec());
            assert_eq!(text, format!("{expected}{shape:?}"));
        }
    }
}
