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

/// An error and its causes in one line. A cause that the message before it quotes already is not said twice.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !said.contains(&cause) {
            said.push_str(if said.is_empty() { "" } else { ": " });
            said.push_str(&cause);
        }
    }
    said.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn causes_are_said_once() {
        let error = anyhow!("no such file").context("shapes: cannot read\nx").context("bench");
        assert_eq!(one_line(&error), "bench: shapes: cannot read x: no such file");
        assert_eq!(one_line(&anyhow!("deadlock").context("program p: deadlock")), "program p: deadlock");
    }
}
