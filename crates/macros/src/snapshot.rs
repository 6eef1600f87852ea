//! For tests: what a macro writes, as a person would see it, and what it says is wrong.

use std::io::Write;
use std::process::{Command, Stdio};

use proc_macro2::TokenStream;
use syn::Error;

use crate::mistakes::Mistakes;

/// `UPDATE_SNAPSHOTS=1 cargo test -p steadfast-macros` writes them anew.
pub(crate) fn assert_snapshot(name: &str, written: &TokenStream) {
    let file = format!("{}/snapshots/{name}.rs", env!("CARGO_MANIFEST_DIR"));
    let written = formatted(written);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&file, &written).expect("the snapshot is written");
    }
    assert_eq!(written, std::fs::read_to_string(&file).unwrap_or_default(), "{file}");
}

/// As a person would see it in their editor.
fn formatted(tokens: &TokenStream) -> String {
    let mut rustfmt = Command::new("rustfmt")
        .args(["--edition", "2024", "--config", "max_width=120"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("rustfmt is a part of the toolchain");
    let mut stdin = rustfmt.stdin.take().expect("it is piped");
    stdin.write_all(tokens.to_string().as_bytes()).expect("rustfmt reads");
    drop(stdin);
    let output = rustfmt.wait_with_output().expect("rustfmt ends");
    assert!(output.status.success(), "what is written is not Rust: {tokens}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Each mistake, and the text it points at.
pub(crate) fn said(mistakes: Mistakes) -> Vec<(String, String)> {
    let said = |error: Error| {
        let each = error.into_iter();
        each.map(|error| (error.to_string(), error.span().source_text().unwrap_or_default()))
            .collect()
    };
    mistakes.into_error().map(said).unwrap_or_default()
}
