//! `#[steadfast::service] impl Orders { .. }`: commands, queries, reactions, jobs and schedules, and the face by which they are called and mounted.
//!
//! Parse (this file, [`handler`], [`options`], [`route`], [`reaction`], [`schedule`]) understands the block and collects every mistake; [`write`] puts down
//! what a person would have written. With mistakes, what was understood is written too, so that they are all that is reported.

pub(crate) mod elsewhere;
mod handler;
mod options;
mod route;
mod reaction;
mod schedule;
mod write;
#[cfg(test)]
mod tests;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Error, Ident, ImplItem, ImplItemFn, ItemImpl, Path, Result, Token, Type, bracketed, parse_quote, token,
};

use crate::database::{Database, POSTGRES, SQLITE};
use crate::mistakes::Mistakes;
use crate::value::unknown;
use handler::{Handler, may_meet};
use options::Kind;
use reaction::{Of, Reaction};
use schedule::{Scheduled, Word};

/// What steadfast was built with.
#[derive(Clone, Copy)]
struct Build {
    databases: [Database; 2],
    has_axum: bool,
    has_schedule: bool,
}

const BUILD: Build = Build {
    databases: [SQLITE, POSTGRES],
    has_axum: cfg!(feature = "axum"),
    has_schedule: cfg!(feature = "schedule"),
};

pub(crate) fn expand(arguments: TokenStream, block: TokenStream) -> TokenStream {
    let (written, mistakes) = expand_for(BUILD, arguments, block);
    let mistakes = mistakes.into_compile_errors();
    quote!(#mistakes #written)
}

/// The expansion, of all that could be understood, and what could not. What is no service at all is left as it is, so that
/// what others say of it stays true.
fn expand_for(build: Build, arguments: TokenStream, item: TokenStream) -> (TokenStream, Mistakes) {
    let mut mistakes = Mistakes::default();
    let block = syn::parse2(item.clone()).map_err(|error| {
        Error::new(
            error.span(),
            format!("SF010: `#[service]` stands on an `impl` block of a type with methods; {error}"),
        )
    });
    let Some(mut block): Option<ItemImpl> = mistakes.keep(block) else {
        return (item, mistakes);
    };
    let Some(name) = mistakes.keep(name_of(&block)) else {
        let is_ours = |attribute: &Attribute| Ours::of(attribute).is_some() || Word::of(attribute).is_some();
        methods(&mut block).for_each(|method| method.attrs.retain(|attribute| !is_ours(attribute)));
        return (block.into_token_stream(), mistakes);
    };
    let arguments = Arguments::parse(arguments, build, &mut mistakes);
    let service = Service::parse(arguments, name, block, &mut mistakes);
    service.check(build, &mut mistakes);
    (write::service(&service), mistakes)
}

fn methods(block: &mut ItemImpl) -> impl Iterator<Item = &mut ImplItemFn> {
    block.items.iter_mut().filter_map(|item| match item {
        ImplItem::Fn(method) => Some(method),
        _ => None,
    })
}

/// The type the block is of, by its last name. An error if the block cannot be a service.
fn name_of(block: &ItemImpl) -> Result<Ident> {
    if let Some(parameter) = block.generics.type_params().find(|parameter| parameter.ident == "Db") {
        let message = "SF010: `Db` is the database that the block is written for; give this parameter another name";
        return Err(Error::new_spanned(&parameter.ident, message));
    }
    if let Some((path, _)) = &block.trait_ {
        let message = "SF010: a service has methods of its own, not those of a trait; write `impl Orders`";
        return Err(Error::new_spanned(path, message));
    }
    match elsewhere::ungrouped(&block.self_ty) {
        Type::Path(path) if !path.path.segments.is_empty() => {
            Ok(path.path.segments[path.path.segments.len() - 1].ident.clone())
        }
        other => Err(Error::new_spanned(
            other,
            "SF010: a service is a struct, whose fields are its dependencies; write `impl Orders`",
        )),
    }
}

/// What stands in `#[service(..)]`.
struct Arguments {
    krate: Path,
    /// None: `Db` is what it is in scope.
    databases: Vec<Database>,
}

impl Arguments {
    fn parse(tokens: TokenStream, build: Build, mistakes: &mut Mistakes) -> Self {
        let mut arguments = Self {
            krate: parse_quote!(::steadfast),
            databases: Vec::new(),
        };
        let parser = |input: ParseStream| {
            while !input.is_empty() {
                arguments.option(input, build)?;
                if !input.is_empty() {
                    input.parse::<Token![,]>()?;
                }
            }
            Ok(())
        };
        if mistakes.keep(parser.parse2(tokens)).is_none() && arguments.databases.is_empty() {
            // Some database, so that what is written of `Db` is not wrong as well.
            arguments
                .databases
                .extend(build.databases.iter().find(|database| database.is_there));
        }
        arguments
    }

    fn option(&mut self, input: ParseStream, build: Build) -> Result<()> {
        if input.peek(Token![crate]) {
            input.parse::<Token![crate]>()?;
            input.parse::<Token![=]>()?;
            self.krate = input.call(Path::parse_mod_style)?;
            return Ok(());
        }
        let name: Ident = input.parse()?;
        if name != "db" {
            return Err(unknown(&name, "a service", &["db", "crate"]));
        }
        input.parse::<Token![=]>()?;
        for word in databases(input)? {
            let database = find(build, &word)?;
            if self.databases.contains(&database) {
                return Err(Error::new(
                    word.span(),
                    format!("SF011: `{word}` is named twice; once is enough"),
                ));
            }
            self.databases.push(database);
        }
        Ok(())
    }
}

/// `Sqlite` or `[Sqlite, Postgres]`
fn databases(input: ParseStream) -> Result<Vec<Ident>> {
    if !input.peek(token::Bracket) {
        return Ok(vec![input.parse()?]);
    }
    let content;
    let bracket = bracketed!(content in input);
    let words = Punctuated::<Ident, Token![,]>::parse_terminated(&content)?;
    if words.is_empty() {
        return Err(Error::new(
            bracket.span.join(),
            "SF011: no database is named; write `db = [Sqlite, Postgres]`",
        ));
    }
    Ok(words.into_iter().collect())
}

fn find(build: Build, word: &Ident) -> Result<Database> {
    let Some(&database) = build.databases.iter().find(|database| word == database.type_name) else {
        let message =
            format!("SF011: `{word}` is no database of ours; write `Sqlite`, `Postgres` or `[Sqlite, Postgres]`");
        return Err(Error::new(word.span(), message));
    };
    if !database.is_there {
        return Err(feature_missing(
            word.span(),
            &format!("a service on `{word}`"),
            database.word,
        ));
    }
    Ok(database)
}

fn feature_missing(span: Span, what: &str, feature: &str) -> Error {
    let message = format!(
        "SF013: {what} needs the feature `{feature}` of steadfast; add it in Cargo.toml: steadfast = {{ .., features = [\"{feature}\", \"service\"] }}"
    );
    Error::new(span, message)
}

/// A block, understood.
struct Service {
    krate: Path,
    databases: Vec<Database>,
    /// `Orders`
    name: Ident,
    /// The block as the user wrote it, without our attributes.
    block: ItemImpl,
    handlers: Vec<Handler>,
    reactions: Vec<Reaction>,
}

impl Service {
    fn parse(arguments: Arguments, name: Ident, mut block: ItemImpl, mistakes: &mut Mistakes) -> Self {
        let Arguments { krate, databases } = arguments;
        elsewhere::name_lifetimes(&mut block);
        let self_ty = (*block.self_ty).clone();
        let (mut handlers, mut reactions) = (Vec::new(), Vec::new());
        for method in methods(&mut block) {
            let schedule = take_schedule(method, mistakes);
            match take_ours(method, mistakes) {
                Some((Ours::Reaction(Of::Job), attribute)) => {
                    let parsed = Reaction::parse(Of::Job, &name, &attribute, method, &self_ty, &krate, mistakes);
                    let scheduled = schedule.and_then(|(word, attribute)| {
                        let method = &method.sig.ident;
                        Scheduled::parse(word, &attribute, &name, method, true, &krate, mistakes)
                    });
                    let schedule = scheduled.map(|(scheduled, _)| scheduled);
                    reactions.extend(parsed.map(|reaction| Reaction { schedule, ..reaction }));
                }
                None => {
                    let Some((word, attribute)) = schedule else { continue };
                    let ident = &method.sig.ident;
                    let scheduled = Scheduled::parse(word, &attribute, &name, ident, false, &krate, mistakes);
                    if let Some((scheduled, rest)) = scheduled {
                        reactions.extend(Reaction::of_ticks(&name, scheduled, rest, method, &krate, mistakes));
                    }
                }
                Some(_) if schedule.is_some() => {
                    let message = "SF019: a schedule makes jobs, and this is a command, a query or a reaction; remove the schedule, or have a \
                                   method of its own for it";
                    mistakes.at(schedule.map(|(_, attribute)| attribute), message);
                }
                Some((Ours::Handler(kind), attribute)) => {
                    handlers.extend(Handler::parse(kind, &attribute, method, &self_ty, &krate, mistakes));
                }
                Some((Ours::Reaction(of), attribute)) => {
                    reactions.extend(Reaction::parse(
                        of, &name, &attribute, method, &self_ty, &krate, mistakes,
                    ));
                }
            }
        }
        Self {
            krate,
            databases,
            name,
            block,
            handlers,
            reactions,
        }
    }

    /// What no handler can know of itself.
    fn check(&self, build: Build, mistakes: &mut Mistakes) {
        for (place, handler) in self.handlers.iter().enumerate() {
            let Handler { options, name, .. } = handler;
            let operation = &options.operation;
            let others = || {
                self.handlers[..place]
                    .iter()
                    .filter(|other| may_meet(&other.cfgs, &handler.cfgs))
            };
            if others().any(|other| other.options.operation.value() == operation.value()) {
                let message = format!(
                    "SF012: another handler of this service is {:?} already, and would answer the keys of `{name}`; give it a name of its own",
                    operation.value()
                );
                mistakes.at(operation, message);
            }
            let Some(route) = &options.route else { continue };
            if !build.has_axum {
                mistakes.push(feature_missing(route.span, "a route", "axum"));
            }
            let taken = others().find_map(|other| Some((other, other.options.route.as_ref()?.conflict(route)?)));
            if let Some((other, advice)) = taken {
                let message = format!(
                    "SF010: a request could be meant for `{}` or for `{name}`, since their routes are one to axum; {advice}",
                    other.name
                );
                mistakes.here(route.span, message);
            }
        }
        for (place, reaction) in self.reactions.iter().enumerate() {
            let Some(schedule) = &reaction.schedule else { continue };
            if !build.has_schedule {
                mistakes.push(feature_missing(reaction.name.span(), "a schedule", "schedule"));
            }
            let mut others = self.reactions[..place]
                .iter()
                .filter(|other| may_meet(&other.cfgs, &reaction.cfgs));
            let has_it = |other: &&Reaction| {
                let other = other.schedule.as_ref();
                other.is_some_and(|other| other.name.value() == schedule.name.value())
            };
            if let Some(other) = others.find(has_it) {
                let message = format!(
                    "SF019: `{}` is the schedule {:?} already; give this one a `name` of its own",
                    other.name,
                    schedule.name.value()
                );
                mistakes.at(&schedule.name, message);
            }
        }
        for (place, reaction) in self.reactions.iter().enumerate() {
            let Reaction { target, name, .. } = reaction;
            let mut others = self.reactions[..place]
                .iter()
                .filter(|other| may_meet(&other.cfgs, &reaction.cfgs));
            let Some(target) = target else { continue };
            let has_it = |other: &&Reaction| {
                other
                    .target
                    .as_ref()
                    .is_some_and(|other| other.value() == target.value())
            };
            if let Some(other) = others.find(has_it) {
                let message = format!(
                    "SF016: `{}` is the target {:?} already, and would take the deliveries of `{name}`; give it a `name` of its own",
                    other.name,
                    target.value()
                );
                mistakes.at(target, message);
            }
        }
    }
}

/// What one of our attributes makes of a method.
enum Ours {
    Handler(Kind),
    Reaction(Of),
}

impl Ours {
    fn of(attribute: &Attribute) -> Option<Self> {
        match Kind::of(attribute) {
            Some(kind) => Some(Self::Handler(kind)),
            None => Reaction::declared_by(attribute).map(Self::Reaction),
        }
    }
}

/// Removes the schedule from a method, if it has one.
fn take_schedule(method: &mut ImplItemFn, mistakes: &mut Mistakes) -> Option<(Word, Attribute)> {
    let mut schedule = None;
    method.attrs.retain(|attribute| {
        let Some(word) = Word::of(attribute) else {
            return true;
        };
        match schedule {
            None => schedule = Some((word, attribute.clone())),
            Some(_) => mistakes.at(
                attribute,
                "SF019: a method has one schedule; remove this one, or write both into one expression",
            ),
        }
        false
    });
    schedule
}

/// Removes our attribute from a method, if it has one.
fn take_ours(method: &mut ImplItemFn, mistakes: &mut Mistakes) -> Option<(Ours, Attribute)> {
    let place = method
        .attrs
        .iter()
        .position(|attribute| Ours::of(attribute).is_some())?;
    let attribute = method.attrs.remove(place);
    method.attrs.retain(|other| {
        let is_ours = Ours::of(other).is_some();
        if is_ours {
            mistakes.at(
                other,
                "SF010: a method is one command, one query, one reaction or one job; remove this attribute",
            );
        }
        !is_ours
    });
    Some((Ours::of(&attribute)?, attribute))
}

/// Whether some tokens speak of `Db`, the database that the block is written for.
fn speaks_of_db(tokens: &impl ToTokens) -> bool {
    elsewhere::find(tokens.to_token_stream(), "Db").is_some()
}
