//! Where the outside world is, as the command line says it.

use reqwest::Url;

use crate::StartError;

/// The address of one of its services: a plain one, since our clients speak no TLS.
pub(crate) fn outside_url(outside: &str, path: &[&str]) -> Result<Url, StartError> {
    below(outside, path)
        .ok_or_else(|| format!("{outside:?} is not where the outside world can be; write http://HOST:PORT").into())
}

fn below(outside: &str, path: &[&str]) -> Option<Url> {
    let mut url = Url::parse(outside).ok()?;
    if url.scheme() != "http" || url.query().is_some() || url.fragment().is_some() {
        return None;
    }
    url.path_segments_mut().ok()?.pop_if_empty().extend(path);
    Some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_address_is_where_the_outside_world_can_be() {
        let quote = |outside| below(outside, &["shipping", "quote"]);
        for good in ["http://127.0.0.1:7979", "http://127.0.0.1:7979/", "http://[::1]:7979"] {
            let url = quote(good).expect(good);
            assert!(url.as_str().ends_with(":7979/shipping/quote"), "{url}");
        }
        let under_a_path = quote("http://proxy/outside/").expect("a path");
        assert_eq!(under_a_path.as_str(), "http://proxy/outside/shipping/quote");
        for bad in [
            "",
            "nonsense",
            "127.0.0.1:7979",
            "http://",
            "http://127.0.0.1:99999",
            "https://127.0.0.1:7979",
            "ftp://127.0.0.1:7979",
            "file:///etc/passwd",
            "http://127.0.0.1:7979?a=1",
            "http://127.0.0.1:7979#a",
        ] {
            let refused = outside_url(bad, &["mail"]).expect_err(bad).to_string();
            assert!(refused.contains("http://HOST:PORT"), "{refused}");
        }
    }
}
