//! The daemon from start to end: read everything, bind everything, serve, drain, save.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tidegate::clock::{Clock as _, SystemClock};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::admin::{Admin, Listening, Status};
use crate::app::App;
use crate::challenge::Challenges;
use crate::config::Config;
use crate::demo;
use crate::drain::{Drain, StopSignals};
use crate::engine::{Building, Built};
use crate::error::StartError;
use crate::geo::GeoIp;
use crate::guard::{Guard, Guarded, SharedTokens, is_loopback};
use crate::leases::Leases;
use crate::listen::{Listener, ListenerBounds, Service};
use crate::notify::Notifier;
use crate::open_files::{self, Shares, Wanted};
use crate::protect::{Holding, Load, exchange, load};
use crate::reload::Reload;
use crate::secret::hash_key;
use crate::shared::follow;
use crate::sources::{Checked, Sources};
use crate::state::{Journals, Saved, Saver, StateDir};
use crate::telemetry::{Flush, Log, Metrics};
use crate::tls::{Certificates, Trust};
use crate::tokens::Tokens;
use crate::watch::Changes;
use crate::wire::api::Api;
use crate::wire::gateway::{Gateway, GatewayBounds, Upstream};

/// How long the end waits for webhooks that are being told.
const NOTIFY_LAST: Duration = Duration::from_secs(5);

/// Runs the daemon until it is told to stop; `announce` prints a line on standard output.
///
/// # Errors
/// Something that it was given cannot be used, or a listener cannot be had.
pub fn run(config: &Config, announce: impl Fn(&str)) -> Result<(), StartError> {
    open_files::raise();
    let mut runtime = match config.threads.map(NonZeroUsize::get) {
        // One thread needs nobody to hand its work to.
        Some(1) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if let Some(threads) = config.threads {
        runtime.worker_threads(threads.get());
    }
    runtime.enable_all().build()?.block_on(async {
        let daemon = Daemon::prepare(config).await?;
        daemon.serve(config, announce).await
    })
}

/// Everything that is read before anything listens.
struct Daemon {
    app: Arc<App>,
    checked: Checked,
    sources: Sources,
    changes: Changes,
    certificates: Option<Arc<Certificates>>,
    trust: Option<Arc<Trust>>,
    tokens: Option<SharedTokens>,
    state: Option<(StateDir, Journals)>,
    flush: Flush,
}

impl Daemon {
    async fn prepare(config: &Config) -> Result<Self, StartError> {
        refuse_what_is_open(config)?;
        let clock = SystemClock::new();
        let (log, flush) = Log::start(config.logging, std::io::stderr(), clock.clone())
            .map_err(StartError::new)?;
        // Only a second daemon in one process would find one installed: it then logs through that.
        let _ = tracing::subscriber::set_global_default(log.subscriber());
        let sources = Sources::of(config);
        let changes = sources.watch()?;
        let mut checked = sources.read_policies()?;
        let verifier = sources.read_verifier()?;
        let countries = GeoIp::load(config.geoip.as_deref()).map_err(StartError::new)?;
        let certificates =
            config.tls.as_ref().map(|tls| Certificates::load(&tls.certificate, &tls.key));
        let certificates = certificates.transpose().map_err(StartError::new)?;
        let trust = config.upstream_ca.as_deref().map(|ca| Trust::load(Some(ca))).transpose();
        let trust = trust.map_err(StartError::new)?;
        let tokens = config.tokens.as_deref().map(Tokens::read).transpose();
        let tokens =
            tokens.map_err(StartError::new)?.map(|tokens| Arc::new(ArcSwap::from_pointee(tokens)));
        let state = config.state_dir.as_deref().map(StateDir::open).transpose();
        let state = state.map_err(StartError::new)?;
        let secret =
            hash_key(config.hash_key.as_deref(), state.as_ref()).map_err(StartError::new)?;
        let policies = checked.policies.all();
        let metrics = Arc::new(Metrics::new(clock.now().unix_us / 1_000_000, &policies));
        let building = Building { config, policies: &policies, metrics: &metrics, clock: &clock };
        let built = building.engine(state.as_ref(), &secret).await?;
        let Built { engine, secret: hashed_with, journals } = built;
        let drain = Drain::new();
        let notifier = Notifier::new(config.notify_private.clone(), clock.clone(), drain.clone());
        let notifier = notifier.map_err(StartError::new)?;
        notifier.load(std::mem::take(&mut checked.webhooks));
        let app = App {
            engine,
            leases: Leases::new(),
            load: Load::default(),
            holding: Holding::default(),
            drain,
            countries,
            notifier,
            challenges: Challenges::new(&hashed_with),
            metrics,
            log,
            verifier: ArcSwapOption::from_pointee(verifier),
            clock,
        };
        if app.engine.store().shared().is_some_and(|store| !store.lacks_secret()) {
            app.share_secret(&hashed_with);
        }
        let state = state.zip(journals);
        let app = Arc::new(app);
        exchange::share(&app).await;
        Ok(Self { app, checked, sources, changes, certificates, trust, tokens, state, flush })
    }

    async fn serve(self, config: &Config, announce: impl Fn(&str)) -> Result<(), StartError> {
        let (hang_up, stop) = (signal(SignalKind::hangup())?, StopSignals::new()?);
        let following = tokio::spawn(follow(Arc::clone(&self.app)));
        let loaded = tokio::spawn(load::follow(Arc::clone(&self.app)));
        let (mut serving, status) = self.listen(config)?;
        let save = |(state, journals)| Saver::start(Arc::clone(&self.app), state, journals);
        let saver = self.state.map(save).transpose()?;
        for listening in status.listeners() {
            announce(&format!("listening {} {}", listening.name, listening.url));
        }
        if config.is_demo()
            && let Some(gateway) = status.listeners().iter().find(|one| one.name == "gateway")
        {
            announce(&demo::invitation(&gateway.url));
        }
        let Self { app, sources, changes, certificates, trust, tokens, flush, .. } = self;
        let reload = Reload { app: Arc::clone(&app), status, sources, certificates, trust, tokens };
        let stop = reload.until_stopped(changes, hang_up, stop).await;
        serving.drain(config.bounds.drain, stop).await;
        app.notifier.finish(NOTIFY_LAST).await;
        following.abort();
        loaded.abort();
        if let Some(shared) = app.engine.store().shared() {
            shared.redis().close().await;
        }
        let saved = saver.map_or(Ok(()), finish);
        drop(flush);
        saved
    }

    /// Binds every listener before the first of them serves.
    fn listen(&self, config: &Config) -> Result<(Serving, Arc<Status>), StartError> {
        let shares = shares(config);
        let timeouts = config.bounds.timeouts;
        let bounds = |connections_max| ListenerBounds { connections_max, timeouts };
        let mut serving = Serving::new(self.app.drain.clone());
        let upstream = match &config.upstream {
            Some(url) => {
                let upstream = Upstream::trusting(&url.to_string(), self.trust.clone());
                Some(upstream.map_err(StartError::new)?)
            }
            None if config.is_demo() => Some(demo_upstream(&mut serving, bounds(shares.upstream))?),
            None => None,
        };
        let gateway = match upstream {
            Some(upstream) => {
                let certificates = self.certificates.clone();
                let bounds = bounds(shares.gateway);
                Some((bind("gateway", config.gateway, certificates, bounds)?, upstream))
            }
            None => None,
        };
        let beyond_loopback =
            |address: SocketAddr| self.certificates.clone().filter(|_| !is_loopback(address.ip()));
        let api = bind("api", config.api, beyond_loopback(config.api), bounds(shares.api))?;
        let admin =
            bind("admin", config.admin, beyond_loopback(config.admin), bounds(shares.admin))?;
        if let Some((listener, upstream)) = gateway {
            let gateway =
                Gateway::new(Arc::clone(&self.app), upstream, gateway_bounds(config, &shares));
            serving.start("gateway", listener, gateway)?;
        }
        let api_guard = Guard::new(Guarded::Api, config.api.ip(), self.tokens.clone());
        let admin_guard = Guard::new(Guarded::Admin, config.admin.ip(), self.tokens.clone());
        let guards = [&api_guard, &admin_guard];
        let warnings: Vec<String> =
            guards.iter().filter_map(|guard| guard.warning().map(str::to_owned)).collect();
        self.warn(&warnings);
        let calls = Api::new(Arc::clone(&self.app), Arc::new(api_guard), config.bounds.body);
        serving.start("api", api, calls)?;
        serving.announce("admin", &admin)?;
        let listening = std::mem::take(&mut serving.listening);
        let (now, checked) = (self.app.now(), &self.checked);
        let saving = self.state.as_ref().map(|(state, _)| Arc::clone(state.health()));
        let status = Status::new(now, listening, config.max_keys, checked, warnings, saving);
        let status = Arc::new(status);
        let admin_calls =
            Admin::new(Arc::clone(&self.app), Arc::clone(&status), Arc::new(admin_guard));
        serving.spawn(admin, admin_calls);
        Ok((serving, status))
    }

    /// Everything that an operator should know, logged once.
    fn warn(&self, of_listeners: &[String]) {
        for warning in self.checked.warnings.iter().chain(of_listeners) {
            tracing::warn!(event = "warning", "{warning}");
        }
    }
}

/// Saves everything once more.
fn finish(saver: Saver) -> Result<(), StartError> {
    let Saved { keys, marks } = saver.finish().map_err(StartError::new)?;
    let message = "counters, bans and flags are in the state directory";
    tracing::info!(event = "state_saved", keys, marks, "{message}");
    Ok(())
}

/// The listeners that serve.
struct Serving {
    tasks: JoinSet<()>,
    drain: Drain,
    /// The demo's service, which ends after the gateway before it.
    behind: JoinSet<()>,
    behind_drain: Drain,
    listening: Vec<Listening>,
}

impl Serving {
    fn new(drain: Drain) -> Self {
        let (tasks, behind, behind_drain) = (JoinSet::new(), JoinSet::new(), Drain::new());
        Self { tasks, drain, behind, behind_drain, listening: Vec::new() }
    }

    fn start<S: Service>(
        &mut self,
        name: &'static str,
        listener: Listener,
        service: S,
    ) -> Result<(), StartError> {
        self.announce(name, &listener)?;
        self.spawn(listener, service);
        Ok(())
    }

    fn announce(&mut self, name: &'static str, listener: &Listener) -> Result<(), StartError> {
        let (url, connections) = (listener.url()?, listener.open_connections());
        self.listening.push(Listening { name, url, connections });
        Ok(())
    }

    fn spawn<S: Service>(&mut self, listener: Listener, service: S) {
        self.tasks.spawn(listener.serve(service, self.drain.clone()));
    }

    fn spawn_behind<S: Service>(&mut self, listener: Listener, service: S) {
        self.behind.spawn(listener.serve(service, self.behind_drain.clone()));
    }

    /// Finishes what was accepted, within a bound, or until somebody insists.
    async fn drain(&mut self, bound: Duration, mut stop: StopSignals) {
        self.drain.start();
        tracing::info!(event = "draining", "told to stop: what was accepted is finished");
        let finished = async {
            while self.tasks.join_next().await.is_some() {}
            self.behind_drain.start();
            while self.behind.join_next().await.is_some() {}
        };
        tokio::select! {
            () = finished => {}
            () = tokio::time::sleep(bound) => {
                tracing::warn!(event = "drain_timeout", "some connections did not end in time");
            }
            () = stop.wait() => {}
        }
    }
}

fn bind(
    name: &str,
    address: SocketAddr,
    certificates: Option<Arc<Certificates>>,
    bounds: ListenerBounds,
) -> Result<Listener, StartError> {
    let listener = Listener::bind(address, certificates, bounds);
    listener.map_err(|error| {
        let detail = format!("--{name}: cannot listen on {address}: {error}");
        StartError::new(format!("{detail}; choose another address, or port 0 for a free one"))
    })
}

fn demo_upstream(serving: &mut Serving, bounds: ListenerBounds) -> Result<Upstream, StartError> {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = bind("upstream", address, None, bounds)?;
    let url = listener.url().map_err(StartError::new)?;
    serving.spawn_behind(listener, demo::Upstream);
    Upstream::parse(&url).map_err(StartError::new)
}

/// How many connections there may be of each kind.
fn shares(config: &Config) -> Shares {
    let (each, upstream) = (config.bounds.connections_max, config.bounds.upstream_connections_max);
    let upstream_ends = usize::from(config.has_gateway()) + usize::from(config.is_demo());
    let shares = Shares::of(open_files::allowed(), Wanted { each, upstream, upstream_ends });
    if upstream_ends > 0 && upstream.is_some_and(|wanted| wanted > shares.upstream) {
        let fitting = shares.upstream;
        tracing::warn!(
            event = "open_files",
            fitting,
            "the system allows too few open files for --max-upstream-connections"
        );
    }
    shares
}

fn gateway_bounds(config: &Config, shares: &Shares) -> GatewayBounds {
    GatewayBounds {
        connections_max: shares.upstream,
        connect: config.bounds.connect,
        upstream: config.bounds.upstream,
        body: config.bounds.body,
        ..GatewayBounds::default()
    }
}

/// The API and the admin listener go beyond loopback only with tokens, or when somebody insists.
fn refuse_what_is_open(config: &Config) -> Result<(), StartError> {
    if config.tokens.is_some() || config.insecure {
        return Ok(());
    }
    for (flag, address) in [("--api", config.api), ("--admin", config.admin)] {
        if !is_loopback(address.ip()) {
            return Err(StartError::new(format!(
                "{flag} {address}: everybody who reaches this address could use it; give --tokens FILE, listen on 127.0.0.1, or say --insecure"
            )));
        }
    }
    Ok(())
}
