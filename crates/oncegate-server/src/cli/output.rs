//! Tables for people, JSON for programs.

use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// `--json`, on every command that prints data.
#[derive(Args, Clone, Copy)]
pub struct Format {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl Format {
    /// `value` as JSON, or whatever `people` makes of it.
    pub fn print<T: Serialize>(self, value: &T, people: impl FnOnce(&T) -> String) {
        if self.json {
            println!("{}", serde_json::to_string_pretty(value).expect("output is JSON"));
        } else {
            println!("{}", people(value).trim_end());
        }
    }
}

pub fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(head);
    table.add_rows(rows);
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}
