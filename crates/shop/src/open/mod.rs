//! Opening the shop: connect, see that the tables are there, listen, say so, serve.
//!
//! This folder is compiled once for each database, and `super::Db` says for which.

mod tables;
mod clock;

use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use steadfast::{Builder, Code, Steadfast};

use super::{BE_ALONE, COUNT_TABLES, Db, whereabouts};
use crate::lab::{self, Lab};
use crate::orders::Orders;
use crate::payments::Payments;
use crate::problem::{no_such_method, no_such_path};
use crate::quotes::Quotes;
use crate::retention::Retention;
use crate::{ServeOptions, StartError, auth, banner, listen, page};
use clock::Time;

pub(crate) async fn serve(options: &ServeOptions) -> Result<(), StartError> {
    let lab = options.lab.then(Arc::<Lab>::default);
    let sf = open(options, lab.as_ref()).await?;
    tables::create(&sf, options.lab).await?;
    let router = router(&sf, options, lab.as_ref())?;
    let listener = listen::bind(options.listen.as_deref()).await?;
    let whereabouts = whereabouts(&sf.pool().connect_options());
    banner::print(listener.local_addr()?, &whereabouts, options.lab);
    sf.serve(listener, router).await?;
    tracing::info!("the shop is closed");
    Ok(())
}

/// Connects, and creates Steadfast's tables only if they are missing: a role that may not create any can run the shop
/// on a database that somebody else has prepared.
async fn open(options: &ServeOptions, lab: Option<&Arc<Lab>>) -> steadfast::Result<Steadfast<Db>> {
    let builder = connect(options, lab).await?;
    match builder.build().await {
        Err(error) if error.code() == Code::TablesMissing => {
            builder.migrate().await?;
            builder.build().await
        }
        opened => opened,
    }
}

async fn connect(options: &ServeOptions, lab: Option<&Arc<Lab>>) -> steadfast::Result<Builder<Db>> {
    let mut builder = Steadfast::<Db>::connect(&options.database_url).await?;
    if let Some(period) = options.purge_every {
        builder = builder.purge_every(period);
    }
    Ok(match lab.cloned() {
        Some(lab) => builder.observer(move |point, key: &steadfast::Key| lab.reached(point, key)),
        None => builder,
    })
}

fn router(sf: &Steadfast<Db>, options: &ServeOptions, lab: Option<&Arc<Lab>>) -> Result<Router, StartError> {
    let retention = |operation| Retention::of(&options.retention, operation);
    let orders = Orders {
        retention: retention("orders.place"),
        quotes: match &options.outside {
            Some(outside) => Some(Quotes::new(outside, sf.breaker(Quotes::breaker())?)?),
            None => None,
        },
    };
    let payments = Payments {
        retention: retention("payments.make"),
    };
    let mut business = orders.on(sf).routes().merge(payments.on(sf).routes());
    let mut open = page::routes(lab.is_some()).merge(sf.routes());
    if let Some(lab) = lab {
        let time = Time::new(sf);
        business = business
            .route_layer(from_fn_with_state(lab.clone(), lab::arm))
            .route_layer(from_fn_with_state(time.clone(), clock::follow));
        let moved = time
            .clock
            .routes()
            .route_layer(from_fn_with_state(time, clock::go_along));
        open = open.merge(lab::routes(lab.clone())).merge(moved);
    }
    Ok(business
        .route_layer(from_fn(auth::authenticate))
        .merge(open)
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method))
}
