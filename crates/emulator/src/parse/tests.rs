//! Text as compilers write it, and text that nobody should write.

use proptest::prelude::*;

use super::ast::{Init, Operand, Statement};
use super::parse;
use crate::error::Error;

const KERNEL: &str = r#"
.version 8.7
.target sm_100a, debug
.address_size 64
.file 1 "a.cu"
.extern .shared .align 1024 .b8 smem[];
.global .align 4 .u32 table[4] = {1, 0x2U, -3, 4};
.global .align 8 .u64 place = table+4;
.const .align 1 .b8 name[4] = "a\n";
.visible .entry kernel(.param .align 64 .b8 map[128], .param .u64 .ptr .global .align 16 out)
.reqntid 128, 1, 1
.minnctapersm 1
{
 .reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<4>; .reg .b128 %q;
 .pragma "nounroll";
 .loc 1 3 5
$L__BB0_1: // comment
 { .reg .b32 t; waitLoop: @!%p1 bra waitLoop; mov.b32 t, 0f3F800000; skip: }
 mov.b64 {%r1, _}, %rd1; ld.global.b32 { %r2 }, [ %rd1 + 0 ];
 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4], %rd2;
 setp.lt.s32 %p1|%p2, %r1, -5;
 fence.mbarrier_init.release.cluster ;
 call.uni (%r1), f, (%r2, %r3);
 ret;
}
.section .debug_str { .b8 1 }
"#;

#[test]
fn real_text() {
    let module = parse(KERNEL).unwrap();
    assert_eq!(module.version, (8, 7));
    assert_eq!(module.target, ["sm_100a", "debug"]);
    assert_eq!(module.variables.len(), 4);
    assert_eq!(module.variables[1].init[1..3], [Init::Integer(2), Init::Integer(-3)]);
    assert_eq!(module.variables[3].init, [Init::Integer(97), Init::Integer(10)]);
    let kernel = &module.functions[0];
    assert_eq!(kernel.params[0].dims, [Some(128)]);
    assert_eq!(kernel.directives[0], ("reqntid".to_string(), vec![128, 1, 1]));
    let body = kernel.body.as_ref().unwrap();
    let copy = body.iter().find_map(|s| match s {
        Statement::Instruction(i) if i.mnemonic == "cp" => Some(i),
        _ => None,
    });
    let copy = copy.unwrap();
    assert_eq!(copy.modifiers.last().unwrap(), "mbarrier::complete_tx::bytes");
    let Operand::Address(map) = &copy.operands[1] else { panic!("{:?}", copy.operands) };
    assert_eq!((map.base.as_deref(), map.rest.len()), (Some("%rd1"), 1));
    assert_eq!(KERNEL.lines().nth(copy.line as usize - 1).unwrap().trim().get(..8), Some("cp.async"));
}

#[test]
fn errors_carry_line_text_and_reason() {
    let error = parse(".version 8.0\n.target sm_90\n.entry k() {\n  add.s32 %r1 %r2;\n}").unwrap_err();
    let Error::Parse { line, text, reason } = error else { panic!("{error}") };
    assert_eq!((line, text.as_str()), (4, "add.s32 %r1 %r2;"));
    assert!(reason.contains("expected ';'"), "{reason}");
}

/// The error of a kernel with `head` before it, `body` in it and `tail` behind it.
fn error_of(head: &str, body: &str, tail: &str) -> (u32, String) {
    let text = format!(".version 8.0\n.target sm_90a\n.address_size 64\n{head}\n.entry k() {{\n{body}\n}}\n{tail}");
    match parse(&text) {
        Err(Error::Parse { line, reason, .. }) => (line, reason),
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn names_are_declared_once_in_a_scope() {
    let twice = |name: &str, line: u32| (line, format!("{name} is declared twice in one scope"));
    assert_eq!(error_of("", "L: bra L;\nL: ret;", ""), twice("L", 7));
    assert_eq!(error_of("", "L: .branchtargets M;\nM:\nL: ret;", ""), twice("L", 8));
    assert_eq!(error_of("", ".reg .b32 x;\n.reg .f32 x;", ""), twice("x", 7));
    assert_eq!(error_of("", ".reg .b32 %r<3>;\n.reg .b32 %r<4>;", ""), twice("%r", 7));
    assert_eq!(error_of("", ".reg .b32 x;\nx: ret;", ""), twice("x", 7));
    let (line, reason) = error_of("", "ret;", ".entry k() { ret; }");
    assert_eq!((line, reason.contains("k has two bodies")), (8, true), "{reason}");
    // Scopes inside one another, and beside one another, have names of their own.
    let scopes = "{ L: bra L; .reg .b32 x; } { L: bra L; .reg .b32 x; } L: .reg .b32 x; .reg .b32 %x<2>; .reg .b32 x1;";
    parse(&format!(".version 8.0 .target sm_90a .func f(); .entry k() {{ {scopes} ret; }} .func f() {{ ret; }}"))
        .unwrap();
}

#[test]
fn what_never_ends_is_told_where_it_begins() {
    let comment = "the comment that begins here never ends";
    assert_eq!(error_of("/* a */ /* b", "ret;", ""), (4, comment.to_string()));
    assert_eq!(error_of("", "ret; /*", ""), (6, comment.to_string()));
    assert_eq!(error_of("", "ret;", "// end\n/* * /"), (9, comment.to_string()));
    let string = "the string has no end on its line";
    assert_eq!(error_of(".file 1 \"a.cu", "ret;", ""), (4, string.to_string()));
    assert_eq!(error_of("", "ret;\n.loc 1 2 3, function_name \"f", ""), (7, string.to_string()));
    assert_eq!(error_of("", "L: .file 1 \"a\\\"", ""), (6, string.to_string()));
    let (line, reason) = error_of("", "ret;", ".section .debug_str { .b8 1");
    assert_eq!((line, reason.contains("expected '}'")), (8, true), "{reason}");
    let ended = ".file 1 \"a\\\"b.cu\" // it's \"so\n.entry k() { .loc 1 2 3 // \"\n ret; } /* */ // /*";
    parse(&format!(".version 8.0 .target sm_90a\n{ended}")).unwrap();
}

#[test]
fn alignments_are_powers_of_two() {
    for align in ["0", "3", "2097152"] {
        let (line, reason) = error_of(&format!(".global .align {align} .b8 x[4];"), "ret;", "");
        assert_eq!((line, reason), (4, format!(".align: expected a power of two up to 1048576, got {align}")));
    }
}

#[test]
fn nul_bytes_may_only_stand_behind_the_end() {
    let (line, reason) = error_of("", "ret;\0 ret;", "");
    assert_eq!((line, reason.as_str()), (6, "expected text, found a NUL byte"));
    assert_eq!(parse(&format!("{KERNEL}\0\0")), parse(KERNEL));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,300}") {
        let _ = parse(&text);
    }

    #[test]
    fn damaged_text_is_read_or_refused(cut in 0..KERNEL.len(), at in 0..KERNEL.len(), byte in "[{}\\[\\]();:.,<>\"@%0-9a-z -]{0,4}") {
        let mut damaged = KERNEL.to_string();
        damaged.insert_str(at, &byte);
        let _ = parse(&damaged);
        let _ = parse(&damaged[..cut]);
    }

    #[test]
    fn damaged_kernels_decode_or_are_refused(at in 0..KERNEL.len(), byte in "[{}\\[\\]();:.,<>@%0-9a-z -]{1,3}") {
        let mut damaged = KERNEL.to_string();
        damaged.insert_str(at, &byte);
        if let Ok(module) = crate::Module::parse(&damaged) {
            let _ = module.unsupported(crate::Target::Sm100);
        }
    }
}
