//! `steadfast webhooks test`: one event to an endpoint, and what became of it.

use std::env;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

use serde::Serialize;
use steadfast::{Failure, FailureKind, Webhook, WebhookTrial};

use crate::Context;
use crate::error::{CliError, Exit, Result};
use crate::output::{Color, escape};
use crate::outside_options::TestOptions;
use crate::words::with_flags;

/// Where the secret is, if no file is named.
const SECRET: &str = "STEADFAST_WEBHOOK_SECRET";

/// How much of an answer a person is shown, in characters; `--json` has more.
const ANSWER_SHOWN_MAX: usize = 200;

/// No secret is larger, nor is an authority: more is another file.
const FILE_LENGTH_MAX: u64 = 1024 * 1024;

pub(crate) async fn test(context: &Context, options: &TestOptions) -> Result<Exit> {
    let trial = webhook(options)?.try_out().await;
    let fate = Fate::of(&trial);
    context
        .output
        .record(&shown(&trial, fate), &lines(context, &trial, fate))?;
    Ok(fate.exit())
}

fn webhook(options: &TestOptions) -> Result<Webhook> {
    let mut webhook = Webhook::to(&options.url).time_limit(options.time_limit);
    for file in &options.trust {
        webhook = webhook.trust(read(file)?);
    }
    if options.allow_private {
        webhook = webhook.allow_private();
    }
    if options.allow_plaintext {
        webhook = webhook.allow_plaintext();
    }
    let webhook = match options.unsigned {
        true => webhook.unsigned(),
        false => webhook.signed_by(secrets(options)?.split_whitespace()),
    };
    webhook.build().map_err(|error| CliError::from(error).with_flags())
}

/// The secrets, as text. They are in no message, not even in part.
fn secrets(options: &TestOptions) -> Result<String> {
    let text = match &options.secret_file {
        Some(file) => String::from_utf8(read(file)?).unwrap_or_default(),
        None => env::var(SECRET).unwrap_or_default(),
    };
    if text.trim().is_empty() {
        return Err(CliError::new(
            Exit::Usage,
            "there is no secret to sign with",
            format!("set {SECRET}, name a file with --secret-file, or send it with --unsigned"),
        ));
    }
    Ok(text)
}

fn read(file: &Path) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    let read = match file == Path::new("-") {
        true => io::stdin().lock().take(FILE_LENGTH_MAX).read_to_end(&mut content),
        false => fs::File::open(file).and_then(|file| file.take(FILE_LENGTH_MAX).read_to_end(&mut content)),
    };
    match read {
        Ok(_) => Ok(content),
        Err(error) => {
            let what = format!("{} cannot be read", file.display());
            Err(CliError::new(
                Exit::Usage,
                what,
                "name a file that you may read, or - for standard input",
            )
            .because(&error))
        }
    }
}

/// What would have become of a message of yours.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Fate {
    Delivered,
    TriedAgain,
    Waits,
    Dead,
}

impl Fate {
    fn of(trial: &WebhookTrial) -> Self {
        match trial.verdict.as_ref().map_err(Failure::kind) {
            Ok(_) => Self::Delivered,
            Err(FailureKind::Definitive(_)) => Self::Dead,
            Err(FailureKind::Snooze) => Self::Waits,
            Err(_) => Self::TriedAgain,
        }
    }

    fn exit(self) -> Exit {
        match self {
            Self::Delivered => Exit::Ok,
            Self::Dead => Exit::Failed,
            Self::TriedAgain | Self::Waits => Exit::Unhealthy,
        }
    }

    fn words(self) -> (Color, &'static str) {
        match self {
            Self::Delivered => (Color::Green, "is delivered"),
            Self::TriedAgain => (
                Color::Yellow,
                "is tried again, twenty times in about two hours unless your sink says otherwise",
            ),
            Self::Waits => (
                Color::Yellow,
                "waits until the endpoint is there, and no attempt is spent",
            ),
            Self::Dead => (Color::Red, "is dead: the same request would be refused again"),
        }
    }
}

#[derive(Serialize)]
struct Shown<'t> {
    endpoint: &'t str,
    message: Fate,
    code: Option<&'t str>,
    id: String,
    #[serde(rename = "type")]
    event_type: &'static str,
    signatures: usize,
    addresses: Vec<String>,
    connected_to: Option<String>,
    tls: Option<&'static str>,
    status: Option<u16>,
    location: Option<&'t str>,
    answer: &'t str,
    took_ms: u128,
    retry_after_seconds: Option<u64>,
    why: Option<String>,
    fix: Option<&'static str>,
}

fn shown(trial: &WebhookTrial, fate: Fate) -> Shown<'_> {
    let failure = trial.verdict.as_ref().err();
    Shown {
        endpoint: &trial.origin,
        message: fate,
        code: failure.map(Failure::code),
        id: trial.id.to_string(),
        event_type: trial.event_type,
        signatures: trial.signatures,
        addresses: trial.addresses.iter().map(ToString::to_string).collect(),
        connected_to: trial.connected_to.map(|address| address.to_string()),
        tls: trial.tls,
        status: trial.status,
        location: trial.location.as_deref(),
        answer: &trial.answer,
        took_ms: trial.took.as_millis(),
        retry_after_seconds: retry_after(trial),
        why: why(trial),
        fix: trial.remedy(),
    }
}

/// When the endpoint wants to be asked again.
fn retry_after(trial: &WebhookTrial) -> Option<u64> {
    trial.status?;
    let failure = trial.verdict.as_ref().err()?;
    failure.retry_after().map(|after| after.as_secs())
}

/// What went wrong, where no answer says it.
fn why(trial: &WebhookTrial) -> Option<String> {
    let failure = trial.verdict.as_ref().err().filter(|_| trial.status.is_none())?;
    let told = match failure.source().filter(|_| failure.kind() == FailureKind::Snooze) {
        Some(cause) => cause.to_string(),
        None => failure.message().to_owned(),
    };
    Some(with_flags(&told))
}

fn lines(context: &Context, trial: &WebhookTrial, fate: Fate) -> Vec<(&'static str, String)> {
    let mut lines = vec![("endpoint", escape(&trial.origin))];
    let mut add = |name, value: String| lines.push((name, value));
    if !trial.addresses.is_empty() {
        let addresses: Vec<_> = trial.addresses.iter().map(ToString::to_string).collect();
        add("resolved", addresses.join(", "));
    }
    if let Some(address) = trial.connected_to {
        let encrypted = match trial.tls {
            Some(tls) => format!(", {tls}"),
            None if trial.origin.starts_with("https") => ", but TLS failed".to_owned(),
            None => ", plain text".to_owned(),
        };
        add("connected", format!("{address}{encrypted}"));
    }
    let signed = match trial.signatures {
        0 => "unsigned".to_owned(),
        1 => "signed".to_owned(),
        count => format!("signed by {count} secrets"),
    };
    add("event", format!("{} {}, {signed}", trial.event_type, trial.id));
    let took = format!("{} ms", trial.took.as_millis());
    match trial.status {
        Some(status) => {
            add("status", format!("{status}, after {took}"));
            add("answer", beginning(&trial.answer));
        }
        None => add("failed", format!("after {took}")),
    }
    if let Some(location) = &trial.location {
        add("leads to", escape(location));
    }
    if let Some(seconds) = retry_after(trial) {
        add("asks for", format!("a pause of {seconds} s"));
    }
    if let Some(why) = why(trial) {
        add("why", escape(&why));
    }
    let (color, words) = fate.words();
    add("a message", context.output.paint(color, words));
    if let Some(fix) = trial.remedy() {
        add("fix", fix.to_owned());
    }
    lines
}

fn beginning(answer: &str) -> String {
    match answer.char_indices().nth(ANSWER_SHOWN_MAX) {
        _ if answer.is_empty() => "(empty)".to_owned(),
        Some((end, _)) => format!("{}…", escape(&answer[..end])),
        None => escape(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_shown_from_its_beginning_and_safe_on_a_terminal() {
        assert_eq!(beginning(""), "(empty)");
        assert_eq!(beginning("no such\x1b[2J sku"), "no such\\u{1b}[2J sku");
        let long = beginning(&"é".repeat(ANSWER_SHOWN_MAX + 1));
        assert_eq!(long, format!("{}…", "é".repeat(ANSWER_SHOWN_MAX)));
    }
}
