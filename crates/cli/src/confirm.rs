//! Asking before something is done that cannot be taken back.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::Context;
use crate::error::{CliError, Exit, Result};

/// Whether the person wants it. Where nobody can be asked, `--yes` must have said so.
///
/// # Errors
/// Usage, if there is no terminal and no `--yes`.
pub(crate) fn confirm(context: &Context, question: &str) -> Result<bool> {
    if context.is_confirmed {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        return Err(CliError::new(
            Exit::Usage,
            "nobody can be asked: standard input is not a terminal",
            "add --yes if you mean it",
        ));
    }
    eprint!("{question} [y/N] ");
    // A question that cannot be shown is answered by no.
    let _ = io::stderr().flush();
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    Ok(read.is_ok() && matches!(&*answer.trim().to_lowercase(), "y" | "yes"))
}
