//! Finds the missing barrier of a Blackwell kernel on any machine:
//! `cargo run -p bakewell-emulator --example find_a_race`.

use bakewell_emulator::{Emulator, Launch, Module, Options, Target};

const REVERSE: &str = "
.version 8.6 .target sm_100a .address_size 64
.visible .entry reverse(.param .u64 data) {
    .shared .align 4 .b8 tile[256];
    .reg .b32 %r<6>; .reg .b64 %rd<3>;
    ld.param.u64 %rd0, [data]; mov.u32 %r0, %tid.x;
    mul.wide.u32 %rd1, %r0, 4; add.s64 %rd2, %rd0, %rd1;
    ld.global.u32 %r1, [%rd2];
    mov.u32 %r2, tile; shl.b32 %r3, %r0, 2; add.u32 %r4, %r2, %r3;
    st.shared.u32 [%r4], %r1;
    // bar.sync 0; is missing here
    sub.u32 %r3, 252, %r3; add.u32 %r4, %r2, %r3;
    ld.shared.u32 %r5, [%r4];
    st.global.u32 [%rd2], %r5;
    ret;
}";

fn main() -> Result<(), bakewell_emulator::Error> {
    let device = Emulator::new(Target::Sm100, Options::new(Target::Sm100));
    let data = device.allocate("data", 64 * 4)?;
    let numbers: Vec<u8> = (0..64u32).flat_map(u32::to_le_bytes).collect();
    device.write(data, &numbers)?;
    let module = device.load(&Module::parse(REVERSE)?)?;
    let report = device.launch(&module, "reverse", Launch::linear(1, 64), &data.to_le_bytes())?;
    for finding in &report.findings {
        println!("{finding}");
    }
    println!("{} warp instructions", report.counters.warp_instructions);
    Ok(())
}
