#![allow(unused_variables)]

use serde::{Deserialize, Serialize};
use steadfast::{Failure, Job, JobCx, Tx};

#[derive(Serialize, Deserialize, Job)]
#[job("stock.count")]
struct CountStock {
    warehouse: u32,
}

struct Shop;

#[steadfast::service(db = Sqlite)]
impl Shop {
    #[cron("0 25 * * *", tz = "Europe/Madrid")]
    async fn never(&self, cx: &JobCx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[cron("0 9 * * MON-FRI", tz = "Europe/Madird", missed = "latest", overlap = "wait")]
    async fn nowhere(&self, cx: &JobCx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[every("100ms")]
    async fn too_often(&self, cx: &JobCx<Db>) -> Result<(), Failure> {
        Ok(())
    }

    #[cron("@daily")]
    async fn takes_something(&self, tx: &mut Tx<Db>, job: CountStock) -> Result<(), Failure> {
        Ok(())
    }
}

fn main() {}
