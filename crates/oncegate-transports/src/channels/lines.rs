//! Effects as lines of JSON, in a file of the data folder.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use oncegate_core::job::Failure;
use serde::Serialize;

pub struct JsonLines {
    name: &'static str,
    lines: Mutex<Lines>,
}

struct Lines {
    file: File,
    /// The last line was written only in part.
    is_broken: bool,
}

impl JsonLines {
    /// Opens the file, readable by its owner only: it contains texts and addresses.
    pub fn open(folder: &Path, name: &'static str) -> Result<JsonLines, String> {
        use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
        let path = folder.join(name);
        let opened = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .and_then(|()| std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(&path));
        opened
            .map(|file| JsonLines { name, lines: Mutex::new(Lines { file, is_broken: false }) })
            .map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    /// Writes the line in one call, so that lines of several servers that share the file do not mix.
    pub fn write(&self, line: &impl Serialize) -> Result<(), Failure> {
        let mut lines = self.lines.lock().expect("no holder of this lock panics");
        let mut text = if lines.is_broken { b"\n".to_vec() } else { vec![] };
        serde_json::to_writer(&mut text, line).expect("a line is JSON");
        text.push(b'\n');
        match lines.file.write(&text) {
            Ok(written) => {
                lines.is_broken = written < text.len();
                match lines.is_broken {
                    true => Err(Failure::unknown(format!("{} took a part of the line", self.name))),
                    false => Ok(()),
                }
            }
            Err(error) => Err(Failure::refused(format!("{}: {error}", self.name))),
        }
    }
}
