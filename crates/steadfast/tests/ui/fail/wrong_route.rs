#![allow(unused)]

use serde::Deserialize;
use steadfast::sqlx::Pool;
use steadfast::{Failure, Tx};

#[derive(Clone, Deserialize, serde::Serialize)]
struct Page {
    number: u32,
}

struct Orders;

#[steadfast::service(db = Sqlite)]
impl Orders {
    #[command("orders.place", route = "POST /orders")]
    async fn place(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.place_again", route = "POST /orders")]
    async fn place_again(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.change", route = "PUT /orders/{id}")]
    async fn change(&self, tx: &mut Tx<Db>, id: i64) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.cancel", route = "DELETE /orders/{number}")]
    async fn cancel(&self, tx: &mut Tx<Db>, number: i64) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.sort", route = "POST /sort/{*rest}/now")]
    async fn sort(&self, tx: &mut Tx<Db>, rest: String) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.count", route = "POST /count?all=1")]
    async fn count(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.empty", route = "POST /empty", accept = form)]
    async fn empty(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.form", route = "POST /form", accept = form, key_field = "id")]
    async fn form(&self, tx: &mut Tx<Db>, page: Page) -> Result<(), Failure> {
        Ok(())
    }

    #[query("orders.list", route = "GET /list", max_age = "1500ms")]
    async fn list(&self, db: &Pool<Db>, page: u32) -> Result<(), Failure> {
        Ok(())
    }
}

fn main() {}
