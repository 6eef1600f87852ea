//! Opening the shop: connect, see that the tables are there, listen, say so, serve.
//!
//! This folder is compiled once for each database, and `super::Db` says for which.

mod tables;
mod clock;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::post;
use steadfast::{Builder, Code, Dispatcher, Push, Steadfast};

use super::{BE_ALONE, COUNT_TABLES, Db, whereabouts};
use crate::lab::{self, Lab, LabObserver};
use crate::mail::Mail;
use crate::orders::Orders;
use crate::payments::Payments;
use crate::problem::{no_such_method, no_such_path, not_in_a_worker};
use crate::quotes::Quotes;
use crate::retention::Retention;
use crate::sinks::Sinks;
use crate::stock::Stock;
use crate::{ProcessOptions, ServeOptions, StartError, auth, banner, listen, live, page};
use clock::Time;

/// How long a delivery in the lab belongs to a process that says nothing any more: nobody wants to wait for an accident.
const LAB_LEASE: Duration = Duration::from_secs(2);

/// A process on its database, with its reactions registered, before it listens.
struct Process {
    sf: Steadfast<Db>,
    lab: Option<(Arc<Lab>, Time)>,
    /// What the reactions show of themselves.
    stock: Router,
    live: Push<Db>,
    /// Where its events go beyond it, in words.
    sinks: String,
}

/// Opens the shop.
pub(crate) async fn serve(options: &ServeOptions) -> Result<(), StartError> {
    let dispatcher = match options.no_dispatch {
        true => Dispatcher::off(),
        false => Dispatcher::default(),
    };
    let process = Process::open(&options.process, dispatcher).await?;
    let (sf, sinks) = (process.sf.clone(), process.sinks.clone());
    let router = process.shop(options)?;
    let listener = listen::bind(options.process.listen.as_deref(), listen::SHOP_PORT).await?;
    let whereabouts = whereabouts(&sf.pool().connect_options());
    let is_lab = options.process.lab;
    banner::print(&banner::shop(listener.local_addr()?, &whereabouts, &sinks, is_lab));
    sf.serve(listener, router).await?;
    tracing::info!("the shop is closed");
    Ok(())
}

/// Delivers what shops on the same database publish. It listens for operators only.
pub(crate) async fn work(options: &ProcessOptions) -> Result<(), StartError> {
    let process = Process::open(options, Dispatcher::default()).await?;
    let (sf, sinks) = (process.sf.clone(), process.sinks.clone());
    let router = process.worker();
    let listener = listen::bind(options.listen.as_deref(), listen::WORKER_PORT).await?;
    let whereabouts = whereabouts(&sf.pool().connect_options());
    banner::print(&banner::worker(listener.local_addr()?, &whereabouts, &sinks, options));
    sf.serve(listener, router).await?;
    tracing::info!("the worker has stopped");
    Ok(())
}

impl Process {
    async fn open(options: &ProcessOptions, dispatcher: Dispatcher) -> Result<Self, StartError> {
        let sinks = Sinks::read(&options.sinks)?;
        let lab = options.lab.then(|| Arc::new(Lab::new(options.fault.clone())));
        let sf = open(options, dispatcher, lab.as_ref()).await?;
        tables::create(&sf, options.lab).await?;
        let stock = Stock { lab: lab.clone() }.on(&sf).routes();
        if let Some(outside) = &options.outside {
            Mail::new(outside, sf.breaker(Mail::breaker())?, lab.clone())?.on(&sf);
        }
        let live = live::declare(&sf);
        let said = sinks.describe();
        sinks.declare(&sf);
        let lab = match lab {
            Some(lab) => {
                let time = Time::new(&sf);
                time.keep_up().await?;
                Some((lab, time))
            }
            None => None,
        };
        Ok(Self {
            sf,
            lab,
            stock,
            live,
            sinks: said,
        })
    }

    fn shop(self, options: &ServeOptions) -> Result<Router, StartError> {
        let sf = &self.sf;
        let retention = |operation| Retention::of(&options.retention, operation);
        let orders = Orders {
            retention: retention("orders.place"),
            cancel_retention: retention("orders.cancel"),
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
        if let Some((lab, time)) = self.lab {
            business = business
                .route_layer(from_fn_with_state(lab.clone(), lab::arm))
                .route_layer(from_fn_with_state(time.clone(), clock::follow));
            open = open.merge(lab::routes(lab)).merge(time.routes());
        }
        Ok(business
            .route_layer(from_fn(auth::authenticate))
            .merge(open)
            .fallback(no_such_path)
            .method_not_allowed_fallback(no_such_method))
    }

    fn worker(self) -> Router {
        let mut open = self.sf.routes();
        if let Some((lab, time)) = self.lab {
            open = open.merge(lab::routes(lab)).merge(time.routes());
        }
        open.fallback(not_in_a_worker)
            .method_not_allowed_fallback(no_such_method)
    }
}

/// Connects, and creates Steadfast's tables only if they are missing: a role that may not create any can run the shop
/// on a database that somebody else has prepared.
async fn open(
    options: &ProcessOptions,
    dispatcher: Dispatcher,
    lab: Option<&Arc<Lab>>,
) -> steadfast::Result<Steadfast<Db>> {
    let builder = connect(options, dispatcher, lab).await?;
    match builder.build().await {
        Err(error) if error.code() == Code::TablesMissing => {
            builder.migrate().await?;
            builder.build().await
        }
        opened => opened,
    }
}

async fn connect(
    options: &ProcessOptions,
    dispatcher: Dispatcher,
    lab: Option<&Arc<Lab>>,
) -> steadfast::Result<Builder<Db>> {
    let mut builder = Steadfast::<Db>::connect(&options.database_url).await?.source("/shop")?;
    if let Some(period) = options.purge_every {
        builder = builder.purge_every(period);
    }
    Ok(match lab.cloned() {
        Some(lab) => builder
            .observer(LabObserver(lab))
            .dispatcher(dispatcher.lease(LAB_LEASE)),
        None => builder.dispatcher(dispatcher),
    })
}
