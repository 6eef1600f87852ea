//! Passwords in URLs, which are printed nowhere.

/// A text without the passwords of the URLs in it.
pub(crate) fn mask(text: &str) -> String {
    text.split_inclusive(char::is_whitespace).map(mask_url).collect()
}

/// A URL without its password.
///
/// What has no `:` with an `@` somewhere behind it, and no parameter of that name, holds none.
pub(crate) fn mask_url(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once(':') else {
        return word.to_owned();
    };
    let (slashes, rest) = rest.strip_prefix("//").map_or(("", rest), |rest| ("//", rest));
    let masked = match rest.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((user, _)) => format!("{user}:****@{host}"),
            // NATS has tokens there.
            None if slashes.is_empty() || scheme.ends_with("nats") || scheme.ends_with("tls") => format!("****@{host}"),
            None => rest.to_owned(),
        },
        None => rest.to_owned(),
    };
    let Some((place, query)) = masked.split_once('?') else {
        return format!("{scheme}:{slashes}{masked}");
    };
    let parameters = query.split('&').map(|parameter| match parameter.split_once('=') {
        Some((name, _)) if name.contains("password") => format!("{name}=****"),
        _ => parameter.to_owned(),
    });
    format!("{scheme}:{slashes}{place}?{}", parameters.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_masked_wherever_a_url_may_hold_it() {
        for (url, shown) in [
            ("postgres://ops:secret@db/shop", "postgres://ops:****@db/shop"),
            ("postgres://ops:s@cr:et@db/shop", "postgres://ops:****@db/shop"),
            (
                "postgres://db/shop?password=secret&sslmode=require",
                "postgres://db/shop?password=****&sslmode=require",
            ),
            (
                "postgres://ops:secret@db/shop?sslpassword=secret",
                "postgres://ops:****@db/shop?sslpassword=****",
            ),
            ("postgres:ops:secret@db/shop", "postgres:ops:****@db/shop"),
            ("ops:secret@db/shop", "ops:****@db/shop"),
            ("postgres://ops@db/shop", "postgres://ops@db/shop"),
            ("redis://:secret@redis/0", "redis://:****@redis/0"),
            ("nats://secret@nats:4222", "nats://****@nats:4222"),
            ("'tls://secret@nats:4222'", "'tls://****@nats:4222'"),
            ("sqlite://shop.db", "sqlite://shop.db"),
            ("billing", "billing"),
        ] {
            assert_eq!((&*mask(url), &*mask_url(url)), (shown, shown));
        }
    }

    #[test]
    fn a_password_may_have_quotes_and_spaces() {
        assert_eq!(mask_url("postgres://ops:it's a@secret@db"), "postgres://ops:****@db");
    }

    #[test]
    fn the_text_around_a_url_stays() {
        assert_eq!(
            mask("error: 'postgres://ops:secret@db/shop' was not expected\n  see: --help\n"),
            "error: 'postgres://ops:****@db/shop' was not expected\n  see: --help\n"
        );
    }
}
