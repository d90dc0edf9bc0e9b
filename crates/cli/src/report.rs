//! What a command gives back: text for standard output, and whether a check found something wrong.

use comfy_table::{ContentArrangement, Table, presets};

/// The outcome of a command.
pub(crate) struct Report {
    /// Text for standard output, with its final line break.
    pub(crate) text: String,
    /// Whether the exit status says so.
    pub(crate) failed: bool,
}

impl Report {
    /// Text with nothing wrong.
    pub(crate) fn fine(text: String) -> Report {
        Report { text, failed: false }
    }

    /// A value as JSON.
    pub(crate) fn json(value: &impl serde::Serialize, failed: bool) -> anyhow::Result<Report> {
        Ok(Report { text: serde_json::to_string_pretty(value)? + "\n", failed })
    }
}

/// A table with these column heads.
pub(crate) fn table(heads: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(heads);
    table
}
