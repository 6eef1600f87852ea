//! What stands in the user's block, made to mean the same on the face, which is another type in another `impl`.

use proc_macro2::{Group, Ident, Spacing, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote};
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, GenericParam, ItemImpl, Lifetime, Meta, Token, Type, parse_quote};

/// The type itself, where a `macro_rules!` has handed it over as a whole.
pub(crate) fn ungrouped(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => ungrouped(&group.elem),
        Type::Paren(paren) => ungrouped(&paren.elem),
        ty => ty,
    }
}

/// The same for an expression.
pub(crate) fn ungrouped_value(value: Expr) -> Expr {
    match value {
        Expr::Group(group) => ungrouped_value(*group.expr),
        value => value,
    }
}

/// `Self`, written out: on the face it would be the face.
pub(crate) fn without_self(tokens: TokenStream, self_ty: &Type) -> TokenStream {
    replaced(tokens, &mut |ident, around| match around {
        _ if ident != "Self" => None,
        Around { is_of_a_path: true, .. } => Some(quote!(<#self_ty>)),
        _ => Some(self_ty.to_token_stream()),
    })
}

/// A type of a handler's signature as the face has it: without `Self`, and without the lifetimes that the handler declares.
pub(crate) fn type_of(ty: &Type, self_ty: &Type, lifetimes: &[Ident]) -> Type {
    let tokens = without_self(ungrouped(ty).to_token_stream(), self_ty);
    let tokens = replaced(tokens, &mut |ident, around| {
        let is_declared = around.is_lifetime && lifetimes.contains(ident);
        is_declared.then(|| Ident::new("_", ident.span()).into_token_stream())
    });
    syn::parse2(tokens).unwrap_or_else(|_| ty.clone())
}

/// `impl Orders<'_>` as `impl<'elided> Orders<'elided>`: the face's struct has to name the lifetime.
pub(crate) fn name_lifetimes(block: &mut ItemImpl) {
    let mut names: Vec<Ident> = Vec::new();
    let named = replaced(ungrouped(&block.self_ty).to_token_stream(), &mut |ident, around| {
        (around.is_lifetime && ident == "_").then(|| {
            names.push(format_ident!("elided_{}", names.len()));
            names.last().to_token_stream()
        })
    });
    if let Ok(self_ty) = syn::parse2(named) {
        *block.self_ty = self_ty;
        for (place, name) in names.iter().enumerate() {
            let lifetime = Lifetime::new(&format!("'{name}"), name.span());
            let parameter: GenericParam = parse_quote!(#lifetime);
            block.generics.params.insert(place, parameter);
        }
    }
}

/// The attributes of this name, also those under a `cfg_attr`.
pub(crate) fn attributes(all: &[Attribute], name: &str) -> Vec<Attribute> {
    all.iter().filter_map(|attribute| named(attribute, name)).collect()
}

fn named(attribute: &Attribute, name: &str) -> Option<Attribute> {
    if attribute.path().is_ident(name) {
        return Some(attribute.clone());
    }
    if !attribute.path().is_ident("cfg_attr") {
        return None;
    }
    let metas = attribute
        .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
        .ok()?;
    let mut metas = metas.into_iter();
    let (condition, attributes) = (metas.next()?, metas.filter(|meta| meta.path().is_ident(name)));
    let attributes: Vec<_> = attributes.collect();
    (!attributes.is_empty()).then(|| parse_quote!(#[cfg_attr(#condition, #(#attributes),*)]))
}

/// The first identifier of this name, at any depth.
pub(crate) fn find(tokens: TokenStream, name: &str) -> Option<Ident> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Ident(ident) => Some(ident).filter(|ident| ident == name),
        TokenTree::Group(group) => find(group.stream(), name),
        _ => None,
    })
}

/// What stands around an identifier.
#[derive(Clone, Copy)]
pub(crate) struct Around {
    /// A `'` is before it.
    is_lifetime: bool,
    /// A `::` is behind it.
    is_of_a_path: bool,
}

/// The tokens, with some identifiers replaced, at any depth.
pub(crate) fn replaced(
    tokens: TokenStream,
    replace: &mut impl FnMut(&Ident, Around) -> Option<TokenStream>,
) -> TokenStream {
    let mut written = TokenStream::new();
    let mut tokens = tokens.into_iter().peekable();
    let mut is_lifetime = false;
    while let Some(token) = tokens.next() {
        let is_of_a_path = matches!(tokens.peek(), Some(TokenTree::Punct(next)) if next.as_char() == ':' && next.spacing() == Spacing::Joint);
        let around = Around {
            is_lifetime,
            is_of_a_path,
        };
        is_lifetime = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '\'');
        match token {
            TokenTree::Ident(ident) => {
                let other = replace(&ident, around);
                written.extend(other.unwrap_or_else(|| ident.into_token_stream()));
            }
            TokenTree::Group(group) => {
                let mut inner = Group::new(group.delimiter(), replaced(group.stream(), replace));
                inner.set_span(group.span());
                written.extend(inner.into_token_stream());
            }
            other => written.extend(other.into_token_stream()),
        }
    }
    written
}
