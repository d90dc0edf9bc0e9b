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
