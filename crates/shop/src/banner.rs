//! What the shop says when it opens: where to look, and what to try.

use std::io::Write;
use std::net::SocketAddr;

use crate::{NodeOptions, ProcessOptions, WarehouseOptions};

/// Where a person finds what the shop wrote.
pub(crate) struct Whereabouts {
    /// The database in words.
    pub(crate) place: String,
    /// The start of a command line that takes one SQL statement.
    pub(crate) client: String,
    /// The view on the stored answers.
    pub(crate) records: &'static str,
    /// The view on the events and what became of them.
    pub(crate) messages: &'static str,
    /// The view on the jobs.
    pub(crate) jobs: &'static str,
    /// The table of the messages from elsewhere that were handled.
    pub(crate) inbox: &'static str,
}

/// Prints the address and lines to copy. Called when the listener is bound, so that every line works at once.
pub(crate) fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    // Whoever reads this may have gone away; the shop is open all the same.
    if let Err(error) = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        tracing::debug!(%error, "nobody reads the standard output");
    }
}

/// What a worker says.
pub(crate) fn worker(address: SocketAddr, whereabouts: &Whereabouts, ways: &str, options: &ProcessOptions) -> String {
    let Whereabouts {
        place,
        client,
        messages,
        ..
    } = whereabouts;
    let mail = match &options.outside {
        Some(outside) => format!("sends mail through {outside}"),
        None => "leaves mail to those that know the outside world (--outside URL)".to_owned(),
    };
    let stock = match options.source {
        Some(_) => "leaves the stock to the warehouse",
        None => "reserves stock",
    };
    let faults = faults(&options.node);
    format!(
        "
A worker is there. It sells nothing, {stock} and {mail}, for every shop on {place}.
http://{address}

What was published, and what became of it
  {client} 'SELECT event_type, processed_at_utc, attempt_count, last_error FROM {messages}'
Let a shop on the same database publish only, in another terminal
  cargo run -- --no-dispatch
{ways}{faults}
Its health: http://{address}/readyz?verbose and http://{address}/metrics. Ctrl-C ends it.

"
    )
}

/// What a warehouse says.
pub(crate) fn warehouse(
    address: SocketAddr,
    whereabouts: &Whereabouts,
    ways: &str,
    options: &WarehouseOptions,
) -> String {
    let Whereabouts {
        place,
        client,
        messages,
        inbox,
        ..
    } = whereabouts;
    let faults = faults(&options.node);
    format!(
        "
The warehouse is open. It keeps the stock of shops that are started with the same --source, in {place}.
http://{address}

What there is
  curl http://{address}/stock
What it has reserved, each order once; and the messages that it knows when they come again
  {client} 'SELECT * FROM reservations'
  {client} 'SELECT consumer, source, message_id FROM {inbox}'
What it told the shops, and what became of it
  {client} 'SELECT event_type, processed_at_utc, attempt_count, last_error FROM {messages}'
{ways}{faults}
Its health: http://{address}/readyz?verbose and http://{address}/metrics. Ctrl-C ends it.

"
    )
}

fn faults(options: &NodeOptions) -> String {
    match options.fault.len() {
        0 => String::new(),
        _ => {
            let faults: Vec<_> = options.fault.iter().map(ToString::to_string).collect();
            format!("Accidents that will happen: {}\n", faults.join(", "))
        }
    }
}

/// What a shop says.
pub(crate) fn shop(address: SocketAddr, whereabouts: &Whereabouts, ways: &str, options: &ProcessOptions) -> String {
    let Whereabouts {
        place,
        client,
        records,
        messages,
        jobs,
        ..
    } = whereabouts;
    let curl = format!("curl -i http://{address}");
    let user = "-H 'Authorization: Bearer user-a'";
    let order = |key: &str, quantity| {
        format!(
            "{curl}/orders {user} -H 'Idempotency-Key: {key}' \\\n       \
             -H 'Content-Type: application/json' -d '{{\"sku\":\"tea\",\"quantity\":{quantity}}}'"
        )
    };
    let worker = match options.source {
        Some(_) => "cargo run -- worker --source URL",
        None => "cargo run -- worker",
    };
    let keeper = match options.source {
        Some(_) => "cargo run -- warehouse --source URL",
        None => worker,
    };
    let stock = match options.source {
        Some(_) => "\
What it set off: a warehouse reserves the pieces, once, and the order shows it; start one in another terminal, with the URL of this --source
  cargo run -- warehouse --source URL
Or cancel it, and the pieces are put back"
            .to_owned(),
        None => format!(
            "\
What it set off: the stock goes down once for each order, and up again if you cancel it; there are five jams, the sixth is back-ordered
  {curl}/stock {user}"
        ),
    };
    let lab = if options.node.lab {
        format!(
            "\
Break it: this is a fault lab, every knob and crash point is in
  curl http://{address}/lab
kill -9 before the commit; start it again, send it without Shop-Fault, and there is one order
  {} -H 'Shop-Fault: kill=before_commit'
kill -9 after a reservation is made and before it is said; the next one makes it, once
  {keeper} --lab --fault stock.reserve:kill=after_handler@1
",
            order("crash-1", 1)
        )
    } else {
        "Break it: stop it and start it again as a fault lab\n  cargo run -- --lab\n".to_owned()
    };
    format!(
        "
The shop is open. Look at it in a browser:
http://{address}

Place an order; send the same line twice, and the second answer is the first one (Idempotent-Replayed: true)
  {}
The same key for another order is refused (422)
  {}
What was ordered
  {curl}/orders {user}
{stock}
  {curl}/orders/ID/cancel -X POST {user} -H 'Idempotency-Key: cancel-1'
What is to be done later: a reminder if nobody pays, a receipt if somebody does, a digest each day; mail waits for --outside URL
  {client} 'SELECT name, state, due_at FROM {jobs}'
Let a worker do all that, in another terminal: stop it, kill it, start two; nothing is lost and nothing happens twice
  {worker}
{ways}
Everything is in {place}:
  {client} 'SELECT * FROM orders'
  {client} 'SELECT key, operation, status, response_body FROM {records}'
  {client} 'SELECT event_type, processed_at_utc, attempt_count, last_error FROM {messages}'

{lab}
Its health: http://{address}/readyz?verbose and http://{address}/metrics. Ctrl-C ends it.

",
        order("tea-1", 2),
        order("tea-1", 3),
    )
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command};

    use super::*;

    fn options<O: Args>(flags: &[&str]) -> O {
        let command = O::augment_args(Command::new("shop"));
        let matches = command.get_matches_from([&["shop"], flags].concat());
        O::from_arg_matches(&matches).expect("good options")
    }

    #[test]
    fn the_address_stands_on_a_line_of_its_own() {
        let whereabouts = Whereabouts {
            place: "a file".into(),
            client: "sqlite3 shop.db".into(),
            records: "records",
            messages: "messages",
            jobs: "jobs",
            inbox: "inbox",
        };
        let address = SocketAddr::from(([127, 0, 0, 1], 7878));
        let ways = "Every event also goes to\n  shop.nats: NATS\n";
        let source = ["--source", "nats://127.0.0.1"];
        for (flags, is_lab, stock) in [
            (&[][..], false, "/stock"),
            (&["--lab"], true, "/stock"),
            (&source, false, "warehouse --source"),
        ] {
            let text = shop(address, &whereabouts, ways, &options(flags));
            assert!(text.contains("\n  shop.nats: NATS\n") && text.contains(stock), "{text}");
            assert!(text.lines().any(|line| line == "http://127.0.0.1:7878"), "{text}");
            assert_eq!(text.contains("Shop-Fault"), is_lab, "{text}");
        }
        let fault = ["--lab", "--fault", "orders.nats:kill=after_receive"];
        let text = warehouse(address, &whereabouts, ways, &options(&[&source[..], &fault].concat()));
        assert!(
            text.contains("\n  shop.nats: NATS\n") && text.contains(fault[2]),
            "{text}"
        );
        assert!(text.lines().any(|line| line == "http://127.0.0.1:7878"), "{text}");
    }
}
