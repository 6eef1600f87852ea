//! What is written for a block, and what is said of a wrong one, on tokens. Warnings, and what only the compiler can find
//! in what was written, are in `crates/steadfast/tests/ui`.

use super::*;
use crate::snapshot::{assert_snapshot, said};

const ALL: Build = Build {
    databases: [
        Database {
            is_there: true,
            ..SQLITE
        },
        Database {
            is_there: true,
            ..POSTGRES
        },
    ],
    has_axum: true,
    has_schedule: true,
};

fn expanded(build: Build, arguments: &str, block: &str) -> (TokenStream, Vec<(String, String)>) {
    let parse = |text: &str| text.parse().expect("tokens");
    let (written, mistakes) = expand_for(build, parse(arguments), parse(block));
    (written, said(mistakes))
}

/// What is said of a method with this attribute and these arguments and answer, and the text it points at.
fn said_of(method: &str) -> Vec<(String, String)> {
    expanded(ALL, "db = Sqlite", &format!("impl Orders {{ {method} }}")).1
}

const SMALL: &str = r#"
impl Orders {
    /// Places an order.
    #[command("orders.place", route = "POST /orders", status = 201, location = "/orders/{id}", retention = "48h")]
    pub async fn place(&self, tx: &mut Tx<Db>, owner: &Owner, order: PlaceOrder) -> Result<Order, OrderError> {
        self.check(&order)?;
        Ok(insert(tx.db(), owner, order).await?)
    }

    #[query("orders.show", route = "GET /orders/{id}", max_age = "60s")]
    pub async fn show(&self, db: &Pool<Db>, id: i64) -> Result<Order, OrderError> {
        Ok(select(db, id).await?)
    }

    fn check(&self, order: &PlaceOrder) -> Result<(), OrderError> {
        order.is_possible()
    }
}
"#;

fn assert_written(name: &str, arguments: &str, block: &str) {
    let (written, mistakes) = expanded(ALL, arguments, block);
    assert_eq!(mistakes, []);
    assert_snapshot(name, &written);
}

#[test]
fn a_small_service_on_one_database_is_written_as_a_person_would() {
    assert_written("one_database", "db = Sqlite", SMALL);
}

#[test]
fn a_small_service_on_two_databases_has_its_handlers_twice_and_the_rest_once() {
    assert_written("two_databases", "db = [Sqlite, Postgres]", SMALL);
}

#[test]
fn a_handler_of_the_wrong_shape_is_told_why_and_what_to_write() {
    let tx = "tx: &mut Tx<Db>";
    for (method, points_at, says) in [
        (
            format!("#[command] async fn a(&self, {tx}) -> Result<(), E> {{}}"),
            "#[command]",
            "SF010: a command has a name that outlives the method's, because keys belong to it; write `#[command(\"orders.name\", ..)]`",
        ),
        (
            format!("#[command(\"o\")] fn a(&self, {tx}) -> Result<(), E> {{}}"),
            "fn",
            "SF010: `a` waits for the database, so it is async; write `async fn`",
        ),
        (
            format!("#[command(\"o\")] async fn a({tx}) -> Result<(), E> {{}}"),
            "tx: &mut Tx<Db>",
            "SF010: `a` has its dependencies from the service, which others use too; write `&self` first",
        ),
        (
            format!("#[command(\"o\")] async fn a(&mut self, {tx}) -> Result<(), E> {{}}"),
            "&mut self",
            "SF010: `a` has its dependencies from the service, which others use too; write `&self` first",
        ),
        (
            "#[command(\"o\")] async fn a(&self, db: &Pool<Db>) -> Result<(), E> {}".to_owned(),
            "db: &Pool<Db>",
            "SF010: what `a` writes commits with its key, so its first argument is the transaction; write `tx: &mut Tx<Db>` after `&self`",
        ),
        (
            format!("#[query(\"o\")] async fn a(&self, {tx}) -> Result<(), E> {{}}"),
            "tx: &mut Tx<Db>",
            "SF010: `a` reads outside a transaction, on the pool; write `db: &Pool<Db>` after `&self`",
        ),
        (
            "#[query(\"o\")] async fn a(&self) -> Result<(), E> {}".to_owned(),
            "(&self)",
            "SF010: `a` reads outside a transaction, on the pool; write `db: &Pool<Db>` after `&self`",
        ),
        (
            format!("#[command(\"o\")] async fn a<T>(&self, {tx}, t: T) -> Result<(), E> {{}}"),
            "<T>",
            "SF010: nobody could say what `a` is generic over, since it is called by name; write concrete types, or put the \
             parameter on the `impl`",
        ),
        (
            format!("#[command(\"o\")] async fn a(&self, {tx}, t: impl T) -> Result<(), E> {{}}"),
            "impl T",
            "SF010: an argument of a handler is read from JSON into a type that must be known; write a concrete one",
        ),
        (
            format!("#[command(\"o\")] async fn a(&self, {tx}, (b, c): T) -> Result<(), E> {{}}"),
            "(b, c)",
            "SF010: an argument of a handler has a plain name, by which it is given and found; write `name: Type`",
        ),
        (
            format!("#[command(\"o\")] #[query(\"p\")] async fn a(&self, {tx}) -> Result<(), E> {{}}"),
            "#[query(\"p\")]",
            "SF010: a method is one command, one query, one reaction or one job; remove this attribute",
        ),
        (
            format!("#[command(\"o\")] async fn a(&self, {tx}, b: &Owner, c: &Owner) -> Result<(), E> {{}}"),
            "c",
            "SF010: `b` is the owner already; remove `c`",
        ),
        (
            format!("#[command(\"o\")] async fn a(&self, {tx}, b: B, c: C) -> Result<(), E> {{}}"),
            "c",
            "SF010: `b` is the input already, and there is one; put `b` and `c` into one struct",
        ),
        (
            format!(
                "#[command(\"o\", route = \"PUT /{{id}}\")] async fn a(&self, {tx}, id: I, b: B, c: C) -> Result<(), E> {{}}"
            ),
            "c",
            "SF010: `b` is the body already, and `c` is no parameter of \"/{id}\"; put both into one struct, or `{c}` into the path",
        ),
        (
            format!("#[command(\"o\", route = \"PUT /{{id}}\")] async fn a(&self, {tx}, b: B) -> Result<(), E> {{}}"),
            "\"PUT /{id}\"",
            "SF010: nobody takes `{id}` of this route; add an argument `id: ..`, or remove it from the path",
        ),
        (
            format!("#[command(\"o\", status = 201)] async fn a(&self, {tx}) -> Result<(), E> {{}}"),
            "status",
            "SF010: `status` is about HTTP, and this command has no route; add `route = ..` or remove it",
        ),
        (
            format!("#[command(\"o\")] async fn a(&self, {tx}) {{}}"),
            "a",
            "SF001: whether `a` is committed is decided by `Ok` or `Err`, and it does not return a `Result`; write `-> Result<T, E>`",
        ),
        (
            "#[query(\"o\")] async fn a(&self, db: &Pool<Db>) -> u64 {}".to_owned(),
            "u64",
            "SF001: `a` asks a database, which can fail, and does not return a `Result`; write `-> Result<T, E>`",
        ),
    ] {
        assert_eq!(said_of(&method), [(says.to_owned(), points_at.to_owned())], "{method}");
    }
}

/// How often some text is in what is written for a method, without its spaces.
fn written_for(method: &str, text: &str) -> usize {
    let (written, mistakes) = expanded(ALL, "db = Sqlite", &format!("impl Orders {{ {method} }}"));
    assert_eq!(mistakes, [], "{method}");
    written.to_string().replace(' ', "").matches(text).count()
}

#[test]
fn each_option_is_said_to_the_doors_that_have_it() {
    for (option, call, doors) in [
        (
            "retention = \"1s\"",
            ".retention(::core::time::Duration::from_millis(1000u64))",
            2,
        ),
        (
            "time_limit = \"2s\"",
            ".time_limit(::core::time::Duration::from_millis(2000u64))",
            2,
        ),
        ("answer_limit = 7", ".answer_limit(7)", 2),
        ("fingerprint = policy()", ".fingerprint(policy())", 2),
        ("scope = tenant", ".scope(::steadfast::Scope::Tenant)", 2),
        ("conflict = wait", ".conflict(::steadfast::Conflict::Wait)", 2),
        (
            "store_failures = definitive",
            ".store_failures(::steadfast::StoreFailures::Definitive)",
            2,
        ),
        ("body_limit = 7", ".body_limit(7)", 1),
        ("key_field = \"id\"", ".key_field(\"id\")", 1),
        ("key = optional", ".key(::steadfast::KeyRequirement::Optional)", 1),
        (
            "mismatch = 409",
            ".mismatch(::steadfast::service::StatusCode::CONFLICT)",
            1,
        ),
        ("authorize = may", ".authorize(may)", 1),
    ] {
        let attribute = format!("#[command(\"o\", route = \"POST /o\", {option})]");
        let method = format!("{attribute} async fn a(&self, tx: &mut Tx<Db>, o: O) -> Result<u8, E> {{}}");
        assert_eq!(written_for(&method, call), doors, "{option}");
    }
    let query =
        "#[query(\"o\", route = \"GET /o\", authorize = may)] async fn a(&self, db: &Pool<Db>) -> Result<u8, E> {}";
    assert_eq!(
        written_for(query, ".route_layer(self.steadfast.idempotent().authorize(may))"),
        1
    );
}

#[test]
fn the_fingerprint_is_of_all_arguments_and_the_face_as_visible_as_its_widest_method() {
    let handlers = "#[command(\"o\", route = \"POST /{id}\")] pub(crate) async fn a(&self, tx: &mut Tx<Db>, id: u8, o: &O) -> Result<(), E> {}
        #[cfg(x)] #[query(\"p\", route = \"GET /p\")] async fn b(&self, db: &Pool<Db>, page: Page) -> Result<u8, E> {}";
    assert_eq!(written_for(handlers, ".input(&(&id,&o))"), 1);
    assert_eq!(written_for(handlers, "call.query::<Page>()?"), 1);
    assert_eq!(written_for(handlers, "Answer::new(204,&())"), 1);
    assert_eq!(written_for(handlers, "pub(crate)structOrdersService"), 1);
    assert_eq!(written_for(handlers, "&[\"o\",#[cfg(x)]\"p\"]"), 1);
}

/// What compiled, and could not have worked.
#[test]
fn what_could_never_be_called_is_told_before_it_is_tried() {
    let (tx, db) = ("tx: &mut Tx<Db>", "db: &Pool<Db>");
    for (method, points_at, says) in [
        (
            format!("#[command(\"o\")] async fn on(&self, {tx}) -> Result<(), E> {{}}"),
            "on",
            "SF010: `on` is what the face calls its own; give this command another name",
        ),
        (
            format!("#[query(\"o\")] async fn routes(&self, {db}) -> Result<(), E> {{}}"),
            "routes",
            "SF010: `routes` is what the face calls its own; give this query another name",
        ),
        (
            format!("#[command(\"o\")] async unsafe fn a(&self, {tx}) -> Result<(), E> {{}}"),
            "unsafe",
            "SF010: nobody could keep what `a` asks of its callers, since a request calls it; write `async fn`",
        ),
        (
            format!("#[command(\"o\")] async fn a(&self, {tx}) -> Result<(), E> where T: Copy {{}}"),
            "where T: Copy",
            "SF010: who calls or mounts the service has to meet what `a` asks for, so it is said there; put this on the `impl`",
        ),
        (
            format!("#[command(\"o\")] async fn a(&self, {tx}, to: &mut String) -> Result<(), E> {{}}"),
            "&mut String",
            "SF010: a handler may run again, and has to find its arguments as they were; write `Type` or `&Type`",
        ),
        (
            format!("#[command(\"o\")] async fn a(&self, {tx}, owner: Owner) -> Result<(), E> {{}}"),
            "Owner",
            "SF010: the owner is lent to a handler, and is no part of its input; write `&Owner`",
        ),
        (
            format!("#[command(\"o\")] async fn a(&self, {tx}, #[cfg(x)] to: u8) -> Result<(), E> {{}}"),
            "#[cfg(x)]",
            "SF010: whether an argument is there decides what the handler is; write two methods, and put the `#[cfg]` on them",
        ),
        (
            format!("#[command(\"o\")] async fn a(&self, {tx}) -> Result<impl Serialize, E> {{}}"),
            "impl Serialize",
            "SF010: an answer is written as JSON and read again, so its type must be known; write a concrete one",
        ),
        (
            format!(
                "#[query(\"o\", route = \"GET /o\")] async fn a(&self, {db}, page: Option<u32>) -> Result<(), E> {{}}"
            ),
            "Option<u32>",
            "SF010: a query string is names with their values, and `page` has none for it; put it into a struct, or `{page}` into the path",
        ),
        (
            format!("#[query(\"o\", route = \"GET /o\")] async fn a(&self, {db}, tags: &[Tag]) -> Result<(), E> {{}}"),
            "&[Tag]",
            "SF010: a query string is names with their values, and `tags` has none for it; put it into a struct, or `{tags}` into the path",
        ),
        (
            format!(
                "#[command(\"o\", route = \"POST /o\", accept = form)] async fn a(&self, {tx}) -> Result<(), E> {{}}"
            ),
            "form",
            "SF010: `accept` says what a body may be, and this command takes none; add an argument for it, or remove `accept`",
        ),
        (
            format!(
                "#[command(\"o\", route = \"POST /o\", accept = form, key_field = \"id\")] async fn a(&self, {tx}, o: O) -> Result<(), E> {{}}"
            ),
            "key_field",
            "SF010: the key is a member of a JSON body, and this command takes only forms; remove `key_field`, or write `accept = [json, form]`",
        ),
        (
            format!("#[command(\"\")] async fn a(&self, {tx}) -> Result<(), E> {{}}"),
            "\"\"",
            "SF010: no key could belong to this name; write 1 to 255 bytes without control characters, as in \"orders.place\"",
        ),
        (
            format!("#[command(\"o\" retention = \"1h\")] async fn a(&self, {tx}) -> Result<(), E> {{}}"),
            "retention",
            "SF011: an option ends where the next one begins; write `,` before this",
        ),
        (
            format!(
                "#[query(\"o\", route = \"GET /o\", max_age = \"1500ms\")] async fn a(&self, {db}) -> Result<(), E> {{}}"
            ),
            "\"1500ms\"",
            "SF003: caches count in seconds, and this is not a whole number of them; write \"1s\" or more",
        ),
    ] {
        assert_eq!(said_of(&method), [(says.to_owned(), points_at.to_owned())], "{method}");
    }
}

#[test]
fn two_handlers_are_one_route_or_one_operation_only_if_both_are_compiled() {
    let handler = |cfg: &str, name: &str| {
        format!(
            "{cfg} #[command(\"o\", route = \"POST /o\")] async fn {name}(&self, tx: &mut Tx<Db>) -> Result<(), E> {{}}"
        )
    };
    let said_of_two = |one: &str, other: &str| said_of(&(handler(one, "a") + &handler(other, "b")));
    let both = said_of_two("", "");
    assert!(
        both[0]
            .0
            .starts_with("SF012: another handler of this service is \"o\" already")
    );
    assert_eq!(
        both[1],
        (
            "SF010: a request could be meant for `a` or for `b`, since their routes are one to axum; give it another method or path".to_owned(),
            "\"POST /o\"".to_owned()
        )
    );
    assert_eq!(said_of_two("#[cfg(x)]", "").len(), 2);
    assert_eq!(said_of_two("#[cfg(x)]", "#[cfg(x)]").len(), 2);
    assert_eq!(said_of_two("#[cfg(x)]", "#[cfg(not(x))]"), []);
    assert_eq!(said_of_two("#[cfg_attr(y, cfg(x))]", "#[cfg_attr(y, cfg(not(x)))]"), []);
}

#[test]
fn a_parameter_of_the_block_is_not_called_like_its_database() {
    let said = expanded(ALL, "", "impl<Db> Orders<Db> {}").1;
    let says = "SF010: `Db` is the database that the block is written for; give this parameter another name";
    assert_eq!(said, [(says.to_owned(), "Db".to_owned())]);
}

#[test]
fn an_option_that_is_wrong_is_told_why_and_what_to_write() {
    for (options, points_at, says) in [
        (
            "retention = \"2 days\"",
            "\"2 days\"",
            "SF003: \"2 days\" is not a duration; write a whole number and a unit: 500ms, 30s, 5m, 24h or 7d",
        ),
        (
            "time_limit = \"0s\"",
            "\"0s\"",
            "SF003: \"0s\" is no time at all; write a duration of more than nothing",
        ),
        (
            "retention = \"4000d\"",
            "\"4000d\"",
            "SF003: \"4000d\" is more than ten years; write less, and keep what must stay longer in a table of yours",
        ),
        (
            "time_limit = 30",
            "30",
            "SF003: a duration is text; write \"500ms\", \"30s\", \"5m\", \"24h\" or \"7d\"",
        ),
        (
            "route = \"GET /orders\"",
            "\"GET /orders\"",
            "SF002: GET changes nothing and has no key, so nothing would protect this command; write `POST`, `PUT`, `PATCH` or \
             `DELETE`, or make it a `#[query]`",
        ),
        (
            "retenion = \"24h\"",
            "retenion",
            "SF011: `retenion` is no option of a command; did you mean `retention`?\nknown: route, status, location, scope, \
             retention, conflict, mismatch, key, key_field, accept, store_failures, time_limit, answer_limit, body_limit, authorize, fingerprint",
        ),
        (
            "scope = users",
            "users",
            "SF011: `users` is not known here; write `user`, `tenant` or `global`; did you mean `user`?",
        ),
        (
            "conflict = \"wait\"",
            "\"wait\"",
            "SF011: this is not one of the words that are known here; write `fail` or `wait`",
        ),
        (
            "store_failures = [not_fund]",
            "not_fund",
            "SF011: `not_fund` is not known here; write `validation`, `business_rule`, `not_found` or `forbidden`; \
             did you mean `not_found`?",
        ),
        (
            "route = \"PUT /\", status = 404",
            "404",
            "SF011: a command that succeeds answers with 200 to 299; write `status = 201`",
        ),
        (
            "route = \"PUT /\", mismatch = 500",
            "500",
            "SF011: a key that was used for another request is refused with 422 or 409; write one of them",
        ),
        (
            "scope = user, scope = tenant",
            "scope",
            "SF011: `scope` is there twice; once is enough",
        ),
        ("scope", "scope", "SF011: `scope` has no value; write `scope = ..`"),
        (
            "retention = -1",
            "-1",
            "SF003: a duration is text; write \"500ms\", \"30s\", \"5m\", \"24h\" or \"7d\"",
        ),
        (
            "route = \"PUT /\", accept = [json, from]",
            "from",
            "SF011: `from` is not known here; write `json` or `form`; did you mean `form`?",
        ),
        (
            "route = \"PUT /\", accept = [json, json]",
            "[json, json]",
            "SF011: this is not one or both of what a body can be; write `json`, `form` or `[json, form]`",
        ),
        (
            "route = \"PUT /\", key_field = request_id",
            "request_id",
            "SF011: this is not text; write it in quotes",
        ),
    ] {
        let method = format!("#[command(\"o\", {options})] async fn a(&self, tx: &mut Tx<Db>) -> Result<(), E> {{}}");
        assert_eq!(said_of(&method), [(says.to_owned(), points_at.to_owned())], "{method}");
    }
    let query = "#[query(\"o\", retention = \"24h\")] async fn a(&self, db: &Pool<Db>) -> Result<(), E> {}";
    let says = "SF002: a query changes nothing and keeps no answer, so it has no `retention`; remove it, or make this a `#[command]`";
    assert_eq!(said_of(query), [(says.to_owned(), "retention".to_owned())]);
}

#[test]
fn all_mistakes_of_a_block_are_said_at_once_and_what_is_right_is_written() {
    let block = r#"impl Orders {
        #[command("orders.a", retention = "soon", scope = galaxy)]
        async fn a(&self, tx: &mut Tx<Db>) -> Result<(), E> {}
        #[command("orders.b")]
        fn b(&self, tx: &mut Tx<Db>) -> Result<(), E> {}
        #[command("orders.a")]
        async fn c(&self, tx: &mut Tx<Db>) -> Result<(), E> {}
    }"#;
    let (written, mistakes) = expanded(ALL, "db = Sqlite", block);
    let codes: Vec<_> = mistakes
        .iter()
        .map(|(message, at)| (&message[..5], at.as_str()))
        .collect();
    assert_eq!(
        codes,
        [
            ("SF003", "\"soon\""),
            ("SF011", "galaxy"),
            ("SF010", "fn"),
            ("SF012", "\"orders.a\"")
        ]
    );
    let written = written.to_string();
    assert!(
        written.contains("struct OrdersService") && written.contains("async fn a (& self , owner"),
        "{written}"
    );
    assert!(!written.contains("# [command"), "{written}");
}

#[test]
fn a_block_that_is_no_service_is_told_what_is() {
    for (arguments, block, points_at, says) in [
        (
            "",
            "impl Trait for Orders {}",
            "Trait",
            "SF010: a service has methods of its own",
        ),
        ("", "impl &Orders {}", "&Orders", "SF010: a service is a struct"),
        (
            "",
            "struct Orders;",
            "struct",
            "SF010: `#[service]` stands on an `impl` block",
        ),
        (
            "db = Mysql",
            "impl Orders {}",
            "Mysql",
            "SF011: `Mysql` is no database of ours; write `Sqlite`, `Postgres` or `[Sqlite, Postgres]`",
        ),
        (
            "db = [Sqlite, Sqlite]",
            "impl Orders {}",
            "Sqlite",
            "SF011: `Sqlite` is named twice",
        ),
        ("db = []", "impl Orders {}", "[]", "SF011: no database is named"),
        (
            "database = Sqlite",
            "impl Orders {}",
            "database",
            "SF011: `database` is no option of a service",
        ),
    ] {
        let (_, mistakes) = expanded(ALL, arguments, block);
        let [(message, at)] = mistakes.as_slice() else {
            panic!("{arguments} {block}: {mistakes:?}");
        };
        assert!(message.starts_with(says), "{message}");
        assert_eq!(at, points_at, "{message}");
    }
}

#[test]
fn what_is_no_service_is_left_as_it_is_without_our_attributes() {
    let (written, _) = expanded(
        ALL,
        "",
        "impl Trait for Orders { #[command(\"o\")] #[inline] fn a() {} }",
    );
    assert_eq!(written.to_string(), "impl Trait for Orders { # [inline] fn a () { } }");
    let (written, _) = expanded(ALL, "", "struct Orders;");
    assert_eq!(written.to_string(), "struct Orders ;");
}

#[test]
fn in_the_value_of_an_option_self_is_the_service() {
    let block = r#"impl Orders {
        #[command("orders.a", retention = self.settings(of(&self.name)).retention)]
        async fn a(&self, tx: &mut Tx<Db>) -> Result<(), E> {}
    }"#;
    let (written, mistakes) = expanded(ALL, "db = Sqlite", block);
    assert_eq!(mistakes, []);
    let option = ".retention(self.service.settings(of(&self.service.name)).retention)";
    let written = written.to_string().replace(' ', "");
    assert!(written.contains(option), "{written}");
}

#[test]
fn what_steadfast_was_built_without_is_named_with_its_feature() {
    let build = Build {
        databases: [
            ALL.databases[0],
            Database {
                is_there: false,
                ..POSTGRES
            },
        ],
        has_axum: false,
        has_schedule: true,
    };
    let block = r#"impl Orders {
        #[command("orders.a", route = "POST /orders")]
        async fn a(&self, tx: &mut Tx<Db>) -> Result<(), E> {}
    }"#;
    let (_, mistakes) = expanded(build, "db = Postgres", block);
    let features: Vec<_> = mistakes
        .iter()
        .map(|(message, at)| (message.split('"').nth(1), at.as_str()))
        .collect();
    assert_eq!(
        features,
        [(Some("postgres"), "Postgres"), (Some("axum"), "\"POST /orders\"")]
    );
    assert!(
        mistakes.iter().all(|(message, _)| message.starts_with("SF013: ")),
        "{mistakes:?}"
    );
}

const REACTING: &str = r#"
impl Stock {
    /// Takes what was ordered.
    #[on(OrderPlaced, retry(retries = 5, backoff = exponential("1s"), cap = "5m"), concurrency = self.workers)]
    pub async fn reserve(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), StockError> {
        self.take(tx, &event).await
    }

    #[on(orders::OrderPlaced, name = "stock.mail", lease = "5m", on_dead = skip, time_limit = "30s")]
    async fn mail(&self, cx: &EventCx, event: &OrderPlaced) -> Result<(), Failure> {
        self.mailer.send(cx.key(), event).await
    }
}
"#;

#[test]
fn reactions_are_registered_as_a_person_would() {
    assert_written("reactions", "db = Sqlite", REACTING);
}

#[test]
fn on_two_databases_a_reaction_calls_the_copy_for_its_own() {
    let (written, mistakes) = expanded(ALL, "db = [Sqlite, Postgres]", REACTING);
    assert_eq!(mistakes, []);
    let written = written.to_string().replace(' ', "");
    for (text, times) in [
        ("impl::steadfast::service::React<Db>forStock{", 2),
        ("<StockasStockHandlers>::reserve(&service,tx,event)", 2),
        // It speaks of no database, and is an ordinary method, once.
        ("<Stock>::mail(&service,cx,&event)", 2),
        ("asyncfnmail(&self,cx:&EventCx", 1),
        ("whereSelf:::steadfast::service::React<Db>", 1),
    ] {
        assert_eq!(written.matches(text).count(), times, "{text}: {written}");
    }
}

#[test]
fn each_option_of_a_reaction_is_said_to_the_builder() {
    for (option, call) in [
        ("", "::<OrderPlaced>(\"orders.a\").run_boxed("),
        ("name = \"x.y\"", "::<OrderPlaced>(\"x.y\").run_boxed("),
        (
            "lease = \"5m\"",
            ".lease(::core::time::Duration::from_millis(300000u64)).run_boxed(",
        ),
        ("time_limit = LIMITS.long", ".time_limit(LIMITS.long).run_boxed("),
        ("concurrency = 8", ".concurrency(8).run_boxed("),
        (
            "concurrency = self.workers()",
            ".concurrency(service.workers()).run_boxed(",
        ),
        ("on_dead = wait", ".on_dead(::steadfast::OnDead::Wait).run_boxed("),
        (
            "duplicates = allow",
            ".duplicates(::steadfast::Duplicates::Allow).run_boxed(",
        ),
        ("retry = self.policy", ".retry(service.policy).run_boxed("),
        ("retry()", ".retry(::steadfast::RetryPolicy::checked(5u32,"),
        (
            "retry(retries = 2, backoff = constant(\"3s\"))",
            ".retry(::steadfast::RetryPolicy::checked(2u32,::steadfast::Backoff::Constant(::core::time::Duration::from_millis(3000u64)),",
        ),
    ] {
        let method = format!(
            "#[on(OrderPlaced, {option})] async fn a(&self, tx: &mut Tx<Db>, o: OrderPlaced) -> Result<(), E> {{}}"
        );
        assert_eq!(written_for(&method, call), 1, "{option}");
    }
}

#[test]
fn a_target_is_called_like_its_service_and_method() {
    for (service, method, target) in [
        ("Stock", "reserve", "stock.reserve"),
        ("OrderMails", "send_all", "order_mails.send_all"),
        ("HTTPGateway", "r#move", "http_gateway.move"),
        ("shop::V2Orders<T>", "a", "v2_orders.a"),
        ("Area51", "a", "area51.a"),
    ] {
        let block = format!(
            "impl {service} {{ #[on(E)] async fn {method}(&self, tx: &mut Tx<Db>, e: E) -> Result<(), F> {{}} }}"
        );
        let (written, mistakes) = expanded(ALL, "db = Sqlite", &block);
        assert_eq!(mistakes, []);
        assert!(written.to_string().contains(&format!("({target:?})")), "{written}");
    }
}

#[test]
fn a_wrong_reaction_is_told_why_and_what_to_write() {
    let (tx, e) = ("tx: &mut Tx<Db>", "e: OrderPlaced");
    let ok = "-> Result<(), E> {}";
    let no_event = "SF016: a reaction says the type of its event, so that the compiler can check what it takes; write `#[on(OrderPlaced, ..)]`";
    let first = "SF016: `a` writes in the transaction that its delivery commits with, or calls others without one; write `tx: &mut Tx<Db>` or `cx: &EventCx` after `&self`";
    let missing =
        "SF016: `a` does not take its event; write `event: OrderPlaced` or `event: &OrderPlaced` as the last argument";
    for (method, points_at, says) in [
        (format!("#[on] async fn a(&self, {tx}, {e}) {ok}"), "#[on]", no_event),
        (
            format!("#[on()] async fn a(&self, {tx}, {e}) {ok}"),
            "#[on()]",
            no_event,
        ),
        (
            format!("#[on(lease = \"5m\")] async fn a(&self, {tx}, {e}) {ok}"),
            "#[on(lease = \"5m\")]",
            no_event,
        ),
        (
            format!("#[on(\"order.placed\")] async fn a(&self, {tx}, {e}) {ok}"),
            "\"order.placed\"",
            no_event,
        ),
        (
            format!("#[on(&OrderPlaced)] async fn a(&self, {tx}, {e}) {ok}"),
            "&OrderPlaced",
            no_event,
        ),
        (
            format!("#[on(OrderPlaced)] fn a(&self, {tx}, {e}) {ok}"),
            "fn",
            "SF016: `a` waits for the database, so it is async; write `async fn`",
        ),
        (
            format!("#[on(OrderPlaced)] async unsafe fn a(&self, {tx}, {e}) {ok}"),
            "unsafe",
            "SF016: nobody could keep what `a` asks of its callers, since an event calls it; write `async fn`",
        ),
        (
            format!("#[on(OrderPlaced)] async fn a<T>(&self, {tx}, e: T) {ok}"),
            "<T>",
            "SF016: nobody could say what `a` is generic over, since it is called by name; write concrete types, or put the parameter on the `impl`",
        ),
        (
            format!("#[on(OrderPlaced)] async fn a({tx}, {e}) {ok}"),
            "tx: &mut Tx<Db>",
            "SF016: `a` has its dependencies from the service, which others use too; write `&self` first",
        ),
        (format!("#[on(OrderPlaced)] async fn a(&self) {ok}"), "(&self)", first),
        (
            format!("#[on(OrderPlaced)] async fn a(&self, {e}) {ok}"),
            "e: OrderPlaced",
            first,
        ),
        (
            format!("#[on(OrderPlaced)] async fn a(&self, db: &Pool<Db>, {e}) {ok}"),
            "db: &Pool<Db>",
            first,
        ),
        (
            format!("#[on(OrderPlaced)] async fn a(&self, tx: &Tx<Db>, {e}) {ok}"),
            "tx: &Tx<Db>",
            first,
        ),
        (
            format!("#[on(OrderPlaced)] async fn a(&self, cx: &mut EventCx, {e}) {ok}"),
            "cx: &mut EventCx",
            first,
        ),
        (
            format!("#[on(OrderPlaced)] async fn a(&self, {tx}) {ok}"),
            "(&self, tx: &mut Tx<Db>)",
            missing,
        ),
        (
            format!("#[on(OrderPlaced)] async fn a(&self, {tx}, e: &mut OrderPlaced) {ok}"),
            "&mut OrderPlaced",
            "SF016: an event is what has happened, and nobody changes it; write `OrderPlaced` or `&OrderPlaced`",
        ),
        (
            format!("#[on(OrderPlaced)] async fn a(&self, {tx}, {e}, owner: &Owner) {ok}"),
            "owner: &Owner",
            "SF016: `a` is called with its event and nothing else; remove this, and put what it needs into the event or the service",
        ),
        (
            format!("#[on(OrderPlaced)] async fn a(&self, {tx}, {e}) {{}}"),
            "a",
            "SF001: whether `a` has handled its event is decided by `Ok` or `Err`, and it does not return a `Result`; write `-> Result<(), E>`",
        ),
        (
            format!("#[on(OrderPlaced)] async fn a(&self, {tx}, {e}) -> Result<Order, E> {{}}"),
            "Order",
            "SF016: nobody waits for what `a` returns; write `Result<(), E>`, and publish an event of what others need to know",
        ),
        (
            format!("#[on(OrderPlaced)] async fn on(&self, {tx}, {e}) {ok}"),
            "on",
            "SF016: `on` is what puts the service on a database; give this reaction another name",
        ),
        (
            format!("#[on(OrderPlaced)] async fn größe(&self, {tx}, {e}) {ok}"),
            "größe",
            "SF016: deliveries are stored under the name of their target, and \"orders.größe\" cannot be one; give it another by `name = \"stock.reserve\"`",
        ),
        (
            format!("#[on(OrderPlaced)] #[command(\"o\")] async fn a(&self, {tx}, {e}) {ok}"),
            "#[command(\"o\")]",
            "SF010: a method is one command, one query, one reaction or one job; remove this attribute",
        ),
        (
            format!("#[on(OrderPlaced)] #[on(OrderPaid)] async fn a(&self, {tx}, {e}) {ok}"),
            "#[on(OrderPaid)]",
            "SF010: a method is one command, one query, one reaction or one job; remove this attribute",
        ),
    ] {
        assert_eq!(said_of(&method), [(says.to_owned(), points_at.to_owned())], "{method}");
    }
}

#[test]
fn an_option_of_a_reaction_that_is_wrong_is_told_why_and_what_to_write() {
    for (options, points_at, says) in [
        (
            "concurency = 8",
            "concurency",
            "SF011: `concurency` is no option of a reaction; did you mean `concurrency`?\nknown: retry, name, lease, concurrency, on_dead, duplicates, time_limit",
        ),
        ("lease", "lease", "SF011: `lease` has no value; write `lease = ..`"),
        (
            "lease(\"5m\")",
            "lease",
            "SF011: `lease` has no value; write `lease = ..`",
        ),
        (
            "lease = \"1m\", lease = \"2m\"",
            "lease",
            "SF011: `lease` is there twice; once is enough",
        ),
        (
            "lease = \"5 min\"",
            "\"5 min\"",
            "SF003: \"5 min\" is not a duration; write a whole number and a unit: 500ms, 30s, 5m, 24h or 7d",
        ),
        (
            "time_limit = \"0s\"",
            "\"0s\"",
            "SF003: \"0s\" is no time at all; write a duration of more than nothing",
        ),
        (
            "concurrency = 0",
            "0",
            "SF016: `concurrency` is how many run at once, and with less than one none would; write `concurrency = 1` or more",
        ),
        (
            "concurrency = \"8\"",
            "\"8\"",
            "SF016: `concurrency` is how many run at once, and with less than one none would; write `concurrency = 1` or more",
        ),
        (
            "on_dead = skipp",
            "skipp",
            "SF011: `skipp` is not known here; write `wait` or `skip`; did you mean `skip`?",
        ),
        (
            "name = \"Stock Reserve\"",
            "\"Stock Reserve\"",
            "SF016: \"Stock Reserve\" has 'S' in it; write 1 to 100 lower-case letters, digits, `_` and `-`, in parts with a dot between them, as in \"order.placed\"",
        ),
        (
            "name = reserve",
            "reserve",
            "SF011: this is not text; write it in quotes",
        ),
        (
            "retry",
            "retry",
            "SF011: `retry` says nothing; write `retry(retries = 5, backoff = exponential(\"1s\"))`, or a policy, `retry = POLICY`",
        ),
        (
            "retry(retrys = 5)",
            "retrys = 5",
            "SF014: `retrys` is no option of a retry policy; write `retries`, `backoff`, `cap`, `jitter` or `max_age`; did you mean `retries`?",
        ),
        (
            "retry(backoff = exponential(\"2h\"))",
            "retry",
            "SF014: `cap` is 3600s and the first delay 7200s; write a cap that is not below it (without one it is 1h)",
        ),
        (
            "lease = \"1m\" name = \"x\"",
            "name",
            "SF011: an option ends where the next one begins; write `,` before this",
        ),
    ] {
        let method = format!("#[on(E, {options})] async fn a(&self, tx: &mut Tx<Db>, e: E) -> Result<(), F> {{}}");
        assert_eq!(said_of(&method), [(says.to_owned(), points_at.to_owned())], "{method}");
    }
}

#[test]
fn two_reactions_have_one_name_only_if_one_of_them_is_not_compiled() {
    let two = |one: &str, other: &str| {
        said_of(&format!(
            "{one} #[on(E)] async fn a(&self, tx: &mut Tx<Db>, e: E) -> Result<(), F> {{}}
             {other} #[on(E, name = \"orders.a\")] async fn b(&self, tx: &mut Tx<Db>, e: E) -> Result<(), F> {{}}"
        ))
    };
    let says = "SF016: `a` is the target \"orders.a\" already, and would take the deliveries of `b`; give it a `name` of its own";
    assert_eq!(two("", ""), [(says.to_owned(), "\"orders.a\"".to_owned())]);
    assert_eq!(two("#[cfg(x)]", "#[cfg(not(x))]"), []);
}

#[test]
fn a_block_with_a_wrong_reaction_keeps_its_methods_and_the_rest() {
    let block = "impl Orders {
        #[on(E)] async fn a(&self, tx: &mut Tx<Db>, e: E) -> Result<u8, F> {}
        #[on(E)] async fn b(&self, tx: &mut Tx<Db>, e: E) -> Result<(), F> {}
    }";
    let (written, mistakes) = expanded(ALL, "db = Sqlite", block);
    assert_eq!(mistakes.len(), 1);
    let written = written.to_string();
    assert!(!written.contains("# [on"), "{written}");
    assert!(
        written.contains("async fn a") && !written.contains("\"orders.a\""),
        "{written}"
    );
    assert!(written.contains("\"orders.b\""), "{written}");
}

const TICKING: &str = r#"
impl Shop {
    /// Sends what was sold.
    #[cron("0 9 * * MON-FRI", tz = "Europe/Madrid", missed = "last", overlap = "skip", retry(retries = 3), time_limit = "5m")]
    async fn digest(&self, cx: &JobCx<Db>) -> Result<(), Failure> {
        self.mailer.send(cx.key()).await
    }

    #[every("15m", name = "shop.stock")]
    #[job(CountStock, concurrency = 2, breaker = "stock")]
    async fn count_stock(&self, tx: &mut Tx<Db>, job: CountStock) -> Result<(), Failure> {
        self.count(tx, job).await
    }
}
"#;

#[test]
fn schedules_are_declared_as_a_person_would() {
    assert_written("schedules", "db = Sqlite", TICKING);
}

#[test]
fn a_schedule_that_is_never_due_or_has_no_job_is_told_why_and_what_to_write() {
    let of_ticks = |attribute: &str| format!("{attribute} async fn a(&self, cx: &JobCx<Db>) -> Result<(), E> {{}}");
    let of_job =
        |attributes: &str| format!("{attributes} async fn a(&self, cx: &JobCx<Db>, job: Count) -> Result<(), E> {{}}");
    for (method, points_at, says) in [
        (
            of_ticks("#[cron]"),
            "#[cron]",
            "SF019: a schedule says when it is due, as text that the compiler can check; ",
        ),
        (
            of_ticks("#[every(FIVE)]"),
            "#[every(FIVE)]",
            "SF019: a schedule says when it is due, ",
        ),
        (
            of_ticks("#[cron(\"61 * * * *\")]"),
            "\"61 * * * *\"",
            "SF003: in the cron expression \"61 * * * *\", ",
        ),
        (
            of_ticks("#[cron(\"0 9 * *\")]"),
            "\"0 9 * *\"",
            "SF003: in the cron expression \"0 9 * *\", ",
        ),
        (
            of_ticks("#[cron(\"0 9 * * *\", tz = \"Europe/Madird\")]"),
            "\"Europe/Madird\"",
            "SF003: \"Europe/Madird\" is no time zone; write a name of the IANA database such as `Europe/Madrid` or `UTC`; did you mean `Europe/Madrid`?",
        ),
        (
            of_ticks("#[cron(\"0 9 * * *\", tz = \"Madrid\")]"),
            "\"Madrid\"",
            "SF003: \"Madrid\" is no time zone; write a name of the IANA database such as `Europe/Madrid` or `UTC`; did you mean `Europe/Madrid`?",
        ),
        (
            of_ticks("#[cron(\"0 9 * * *\", missed = \"lst\")]"),
            "\"lst\"",
            "SF003: \"lst\" is no policy for missed ticks; write `skip`, `last` or `all`; did you mean `last`?",
        ),
        (
            of_ticks("#[cron(\"0 9 * * *\", overlap = replace)]"),
            "replace",
            "SF011: `replace` is not known here; write `allow` or `skip`",
        ),
        (
            of_ticks("#[every(\"500ms\")]"),
            "\"500ms\"",
            "SF003: \"500ms\" is no interval of a schedule; write 1s to 365d",
        ),
        (
            of_ticks("#[every(\"soon\")]"),
            "\"soon\"",
            "SF003: \"soon\" is not a duration; ",
        ),
        (
            of_ticks("#[every(\"15m\", tz = \"UTC\")]"),
            "tz",
            "SF011: `tz` is no option of a schedule\nknown: missed, overlap, name, retry, lease, concurrency, time_limit, breaker",
        ),
        (
            of_job("#[every(\"15m\", retry(retries = 2))] #[job(Count)]"),
            "retry",
            "SF019: `retry` is about running the job; write it in `#[job(..)]`",
        ),
        (
            of_job("#[every(\"15m\", queue = 1)] #[job(Count)]"),
            "queue",
            "SF011: `queue` is no option of a schedule\nknown: missed, overlap, name",
        ),
        (
            of_job("#[every(\"15m\")]"),
            "job: Count",
            "SF019: a tick brings nothing along, so `a` takes nothing more; remove this, or write `#[job(DailyDigest)]` ",
        ),
        (
            of_ticks("#[every(\"15m\", name = \"Count\")]"),
            "\"Count\"",
            "SF019: \"Count\" has 'C' in it; ",
        ),
        (
            of_ticks("#[every(\"15m\")] #[cron(\"0 9 * * *\")]"),
            "#[cron(\"0 9 * * *\")]",
            "SF019: a method has one schedule; ",
        ),
        (
            "#[every(\"15m\")] #[command(\"o\")] async fn a(&self, tx: &mut Tx<Db>) -> Result<(), E> {}".to_owned(),
            "#[every(\"15m\")]",
            "SF019: a schedule makes jobs, and this is a command, a query or a reaction; ",
        ),
        (
            "#[every(\"15m\")] async fn a(&self) -> Result<(), E> {}".to_owned(),
            "(&self)",
            "SF019: `a` writes in the transaction that the end of its job commits with, or calls others without one; write `tx: &mut Tx<Db>` or `cx: &JobCx<Db>` after `&self`",
        ),
    ] {
        let said = said_of(&method);
        assert!(
            said.len() == 1 && said[0].0.starts_with(says) && said[0].1 == points_at,
            "{method}: {said:#?}"
        );
    }
}

#[test]
fn two_schedules_of_a_service_have_two_names_and_need_the_feature() {
    let block = r#"impl Shop {
        #[every("15m", name = "shop.digest")]
        async fn a(&self, cx: &JobCx<Db>) -> Result<(), E> {}
        #[every("15m")]
        async fn digest(&self, cx: &JobCx<Db>) -> Result<(), E> {}
    }"#;
    let (_, mistakes) = expanded(ALL, "db = Sqlite", block);
    assert_eq!(mistakes.len(), 1, "{mistakes:?}");
    assert!(
        mistakes[0]
            .0
            .starts_with("SF019: `a` is the schedule \"shop.digest\" already; "),
        "{mistakes:?}"
    );
    let build = Build {
        has_schedule: false,
        ..ALL
    };
    let block = "impl Shop { #[every(\"15m\")] async fn a(&self, cx: &JobCx<Db>) -> Result<(), E> {} }";
    let (_, mistakes) = expanded(build, "db = Sqlite", block);
    assert!(
        mistakes.len() == 1
            && mistakes[0]
                .0
                .starts_with("SF013: a schedule needs the feature `schedule` of steadfast; "),
        "{mistakes:?}"
    );
}
