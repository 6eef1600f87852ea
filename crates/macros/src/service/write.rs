//! What the macro writes: what a person would have written, and nothing that only a macro could.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{
    Attribute, FnArg, GenericParam, Generics, Ident, ImplItem, ImplItemFn, LitStr, Pat, Path, Type, Visibility,
    parse_quote,
};

use super::handler::{Argument, Handler, Role};
use super::options::{Kind, Options, written};
use super::{Service, speaks_of_db};
use crate::database::Database;

pub(super) fn service(service: &Service) -> TokenStream {
    let face = Face::new(service);
    let (declaration, common) = (face.declaration(), service.common_block());
    let for_each = match service.databases.as_slice() {
        [] => vec![face.on_one(None)],
        databases => databases.iter().map(|database| face.on_one(Some(*database))).collect(),
    };
    let warnings = face.warnings();
    quote!(#declaration #common #(#for_each)* #warnings)
}

impl Service {
    fn is_for_two(&self) -> bool {
        self.databases.len() > 1
    }

    /// The trait that a block for two databases stands in, once for each.
    fn handlers_trait(&self) -> Ident {
        format_ident!("{}Handlers", self.name)
    }

    fn is_handler(&self, method: &ImplItemFn) -> bool {
        self.handlers.iter().any(|handler| handler.name == method.sig.ident)
    }

    /// Whether an item is written once for each database, where there are two.
    fn is_of_one_database(&self, item: &ImplItem) -> bool {
        matches!(item, ImplItem::Fn(method) if self.is_handler(method) || speaks_of_db(method))
    }

    /// What has nothing to do with a database: it stays what it was.
    fn common_block(&self) -> Option<TokenStream> {
        let common = self.block.items.iter().filter(|item| !self.is_of_one_database(item));
        let common: Vec<_> = common.cloned().collect();
        (self.is_for_two() && !common.is_empty()).then(|| {
            let mut block = self.block.clone();
            block.items = common;
            block.into_token_stream()
        })
    }

    /// The block where there is one database, the trait and its `impl` where there are two.
    fn handlers_block(&self) -> TokenStream {
        if !self.is_for_two() {
            return self.block.to_token_stream();
        }
        let mut block = self.block.clone();
        block.items.retain(|item| self.is_of_one_database(item));
        let mut declarations = Vec::new();
        for item in &mut block.items {
            if let ImplItem::Fn(method) = item {
                method.vis = Visibility::Inherited;
                declarations.push(declaration(method));
            }
        }
        let handlers = self.handlers_trait();
        let (attrs, items, self_ty) = (&block.attrs, &block.items, &block.self_ty);
        let (impl_generics, ty_generics, where_clause) = block.generics.split_for_impl();
        quote! {
            #[allow(dead_code, clippy::too_many_arguments)]
            trait #handlers #impl_generics #where_clause {
                #(#declarations)*
            }
            #(#attrs)*
            impl #impl_generics #handlers #ty_generics for #self_ty #where_clause {
                #(#items)*
            }
        }
    }
}

/// A method without its body, as a trait has it.
fn declaration(method: &ImplItemFn) -> TokenStream {
    let cfgs = cfgs(&method.attrs);
    let mut signature = method.sig.clone();
    for input in &mut signature.inputs {
        if let FnArg::Typed(argument) = input {
            *argument.pat = Pat::Verbatim(quote!(_));
        }
    }
    quote!(#(#cfgs)* #signature;)
}

fn cfgs(attributes: &[Attribute]) -> Vec<&Attribute> {
    attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("cfg"))
        .collect()
}

/// `OrdersService<Db>`, by which handlers are called and mounted.
struct Face<'s> {
    service: &'s Service,
    krate: &'s Path,
    name: Ident,
    vis: Visibility,
    cfgs: Vec<&'s Attribute>,
}

impl<'s> Face<'s> {
    fn new(service: &'s Service) -> Self {
        Self {
            service,
            krate: &service.krate,
            name: format_ident!("{}Service", service.name),
            vis: widest(service.handlers.iter().map(|handler| &handler.vis)),
            cfgs: cfgs(&service.block.attrs),
        }
    }

    /// The struct, how it is cloned, and how one comes to it.
    fn declaration(&self) -> TokenStream {
        let Self {
            service,
            krate,
            name,
            vis,
            cfgs,
        } = self;
        let self_ty = &service.block.self_ty;
        let generics = &service.block.generics;
        let (impl_generics, _, where_clause) = generics.split_for_impl();
        let mut with_db = generics.clone();
        with_db.params.push(parse_quote!(Db: #krate::Database));
        let (db_impl_generics, db_generics, _) = with_db.split_for_impl();
        let what = format!(
            "[`{}`] on a database: its commands and queries, to be called and to be mounted.",
            service.name
        );
        let label = service.name.to_string();
        let operations = service.handlers.iter().map(|handler| {
            let (cfgs, operation) = (&handler.cfgs, &handler.options.operation);
            quote!(#(#cfgs)* #operation)
        });
        quote! {
            #(#cfgs)*
            #[doc = #what]
            #vis struct #name #with_db #where_clause {
                service: ::std::sync::Arc<#self_ty>,
                steadfast: #krate::Steadfast<Db>,
            }

            #(#cfgs)*
            impl #db_impl_generics ::core::clone::Clone for #name #db_generics #where_clause {
                fn clone(&self) -> Self {
                    Self {
                        service: ::std::sync::Arc::clone(&self.service),
                        steadfast: ::core::clone::Clone::clone(&self.steadfast),
                    }
                }
            }

            #(#cfgs)*
            impl #impl_generics #self_ty #where_clause {
                /// Puts the service on a database.
                #vis fn on<Db: #krate::Database>(self, steadfast: &#krate::Steadfast<Db>) -> #name #db_generics {
                    let service = ::core::concat!(::core::module_path!(), "::", #label);
                    #krate::service::register(steadfast, service, &[#(#operations),*]);
                    #name {
                        service: ::std::sync::Arc::new(self),
                        steadfast: ::core::clone::Clone::clone(steadfast),
                    }
                }
            }
        }
    }

    /// The handlers on one database, and the face's methods for it.
    fn on_one(&self, database: Option<Database>) -> TokenStream {
        let Self {
            service,
            krate,
            name,
            cfgs,
            ..
        } = self;
        let alias = database.map(|database| {
            let database = format_ident!("{}", database.type_name);
            quote!(type Db = #krate::sqlx::#database;)
        });
        let handlers = service.handlers_block();
        let generics = &service.block.generics;
        let (impl_generics, _, where_clause) = generics.split_for_impl();
        let arguments = arguments(generics);
        let methods = service.handlers.iter().map(|handler| self.method(handler));
        let routes = self.routes();
        quote! {
            #(#cfgs)*
            const _: () = {
                #alias
                #handlers

                impl #impl_generics #name<#arguments Db> #where_clause {
                    #(#methods)*
                    #routes
                }
            };
        }
    }

    /// Each warning at its place, unless its method allows it.
    fn warnings(&self) -> TokenStream {
        let of_one = |handler: &Handler| -> TokenStream {
            let Handler {
                cfgs, allows, options, ..
            } = handler;
            let warnings = options.warnings.iter();
            warnings
                .map(|warning| quote!(#(#cfgs)* #(#allows)* const _: () = #warning;))
                .collect()
        };
        self.service.handlers.iter().map(of_one).collect()
    }

    fn method(&self, handler: &Handler) -> TokenStream {
        match handler.kind {
            Kind::Command => self.command(handler),
            Kind::Query => self.query(handler),
        }
    }

    /// A command in plain Rust.
    fn command(&self, handler: &Handler) -> TokenStream {
        let krate = self.krate;
        let Handler {
            docs,
            cfgs,
            vis,
            name,
            value,
            ..
        } = handler;
        let Options {
            operation, of_command, ..
        } = &handler.options;
        let [owner, key, tx] = ["owner", "key", "tx"].map(ours);
        let parameters = handler.inputs().map(Argument::declared);
        let input = input(handler);
        let arguments = handler.arguments.iter().map(|argument| match argument.role {
            Role::Owner => owner.to_token_stream(),
            _ => argument.of_caller(),
        });
        let callee = self.callee(handler);
        let into = quote_spanned!(handler.returned=> .map_err(::core::convert::Into::into));
        // What is wrong with the handler's future is said at its name.
        let run = quote_spanned! {name.span()=>
            .run(async |#tx: &mut #krate::Tx<Db>| {
                #callee(&self.service, #tx, #(#arguments),*).await #into
            })
        };
        quote! {
            #(#cfgs)*
            #(#docs)*
            #vis async fn #name(&self, #owner: &#krate::Owner, #key: &str, #(#parameters),*) -> #krate::Result<#krate::Reply<#value>> {
                self.steadfast.command(#operation, #key)#of_command.owner(#owner)#input #run.await
            }
        }
    }

    /// A query in plain Rust.
    fn query(&self, handler: &Handler) -> TokenStream {
        let krate = self.krate;
        let Handler {
            docs,
            cfgs,
            vis,
            name,
            value,
            ..
        } = handler;
        let owner = ours("owner");
        let who = handler.takes_owner().then(|| quote!(#owner: &#krate::Owner,));
        let parameters = handler.inputs().map(Argument::declared);
        let arguments = handler.arguments.iter().map(|argument| match argument.role {
            Role::Owner => &owner,
            _ => &argument.name,
        });
        let callee = self.callee(handler);
        let answered = quote_spanned!(handler.returned=> #krate::service::answered);
        quote! {
            #(#cfgs)*
            #(#docs)*
            #vis async fn #name(&self, #who #(#parameters),*) -> #krate::Result<#value> {
                #answered(#callee(&self.service, self.steadfast.pool(), #(#arguments),*).await)
            }
        }
    }

    /// All that has a route, on a router.
    fn routes(&self) -> Option<TokenStream> {
        let Self { krate, vis, .. } = self;
        let routed: Vec<_> = self
            .service
            .handlers
            .iter()
            .filter(|handler| handler.is_over_http())
            .collect();
        let [router, state] = ["router", "State"].map(ours);
        let mounted = routed.iter().map(|handler| {
            let cfgs = &handler.cfgs;
            let route = self.route(handler);
            quote!(#(#cfgs)* let #router = #router #route;)
        });
        (!routed.is_empty() && cfg!(any(feature = "axum", test))).then(|| {
            quote! {
                /// The routes of the service, each command with its key and each query without.
                #vis fn routes<#state: Clone + Send + Sync + 'static>(&self) -> #krate::service::Router<#state>
                where
                    Self: 'static,
                {
                    let #router = #krate::service::Router::new();
                    #(#mounted)*
                    #router
                }
            }
        })
    }

    fn route(&self, handler: &Handler) -> Option<TokenStream> {
        let krate = self.krate;
        let route = handler.options.route.as_ref()?;
        let (path, span) = (LitStr::new(&route.path, route.span), handler.name.span());
        let [service, tx, sf, call, answer] = ["service", "tx", "sf", "call", "answer"].map(ours);
        let arguments = handler
            .arguments
            .iter()
            .map(|argument| argument.of_call(handler, &call, krate));
        let (callee, made) = (self.callee(handler), self.answer(handler, &answer));
        let failed = quote_spanned!(handler.returned=> .map_err(#krate::service::failed));
        let Options {
            operation,
            of_command,
            of_layer,
            authorize,
            ..
        } = &handler.options;
        let authorize = authorize
            .as_ref()
            .map(|check| quote_spanned!(check.span()=> .authorize(#check)));
        Some(match handler.kind {
            Kind::Command => {
                let method = route.filter(krate);
                quote_spanned! {span=>
                    .route(#path, #krate::service::command(
                        #method,
                        self.steadfast.idempotent().operation(#operation)#of_command #of_layer #authorize,
                        &self.service,
                        |#service, mut #tx, #call| async move {
                            let #answer = #callee(&#service, &mut #tx, #(#arguments),*).await #failed?;
                            #made
                        },
                    ))
                }
            }
            Kind::Query => {
                let layer = authorize.map(|authorize| quote!(.route_layer(self.steadfast.idempotent()#authorize)));
                quote_spanned! {span=>
                    .route(#path, #krate::service::query(&self.steadfast, &self.service, |#service, #sf, #call| async move {
                        let #answer = #callee(&#service, #sf.pool(), #(#arguments),*).await #failed?;
                        #made
                    })#layer)
                }
            }
        })
    }

    /// `Answer::new(201, &answer)`, with what belongs to it.
    fn answer(&self, handler: &Handler, answer: &Ident) -> TokenStream {
        let krate = self.krate;
        let is_empty = matches!(&handler.value, Type::Tuple(tuple) if tuple.elems.is_empty());
        let status = match &handler.options.status {
            Some(status) => status.to_token_stream(),
            None if is_empty => quote!(204),
            None => quote!(200),
        };
        let made = quote!(#krate::service::Answer::new(#status, &#answer));
        if let Some(location) = &handler.options.location {
            let (format, fields) = location_format(location);
            let span = location.span();
            let fields = fields
                .iter()
                .map(|field| quote_spanned!(span=> #krate::service::segment(&#answer.#field)));
            return quote_spanned!(span=> ::core::result::Result::Ok(#made?.location(::std::format!(#format, #(#fields),*))));
        }
        match handler.options.max_age {
            Some(max_age) => {
                let max_age = written(max_age);
                quote!(::core::result::Result::Ok(#made?.max_age(#max_age)))
            }
            None => made,
        }
    }

    /// The handler as a path: by the trait where the block stands in one.
    fn callee(&self, handler: &Handler) -> TokenStream {
        let (self_ty, name) = (&self.service.block.self_ty, &handler.name);
        match self.service.is_for_two() {
            false => quote!(<#self_ty>::#name),
            true => {
                let handlers = self.service.handlers_trait();
                let (_, ty_generics, _) = self.service.block.generics.split_for_impl();
                quote!(<#self_ty as #handlers #ty_generics>::#name)
            }
        }
    }
}

impl Argument {
    fn declared(&self) -> TokenStream {
        let (name, ty) = (&self.name, &self.ty);
        quote!(#name: #ty)
    }
}

/// What the fingerprint is taken of: all that the caller gives.
fn input(handler: &Handler) -> Option<TokenStream> {
    let names: Vec<_> = handler.inputs().map(|argument| &argument.name).collect();
    match names.as_slice() {
        [] => None,
        [name] => Some(quote!(.input(&#name))),
        names => Some(quote!(.input(&(#(&#names),*)))),
    }
}

/// `/orders/{id}` as a format and the fields it takes.
fn location_format(location: &LitStr) -> (LitStr, Vec<Ident>) {
    let (mut format, mut fields) = (String::new(), Vec::new());
    for (index, segment) in location.value().split('/').enumerate() {
        if index > 0 {
            format.push('/');
        }
        let name = segment.strip_prefix('{').and_then(|segment| segment.strip_suffix('}'));
        match name.and_then(|name| syn::parse_str::<Ident>(name).ok()) {
            Some(field) => {
                format.push_str("{}");
                fields.push(Ident::new(&field.to_string(), location.span()));
            }
            None => format.push_str(&segment.replace('{', "{{").replace('}', "}}")),
        }
    }
    (LitStr::new(&format, location.span()), fields)
}

/// A name of ours, which no name of the user can be mistaken for.
fn ours(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// The parameters of the block as arguments, each with its comma.
fn arguments(generics: &Generics) -> TokenStream {
    let arguments = generics.params.iter().map(|parameter| match parameter {
        GenericParam::Lifetime(parameter) => parameter.lifetime.to_token_stream(),
        GenericParam::Type(parameter) => parameter.ident.to_token_stream(),
        GenericParam::Const(parameter) => parameter.ident.to_token_stream(),
    });
    quote!(#(#arguments,)*)
}

/// The face can be seen by whoever can see one of its methods.
fn widest<'v>(all: impl Iterator<Item = &'v Visibility>) -> Visibility {
    let width = |vis: &&Visibility| match vis {
        Visibility::Public(_) => 3,
        Visibility::Restricted(vis) if vis.path.is_ident("crate") => 2,
        Visibility::Restricted(_) => 1,
        Visibility::Inherited => 0,
    };
    all.max_by_key(width).cloned().unwrap_or(Visibility::Inherited)
}
