//! mma: fetching operands and multiplying, when the queue runs it (ISA notes, tcgen05 4.6 to 4.9, 7 and 9).

use super::access::UNKNOWN_HALF;
use super::copy::observe;
use super::memory;
use crate::check::Use;
use crate::exec::operand_tile::{Container, Issuer};
use crate::finding::Kind as Fail;
use crate::layout::instruction_descriptor::{Accumulator, Instruction as Descriptor, Kind, ScaleType};
use crate::layout::operand::{Major, Operand};
use crate::layout::tensor_memory::{Layout, SCALE_GROUP_COLUMNS_A, scale, scale_group_columns_b};
use crate::machine::{Cluster, Fault};
use crate::memory::{COLUMNS, LANES};
use crate::numerics::dot::{Accumulation, Factor, Output, Shape, accumulate, accumulate_i32};
use crate::numerics::format::{F16, Narrow, decode_f16, decode_ue4m3, decode_ue8m0};
use crate::options::MatrixNumerics;

/// Where A comes from.
#[derive(Debug, Clone, Copy)]
pub(super) enum SourceA {
    Shared(Operand),
    Tensor { lane: u32, column: u32 },
}

/// Columns of the scales, and elements that share one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scales {
    pub(super) a: u32,
    pub(super) b: u32,
    pub(super) block: u32,
}

/// An mma with its operands read.
#[derive(Debug, Clone)]
pub(super) struct MmaJob {
    pub(super) kind: Kind,
    pub(super) descriptor: Descriptor,
    pub(super) layout: Layout,
    /// CTAs of the group, the even one first.
    pub(super) ranks: Vec<u32>,
    /// Lane base and column of D.
    pub(super) d: (u32, u32),
    pub(super) a: SourceA,
    pub(super) a_type: Container,
    pub(super) b: Operand,
    pub(super) b_type: Container,
    pub(super) scales: Option<Scales>,
    pub(super) add: bool,
    pub(super) scale_d: u32,
    /// Disabled lanes, four words for each CTA of the group.
    pub(super) disabled: [u32; 8],
}

/// Runs one instruction: every CTA of the group gets its rows of D from its rows of A and all of B.
pub(super) fn run(machine: &mut Cluster, job: &MmaJob, issuer: Issuer) -> Result<(), Fault> {
    let Descriptor { n, k, .. } = job.descriptor;
    let (n, k) = (n as usize, k as usize);
    let share = n / job.ranks.len();
    let mut b = Vec::with_capacity(n * k);
    let mut part = Vec::new();
    let b_major = if job.descriptor.transpose_b { Major::Mn } else { Major::K };
    for &rank in &job.ranks {
        issuer.fetch(machine, (rank, &job.b, b_major), job.b_type, (0, share, k), &mut part)?;
        b.extend_from_slice(&part);
    }
    if job.descriptor.negate_a != job.descriptor.negate_b {
        b.iter_mut().for_each(|x| *x = -*x);
    }
    let rows = job.descriptor.m as usize / job.ranks.len();
    for (index, &rank) in job.ranks.iter().enumerate() {
        let a = fetch_a(machine, job, issuer, rank, rows)?;
        let shape = Shape { m: rows, n, k };
        let mut tile = Tile { job, issuer, rank, index, rows, values: vec![0; rows * n] };
        let runs = tile.runs();
        if let Some(scales) = job.scales {
            let id = (job.descriptor.scale_a_id, SCALE_GROUP_COLUMNS_A);
            let a = scaled(machine, job, issuer, (rank, scales.a, id), scales.block, &a);
            let id = (job.descriptor.scale_b_id, scale_group_columns_b(n as u32));
            let b = scaled(machine, job, issuer, (rank, scales.b, id), scales.block, &b);
            tile.read(machine, &runs);
            tile.multiply(machine, &a, &b, shape);
        } else {
            tile.read(machine, &runs);
            tile.multiply(machine, &a, &b, shape);
        }
        tile.write(machine, &runs);
    }
    Ok(())
}

/// Rows of A that a CTA holds.
fn fetch_a(machine: &mut Cluster, job: &MmaJob, issuer: Issuer, rank: u32, rows: usize) -> Result<Vec<f32>, Fault> {
    let k = job.descriptor.k as usize;
    let mut a = Vec::new();
    match job.a {
        SourceA::Shared(operand) => {
            let major = if job.descriptor.transpose_a { Major::Mn } else { Major::K };
            issuer.fetch(machine, (rank, &operand, major), job.a_type, (0, rows, k), &mut a)?;
        }
        SourceA::Tensor { lane, column } => {
            a.reserve(rows * k);
            let cells = (0..rows as u32).map(|row| (lane + job.layout.a_lane(row, 0).1, column));
            observe(machine, issuer, rank, Use::Read, cells, 8);
            for row in 0..rows as u32 {
                let banks = job.layout.a_banks();
                let cells = |bank: u32| ((lane + job.layout.a_lane(row, bank).1) * COLUMNS + column) as usize;
                let tensor = memory(machine, rank);
                let first = cells(0);
                let words: [u32; 8] = std::array::from_fn(|i| tensor.cells[first + i]);
                let written = tensor.init.all(first, 8);
                let differs = (1..banks).any(|bank| tensor.cells[cells(bank)..][..8] != words);
                if !written {
                    report(
                        machine,
                        issuer,
                        Fail::Uninitialised,
                        format!("A: nobody wrote row {row} of CTA rank {rank}"),
                    );
                }
                if differs {
                    let text = format!("A: the copies of row {row} in CTA rank {rank} differ");
                    report(machine, issuer, Fail::TensorMemory, text);
                }
                a.extend((0..k).map(|k| decode(job, &words, k)));
            }
        }
    }
    Ok(a)
}

/// Element `k` of a row of A in eight cells.
fn decode(job: &MmaJob, words: &[u32; 8], k: usize) -> f32 {
    let element = job.a_type.element;
    let bits = if job.a_type.dense_fp4 { 4 } else { job.a_type.container_bits() as usize };
    let per = 32 / bits;
    let field = words[k / per] >> (bits * (k % per));
    // 4-bit elements in byte containers lie in bits [5:2].
    let code = if element.bits() == 4 && !job.a_type.dense_fp4 { field >> 2 } else { field };
    element.value(code)
}

fn report(machine: &mut Cluster, issuer: Issuer, kind: Fail, message: String) {
    let finding = machine.finding_of(kind, &issuer.actor, message);
    machine.report(*finding);
}

/// Elements times the scales of their rows and blocks.
fn scaled(
    machine: &mut Cluster,
    job: &MmaJob,
    issuer: Issuer,
    (rank, base, (id, group)): (u32, u32, (u32, u32)),
    block: u32,
    elements: &[f32],
) -> Vec<f64> {
    let k = job.descriptor.k as usize;
    let mut values: Vec<f64> = elements.iter().map(|&x| x.into()).collect();
    let mut problem = None;
    for (row, values) in (0..).zip(values.chunks_exact_mut(k)) {
        for (index, values) in (0..).zip(values.chunks_mut(block as usize)) {
            let (column, byte) = scale(row, index, id, group);
            let column = base + column;
            let tensor = memory(machine, rank);
            let at = |partition: u32| ((row % 32 + 32 * partition) * COLUMNS + column) as usize;
            let word = tensor.cells[at(0)];
            let code = word.to_le_bytes()[byte as usize];
            if (0..4).any(|p| !tensor.init.all(at(p), 1)) {
                problem.get_or_insert((
                    Fail::Uninitialised,
                    format!("nobody wrote the scale of row {row} in column {column}"),
                ));
            } else if (1..4).any(|p| tensor.cells[at(p)].to_le_bytes()[byte as usize] != code) {
                let text = format!("the scale of row {row} in column {column} differs between partitions");
                problem.get_or_insert((Fail::TensorMemory, text));
            }
            let factor = match job.descriptor.scale {
                Some(ScaleType::Ue4m3) => decode_ue4m3(code),
                _ => decode_ue8m0(code),
            };
            if factor.is_nan() && problem.is_none() {
                let text = format!("the scale of row {row} in column {column} is NaN");
                let mut finding = machine.finding_of(Fail::Undefined, &issuer.actor, text);
                finding.warning = true;
                machine.report(*finding);
            }
            values.iter_mut().for_each(|x| *x *= f64::from(factor));
        }
    }
    let rows = values.len() / k;
    observe(machine, issuer, rank, Use::Read, (0..LANES).map(|lane| (lane, base)), (rows as u32).div_ceil(32));
    if let Some((kind, text)) = problem {
        report(machine, issuer, kind, text);
    }
    values
}

/// D of one CTA, as bits.
struct Tile<'a> {
    job: &'a MmaJob,
    issuer: Issuer,
    rank: u32,
    /// Position of the CTA in the group.
    index: usize,
    rows: usize,
    values: Vec<u32>,
}

/// Cells of a row of D that lie side by side.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// Lane and first column in memory.
    lane: u32,
    column: u32,
    /// First element of the tile.
    first: usize,
}

impl Tile<'_> {
    /// Columns of a run.
    fn width(&self) -> u32 {
        self.job.layout.columns(self.job.descriptor.n)
    }

    /// The cells of D in lanes that are not disabled.
    fn runs(&self) -> Vec<Run> {
        let n = self.job.descriptor.n;
        let width = self.width();
        let runs = (0..self.rows as u32).flat_map(|row| (0..n / width).map(move |bank| (row, bank * width)));
        let run = |(row, first)| {
            let (_, cell) = self.job.layout.element((self.index * self.rows) as u32 + row, first, n);
            let (lane, column) = (self.job.d.0 + cell.lane, self.job.d.1 + cell.column);
            Run { lane, column, first: (row * n + first) as usize }
        };
        runs.map(run).filter(|run| !self.is_disabled(run.lane)).collect()
    }

    fn is_disabled(&self, lane: u32) -> bool {
        self.job.disabled[4 * self.index + (lane / 32) as usize] >> (lane % 32) & 1 != 0
    }

    fn observe(&self, machine: &mut Cluster, usage: Use, runs: &[Run]) {
        let cells = runs.iter().map(|run| (run.lane, run.column));
        observe(machine, self.issuer, self.rank, usage, cells, self.width());
    }

    /// Reads C, or leaves zeros where D is not an input.
    fn read(&mut self, machine: &mut Cluster, runs: &[Run]) {
        if !self.job.add {
            return;
        }
        self.observe(machine, Use::Read, runs);
        let len = self.width() as usize;
        for &Run { lane, column, first } in runs {
            let tensor = memory(machine, self.rank);
            let at = (lane * COLUMNS + column) as usize;
            self.values[first..][..len].copy_from_slice(&tensor.cells[at..at + len]);
            if !tensor.init.all(at, len) {
                let text = format!("D is an input, and nobody wrote all of lane {lane} columns {column}..");
                report(machine, self.issuer, Fail::Uninitialised, text);
            }
        }
    }

    fn multiply<T: Factor>(&mut self, machine: &mut Cluster, a: &[T], b: &[T], shape: Shape) {
        if self.job.descriptor.d == Accumulator::S32 {
            let whole = |tile: &[T]| tile.iter().map(|&x| x.into() as i32).collect::<Vec<_>>();
            let mut d: Vec<i32> = self.values.iter().map(|&bits| bits as i32).collect();
            accumulate_i32(&whole(a), &whole(b), &mut d, shape, self.job.descriptor.saturate);
            self.values = d.into_iter().map(|x| x as u32).collect();
            return;
        }
        let half = self.job.descriptor.d == Accumulator::F16;
        let factor = (-(self.job.scale_d as f32)).exp2();
        let input = |bits: u32| if half { decode_f16(bits as u16) } else { f32::from_bits(bits) };
        let mut d: Vec<f32> = self.values.iter().map(|&bits| input(bits) * factor).collect();
        let how = match (machine.options.numerics, self.job.kind) {
            (MatrixNumerics::Plain, _) => Accumulation::Reference,
            (MatrixNumerics::Hardware, Kind::Mxf4 | Kind::Mxf4nvf4) => Accumulation::Grouped(35),
            (MatrixNumerics::Hardware, _) => Accumulation::Aligned { fraction: 25, least: [-126; 2] },
        };
        let output = if half { Output::F16 } else { Output::F32 };
        accumulate(a, b, &mut d, shape, (how, output), &mut machine.products);
        let bits = |x: f32| if half { F16.narrow_f32(x, Narrow::RN) | UNKNOWN_HALF } else { x.to_bits() };
        self.values = d.into_iter().map(bits).collect();
    }

    fn write(&self, machine: &mut Cluster, runs: &[Run]) {
        self.observe(machine, Use::Write, runs);
        let len = self.width() as usize;
        for &Run { lane, column, first } in runs {
            let tensor = memory(machine, self.rank);
            let at = (lane * COLUMNS + column) as usize;
            tensor.cells[at..at + len].copy_from_slice(&self.values[first..][..len]);
            tensor.init.set(at, len);
        }
    }
}
