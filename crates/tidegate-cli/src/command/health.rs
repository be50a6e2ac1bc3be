//! `tidegate health`

use std::env::var;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use http::Method;
use serde_json::json;

use super::Error;
use super::client::Client;
use crate::say;

/// Probes ask again soon.
const DEADLINE: Duration = Duration::from_secs(5);
/// The admin listener of a daemon without flags.
const DEFAULT_ADDRESS: &str = "127.0.0.1:7071";

/// Ask a daemon whether it is ready.
///
/// Ends with 0 if it takes requests, and with 1 if it does not: it is starting, draining, or gone. For exec
/// probes of Kubernetes and the HEALTHCHECK of an image.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate health\n  tidegate health http://127.0.0.1:7070\n  tidegate health https://gate.example:7071 --ca ca.pem\n  HEALTHCHECK CMD [\"tidegate\", \"health\"]\n\nIt needs no token."
)]
pub(crate) struct Arguments {
    /// The API or the admin listener. If left out: where TIDEGATE_ADMIN, or else TIDEGATE_API, says that
    /// the daemon of this machine listens, or else http://127.0.0.1:7071
    #[arg(value_name = "URL")]
    url: Option<String>,
    /// Certificates of authorities (PEM) to verify an https URL by, beside the well-known ones
    #[arg(long, value_name = "FILE", env = "TIDEGATE_ADMIN_CA")]
    ca: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, Error> {
    let url = arguments.url.clone().map_or_else(local_url, Ok)?;
    let client = Client::new(&url, arguments.ca.as_deref(), DEADLINE)?;
    let not_ready = match client.send(&Method::GET, "/ready") {
        Ok(answer) if answer["status"] == "ready" => None,
        Ok(_) => Some(format!("{url} is no Tidegate")),
        Err(error) => Some(error.to_string()),
    };
    let is_ready = not_ready.is_none();
    match not_ready {
        problem if arguments.json => {
            say!("{}", json!({ "url": url, "ready": is_ready, "problem": problem }));
        }
        Some(problem) => return Err(problem.into()),
        None => say!("ready"),
    }
    Ok(is_ready)
}

/// Where the daemon of this machine listens, by the variables that it is started with.
fn local_url() -> Result<String, Error> {
    let set = |name| var(name).ok().filter(|value| !value.is_empty());
    let address = set("TIDEGATE_ADMIN").or_else(|| set("TIDEGATE_API"));
    let url =
        url_of(address.as_deref().unwrap_or(DEFAULT_ADDRESS), set("TIDEGATE_TLS_CERT").is_some());
    url.ok_or_else(|| "the listener's port is not known: give its URL".into())
}

/// The URL by which this machine reaches a listener. Beyond loopback it speaks TLS, if the daemon has a
/// certificate.
fn url_of(address: &str, has_certificate: bool) -> Option<String> {
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse::<u16>().ok().filter(|port| *port > 0)?;
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>().ok();
    let is_loopback = host == "localhost" || ip.is_some_and(|ip| ip.to_canonical().is_loopback());
    let host = match ip {
        _ if host.is_empty() => "127.0.0.1",
        Some(IpAddr::V4(ip)) if ip.is_unspecified() => "127.0.0.1",
        Some(IpAddr::V6(ip)) if ip.is_unspecified() => "[::1]",
        _ => host,
    };
    let scheme = if has_certificate && !is_loopback { "https" } else { "http" };
    Some(format!("{scheme}://{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_asked_where_this_machine_reaches_it() {
        for (address, has_certificate, url) in [
            ("127.0.0.1:7071", false, Some("http://127.0.0.1:7071")),
            ("127.0.0.1:7071", true, Some("http://127.0.0.1:7071")),
            ("localhost:7071", true, Some("http://localhost:7071")),
            ("0.0.0.0:7071", false, Some("http://127.0.0.1:7071")),
            ("0.0.0.0:7071", true, Some("https://127.0.0.1:7071")),
            (":7071", false, Some("http://127.0.0.1:7071")),
            ("[::]:7071", false, Some("http://[::1]:7071")),
            ("[::1]:7071", true, Some("http://[::1]:7071")),
            ("192.0.2.1:7071", true, Some("https://192.0.2.1:7071")),
            ("127.0.0.1:0", false, None),
            ("nonsense", false, None),
        ] {
            assert_eq!(url_of(address, has_certificate).as_deref(), url, "{address}");
        }
    }
}
