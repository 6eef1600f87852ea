#![allow(unused)]

use std::fmt::Display;

use steadfast::{Failure, Owner, Tx};

struct Orders;

#[steadfast::service(db = Sqlite)]
impl Orders {
    #[command("")]
    async fn nameless(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.lent")]
    async fn lent(&self, tx: &mut Tx<Db>, sku: &mut String) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.owned")]
    async fn owned(&self, tx: &mut Tx<Db>, owner: Owner) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.bounded")]
    async fn bounded(&self, tx: &mut Tx<Db>) -> Result<(), Failure>
    where
        Self: Send,
    {
        Ok(())
    }

    #[command("orders.hidden")]
    async fn hidden(&self, tx: &mut Tx<Db>) -> Result<impl Display, Failure> {
        Ok(1)
    }

    #[command("orders.cut" retention = "24h")]
    async fn cut(&self, tx: &mut Tx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[command("orders.sometimes")]
    async fn sometimes(&self, tx: &mut Tx<Db>, #[cfg(any())] sku: String) -> Result<(), Failure> {
        Ok(())
    }
}

struct Generic<Db>(Db);

#[steadfast::service(db = Sqlite)]
impl<Db> Generic<Db> {}

fn main() {}
