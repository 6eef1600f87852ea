//! What the macro writes: what a person would have written, and nothing that only a macro could.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Attribute, FnArg, GenericParam, Generics, Ident, ImplItem, ImplItemFn, Pat, Path, Visibility, parse_quote};

use super::elsewhere::attributes;
use super::handler::{Argument, Handler, Role};
use super::options::{Kind, Options};
use super::reaction::{Of, Reaction, Works, ticks_of};
use super::schedule::Scheduled;
use super::{Service, speaks_of_db};
use crate::database::Database;
use crate::value::written;

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

    /// `Db` as the first handler writes it, or the first reaction.
    fn db(&self) -> Ident {
        let of_reactions = self.reactions.iter().map(|reaction| &reaction.db);
        let mut all = self
            .handlers
            .first()
            .map(|handler| &handler.db)
            .into_iter()
            .chain(of_reactions);
        let declared = all.find_map(|db| db.clone());
        declared.unwrap_or_else(|| format_ident!("Db"))
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
                // Its callers see the face's method, which has these.
                let is_for_callers = |path: &Path| path.is_ident("deprecated") || path.is_ident("must_use");
                method.attrs.retain(|attribute| !is_for_callers(attribute.path()));
                declarations.push(declaration(method));
            }
        }
        let handlers = self.handlers_trait();
        let (attrs, items, self_ty) = (&block.attrs, &block.items, &block.self_ty);
        let allows = attributes(attrs, "allow");
        let (impl_generics, ty_generics, where_clause) = block.generics.split_for_impl();
        quote! {
            #[allow(dead_code, clippy::too_many_arguments)]
            #(#allows)*
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
    let [cfgs, allows] = ["cfg", "allow"].map(|name| attributes(&method.attrs, name));
    let mut signature = method.sig.clone();
    for input in &mut signature.inputs {
        if let FnArg::Typed(argument) = input {
            *argument.pat = Pat::Verbatim(quote!(_));
        }
    }
    quote!(#(#cfgs)* #(#allows)* #signature;)
}

/// `OrdersService<Db>`, by which handlers are called and mounted.
struct Face<'s> {
    service: &'s Service,
    krate: &'s Path,
    name: Ident,
    vis: Visibility,
    /// `Db`, as the handlers have it: where there is none, it is said at theirs.
    db: Ident,
    cfgs: Vec<Attribute>,
    /// What the user does not want to be warned of in the whole block.
    allows: Vec<Attribute>,
}

impl<'s> Face<'s> {
    fn new(service: &'s Service) -> Self {
        Self {
            service,
            krate: &service.krate,
            name: format_ident!("{}Service", service.name),
            vis: widest(service),
            db: service.db(),
            cfgs: attributes(&service.block.attrs, "cfg"),
            allows: attributes(&service.block.attrs, "allow"),
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
            ..
        } = self;
        let self_ty = &service.block.self_ty;
        let generics = &service.block.generics;
        let (impl_generics, _, where_clause) = generics.split_for_impl();
        let mut with_db = generics.clone();
        with_db.params.push(parse_quote!(Db: #krate::Database));
        let (db_impl_generics, db_generics, _) = with_db.split_for_impl();
        let its = match (service.handlers.is_empty(), service.reactions.is_empty()) {
            (_, true) => "commands and queries, to be called and to be mounted",
            (false, false) => "commands and queries, to be called and to be mounted, and its reactions to events",
            (true, false) => "reactions to events",
        };
        let what = format!("[`{}`] on a database: its {its}.", service.name);
        let on = self.on();
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
                #on
            }
        }
    }

    /// How a service comes to its face, and its reactions to the database.
    fn on(&self) -> TokenStream {
        let Self {
            service,
            krate,
            name,
            vis,
            ..
        } = self;
        let arguments = arguments(&service.block.generics);
        let label = service.name.to_string();
        let operations = service.handlers.iter().map(|handler| {
            let (cfgs, operation) = (&handler.cfgs, &handler.options.operation);
            quote!(#(#cfgs)* #operation)
        });
        let has_operations = !service.handlers.is_empty() || service.reactions.is_empty();
        let register = has_operations.then(|| {
            quote! {
                let service = ::core::concat!(::core::module_path!(), "::", #label);
                #krate::service::register(steadfast, service, &[#(#operations),*]);
            }
        });
        if service.reactions.is_empty() {
            return quote! {
                /// Puts the service on a database.
                #vis fn on<Db: #krate::Database>(self, steadfast: &#krate::Steadfast<Db>) -> #name<#arguments Db> {
                    #register
                    #name {
                        service: ::std::sync::Arc::new(self),
                        steadfast: ::core::clone::Clone::clone(steadfast),
                    }
                }
            };
        }
        quote! {
            /// Puts the service on a database, and registers its reactions there.
            #vis fn on<Db: #krate::Database>(self, steadfast: &#krate::Steadfast<Db>) -> #name<#arguments Db>
            where
                Self: #krate::service::React<Db>,
            {
                #register
                let service = ::std::sync::Arc::new(self);
                #krate::service::React::react(&service, steadfast);
                #name {
                    service,
                    steadfast: ::core::clone::Clone::clone(steadfast),
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
            db,
            cfgs,
            allows,
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
        let has_methods = !service.handlers.is_empty() || service.reactions.is_empty();
        let face = has_methods.then(|| {
            quote! {
                #(#allows)*
                impl #impl_generics #name<#arguments #db> #where_clause {
                    #(#methods)*
                    #routes
                }
            }
        });
        let reactions = (!service.reactions.is_empty()).then(|| self.reactions());
        quote! {
            #(#cfgs)*
            const _: () = {
                #alias
                #handlers
                #face
                #reactions
            };
        }
    }

    /// Each warning at its place, unless its method allows it.
    fn warnings(&self) -> TokenStream {
        let of_block = &self.allows;
        let of_one = |handler: &Handler| -> TokenStream {
            let Handler {
                cfgs, allows, options, ..
            } = handler;
            let warnings = options.warnings.iter();
            warnings
                .map(|warning| quote!(#(#cfgs)* #(#of_block)* #(#allows)* const _: () = #warning;))
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
        let Self { krate, db, .. } = self;
        let Handler {
            docs,
            cfgs,
            allows,
            vis,
            name,
            value,
            ..
        } = handler;
        let Options {
            operation, of_command, ..
        } = &handler.options;
        let [owner, key] = ["owner", "key"].map(ours);
        let tx = ours_at("tx", handler.first);
        let parameters = handler.inputs().map(Argument::declared);
        let input = input(handler);
        let arguments = handler.arguments.iter().map(|argument| match argument.role {
            Role::Owner => owner.to_token_stream(),
            _ => argument.of_caller(),
        });
        let callee = self.callee(handler);
        let into = into_failure(handler.returned);
        let service = of_face("service");
        // What is wrong with the handler's future is said at its name.
        let command = ours_at("command", name.span());
        let run = quote_spanned! {name.span()=>
            #command.run(async |#tx: &mut #krate::Tx<#db>| {
                #callee(&#service, #tx, #(#arguments),*).await #into
            }).await
        };
        quote! {
            #(#cfgs)*
            #(#allows)*
            #(#docs)*
            #vis async fn #name(&self, #owner: &#krate::Owner, #key: &str, #(#parameters),*) -> #krate::Result<#krate::Reply<#value>> {
                let #command = self.steadfast.command(#operation, #key)#of_command.owner(#owner)#input;
                #run
            }
        }
    }

    /// A query in plain Rust.
    fn query(&self, handler: &Handler) -> TokenStream {
        let krate = self.krate;
        let Handler {
            docs,
            cfgs,
            allows,
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
        let steadfast = of_face("steadfast");
        let pool = quote_spanned!(handler.first=> #steadfast.pool());
        quote! {
            #(#cfgs)*
            #(#allows)*
            #(#docs)*
            #vis async fn #name(&self, #who #(#parameters),*) -> #krate::Result<#value> {
                #answered(#callee(&self.service, #pool, #(#arguments),*).await)
            }
        }
    }

    /// How the reactions are registered on one database.
    fn reactions(&self) -> TokenStream {
        let Self {
            service,
            krate,
            db,
            allows,
            ..
        } = self;
        let self_ty = &service.block.self_ty;
        let mut generics = service.block.generics.clone();
        if !generics.params.is_empty() {
            // Reactions stay registered; what borrows cannot.
            generics
                .make_where_clause()
                .predicates
                .push(parse_quote!(#self_ty: 'static));
        }
        let (impl_generics, _, where_clause) = generics.split_for_impl();
        let [its_service, steadfast] = ["service", "steadfast"].map(ours);
        let reactions = service.reactions.iter().map(|reaction| self.reaction(reaction));
        let may_be_none = service.reactions.iter().all(|reaction| !reaction.cfgs.is_empty());
        let unused = may_be_none.then(|| quote!(let _ = (#its_service, #steadfast);));
        quote! {
            #(#allows)*
            impl #impl_generics #krate::service::React<#db> for #self_ty #where_clause {
                fn react(#its_service: &::std::sync::Arc<Self>, #steadfast: &#krate::Steadfast<#db>) {
                    #unused
                    #(#reactions)*
                }
            }
        }
    }

    fn reaction(&self, reaction: &Reaction) -> TokenStream {
        let Reaction {
            of,
            event,
            target,
            options,
            name,
            cfgs,
            shape,
            ..
        } = reaction;
        let [service, steadfast] = ["service", "steadfast"].map(ours);
        let handed = ours_at("event", shape.event);
        let declared = match of {
            Of::Event => quote!(reaction::<#event>(#target)),
            Of::Job | Of::Tick => quote!(handler::<#event>()),
        };
        let lent = shape.is_lent.then(|| quote_spanned!(shape.event=> &));
        let (run, given) = match shape.works {
            Works::InTransaction => ("run_boxed", "tx"),
            Works::Outside => ("run_outside_boxed", "cx"),
        };
        let given = ours_at(given, shape.first);
        // What is wrong with the handler's future is said at its name.
        let run = Ident::new(run, name.span());
        let callee = self.path_of(name, reaction.is_of_one_database);
        let into = into_failure(shape.returned);
        let allow = reaction.is_deprecated.then(|| quote!(#[allow(deprecated)]));
        // A tick says nothing but that it has come.
        let (handed, passed) = match of {
            Of::Tick => (quote!(_), None),
            Of::Event | Of::Job => (quote!(#handed), Some(quote!(, #lent #handed))),
        };
        let future = quote_spanned! {name.span()=>
            ::std::boxed::Box::pin(async move { #callee(&#service, #given #passed).await #into })
        };
        let (ticks, scheduled) = (self.ticks(reaction), self.scheduled(reaction));
        quote! {
            #ticks
            #scheduled
            #(#cfgs)*
            #allow
            #steadfast.#declared #options .#run({
                let #service = ::core::clone::Clone::clone(#service);
                move |#given, #handed| {
                    let #service = ::core::clone::Clone::clone(&#service);
                    #future
                }
            });
        }
    }

    /// The job that is made of the ticks of a method: it has a name, and says nothing.
    fn ticks(&self, reaction: &Reaction) -> Option<TokenStream> {
        let Reaction { name, cfgs, .. } = reaction;
        let krate = self.krate;
        let stored = reaction
            .schedule
            .as_ref()
            .filter(|_| reaction.of == Of::Tick)
            .map(|schedule| &schedule.name)?;
        let ticks = ticks_of(name);
        Some(quote! {
            #(#cfgs)*
            struct #ticks;
            #(#cfgs)*
            impl #krate::service::Ticked for #ticks {
                const NAME: &'static str = #stored;
            }
        })
    }

    /// How the schedule of a method is declared.
    fn scheduled(&self, reaction: &Reaction) -> Option<TokenStream> {
        let Reaction { event, cfgs, .. } = reaction;
        let Scheduled { name, calls } = reaction.schedule.as_ref()?;
        let steadfast = ours("steadfast");
        // What cannot be made of nothing is said at its type.
        let job = quote_spanned!(event.span()=> <#event as ::core::default::Default>::default());
        Some(quote! {
            #(#cfgs)*
            #steadfast.schedule(#name) #calls .job(&#job);
        })
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
        let (router, state) = (ours("router"), self.state());
        let mounted = routed.iter().map(|handler| {
            let cfgs = &handler.cfgs;
            let route = self.route(handler);
            let allow = handler.is_deprecated.then(|| quote!(#[allow(deprecated)]));
            quote!(#(#cfgs)* #allow let #router = #router #route;)
        });
        (!routed.is_empty() && cfg!(any(feature = "axum", test))).then(|| {
            quote! {
                /// The routes of the service, each command with its key and each query without.
                #vis fn routes<#state: ::core::clone::Clone + ::core::marker::Send + ::core::marker::Sync + 'static>(&self) -> #krate::service::Router<#state>
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

    /// The router's parameter: types are not hygienic, so it is none of the block's.
    fn state(&self) -> Ident {
        let is_taken = |name: &Ident| {
            self.service
                .block
                .generics
                .type_params()
                .any(|parameter| parameter.ident == *name)
        };
        let mut name = format_ident!("State");
        while is_taken(&name) {
            name = format_ident!("{name}OfRouter");
        }
        name
    }

    fn route(&self, handler: &Handler) -> Option<TokenStream> {
        let krate = self.krate;
        let route = handler.options.route.as_ref()?;
        let (path, span) = (route.mounted_path(), handler.name.span());
        let [its_service, its_steadfast] = ["service", "steadfast"].map(of_face);
        let [service, call] = ["service", "call"].map(ours);
        let answer = ours_at("answer", handler.returned);
        let [tx, sf] = ["tx", "sf"].map(|name| ours_at(name, handler.first));
        let (lent, pool) = (
            quote_spanned!(handler.first=> &mut #tx),
            quote_spanned!(handler.first=> #sf.pool()),
        );
        // Nothing is not bound to a name, which some lints do not like.
        let ended = match handler.is_silent() {
            true => quote!(()),
            false => answer.to_token_stream(),
        };
        let arguments = handler
            .arguments
            .iter()
            .map(|argument| argument.of_call(handler, &call, krate));
        let (callee, made) = (self.callee(handler), self.answer(handler, &ended));
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
                        #its_steadfast.idempotent().operation(#operation)#of_command #of_layer #authorize,
                        &#its_service,
                        |#service, mut #tx, #call| async move {
                            let #ended = #callee(&#service, #lent, #(#arguments),*).await #failed?;
                            #made
                        },
                    ))
                }
            }
            Kind::Query => {
                let layer = authorize.map(|authorize| quote!(.route_layer(self.steadfast.idempotent()#authorize)));
                quote_spanned! {span=>
                    .route(#path, #krate::service::query(&#its_steadfast, &#its_service, |#service, #sf, #call| async move {
                        let #ended = #callee(&#service, #pool, #(#arguments),*).await #failed?;
                        #made
                    })#layer)
                }
            }
        })
    }

    /// `Answer::new(201, &answer)`, with what belongs to it.
    fn answer(&self, handler: &Handler, answer: &TokenStream) -> TokenStream {
        let krate = self.krate;
        let status = match &handler.options.status {
            Some(status) => status.to_token_stream(),
            None if handler.is_silent() => quote!(204),
            None => quote!(200),
        };
        let made = quote_spanned!(handler.returned=> #krate::service::Answer::new(#status, &#answer));
        if let Some(location) = &handler.options.location {
            let (format, span) = (&location.format, location.format.span());
            let fields = location
                .fields
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

    fn callee(&self, handler: &Handler) -> TokenStream {
        self.path_of(&handler.name, true)
    }

    /// A method as a path: by the trait where it is there once for each of two databases.
    fn path_of(&self, name: &Ident, is_of_one_database: bool) -> TokenStream {
        let self_ty = &self.service.block.self_ty;
        match self.service.is_for_two() && is_of_one_database {
            false => quote_spanned!(name.span()=> <#self_ty>::#name),
            true => {
                let handlers = self.service.handlers_trait();
                let (_, ty_generics, _) = self.service.block.generics.split_for_impl();
                quote_spanned!(name.span()=> <#self_ty as #handlers #ty_generics>::#name)
            }
        }
    }
}

/// What a handler failed with, as we take it. Written by a macro, and seen as such: clippy would else remove it where the error
/// is a `Failure`.
fn into_failure(returned: Span) -> TokenStream {
    let at_returned = Span::call_site().located_at(returned);
    quote_spanned!(at_returned=> .map_err(::core::convert::Into::into))
}

impl Argument {
    fn declared(&self) -> TokenStream {
        let (name, ty) = (&self.name, &self.ty);
        quote!(#name: #ty)
    }
}

/// What the fingerprint is taken of: all that the caller gives.
fn input(handler: &Handler) -> Option<TokenStream> {
    // What cannot be written as JSON is said at its type.
    let given: Vec<_> = handler
        .inputs()
        .map(|Argument { name, ty, .. }| quote_spanned!(ty.span()=> &#name))
        .collect();
    match given.as_slice() {
        [] => None,
        [given] => Some(quote!(.input(#given))),
        given => Some(quote!(.input(&(#(#given),*)))),
    }
}

/// A name of ours, which no name of the user can be mistaken for.
fn ours(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// The same, so that what is wrong with it is said at a place of the user's.
fn ours_at(name: &str, span: Span) -> Ident {
    Ident::new(name, Span::mixed_site().located_at(span))
}

/// A field of the face. `self` is hygienic, so it does not take the span of a name that a `macro_rules!` may have been given.
fn of_face(field: &str) -> TokenStream {
    let field = format_ident!("{field}");
    quote!(self.#field)
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
fn widest(service: &Service) -> Visibility {
    let width = |vis: &&Visibility| match vis {
        Visibility::Public(_) => 3,
        Visibility::Restricted(vis) if vis.path.is_ident("crate") => 2,
        Visibility::Restricted(_) => 1,
        Visibility::Inherited => 0,
    };
    let of_reactions = service.reactions.iter().map(|reaction| &reaction.vis);
    let all = service.handlers.iter().map(|handler| &handler.vis).chain(of_reactions);
    all.max_by_key(width).cloned().unwrap_or(Visibility::Inherited)
}
