//! Speed of the emulator itself, on the host: instructions per second and core, products per second, and how CTAs
//! spread over cores. The programs are a loop each.

use std::time::Instant;

use bakewell::emulator::{Emulator, Launch, Module, Options, Target};
use serde::Serialize;

use super::record::write;
use crate::environment;
use crate::report::{Report, table};

/// Times each program is run; the median counts.
const RUNS: usize = 5;
/// Times that a loop of plain instructions is run through, and one of matrix instructions.
const LOOPS: u32 = 4000;
const MATRIX_LOOPS: u32 = 40;

/// A run of `bench emulator`.
#[derive(Serialize)]
struct Record {
    host: String,
    cores: usize,
    optimised: bool,
    version: &'static str,
    commit: Option<String>,
    command: String,
    date: String,
    rows: Vec<Row>,
}

/// One program.
#[derive(Serialize)]
struct Row {
    program: &'static str,
    /// Whether races are looked for.
    order_checks: bool,
    workers: usize,
    ctas: u32,
    warp_instructions: u64,
    thread_instructions: u64,
    /// Multiplications with additions in matrix instructions.
    matrix_products: u64,
    /// Median and extremes, in seconds.
    seconds: [f64; 3],
}

impl Row {
    /// Median seconds of one core.
    fn core_seconds(&self) -> f64 {
        self.seconds[1] * self.workers as f64
    }
}

/// A program, and the architecture that it is for.
struct Program {
    name: &'static str,
    target: Target,
    threads: u32,
    loops: u32,
    /// Whether matrices come before the rest, [`VALUES`].
    matrices: bool,
    /// Before the loop, and in it.
    prologue: &'static str,
    body: &'static str,
    /// After the loop.
    epilogue: &'static str,
}

const PLAIN: Program = Program {
    name: "",
    target: Target::Sm100,
    threads: 256,
    loops: LOOPS,
    matrices: false,
    prologue: "",
    body: "",
    epilogue: "",
};

/// Finite f16 values of both signs in the 48 KiB of the tile and in registers, visible to matrix instructions, and the
/// first bits of a descriptor of the tile.
const VALUES: &str = "mov.u32 %r20, 0; mov.u32 %r21, %r3; mul.lo.u32 %r5, %r0, 0x9E3779B1; and.b32 %r5, %r5, 0x83FF83FF; or.b32 %r5, %r5, 0x3C003C00;
    xor.b32 %r6, %r5, 0x80000101; xor.b32 %r7, %r5, 0x01108220; xor.b32 %r8, %r5, 0x83018015; mov.u32 %r9, %r6; mov.u32 %r10, %r8;
    FILL: st.shared.v4.u32 [%r21], {%r5, %r6, %r7, %r8}; add.u32 %r21, %r21, 2048; add.u32 %r20, %r20, 1; setp.lt.u32 %p1, %r20, 24; @%p1 bra FILL;
    fence.proxy.async.shared::cta; bar.sync 0; cvt.u64.u32 %rd8, %r1; shr.u64 %rd8, %rd8, 4;";

const PROGRAMS: &[Program] = &[
    Program {
        name: "integer",
        body: "mad.lo.s32 %r5, %r4, %r0, %r2; xor.b32 %r6, %r5, %r3; shl.b32 %r7, %r6, 3; and.b32 %r8, %r7, 255; add.s32 %r9, %r8, %r5;
            sub.s32 %r10, %r9, %r4; or.b32 %r11, %r10, 1; max.s32 %r12, %r11, %r5; shr.u32 %r13, %r12, 2; add.s32 %r5, %r13, %r6;",
        ..PLAIN
    },
    Program {
        name: "float",
        body: "add.f32 %f4, %f1, %f2; mul.f32 %f5, %f4, %f3; sub.f32 %f6, %f5, %f2; max.f32 %f7, %f6, %f2; fma.rn.f32 %f8, %f7, %f3, %f2;
            mul.f32 %f9, %f8, %f3; add.f32 %f10, %f9, %f2; min.f32 %f11, %f10, %f1; mul.f32 %f12, %f11, %f3; add.f32 %f13, %f12, %f2;",
        ..PLAIN
    },
    Program {
        name: "fma, ex2",
        body: "fma.rn.f32 %f4, %f1, %f2, %f3; fma.rn.f32 %f5, %f4, %f3, %f2; fma.rn.ftz.f32 %f6, %f5, %f2, %f1; fma.rn.f32 %f7, %f6, %f3, %f2;
            ex2.approx.ftz.f32 %f8, %f7;",
        ..PLAIN
    },
    Program {
        name: "wide, conversions, shuffles",
        body: "mul.wide.u32 %rd3, %r4, %r0; add.s64 %rd4, %rd3, %rd2; shl.b64 %rd5, %rd4, 2; cvt.u32.u64 %r5, %rd5; cvt.rn.bf16x2.f32 %r6, %f1, %f2;
            cvt.rn.f32.s32 %f4, %r5; setp.gt.f32 %p1, %f4, %f2; selp.f32 %f5, %f4, %f2, %p1; shfl.sync.bfly.b32 %r7, %r5, 1, 31, -1;",
        ..PLAIN
    },
    Program {
        name: "half loads and stores",
        prologue: "st.shared.v4.u32 [%r3], {%r0, %r0, %r0, %r0};",
        body: "ld.shared.v4.u32 {%r5, %r6, %r7, %r8}, [%r3]; add.s32 %r9, %r5, %r6; st.shared.v4.u32 [%r3], {%r9, %r6, %r7, %r8};
            st.global.u32 [%rd2+8], %r9; ld.global.u32 %r10, [%rd2+8]; st.global.v4.u32 [%rd2], {%r9, %r6, %r7, %r8}; ld.global.v4.u32 {%r11, %r12, %r13, %r14}, [%rd2];",
        ..PLAIN
    },
    Program {
        name: "mma.sync m16n8k16 f16",
        threads: 128,
        loops: MATRIX_LOOPS * 8,
        matrices: true,
        body: "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f4, %f5, %f6, %f7}, {%r5, %r6, %r7, %r8}, {%r9, %r10}, {%f4, %f5, %f6, %f7};",
        ..PLAIN
    },
    Program {
        name: "wgmma m64n128k16 f16",
        target: Target::Sm90,
        threads: 128,
        loops: MATRIX_LOOPS,
        matrices: true,
        body: "or.b64 %rd9, %rd8, 0x4000004000010000; wgmma.fence.sync.aligned;
            wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%g0, %g1, %g2, %g3, %g4, %g5, %g6, %g7, %g8, %g9, %g10, %g11, %g12, %g13, %g14, %g15, %g16, %g17, %g18, %g19, %g20, %g21, %g22, %g23, %g24, %g25, %g26, %g27, %g28, %g29, %g30, %g31, %g32, %g33, %g34, %g35, %g36, %g37, %g38, %g39, %g40, %g41, %g42, %g43, %g44, %g45, %g46, %g47, %g48, %g49, %g50, %g51, %g52, %g53, %g54, %g55, %g56, %g57, %g58, %g59, %g60, %g61, %g62, %g63}, %rd9, %rd9, 1, 1, 1, 0, 0;
            wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;",
        ..PLAIN
    },
    Program {
        name: "tcgen05.mma m128n256k16 f16",
        threads: 128,
        loops: MATRIX_LOOPS,
        matrices: true,
        prologue: "setp.lt.u32 %p2, %r0, 32; setp.eq.u32 %p3, %r0, 0; @%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 256;
            @%p3 mbarrier.init.shared::cta.b64 [bar], 1; fence.mbarrier_init.release.cluster; tcgen05.fence::before_thread_sync; bar.sync 0;
            tcgen05.fence::after_thread_sync; ld.shared.b32 %r22, [slot]; or.b64 %rd9, %rd8, 0x4000404000010000; mov.u32 %r23, 0x8400010;",
        body: "setp.ne.u32 %p4, %r4, 0; @%p3 tcgen05.mma.cta_group::1.kind::f16 [%r22], %rd9, %rd9, %r23, %p4;
            @%p3 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bar]; and.b32 %r24, %r4, 1;
            WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [bar], %r24; @!%p1 bra WAIT; bar.sync 0;",
        epilogue: "tcgen05.fence::before_thread_sync; bar.sync 0; @%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r22, 256;",
        ..PLAIN
    },
];

impl Program {
    fn text(&self) -> String {
        let Program { target, prologue, body, epilogue, loops, .. } = self;
        let values = if self.matrices { VALUES } else { "" };
        format!(
            ".version 9.0 .target {target} .address_size 64
             .shared .align 1024 .b8 tile[49152]; .shared .align 8 .b64 bar; .shared .b32 slot;
             .visible .entry k(.param .u64 data) {{
             .reg .pred %p<8>; .reg .b32 %r<32>; .reg .f32 %f<16>; .reg .f32 %g<64>; .reg .b64 %rd<16>;
             ld.param.u64 %rd0, [data]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 16; add.s64 %rd2, %rd0, %rd1;
             mov.u32 %r20, %ctaid.x; mul.wide.u32 %rd1, %r20, 4096; add.s64 %rd2, %rd2, %rd1;
             mov.u32 %r1, tile; shl.b32 %r2, %r0, 4; add.s32 %r3, %r1, %r2;
             mov.u32 %r4, 0; mov.b32 %f1, 0f3F800000; mov.b32 %f2, 0f3F000000; mov.b32 %f3, 0f3F7FF000;
             {values}
             {prologue}
             LOOP: {body}
             add.s32 %r4, %r4, 1; setp.lt.u32 %p0, %r4, {loops}; @%p0 bra LOOP;
             {epilogue}
             ret; }}"
        )
    }

    fn measure(&self, order_checks: bool, workers: usize, ctas: u32) -> anyhow::Result<Row> {
        let module = Module::parse(&self.text())?;
        let mut options = Options { workers, ..Options::new(self.target) };
        options.checks.order = order_checks;
        let device = Emulator::new(self.target, options);
        let data = device.allocate("data", u64::from(ctas) * 4096)?;
        let loaded = device.load(&module)?;
        let mut seconds = Vec::new();
        let mut counters = None;
        for _ in 0..RUNS {
            let start = Instant::now();
            let report = device.launch(&loaded, "k", Launch::linear(ctas, self.threads), &data.to_le_bytes())?;
            seconds.push(start.elapsed().as_secs_f64());
            if let Some(finding) = report.findings.iter().find(|finding| !finding.warning) {
                anyhow::bail!("{}: {finding}", self.name);
            }
            counters = Some(report.counters);
        }
        seconds.sort_by(f64::total_cmp);
        let counters = counters.unwrap_or_default();
        Ok(Row {
            program: self.name,
            order_checks,
            workers,
            ctas,
            warp_instructions: counters.warp_instructions,
            thread_instructions: counters.thread_instructions,
            matrix_products: counters.matrix.values().map(|count| count.multiply_adds).sum(),
            seconds: [seconds[0], seconds[RUNS / 2], seconds[RUNS - 1]],
        })
    }
}

/// The processor's name where the system tells it.
fn host() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name));
    model.unwrap_or("unknown").to_owned()
}

/// Measures every program on one core, with and without order checks, then one on all cores.
pub(super) fn main(json: Option<&std::path::Path>) -> anyhow::Result<Report> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut rows = Vec::new();
    for program in PROGRAMS {
        eprintln!("{}", program.name);
        for order_checks in [false, true] {
            rows.push(program.measure(order_checks, 1, 1)?);
        }
    }
    let mut workers = 1;
    while workers <= cores {
        rows.push(PROGRAMS[0].measure(true, workers, 4 * workers as u32)?);
        workers *= 2;
    }
    let record = Record {
        host: host(),
        cores,
        optimised: !cfg!(debug_assertions),
        version: env!("CARGO_PKG_VERSION"),
        commit: environment::commit(),
        command: environment::command(),
        date: environment::date(),
        rows,
    };
    write(json, &record)?;
    Ok(Report::fine(record.render()))
}

impl Record {
    fn render(&self) -> String {
        let mut rows = table(&[
            "program",
            "order checks",
            "workers",
            "CTAs",
            "ns per warp instruction",
            "M thread instructions/s/core",
            "GFLOP/s/core",
        ]);
        for row in &self.rows {
            let seconds = row.core_seconds();
            let products = row.matrix_products as f64;
            rows.add_row([
                row.program.to_owned(),
                if row.order_checks { "yes" } else { "no" }.to_owned(),
                row.workers.to_string(),
                row.ctas.to_string(),
                format!("{:.1}", seconds / row.warp_instructions as f64 * 1e9),
                format!("{:.0}", row.thread_instructions as f64 / seconds / 1e6),
                if products > 0.0 { format!("{:.2}", 2.0 * products / seconds / 1e9) } else { String::new() },
            ]);
        }
        let build = if self.optimised { "" } else { ", with debug assertions" };
        format!("{}, {} cores{build}\n{rows}\nMedians of {RUNS} runs.\n", self.host, self.cores)
    }
}
