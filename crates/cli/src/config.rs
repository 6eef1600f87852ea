//! The settings, and where each came from: a flag, the environment, `steadfast.toml`, or the default, in this order.

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::{CliError, Exit, Result};
use crate::options::{Engine, GlobalOptions};
use crate::output::{self, Output};
use crate::secret::{mask, mask_url};
use crate::suggest::nearest;

const FILE: &str = "steadfast.toml";

const DATABASE_URL: &str = "database-url";
const SCHEMA: &str = "schema";
const MESSAGE_RETENTION: &str = "message-retention";
const INBOX_RETENTION: &str = "inbox-retention";
const COLOR: &str = "color";
const OPERATOR: &str = "operator";
const BROKERS: &str = "brokers";

/// The names of the settings, in the file and in `steadfast config`.
const NAMES: [&str; 7] = [
    DATABASE_URL,
    SCHEMA,
    MESSAGE_RETENTION,
    INBOX_RETENTION,
    COLOR,
    OPERATOR,
    BROKERS,
];

/// All settings of a call.
pub(crate) struct Config {
    settings: [Setting; NAMES.len()],
}

struct Setting {
    name: &'static str,
    value: Option<String>,
    source: Source,
}

enum Source {
    Flag,
    Environment(&'static str),
    File(PathBuf),
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Flag => f.write_str("flag"),
            Source::Environment(name) => write!(f, "environment {name}"),
            Source::File(path) => write!(f, "file {}", path.display()),
            Source::Default => f.write_str("default"),
        }
    }
}

/// A setting as `steadfast config` shows it.
#[derive(Serialize)]
struct Shown {
    setting: &'static str,
    value: Option<String>,
    from: String,
}

impl Config {
    pub(crate) fn load(flags: &GlobalOptions, operator: Option<&str>, brokers: &[String]) -> Result<Self> {
        let file = File::find()?;
        // A URL has no spaces in it, so they stand between several.
        let brokers = (!brokers.is_empty()).then(|| brokers.join(" "));
        let settings = NAMES.map(|name| {
            let (flag, variable) = match name {
                DATABASE_URL => (flags.database_url.as_deref(), "DATABASE_URL"),
                SCHEMA => (flags.schema.as_deref(), "STEADFAST_SCHEMA"),
                MESSAGE_RETENTION => (flags.message_retention.as_deref(), "STEADFAST_MESSAGE_RETENTION"),
                INBOX_RETENTION => (flags.inbox_retention.as_deref(), "STEADFAST_INBOX_RETENTION"),
                COLOR => (flags.color.as_deref(), "STEADFAST_COLOR"),
                BROKERS => (brokers.as_deref(), "STEADFAST_BROKERS"),
                _ => (operator, "STEADFAST_OPERATOR"),
            };
            let (value, source) = resolve(name, flag, variable, file.as_ref());
            Setting { name, value, source }
        });
        Ok(Self { settings })
    }

    fn value(&self, name: &str) -> Option<&str> {
        let setting = self.settings.iter().find(|setting| setting.name == name);
        setting.and_then(|setting| setting.value.as_deref())
    }

    pub(crate) fn has_database(&self) -> bool {
        self.value(DATABASE_URL).is_some()
    }

    pub(crate) fn database_url(&self) -> Result<&str> {
        self.value(DATABASE_URL).ok_or_else(|| {
            CliError::new(
                Exit::Usage,
                "no database is named",
                "add --database-url sqlite://FILE or postgres://USER@HOST/NAME, set DATABASE_URL, or write database-url into \
                 steadfast.toml",
            )
        })
    }

    /// Where a file that the URL names by a relative path lies: beside the `steadfast.toml` that names it, or else in the
    /// current directory.
    pub(crate) fn database_directory(&self) -> Option<&Path> {
        let setting = self.settings.iter().find(|setting| setting.name == DATABASE_URL);
        match setting.map(|setting| &setting.source) {
            Some(Source::File(path)) => path.parent(),
            _ => None,
        }
    }

    /// Which database the URL is of.
    pub(crate) fn engine(&self) -> Result<Engine> {
        // Only the scheme is repeated: what follows it may hold a password.
        let what = match self.database_url()?.split_once(':') {
            Some(("sqlite", _)) => return Ok(Engine::Sqlite),
            Some(("postgres" | "postgresql", _)) => return Ok(Engine::Postgres),
            Some((other, _)) => format!("the database URL begins with {other:?}"),
            None => "the database URL has no scheme".to_owned(),
        };
        let help = "write sqlite://FILE or postgres://USER@HOST/NAME";
        Err(CliError::new(Exit::Usage, what, help))
    }

    pub(crate) fn schema(&self) -> &str {
        self.value(SCHEMA).unwrap_or("steadfast")
    }

    /// The brokers that `doctor` looks at.
    pub(crate) fn brokers(&self) -> impl Iterator<Item = &str> {
        self.value(BROKERS).unwrap_or_default().split_whitespace()
    }

    /// How long services keep messages. It is theirs to say: nobody else knows.
    pub(crate) fn message_retention(&self) -> &str {
        self.value(MESSAGE_RETENTION).unwrap_or("7d")
    }

    /// How long services remember messages from elsewhere, which is theirs to say too.
    pub(crate) fn inbox_retention(&self) -> &str {
        self.value(INBOX_RETENTION).unwrap_or("7d")
    }

    pub(crate) fn operator(&self) -> Result<&str> {
        self.value(OPERATOR).ok_or_else(|| {
            CliError::new(
                Exit::Usage,
                "the audit needs to know who you are, and your login name is not known",
                "add --operator NAME or set STEADFAST_OPERATOR",
            )
        })
    }

    pub(crate) fn has_color(&self) -> Result<bool> {
        match self.value(COLOR).unwrap_or("auto") {
            "auto" => Ok(output::is_terminal()),
            "always" => Ok(true),
            "never" => Ok(false),
            other => Err(CliError::new(
                Exit::Usage,
                format!("{other:?} is not a setting of color"),
                "write auto, always or never",
            )),
        }
    }

    /// `steadfast config`.
    pub(crate) fn show(&self, output: &Output) -> Result<Exit> {
        let shown = self.settings.each_ref().map(|setting| Shown {
            setting: setting.name,
            value: setting.value.as_deref().map(|value| match setting.name {
                BROKERS => mask(value),
                _ => mask_url(value),
            }),
            from: setting.source.to_string(),
        });
        output.records(&shown, &["setting", "value", "from"], |setting| {
            let value = setting.value.clone().unwrap_or_else(|| "(not set)".to_owned());
            vec![setting.setting.to_owned(), output::escape(&value), setting.from.clone()]
        })?;
        Ok(Exit::Ok)
    }
}

/// The first who says something.
fn resolve(
    name: &'static str,
    flag: Option<&str>,
    variable: &'static str,
    file: Option<&File>,
) -> (Option<String>, Source) {
    if let Some(value) = flag {
        return (Some(value.to_owned()), Source::Flag);
    }
    if let Some(value) = variable_of(variable) {
        return (Some(value), Source::Environment(variable));
    }
    // https://no-color.org: any value but the empty one.
    if name == COLOR && variable_of("NO_COLOR").is_some() {
        return (Some("never".to_owned()), Source::Environment("NO_COLOR"));
    }
    if let Some((value, file)) = file.and_then(|file| Some((file.value(name)?, file))) {
        return (Some(value), Source::File(file.path.clone()));
    }
    let default = match name {
        SCHEMA => Some("steadfast".to_owned()),
        MESSAGE_RETENTION | INBOX_RETENTION => Some("7d".to_owned()),
        COLOR => Some("auto".to_owned()),
        OPERATOR => variable_of("USER").or_else(|| variable_of("LOGNAME")),
        _ => None,
    };
    (default, Source::Default)
}

fn variable_of(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// A `steadfast.toml` that was read.
struct File {
    path: PathBuf,
    table: toml::Table,
}

impl File {
    /// The nearest one: in the current directory, or in one above it.
    fn find() -> Result<Option<Self>> {
        let here = env::current_dir().unwrap_or_default();
        let path = here.ancestors().map(|directory| directory.join(FILE));
        match path.into_iter().find(|path| path.is_file()) {
            Some(path) => Self::read(&path).map(Some),
            None => Ok(None),
        }
    }

    fn read(path: &Path) -> Result<Self> {
        let wrong =
            |what: String, help: String| CliError::new(Exit::Usage, format!("{}: {what}", path.display()), help);
        let text = fs::read_to_string(path).map_err(|error| {
            wrong(
                "the file cannot be read".to_owned(),
                "make it readable, or remove it".to_owned(),
            )
            .because(&error)
        })?;
        let table: toml::Table = toml::from_str(&text).map_err(|error| {
            // Only where and why: the line itself may hold a password.
            let line = error
                .span()
                .map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            wrong(
                format!("line {line} is not TOML"),
                "write lines such as schema = \"billing\"".to_owned(),
            )
            .because(&error.message())
        })?;
        for (name, value) in &table {
            if !NAMES.contains(&name.as_str()) {
                return Err(wrong(format!("there is no setting {name:?}"), suggestion(name)));
            }
            let (is_usable, what, form) = match name.as_str() {
                BROKERS => (is_list(value), "list of texts in quotes", "[\"…\"]"),
                _ => (value.is_str(), "text in quotes", "\"…\""),
            };
            if !is_usable {
                let help = format!("write {name} = {form}");
                return Err(wrong(format!("the setting {name:?} is not a {what}"), help));
            }
        }
        Ok(Self {
            path: path.to_owned(),
            table,
        })
    }

    fn value(&self, name: &str) -> Option<String> {
        match self.table.get(name)? {
            toml::Value::Array(list) => {
                let list: Vec<_> = list.iter().filter_map(toml::Value::as_str).collect();
                (!list.is_empty()).then(|| list.join(" "))
            }
            value => value.as_str().map(ToOwned::to_owned),
        }
    }
}

fn is_list(value: &toml::Value) -> bool {
    value
        .as_array()
        .is_some_and(|list| list.iter().all(toml::Value::is_str))
}

/// What somebody may have meant, or else all there is.
fn suggestion(name: &str) -> String {
    match nearest(name, NAMES) {
        Some(nearest) => format!("did you mean {nearest}?"),
        None => format!("the settings are {}", NAMES.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_name_finds_the_one_that_was_meant() {
        assert_eq!(suggestion("databse-url"), "did you mean database-url?");
        assert_eq!(suggestion("shcema"), "did you mean schema?");
        assert_eq!(
            suggestion("zzz"),
            "the settings are database-url, schema, message-retention, inbox-retention, color, operator, brokers"
        );
    }
}
