//! Push: what was committed, told to live clients.
//!
//! A push is a target of the outbox like any other ([`append`] is its sink): a dispatcher carries events to it, and it appends
//! them to *streams*, tables in the same database, each message once and in an order that is the order of commits. From there
//! every process serves its own clients: one reader for all of them ([`hub`]) hears of new entries and reads each once, however
//! many follow the stream ([`subscription`]). Because the stream is in the database, a client may lose its connection, its
//! process or its node and go on where it was, by the place it has last seen ([`place`]).
//!
//! Processes tell each other of new entries by the database, or by a broker ([`across`]).
//!
//! [`route`] is the door: it asks who may hear what, and speaks [server-sent events](sse) or [WebSocket](websocket).

mod across;
mod append;
mod entry;
mod hub;
mod name;
mod notice;
mod place;
mod ring;
mod route;
mod sse;
mod subscription;
mod websocket;

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use crate::broker::Messenger;
use crate::clock::ReadDuration;
use crate::error::{Code, Error};
use crate::outbox::Event;
use crate::steadfast::Steadfast;
use crate::store::{Database, Store};

use across::Across;
use append::Append;
pub use append::Pushes;
use hub::Hub;
pub use name::StreamName;

/// How often a client that hears nothing else hears that the connection lives. Proxies give up after 30 or 60 seconds.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// How many clients one process serves.
const SUBSCRIBERS_MAX: usize = 10_000;

/// How long a subscription lasts before the client has to come back, and be authorised again.
const SUBSCRIPTION_MAX: Duration = Duration::from_secs(60 * 60);

/// What live clients are told: declared by [`Steadfast::push`].
#[must_use = "nothing is pushed before `start`"]
pub struct PushTarget<'s, Db: Database> {
    sf: &'s Steadfast<Db>,
    name: String,
    routes: HashMap<&'static str, append::Route>,
    across: Option<Across>,
    options: Options,
    location: &'static Location<'static>,
}

/// How clients are served.
#[derive(Clone, Debug)]
struct Options {
    heartbeat: Duration,
    subscribers_max: usize,
    subscription_max: Duration,
    origins: Vec<String>,
}

impl<Db: Database> Steadfast<Db> {
    /// Declares what live clients are told, under a name that is stored with every delivery: choose it once.
    ///
    /// A push is a reason to look again, not the state itself: what clients see comes from the same queries as ever.
    ///
    /// ```
    /// use axum::Router;
    /// use axum::http::StatusCode;
    /// use axum::response::IntoResponse;
    /// use serde_json::json;
    /// use steadfast::sqlx::Sqlite;
    /// use steadfast::{Event, Steadfast, StreamName};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct OrderPlaced { id: i64, customer: String }
    ///
    /// impl Event for OrderPlaced {
    ///     const TYPE: &'static str = "order.placed";
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sf = Steadfast::<Sqlite>::open("sqlite::memory:").await?;
    /// let live = sf
    ///     .push("live")
    ///     .event(|order: &OrderPlaced, to| {
    ///         to.push(StreamName::user(&order.customer), &json!({ "order": order.id }));
    ///     })
    ///     .start();
    ///
    /// // GET /events: who asks hears what this function says, and nothing else.
    /// let events = live.route(async |request| {
    ///     let user = request.headers.get("x-user").and_then(|user| user.to_str().ok());
    ///     match user {
    ///         Some(user) => Ok(vec![StreamName::user(user)]),
    ///         None => Err(StatusCode::UNAUTHORIZED.into_response()),
    ///     }
    /// });
    /// let app: Router = Router::new().route("/events", events);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn push(&self, name: &str) -> PushTarget<'_, Db> {
        PushTarget {
            sf: self,
            name: name.to_owned(),
            routes: HashMap::new(),
            across: None,
            options: Options {
                heartbeat: HEARTBEAT,
                subscribers_max: SUBSCRIBERS_MAX,
                subscription_max: SUBSCRIPTION_MAX,
                origins: Vec::new(),
            },
            location: Location::caller(),
        }
    }
}

impl<Db: Database> PushTarget<'_, Db> {
    /// Which streams hear of events of this type, and what they are told. The function gets the event, and says it to
    /// [`Pushes`]; what it does not say is not told.
    ///
    /// # Panics
    /// With SF303 if the type is there already, or is one of events that [stay in their process](Event::IN_PROCESS).
    pub fn event<E: Event>(mut self, route: impl Fn(&E, &mut Pushes) + Send + Sync + 'static) -> Self {
        if E::IN_PROCESS {
            refuse(format!(
                "events of the type {:?} stay in their process, so they cannot be pushed; leave out IN_PROCESS",
                E::TYPE
            ));
        }
        if self.routes.insert(E::TYPE, append::route(route)).is_some() {
            refuse(format!(
                "the push {:?} says twice where events of the type {:?} go; write one function",
                self.name,
                E::TYPE
            ));
        }
        self
    }

    /// Has the processes of this service tell each other of new entries over a broker, instead of by PostgreSQL's `NOTIFY`: behind a
    /// pooler that lets no notice through, or where there are many processes. Say it in each of them.
    ///
    /// ```no_run
    /// # use steadfast::{Event, Steadfast, StreamName};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct OrderPlaced { customer: String }
    /// # impl Event for OrderPlaced { const TYPE: &'static str = "order.placed"; }
    /// # #[cfg(all(feature = "redis", feature = "postgres"))]
    /// # fn example(sf: &Steadfast<steadfast::sqlx::Postgres>) -> steadfast::Result<()> {
    /// use steadfast::RedisPubSub; // or NatsPubSub
    ///
    /// let live = sf
    ///     .push("live")
    ///     .across(RedisPubSub::at("rediss://shop:secret@redis.example.org")?)
    ///     .event(|order: &OrderPlaced, to| to.push(StreamName::user(&order.customer), &()))
    ///     .start();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A notice says which streams have grown, after the commit, and nothing of what is in them: that is read from the database as
    /// ever. Nothing depends on one being heard. While the broker is away streams are looked at every two seconds, and it is tried
    /// again.
    ///
    /// # Panics
    /// With SF303 on SQLite: processes that share its file see what is written to it.
    pub fn across(mut self, messenger: impl Messenger) -> Self {
        if !Db::Store::NEEDS_ANNOUNCEMENTS {
            refuse(format!(
                "the push {:?} goes across nodes by a broker, but those that share a file of SQLite see what is written to it; \
                 leave out `across`",
                self.name
            ));
        }
        self.across = Some(Across::new(messenger));
        self
    }

    /// How often a client that hears nothing else hears that the connection lives; 15 seconds by default.
    ///
    /// # Panics
    /// If the text is no duration, or is zero.
    pub fn heartbeat(mut self, every: impl ReadDuration) -> Self {
        self.options.heartbeat = read(every, "a heartbeat");
        self
    }

    /// How many clients one process serves; 10,000 by default. Those beyond are asked to come back.
    pub fn subscribers_max(mut self, count: usize) -> Self {
        self.options.subscribers_max = count;
        self
    }

    /// How long a client is served before it has to come back, and be authorised again; roughly one hour by default. Nobody
    /// misses anything by it.
    ///
    /// # Panics
    /// If the text is no duration, or is zero.
    pub fn subscription_max(mut self, duration: impl ReadDuration) -> Self {
        self.options.subscription_max = read(duration, "a subscription");
        self
    }

    /// Lets pages of another origin, such as `https://shop.example.com`, connect by WebSocket. Those of the host itself may,
    /// and whoever is no page.
    pub fn allow_origin(mut self, origin: &str) -> Self {
        self.options.origins.push(origin.to_owned());
        self
    }

    /// Declares it. Clients connect by [`Push::route`].
    ///
    /// # Panics
    /// With SF305 if another target has the name. With SF303 if the name is not usable, or there is no event.
    pub fn start(self) -> Push<Db> {
        if self.routes.is_empty() {
            refuse(format!("the push {:?} has no events; say which by `event`", self.name));
        }
        let hub = Arc::new(Hub::new(self.across));
        let mut sink = self.sf.sink_at(&self.name, self.location);
        for event_type in self.routes.keys() {
            sink = sink.events(event_type);
        }
        sink.deliver_to(Append {
            sf: self.sf.downgrade(),
            hub: hub.clone(),
            routes: self.routes,
        });
        Push {
            sf: self.sf.clone(),
            hub,
            options: Arc::new(self.options),
        }
    }
}

fn refuse(message: String) -> ! {
    panic!("{:?}", Error::new(Code::ConfigurationInvalid, message));
}

fn read(duration: impl ReadDuration, what: &str) -> Duration {
    match duration.read_duration() {
        Ok(duration) if !duration.is_zero() => duration,
        Ok(_) => refuse(format!("{what} cannot take no time; write one such as \"15s\"")),
        Err(error) => panic!("{error:?}"),
    }
}

/// What live clients connect to. Cheap to clone.
pub struct Push<Db: Database> {
    sf: Steadfast<Db>,
    hub: Arc<Hub>,
    options: Arc<Options>,
}

impl<Db: Database> Clone for Push<Db> {
    fn clone(&self) -> Self {
        Self {
            sf: self.sf.clone(),
            hub: self.hub.clone(),
            options: self.options.clone(),
        }
    }
}

impl<Db: Database> fmt::Debug for Push<Db> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Push")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
