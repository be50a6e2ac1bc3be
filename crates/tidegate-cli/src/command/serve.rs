//! `tidegate serve`

use clap::Args;
use tidegate_server::Config;

use super::Error;
use crate::say;

/// Run the daemon: a gateway in front of a service, and an API that decides.
///
/// The first policy serves the gateway and, unless a call names another, the API. Without a policy a
/// demo starts: a small service behind a gateway, and three commands to try.
///
/// SIGHUP or a changed file reloads. SIGTERM or Ctrl-C finishes what was accepted, and stops. Every
/// option is also an environment variable.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate serve\n  tidegate serve policy.yaml --upstream http://127.0.0.1:3000\n  tidegate serve policy.yaml --upstream http://127.0.0.1:3000 --gateway 0.0.0.0:443 --tls-cert cert.pem --tls-key key.pem\n  tidegate serve policy.yaml --upstream http://127.0.0.1:3000 --public-limits /rate-limits --drain-delay 5s\n  tidegate serve a.yaml b.yaml --api 127.0.0.1:7070 --state-dir /var/lib/tidegate"
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    config: Config,
}

pub(crate) fn run(arguments: Arguments) -> Result<bool, Error> {
    match tidegate_server::run(arguments.config, |line| say!("{line}")) {
        Err(error) if error.is_report() => {
            anstream::eprintln!("{error}");
            Ok(false)
        }
        outcome => outcome.map(|()| true).map_err(Error::from),
    }
}
