//! How the services behave: `POST /behaviour` says what happens to the next calls of one, or to a share of them.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use steadfast::parse_duration;

use super::{Outside, Service, read};
use crate::problem::Problem;

/// Longer than any client waits.
const DELAY_MAX: Duration = Duration::from_secs(60);

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behaviour {
    /// It is done and answered.
    Succeed,
    /// It is not done, and answered with this status.
    Fail(u16),
    /// It is done, and answered after this long.
    Slow(Duration),
    /// It is done, and the connection is dropped.
    Drop,
}

impl fmt::Display for Behaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Succeed => f.write_str("succeed"),
            Self::Fail(status) => write!(f, "fail {status}"),
            Self::Slow(delay) => write!(f, "slow {}ms", delay.as_millis()),
            Self::Drop => f.write_str("drop"),
        }
    }
}

/// Which calls a rule is about.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Extent {
    All,
    /// So many more.
    Next(u64),
    /// This part of them, evenly: of `0.25`, every fourth.
    Share {
        part: f64,
        seen: u64,
    },
}

impl Extent {
    /// Whether the next call is one of them; counts it.
    fn covers_next(&mut self) -> bool {
        match self {
            Self::All => true,
            Self::Next(left) => {
                let is_covered = *left > 0;
                *left = left.saturating_sub(1);
                is_covered
            }
            Self::Share { part, seen } => {
                let covered_by = |calls: u64| (calls as f64 * *part).floor();
                *seen += 1;
                covered_by(*seen) > covered_by(*seen - 1)
            }
        }
    }
}

struct Rule {
    service: Service,
    behaviour: Behaviour,
    extent: Extent,
}

/// All rules, the newest last. A call follows the newest that covers it; without one, it succeeds.
#[derive(Default)]
pub(super) struct Behaviours(Mutex<Vec<Rule>>);

impl Behaviours {
    pub(super) fn next(&self, service: Service) -> Behaviour {
        let mut rules = self.rules();
        let mut of_service = rules.iter_mut().rev().filter(|rule| rule.service == service);
        let found = of_service.find_map(|rule| rule.extent.covers_next().then_some(rule.behaviour));
        rules.retain(|rule| rule.extent != Extent::Next(0));
        found.unwrap_or(Behaviour::Succeed)
    }

    fn rules(&self) -> MutexGuard<'_, Vec<Rule>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn describe(&self) -> Value {
        let rules = self.rules();
        let each = rules.iter().rev().map(|rule| {
            let extent = match rule.extent {
                Extent::All => json!("all"),
                Extent::Next(left) => json!({ "next": left }),
                Extent::Share { part, .. } => json!({ "share": part }),
            };
            json!({ "service": rule.service.as_str(), "do": rule.behaviour.to_string(), "for": extent })
        });
        json!({ "behaviours": each.collect::<Vec<_>>() })
    }
}

/// The body of `POST /behaviour`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wish {
    service: String,
    r#do: String,
    status: Option<u16>,
    delay: Option<String>,
    next: Option<u64>,
    share: Option<f64>,
}

impl Wish {
    fn rule(&self) -> Result<Rule, String> {
        let known = Service::ALL.map(Service::as_str).join(", ");
        let service = Service::read(&self.service)
            .ok_or_else(|| format!("service is {:?}; it is one of {known}", self.service))?;
        let behaviour = match (self.r#do.as_str(), self.status, &self.delay) {
            ("succeed", None, None) => Behaviour::Succeed,
            ("drop", None, None) => Behaviour::Drop,
            ("fail", Some(status @ 400..=599), None) => Behaviour::Fail(status),
            ("slow", None, Some(delay)) => match parse_duration(delay) {
                Ok(delay) if delay <= DELAY_MAX => Behaviour::Slow(delay),
                Ok(_) => return Err(format!("delay is {delay}; send at most 60s")),
                Err(error) => return Err(error.to_string()),
            },
            ("fail", _, None) => return Err("fail needs a status from 400 to 599".into()),
            ("slow", None, None) => return Err("slow needs a delay, as in \"2s\"".into()),
            _ => {
                return Err(format!(
                    "do is {:?} with a status or a delay that does not belong to it; send succeed, drop, fail with a status, or slow with \
                     a delay",
                    self.r#do
                ));
            }
        };
        let extent = match (self.next, self.share) {
            (None, None) => Extent::All,
            (Some(next), None) if next > 0 => Extent::Next(next),
            (None, Some(part)) if part > 0.0 && part <= 1.0 => Extent::Share { part, seen: 0 },
            (Some(_), Some(_)) => return Err("next and share are both there; send one of them".into()),
            (Some(_), None) => return Err("next is 0; send 1 or more".into()),
            (None, Some(part)) => return Err(format!("share is {part}; send more than 0 and at most 1")),
        };
        Ok(Rule {
            service,
            behaviour,
            extent,
        })
    }
}

/// `GET`, `POST` and `DELETE /behaviour`.
pub(super) fn routes() -> Router<Outside> {
    Router::new().route("/behaviour", get(show).post(add).delete(clear))
}

async fn show(State(outside): State<Outside>) -> Json<Value> {
    Json(outside.behaviours.describe())
}

async fn add(State(outside): State<Outside>, body: Bytes) -> Response {
    let wish: Wish = match read(&body) {
        Ok(wish) => wish,
        Err(refused) => return refused.into_response(),
    };
    match wish.rule() {
        Ok(rule) => {
            outside.behaviours.rules().push(rule);
            (StatusCode::CREATED, Json(outside.behaviours.describe())).into_response()
        }
        Err(detail) => Problem::new(StatusCode::BAD_REQUEST, "invalid", detail).into_response(),
    }
}

/// Everything succeeds again.
async fn clear(State(outside): State<Outside>) -> StatusCode {
    outside.behaviours.rules().clear();
    StatusCode::NO_CONTENT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behaviours(wishes: &[&str]) -> Behaviours {
        let rule = |text: &&str| serde_json::from_str::<Wish>(text).expect(text).rule().expect(text);
        Behaviours(Mutex::new(wishes.iter().map(rule).collect()))
    }

    fn next(behaviours: &Behaviours, calls: usize) -> Vec<String> {
        (0..calls).map(|_| behaviours.next(Service::Mail).to_string()).collect()
    }

    #[test]
    fn the_next_calls_of_one_service_behave_as_told_and_then_all_succeed() {
        let told = behaviours(&[r#"{"service":"mail","do":"fail","status":503,"next":2}"#]);
        assert_eq!(told.next(Service::Shipping), Behaviour::Succeed);
        assert_eq!(next(&told, 3), ["fail 503", "fail 503", "succeed"]);
        assert_eq!(told.describe(), json!({ "behaviours": [] }));
    }

    #[test]
    fn a_share_is_spread_evenly_and_the_newest_rule_goes_first() {
        let told = behaviours(&[
            r#"{"service":"mail","do":"slow","delay":"1s"}"#,
            r#"{"service":"mail","do":"drop","share":0.25}"#,
        ]);
        let expected = ["slow 1000ms", "slow 1000ms", "slow 1000ms", "drop"];
        assert_eq!(next(&told, 8), [expected, expected].concat());
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_can() {
        for (wish, says) in [
            (r#"{"service":"post","do":"drop"}"#, "mail, payments"),
            (r#"{"service":"mail","do":"explode"}"#, "send succeed"),
            (r#"{"service":"mail","do":"fail"}"#, "400 to 599"),
            (r#"{"service":"mail","do":"fail","status":200}"#, "400 to 599"),
            (r#"{"service":"mail","do":"slow"}"#, "needs a delay"),
            (r#"{"service":"mail","do":"slow","delay":"2h"}"#, "at most 60s"),
            (r#"{"service":"mail","do":"slow","delay":"soon"}"#, "not a duration"),
            (r#"{"service":"mail","do":"drop","status":500}"#, "does not belong"),
            (r#"{"service":"mail","do":"drop","next":0}"#, "1 or more"),
            (r#"{"service":"mail","do":"drop","share":1.5}"#, "at most 1"),
            (r#"{"service":"mail","do":"drop","share":0.5,"next":1}"#, "one of them"),
        ] {
            let refused = serde_json::from_str::<Wish>(wish).expect(wish).rule();
            let message = refused.err().expect(wish);
            assert!(message.contains(says), "{wish}: {message}");
        }
    }
}
