//! Lists the instructions of PTX files that the emulator cannot execute: `coverage FILE..`. Without files, the table of
//! instruction forms.

use bakewell_emulator::isa::table::{Handler, TABLE};
use bakewell_emulator::{Module, Target};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if files.is_empty() {
        for row in TABLE.rows() {
            let state = match row.handler {
                Handler::Decode(_) => "executed",
                Handler::Missing => "not implemented",
                Handler::Refused(reason) => reason,
            };
            println!("{} | {} | {} | {state}", row.form, row.operands, row.section);
        }
        return Ok(());
    }
    let mut all = 0;
    for file in files {
        let module = match Module::parse(&std::fs::read_to_string(&file)?) {
            Ok(module) => module,
            Err(error) => {
                println!("{file}: {error}");
                all += 1;
                continue;
            }
        };
        let word = module.tree.target.first().cloned().unwrap_or_default();
        let Some(target) = Target::parse(&word) else {
            println!("{file}: target {word} is not emulated");
            continue;
        };
        let found = module.unsupported(target);
        println!("{file}: {} kernels, {} instructions not executable", module.kernels().len(), found.len());
        for error in &found {
            println!("  {error}");
        }
        all += found.len();
    }
    if all > 0 {
        std::process::exit(1);
    }
    Ok(())
}
