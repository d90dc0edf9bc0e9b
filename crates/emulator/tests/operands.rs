//! Instructions with operands, as assemblers accept them: the forms of production kernels and their neighbours. Each is
//! decoded, or refused with a reason that says why.

use bakewell_emulator::{Error, Module, Target};

/// `TARGET [TARGET ..]|INSTRUCTION`, one a line.
const INSTRUCTIONS: &str = include_str!("data/instructions.txt");

/// Instructions that are refused on purpose.
const REFUSED: &[&str] = &[
    "tcgen05.alloc.exclusive",
    "tcgen05.dealloc.exclusive",
    "multimem.",
    "tex.",
    "suld.",
    "mma.sp",
    "wgmma.mma_async.sp",
    "fma.rn.oob",
    "tcgen05.mma.cta_group::1.kind::f16.ashift",
];

fn module(target: Target, body: &str) -> Module {
    let text = format!(
        ".version 9.5\n.target {target}\n.address_size 64\n.visible .entry k(.param .b64 p) {{
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
        for error in module(target, &body.join("\n")).unsupported(target) {
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
