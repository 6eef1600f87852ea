//! Payments: make one, list them, look at one.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::Pool;
use steadfast::{Failure, FailureClass, Owner, Tx, rfc3339};
use uuid::Uuid;

use crate::events::{PaymentCaptured, email_of};
use crate::jobs::{SendReceipt, SendReminder};
use crate::lab;
use crate::live;
use crate::orders::LIST_LENGTH_MAX;
use crate::payment::{NewPayment, Payment, PaymentRow};

pub(crate) struct Payments {
    pub(crate) retention: Duration,
}

#[steadfast::service(db = [Sqlite, Postgres])]
impl Payments {
    /// Makes a payment. The row, the key, the answer, what is told of it, the receipt that is to be sent and that nobody is reminded any
    /// more are one COMMIT.
    #[command(
        "payments.make",
        route = "POST /payments",
        accept = [json, form],
        status = 201,
        location = "/payments/{id}",
        retention = self.retention
    )]
    pub(crate) async fn make(&self, tx: &mut Tx<Db>, owner: &Owner, new: NewPayment) -> Result<Payment, Failure> {
        new.check()?;
        if let Some(order_id) = &new.order_id {
            self.find_order(tx, owner, order_id).await?;
        }
        let payment = Payment {
            id: Uuid::now_v7().to_string(),
            owner: owner.user().to_owned(),
            amount: new.amount,
            currency: new.currency,
            order_id: new.order_id,
            description: new.description,
            created_at: rfc3339(tx.now().await?),
        };
        let insert = "
            INSERT INTO payments (id, tenant, owner, amount, currency, order_id, description, created_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
        sqlx::query(insert)
            .bind(&payment.id)
            .bind(owner.tenant())
            .bind(&payment.owner)
            .bind(payment.amount)
            .bind(&payment.currency)
            .bind(&payment.order_id)
            .bind(&payment.description)
            .bind(&payment.created_at)
            .execute(tx.db())
            .await?;
        tx.publish(&PaymentCaptured {
            payment_id: payment.id.clone(),
            customer: live::customer(owner),
            order_id: payment.order_id.clone(),
            amount: payment.amount,
            currency: payment.currency.clone(),
            email: email_of(owner),
        })?;
        tx.enqueue(&SendReceipt {
            payment_id: payment.id.clone(),
            amount: payment.amount,
            currency: payment.currency.clone(),
            email: email_of(owner),
        })
        .await?;
        if let Some(order_id) = &payment.order_id {
            tx.cancel_job::<SendReminder>(order_id).await?;
        }
        lab::after_write().await?;
        Ok(payment)
    }

    /// Fails unless the order is the payer's own and still wanted. An UPDATE that changes nothing holds it until the end, on
    /// both databases: nobody cancels it meanwhile, and who has done so before is seen by the next statement.
    async fn find_order(&self, tx: &mut Tx<Db>, owner: &Owner, id: &str) -> Result<(), Failure> {
        let held = sqlx::query("UPDATE orders SET owner = owner WHERE id = $1 AND tenant = $2 AND owner = $3")
            .bind(id)
            .bind(owner.tenant())
            .bind(owner.user())
            .execute(tx.db())
            .await?;
        if held.rows_affected() == 0 {
            return Err(Failure::definitive(
                FailureClass::NotFound,
                "order_not_found",
                format!("you have no order {id} to pay for"),
            ));
        }
        let select = "SELECT cancelled_at FROM cancellations WHERE order_id = $1";
        let cancelled_at: Option<String> = sqlx::query_scalar(select).bind(id).fetch_optional(tx.db()).await?;
        match cancelled_at {
            None => Ok(()),
            Some(at) => Err(Failure::definitive(
                FailureClass::BusinessRule,
                "order_cancelled",
                format!("the order {id} was cancelled at {at}; it cannot be paid for"),
            )),
        }
    }

    /// One's own, the newest first.
    #[query("payments.list", route = "GET /payments")]
    pub(crate) async fn list(&self, db: &Pool<Db>, owner: &Owner) -> Result<PaymentList, Failure> {
        let select = "
            SELECT id, owner, amount, currency, order_id, description, created_at
            FROM payments
            WHERE tenant = $1 AND owner = $2
            ORDER BY created_at DESC, id DESC
            LIMIT $3";
        let rows: Vec<PaymentRow> = sqlx::query_as(select)
            .bind(owner.tenant())
            .bind(owner.user())
            .bind(LIST_LENGTH_MAX)
            .fetch_all(db)
            .await?;
        let payments = rows.into_iter().map(Payment::from).collect();
        Ok(PaymentList { payments })
    }

    /// One of them. Somebody else's payment is as unknown as one that never was.
    #[query("payments.show", route = "GET /payments/{id}")]
    pub(crate) async fn show(&self, db: &Pool<Db>, owner: &Owner, id: Uuid) -> Result<Payment, Failure> {
        let select = "
            SELECT id, owner, amount, currency, order_id, description, created_at
            FROM payments
            WHERE id = $1 AND tenant = $2 AND owner = $3";
        let row: Option<PaymentRow> = sqlx::query_as(select)
            .bind(id.to_string())
            .bind(owner.tenant())
            .bind(owner.user())
            .fetch_optional(db)
            .await?;
        row.map(Payment::from).ok_or_else(|| {
            Failure::definitive(FailureClass::NotFound, "not_found", format!("you have no payment {id}"))
        })
    }
}

/// The answer to `GET /payments`.
#[derive(Serialize, Deserialize)]
pub(crate) struct PaymentList {
    payments: Vec<Payment>,
}
