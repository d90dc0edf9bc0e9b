//! Textures and surfaces: known and refused.

use crate::isa::table::Row;

/// Why.
const REASON: &str = "texture and surface memory is not modelled";

/// Rows of the family.
pub static ROWS: &[Row] = &[
    Row::refused("tex *", "d, [a]{, b, c}", REASON, "9.7.10.1"),
    Row::refused("tld4 *", "d, [a]{, b, c}", REASON, "9.7.10.2"),
    Row::refused("txq *", "d, [a]{, b}", REASON, "9.7.10.3"),
    Row::refused("istypep *", "p, a", REASON, "9.7.10.4"),
    Row::refused("suld *", "d, [a]", REASON, "9.7.11.1"),
    Row::refused("sust *", "[a], b", REASON, "9.7.11.2"),
    Row::refused("sured *", "[a], b", REASON, "9.7.11.3"),
    Row::refused("suq *", "d, [a]", REASON, "9.7.11.4"),
];
