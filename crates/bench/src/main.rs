//! What Steadfast costs: each bench measures it against baselines in the same run. Called as `cargo xtask bench`.
//!
//! [`command`], [`outbox`], [`inbox`], [`jobs`] and [`retry`] are lists of series of cases, [`service`] is about the compiler, [`breaker`] about nanoseconds. [`measure`] lets the cases of a series take turns,
//! [`report`] makes figures of what came out. Absolute rates are those of this machine today; the ratios are the result.

mod options;
mod command;
mod retry;
mod service;
mod breaker;
mod outbox;
mod inbox;
mod jobs;
mod measure;
mod statistics;
mod meter;
mod report;
mod progress;
mod server;
mod child;
mod disk;
mod error;

use std::process::ExitCode;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::{env, fs};

use clap::Parser;
use tokio::runtime::Runtime;

use error::{Context, Error, Result};
use inbox::memory;
use measure::{Pace, Series};
use options::{Bench, Database, DatabaseOptions, Options, SeriesOptions};
use outbox::push::node;
use progress::Progress;
use report::Figure;

/// The server to measure on. Its settings should be those of production: without fsync, commits are free.
const URL_VARIABLE: &str = "BENCH_DATABASE_URL";

/// What Steadfast costs, measured against baselines in the same run
#[derive(Parser)]
#[command(name = "steadfast-bench", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let runtime = start_runtime()?;
    if let Ok(url) = env::var(node::URL_VARIABLE) {
        // We have been started by ourselves.
        runtime.block_on(node::serve(&url))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Ok(task) = env::var(memory::VARIABLE) {
        runtime.block_on(memory::work_off(&task))?;
        return Ok(ExitCode::SUCCESS);
    }
    let bench = Cli::parse().bench;
    let figures = runtime.block_on(measure_all(&bench))?;
    let is_fine = !bench.options().strict || figures.iter().all(Figure::is_fine);
    Ok(if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn start_runtime() -> Result<Runtime> {
    let cores = available_parallelism().context("counting the processors")?;
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.get())
        .enable_all()
        .build()
        .context("starting the runtime")
}

async fn measure_all(bench: &Bench) -> Result<Vec<Figure>> {
    let server_url = find_server(bench.databases())?;
    let figures = match bench {
        Bench::Command(options) => {
            let series = command::series(options, server_url)?;
            measure_series("command", &options.series, series).await?
        }
        Bench::Outbox(options) => {
            let series = outbox::series(options, server_url)?;
            measure_series("outbox", &options.series, series).await?
        }
        Bench::Inbox(options) => {
            let series = inbox::series(options, server_url)?;
            measure_series("inbox", &options.series, series).await?
        }
        Bench::Jobs(options) => {
            let series = jobs::series(options, server_url)?;
            measure_series("jobs", &options.series, series).await?
        }
        Bench::Retry(options) => measure_series("retry", &options.series, vec![retry::series()]).await?,
        Bench::Service(options) => {
            let figures = Figure::of_series("service", None, &service::measure(&options.options)?);
            print_json(&options.options, &figures)?;
            figures
        }
        Bench::Breaker(options) => {
            let figures = Figure::of_series("breaker", None, &breaker::measure(&options.options)?);
            print_json(&options.options, &figures)?;
            figures
        }
    };
    if !bench.options().json {
        print!("{}", report::table(&figures));
    }
    Ok(figures)
}

/// Measures one series after the other.
async fn measure_series(name: &'static str, options: &SeriesOptions, mut all: Vec<Series>) -> Result<Vec<Figure>> {
    for series in &mut all {
        series.select(&options.cases);
    }
    all.retain(|series| !series.cases.is_empty());
    if all.is_empty() {
        return Err("no case has such a name; without --case you see all of them".into());
    }
    let pace = Pace {
        rounds: options.options.rounds(),
        slice: options.slice(),
    };
    let slices = all.iter().map(|series| series.slices(&pace)).sum();
    let progress = Arc::new(Progress::new(slices));
    let mut figures = Vec::new();
    for series in all {
        progress.say(&describe(&series, &series.pace(&pace)));
        let database = series.database;
        let measured = series.measure(&pace, &progress).await;
        progress.clear();
        let found = Figure::of_series(name, database, &measured?);
        print_json(&options.options, &found)?;
        figures.extend(found);
    }
    Ok(figures)
}

/// JSON is printed as soon as there is a figure; the table comes at the end.
fn print_json(options: &Options, figures: &[Figure]) -> Result<()> {
    for figure in figures.iter().filter(|_| options.json) {
        println!("{}", figure.to_json().context("writing a figure as JSON")?);
    }
    Ok(())
}

/// The server's URL, if PostgreSQL is to be measured and there is one.
fn find_server(options: Option<&DatabaseOptions>) -> Result<Option<String>> {
    let Some(options) = options.filter(|options| options.wants(Database::Postgres)) else {
        return Ok(None);
    };
    let url = env::var(URL_VARIABLE).ok().filter(|url| !url.is_empty());
    if url.is_none() && options.database.is_some() {
        return Err(Error::from(format!(
            "there is no server: set {URL_VARIABLE}, or run it as cargo xtask bench"
        )));
    }
    if url.is_none() {
        eprintln!("NOT RUN  postgres: {URL_VARIABLE} is not set");
    }
    Ok(url)
}

fn describe(series: &Series, pace: &Pace) -> String {
    let names: Vec<_> = series.cases.iter().map(|case| case.name.as_str()).collect();
    format!(
        "{}{}; {} rounds of {:?}",
        measure::place(series.database),
        names.join(", "),
        pace.rounds,
        pace.slice
    )
}

/// A directory that is there, with a word of warning if it is in memory.
fn make_directory(options: &Options) -> Result<()> {
    let directory = &options.directory;
    fs::create_dir_all(directory).context(format!("making the directory {}", directory.display()))?;
    if let Some(kind) = disk::memory_under(directory) {
        let place = directory.display();
        eprintln!("{place} is on {kind}, in memory: a commit costs nothing there, and the ratios mean little");
    }
    Ok(())
}
