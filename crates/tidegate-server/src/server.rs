//! The daemon from start to end: read everything, bind everything, serve, drain, save.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::{ArcSwap, ArcSwapOption};
use tidegate::clock::{Clock as _, SystemClock};
use tidegate::store::Memory;
use tidegate::{HashKey, Limiter};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::admin::{Admin, Listening, Status};
use crate::app::App;
use crate::config::Config;
use crate::demo;
use crate::drain::Drain;
use crate::error::StartError;
use crate::guard::{Guard, SharedTokens, Surface as Guarded};
use crate::leases::Leases;
use crate::listen::{self, Listener, Service};
use crate::policies::Surface;
use crate::reload::{Checked, Reload, Sources, reads_tokens};
use crate::secret::hash_key;
use crate::state::StateDir;
use crate::telemetry::{Flush, Log, Metrics};
use crate::tls::Certificates;
use crate::tokens::Tokens;
use crate::wire::api::Api;
use crate::wire::gateway::{Gateway, GatewayBounds, Upstream};

/// Runs the daemon until it is told to stop; `announce` prints a line on standard output.
///
/// # Errors
/// Something that it was given cannot be used, or a listener cannot be had.
pub fn run(config: Config, announce: impl Fn(&str)) -> Result<(), StartError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(StartError::new)?.block_on(async {
        let daemon = Daemon::prepare(&config)?;
        daemon.serve(&config, announce).await
    })
}

/// Everything that is read before anything listens.
struct Daemon {
    app: Arc<App>,
    checked: Checked,
    sources: Sources,
    certificates: Option<Arc<Certificates>>,
    tokens: Option<SharedTokens>,
    state: Option<(StateDir, HashKey)>,
    _flush: Flush,
}

impl Daemon {
    fn prepare(config: &Config) -> Result<Self, StartError> {
        refuse_what_is_open(config)?;
        let has_gateway = config.upstream.is_some() || config.policies.is_empty();
        let gateway = has_gateway.then_some(Surface::Gateway);
        let sources = Sources::of(config, gateway.into_iter().chain([Surface::Api]).collect());
        let checked = sources.read_policies()?;
        let verifier = sources.read_verifier()?;
        let certificates = config.tls.as_ref().map(|tls| Certificates::load(&tls.certificate, &tls.key));
        let certificates = certificates.transpose().map_err(StartError::new)?;
        let tokens = config.tokens.as_deref().map(Tokens::read).transpose();
        let tokens = tokens.map_err(StartError::new)?.map(|tokens| Arc::new(ArcSwap::from_pointee(tokens)));
        let state = config.state_dir.as_deref().map(StateDir::open).transpose();
        let state = state.map_err(StartError::new)?;
        let secret =
            hash_key(config.hash_key.as_deref(), state.as_ref()).map_err(StartError::new)?;

        let clock = SystemClock::new();
        let (log, flush) = Log::start(config.logging, std::io::stderr(), clock.clone())
            .map_err(StartError::new)?;
        // Only a second daemon in one process would find one installed: it then logs through that.
        let _ = tracing::subscriber::set_global_default(log.subscriber());
        let policies = checked.policies.all();
        let mut builder = Limiter::builder()
            .store(Memory::with_max_keys(config.max_keys))
            .clock(clock.clone())
            .hash_key(secret.clone())
            .max_waiters(config.bounds.waiters_max);
        for policy in &policies {
            builder = builder.policy(Arc::clone(policy));
        }
        let limiter = builder.build().map_err(StartError::new)?;
        if let Some(state) = &state {
            let loaded = state.load(limiter.store(), &secret, clock.now());
            let keys = loaded.map_err(StartError::new)?;
            tracing::info!(event = "state_loaded", ?keys, "counters are read from the state directory");
        }
        let app = App {
            limiter,
            leases: Leases::new(),
            drain: Drain::new(),
            metrics: Arc::new(Metrics::new(clock.now().unix_us / 1_000_000, &policies)),
            log,
            verifier: ArcSwapOption::from_pointee(verifier),
            reads_tokens: AtomicBool::new(reads_tokens(&policies)),
            clock,
        };
        let state = state.map(|state| (state, secret));
        let app = Arc::new(app);
        Ok(Self { app, checked, sources, certificates, tokens, state, _flush: flush })
    }

    async fn serve(self, config: &Config, announce: impl Fn(&str)) -> Result<(), StartError> {
        let mut signals = Signals::new()?;
        let bounds = listen::Bounds {
            connections_max: config.bounds.connections_max,
            pace: config.bounds.pace,
        };
        let tls_beyond = |address: SocketAddr| {
            self.certificates.clone().filter(|_| !is_loopback(address.ip()))
        };
        let mut serving = Serving { tasks: JoinSet::new(), drain: self.app.drain.clone(), listening: Vec::new() };
        let upstream = match &config.upstream {
            Some(url) => Some(Upstream::parse(&url.to_string()).map_err(StartError::new)?),
            None if config.policies.is_empty() => Some(demo_upstream(&mut serving, bounds).await?),
            None => None,
        };
        let mut gateway = None;
        if let Some(upstream) = upstream {
            let listener = bind("gateway", config.gateway, self.certificates.clone(), bounds).await?;
            gateway = Some((listener, upstream));
        }
        let api = bind("api", config.api, tls_beyond(config.api), bounds).await?;
        let admin = bind("admin", config.admin, tls_beyond(config.admin), bounds).await?;

        let mut warnings = self.checked.warnings.clone();
        let guard = |surface, address: SocketAddr| {
            Arc::new(Guard::new(surface, address.ip(), self.tokens.clone()))
        };
        let (api_guard, admin_guard) =
            (guard(Guarded::Api, config.api), guard(Guarded::Admin, config.admin));
        warnings.extend([&api_guard, &admin_guard].iter().filter_map(|guard| guard.warning().map(str::to_owned)));
        for warning in &warnings {
            tracing::warn!(event = "warning", "{warning}");
        }
        let demo_at = gateway.as_ref().map(|(listener, _)| listener.address()).transpose();
        let demo_at = demo_at.map_err(StartError::new)?;
        if let Some((listener, upstream)) = gateway {
            let gateway = Gateway::new(Arc::clone(&self.app), upstream, gateway_bounds(config));
            serving.start("gateway", listener, gateway)?;
        }
        let calls = Api::new(Arc::clone(&self.app), api_guard, config.bounds.body);
        serving.start("api", api, calls)?;
        let (address, connections) = (admin.url()?, admin.open_connections());
        serving.listening.push(Listening { name: "admin", url: address, connections });
        let status = Arc::new(Status::new(
            self.app.now(),
            std::mem::take(&mut serving.listening),
            config.max_keys,
            &self.checked.policies,
            warnings,
        ));
        let calls = Admin::new(Arc::clone(&self.app), Arc::clone(&status), admin_guard);
        serving.spawn(admin, calls);
        for listening in status.listeners() {
            announce(&format!("listening {} {}", listening.name, listening.url));
        }
        if config.policies.is_empty() && let Some(gateway) = demo_at {
            announce(&demo::invitation(gateway));
        }

        let Self { app, sources, certificates, tokens, state, _flush, .. } = self;
        let (watcher, mut changes) = crate::watch::watch(sources.files());
        let reload = Reload { app: Arc::clone(&app), status, sources, certificates, tokens };
        loop {
            tokio::select! {
                () = signals.hang_up() => reload.run(),
                Some(()) = changes.recv() => reload.run(),
                () = signals.stop() => break,
            }
        }
        drop(watcher);
        tracing::info!(event = "draining", "told to stop: what was accepted is finished");
        app.drain.start();
        tokio::select! {
            () = serving.finish() => {}
            () = tokio::time::sleep(config.bounds.drain) => {
                tracing::warn!(event = "drain_timeout", "some connections did not end in time");
            }
            () = signals.stop() => {}
        }
        if let Some((state, secret)) = &state {
            let keys = state.save(app.limiter.store(), secret, app.now()).map_err(StartError::new)?;
            tracing::info!(event = "state_saved", keys, "counters are in the state directory");
        }
        Ok(())
    }
}
