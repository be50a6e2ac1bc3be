//! A real Chromium without a window, driven over a pipe in its own protocol.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::eventually_within;

/// Chromium takes its time to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// Switches that keep Chromium off the network.
const QUIET: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
];

/// A browser with one page. It ends when dropped.
pub(crate) struct Browser {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    session: Option<String>,
    last_id: u64,
    /// The errors of the page.
    complaints: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts Chromium with an empty page; `TIDEGATE_TEST_CHROMIUM` names another binary.
    pub(crate) fn start() -> Self {
        let chromium = std::env::var("TIDEGATE_TEST_CHROMIUM");
        let chromium = chromium.unwrap_or_else(|_| "chromium".to_owned());
        let profile = tempfile::tempdir().unwrap();
        // It reads commands from descriptor 3, and answers on 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null"])
            .arg(chromium)
            .args(QUIET)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (told, messages) = channel();
        let mut answers = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            let mut message = Vec::new();
            while answers.read_until(0, &mut message).is_ok_and(|read| read > 0) {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else { break };
                message.clear();
                if told.send(value).is_err() {
                    break;
                }
            }
        });
        let commands = child.stdin.take().unwrap();
        let mut browser = Self {
            child,
            commands,
            messages,
            session: None,
            last_id: 0,
            complaints: Vec::new(),
            _profile: profile,
        };
        browser.open_page();
        browser
    }

    fn open_page(&mut self) {
        let target = self.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attached = json!({ "targetId": target["targetId"], "flatten": true });
        let session = self.call("Target.attachToTarget", &attached);
        self.session = Some(session["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page.enable", "Runtime.enable", "Log.enable", "Network.enable"] {
            self.call(domain, &json!({}));
        }
    }

    /// Sends one command and returns its result.
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Value {
        let answer = self.ask(method, parameters);
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Sends one command and returns its answer.
    fn ask(&mut self, method: &str, parameters: &Value) -> Value {
        self.last_id += 1;
        let mut command = json!({ "id": self.last_id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        self.commands.write_all(format!("{command}\0").as_bytes()).unwrap();
        self.commands.flush().unwrap();
        loop {
            let message = self.messages.recv_timeout(PATIENCE).expect("Chromium answers");
            if message["id"] == self.last_id {
                return message;
            }
            self.note(&message);
        }
    }

    pub(crate) fn go(&mut self, url: &str) {
        let went = self.call("Page.navigate", &json!({ "url": url }));
        assert!(went["errorText"].is_null(), "{url}: {went}");
    }

    /// The value of an expression in the page; null between two pages.
    pub(crate) fn look(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true });
        self.ask("Runtime.evaluate", &asked)["result"]["result"]["value"].clone()
    }

    /// Waits until an expression is true in the page.
    pub(crate) fn until(&mut self, expression: &str) {
        eventually_within(PATIENCE, expression, || self.look(expression) == true);
    }

    /// The errors of the page, without the expected refusals.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        // Earlier messages have arrived when this is answered.
        self.look("0");
        self.complaints.clone()
    }

    fn note(&mut self, message: &Value) {
        let parameters = &message["params"];
        let complaint = match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => parameters["exceptionDetails"].to_string(),
            Some("Log.entryAdded") if parameters["entry"]["source"] != "network" => {
                parameters["entry"]["text"].to_string()
            }
            _ => return,
        };
        self.complaints.push(complaint);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let close = json!({ "id": 0, "method": "Browser.close" });
        let _ = self.commands.write_all(format!("{close}\0").as_bytes());
        // Chromium ends its own processes when it may shut down.
        for _ in 0..500 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
