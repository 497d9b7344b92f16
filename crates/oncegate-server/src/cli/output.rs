//! Tables for people, JSON for programs.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// `--json`, on every command that prints data or does something.
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
            print_json(value);
        } else {
            print(people(value).trim_end());
        }
    }

    /// What was done: an object for programs, a line on standard error for people.
    pub fn report<T: Serialize>(self, value: &T, people: impl Display) {
        if self.json {
            print_json(value);
        }
        say(people);
    }
}

fn print_json<T: Serialize>(value: &T) {
    print(&serde_json::to_string_pretty(value).expect("output is JSON"));
}

/// Data, on standard output.
pub fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Ok(()) => {}
        // Whoever reads has read enough: `| head -1`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        // What was asked for is lost, on a full disk for one. No store needs to be closed for its sake.
        Err(error) => {
            say(format_args!("oncegate: cannot write the output: {error}"));
            std::process::exit(1);
        }
    }
}

/// Talk, on standard error. When nobody listens there is nobody to tell.
pub fn say(text: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

pub fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    wide_table(head.map(str::to_owned).into(), rows.into_iter().map(Vec::from))
}

/// The same, where the columns are known only now.
pub fn wide_table(head: Vec<String>, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(head);
    table.add_rows(rows);
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}
