//! What the library says to those who write Rust, for those who write a line.

/// What is written in Rust, and the flag that does the same.
const FLAGS: [(&str, &str); 7] = [
    (".allow_private()", "--allow-private"),
    (".allow_plaintext()", "--allow-plaintext"),
    (".unsigned()", "--unsigned"),
    ("Nats::at_plaintext", "--allow-plaintext"),
    ("Nats::monitor", "--nats-monitor"),
    ("RabbitMq::at_plaintext", "--allow-plaintext"),
    ("RedisStreams::at_plaintext", "--allow-plaintext"),
];

/// The same advice, with flags.
pub(crate) fn with_flags(text: &str) -> String {
    FLAGS
        .iter()
        .fold(text.to_owned(), |text, (rust, flag)| text.replace(rust, flag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_flags() {
        let said = "leads to 127.0.0.1, this machine itself; add .allow_private() if it is yours";
        let told = "leads to 127.0.0.1, this machine itself; add --allow-private if it is yours";
        assert_eq!(with_flags(said), told);
    }
}
