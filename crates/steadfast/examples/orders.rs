//! An order that happens once, however often it is sent: `cargo run -p steadfast --example orders --features sqlite,axum`

use axum::{Extension, Json, Router, http::StatusCode, routing::post};
use steadfast::{CmdTx, Failure, Owner, Steadfast, sqlx, sqlx::Sqlite};

async fn place(mut tx: CmdTx<Sqlite>, Json(sku): Json<String>) -> Result<(StatusCode, Json<i64>), Failure> {
    let insert = sqlx::query_scalar("INSERT INTO orders (sku) VALUES ($1) RETURNING id").bind(sku);
    let id = insert.fetch_one(tx.db()).await?;
    Ok((StatusCode::CREATED, Json(id))) // the row, the key and this answer are one COMMIT
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    let table = sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, sku TEXT NOT NULL)");
    table.execute(sf.pool()).await?;
    let orders = post(place).route_layer(sf.idempotent().operation("orders.place"));
    let app = Router::new()
        .route("/orders", orders)
        .layer(Extension(Owner::new("tenant-1", "user-a"))) // your authentication
        .merge(sf.routes()); // /livez, /readyz, /metrics, /problems/{code}
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    sf.serve(listener, app).await?; // until SIGTERM; commands under way end first
    Ok(())
}
