//! A method with `#[command(..)]` or `#[query(..)]`, understood.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, FnArg, GenericArgument, Ident, ImplItemFn, Pat, Path, PathArguments, PathSegment, ReceiverKind,
    Result, ReturnType, Safety, Signature, Type, TypeReference, Visibility, parse_quote,
};

use super::elsewhere::{attributes, find, type_of, ungrouped};
use super::options::{Kind, Options};
use crate::mistakes::Mistakes;

pub(super) struct Handler {
    pub(super) kind: Kind,
    pub(super) options: Options,
    pub(super) name: Ident,
    pub(super) vis: Visibility,
    /// What the face's method has too: its documentation, and what is said to its callers.
    pub(super) docs: Vec<Attribute>,
    /// Whether its callers are told to stop.
    pub(super) is_deprecated: bool,
    /// What decides whether the method is there.
    pub(super) cfgs: Vec<Attribute>,
    /// What the user does not want to be warned of.
    pub(super) allows: Vec<Attribute>,
    /// Where the transaction or the pool is declared.
    pub(super) first: Span,
    /// `Db` as it stands there.
    pub(super) db: Option<Ident>,
    /// After the transaction or the pool, in order.
    pub(super) arguments: Vec<Argument>,
    /// `T` of `Result<T, E>`.
    pub(super) value: Type,
    /// Where the answer is declared.
    pub(super) returned: Span,
}

pub(super) struct Argument {
    pub(super) name: Ident,
    pub(super) ty: Type,
    pub(super) role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Owner,
    /// It stands in the path, under its name.
    Path,
    Input,
}

impl Handler {
    /// Understands a method; `None` if that is not possible, and it has been said why.
    pub(super) fn parse(
        kind: Kind,
        attribute: &Attribute,
        method: &ImplItemFn,
        self_ty: &Type,
        krate: &Path,
        mistakes: &mut Mistakes,
    ) -> Option<Self> {
        let options = Options::parse(attribute, kind, self_ty, krate, mistakes);
        let shape = mistakes.keep(Shape::parse(kind, &method.sig, self_ty));
        let (
            options,
            Shape {
                first,
                arguments,
                value,
            },
        ) = options.zip(shape)?;
        let parameters = options
            .route
            .as_ref()
            .map(|route| route.parameters.as_slice())
            .unwrap_or_default();
        let arguments = mistakes.keep(roles(kind, &options, arguments, parameters))?;
        let of = |name: &str| attributes(&method.attrs, name);
        let mut docs = of("doc");
        if docs.is_empty() {
            let what = format!("The {kind} `{}`.", options.operation.value());
            docs.push(parse_quote!(#[doc = #what]));
        }
        let deprecated = of("deprecated");
        let is_deprecated = !deprecated.is_empty();
        docs.extend(deprecated.into_iter().chain(of("must_use")));
        Some(Self {
            kind,
            options,
            name: method.sig.ident.clone(),
            vis: method.vis.clone(),
            docs,
            is_deprecated,
            cfgs: of("cfg"),
            allows: of("allow"),
            first,
            db: method
                .sig
                .inputs
                .get(1)
                .and_then(|first| find(first.to_token_stream(), "Db")),
            arguments,
            value,
            returned: method.sig.output.span(),
        })
    }

    pub(super) fn is_over_http(&self) -> bool {
        self.options.route.is_some()
    }

    pub(super) fn takes_owner(&self) -> bool {
        self.arguments.iter().any(|argument| argument.role == Role::Owner)
    }

    /// Whether there is nothing in its answer.
    pub(super) fn is_silent(&self) -> bool {
        matches!(&self.value, Type::Tuple(tuple) if tuple.elems.is_empty())
    }

    /// What the caller of the face gives beside owner and key.
    pub(super) fn inputs(&self) -> impl Iterator<Item = &Argument> {
        self.arguments.iter().filter(|argument| argument.role != Role::Owner)
    }
}

impl Argument {
    /// The argument from an HTTP request: as it is, or lent.
    pub(super) fn of_call(&self, handler: &Handler, call: &Ident, krate: &Path) -> TokenStream {
        let name = self.name.to_string();
        let name = name.trim_start_matches("r#");
        let span = self.ty.span();
        let owned = owned(&self.ty);
        let taken = match (self.role, &handler.options.accept) {
            (Role::Owner, _) => return quote_spanned!(span=> #call.owner()?),
            (Role::Path, _) => quote_spanned!(span=> #call.path::<#owned>(#name)?),
            (Role::Input, _) if handler.kind == Kind::Query => quote_spanned!(span=> #call.query::<#owned>()?),
            (Role::Input, None) => quote_spanned!(span=> #call.input::<#owned>()?),
            (Role::Input, Some(accept)) => {
                quote_spanned!(span=> #call.input_as::<#owned>(#krate::service::Accept::#accept)?)
            }
        };
        match self.ty {
            Type::Reference(_) => quote!(&#taken),
            _ => taken,
        }
    }

    /// The argument from a caller in Rust, for a handler that may run again.
    pub(super) fn of_caller(&self) -> TokenStream {
        let name = &self.name;
        match self.ty {
            Type::Reference(_) => name.to_token_stream(),
            _ => quote_spanned!(self.ty.span()=> ::core::clone::Clone::clone(&#name)),
        }
    }
}

/// Whether two methods are compiled in one build; those that are told apart by `#[cfg]` are not.
pub(super) fn may_meet(one: &[Attribute], other: &[Attribute]) -> bool {
    let text = |cfgs: &[Attribute]| -> Vec<_> { cfgs.iter().map(|cfg| cfg.to_token_stream().to_string()).collect() };
    one.is_empty() || other.is_empty() || text(one) == text(other)
}

/// What is kept while an argument is lent: `&str` from a `String`, `&[T]` from a `Vec<T>`, `&T` from a `T`.
fn owned(ty: &Type) -> TokenStream {
    let Type::Reference(reference) = ty else {
        return ty.to_token_stream();
    };
    match &*reference.elem {
        Type::Path(path) if path.path.is_ident("str") => quote!(::std::string::String),
        Type::Slice(slice) => {
            let item = &slice.elem;
            quote!(::std::vec::Vec<#item>)
        }
        elem => elem.to_token_stream(),
    }
}

/// A signature that a handler can have.
struct Shape {
    first: Span,
    arguments: Vec<(Ident, Type)>,
    value: Type,
}

impl Shape {
    fn parse(kind: Kind, signature: &Signature, self_ty: &Type) -> Result<Self> {
        let (name, generics) = (&signature.ident, &signature.generics);
        if name == "on" || name == "routes" {
            let message = format!("SF010: `{name}` is what the face calls its own; give this {kind} another name");
            return Err(Error::new(name.span(), message));
        }
        check_signature("SF010", "a request", signature)?;
        let mut inputs = signature.inputs.iter().skip(1);
        let first = check_first(kind, name, inputs.next(), signature)?;
        let lifetimes: Vec<_> = generics
            .lifetimes()
            .map(|parameter| parameter.lifetime.ident.clone())
            .collect();
        let on_the_face = |ty: &Type| type_of(ty, self_ty, &lifetimes);
        let arguments = inputs
            .map(|argument| named(argument).map(|(name, ty)| (name, on_the_face(&ty))))
            .collect::<Result<_>>()?;
        let value = on_the_face(&value(kind, signature)?);
        Ok(Self {
            first,
            arguments,
            value,
        })
    }
}

/// What all that is called by us has in common: its name says all of it, it waits, and it has its dependencies from `&self`.
pub(super) fn check_signature(code: &str, caller: &str, signature: &Signature) -> Result<()> {
    let name = &signature.ident;
    if signature.asyncness.is_none() {
        let message = format!("{code}: `{name}` waits for the database, so it is async; write `async fn`");
        return Err(Error::new(signature.fn_token.span, message));
    }
    if let Safety::Unsafe(unsafety) = &signature.safety {
        let message = format!(
            "{code}: nobody could keep what `{name}` asks of its callers, since {caller} calls it; write `async fn`"
        );
        return Err(Error::new_spanned(unsafety, message));
    }
    let generics = &signature.generics;
    if generics.type_params().next().is_some() || generics.const_params().next().is_some() {
        let message = format!(
            "{code}: nobody could say what `{name}` is generic over, since it is called by name; write concrete types, or put the \
             parameter on the `impl`"
        );
        return Err(Error::new_spanned(generics, message));
    }
    if let Some(bounds) = &generics.where_clause {
        let message = format!(
            "{code}: who calls or mounts the service has to meet what `{name}` asks for, so it is said there; put this on the `impl`"
        );
        return Err(Error::new_spanned(bounds, message));
    }
    check_receiver(code, signature)
}

fn check_receiver(code: &str, signature: &Signature) -> Result<()> {
    let name = &signature.ident;
    let message =
        format!("{code}: `{name}` has its dependencies from the service, which others use too; write `&self` first");
    match signature.inputs.first() {
        Some(FnArg::Receiver(receiver)) if matches!(receiver.kind, ReceiverKind::Reference(_, _, None)) => Ok(()),
        Some(input) => Err(Error::new_spanned(input, message)),
        None => Err(Error::new(signature.paren_token.span.join(), message)),
    }
}

/// A command works in its transaction, a query on the pool: where that is declared.
fn check_first(kind: Kind, name: &Ident, first: Option<&FnArg>, signature: &Signature) -> Result<Span> {
    let is_right = |ty: &Type| match ungrouped(ty) {
        Type::Reference(TypeReference { mutability, elem, .. }) => {
            mutability.is_some() == (kind == Kind::Command) && !is_named(elem, "Owner")
        }
        _ => false,
    };
    let message = match kind {
        Kind::Command => format!(
            "SF010: what `{name}` writes commits with its key, so its first argument is the transaction; write `tx: &mut Tx<Db>` after `&self`"
        ),
        Kind::Query => {
            format!("SF010: `{name}` reads outside a transaction, on the pool; write `db: &Pool<Db>` after `&self`")
        }
    };
    match first {
        Some(FnArg::Typed(first)) if is_right(&first.ty) => Ok(first.ty.span()),
        Some(first) => Err(Error::new_spanned(first, message)),
        None => Err(Error::new(signature.paren_token.span.join(), message)),
    }
}

fn named(argument: &FnArg) -> Result<(Ident, Type)> {
    let message =
        "SF010: an argument of a handler has a plain name, by which it is given and found; write `name: Type`";
    match argument {
        FnArg::Typed(argument) => match (&*argument.pat, ungrouped(&argument.ty)) {
            _ if let Some(cfg) = attributes(&argument.attrs, "cfg").first() => Err(Error::new_spanned(
                cfg,
                "SF010: whether an argument is there decides what the handler is; write two methods, and put the `#[cfg]` on them",
            )),
            (_, Type::Reference(reference)) if reference.mutability.is_some() => Err(Error::new_spanned(
                reference,
                "SF010: a handler may run again, and has to find its arguments as they were; write `Type` or `&Type`",
            )),
            (_, ty) if is_named(ty, "Owner") => Err(Error::new_spanned(
                ty,
                "SF010: the owner is lent to a handler, and is no part of its input; write `&Owner`",
            )),
            (_, Type::ImplTrait(ty)) => Err(Error::new_spanned(
                ty,
                "SF010: an argument of a handler is read from JSON into a type that must be known; write a concrete one",
            )),
            (Pat::Ident(pattern), ty) => Ok((pattern.ident.clone(), ty.clone())),
            (pattern, _) => Err(Error::new_spanned(pattern, message)),
        },
        FnArg::Receiver(receiver) => Err(Error::new_spanned(receiver, message)),
    }
}

/// `T` of `Result<T, E>`.
fn value(kind: Kind, signature: &Signature) -> Result<Type> {
    let name = &signature.ident;
    let message = match kind {
        Kind::Command => format!(
            "SF001: whether `{name}` is committed is decided by `Ok` or `Err`, and it does not return a `Result`; write `-> Result<T, E>`"
        ),
        Kind::Query => format!(
            "SF001: `{name}` asks a database, which can fail, and does not return a `Result`; write `-> Result<T, E>`"
        ),
    };
    let ReturnType::Type(_, returned) = &signature.output else {
        return Err(Error::new_spanned(name, message));
    };
    let value = last_segment(returned)
        .filter(|segment| segment.ident == "Result")
        .and_then(first_type);
    match value {
        Some(Type::ImplTrait(value)) => Err(Error::new_spanned(
            value,
            "SF010: an answer is written as JSON and read again, so its type must be known; write a concrete one",
        )),
        Some(value) => Ok(value),
        None => Err(Error::new_spanned(returned, message)),
    }
}

pub(super) fn last_segment(ty: &Type) -> Option<&PathSegment> {
    match ungrouped(ty) {
        Type::Path(path) => path.path.segments.last(),
        _ => None,
    }
}

pub(super) fn first_type(segment: &PathSegment) -> Option<Type> {
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else {
        return None;
    };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty.clone()),
        _ => None,
    })
}

pub(super) fn is_named(ty: &Type, name: &str) -> bool {
    last_segment(ty).is_some_and(|segment| segment.ident == name)
}

/// Whether a query string can be read into it; of types that are not known here, it is assumed.
fn has_fields(ty: &Type) -> bool {
    const WITHOUT: [&str; 18] = [
        "Option", "Vec", "String", "str", "bool", "char", "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16",
        "i32", "i64", "i128", "isize",
    ];
    match ty {
        Type::Reference(reference) => has_fields(&reference.elem),
        Type::Slice(_) => false,
        ty => !WITHOUT.iter().any(|name| is_named(ty, name)),
    }
}

/// What each argument is: by its type, then by its name, and what is left is the input.
fn roles(kind: Kind, options: &Options, arguments: Vec<(Ident, Type)>, parameters: &[String]) -> Result<Vec<Argument>> {
    let mut given: Vec<Argument> = Vec::new();
    for (name, ty) in arguments {
        let is_owner = matches!(&ty, Type::Reference(reference) if is_named(&reference.elem, "Owner"));
        let role = match name.to_string().trim_start_matches("r#") {
            _ if is_owner => Role::Owner,
            name if parameters.iter().any(|parameter| parameter == name) => Role::Path,
            _ => Role::Input,
        };
        if let Some(other) = given.iter().find(|other| other.role == role && role != Role::Path) {
            return Err(Error::new(
                name.span(),
                one_too_many(kind, options, &name, &other.name, role),
            ));
        }
        if kind == Kind::Query && role == Role::Input && options.route.is_some() && !has_fields(&ty) {
            let message = format!(
                "SF010: a query string is names with their values, and `{name}` has none for it; put it into a struct, or `{{{name}}}` into the path"
            );
            return Err(Error::new_spanned(ty, message));
        }
        given.push(Argument { name, ty, role });
    }
    let is_given = |parameter: &&String| {
        given
            .iter()
            .any(|given| given.role == Role::Path && given.name.to_string().trim_start_matches("r#") == **parameter)
    };
    if let (Some(missing), Some(route)) = (parameters.iter().find(|parameter| !is_given(parameter)), &options.route) {
        let message = format!(
            "SF010: nobody takes `{{{missing}}}` of this route; add an argument `{missing}: ..`, or remove it from the path"
        );
        return Err(Error::new(route.span, message));
    }
    if let (Some(accept), false) = (&options.accept, given.iter().any(|given| given.role == Role::Input)) {
        let message = "SF010: `accept` says what a body may be, and this command takes none; add an argument for it, or remove `accept`";
        return Err(Error::new(accept.span(), message));
    }
    Ok(given)
}

fn one_too_many(kind: Kind, options: &Options, name: &Ident, other: &Ident, role: Role) -> String {
    let place = match kind {
        Kind::Command => "the body",
        Kind::Query => "the query string",
    };
    match (role, &options.route) {
        (Role::Owner, _) => format!("SF010: `{other}` is the owner already; remove `{name}`"),
        (_, Some(route)) => format!(
            "SF010: `{other}` is {place} already, and `{name}` is no parameter of {:?}; put both into one struct, or `{{{name}}}` into the path",
            route.path
        ),
        (_, None) => format!(
            "SF010: `{other}` is the input already, and there is one; put `{other}` and `{name}` into one struct"
        ),
    }
}
