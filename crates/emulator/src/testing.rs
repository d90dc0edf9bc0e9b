//! Runs a few lines of PTX on one warp: what the tests of every family use.

use crate::emulator::{Emulator, Launch, Module, Report};

use crate::isa::Target;
use crate::options::Options;

/// Declarations that every snippet may use.
const REGISTERS: &str = "
    .reg .pred %p<16>; .reg .b16 %h<32>; .reg .b32 %r<64>; .reg .b32 %o<16>; .reg .f32 %f<32>;
    .reg .b64 %rd<64>; .reg .b64 %q<16>; .reg .f64 %d<16>; .reg .b128 %x<8>;
    .reg .b64 %io_base, %io_lane, %io_at; .reg .b32 %io_tid;";

/// What a snippet computed.
pub(crate) struct Ran {
    pub(crate) report: Report,
    /// `%o0..` as `[index][lane]`.
    pub(crate) words: Vec<[u32; 32]>,
    /// `%q0..` as `[index][lane]`.
    pub(crate) wide: Vec<[u64; 32]>,
}

/// One warp executes `body`. `%r0..` hold `inputs`, `%rd0..` hold `wide_inputs`, lane by lane; `%o0..` and `%q0..` are
/// the results, `outs` and `wide_outs` of them. `%io_tid` is the lane.
pub(crate) fn run_on(
    target: Target,
    body: &str,
    (inputs, wide_inputs): (&[[u32; 32]], &[[u64; 32]]),
    (outs, wide_outs): (usize, usize),
) -> Ran {
    let mut text = format!(".version 9.4\n.target {target}\n.address_size 64\n");
    text.push_str(".visible .entry snippet(.param .u64 in, .param .u64 out) {");
    text.push_str(REGISTERS);
    text.push_str("\nmov.u32 %io_tid, %tid.x; ld.param.u64 %io_base, [in];\n");
    text.push_str("mul.wide.u32 %io_lane, %io_tid, 8; add.u64 %io_at, %io_base, %io_lane;\n");
    for i in 0..inputs.len() {
        text.push_str(&format!("ld.global.u32 %r{i}, [%io_at + {}];\n", i * 256));
    }
    for i in 0..wide_inputs.len() {
        text.push_str(&format!("ld.global.u64 %rd{i}, [%io_at + {}];\n", (inputs.len() + i) * 256));
    }
    text.push_str(body);
    text.push_str("\nld.param.u64 %io_base, [out]; add.u64 %io_at, %io_base, %io_lane;\n");
    for i in 0..outs {
        text.push_str(&format!("st.global.u32 [%io_at + {}], %o{i};\n", i * 256));
    }
    for i in 0..wide_outs {
        text.push_str(&format!("st.global.u64 [%io_at + {}], %q{i};\n", (outs + i) * 256));
    }
    text.push_str("ret; }\n");
    let module = Module::parse(&text).unwrap();
    let device = Emulator::new(target, Options::new(target));
    let mut data = Vec::new();
    for lanes in inputs {
        lanes.iter().for_each(|&v| data.extend(u64::from(v).to_le_bytes()));
    }
    for lanes in wide_inputs {
        lanes.iter().for_each(|v| data.extend(v.to_le_bytes()));
    }
    let input = device.allocate("in", data.len().max(8) as u64).unwrap();
    device.write(input, &data).unwrap();
    let slots = outs + wide_outs;
    let output = device.allocate("out", (slots * 256).max(8) as u64).unwrap();
    let loaded = device.load(&module).unwrap();
    let params: Vec<u8> = [input, output].iter().flat_map(|a| a.to_le_bytes()).collect();
    let report = device.launch(&loaded, "snippet", Launch::linear(1, 32), &params).unwrap();
    let read = |slot: usize| -> [u64; 32] {
        let bytes = device.read(output + slot as u64 * 256, 256).unwrap();
        std::array::from_fn(|lane| u64::from_le_bytes(bytes[lane * 8..][..8].try_into().unwrap()))
    };
    Ran {
        report,
        words: (0..outs).map(|i| read(i).map(|v| v as u32)).collect(),
        wide: (outs..slots).map(read).collect(),
    }
}

/// [`run_on`] sm_100a, asserting that nothing was found.
pub(crate) fn run32(body: &str, inputs: &[[u32; 32]], outs: usize) -> Vec<[u32; 32]> {
    let ran = run_on(Target::Sm100, body, (inputs, &[]), (outs, 0));
    assert!(ran.report.findings.is_empty(), "{:?}", ran.report.findings);
    ran.words
}

/// [`run_on`] sm_100a for 64-bit inputs and results, asserting that nothing was found.
pub(crate) fn run64(body: &str, inputs: &[[u64; 32]], outs: usize) -> Vec<[u64; 32]> {
    let ran = run_on(Target::Sm100, body, (&[], inputs), (0, outs));
    assert!(ran.report.findings.is_empty(), "{:?}", ran.report.findings);
    ran.wide
}

/// Lane values from a list, repeated.
pub(crate) fn lanes<T: Copy>(values: &[T]) -> [T; 32] {
    std::array::from_fn(|lane| values[lane % values.len()])
}
