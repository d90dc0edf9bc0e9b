//! The program that decodes weights into an operand image, once, when the operation is prepared.

use serde::Serialize;

use super::{SCALE_TILE_BYTES, SCALE_TILE_ROWS};
use crate::Operation;
use crate::params::{ParamField, ParamKind, ParamLayout};
use crate::schedule::{Budgets, Fact, Schedule};

/// Columns of a tile of scales, which a CTA decodes with its [`SCALE_TILE_ROWS`] rows.
const TILE_COLUMNS: u32 = 64;

/// The one compiled variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WeightImage;

impl WeightImage {
    /// Fields of its parameter block.
    pub const PARAMS: ParamLayout = ParamLayout {
        fields: &[
            ParamField { name: "codes", kind: ParamKind::Pointer },
            ParamField { name: "scales", kind: ParamKind::Pointer },
            ParamField { name: "image", kind: ParamKind::Pointer },
            ParamField { name: "columns", kind: ParamKind::U32 },
        ],
    };

    /// CTAs for a weight of this shape, in multiples of 128 rows and 64 columns.
    pub const fn grid(rows: u32, columns: u32) -> [u32; 3] {
        [columns / TILE_COLUMNS, rows / SCALE_TILE_ROWS, 1]
    }
}

impl Schedule for WeightImage {
    fn operation(&self) -> Operation {
        Operation::Nvfp4PreAttention
    }

    fn variant(&self) -> String {
        "weight_image".to_owned()
    }

    fn source(&self) -> (&'static str, &'static str) {
        ("nvfp4_pre_attention/weight_image.cu", "nvfp4_pre_attention_weight_image")
    }

    fn facts(&self) -> Vec<Fact> {
        Vec::new()
    }

    fn budgets(&self) -> Budgets {
        Budgets { threads: 256, dynamic_shared_bytes: SCALE_TILE_BYTES, ..Budgets::default() }
    }

    fn params(&self) -> ParamLayout {
        Self::PARAMS
    }

    fn required_opcodes(&self) -> &'static [&'static str] {
        &[]
    }
}
