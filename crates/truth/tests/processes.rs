//! The command `truth record` on the emulator: every case in a process of its own gives the record that one process
//! gives.

use std::path::Path;
use std::process::Command;

/// The lines of the record of a family, without those that say when it was made.
fn record(folder: &Path, apart: bool) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_truth"));
    command.args(["record", "--on", "emulator", "--out"]).arg(folder).arg("mbarrier");
    if apart {
        command.arg("--apart");
    }
    let run = command.output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let text = std::fs::read_to_string(folder.join("mbarrier.txt")).unwrap();
    text.lines().filter(|line| !line.starts_with("# seconds")).map(str::to_owned).collect()
}

#[test]
fn a_process_for_each_case_changes_nothing() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("truth_processes");
    let (one, many) = (record(&folder.join("one"), false), record(&folder.join("many"), true));
    assert_eq!(one, many);
    // A header and what is not merely observed; nothing is left behind.
    assert!(one.len() > 1 && one[1..].iter().all(|line| !line.starts_with("refused")), "{one:?}");
    assert_eq!(std::fs::read_dir(folder.join("many")).unwrap().count(), 1);
}
