//! Thread instructions per second on one core: arithmetic, and a mix with shared and global memory.

use std::time::Instant;

use bakewell_emulator::{Emulator, Launch, Module, Options, Target};

const LOOPS: u32 = 4000;

fn kernel(name: &str, body: &str) -> String {
    format!(
        ".version 8.6 .target sm_100a .address_size 64
         .shared .align 16 .b8 tile[4096];
         .visible .entry {name}(.param .u64 data) {{
         .reg .pred %p<4>; .reg .b32 %r<32>; .reg .f32 %f<32>; .reg .b64 %rd<16>;
         ld.param.u64 %rd0, [data]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 16; add.s64 %rd2, %rd0, %rd1;
         mov.u32 %r1, tile; shl.b32 %r2, %r0, 4; and.b32 %r2, %r2, 4080; add.s32 %r3, %r1, %r2;
         mov.u32 %r4, 0; mov.b32 %f1, 0f3F800000; mov.b32 %f2, 0f3F000000; mov.b32 %f3, 0f3F7FF000;
         st.shared.v4.u32 [%r3], {{%r0, %r0, %r0, %r0}};
         LOOP: {body}
         add.s32 %r4, %r4, 1; setp.lt.u32 %p0, %r4, {LOOPS}; @%p0 bra LOOP;
         st.global.f32 [%rd2], %f1; st.global.u32 [%rd2+4], %r5; ret; }}"
    )
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let integer = "mad.lo.s32 %r5, %r4, %r0, %r2; xor.b32 %r6, %r5, %r3; shl.b32 %r7, %r6, 3; and.b32 %r8, %r7, 255; add.s32 %r9, %r8, %r5;
        sub.s32 %r10, %r9, %r4; or.b32 %r11, %r10, 1; max.s32 %r12, %r11, %r5; shr.u32 %r13, %r12, 2; add.s32 %r5, %r13, %r6;";
    let float = "add.f32 %f4, %f1, %f2; mul.f32 %f5, %f4, %f3; sub.f32 %f6, %f5, %f2; max.f32 %f7, %f6, %f2; fma.rn.f32 %f8, %f7, %f3, %f2;
        mul.f32 %f9, %f8, %f3; add.f32 %f10, %f9, %f2; min.f32 %f11, %f10, %f1; mul.f32 %f12, %f11, %f3; add.f32 %f13, %f12, %f2;";
    let fma = "fma.rn.f32 %f4, %f1, %f2, %f3; fma.rn.f32 %f5, %f4, %f3, %f2; fma.rn.ftz.f32 %f6, %f5, %f2, %f1; fma.rn.f32 %f7, %f6, %f3, %f2;
        ex2.approx.ftz.f32 %f8, %f7;";
    let memory = "ld.shared.v4.u32 {%r5, %r6, %r7, %r8}, [%r3]; add.s32 %r9, %r5, %r6; st.shared.v4.u32 [%r3], {%r9, %r6, %r7, %r8};
        st.global.u32 [%rd2+8], %r9; ld.global.u32 %r10, [%rd2+8]; st.global.v4.u32 [%rd2], {%r9, %r6, %r7, %r8}; ld.global.v4.u32 {%r11, %r12, %r13, %r14}, [%rd2];";
    let pairs = "mul.wide.u32 %rd3, %r4, %r0; add.s64 %rd4, %rd3, %rd2; shl.b64 %rd5, %rd4, 2; cvt.u32.u64 %r5, %rd5; cvt.rn.bf16x2.f32 %r6, %f1, %f2;
        cvt.rn.f32.s32 %f4, %r5; setp.gt.f32 %p1, %f4, %f2; selp.f32 %f5, %f4, %f2, %p1; shfl.sync.bfly.b32 %r7, %r5, 1, 31, -1;";
    let bodies = [("integer", integer), ("float", float), ("fma", fma), ("memory", memory), ("mixed", pairs)];
    for (order, (name, body)) in [false, true].into_iter().flat_map(|order| bodies.map(|body| (order, body))) {
        let module = Module::parse(&kernel(name, body))?;
        let mut options = Options { workers: 1, ..Options::new(Target::Sm100) };
        options.checks.order = order;
        let device = Emulator::new(Target::Sm100, options);
        let data = device.allocate("data", 256 * 16)?;
        let loaded = device.load(&module)?;
        let start = Instant::now();
        let report = device.launch(&loaded, name, Launch::linear(1, 256), &data.to_le_bytes())?;
        let seconds = start.elapsed().as_secs_f64();
        for finding in &report.findings {
            println!("{finding}");
        }
        let threads = report.counters.thread_instructions as f64;
        let warps = report.counters.warp_instructions as f64;
        let checker = if order { "with" } else { "without" };
        println!(
            "{name} {checker} order checks: {:.0} M thread instructions/s, {:.1} ns per warp instruction",
            threads / seconds / 1e6,
            seconds / warps * 1e9
        );
    }
    Ok(())
}
