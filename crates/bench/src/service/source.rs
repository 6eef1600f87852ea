//! The two crates: 20 commands, each with a route, a path parameter, an owner, an input and a retention.

use std::path::Path;

const COMMANDS: usize = 20;

pub(super) const WORKSPACE: &str = "\
[workspace]
members = [\"by_hand\", \"declared\"]
resolver = \"3\"
";

pub(super) fn manifest(package: &str, steadfast: &Path) -> String {
    format!(
        "[package]\nname = \"{package}\"\nedition = \"2024\"\n\n[dependencies]\nserde = {{ version = \"1\", features = [\"derive\"] }}\n\
         steadfast = {{ path = {steadfast:?}, features = [\"sqlite\", \"axum\", \"service\"] }}\n"
    )
}

const HEAD: &str = "
use serde::{Deserialize, Serialize};
use steadfast::sqlx::{self, Sqlite};
use steadfast::{Failure, Owner, Tx};

#[derive(Clone, Serialize, Deserialize)]
pub struct NewOrder {
    pub sku: String,
}

#[derive(Serialize, Deserialize)]
pub struct Order {
    pub id: i64,
    pub sku: String,
}

pub struct Orders {
    pub prefix: String,
}
";

/// What one handler does; the changed line is in the first.
fn body(command: usize, round: usize) -> String {
    let changed = if command == 0 { round } else { 0 };
    format!(
        "{{
        let sku = format!(\"{{}} {{}} {{shelf}} {changed}\", self.prefix, new.sku);
        let insert = \"INSERT INTO orders (sku, owner) VALUES ($1, $2) RETURNING id\";
        let id = sqlx::query_scalar(insert).bind(&sku).bind(owner.user()).fetch_one(tx.db()).await?;
        Ok(Order {{ id, sku }})
    }}"
    )
}

const ARGUMENTS: &str = "owner: &Owner, shelf: i64, new: NewOrder";

pub(super) fn declared(round: usize) -> String {
    let methods: String = (0..COMMANDS)
        .map(|command| {
            let body = body(command, round);
            format!(
                "
    #[command(\"orders.c{command}\", route = \"POST /c{command}/{{shelf}}\", status = 201, location = \"/orders/{{id}}\", retention = \"48h\")]
    pub async fn c{command}(&self, tx: &mut Tx<Sqlite>, {ARGUMENTS}) -> Result<Order, Failure> {body}
"
            )
        })
        .collect();
    format!("{HEAD}\n#[steadfast::service(db = Sqlite)]\nimpl Orders {{{methods}}}\n")
}

pub(super) fn by_hand(round: usize) -> String {
    let each = |write: &dyn Fn(usize) -> String| (0..COMMANDS).map(write).collect::<String>();
    let handlers = each(&|command| {
        let body = body(command, round);
        format!("\n    async fn c{command}(&self, tx: &mut Tx<Sqlite>, {ARGUMENTS}) -> Result<Order, Failure> {body}\n")
    });
    let methods = each(&|command| {
        format!(
            "
    pub async fn c{command}(&self, owner: &Owner, key: &str, shelf: i64, new: NewOrder) -> steadfast::Result<Reply<Order>> {{
        let command = self.steadfast.command(\"orders.c{command}\", key).retention(RETENTION);
        let run = command.owner(owner).input(&(shelf, &new));
        run.run(async |tx| self.service.c{command}(tx, owner, shelf, new.clone()).await).await
    }}
"
        )
    });
    let routes = each(&|command| {
        format!(
            "
            .route(\"/c{command}/{{shelf}}\", service::command(
                MethodFilter::POST,
                self.steadfast.idempotent().operation(\"orders.c{command}\").retention(RETENTION),
                &self.service,
                |service, mut tx, call| async move {{
                    let order = service.c{command}(&mut tx, call.owner()?, call.path(\"shelf\")?, call.input()?).await.map_err(service::failed)?;
                    Ok(Answer::new(201, &order)?.location(format!(\"/orders/{{}}\", service::segment(&order.id))))
                }},
            ))"
        )
    });
    format!(
        "{HEAD}
use std::sync::Arc;
use std::time::Duration;
use steadfast::service::{{self, Answer, MethodFilter, Router}};
use steadfast::{{Reply, Steadfast}};

const RETENTION: Duration = Duration::from_secs(48 * 60 * 60);

impl Orders {{{handlers}}}

#[derive(Clone)]
pub struct OrdersService {{
    service: Arc<Orders>,
    steadfast: Steadfast<Sqlite>,
}}

impl OrdersService {{
    pub fn new(orders: Orders, steadfast: Steadfast<Sqlite>) -> Self {{
        Self {{ service: Arc::new(orders), steadfast }}
    }}
{methods}
    pub fn routes(&self) -> Router {{
        Router::new(){routes}
    }}
}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_have_all_commands_and_one_line_changes_from_round_to_round() {
        for source in [by_hand as fn(usize) -> String, declared] {
            let (one, next) = (source(1), source(2));
            for command in 0..COMMANDS {
                assert!(one.contains(&format!("\"orders.c{command}\"")), "{command}");
            }
            assert_eq!(
                one.lines().zip(next.lines()).filter(|(one, next)| one != next).count(),
                1
            );
        }
    }
}
