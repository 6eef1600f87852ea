//! `steadfast completions` and `steadfast man`: what a shell and `man` want to know of us.

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::Context;
use crate::error::{CliError, Exit, Result};
use crate::options::Cli;

pub(crate) fn completions(context: &Context, shell: Shell) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "steadfast", &mut script);
    context.output.print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Ok)
}

/// Prints the page of the whole, or writes one for each verb.
pub(crate) fn man(context: &Context, directory: Option<&Path>) -> Result<Exit> {
    match directory {
        Some(directory) => {
            clap_mangen::generate_to(Cli::command(), directory).map_err(|error| {
                let what = format!("the pages could not be written into {}", directory.display());
                CliError::new(
                    Exit::Failed,
                    what,
                    "name a directory that is there and that you may write",
                )
                .because(&error)
            })?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command())
                .render(&mut page)
                .map_err(|error| {
                    CliError::new(
                        Exit::Failed,
                        "the page could not be made",
                        "report it as a mistake of ours",
                    )
                    .because(&error)
                })?;
            context.output.print(&String::from_utf8_lossy(&page))?;
        }
    }
    Ok(Exit::Ok)
}
