#![allow(unused)]

use steadfast::sqlx::Pool;
use steadfast::{Failure, Owner, Tx};

struct Orders;

#[steadfast::service(db = Sqlite)]
impl Orders {
    #[command]
    async fn unnamed(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.waits")]
    fn waits(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.alone")]
    async fn alone(tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.owns")]
    async fn owns(self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.reads")]
    async fn reads(&self, db: &Pool<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[query("orders.writes")]
    async fn writes(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[query("orders.nowhere")]
    async fn nowhere(&self) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.generic")]
    async fn generic<T>(&self, tx: &mut Tx<Db>, input: T) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.any")]
    async fn any(&self, tx: &mut Tx<Db>, input: impl Into<String>) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.pattern")]
    async fn pattern(&self, tx: &mut Tx<Db>, (one, two): (u8, u8)) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.twice")]
    #[query("orders.twice_again")]
    async fn twice(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.owners")]
    async fn owners(&self, tx: &mut Tx<Db>, owner: &Owner, other: &Owner) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.inputs")]
    async fn inputs(&self, tx: &mut Tx<Db>, sku: String, quantity: u8) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.body", route = "PUT /orders/{id}")]
    async fn body(&self, tx: &mut Tx<Db>, id: u8, sku: String, quantity: u8) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.parameter", route = "PUT /orders/{id}")]
    async fn parameter(&self, tx: &mut Tx<Db>, number: u8) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.path", route = "/orders")]
    async fn path(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.no_route", status = 201)]
    async fn no_route(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }
}

fn main() {}
