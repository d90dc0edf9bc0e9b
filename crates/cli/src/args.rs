//! Arguments that several commands share.

use bakewell::gqa_decode::GqaDecode;
use bakewell::{Device, DeviceName, Operation};
use clap::ValueEnum;

/// An operation, as people type it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum OperationArg {
    /// Grouped-query decode attention.
    GqaDecode,
}

impl OperationArg {
    /// Every operation of this build.
    pub(crate) const ALL: [OperationArg; 1] = [OperationArg::GqaDecode];

    /// Its name everywhere else.
    pub(crate) fn operation(self) -> Operation {
        match self {
            OperationArg::GqaDecode => Operation::GqaDecode,
        }
    }
}

/// The device of a name given on the command line.
pub(crate) fn open(name: DeviceName) -> anyhow::Result<Device> {
    Ok(Device::open(name)?)
}

/// The device of a name, once for each of `runs` runs.
pub(crate) fn open_runs(name: DeviceName, runs: u32) -> anyhow::Result<Vec<Device>> {
    let device = open(name)?;
    Ok((0..runs).map(|_| device.clone()).collect())
}

/// A problem from `field=value` pairs: `batch=4,capacity=256,lse=true`. Fields that are not given keep their defaults.
///
/// # Errors
/// What is wrong with a pair, or serde's words about a field.
pub(crate) fn gqa_decode_problem(shape: &str) -> anyhow::Result<GqaDecode> {
    let mut fields = serde_json::Map::new();
    for pair in shape.split([',', ' ']).filter(|pair| !pair.is_empty()) {
        let Some((name, value)) = pair.split_once('=') else {
            anyhow::bail!("shape: expected field=value, got {pair:?}");
        };
        // Numbers and booleans are JSON already; anything else is a word.
        let value = serde_json::from_str(value).unwrap_or_else(|_| serde_json::Value::from(value));
        if fields.insert(name.to_owned(), value).is_some() {
            anyhow::bail!("shape: {name} is given twice");
        }
    }
    serde_json::from_value(fields.into()).map_err(|error| anyhow::anyhow!("shape: {error}"))
}

#[cfg(test)]
mod tests {
    use bakewell::DType;

    use super::*;

    #[test]
    fn shapes_set_what_they_name_and_keep_the_rest() {
        let problem = gqa_decode_problem("batch=4,capacity=256,dtype=bf16,num_splits=2,q_scale=0.5,lse=true").unwrap();
        let expected = GqaDecode {
            batch: 4,
            capacity: 256,
            dtype: DType::Bf16,
            num_splits: Some(2),
            q_scale: 0.5,
            lse: true,
            ..GqaDecode::default()
        };
        assert_eq!(problem, expected);
        assert_eq!(gqa_decode_problem("").unwrap(), GqaDecode::default());
    }

    #[test]
    fn mistakes_in_a_shape_are_named() {
        for (shape, part) in [
            ("batch", "field=value"),
            ("batch=1,batch=2", "given twice"),
            ("batches=1", "unknown field `batches`"),
            ("batch=-1", "invalid value"),
            ("dtype=f8", "f8"),
        ] {
            let text = gqa_decode_problem(shape).unwrap_err().to_string();
            assert!(text.starts_with("shape: ") && text.contains(part), "{text}");
        }
    }

    #[test]
    fn operations_are_named_as_everywhere() {
        for operation in OperationArg::ALL {
            let name = operation.to_possible_value().unwrap().get_name().to_owned();
            assert_eq!(name, operation.operation().name());
        }
    }
}
