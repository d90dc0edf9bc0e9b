//! Instructions with operands, as assemblers accept them: the forms of production kernels and their neighbours. Each is
//! decoded, or refused with a reason that says why.

use std::collections::{BTreeMap, BTreeSet};

use bakewell_emulator::{Emulator, Error, Launch, Module, Options, Target};

/// `TARGET [TARGET ..]|INSTRUCTION`, one a line.
const INSTRUCTIONS: &str = include_str!("data/instructions.txt");

/// Instructions that are refused on purpose.
const REFUSED: &[&str] = &[
    "multimem.",
    "tex.",
    "suld.",
    "mma.sp",
    "wgmma.mma_async.sp",
    "fma.rn.oob",
    "tcgen05.mma.cta_group::1.kind::f16.ashift",
];

/// `WORD [WORD ..]|INSTRUCTION`: the `.target` words, of [`WORDS`], for which ptxas 13.5 assembles it; all of them
/// assemble the other instructions of the list above.
const RESTRICTED: &str = include_str!("data/target_words.txt");

/// Those that were tried.
const WORDS: [&str; 10] =
    ["sm_90", "sm_90a", "sm_100", "sm_100f", "sm_100a", "sm_103f", "sm_103a", "sm_110", "sm_110f", "sm_110a"];

fn module(word: &str, body: &str) -> Module {
    let text = format!(
        ".version 9.5\n.target {word}\n.address_size 64\n.visible .entry k(.param .b64 p) {{
.reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<256>; .reg .f32 %f<8>; .reg .b64 %rd<48>; .reg .f64 %d<8>; .reg .b128 %x<8>;
{body}
done: ret;
}}\n"
    );
    Module::parse(&text).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn instructions_decode_with_their_operands() {
    let mut lines = 0;
    let mut left = Vec::new();
    for target in Target::ALL {
        let here = |targets: &str| targets.split(' ').any(|word| Target::parse(word) == Some(target));
        let body: Vec<&str> = INSTRUCTIONS
            .lines()
            .filter_map(|line| line.split_once('|'))
            .filter(|(targets, _)| here(targets))
            .map(|(_, instruction)| instruction)
            .collect();
        lines += body.len();
        for error in module(&target.to_string(), &body.join("\n")).unsupported(target) {
            let refused = |text: &str| REFUSED.iter().any(|start| text.starts_with(start));
            match &error {
                Error::Refused { text, .. } if refused(text) => {}
                error => left.push(format!("{target}: {error}")),
            }
        }
    }
    assert!(lines > 900, "{lines} instructions");
    assert!(left.is_empty(), "{} instructions:\n{}", left.len(), left.join("\n"));
}

#[test]
fn target_words_have_what_the_assembler_says() {
    let restricted: BTreeMap<&str, &str> =
        RESTRICTED.lines().filter_map(|line| line.split_once('|')).map(|(words, text)| (text, words)).collect();
    let all: BTreeSet<&str> = INSTRUCTIONS.lines().filter_map(|line| line.split_once('|')).map(|line| line.1).collect();
    assert!(restricted.keys().all(|text| all.contains(text)) && restricted.len() > 100, "{}", restricted.len());
    let mut wrong = Vec::new();
    for word in WORDS {
        let target = Target::parse(word).unwrap();
        let refused: BTreeMap<String, String> = module(word, &all.iter().copied().collect::<Vec<_>>().join("\n"))
            .unsupported(target)
            .into_iter()
            .map(|error| match error {
                Error::Refused { text, reason, .. } | Error::Unsupported { text, reason, .. } => (text, reason),
                other => panic!("{other}"),
            })
            .collect();
        for text in all.iter().filter(|text| !REFUSED.iter().any(|start| text.starts_with(start))) {
            let has = restricted.get(text).is_none_or(|words| words.split(' ').any(|known| known == word));
            if has == refused.contains_key(*text) {
                wrong.push(format!("{word}: {text}: {:?}", refused.get(*text)));
            }
        }
    }
    assert!(wrong.is_empty(), "{} instructions:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn refusals_name_the_word_that_is_needed() {
    let reason = |word: &str, target: Target, body: &str| match module(word, body).unsupported(target).as_slice() {
        [Error::Refused { line: 6, reason, .. }] => reason.clone(),
        other => panic!("{other:?}"),
    };
    let wgmma = "wgmma.fence.sync.aligned;";
    assert_eq!(
        reason("sm_90", Target::Sm90, wgmma),
        "wgmma.fence.sync.aligned needs .target sm_90a, the module has sm_90"
    );
    let registers = "setmaxnreg.dec.sync.aligned.u32 64;";
    assert_eq!(
        reason("sm_90", Target::Sm90, registers),
        "setmaxnreg.dec.sync.aligned.u32 needs .target sm_90a, the module has sm_90"
    );
    let wait = "tcgen05.wait::ld.sync.aligned;";
    assert_eq!(
        reason("sm_100", Target::Sm103, wait),
        "tcgen05.wait::ld.sync.aligned needs .target sm_103f, the module has sm_100"
    );
    // sm_103 has it, and the family of sm_100 as a whole does not.
    let reduction = "tcgen05.ld.red.sync.aligned.32x32b.x2.max.u32 {%r0, %r1}, %r2, [%r3];";
    assert!(reason("sm_100f", Target::Sm103, reduction).ends_with("needs .target sm_103f, the module has sm_100f"));
    assert!(module("sm_103f", reduction).unsupported(Target::Sm107).is_empty());
    let shift = "tcgen05.shift.cta_group::1.down [%r1];";
    assert!(reason("sm_100f", Target::Sm100, shift).ends_with("needs .target sm_100a, the module has sm_100f"));
}

#[test]
fn modules_without_target_or_entry_are_refused() {
    let device = Emulator::new(Target::Sm90, Options::new(Target::Sm90));
    let error = device.load(&Module::parse(".version 8.0\n.address_size 64\n").unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "module: expected a .target that sm_90a runs, got none");
    let text = ".version 8.0\n.target sm_90\n.address_size 64\n.func f() { ret; }\n.entry declared();";
    let loaded = device.load(&Module::parse(text).unwrap()).unwrap();
    let error = device.launch(&loaded, "k", Launch::linear(1, 32), &[]).unwrap_err();
    assert_eq!(error.to_string(), "kernel: expected a module with an .entry and its body, got k");
}
