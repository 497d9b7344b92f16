//! Files with secrets, named by `*_file` settings.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The permission of the group, which may read the file besides its owner.
const GROUP: u32 = 0o040;
const OTHERS: u32 = 0o004;

/// The text of a file, without its last line break. A file that every user of this machine can read is refused.
pub fn read(file: &Path) -> Result<String, String> {
    let shown = file.display();
    let wrong = |error: std::io::Error| format!("{shown}: {error}");
    let mode = std::fs::metadata(file).map_err(wrong)?.permissions().mode();
    check(mode).map_err(|why| format!("{shown}: {why}. hint: chmod 600 {shown}"))?;
    if mode & GROUP != 0 {
        let hint = format!("chmod 600 {shown}");
        tracing::warn!(event = "config.secret_file_readable_by_group", file = %shown, hint);
    }
    let text = std::fs::read_to_string(file).map_err(wrong)?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

fn check(mode: u32) -> Result<(), &'static str> {
    if mode & OTHERS != 0 { Err("there is a secret in it, and every user of this machine may read it") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_everybody_may_read_is_refused_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        std::fs::write(&file, "geheim\n").unwrap();
        for mode in [0o600, 0o400, 0o640] {
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(read(&file).as_deref(), Ok("geheim"), "{mode:o}");
        }
        for mode in [0o644, 0o604] {
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            let error = read(&file).unwrap_err();
            assert!(error.contains("hint: chmod 600 ") && !error.contains("geheim"), "{error}");
        }
        assert!(read(&folder.path().join("missing")).unwrap_err().contains("missing"));
    }
}
