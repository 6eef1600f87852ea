//! Proof by violence: two shops on one database, clients that retry, and accidents. Called as `cargo xtask chaos`.
//!
//! [`scene`] is what everybody shares. [`client`]s ask and write down what they hear ([`history`]), while [`accidents`]
//! happen to the [`shop`]s, to their [`server`]s, and to the wires between them (`steadfast::testing::proxy`). Then all is
//! made whole, the clients come to their ends, and [`check`] judges the history by a [`snapshot`] of the database, and the
//! [`receipts`] by what has come to the world outside. The [`witness`]es say what really occurred.
//!
//! In a run that is about the outbox every event goes to three [`broker`]s, which are killed as well, and [`sent`] judges what is
//! there in the end. In one that is about the inbox there is a broker between the shops and warehouses with a database of their own,
//! and [`trade`] judges what has become of every order.

mod options;
mod scene;
mod client;
mod http;
mod accidents;
mod shop;
mod server;
mod broker;
mod history;
mod snapshot;
mod check;
mod sent;
mod trade;
mod receipts;
mod witness;
mod progress;
mod random;
mod error;

use std::env;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use serde::Serialize;
use tokio::task::JoinSet;

use client::Client;
use error::{Context, Result};
use options::{Chaos, Kind, Run};
use scene::{LOOK_AGAIN, Place, Scene};
use shop::{Order, Orders};
use snapshot::Snapshot;
use trade::Trade;

/// The shop's binary.
const SHOP_VARIABLE: &str = "CHAOS_SHOP";

/// How long deliveries may take when everything works again: a lease of the lab, the longest pause of a policy or of a sink whose
/// broker was away, and a backlog.
const DELIVERED_WITHIN: Duration = Duration::from_secs(120);

/// Proof by violence: real processes, real accidents, and a checker that judges
#[derive(Parser)]
#[command(name = "steadfast-chaos", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    chaos: Chaos,
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let ended = run(&cli.chaos.run()).await;
    ended.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

async fn run(run: &Run) -> Result<ExitCode> {
    let shop_binary = env::var_os(SHOP_VARIABLE).map(PathBuf::from);
    let directory = tempfile::Builder::new().prefix("steadfast-chaos-").tempdir();
    let directory = directory.context("making a temporary directory")?;
    let place = Place {
        shop_binary: &shop_binary.ok_or("there is no shop: run it as cargo xtask chaos")?,
        directory: directory.path(),
    };
    let ended = break_and_judge(run, &place).await;
    if !matches!(ended, Ok(ExitCode::SUCCESS)) {
        // The evidence stays.
        eprintln!("history, logs and database are in {}", directory.keep().display());
    }
    ended
}

async fn break_and_judge(run: &Run, place: &Place<'_>) -> Result<ExitCode> {
    let directory = place.directory;
    let (scene, orders) = Scene::set(run, place).await?;
    let scene = Arc::new(scene);
    let brokers: Vec<_> = scene.brokers.iter().map(|(broker, _)| format!("{broker:?}")).collect();
    let place = [vec![scene.database.name().to_owned()], brokers].concat().join(", ");
    eprintln!("{place}: {:?}, --seed {}", scene.amounts, scene.seed);
    let acted = tokio::select! {
        acted = act(&scene, run.clients) => acted,
        Err(stuck) = progress::show(&scene) => Err(stuck),
        Err(ended) = keep_shops(&scene, orders) => Err(ended),
    };
    progress::clear();
    let history = scene.recorder.finish()?;
    acted?;
    let snapshot = Snapshot::take(scene.database, &scene.database_url).await?;
    let trade = Trade::take(&scene).await?;
    write_snapshot(&snapshot, &trade, directory)?;
    let mut arrived = Vec::new();
    if scene.kind == Kind::Outbox {
        for (broker, server) in &scene.brokers {
            arrived.push((*broker, broker.arrived(server).await?));
        }
    }

    let witnesses = witness::count(&scene, &history, &snapshot, &arrived, &trade)?;
    if run.json {
        for witness in &witnesses {
            println!("{}", witness::to_json(witness).context("writing a witness as JSON")?);
        }
    } else {
        print!("{}", witness::table(&witnesses));
    }
    let mut violations = check::judge(&history, &snapshot);
    match scene.kind {
        Kind::Command => violations.extend(check::judge_deliveries(&snapshot)),
        Kind::Outbox => {
            violations.extend(check::judge_deliveries(&snapshot));
            violations.extend(sent::judge(&snapshot.published, &arrived));
        }
        Kind::Inbox => violations.extend(trade::judge(&snapshot.effects, &trade)),
    }
    if let Some(world) = &scene.world {
        violations.extend(receipts::judge(&snapshot, &world.receipts().await?));
    }
    if !violations.is_empty() {
        eprintln!("{}", check::describe(&violations, &history, &snapshot));
    }
    let missing: Vec<_> = witnesses
        .iter()
        .filter(|witness| !witness.holds())
        .map(|witness| witness.name())
        .collect();
    if !missing.is_empty() {
        eprintln!(
            "this should have happened, and did not, or not often enough: {}",
            missing.join(", ")
        );
    }
    Ok(if violations.is_empty() && missing.is_empty() {
        ExitCode::SUCCESS
    } else {
        eprintln!("--seed {}", scene.seed);
        ExitCode::FAILURE
    })
}

/// Opens the shops, lets clients and accidents loose on them, and closes them when all is over.
async fn act(scene: &Arc<Scene>, clients: u16) -> Result<()> {
    for process in scene.processes() {
        process.until_open().await?;
    }
    let mut tasks: JoinSet<()> = (0..clients)
        .map(|number| Client::new(scene.clone(), number).run())
        .collect();
    accidents::happen(scene).await?;
    scene.calm();
    while let Some(ended) = tasks.join_next().await {
        ended.context("a client")?;
    }
    match scene.kind {
        Kind::Inbox => trade::until_settled(scene).await?,
        Kind::Command | Kind::Outbox => until_delivered(scene).await?,
    }
    // In order: what is still under way comes to its end before we look.
    for process in scene.processes() {
        process.order(Order::Close);
    }
    for process in scene.processes() {
        process.until_ended().await?;
    }
    Ok(())
}

/// Waits until every event has reached its targets, and every receipt the outside, or is dead.
async fn until_delivered(scene: &Scene) -> Result<()> {
    let began = Instant::now();
    loop {
        let waiting = Snapshot::waiting(scene.database, &scene.database_url).await?;
        if waiting == 0 {
            return Ok(());
        }
        if began.elapsed() > DELIVERED_WITHIN {
            return Err(
                format!("{waiting} deliveries still wait {DELIVERED_WITHIN:?} after all was made whole").into(),
            );
        }
        tokio::time::sleep(LOOK_AGAIN * 10).await;
    }
}

/// Keeps the shops running until they are told to close; does not end without an error.
async fn keep_shops(scene: &Arc<Scene>, orders: Vec<Orders>) -> Result<()> {
    let mut tasks = JoinSet::new();
    for (number, orders) in orders.into_iter().enumerate() {
        let scene = scene.clone();
        tasks.spawn(async move {
            let process = scene.processes().nth(number).ok_or("orders for nobody")?;
            process.keep(&scene.recorder, orders).await
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("keeping a shop")??;
    }
    std::future::pending().await
}

/// The server's data vanishes with the server, so what was in it is kept beside the history.
fn write_snapshot(snapshot: &Snapshot, trade: &Trade, directory: &Path) -> Result<()> {
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    enum Row<'a> {
        Effect(&'a snapshot::Effect),
        Key(&'a snapshot::Key),
        Trade(&'a Trade),
    }
    let path = directory.join("database.jsonl");
    let write = || -> Result<()> {
        let mut file = BufWriter::new(File::create(&path)?);
        let effects = snapshot.effects.iter().map(Row::Effect);
        let keys = snapshot.keys.iter().map(Row::Key);
        for row in effects.chain(keys).chain([Row::Trade(trade)]) {
            serde_json::to_writer(&mut file, &row)?;
            file.write_all(b"\n")?;
        }
        Ok(file.flush()?)
    };
    write().context(path.display())
}
