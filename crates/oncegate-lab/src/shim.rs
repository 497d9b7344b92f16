//! Libraries that a child process loads before libc. The C compiler builds them when a test needs them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

const PRELOAD: &str = "LD_PRELOAD";

/// Builds a shim beside the running program, unless an earlier run has done so.
pub(crate) fn build(name: &str, source: &str) -> io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    source.hash(&mut hasher);
    let program = std::env::current_exe()?;
    let folder = program.parent().ok_or_else(|| io::Error::other("the running program has no folder"))?;
    let library = folder.join(format!("liboncegate-{name}-{:016x}.so", hasher.finish()));
    if library.exists() {
        return Ok(library);
    }
    // One thread of a process at a time, and each process under its own file name, so that no reader loads half a library.
    static BUILDING: Mutex<()> = Mutex::new(());
    let _building = BUILDING.lock();
    let unfinished = library.with_extension(std::process::id().to_string());
    let text = unfinished.with_extension(format!("{}.c", std::process::id()));
    std::fs::write(&text, source)?;
    let flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-pthread", "-o"];
    let output = Command::new("cc").args(flags).arg(&unfinished).arg(&text).arg("-ldl").output()?;
    std::fs::remove_file(&text)?;
    if !output.status.success() {
        return Err(io::Error::other(format!("cc cannot build {name}: {}", String::from_utf8_lossy(&output.stderr))));
    }
    std::fs::rename(&unfinished, &library)?;
    Ok(library)
}

/// Loads a shim into a child, in addition to the shims that it loads already.
pub(crate) fn preload(child: &mut Command, library: &Path) {
    let before = child.get_envs().find(|(name, _)| *name == PRELOAD).and_then(|(_, value)| value);
    let mut libraries = before.map(|before| before.to_os_string()).unwrap_or_default();
    if !libraries.is_empty() {
        libraries.push(":");
    }
    libraries.push(library);
    child.env(PRELOAD, libraries);
}
