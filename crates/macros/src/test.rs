//! `#[steadfast::test(sqlite, postgres)]`: a module of the function's name with one test for each database.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote};
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::{Attribute, Error, FnArg, Ident, ItemFn, Result, ReturnType, Token};

use crate::database::{Database, POSTGRES, SQLITE};

/// What to write, at the end of every refusal.
const SHAPE: &str = "write `#[steadfast::test(sqlite, postgres)] async fn a_sentence(t: Harness<Db>) { .. }`";

pub(crate) fn expand(words: TokenStream, function: TokenStream) -> Result<TokenStream> {
    expand_for(&[SQLITE, POSTGRES], words, function)
}

fn expand_for(known: &[Database], words: TokenStream, function: TokenStream) -> Result<TokenStream> {
    let databases = parse_databases(known, words)?;
    let function: ItemFn = syn::parse2(function)?;
    check_shape(&function)?;
    Ok(stamp(&databases, &function))
}

fn parse_databases(known: &[Database], words: TokenStream) -> Result<Vec<(Database, Span)>> {
    let words = Punctuated::<Ident, Token![,]>::parse_terminated
        .parse2(words)
        .map_err(|error| {
            Error::new(
                error.span(),
                "expected `sqlite`, `postgres` or both, with a comma between them",
            )
        })?;
    let mut chosen: Vec<(Database, Span)> = Vec::new();
    for word in &words {
        let database = find(known, word)?;
        if chosen.iter().any(|(other, _)| *other == database) {
            let message = format!("`{word}` is named twice; once makes one test on it");
            return Err(Error::new(word.span(), message));
        }
        chosen.push((database, word.span()));
    }
    if chosen.is_empty() {
        let message = format!("no database is named, so there would be no test; {SHAPE}");
        return Err(Error::new(Span::call_site(), message));
    }
    Ok(chosen)
}

fn find(known: &[Database], word: &Ident) -> Result<Database> {
    let Some(&database) = known.iter().find(|database| word == database.word) else {
        let message = format!("`{word}` is no database; write `sqlite`, `postgres` or both");
        return Err(Error::new(word.span(), message));
    };
    if !database.is_there {
        let message = format!(
            "a test on `{word}` needs the feature `{word}` of steadfast; add it in Cargo.toml: \
             steadfast = {{ .., features = [\"{word}\", \"testing\"] }}"
        );
        return Err(Error::new(word.span(), message));
    }
    Ok(database)
}

fn check_shape(function: &ItemFn) -> Result<()> {
    let signature = &function.sig;
    if let Some(attribute) = function.attrs.iter().find(|attribute| makes_a_test(attribute)) {
        let message = "`#[steadfast::test]` makes the tests and brings their runtime; remove this attribute";
        return Err(Error::new_spanned(attribute, message));
    }
    if signature.asyncness.is_none() {
        let message = "a test of the kit is async: write `async fn`";
        return Err(Error::new(signature.fn_token.span, message));
    }
    if !signature.generics.params.is_empty() {
        let message = "a test has no parameters of its own to be generic over; `Db` is the database it runs on";
        return Err(Error::new_spanned(&signature.generics, message));
    }
    let mut inputs = signature.inputs.iter();
    match (inputs.next(), inputs.next()) {
        (Some(FnArg::Typed(_)), None) => Ok(()),
        (Some(FnArg::Receiver(receiver)), _) => {
            let message = format!("a test is a function of its own, without `self`; {SHAPE}");
            Err(Error::new_spanned(receiver, message))
        }
        (Some(_), Some(second)) => {
            let message = "a test takes the harness and nothing else; remove this argument";
            Err(Error::new_spanned(second, message))
        }
        (None, _) => {
            let message = "a test takes the harness: write `(t: Harness<Db>)`";
            Err(Error::new(signature.paren_token.span.join(), message))
        }
    }
}

/// Whether an attribute would make a test of the function itself: `#[test]`, `#[tokio::test]`.
fn makes_a_test(attribute: &Attribute) -> bool {
    let path = attribute.path();
    path.segments.last().is_some_and(|segment| segment.ident == "test")
}

fn stamp(databases: &[(Database, Span)], function: &ItemFn) -> TokenStream {
    let ItemFn { attrs, sig, block, .. } = function;
    let (name, inputs, output) = (&sig.ident, &sig.inputs, &sig.output);
    // What decides whether the tests are there, and what is said of them, belongs to the module; the rest to each test.
    let (of_module, of_test): (Vec<_>, Vec<_>) = attrs
        .iter()
        .partition(|attribute| attribute.path().is_ident("cfg") || attribute.path().is_ident("doc"));
    let run = match attrs.iter().any(|attribute| attribute.path().is_ident("should_panic")) {
        true => format_ident!("run_to_a_panic"),
        false => format_ident!("run"),
    };
    // The result may name `Db`, which is only known inside.
    let result = match output {
        ReturnType::Default => quote!(),
        ReturnType::Type(..) => quote!(-> impl ::std::process::Termination),
    };
    let tests = databases.iter().map(|(database, span)| {
        let test = Ident::new(database.word, *span);
        let database = format_ident!("{}", database.type_name);
        quote! {
            #(#of_test)*
            #[::core::prelude::v1::test]
            fn #test() #result {
                type Db = ::steadfast::sqlx::#database;
                async fn #name(#inputs) #output #block
                ::steadfast::testing::#run::<Db, _>(#name)
            }
        }
    });
    quote! {
        #(#of_module)*
        mod #name {
            #[allow(unused_imports)]
            use super::*;
            #(#tests)*
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Database; 2] = [
        Database {
            is_there: true,
            ..SQLITE
        },
        Database {
            is_there: true,
            ..POSTGRES
        },
    ];

    fn expanded(known: &[Database], words: &str, function: &str) -> Result<TokenStream> {
        let parse = |text: &str| text.parse().expect("tokens");
        expand_for(known, parse(words), parse(function))
    }

    fn expansion(words: &str, function: &str) -> String {
        expanded(&ALL, words, function).expect("accepted").to_string()
    }

    /// The refusal of a test, and the text it points at.
    fn refusal(known: &[Database], words: &str, function: &str) -> (String, String) {
        let error = expanded(known, words, function).expect_err("refused");
        (error.to_string(), error.span().source_text().unwrap_or_default())
    }

    const GOOD: &str = "async fn an_order_is_placed_once(t: Harness<Db>) {}";

    #[test]
    fn one_function_becomes_one_test_for_each_database() {
        let both = expansion("sqlite, postgres", GOOD);
        assert!(both.starts_with("mod an_order_is_placed_once {"));
        for part in ["fn sqlite ()", "fn postgres ()", "sqlx :: Sqlite", "sqlx :: Postgres"] {
            assert_eq!(both.matches(part).count(), 1, "{part} in {both}");
        }
        assert!(!expansion("sqlite", GOOD).contains("postgres"));
        assert!(!expansion("postgres,", GOOD).contains("sqlite"));
    }

    #[test]
    fn other_attributes_are_kept_where_they_belong() {
        let expanded = expansion(
            "sqlite",
            "/// Once.\n#[cfg(unix)] #[ignore = \"slow\"] #[should_panic] async fn a_b(mut t: Harness<Db>) -> Result<(), E> {}",
        );
        let (of_module, of_test) = expanded.split_once("mod a_b").expect("a module");
        assert!(of_module.contains("Once.") && of_module.contains("cfg (unix)"));
        assert!(of_test.contains("ignore = \"slow\"") && of_test.contains("should_panic"));
        assert!(of_test.contains("run_to_a_panic") && of_test.contains("mut t : Harness < Db >"));
    }

    #[test]
    fn a_mistake_in_the_databases_is_told_where_it_is() {
        for (databases, points_at, says) in [
            (
                "mysql",
                "mysql",
                "`mysql` is no database; write `sqlite`, `postgres` or both",
            ),
            ("sqlite, sqlite", "sqlite", "`sqlite` is named twice"),
            ("", "", "no database is named"),
            ("sqlite postgres", "postgres", "with a comma between them"),
        ] {
            let (message, at) = refusal(&ALL, databases, GOOD);
            assert!(message.contains(says), "{message}");
            assert_eq!(at, points_at, "{message}");
        }
    }

    #[test]
    fn a_mistake_in_the_function_is_told_where_it_is() {
        for (function, points_at, says) in [
            ("fn a(t: Harness<Db>) {}", "fn", "write `async fn`"),
            ("async fn a() {}", "()", "write `(t: Harness<Db>)`"),
            (
                "async fn a(t: Harness<Db>, n: u32) {}",
                "n: u32",
                "remove this argument",
            ),
            ("async fn a(&self) {}", "&self", "without `self`"),
            ("async fn a<T>(t: T) {}", "<T>", "`Db` is the database it runs on"),
            (
                "#[tokio::test] async fn a(t: T) {}",
                "#[tokio::test]",
                "remove this attribute",
            ),
        ] {
            let (message, at) = refusal(&ALL, "sqlite", function);
            assert!(message.contains(says), "{message}");
            assert_eq!(at, points_at, "{message}");
        }
    }

    #[test]
    fn a_database_that_steadfast_was_not_built_for_is_named_with_its_feature() {
        let known = [
            ALL[0],
            Database {
                is_there: false,
                ..POSTGRES
            },
        ];
        let (message, at) = refusal(&known, "sqlite, postgres", GOOD);
        assert!(message.contains("features = [\"postgres\", \"testing\"]"), "{message}");
        assert_eq!(at, "postgres");
    }
}
