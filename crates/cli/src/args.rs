//! Arguments that several commands share.

use std::sync::Arc;

use bakewell::emulator::{CompletionPolicy, EmulatedRuntime, Options};
use bakewell::{Device, DeviceName, Operation};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::de::DeserializeOwned;

/// Reads an operation; help lists the names.
pub(crate) fn operations() -> impl TypedValueParser<Value = Operation> {
    PossibleValuesParser::new(Operation::ALL.map(Operation::name)).try_map(|name| Operation::parse(&name))
}

/// A device, and the emulator below it where it is one.
#[derive(Clone)]
pub(crate) struct Opened {
    pub(crate) device: Device,
    pub(crate) emulator: Option<Arc<EmulatedRuntime>>,
}

/// The device of a name. `seed` chooses the order of an emulator's work and means nothing elsewhere.
pub(crate) fn open(name: DeviceName, seed: u64) -> anyhow::Result<Opened> {
    let mut device = Device::open(name)?;
    let mut emulator = None;
    if let Ok(DeviceName::Emulated(arch)) = device.name().parse() {
        let runtime = EmulatedRuntime::with_options(arch, with_seed(EmulatedRuntime::options(arch), seed));
        device = Device::with_runtime(runtime.clone())?;
        emulator = Some(runtime);
    }
    Ok(Opened { device, emulator })
}

/// The device of a name for each of `runs` runs: an emulator with another seed each, otherwise the same one.
pub(crate) fn open_runs(name: DeviceName, runs: u32) -> anyhow::Result<Vec<Opened>> {
    let first = open(name, 0)?;
    let other = |seed| match first.emulator {
        Some(_) => open(name, seed),
        None => Ok(first.clone()),
    };
    (0..u64::from(runs)).map(other).collect()
}

/// Options of an emulator with a seed. The first seeds after 0 are the extreme orders.
pub(crate) fn with_seed(options: Options, seed: u64) -> Options {
    let policy = match seed {
        1 => CompletionPolicy::Lazy,
        2 => CompletionPolicy::Eager,
        _ => CompletionPolicy::Random,
    };
    Options { seed, policy, ..options }
}

/// A problem from `field=value` pairs: `batch=4,capacity=256,lse=true`. A value may be JSON in brackets:
/// `tokens=7,sequences={"offsets":[0,3,7]}`. Fields that are not given keep their defaults.
///
/// # Errors
/// What is wrong with a pair, or serde's words about a field.
pub(crate) fn problem<T: DeserializeOwned>(shape: &str) -> anyhow::Result<T> {
    let mut fields = serde_json::Map::new();
    let mut depth = 0;
    let separates = |character: char| {
        match character {
            '[' | '{' => depth += 1,
            ']' | '}' => depth -= 1,
            _ => {}
        }
        depth == 0 && matches!(character, ',' | ' ')
    };
    for pair in shape.split(separates).filter(|pair| !pair.is_empty()) {
        let Some((name, value)) = pair.split_once('=') else {
            anyhow::bail!("shape: expected field=value, got {pair:?}");
        };
        // Numbers and booleans are JSON already; anything else is a word.
        let value = serde_json::from_str(value).unwrap_or_else(|_| serde_json::Value::from(value));
        if fields.insert(name.to_owned(), value).is_some() {
            anyhow::bail!("shape: {name} is given twice");
        }
    }
    let parse = |fields: serde_json::Map<_, _>| serde_json::from_value(fields.into());
    parse(fields.clone()).map_err(|error| {
        // The parser does not say whose value it refuses: that field is refused alone too.
        let refused = fields.into_iter().find_map(|(name, value)| {
            let alone = serde_json::Map::from_iter([(name.clone(), value)]);
            parse(alone).err().map(|error| anyhow::anyhow!("shape: {name}: {error}"))
        });
        refused.unwrap_or_else(|| anyhow::anyhow!("shape: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use bakewell::DType;
    use bakewell::gqa_decode::GqaDecode;

    use super::*;

    #[test]
    fn shapes_set_what_they_name_and_keep_the_rest() {
        let problem: GqaDecode = problem("batch=4,capacity=256,dtype=bf16,num_splits=2,q_scale=0.5,lse=true").unwrap();
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
        assert_eq!(super::problem::<GqaDecode>("").unwrap(), GqaDecode::default());
    }

    #[test]
    fn brackets_hold_a_value_together() {
        use bakewell::gdn::{Gdn, Pins, Sequences};
        let problem: Gdn =
            problem(r#"tokens=7,sequences={"offsets": [0, 3,7]},copies=["q","do"],pins={"segment_chunks":4}"#).unwrap();
        assert_eq!(problem.sequences, Sequences::Offsets(vec![0, 3, 7]));
        assert_eq!((problem.tokens, problem.copies.len()), (7, 2));
        assert_eq!(problem.pins, Pins { segment_chunks: Some(4), ..Pins::default() });
    }

    #[test]
    fn mistakes_in_a_shape_are_named() {
        for (shape, part) in [
            ("batch", "field=value"),
            ("batch=1,batch=2", "given twice"),
            ("batches=1", "unknown field `batches`"),
            ("capacity=7,batch=-1", "shape: batch: invalid value"),
            ("dtype=f8", "f8"),
        ] {
            let text = problem::<GqaDecode>(shape).unwrap_err().to_string();
            assert!(text.starts_with("shape: ") && text.contains(part), "{text}");
        }
    }
}
