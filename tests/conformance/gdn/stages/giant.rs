//! Stages on tensors whose places need 64 bits, gradients and states included: the bits of small tensors.
//!
//! Tensors of tokens and of chunks are moved to the ends of sparse buffers, and the tables say so. The second of two
//! chunks starts with the first row of `q` and the first matrix of `h` that lie 2^31 or 2^32 elements into their
//! buffers: 2^32 bytes, or 2^33. Gates, of 64 times fewer bytes than values, lie past 2^31 where no device has memory
//! for the values.

use bakewell::emulator::CompletionPolicy;
use bakewell::schedule::Schedule;
use bakewell::schedule::gdn::{CHUNK_TOKENS, Chunk, Engine, Gdn, Segment, Stage, wgmma};
use bakewell::{Arch, Buffer, Device};
use bakewell_core::params::ParamBlock;

use super::backward::Known;
use super::forward::emulated;
use super::inputs::{Case, DIM, Inputs};
use super::model;
use super::staged::Staged;

/// Elements of `q` and of `h` before those of the second chunk.
const BEFORE: [usize; 2] = [1 << 31, 1 << 32];
/// So many value heads that few chunks have 2^31 elements of states.
const VALUE_HEADS: usize = 8;

fn case() -> Case {
    Case { value_heads: VALUE_HEADS, lengths: &[CHUNK_TOKENS as usize, 40], l2norm: true, ..Case::default() }
}

/// A launch whose tensors have been moved.
struct Moved<'a> {
    staged: &'a Staged<'a>,
    schedule: &'a Gdn,
    block: ParamBlock,
    tensors: Vec<Tensor>,
    before: usize,
}

/// A tensor where it was, and where it is now.
struct Tensor {
    near: u64,
    bytes: usize,
    buffer: Buffer,
    offset: u64,
}

/// The row that the first one becomes, and how many there are.
#[derive(Clone, Copy)]
struct Rows {
    first: usize,
    count: usize,
}

impl<'a> Moved<'a> {
    fn new(staged: &'a Staged<'a>, schedule: &'a Gdn, block: ParamBlock, before: usize) -> Moved<'a> {
        Moved { staged, schedule, block, tensors: Vec::new(), before }
    }

    fn device(&self) -> &Device {
        self.staged.device
    }

    fn tokens(&self) -> Rows {
        Rows { first: self.before / DIM - CHUNK_TOKENS as usize, count: self.staged.inputs.rows }
    }

    /// Chunks before the first.
    fn padding(&self) -> usize {
        self.before / (DIM * DIM * VALUE_HEADS) - 1
    }

    /// Without padding.
    fn chunks(&self) -> Rows {
        Rows { first: self.padding(), count: self.staged.inputs.chunks().len() - 1 }
    }

    /// The address in a field of the block.
    fn pointer(&self, name: &str) -> u64 {
        let layout = self.schedule.params();
        let index = layout.fields.iter().position(|field| field.name == name).expect("a field of the block");
        let at = layout.offset(index) as usize;
        u64::from_le_bytes(self.block.finish().unwrap()[at..at + 8].try_into().unwrap())
    }

    /// Moves a tensor of rows of so many bytes.
    fn tensor(&mut self, name: &str, rows: Rows, row_bytes: usize) -> u64 {
        let (near, bytes) = (self.pointer(name), rows.count * row_bytes);
        let mut content = vec![0; bytes];
        self.device().memory().read(near, &mut content).unwrap();
        let offset = (rows.first * row_bytes) as u64;
        let buffer = self.device().buffer(offset + bytes as u64).unwrap();
        buffer.write(offset, &content).unwrap();
        let address = buffer.address();
        self.block.pointer(name, address).unwrap();
        self.tensors.push(Tensor { near, bytes, buffer, offset });
        address
    }

    /// Moves rows of heads, with their map if the program has one.
    fn heads(&mut self, name: &str, heads: usize) {
        let rows = self.tokens();
        let address = self.tensor(name, rows, heads * DIM * 2);
        let panels = if heads == VALUE_HEADS { 1 } else { 2 };
        let (tokens, heads) = ((rows.first + rows.count) as u64, heads as u64);
        let request = wgmma::heads_request(address, tokens, heads, heads * DIM as u64, DIM as u64, panels);
        self.map(name, &request);
    }

    /// Moves states.
    fn states(&mut self, name: &str) {
        let rows = self.chunks();
        let address = self.tensor(name, rows, VALUE_HEADS * DIM * DIM * 2);
        self.map(name, &wgmma::states_request(address, ((rows.first + rows.count) * VALUE_HEADS) as u64));
    }

    fn map(&mut self, name: &str, request: &bakewell_core::tensor_map::TensorMapRequest) {
        if self.schedule.engine != Engine::Registers {
            let map = self.device().runtime().expect("programs").encode_tensor_map("a moved tensor", request).unwrap();
            self.block.tensor_map(&format!("{name}_map"), &map).unwrap();
        }
    }

    /// What a stage reads of tokens; `values`: `v` or the gradient of `o`.
    fn inputs(&mut self, values: &str) {
        let rows = self.tokens();
        self.heads("q", 1);
        self.heads("k", 1);
        self.heads(values, VALUE_HEADS);
        for (name, heads) in [("rq", 1), ("rk", 1), ("gate", VALUE_HEADS), ("beta", VALUE_HEADS)] {
            self.tensor(name, rows, heads * 4);
        }
    }

    /// The table of chunks, with padding before them.
    fn chunk_table(&mut self) -> Buffer {
        let chunks = self.staged.inputs.chunks();
        let tokens = self.tokens().first as u32;
        let moved = chunks.into_iter().map(|chunk| Chunk { first_token: chunk.first_token + tokens, ..chunk });
        let table = std::iter::repeat_n(Chunk::PADDING, self.padding()).chain(moved);
        let buffer = self.device().upload(&table.flat_map(Chunk::to_bytes).collect::<Vec<_>>()).unwrap();
        self.block.pointer("chunks", buffer.address()).unwrap();
        buffer
    }

    /// The inverses of chunks.
    fn inverses(&mut self) {
        let rows = self.chunks();
        let matrix = (CHUNK_TOKENS * CHUNK_TOKENS * 2) as usize;
        let address = self.tensor("a", rows, VALUE_HEADS * matrix);
        self.map("a", &wgmma::inverse_request(address, ((rows.first + rows.count) * VALUE_HEADS) as u64));
    }

    /// The table of segments, of chunks behind the padding.
    fn segment_table(&mut self) -> Buffer {
        let (segments, _) = self.staged.inputs.segments();
        let padding = self.padding() as u32;
        let behind = |segment: &Segment| Segment { first_chunk: segment.first_chunk + padding, ..*segment };
        let table: Vec<u8> = segments.iter().flat_map(|segment| behind(segment).to_bytes()).collect();
        let buffer = self.device().upload(&table).unwrap();
        self.block.pointer("segments", buffer.address()).unwrap();
        buffer
    }

    fn launch(&self, ctas: usize) {
        self.staged.launch(self.schedule, ctas, &self.block).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Everything is, where it is now, what it is where it was.
    fn compare(&self) {
        let memory = self.device().memory();
        for (index, tensor) in self.tensors.iter().enumerate() {
            let (mut near, mut far) = (vec![0; tensor.bytes], vec![0; tensor.bytes]);
            memory.read(tensor.near, &mut near).unwrap();
            memory.read(tensor.buffer.address() + tensor.offset, &mut far).unwrap();
            assert!(near == far, "{}: tensor {index} differs", self.schedule.name);
        }
    }
}

/// Each of these in each place.
fn by_place<T: Copy, const N: usize>(of: [T; N]) -> impl Iterator<Item = (T, usize)> {
    of.into_iter().flat_map(|one| BEFORE.map(|before| (one, before)))
}

#[test]
fn tails_reach_past_32_bits() {
    let known = Known::new(&case(), false);
    let device = emulated(Arch::Sm90, 1, CompletionPolicy::Eager);
    let staged = Staged::new(&device, &known.inputs).unwrap();
    let returned = known.returned(&staged);
    let tape = returned.tape_from(&known.forward).unwrap();
    for (engine, before) in by_place([Engine::Registers, Engine::Wgmma]) {
        let schedule = staged.schedules_on(engine, Stage::Tail).next().expect("a program of the stage");
        let adjoint = returned.adjoint_from(&known.backward).unwrap();
        let gradients = returned.gradients(adjoint.dv).unwrap();
        let block = returned.tail_block(schedule, &gradients, &adjoint.dh, &tape).unwrap();
        let mut moved = Moved::new(&staged, schedule, block.clone(), before);
        let rows = moved.tokens();
        moved.inputs("grad_o");
        for name in ["v_new", "dv"] {
            moved.heads(name, VALUE_HEADS);
        }
        for name in ["dq", "dk"] {
            moved.tensor(name, rows, DIM * 2);
        }
        for name in ["dg", "dbeta"] {
            moved.tensor(name, rows, VALUE_HEADS * 4);
        }
        moved.states("h");
        moved.states("dh");
        let _table = moved.chunk_table();
        let chunks = moved.padding() + staged.inputs.chunks().len();
        moved.block.u32("chunk_count", chunks as u32).unwrap();
        moved.launch(16);
        staged.launch(schedule, 2, &block).unwrap();
        moved.compare();
    }
}

#[test]
fn adjoints_reach_past_32_bits() {
    let known = Known::new(&case(), false);
    let device = emulated(Arch::Sm90, 2, CompletionPolicy::Random);
    let staged = Staged::new(&device, &known.inputs).unwrap();
    let returned = known.returned(&staged);
    for (engine, before) in by_place([Engine::Registers, Engine::Wgmma]) {
        let schedule = staged.schedules_on(engine, Stage::Adjoint).next().expect("a program of the stage");
        let scanned = returned.adjoint_from(&known.backward).unwrap();
        let block = returned.adjoint_block(schedule, None, &scanned).unwrap();
        let mut moved = Moved::new(&staged, schedule, block.clone(), before);
        moved.inputs("grad_o");
        moved.heads("dv", VALUE_HEADS);
        moved.states("dh");
        moved.inverses();
        let _tables = [moved.chunk_table(), moved.segment_table()];
        let ctas = staged.inputs.segments().0.len() * VALUE_HEADS * schedule.value_splits() as usize;
        moved.launch(ctas);
        staged.launch(schedule, ctas, &block).unwrap();
        moved.compare();
    }
}

#[test]
fn scans_reach_past_32_bits() {
    let inputs = Inputs::new(&case());
    let model = model::Forward::of(&inputs);
    let engines = [(Arch::Sm90, Engine::Registers), (Arch::Sm90, Engine::Wgmma), (Arch::Sm100, Engine::Tcgen05)];
    for ((arch, engine), before) in by_place(engines) {
        let device = emulated(arch, 3, CompletionPolicy::Random);
        let staged = Staged::new(&device, &inputs).unwrap();
        staged.prepare_from(&model).unwrap();
        for stage in [Stage::Scan, Stage::States] {
            let schedule = staged.schedules_on(engine, stage).next().expect("a program of the stage");
            let scanned = staged.scanned().unwrap();
            let output = schedule.engine != Engine::Registers || stage == Stage::Scan;
            let block = staged.scan_block_with(schedule, None, &scanned, output).unwrap();
            let mut moved = Moved::new(&staged, schedule, block.clone(), before);
            moved.inputs("v");
            moved.heads("v_new", VALUE_HEADS);
            if output {
                moved.heads("o", VALUE_HEADS);
            }
            moved.states("h");
            moved.inverses();
            let _tables = [moved.chunk_table(), moved.segment_table()];
            let ctas = inputs.segments().0.len() * VALUE_HEADS * schedule.value_splits() as usize;
            moved.launch(ctas);
            let far = scanned.ht.read().unwrap();
            staged.launch(schedule, ctas, &block).unwrap();
            moved.compare();
            assert!(far == scanned.ht.read().unwrap(), "{}: final states differ", schedule.name);
        }
    }
}
