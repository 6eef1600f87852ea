//! What endangers messages that RabbitMQ has confirmed.
//!
//! AMQP has no question for the properties of a queue or an exchange. But whoever declares one that is there in another way is
//! refused, and told the first property that differs and what it really is. So each is declared in a way that it cannot be: the
//! broker makes nothing of that, not even if the thing is gone by then, and writes a line into its log.

use std::time::Duration;

use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::protocol::AMQPSoftError;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::uri::AMQPScheme;
use lapin::{Channel, Connection, ErrorKind, ExchangeKind};
use tokio::time::timeout;

use super::{DELIVERY_LIMIT, RabbitMq, soft};
use crate::broker::plaintext;
use crate::doctor::Check;

/// How long the broker may take to answer a question.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// How many arguments of a queue are passed on the way to its type: there are no more that RabbitMQ compares.
const ARGUMENTS_MAX: usize = 30;

/// A queue of no type that there is. RabbitMQ knows types since 3.8, and refuses others. It is short, since what the broker says has
/// 255 bytes at the most, and what matters comes last.
const NO_TYPE: &str = "none";

/// From here on a limit of deliveries is out of reach.
const DELIVERIES_MANY: i64 = 1_000_000;

impl RabbitMq {
    /// Looks at the broker, its [`exchange`](Self::exchange) and these queues: whether what they confirm is safe. It changes
    /// nothing. AMQP cannot list queues, so they are to be named.
    ///
    /// The user needs the right to configure what is looked at; without it, only whether it is there is known. RabbitMQ has to be
    /// 3.8 or later, and logs each question as a declaration that it has refused.
    ///
    /// ```
    /// use steadfast::{RabbitMq, Verdict};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> steadfast::Result<()> {
    /// let checks = RabbitMq::at("amqp://127.0.0.1:1")?.examine(&["orders"]).await; // nobody is there
    /// assert_eq!((checks[0].name, checks[0].verdict), ("reachable", Verdict::Fail));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn examine(&self, queues: &[&str]) -> Vec<Check> {
        let mut link = self.link.lock().await;
        let connection = match self.connection(&mut link).await {
            Ok(connection) => connection,
            Err(why) => return vec![unreachable(&why)],
        };
        let is_encrypted = self.uri.scheme == AMQPScheme::AMQPS;
        let instead = "let the broker speak TLS, and write amqps://";
        let mut checks = vec![
            Check::ok("reachable", "RabbitMQ answers"),
            plaintext::encryption(is_encrypted, &self.uri.authority.host, instead),
        ];
        if !self.exchange.as_str().is_empty() {
            checks.push(exchange(connection, &self.exchange).await);
        }
        if queues.is_empty() {
            checks.push(Check::ok(
                "queue",
                "none was looked at: AMQP lists none, so they are to be named",
            ));
        }
        for name in queues {
            checks.push(queue(connection, name).await);
        }
        checks
    }
}

fn unreachable(why: &str) -> Check {
    let fix = match why.contains("ACCESS_REFUSED") || why.contains("NOT_ALLOWED") {
        true => "look at user, password and vhost in the URL; the vhost `/` is written %2f",
        false => "start the broker, or look at host and port in the URL",
    };
    Check::fail("reachable", format!("RabbitMQ is not to be had: {why}"), fix)
}

async fn queue(connection: &Connection, name: &str) -> Check {
    let unknown = |why: &str| unknown("queue", name, why);
    let Ok(short) = ShortString::try_new(name) else {
        return unknown("its name is too long");
    };
    match ask(connection, |channel| look_for_queue(channel, &short)).await {
        Answer::Yes => {}
        Answer::Missing => return missing("queue", name, "unroutable"),
        // It is there, and belongs to somebody else.
        Answer::Locked => return exclusive(name),
        Answer::Differs(_) | Answer::Other(_) => return unknown("RabbitMQ does not say whether it is there"),
    }
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString(NO_TYPE.into()));
    for _ in 0..ARGUMENTS_MAX {
        let difference = match ask(connection, |channel| declare_queue(channel, &short, &arguments)).await {
            Answer::Differs(difference) => difference,
            Answer::Locked => return exclusive(name),
            Answer::Other(why) => return unknown(&why),
            Answer::Yes | Answer::Missing => return unknown("RabbitMQ is older than 3.8"),
        };
        match (&*difference.property, difference.current) {
            ("durable", _) => return transient_queue(name),
            ("auto_delete", _) => return vanishing("queue", name, "consumer"),
            ("x-queue-type", current) => {
                let kind = current.map_or_else(|| "classic".to_owned(), |current| current.value);
                let judged = judge_type(name, &kind);
                let has_exchange = arguments.contains_key("x-dead-letter-exchange");
                if kind != "quorum" || has_exchange {
                    return judged;
                }
                let limit = delivery_limit(connection, &short, arguments).await;
                return limit.and_then(|limit| dropping(name, &limit)).unwrap_or(judged);
            }
            // It is compared before the type: agree, and ask again.
            (property, Some(current)) => {
                let Some(value) = current.as_argument() else {
                    return unknown(&format!("it has an argument {property} that cannot be repeated"));
                };
                arguments.insert(property.into(), value);
            }
            (property, None) => return unknown(&format!("RabbitMQ says nothing of its {property}")),
        }
    }
    unknown("it has too many arguments")
}

async fn exchange(connection: &Connection, name: &ShortString) -> Check {
    match ask(connection, |channel| look_for_exchange(channel, name)).await {
        Answer::Yes => {}
        Answer::Missing => return missing("exchange", name.as_str(), "no_such_exchange"),
        _ => return unknown("exchange", name.as_str(), "RabbitMQ does not say whether it is there"),
    }
    let mut kind = ExchangeKind::Topic;
    // The kind is compared first: if it is another one, agree, and ask again.
    for _ in 0..2 {
        let difference = match ask(connection, |channel| declare_exchange(channel, name, &kind)).await {
            Answer::Differs(difference) => difference,
            Answer::Other(why) => return unknown("exchange", name.as_str(), &why),
            _ => break,
        };
        match (&*difference.property, difference.current) {
            ("type", Some(current)) => kind = ExchangeKind::Custom(current.value),
            ("durable", _) => {
                return Check::warn(
                    "exchange",
                    format!("the exchange {name} is not durable"),
                    "delete it and declare it durable: a broker that is started again has lost it, with its bindings, and messages \
                     fail until both are back",
                );
            }
            ("auto_delete", _) => return vanishing("exchange", name.as_str(), "binding"),
            _ => return Check::ok("exchange", format!("the exchange {name} is durable")),
        }
    }
    unknown("exchange", name.as_str(), "RabbitMQ does not say what it is like")
}

/// How often a quorum queue hands a message out before it drops it, if that is settled with the queue. A policy may settle it too, and
/// RabbitMQ has a default since 4.0; AMQP tells neither.
async fn delivery_limit(connection: &Connection, name: &ShortString, mut arguments: FieldTable) -> Option<String> {
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert(DELIVERY_LIMIT.into(), AMQPValue::LongString(NO_TYPE.into()));
    // Who leads a queue is no number: nothing is made with that, and it is not compared before the limit.
    arguments.insert("x-queue-leader-locator".into(), AMQPValue::LongInt(0));
    match ask(connection, |channel| declare_queue(channel, name, &arguments)).await {
        Answer::Differs(difference) if difference.property == DELIVERY_LIMIT => Some(difference.current?.value),
        _ => None,
    }
}

fn dropping(name: &str, limit: &str) -> Option<Check> {
    let is_out_of_reach = limit.parse::<i64>().is_ok_and(|limit| limit >= DELIVERIES_MANY);
    (!is_out_of_reach).then(|| {
        Check::warn(
            "queue",
            format!("the queue {name} drops what was handed out {limit} times, and has no dead-letter exchange"),
            "make it anew with an `x-delivery-limit` of 2147483647, or give it a dead-letter exchange (`x-dead-letter-exchange`, or a \
             policy): a consumer that is started again and again loses messages otherwise",
        )
    })
}

fn judge_type(name: &str, kind: &str) -> Check {
    match kind {
        "classic" => Check::warn(
            "queue",
            format!(
                "the queue {name} is durable and classic: one machine has it, unless a policy mirrors it, which AMQP does not tell"
            ),
            "make it a quorum queue (`x-queue-type: quorum`), if what it has should survive the loss of a machine",
        ),
        kind => Check::ok("queue", format!("the queue {name} is durable and replicated ({kind})")),
    }
}

fn transient_queue(name: &str) -> Check {
    Check::fail(
        "queue",
        format!("the queue {name} is not durable"),
        "delete it and declare it durable: a broker that is started again has lost it, with everything that was confirmed",
    )
}

fn exclusive(name: &str) -> Check {
    Check::fail(
        "queue",
        format!("the queue {name} belongs to one connection alone"),
        "declare it without `exclusive`: it ends with that connection, with everything that was confirmed",
    )
}

fn vanishing(what: &'static str, name: &str, last: &str) -> Check {
    Check::warn(
        what,
        format!("the {what} {name} is deleted with its last {last}"),
        "declare it without `auto-delete`, if it should be there while nobody uses it",
    )
}

fn missing(what: &'static str, name: &str, code: &str) -> Check {
    Check::fail(
        what,
        format!("there is no {what} {name}"),
        format!("declare it, or look at its name and at the vhost: until then messages for it fail as {code}"),
    )
}

fn unknown(what: &'static str, name: &str, why: &str) -> Check {
    Check::warn(
        what,
        format!("nothing is known of the {what} {name}: {why}"),
        "let the user configure it, or ask whoever runs the broker",
    )
}

/// What the broker says to a declaration.
enum Answer {
    Yes,
    Missing,
    /// It belongs to another connection.
    Locked,
    /// It is there, and otherwise.
    Differs(Difference),
    Other(String),
}

/// Asks on a channel of its own, since the broker closes it if it says no.
async fn ask<F: Future<Output = lapin::Result<()>>>(
    connection: &Connection,
    question: impl FnOnce(Channel) -> F,
) -> Answer {
    let asking = async { question(connection.create_channel().await?).await };
    let error = match timeout(ANSWER_LIMIT, asking).await {
        Ok(Ok(())) => return Answer::Yes,
        Ok(Err(error)) => error,
        Err(_) => return Answer::Other("RabbitMQ does not answer".to_owned()),
    };
    match soft(&error) {
        Some(AMQPSoftError::NOTFOUND) => Answer::Missing,
        Some(AMQPSoftError::RESOURCELOCKED) => Answer::Locked,
        _ => Difference::of(&error).map_or_else(|| Answer::Other(said(&error)), Answer::Differs),
    }
}

fn said(error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        _ => error.to_string(),
    }
}

async fn look_for_queue(channel: Channel, name: &ShortString) -> lapin::Result<()> {
    let options = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let looked = channel
        .queue_declare(name.clone(), options, FieldTable::default())
        .await;
    looked.map(drop)
}

async fn look_for_exchange(channel: Channel, name: &ShortString) -> lapin::Result<()> {
    let options = ExchangeDeclareOptions {
        passive: true,
        ..ExchangeDeclareOptions::default()
    };
    channel
        .exchange_declare(name.clone(), ExchangeKind::Topic, options, FieldTable::default())
        .await
}

async fn declare_queue(channel: Channel, name: &ShortString, arguments: &FieldTable) -> lapin::Result<()> {
    let options = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    channel
        .queue_declare(name.clone(), options, arguments.clone())
        .await
        .map(drop)
}

async fn declare_exchange(channel: Channel, name: &ShortString, kind: &ExchangeKind) -> lapin::Result<()> {
    let options = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    // The name of an exchange is no number: nothing is made with that, and nothing has it.
    let mut arguments = FieldTable::default();
    arguments.insert("alternate-exchange".into(), AMQPValue::LongInt(0));
    channel
        .exchange_declare(name.clone(), kind.clone(), options, arguments)
        .await
}

/// The first property that is not as declared.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) property: String,
    pub(super) current: Option<Current>,
}

/// What a property is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Current {
    value: String,
    /// As RabbitMQ calls it; only arguments have one.
    kind: Option<String>,
}

impl Difference {
    /// What the broker says to whoever declares something in another way.
    pub(super) fn of(error: &lapin::Error) -> Option<Self> {
        match soft(error) {
            Some(AMQPSoftError::PRECONDITIONFAILED) => Self::read(&said(error)),
            _ => None,
        }
    }

    /// Reads what RabbitMQ says: `.. inequivalent arg 'durable' for queue 'orders' in vhost '/': received 'true' but current is
    /// 'false'`, or at its end `the value '60000' of type 'signedint'`, or `none`.
    fn read(text: &str) -> Option<Self> {
        let (_, rest) = text.split_once("inequivalent arg '")?;
        let (property, rest) = rest.split_once('\'')?;
        let (_, current) = rest.rsplit_once(" but current is ")?;
        let quoted = |text: &str| Some(text.strip_prefix('\'')?.strip_suffix('\'')?.to_owned());
        let current = match (current, current.strip_prefix("the value ")) {
            ("none", _) => None,
            (_, Some(argument)) => {
                let (value, kind) = argument.rsplit_once(" of type ")?;
                let (value, kind) = (quoted(value)?, quoted(kind)?);
                Some(Current {
                    value,
                    kind: Some(kind),
                })
            }
            (field, None) => Some(Current {
                value: quoted(field)?,
                kind: None,
            }),
        };
        Some(Self {
            property: property.to_owned(),
            current,
        })
    }
}

impl Current {
    /// The same again, as RabbitMQ compares it: whole numbers of any size are alike.
    pub(super) fn as_argument(&self) -> Option<AMQPValue> {
        match self.kind.as_deref()? {
            "longstr" => Some(AMQPValue::LongString(LongString::from(self.value.as_str()))),
            "bool" => self.value.parse().ok().map(AMQPValue::Boolean),
            _ => self.value.parse().ok().map(AMQPValue::LongLongInt),
        }
    }
}

#[cfg(test)]
mod tests {
    use lapin::ConnectionProperties;

    use super::*;

    fn read(end: &str) -> Option<Difference> {
        let text = format!(
            "PRECONDITION_FAILED - inequivalent arg 'x' for queue 'it's' in vhost '/': received 'y' but current is {end}"
        );
        Difference::read(&text)
    }

    #[test]
    fn what_differs_is_read_from_the_words_of_the_broker() {
        let current = |value: &str, kind: Option<&str>| Current {
            value: value.to_owned(),
            kind: kind.map(ToOwned::to_owned),
        };
        let difference = |current| {
            Some(Difference {
                property: "x".to_owned(),
                current,
            })
        };
        assert_eq!(read("'false'"), difference(Some(current("false", None))));
        assert_eq!(read("none"), difference(None));
        let ttl = current("60000", Some("signedint"));
        assert_eq!(ttl.as_argument(), Some(AMQPValue::LongLongInt(60_000)));
        assert_eq!(read("the value '60000' of type 'signedint'"), difference(Some(ttl)));
        let quote = current("it's", Some("longstr"));
        assert_eq!(quote.as_argument(), Some(AMQPValue::LongString("it's".into())));
        assert_eq!(read("the value 'it's' of type 'longstr'"), difference(Some(quote)));
        assert_eq!(current("[]", Some("table")).as_argument(), None);
        for other in [
            "PRECONDITION_FAILED - unknown delivery tag 7",
            "",
            "inequivalent arg 'x",
        ] {
            assert_eq!(Difference::read(other), None, "{other:?}");
        }
    }

    /// A queue or an exchange may be deleted after it was found: then the question must not make another one.
    #[tokio::test]
    async fn a_question_about_something_that_is_gone_makes_nothing() {
        let url = std::env::var("TEST_RABBITMQ_URL").expect("TEST_RABBITMQ_URL says where RabbitMQ is");
        let connecting = Connection::connect(&url, ConnectionProperties::default());
        let connection = connecting.await.expect("a broker");
        let name = ShortString::from(format!("t{}", uuid::Uuid::now_v7().simple()));
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(NO_TYPE.into()));
        let declared = ask(&connection, |channel| declare_queue(channel, &name, &arguments)).await;
        assert!(matches!(declared, Answer::Other(_)));
        let looked = ask(&connection, |channel| look_for_queue(channel, &name)).await;
        assert!(matches!(looked, Answer::Missing));
        let declared = ask(&connection, |channel| {
            declare_exchange(channel, &name, &ExchangeKind::Topic)
        })
        .await;
        assert!(matches!(declared, Answer::Other(_)));
        let looked = ask(&connection, |channel| look_for_exchange(channel, &name)).await;
        assert!(matches!(looked, Answer::Missing));
    }
}
