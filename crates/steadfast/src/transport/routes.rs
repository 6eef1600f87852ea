//! What an operator asks a process: `/livez`, `/readyz`, `/metrics`, and what a problem means.

use std::time::Duration;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;

use super::problem;
use crate::error::{Code, Error, Result};
use crate::steadfast::Steadfast;
use crate::store::{Database, Store};

/// How long the database may take to answer before the process calls itself not ready.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

impl<Db: Database> Steadfast<Db> {
    /// `GET /livez`, `/readyz` (`?verbose` says why), `/metrics` and `/problems/{code}`.
    pub fn routes<S: Clone + Send + Sync + 'static>(&self) -> Router<S> {
        Router::new()
            .route("/livez", get(async || "ok\n"))
            .route("/readyz", get(readyz::<Db>))
            .route("/metrics", get(metrics))
            .route("/problems/{code}", get(explain))
            .with_state(self.clone())
    }

    /// Whether this process can take work: it is not stopping, the database answers, the tables are ours, and the dispatcher,
    /// if it runs, gets through to the queue. Dead letters and paused targets are for people, not for a load balancer.
    pub(crate) async fn readiness(&self) -> Vec<(&'static str, Result<()>)> {
        let stopping = if self.is_stopping() {
            Err(Error::new(Code::ShuttingDown, "the process is shutting down"))
        } else {
            Ok(())
        };
        let database = self.within_time(async |sf: Self| sf.store().ping().await).await;
        let tables = self
            .within_time(async |sf: Self| sf.store().check_tables_suffice().await)
            .await;
        vec![
            ("running", stopping),
            ("database", database),
            ("tables", tables),
            ("dispatcher", self.can_dispatch()),
        ]
    }

    /// What people want to know, and a load balancer should not act upon.
    fn remarks(&self) -> String {
        let remark = |(name, code)| format!("[!] source {name} receives nothing: {code}\n");
        self.sources().in_trouble().into_iter().map(remark).collect()
    }

    fn can_dispatch(&self) -> Result<()> {
        match self.dispatching().trouble() {
            None => Ok(()),
            Some((code, lasts)) => Err(Error::new(
                code,
                format!(
                    "no message could be delivered for {} s: {}",
                    lasts.as_secs(),
                    code.title()
                ),
            )),
        }
    }

    /// Asks in a task of its own: what takes too long goes on, so that no query is cut off in the middle.
    async fn within_time<F>(&self, ask: impl FnOnce(Self) -> F) -> Result<()>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        match tokio::time::timeout(READY_TIMEOUT, tokio::spawn(ask(self.clone()))).await {
            Ok(Ok(answer)) => answer,
            _ => Err(Error::new(Code::Unreachable, "the database did not answer in time")),
        }
    }
}

async fn readyz<Db: Database>(State(sf): State<Steadfast<Db>>, RawQuery(query): RawQuery) -> Response {
    let checks = sf.readiness().await;
    let is_ready = checks.iter().all(|(_, result)| result.is_ok());
    let status = if is_ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let is_verbose = query.is_some_and(|query| {
        query
            .split('&')
            .any(|part| part == "verbose" || part.starts_with("verbose="))
    });
    let text = if is_verbose {
        let lines = checks.into_iter().map(|(name, result)| match result {
            Ok(()) => format!("[+] {name} ok\n"),
            Err(error) => format!("[-] {name} {}: {error}\n", error.code()),
        });
        lines.chain([sf.remarks()]).collect()
    } else if is_ready {
        "ok\n".to_owned()
    } else {
        "not ready; /readyz?verbose says why\n".to_owned()
    };
    (status, text).into_response()
}

async fn metrics() -> Response {
    #[cfg(feature = "prometheus")]
    if let Some(text) = crate::telemetry::render() {
        return ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response();
    }
    let text = "no recorder is installed; call steadfast::telemetry::install_prometheus() at start\n";
    (StatusCode::NOT_FOUND, [(CONTENT_TYPE, "text/plain")], text).into_response()
}

async fn explain(Path(code): Path<String>) -> Response {
    match Code::ALL
        .iter()
        .find(|known| known.as_str().eq_ignore_ascii_case(&code))
    {
        Some(code) => format!(
            "{code}: {}\nstatus {}\n\n{}\n",
            code.title(),
            problem::status_of(*code),
            code.explanation()
        )
        .into_response(),
        None => (StatusCode::NOT_FOUND, "there is no problem of this code\n").into_response(),
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dispatcher_in_trouble_makes_the_process_not_ready_and_says_why() {
        let sf = Steadfast::<sqlx::Sqlite>::open("sqlite::memory:")
            .await
            .expect("a private file");
        let ask = async || {
            let response = readyz(State(sf.clone()), RawQuery(Some("verbose".to_owned()))).await;
            let status = response.status();
            let body = axum::body::to_bytes(response.into_body(), 4096)
                .await
                .expect("a short body");
            (status, String::from_utf8(body.to_vec()).expect("text"))
        };
        let (status, body) = ask().await;
        assert_eq!(status, StatusCode::OK);
        assert!(body.contains("[+] dispatcher ok\n"), "{body}");

        let error = Error::new(Code::PoolExhausted, "no connection for the engine");
        sf.dispatching().fails(&error);
        assert_eq!(ask().await.0, StatusCode::OK, "a restart of the database takes as long");
        sf.dispatching().has_failed_for(Duration::from_secs(17));
        let (status, body) = ask().await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        let says = format!(
            "[-] dispatcher {}: no message could be delivered for 17 s: ",
            error.code()
        );
        assert!(body.contains("[+] database ok\n") && body.contains(&says), "{body}");

        sf.dispatching().works();
        assert_eq!(ask().await.0, StatusCode::OK);
    }
}
