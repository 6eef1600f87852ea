//! A real browser, Debian's Chromium, behind chromedriver: one program that is told over HTTP what to do with how many
//! browsers ever (WebDriver).

use super::{Image, Package, Ready, Service};

/// Chromium and its driver, whichever is installed. A browser is started when a test asks for a session. It keeps its
/// profile in `$home`, so that nothing of it stays on the machine.
pub(crate) const WEBDRIVER: Service = Service {
    name: "webdriver",
    variable: "TEST_WEBDRIVER_URL",
    url: "http://127.0.0.1:{port}",
    default_port: 9515,
    programs: &["chromedriver"],
    place: "/usr/bin",
    users: &["nobody"],
    arguments: &[],
    comes_back: false,
    start: r#"
        export HOME="$home" TMPDIR="$home"
        exec "$bin/chromedriver" --port="$port" $arguments
    "#,
    stop: r#"kill -TERM "$server""#,
    ready: Ready::Greeting {
        say: b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        hear: b"HTTP/1.1 200",
    },
    // A browser in a container would not find the servers that tests start on 127.0.0.1.
    image: Image {
        name: "",
        environment: &[],
    },
    package: Package {
        name: "chromium-driver",
        config: "",
        config_text: "",
        units: &[],
    },
};
