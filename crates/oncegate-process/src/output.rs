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
    /// Prints `value` as JSON, or as the text that `people` makes of it.
    pub fn print<T: Serialize>(self, value: &T, people: impl FnOnce(&T) -> String) {
        if self.json {
            print_json(value);
        } else {
            print(people(value).trim_end());
        }
    }

    /// Reports what was done: an object for programs, a line on standard error for people.
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

/// Prints data to standard output.
pub fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Ok(()) => {}
        // The reader has closed the pipe: `| head -1`.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        // The output is lost, for example on a full disk. No store has to be closed first.
        Err(error) => {
            say(format_args!("oncegate: cannot write the output: {error}"));
            std::process::exit(1);
        }
    }
}

/// Prints a message to standard error. If that fails, there is no other place to report it.
pub fn say(text: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

pub fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    wide_table(head.map(str::to_owned).into(), rows.into_iter().map(Vec::from))
}

/// A table whose columns are known only at run time.
pub fn wide_table(head: Vec<String>, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(head);
    table.add_rows(rows);
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}
