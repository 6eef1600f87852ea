#![allow(unused_variables)]

use serde::{Deserialize, Serialize};
use steadfast::{Failure, Job, JobCx, Tx};

#[derive(Serialize, Deserialize, Job)]
#[job("receipt.send")]
struct SendReceipt;

struct Office;

#[steadfast::service(db = Sqlite)]
impl Office {
    #[job]
    async fn no_type(&self, tx: &mut Tx<Db>, job: SendReceipt) -> Result<(), Failure> {
        Ok(())
    }

    #[job(SendReceipt, name = "receipt")]
    async fn named(&self, tx: &mut Tx<Db>, job: SendReceipt) -> Result<(), Failure> {
        Ok(())
    }

    #[job(SendReceipt)]
    async fn no_context(&self, job: SendReceipt) -> Result<(), Failure> {
        Ok(())
    }

    #[job(SendReceipt)]
    async fn no_job(&self, cx: &JobCx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[job(SendReceipt)]
    async fn changes(&self, cx: &JobCx<Db>, job: &mut SendReceipt) -> Result<(), Failure> {
        Ok(())
    }

    #[job(SendReceipt, concurrency = 0)]
    async fn none_at_once(&self, cx: &JobCx<Db>, job: SendReceipt) -> Result<(), Failure> {
        Ok(())
    }

    #[job(SendReceipt)]
    async fn no_result(&self, cx: &JobCx<Db>, job: SendReceipt) {}

    #[job(SendReceipt)]
    async fn says_something(&self, cx: &JobCx<Db>, job: SendReceipt) -> Result<u8, Failure> {
        Ok(1)
    }
}

fn main() {}
