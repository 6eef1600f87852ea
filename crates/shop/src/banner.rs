//! What the shop says when it opens: where to look, and what to try.

use std::io::Write;
use std::net::SocketAddr;

use crate::ProcessOptions;

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
pub(crate) fn worker(address: SocketAddr, whereabouts: &Whereabouts, sinks: &str, options: &ProcessOptions) -> String {
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
    let faults = match options.fault.len() {
        0 => String::new(),
        _ => {
            let faults: Vec<_> = options.fault.iter().map(ToString::to_string).collect();
            format!("Accidents that will happen: {}\n", faults.join(", "))
        }
    };
    format!(
        "
A worker is there. It sells nothing, reserves stock and {mail}, for every shop on {place}.
http://{address}

What was published, and what became of it
  {client} 'SELECT event_type, processed_at_utc, attempt_count, last_error FROM {messages}'
Let a shop on the same database publish only, in another terminal
  cargo run -- --no-dispatch
{sinks}{faults}
Its health: http://{address}/readyz?verbose and http://{address}/metrics. Ctrl-C ends it.

"
    )
}

/// What a shop says.
pub(crate) fn shop(address: SocketAddr, whereabouts: &Whereabouts, sinks: &str, is_lab: bool) -> String {
    let Whereabouts {
        place,
        client,
        records,
        messages,
    } = whereabouts;
    let curl = format!("curl -i http://{address}");
    let user = "-H 'Authorization: Bearer user-a'";
    let order = |key: &str, quantity| {
        format!(
            "{curl}/orders {user} -H 'Idempotency-Key: {key}' \\\n       \
             -H 'Content-Type: application/json' -d '{{\"sku\":\"tea\",\"quantity\":{quantity}}}'"
        )
    };
    let lab = if is_lab {
        format!(
            "\
Break it: this is a fault lab, every knob and crash point is in
  curl http://{address}/lab
kill -9 before the commit; start it again, send it without Shop-Fault, and there is one order
  {} -H 'Shop-Fault: kill=before_commit'
kill -9 after a reservation is made and before it is said; the next worker makes it, once
  cargo run -- worker --lab --fault stock.reserve:kill=after_handler@1
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
What it set off: the stock goes down once for each order, and up again if you cancel it; there are five jams, the sixth is back-ordered
  {curl}/stock {user}
  {curl}/orders/ID/cancel -X POST {user} -H 'Idempotency-Key: cancel-1'
Let a worker do that, in another terminal: stop it, kill it, start two; nothing is lost and nothing happens twice
  cargo run -- worker
{sinks}
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
    use super::*;

    #[test]
    fn the_address_stands_on_a_line_of_its_own() {
        let whereabouts = Whereabouts {
            place: "a file".into(),
            client: "sqlite3 shop.db".into(),
            records: "records",
            messages: "messages",
        };
        let address = SocketAddr::from(([127, 0, 0, 1], 7878));
        for is_lab in [false, true] {
            let text = shop(
                address,
                &whereabouts,
                "Every event also goes to\n  shop.nats: NATS\n",
                is_lab,
            );
            assert!(text.contains("\n  shop.nats: NATS\n"), "{text}");
            assert!(text.lines().any(|line| line == "http://127.0.0.1:7878"), "{text}");
            assert_eq!(text.contains("Shop-Fault"), is_lab, "{text}");
        }
    }
}
