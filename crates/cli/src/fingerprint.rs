//! `steadfast fingerprint`: what an input means to the library, to find out why two requests are not the same wish.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use serde::Serialize;
use steadfast::Meaning;

use crate::Context;
use crate::error::{CliError, Exit, Result};
use crate::options::FingerprintOptions;
use crate::output::escape;

#[derive(Serialize)]
struct Shown {
    of: String,
    canonical: Option<String>,
    fingerprint: String,
    policy: &'static str,
}

pub(crate) fn run(context: &Context, options: &FingerprintOptions) -> Result<Exit> {
    let (path, query) = target(options)?;
    let method = options.method.to_ascii_uppercase();
    let input = read(options.file.as_deref())?;
    let (meaning, of) = match &options.operation {
        Some(operation) => (
            Meaning::Call {
                operation,
                input: &input,
            },
            format!("a Rust call of {operation}: operation and input"),
        ),
        None => (
            Meaning::Request {
                method: &method,
                path,
                query,
                media_type: options.content_type.as_bytes(),
                body: &input,
            },
            "a request: method, path, query, media type and body".to_owned(),
        ),
    };
    let shown = Shown {
        of,
        canonical: meaning.canonical()?,
        fingerprint: meaning.fingerprint()?,
        policy: "whole",
    };
    let canonical = shown.canonical.as_deref().map(escape);
    context.output.record(
        &shown,
        &[
            (
                "canonical",
                canonical.unwrap_or_else(|| "(not JSON: compared byte for byte)".to_owned()),
            ),
            ("fingerprint", shown.fingerprint.clone()),
            ("of", escape(&shown.of)),
            (
                "policy",
                "FingerprintPolicy::Whole, the default: 01 for SHA-256, then the hash".to_owned(),
            ),
        ],
    )?;
    Ok(Exit::Ok)
}

/// The path and the query of a request, however they were written.
fn target(options: &FingerprintOptions) -> Result<(&str, &str)> {
    let path = options.path.as_deref().unwrap_or_default();
    let query = options.query.as_deref().map(|query| query.trim_start_matches('?'));
    match (path.split_once('?'), query) {
        (Some(_), Some(_)) => Err(CliError::new(
            Exit::Usage,
            "the query of the request is there twice",
            "write it behind the path or with --query, not both",
        )),
        (Some((path, query)), None) => Ok((path, query)),
        (None, query) => Ok((path, query.unwrap_or_default())),
    }
}

fn read(file: Option<&Path>) -> Result<Vec<u8>> {
    let mut input = Vec::new();
    let read = match file.filter(|file| *file != Path::new("-")) {
        Some(file) => fs::File::open(file).and_then(|mut file| file.read_to_end(&mut input)),
        None => io::stdin().lock().read_to_end(&mut input),
    };
    let name = file.map_or_else(|| "standard input".to_owned(), |file| file.display().to_string());
    match read {
        Ok(_) => Ok(input),
        Err(error) => {
            let exit = if error.kind() == io::ErrorKind::NotFound {
                Exit::NotFound
            } else {
                Exit::Failed
            };
            Err(CliError::new(
                exit,
                format!("{name} cannot be read"),
                "name a file, or - for standard input",
            )
            .because(&error))
        }
    }
}
