//! `#[redact]` on fields, by the names that serde gives them in JSON.

use syn::ext::IdentExt;
use syn::punctuated::Punctuated;
use syn::{Attribute, Error, Expr, ExprLit, Field, Fields, Ident, Lit, Meta, Result, Token};

use super::{Declared, Shape, Words};
use crate::mistakes::Mistakes;

/// The members of the event's JSON that nobody shall see.
pub(super) fn parse(declared: &Declared, mistakes: &mut Mistakes) -> Vec<String> {
    if let Some(attribute) = redact(&declared.attrs) {
        let message = format!(
            "{}: what is hidden are single fields, so that the rest can be looked at; put `#[redact]` on each of them",
            declared.words.code
        );
        mistakes.at(attribute, message);
    }
    let container = Container::parse(declared);
    let mut redacted = Vec::new();
    match &declared.shape {
        Shape::Struct(fields) => {
            for field in fields {
                redacted.extend(mistakes.keep(container.redacted(field, fields)).flatten());
            }
        }
        Shape::Enum(variants) => {
            let in_variants = variants
                .iter()
                .flat_map(|variant| &variant.fields)
                .map(|field| &field.attrs);
            let attributes = variants.iter().map(|variant| &variant.attrs).chain(in_variants);
            for attribute in attributes.filter_map(|attrs| redact(attrs)) {
                let message = format!(
                    "{}: fields are hidden by their names in JSON, and what a variant has is below another name; put it into a \
                     struct, and `#[redact]` there",
                    declared.words.code
                );
                mistakes.at(attribute, message);
            }
        }
    }
    redacted
}

fn redact(attrs: &[Attribute]) -> Option<&Attribute> {
    attrs.iter().find(|attribute| attribute.path().is_ident("redact"))
}

/// What serde is told of the whole struct.
struct Container {
    words: &'static Words,
    rename_all: Option<String>,
    /// `transparent` or `into`: then there are no members of these names.
    not_by_field: Option<String>,
}

impl Container {
    fn parse(declared: &Declared) -> Self {
        let mut container = Self {
            words: declared.words,
            rename_all: None,
            not_by_field: None,
        };
        for meta in serde(&declared.attrs) {
            if meta.path().is_ident("rename_all") {
                container.rename_all = written_name(&meta);
            }
            let other = ["transparent", "into"]
                .into_iter()
                .find(|name| meta.path().is_ident(name));
            container.not_by_field = other.map(str::to_owned).or(container.not_by_field);
        }
        container
    }

    /// The name in JSON, if the field has `#[redact]`.
    fn redacted(&self, field: &Field, fields: &Fields) -> Result<Option<String>> {
        let Some(attribute) = redact(&field.attrs) else {
            return Ok(None);
        };
        let Words {
            code, attribute: thing, ..
        } = self.words;
        let refuse = |message: &str| Err(Error::new_spanned(attribute, format!("{code}: {message}")));
        let (Some(name), Fields::Named(_)) = (&field.ident, fields) else {
            return refuse("a field is hidden by its name in JSON, and this one has none; give it a name");
        };
        if !matches!(attribute.meta, Meta::Path(_)) {
            return refuse("a field is hidden or it is not; write `#[redact]` alone");
        }
        if let Some(other) = &self.not_by_field {
            return refuse(&format!(
                "by `#[serde({other})]` there is no member `{name}` in the JSON of this {thing}; remove one of the two"
            ));
        }
        let mut renamed = None;
        for meta in serde(&field.attrs) {
            if meta.path().is_ident("flatten") {
                return refuse(
                    "the members of a flattened field have names of their own; put them into this struct, and `#[redact]` on them",
                );
            }
            if meta.path().is_ident("rename") {
                renamed = written_name(&meta);
            }
        }
        Ok(Some(renamed.unwrap_or_else(|| self.name_of(name))))
    }

    /// As serde's own `RenameRule::apply_to_field` has it.
    fn name_of(&self, field: &Ident) -> String {
        let name = field.unraw().to_string();
        let pascal = || -> String {
            let mut is_first = true;
            let mut letter = |c: char| match (c, std::mem::replace(&mut is_first, c == '_')) {
                ('_', _) => None,
                (c, true) => Some(c.to_ascii_uppercase()),
                (c, false) => Some(c),
            };
            name.chars().filter_map(&mut letter).collect()
        };
        match self.rename_all.as_deref() {
            Some("UPPERCASE" | "SCREAMING_SNAKE_CASE") => name.to_ascii_uppercase(),
            Some("PascalCase") => pascal(),
            Some("camelCase") => {
                let pascal = pascal();
                let first = pascal.chars().next().map_or(0, char::len_utf8);
                pascal[..first].to_ascii_lowercase() + &pascal[first..]
            }
            Some("kebab-case") => name.replace('_', "-"),
            Some("SCREAMING-KEBAB-CASE") => name.to_ascii_uppercase().replace('_', "-"),
            _ => name,
        }
    }
}

/// What stands in `#[serde(..)]`. What serde could not read either, it says itself.
fn serde(attrs: &[Attribute]) -> impl Iterator<Item = Meta> {
    let ours = attrs.iter().filter(|attribute| attribute.path().is_ident("serde"));
    ours.filter_map(|attribute| {
        attribute
            .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
            .ok()
    })
    .flatten()
}

/// The name for writing: of `rename = ".."`, or of `rename(serialize = "..")`.
fn written_name(meta: &Meta) -> Option<String> {
    match meta {
        Meta::NameValue(pair) => match &pair.value {
            Expr::Lit(ExprLit {
                lit: Lit::Str(text), ..
            }) => Some(text.value()),
            _ => None,
        },
        Meta::List(list) => {
            let metas = list
                .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
                .ok()?;
            metas
                .iter()
                .find(|meta| meta.path().is_ident("serialize"))
                .and_then(written_name)
        }
        Meta::Path(_) => None,
    }
}
