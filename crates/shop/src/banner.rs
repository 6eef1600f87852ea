//! What the shop says when it opens: where to look, and what to try.

use std::io::Write;
use std::net::SocketAddr;

/// Where a person finds what the shop wrote.
pub(crate) struct Whereabouts {
    /// The database in words.
    pub(crate) place: String,
    /// The start of a command line that takes one SQL statement.
    pub(crate) client: String,
    /// The view on the stored answers.
    pub(crate) records: &'static str,
}

/// Prints the address and lines to copy. Called when the listener is bound, so that every line works at once.
pub(crate) fn print(address: SocketAddr, whereabouts: &Whereabouts, is_lab: bool) {
    let text = text(address, whereabouts, is_lab);
    let mut stdout = std::io::stdout().lock();
    // Whoever reads this may have gone away; the shop is open all the same.
    if let Err(error) = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        tracing::debug!(%error, "nobody reads the standard output");
    }
}

fn text(address: SocketAddr, whereabouts: &Whereabouts, is_lab: bool) -> String {
    let Whereabouts { place, client, records } = whereabouts;
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

Everything is in {place}:
  {client} 'SELECT * FROM orders'
  {client} 'SELECT key, operation, status, response_body FROM {records}'

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
        };
        let address = SocketAddr::from(([127, 0, 0, 1], 7878));
        for is_lab in [false, true] {
            let text = text(address, &whereabouts, is_lab);
            assert!(text.lines().any(|line| line == "http://127.0.0.1:7878"), "{text}");
            assert_eq!(text.contains("Shop-Fault"), is_lab, "{text}");
        }
    }
}
