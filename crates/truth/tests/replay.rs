//! The emulator gives what the device gave.

use std::collections::BTreeMap;

use bakewell_truth::case::Class;
use bakewell_truth::engine::{Emulated, Engine};
use bakewell_truth::record::{Verdict, compare};
use bakewell_truth::{Case, families};

/// The lines of a record by the name of their case.
fn record(family: &str) -> BTreeMap<String, String> {
    let path = format!("{}/records/{family}.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    assert!(text.starts_with("# NVIDIA"), "{path} says on its first line which device it comes from");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| (line.split(' ').nth(1).unwrap_or_default().to_owned(), line.to_owned())).collect()
}

/// Compares every case of a family; prints the measured errors of approximate functions.
fn replay(family: &str) {
    let cases = families::family(family).expect("a family");
    let record = record(family);
    assert_eq!(record.len(), cases.len(), "every case is recorded, and nothing else");
    let mut wrong = Vec::new();
    let mut compared = 0;
    for case in cases.iter().filter(|case| !matches!(case.class, Class::Observed)) {
        compared += 1;
        if matches!(case.class, Class::Illegal) {
            let refused = record.get(&case.name).is_some_and(|line| line.starts_with("refused"));
            if !refused || Emulated.run(case).is_ok() {
                wrong.push(format!("{}: expected an error of both, the device refused: {refused}", case.name));
            }
            continue;
        }
        match verdict(case, record.get(&case.name).map(String::as_str)) {
            Ok(Verdict::Equal) => (),
            Ok(Verdict::Within { device, here, bound }) => {
                println!("{}: device {device:.3e}, emulator {here:.3e}, bound {bound:.3e}", case.name);
            }
            Err(error) => wrong.push(format!("{}: {error:#}", case.name)),
        }
    }
    println!("{family}: {compared} cases compared");
    assert!(wrong.is_empty(), "{} of {compared} cases of {family} differ:\n{}", wrong.len(), wrong.join("\n"));
}

fn verdict(case: &Case, line: Option<&str>) -> anyhow::Result<Verdict> {
    let line = line.ok_or_else(|| anyhow::anyhow!("not recorded"))?;
    compare(case, &Emulated.run(case)?, line)
}

macro_rules! families {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name));
        })*

        #[test]
        fn every_family_is_replayed() {
            let replayed = [$(stringify!($name)),*];
            assert_eq!(replayed, families::NAMES);
        }
    };
}

families!(integer arithmetic convert approximate warp matrix wgmma tensor_copy mbarrier cluster);

/// A wrong bit anywhere is noticed, in the stored head and under the digests, and so is another case.
#[test]
fn differences_are_found() {
    let cases = families::family("integer").expect("a family");
    let record = record("integer");
    let case = cases.iter().find(|case| case.name == "add.u32").expect("a case");
    let line = &record["add.u32"];
    let output = Emulated.run(case).unwrap();
    assert_eq!(compare(case, &output, line).unwrap(), Verdict::Equal);
    for at in [0, 100, output.len() - 1] {
        let mut changed = output.clone();
        changed[at] ^= 1;
        assert!(compare(case, &changed, line).is_err(), "byte {at}");
    }
    assert!(compare(case, &output[..output.len() - 4], line).is_err());
    let mut other = case.clone();
    other.inputs[0].values[2000] ^= 1;
    let error = compare(&other, &output, line).unwrap_err();
    assert!(error.to_string().contains("record it again"), "{error}");
}
