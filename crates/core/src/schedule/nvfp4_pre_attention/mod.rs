//! Schedules of NVFP4 pre-attention: a norm kernel, then a GEMM with its epilogue.
//!
//! | module | kernel |
//! |---|---|
//! | [`norm`] | RMSNorm, modulation and quantisation of the hidden states; one source for every architecture |
//! | [`tcgen05`] | GEMM and epilogue on tensor memory |
//! | [`wgmma`] | GEMM and epilogue on warpgroup tensor cores |
//! | [`weight_image`] | weights decoded for it, once |

pub mod norm;
pub mod tcgen05;
pub mod weight_image;
pub mod wgmma;

use serde::{Deserialize, Serialize};

use super::Schedule;
use crate::architecture::Table;
use norm::Norm;
use tcgen05::Tcgen05;
use weight_image::WeightImage;
use wgmma::Wgmma;

/// Elements of a head.
pub const HEAD_DIM: u32 = 128;
/// Head rows of a token and head: Q, K, V.
pub const KINDS: u32 = 3;
/// Tokens of a CTA's tile in the GEMM.
pub const TILE_TOKENS: u32 = 128;
/// Columns of a tile: two head rows.
pub const TILE_COLUMNS: u32 = 256;
/// Elements that share a scale factor.
pub const SCALE_GROUP: u32 = 16;
/// Rows of a tile of scale factors.
pub const SCALE_TILE_ROWS: u32 = 128;
/// Bytes of a tile of scale factors: 128 rows, four groups.
pub const SCALE_TILE_BYTES: u32 = 512;

/// Format of the GEMM's results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputFormat {
    /// E2M1 codes with an E4M3 scale per 16 elements.
    #[default]
    Nvfp4,
    /// E4M3.
    E4m3,
}

impl OutputFormat {
    /// Bytes of a head row.
    pub const fn row_bytes(self) -> u32 {
        match self {
            OutputFormat::Nvfp4 => HEAD_DIM / 2,
            OutputFormat::E4m3 => HEAD_DIM,
        }
    }

    /// Name in commands, files and schedules.
    pub const fn name(self) -> &'static str {
        match self {
            OutputFormat::Nvfp4 => "nvfp4",
            OutputFormat::E4m3 => "e4m3",
        }
    }
}

/// Facts that route tables may bound.
pub mod facts {
    use crate::route::FactName;

    /// Tokens.
    pub const TOKENS: FactName = "tokens";
    /// Elements of a hidden state.
    pub const HIDDEN: FactName = "hidden";
    /// Elements of a hidden state past whole windows of 768, three stages of K = 256 and eight products of K = 96.
    pub const K_TAIL: FactName = "k_tail";
    /// Heads.
    pub const HEADS: FactName = "heads";
    /// Destinations of the results.
    pub const DESTINATIONS: FactName = "destinations";
    /// Rotated elements of a head.
    pub const ROPE_DIM: FactName = "rope_dim";
    /// Bytes of a packed head row: 64 for NVFP4 results, 128 for E4M3.
    pub const ROW_BYTES: FactName = "row_bytes";
    /// Streaming multiprocessors of the device.
    pub const SM_COUNT: FactName = "sm_count";
}

/// What a route chooses: a schedule by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The schedule's `name`.
    pub schedule: &'static str,
}

/// Schedules and routes of both kernels on one architecture. A family that the architecture lacks is empty.
#[derive(Debug)]
pub struct Tables {
    /// The first kernel.
    pub norm: Table<Norm, Choice>,
    /// The second kernel, on tensor memory. A choice names schedules that differ in their output only.
    pub tcgen05: Table<Tcgen05, Choice>,
    /// The second kernel, on warpgroup tensor cores. A choice names schedules that differ in their output only.
    pub wgmma: Table<Wgmma, Choice>,
    /// What decodes the weights for it.
    pub weight_image: &'static [WeightImage],
}

impl Tables {
    /// No schedule at all.
    pub const NONE: Tables = Tables { norm: Table::NONE, tcgen05: Table::NONE, wgmma: Table::NONE, weight_image: &[] };

    /// Every schedule of every kernel.
    pub fn schedules(&self) -> impl Iterator<Item = &dyn Schedule> {
        let norm = self.norm.schedules.iter().map(|schedule| schedule as &dyn Schedule);
        let tcgen05 = self.tcgen05.schedules.iter().map(|schedule| schedule as &dyn Schedule);
        let wgmma = self.wgmma.schedules.iter().map(|schedule| schedule as &dyn Schedule);
        let weight_image = self.weight_image.iter().map(|schedule| schedule as &dyn Schedule);
        norm.chain(tcgen05).chain(wgmma).chain(weight_image)
    }
}
