//! Opening the shop, or a warehouse: connect, see that the tables are there, listen, say so, serve.
//!
//! This folder is compiled once for each database, and `super::Db` says for which.

mod tables;
mod clock;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};
use steadfast::{Builder, Code, Dispatcher, Push, Steadfast};

use super::{BE_ALONE, COUNT_TABLES, Db, check_across, whereabouts};
use crate::across::Across;
use crate::digest::Digest;
use crate::jobs;
use crate::lab::{self, Lab, LabObserver};
use crate::mail::Mail;
use crate::orders::Orders;
use crate::payments::Payments;
use crate::problem::{no_such_method, no_such_path, not_in_a_warehouse, not_in_a_worker, stock_elsewhere};
use crate::quotes::Quotes;
use crate::retention::Retention;
use crate::sinks::Sinks;
use crate::sources::{End, Source};
use crate::stock::{Keeper, Stock};
use crate::warehouse::{self, Warehouse};
use crate::{
    NodeOptions, ProcessOptions, ServeOptions, StartError, WarehouseOptions, auth, banner, listen, live, page,
};
use clock::Time;

/// How long a delivery in the lab, or a message that a broker has handed out, belongs to a process that says nothing any more:
/// nobody wants to wait for an accident.
const LAB_LEASE: Duration = Duration::from_secs(2);

/// A process on its database, with its reactions registered, before it listens.
struct Process {
    sf: Steadfast<Db>,
    lab: Option<(Arc<Lab>, Time)>,
    /// What the reactions show of themselves.
    stock: Router,
    live: Push<Db>,
    /// Where its events go beyond it, and where others come from, in words.
    ways: String,
}

/// Opens the shop.
pub(crate) async fn serve(options: &ServeOptions) -> Result<(), StartError> {
    let dispatcher = match options.no_dispatch {
        true => Dispatcher::off(),
        false => Dispatcher::default(),
    };
    let process = Process::open(&options.process, dispatcher).await?;
    let (sf, ways) = (process.sf.clone(), process.ways.clone());
    let router = process.shop(options)?;
    let listener = listen::bind(options.process.node.listen.as_deref(), listen::SHOP_PORT).await?;
    let whereabouts = whereabouts(&sf.pool().connect_options());
    let address = listener.local_addr()?;
    banner::print(&banner::shop(address, &whereabouts, &ways, &options.process));
    sf.serve(listener, router).await?;
    tracing::info!("the shop is closed");
    Ok(())
}

/// Delivers what shops on the same database publish. It listens for operators only.
pub(crate) async fn work(options: &ProcessOptions) -> Result<(), StartError> {
    let process = Process::open(options, Dispatcher::default()).await?;
    let (sf, ways) = (process.sf.clone(), process.ways.clone());
    let router = process.worker();
    let listener = listen::bind(options.node.listen.as_deref(), listen::WORKER_PORT).await?;
    let whereabouts = whereabouts(&sf.pool().connect_options());
    banner::print(&banner::worker(listener.local_addr()?, &whereabouts, &ways, options));
    sf.serve(listener, router).await?;
    tracing::info!("the worker has stopped");
    Ok(())
}

/// Keeps the stock of shops elsewhere. It listens for operators, and shows what there is.
pub(crate) async fn keep_stock(options: &WarehouseOptions) -> Result<(), StartError> {
    let WarehouseOptions { node, source_name, .. } = options;
    let source = Source::read(&options.source, source_name, End::Warehouse, again_after(node))?;
    let sinks = Sinks::of_warehouse(&options.source, source_name)?;
    let lab = node.lab.then(|| Arc::new(Lab::new(node.fault.clone())));
    let url = &options.database_url;
    let sf = open(node, url, "/warehouse", Dispatcher::default(), lab.as_ref()).await?;
    tables::create_warehouse(&sf, node.lab).await?;
    let keeper = Keeper::Warehouse;
    let stock = Stock {
        keeper,
        lab: lab.clone(),
    }
    .on(&sf)
    .routes();
    let ways = source.describe("Orders come from") + &sinks.describe("What it reserves is told to");
    source.declare(&sf);
    sinks.declare(&sf);
    let open = stock.merge(sf.routes()).merge(lab_routes(with_time(&sf, lab).await?));
    let router = open
        .fallback(not_in_a_warehouse)
        .method_not_allowed_fallback(no_such_method);
    let listener = listen::bind(node.listen.as_deref(), listen::WAREHOUSE_PORT).await?;
    let whereabouts = whereabouts(&sf.pool().connect_options());
    banner::print(&banner::warehouse(listener.local_addr()?, &whereabouts, &ways, options));
    sf.serve(listener, router).await?;
    tracing::info!("the warehouse is closed");
    Ok(())
}

impl Process {
    async fn open(options: &ProcessOptions, dispatcher: Dispatcher) -> Result<Self, StartError> {
        let node = &options.node;
        let source = match &options.source {
            Some(url) => Some(Source::read(url, options.sinks.name(), End::Shop, again_after(node))?),
            None => None,
        };
        let sinks = Sinks::read(&options.sinks, options.source.as_deref())?;
        let across = options.push_across.as_deref().map(Across::read).transpose()?;
        check_across(across.as_ref())?;
        let lab = node.lab.then(|| Arc::new(Lab::new(node.fault.clone())));
        let sf = open(node, &options.database_url, "/shop", dispatcher, lab.as_ref()).await?;
        tables::create(&sf, node.lab).await?;
        check_keeper(&sf, source.is_some()).await?;
        let mut ways = sinks.describe("Every event also goes to");
        let stock = match source {
            Some(source) => {
                ways += &source.describe("What the warehouse has reserved comes from");
                Warehouse { lab: lab.clone() }.on(&sf);
                source.declare(&sf);
                Router::new().route("/stock", get(stock_elsewhere))
            }
            None => {
                let keeper = Keeper::Shop;
                Stock {
                    keeper,
                    lab: lab.clone(),
                }
                .on(&sf)
                .routes()
            }
        };
        Digest { lab: lab.clone() }.on(&sf);
        sf.queue(jobs::QUEUE, jobs::queue())?;
        if let Some(outside) = &options.outside {
            Mail::new(outside, sf.breaker(Mail::breaker())?, lab.clone())?.on(&sf);
        }
        ways += &across.as_ref().map(Across::describe).unwrap_or_default();
        let live = live::declare(&sf, across);
        sinks.declare(&sf);
        let lab = with_time(&sf, lab).await?;
        Ok(Self {
            sf,
            lab,
            stock,
            live,
            ways,
        })
    }

    fn shop(self, options: &ServeOptions) -> Result<Router, StartError> {
        let sf = &self.sf;
        let retention = |operation| Retention::of(&options.retention, operation);
        let orders = Orders {
            retention: retention("orders.place"),
            cancel_retention: retention("orders.cancel"),
            remind_after: options.remind_after,
            quotes: match &options.process.outside {
                Some(outside) => Some(Quotes::new(outside, sf.breaker(Quotes::breaker())?)?),
                None => None,
            },
        };
        let payments = Payments {
            retention: retention("payments.make"),
        };
        let mut business = orders
            .on(sf)
            .routes()
            .merge(payments.on(sf).routes())
            .merge(self.stock)
            .route("/session", post(auth::begin_session));
        let mut open = page::routes(self.lab.is_some())
            .merge(sf.routes())
            .route("/events", self.live.route(live::authorize))
            // The same for pages, which bring the cookie of `begin_session`.
            .route("/events/{user}", self.live.route(live::authorize));
        if let Some((lab, time)) = &self.lab {
            business = business
                .route_layer(from_fn_with_state(lab.clone(), lab::arm))
                .route_layer(from_fn_with_state(time.clone(), clock::follow));
        }
        open = open.merge(lab_routes(self.lab));
        Ok(business
            .route_layer(from_fn(auth::authenticate))
            .merge(open)
            .fallback(no_such_path)
            .method_not_allowed_fallback(no_such_method))
    }

    fn worker(self) -> Router {
        let open = self.sf.routes().merge(lab_routes(self.lab));
        open.fallback(not_in_a_worker)
            .method_not_allowed_fallback(no_such_method)
    }
}

/// Two who keep one stock would reserve everything twice, so a process that keeps it and one that leaves it to a warehouse do not
/// come together on one database. What such a process declared there says which it was.
async fn check_keeper(sf: &Steadfast<Db>, has_warehouse: bool) -> Result<(), StartError> {
    let targets = sf.targets().await?;
    let knows = |name: &str| targets.iter().any(|target| target.name == name);
    match has_warehouse {
        true if knows("stock.reserve") => Err(
            "a shop on this database keeps its stock itself, and would reserve what the warehouse \
             reserves; choose another database by --database-url, or leave out --source"
                .into(),
        ),
        false if knows(warehouse::TARGET) => Err(
            "the stock of the shop on this database is kept by a warehouse; say by which broker \
             (--source URL), or choose another database by --database-url"
                .into(),
        ),
        _ => Ok(()),
    }
}

/// After how long a broker hands out again what a dead process had, in the lab.
fn again_after(options: &NodeOptions) -> Option<Duration> {
    options.lab.then_some(LAB_LEASE)
}

/// The lab, living by its own time.
async fn with_time(sf: &Steadfast<Db>, lab: Option<Arc<Lab>>) -> Result<Option<(Arc<Lab>, Time)>, StartError> {
    let Some(lab) = lab else { return Ok(None) };
    let time = Time::new(sf);
    time.keep_up().await?;
    Ok(Some((lab, time)))
}

fn lab_routes(lab: Option<(Arc<Lab>, Time)>) -> Router {
    match lab {
        Some((lab, time)) => lab::routes(lab).merge(time.routes()),
        None => Router::new(),
    }
}

/// Connects, and creates Steadfast's tables only if they are missing: a role that may not create any can run the shop
/// on a database that somebody else has prepared.
async fn open(
    options: &NodeOptions,
    database_url: &str,
    source: &str,
    dispatcher: Dispatcher,
    lab: Option<&Arc<Lab>>,
) -> steadfast::Result<Steadfast<Db>> {
    let builder = Steadfast::<Db>::connect(database_url).await?.source(source)?;
    let builder = prepare(builder, options, dispatcher, lab);
    match builder.build().await {
        Err(error) if error.code() == Code::TablesMissing => {
            builder.migrate().await?;
            builder.build().await
        }
        opened => opened,
    }
}

fn prepare(
    mut builder: Builder<Db>,
    options: &NodeOptions,
    dispatcher: Dispatcher,
    lab: Option<&Arc<Lab>>,
) -> Builder<Db> {
    if let Some(period) = options.purge_every {
        builder = builder.purge_every(period);
    }
    match lab.cloned() {
        Some(lab) => builder
            .observer(LabObserver(lab))
            .dispatcher(dispatcher.lease(LAB_LEASE)),
        None => builder.dispatcher(dispatcher),
    }
}
