//! A real browser, headless Chromium, told what to do by WebDriver: JSON over HTTP to the driver of `TEST_WEBDRIVER_URL`.

use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::PATIENCE;

/// What a browser needs to run anywhere, also as root in a container, and what keeps it from talking to anybody but us. By the
/// pipe it ends with its driver, whatever becomes of the test.
const ARGUMENTS: [&str; 11] = [
    "--headless",
    "--no-sandbox",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
];

/// A browser with a fresh profile, which ends with the test. Commands go to the window that was switched to last.
pub(crate) struct Browser {
    client: Client,
    /// The URL of what is ours at the driver.
    session: String,
}

impl Browser {
    pub(crate) async fn open() -> Self {
        let url = std::env::var("TEST_WEBDRIVER_URL")
            .unwrap_or_else(|_| panic!("TEST_WEBDRIVER_URL is not set: run `cargo xtask test`"));
        let client = client();
        let capabilities = json!({ "alwaysMatch": {
            "goog:chromeOptions": { "args": ARGUMENTS },
            "goog:loggingPrefs": { "browser": "ALL" },
        }});
        let sessions = format!("{}/session", url.trim_end_matches('/'));
        let opened = ask(
            &client,
            Method::POST,
            &sessions,
            &json!({ "capabilities": capabilities }),
        )
        .await;
        let session = format!("{sessions}/{}", opened["sessionId"].as_str().unwrap());
        Self { client, session }
    }

    async fn command(&self, name: &str, parameters: &Value) -> Value {
        let url = format!("{}/{name}", self.session);
        ask(&self.client, Method::POST, &url, parameters).await
    }

    pub(crate) async fn go(&self, url: &str) {
        self.command("url", &json!({ "url": url })).await;
    }

    /// Runs the body of a function in the page, and answers what it returns.
    pub(crate) async fn run(&self, script: &str) -> Value {
        self.command("execute/sync", &json!({ "script": script, "args": [] }))
            .await
    }

    /// A command of the DevTools protocol, for what WebDriver has no word for.
    pub(crate) async fn devtools(&self, method: &str, parameters: Value) -> Value {
        let parameters = json!({ "cmd": method, "params": parameters });
        self.command("goog/cdp/execute", &parameters).await
    }

    /// Opens one more window, with the same cookies, and switches to it.
    pub(crate) async fn open_window(&self) -> String {
        let opened = self.command("window/new", &json!({ "type": "window" })).await;
        let window = opened["handle"].as_str().unwrap().to_owned();
        self.switch_to(&window).await;
        window
    }

    pub(crate) async fn switch_to(&self, window: &str) {
        self.command("window", &json!({ "handle": window })).await;
    }

    /// What the console has said since it was asked last.
    pub(crate) async fn console(&self) -> Vec<String> {
        let lines = self.command("se/log", &json!({ "type": "browser" })).await;
        lines.as_array().unwrap().iter().map(Value::to_string).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let session = self.session.clone();
        // A runtime of its own, since the test's may be the one that is being left.
        let closing = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let close = async { ask(&client(), Method::DELETE, &session, &json!({})).await };
            runtime.unwrap().block_on(close);
        });
        if closing.join().is_err() {
            eprintln!("a browser stays behind until its driver ends");
        }
    }
}

fn client() -> Client {
    Client::builder().no_proxy().timeout(PATIENCE).build().unwrap()
}

async fn ask(client: &Client, method: Method, url: &str, parameters: &Value) -> Value {
    let response = client.request(method, url).json(parameters).send().await.unwrap();
    let status = response.status();
    let mut answer: Value = response.json().await.unwrap();
    assert!(status.is_success(), "{url} {parameters}: {answer}");
    answer["value"].take()
}
