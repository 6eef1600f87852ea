//! The log of a server: one file per service, kept after the run, shown in part when something went
//! wrong.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::error::{Context, Result};
use crate::workspace;

/// How much of a log is shown. The last error of a server is nearly always among these lines.
const TAIL_LINES: usize = 40;

/// Opens `target/services/logs/<name>.log`, overwriting the one of the previous run. Append mode,
/// since a server and its leash write to it side by side.
pub(crate) fn open(name: &str) -> Result<(PathBuf, File)> {
    let dir = workspace::services_dir().join("logs");
    fs::create_dir_all(&dir).context(format!("{} could not be created", dir.display()))?;
    let path = dir.join(format!("{name}.log"));
    let doing = format!("{} could not be opened", path.display());
    File::create(&path).context(&doing)?;
    let file = File::options().append(true).open(&path).context(&doing)?;
    Ok((path, file))
}

/// Where the log is, and its last lines, indented.
pub(crate) fn tail(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().collect();
    let shown = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    let place = path.display();
    if shown.is_empty() {
        return format!("its log {place} is empty");
    }
    format!("the end of its log {place}:\n    {}", shown.join("\n    "))
}
